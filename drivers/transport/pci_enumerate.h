#pragma once
// The PCI functions of this machine as the kernel describes them (Linux
// Documentation/PCI/sysfs-pci.rst and ABI/testing/sysfs-bus-pci): found without opening or changing
// any of them.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/system.h"

namespace bm {

struct PciInfo {
  PciIdentity identity;
  std::array<PciBar, kPciBars> bars{};
  std::string driver;                           ///< of the kernel, bound to it; empty: none
  std::string driver_override;                  ///< the only one that may bind; empty: any
  std::optional<uint32_t> iommu_group;          ///< absent: nothing translates its accesses
  std::string iommu_type;                       ///< "DMA", "DMA-FQ", "identity", "blocked" or empty
  std::vector<PciAddress> group;                ///< members of its IOMMU group, itself included
  std::vector<PciAddress> siblings;             ///< the other functions of its slot
  std::optional<uint32_t> numa_node;            ///< absent: the machine has none
  std::string link_speed, max_link_speed;       ///< "16.0 GT/s PCIe"; empty: no PCI Express link
  uint32_t link_width = 0, max_link_width = 0;  ///< lanes
  bool is_boot_display = false;                 ///< the firmware's screen is there
  std::vector<std::string> displays;  ///< screens that are on ("card0-DP-1") and consoles ("fb0")
  std::vector<std::string> nodes;     ///< under /dev, of the kernel's drivers for it
  std::string vendor_name, device_name;  ///< of the machine's pci.ids; empty: not known
};

/// Every function, ascending. Errors: kNotFound, kIo (no PCI here).
Result<std::vector<PciAddress>> list_pci(System& system);

/// One function. Errors: kNotFound (no such function), kCorrupt, kIo.
Result<PciInfo> describe_pci(System& system, const PciAddress& address);

/// Those that `is_wanted` says yes to, ascending; functions that disappear meanwhile are left out.
/// `is_wanted` sees what one function says of itself before the rest is looked for.
Result<std::vector<PciInfo>> enumerate_pci(
    System& system, const std::function<bool(const PciIdentity&)>& is_wanted);

/// A process that has a file of a function open.
struct PciHolder {
  int pid = 0;
  std::string command;  ///< the first 15 characters of its name
  std::string path;     ///< what it has open
};

/// Who has a node of `info` or a file of its folder open, as far as this user may see. Looks at no
/// more than 100,000 descriptors; `is_complete` says whether it saw all.
std::vector<PciHolder> find_pci_holders(System& system, const PciInfo& info,
                                        bool* is_complete = nullptr);

/// Name of a process; empty when it is gone.
std::string process_command(System& system, int pid);

}  // namespace bm
