#pragma once
// What the PCI specifications say of every function, over its configuration space.
// Sources: PCI Local Bus 3.0 chapter 6 (header, BARs, MSI), PCI Express Base 5.0 sections 7.5 to
// 7.8 (power management, PCI Express and resizable BAR capabilities); names as in Linux
// include/uapi/linux/pci_regs.h.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "drivers/transport/pci.h"

namespace bm {

enum class PciCapability : uint8_t {
  kPowerManagement = 0x01,
  kMsi = 0x05,
  kExpress = 0x10,
  kMsiX = 0x11,
};
enum class PciExtendedCapability : uint16_t {
  kAdvancedErrors = 0x01,
  kAccessControl = 0x0d,
  kResizableBar = 0x15,
};
enum class PciPower : uint8_t { kD0 = 0, kD3Hot = 3 };

/// Offset of a capability in configuration space; nothing where the function has none. Lists that
/// lead back into themselves or out of the space are kCorrupt, a missing function is kDeviceLost.
Result<std::optional<uint32_t>> find_capability(PciConfig& config, PciCapability id);
/// The same in the extended space; nothing where there is none.
Result<std::optional<uint32_t>> find_extended_capability(PciConfig& config,
                                                         PciExtendedCapability id);

/// Vendor, device, subsystem, class and revision, as of a type 0 header. Errors: kDeviceLost (all
/// ones), kUnsupported (a bridge).
Result<PciIdentity> read_identity(PciConfig& config, const PciAddress& address);

/// Sizes the BARs by writing ones, for functions that no kernel has sized. Decoding is off
/// meanwhile and BARs and command register are as before afterwards. Errors: kCorrupt (a size that
/// cannot be).
Result<std::array<PciBar, kPciBars>> size_bars(PciConfig& config);

/// Sizes, ascending, that a resizable BAR offers; none where it is fixed.
Result<std::vector<uint64_t>> resizable_bar_sizes(PciConfig& config, uint32_t bar);

/// Chooses one of them; memory decoding must be off. The BAR's address is undefined afterwards.
/// Errors: kUnsupported (fixed), kInvalidArgument naming the sizes that are offered.
Status set_resizable_bar(PciConfig& config, uint32_t bar, uint64_t bytes);

/// Whether the function answers accesses to its memory BARs, and whether it may send any.
Status set_memory_decoding(PciConfig& config, bool is_on);
Status set_bus_master(PciConfig& config, bool is_on);

/// Changes the power state and waits as long as the specification asks. A function in D3hot may
/// lose what its registers held. Errors: kUnsupported (no such capability), kTimeout.
Status set_power(PciConfig& config, PciPower state);

}  // namespace bm
