#pragma once
// The commands of the bring-up bench for NVIDIA's cards, once their function is open.

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "drivers/transport/pci.h"
#include "tools/bellmetal/bringup/bringup.h"
#include "tools/bellmetal/bringup/vendors.h"

namespace bm::cli {

/// Boots the card stage by stage and has it leave; prints and returns the exit code. `trace`:
/// nullptr: none is asked for.
int boot_nvidia(std::unique_ptr<PciFunction> function, const BootOptions& options,
                const std::string& chosen, TraceFile* trace);

/// Chip, generation, memory and state, added to what every function says of itself. Only reads.
Status discover_nvidia(PciFunction& function, nlohmann::ordered_json* json);
void print_nvidia(const nlohmann::ordered_json& json);

/// What the card does, as it stands.
int autopsy_nvidia(PciFunction& function, const AutopsyCommand& options, const std::string& chosen);
/// Registers by name or by byte address in BAR 0; the same with a value; and of a value alone.
int read_nvidia_registers(PciFunction& function, const RegisterOptions& options);
int write_nvidia_register(PciFunction& function, const RegisterOptions& options);
int decode_nvidia_register(const RegisterOptions& options);
/// "ga104", of the card. Errors: as identify().
Result<std::string> nvidia_chip_of(PciFunction& function);

}  // namespace bm::cli
