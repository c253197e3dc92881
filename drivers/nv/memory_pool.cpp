#include "drivers/nv/memory_pool.h"

#include "drivers/memory/slab_pool_impl.h"

template class bm::memory::SlabAllocation<bm::nv::PoolTypes>;
template class bm::memory::SlabPool<bm::nv::PoolTypes>;
