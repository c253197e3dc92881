#pragma once
// Taking a PCI function from the kernel's drivers and giving it back as it was.

#include <chrono>
#include <string>
#include <vector>

#include "drivers/transport/pci_enumerate.h"
#include "drivers/transport/system.h"

namespace bm {

struct PciTakeOptions {
  std::string driver = "vfio-pci";  ///< that takes it; "none": no driver at all (pci_sysfs.h)
  bool is_display_taken = false;    ///< though a screen or console would go dark
  bool is_resized = false;          ///< BARs get their largest size on the way
  /// Where what was changed is written before it is changed.
  std::string journal_folder = "/run/bellmetal";
  /// TIMEOUT: a driver lets go of a GPU in up to 5 s; 30 s cover one that waits for its users.
  std::chrono::milliseconds limit{30'000};
};

/// A change of one function: which driver it has now and which it gets.
struct PciChange {
  PciAddress address;
  std::string from, to;         ///< drivers; empty: none
  std::string override_before;  ///< driver_override; empty: any
  bool operator==(const PciChange&) const = default;
};

/// What taking `address` would change: itself and the other members of its IOMMU group with it
/// (bridges excepted), which a group's user must have too. Changes nothing.
/// Errors: kNotFound; kUnsupported (it has a screen, and is_display_taken is not set; no IOMMU for
/// vfio-pci); kIo (processes have it open: who); kPermission (a driver of the kernel's for storage
/// or network has a member).
Result<std::vector<PciChange>> plan_pci_take(System& system, const PciAddress& address,
                                             const PciTakeOptions& options);

/// Does it. The journal is on disk before the first change, so that restore_pci() can undo what a
/// crash left; after an error everything is as before, or the message says what is not. Errors:
/// those of the plan; kTimeout (the kernel does not let go); kPermission, kIo.
Result<std::vector<PciChange>> take_pci(System& system, const PciAddress& address,
                                        const PciTakeOptions& options);

/// Gives back what the journal of `address` says, in the opposite order, and removes it. Errors:
/// kNotFound (no journal), kCorrupt, kTimeout, kPermission, kIo; the journal stays.
Result<std::vector<PciChange>> restore_pci(System& system, const PciAddress& address,
                                           const PciTakeOptions& options);

/// What restore_pci() would do. Errors: kNotFound, kCorrupt.
Result<std::vector<PciChange>> read_pci_journal(System& system, const PciAddress& address,
                                                const std::string& folder);
/// Functions with a journal, ascending.
std::vector<PciAddress> list_pci_journals(System& system, const std::string& folder);

/// The journal's text and back: "bellmetal-pci 1", a line per change, "end". Errors: kCorrupt.
std::string format_pci_journal(const std::vector<PciChange>& changes);
Result<std::vector<PciChange>> parse_pci_journal(std::string_view text);

}  // namespace bm
