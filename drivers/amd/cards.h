#pragma once
// Which cards DEV=AMD:PCI means: found without opening any of them.

#include <string>
#include <string_view>
#include <vector>

#include "drivers/transport/pci_open.h"
#include "runtime/base/result.h"

namespace bm::amd {

/// Whether a function is an AMD display or processing accelerator.
bool is_card(const PciIdentity& identity);

/// An AMD display or accelerator of this machine.
struct CardInfo {
  PciSelector selector;
  std::string name;      ///< by the machine's pci.ids, else vendor and device number
  std::string driver;    ///< of the kernel; empty: none
  bool is_free = false;  ///< a process may take it: vfio-pci has it
  std::string remedy;    ///< what is in the way otherwise, and what helps
};

/// Ascending by address. Errors: of enumerate_pci(), where the machine has PCI at all.
Result<std::vector<CardInfo>> list_cards(System& system);

/// The functions of `chosen` (BM_PCI), in that order; where it is empty all that are free. Errors:
/// kInvalidArgument (BM_PCI); kNotFound (no card); kPermission (cards, none of them free: what is
/// in the way of each).
Result<std::vector<PciSelector>> find_cards(System& system, std::string_view chosen);

}  // namespace bm::amd
