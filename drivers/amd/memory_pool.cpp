#include "drivers/amd/memory_pool.h"

#include "drivers/memory/slab_pool_impl.h"

template class bm::memory::SlabAllocation<bm::amd::PoolTypes>;
template class bm::memory::SlabPool<bm::amd::PoolTypes>;
