#include <unistd.h>

#include "drivers/memory/slab_pool_impl.h"

namespace bm::memory::slab {

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

uint64_t system_bytes() { return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

}  // namespace bm::memory::slab
