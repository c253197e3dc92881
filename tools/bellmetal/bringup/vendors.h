#pragma once
// PCI vendor numbers (include/linux/pci_ids.h) of the cards that the bring-up bench knows.

#include <cstdint>

namespace bm::cli {

inline constexpr uint16_t kAmdVendor = 0x1002, kNvidiaVendor = 0x10de;

}  // namespace bm::cli
