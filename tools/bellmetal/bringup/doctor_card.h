#pragma once
// The doctor's subjects that concern cards without a kernel driver.

#include <optional>
#include <string>
#include <vector>

#include "drivers/transport/pci.h"
#include "tools/bellmetal/bringup/doctor.h"

namespace bm::cli {

/// Whether this user may read and write a node.
Finding examine_node(System& system, const std::string& path, uint32_t ways,
                     const std::string& if_missing);
/// Empty where the file cannot be read.
std::string first_line(System& system, const std::string& path);

/// IOMMU, kernel options, locked memory.
void examine_machine_for_cards(System& system, std::vector<Finding>* list);
/// Whether a card is here that examine_cards() looks at where nobody names a device: AMD's, and
/// NVIDIA's that its own driver does not have. True where no PCI bus is shown.
bool has_examined_card(System& system);
/// The one named, or every card of the vendors whose ways (kWayAmdPci, kWayNvPci) are wanted;
/// `is_named`: those of NVIDIA's own driver as well. Errors: kNotFound (no such function).
Status examine_cards(System& system, const std::optional<PciAddress>& named, uint32_t ways,
                     bool is_named, std::vector<Finding>* list);

}  // namespace bm::cli
