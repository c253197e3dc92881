#pragma once
// What the GSP's programs are told when they start: the operating system's memory regions, the
// resource manager's arguments, the FMC's, and the two calls that wait in the queue.
// Source: nouveau, gsp/rm/r535/gsp.c (r535_gsp_libos_init), gsp/rm/r570/gsp.c, gsp/gh100.c;
// nova-core, gsp.rs, gsp/commands.rs, gsp/fw/commands.rs; open-gpu-kernel-modules 570.144,
// libos_init_args.h, gsp_init_args.h, rpc.c.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "drivers/nv/gsp/boot_memory.h"
#include "drivers/nv/gsp/generation.h"
#include "drivers/nv/gsp/message_queue.h"
#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// A name of at most eight characters as a number, the first in the highest byte that is used.
uint64_t region_id(std::string_view name);

/// Everything that has to stay while the GSP runs.
struct BootArguments {
  BootBlock logs[3];  ///< LOGINIT, LOGINTR, LOGRM
  BootBlock resource_manager, regions;
  BootBlock fmc;  ///< GSP_FMC_BOOT_PARAMS, for the FSP
};
/// All but `fmc`.
Result<BootArguments> make_arguments(BootMemory& memory, const MessageQueue& queue);

/// GSP_FMC_BOOT_PARAMS, for a GSP that boots the resource manager.
std::vector<std::byte> encode_fmc_arguments(uint64_t meta, uint64_t meta_bytes, uint64_t regions);

/// Payload of GSP_SET_SYSTEM_INFO.
std::vector<std::byte> encode_system_info(const Generation& generation, PciFunction& pci);

struct RegistryValue {
  std::string_view name;
  uint32_t value = 0;
};
/// Payload of SET_REGISTRY.
std::vector<std::byte> encode_registry(std::span<const RegistryValue> values);
/// What the firmware needs to be told: that it saves configuration space, may reset the bus, and is
/// not to insist on device ids that it knows.
std::span<const RegistryValue> registry_values();

}  // namespace bm::nv::gsp
