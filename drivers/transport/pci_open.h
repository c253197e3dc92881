#pragma once
// The one door to a PCI function, whoever gives it to us.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"

namespace bm {

/// Which function, and through what.
struct PciSelector {
  enum class Way : uint8_t { kVfio, kSysfs, kRemote, kVfioUser };
  Way way = Way::kVfio;
  PciAddress address;  ///< of kVfio and kSysfs
  std::string server;  ///< of kRemote and kVfioUser: a socket
  uint32_t index = 0;  ///< of kRemote: among the functions of the server
  /// Of kRemote: which functions count; 0: as the server numbers them.
  uint16_t vendor = 0;
  /// Of kRemote, with `vendor`: of those alone whose class code has this highest byte; 0: any. A
  /// card has an audio function, too.
  uint8_t base_class = 0;
};
/// "vfio:0000:03:00.0", "sysfs:03:00.0", "remote:/path.sock", "remote:localhost:6667",
/// "remote:/path.sock#1" (the second function), "vfio-user:/path.sock"; an address alone means
/// vfio. Errors: kInvalidArgument with the forms there are.
Result<PciSelector> parse_pci_selector(std::string_view text);
/// Several, separated by ','; none of an empty text. Errors: as parse_pci_selector().
Result<std::vector<PciSelector>> parse_pci_selectors(std::string_view text);
std::string to_string(const PciSelector& selector);

/// Opens it, locked against other processes of ours where it is one of this machine (pci_lock.h).
/// Errors: those of the way and of the lock. `system` outlives the function.
Result<std::unique_ptr<PciFunction>> open_pci(System& system, const PciSelector& selector);

}  // namespace bm
