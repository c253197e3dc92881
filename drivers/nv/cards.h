#pragma once
// Which functions are NVIDIA GPUs that DEV=NV:PCI could boot.

#include "drivers/transport/pci_cards.h"

namespace bm::nv {

/// Display controllers, with a screen (0300) or without (0302).
extern const CardVendor kCardVendor;

}  // namespace bm::nv
