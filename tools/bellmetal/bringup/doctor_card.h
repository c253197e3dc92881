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
/// The one named, or every AMD card. Errors: kNotFound (no such function).
Status examine_cards(System& system, const std::optional<PciAddress>& named,
                     std::vector<Finding>* list);

}  // namespace bm::cli
