#pragma once
// The chips that are booted without a kernel driver, for commands that are asked about one without
// a card.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/amd/regs/boot_registers.h"
#include "firmware/amd/set.h"
#include "runtime/base/result.h"

namespace bm::cli {

struct KnownBlock {
  amd::am::Block block{};
  amd::am::BlockTable table;
};

/// Errors: kInvalidArgument naming the chips there are.
Result<firmware::amd::ChipId> known_chip_id(std::string_view chip);
Result<std::vector<KnownBlock>> known_blocks(std::string_view chip);

/// The chip that a PCI device id of AMD's stands for; empty: not known by its id.
std::string_view chip_of_device(uint16_t device);

/// As soc15_hw_ip.h spells it, or "17" for one that it does not know.
std::string hardware_name(uint16_t hw_id);

}  // namespace bm::cli
