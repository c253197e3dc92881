#pragma once
// Which cards DEV=NV:PCI means: found without opening any of them.

#include <string_view>
#include <vector>

#include "drivers/transport/pci_open.h"
#include "runtime/base/result.h"

namespace bm::nv {

/// The functions of `chosen` (BM_PCI), in that order; where it is empty all NVIDIA GPUs that are
/// free: vfio-pci has them. Errors: kInvalidArgument (BM_PCI); kNotFound (no card); kPermission
/// (cards, none of them free: who has each).
Result<std::vector<PciSelector>> find_cards(System& system, std::string_view chosen);

}  // namespace bm::nv
