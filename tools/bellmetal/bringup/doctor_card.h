#pragma once
// The doctor's subjects that concern cards without a kernel driver.

#include <span>
#include <string>
#include <vector>

#include "drivers/transport/pci_open.h"
#include "tools/bellmetal/bringup/doctor.h"

namespace bm::cli {

/// Whether this user may read and write a node.
Finding examine_node(System& system, const std::string& path, uint32_t ways,
                     const std::string& if_missing);
/// Empty where the file cannot be read.
std::string first_line(System& system, const std::string& path);

/// IOMMU, kernel options, lockdown, locked memory, vfio-pci, as far as `functions` need them; none:
/// those that vfio-pci would have.
void examine_machine_for_cards(System& system, std::span<const PciSelector> functions,
                               std::vector<Finding>* list);
/// Whether a card is here that examine_cards() looks at where nobody names a device: AMD's, and
/// NVIDIA's that its own driver does not have. True where no PCI bus is shown.
bool has_examined_card(System& system);
/// The functions named, or every card of the vendors whose ways (kWayAmdPci, kWayNvPci) are wanted;
/// `is_named`: those of NVIDIA's own driver as well.
void examine_cards(System& system, std::span<const PciSelector> functions, uint32_t ways,
                   bool is_named, std::vector<Finding>* list);
/// Bridges of this machine's USB and what opens them. `is_named`: that there are none is told, too.
void examine_usb_bridges(System& system, bool is_named, std::vector<Finding>* list);

}  // namespace bm::cli
