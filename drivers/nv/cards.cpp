#include "drivers/nv/cards.h"

namespace bm::nv {
namespace {

constexpr uint8_t kBaseClasses[] = {0x03};  // the base class that nova-core and nouveau take

}  // namespace

// Linux include/linux/pci_ids.h: PCI_VENDOR_ID_NVIDIA
constexpr CardVendor kCardVendor{.name = "NVIDIA", .id = 0x10de, .base_classes = kBaseClasses};

}  // namespace bm::nv
