#pragma once
// Memory whose physical addresses stay: huge pages, which the kernel neither swaps nor moves while
// they are mapped. For devices that no IOMMU translates for.

#include <cstdint>
#include <memory>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"

namespace bm {

/// At least `bytes`, zeroed, in pages of 2 MiB; ranges are physical addresses. Errors: kOutOfMemory
/// (no free huge pages, or none that lie side by side, with the remedy); kPermission (the kernel
/// hides physical addresses from this user, CAP_SYS_ADMIN); kIo.
/// Source: Linux Documentation/admin-guide/mm/pagemap.rst and hugetlbpage.rst.
Result<std::unique_ptr<DmaMemory>> allocate_physical(System& system, uint64_t bytes,
                                                     bool is_contiguous);

}  // namespace bm
