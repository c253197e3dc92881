#pragma once
// Which functions are AMD GPUs that DEV=AMD:PCI could boot.

#include "drivers/transport/pci_cards.h"

namespace bm::amd {

/// Display and processing accelerators.
extern const CardVendor kCardVendor;

}  // namespace bm::amd
