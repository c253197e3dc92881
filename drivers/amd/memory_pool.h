#pragma once
// The pool of slabs over this vendor's kernel interface.

#include "drivers/amd/kernel_interface.h"
#include "drivers/memory/slab_pool.h"

namespace bm::amd {

struct PoolTypes {
  using Interface = amd::KernelInterface;
  using Memory = amd::Memory;
  using Place = amd::Place;
};
using Allocation = memory::SlabAllocation<PoolTypes>;
using MemoryPool = memory::SlabPool<PoolTypes>;

}  // namespace bm::amd

extern template class bm::memory::SlabAllocation<bm::amd::PoolTypes>;
extern template class bm::memory::SlabPool<bm::amd::PoolTypes>;
