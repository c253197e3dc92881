#include "drivers/amd/cards.h"

namespace bm::amd {
namespace {

// Those that pciidlist of amdgpu_drv.c takes: PCI_BASE_CLASS_DISPLAY, and
// PCI_BASE_CLASS_ACCELERATOR.
constexpr uint8_t kBaseClasses[] = {0x03, 0x12};

}  // namespace

// Linux include/linux/pci_ids.h: PCI_VENDOR_ID_ATI
constexpr CardVendor kCardVendor{.name = "AMD", .id = 0x1002, .base_classes = kBaseClasses};

}  // namespace bm::amd
