#pragma once
// The pool of slabs over this vendor's kernel interface.

#include "drivers/nv/kernel_interface.h"
#include "drivers/memory/slab_pool.h"

namespace bm::nv {

struct PoolTypes {
  using Interface = nv::KernelInterface;
  using Memory = nv::Memory;
  using Place = nv::Place;
};
using Allocation = memory::SlabAllocation<PoolTypes>;
using MemoryPool = memory::SlabPool<PoolTypes>;

}  // namespace bm::nv

extern template class bm::memory::SlabAllocation<bm::nv::PoolTypes>;
extern template class bm::memory::SlabPool<bm::nv::PoolTypes>;
