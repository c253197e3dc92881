#pragma once
// Registers that booting a card touches. One name stands for the register of every block version,
// and of both memory hubs; where it lies, how the vendor's headers spell it and where its fields
// are is a row of the version's table.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "drivers/amd/chips.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

enum class Reg : uint16_t;
enum class Field : uint16_t;

struct FieldName {
  Reg reg;
  std::string_view name;
};

struct FieldAt {
  Field field{};
  RegisterField bits;
};

/// One register of a block: dword address = base of `segment` + `offset`.
struct BootRegister {
  Reg reg;
  uint8_t segment;
  uint32_t offset;
  std::string_view name;  ///< as in the vendor's headers: "GCVM_L2_CNTL"
  uint16_t first_field, fields;
};

#include "drivers/amd/regs/boot_registers.gen.inc"

/// IP blocks, each with its own bases in the discovery table.
enum class Block : uint8_t { kGc, kMmhub, kOsssys, kBus, kPsp, kSmu, kHdp, kSdma };
inline constexpr size_t kBlocks = 8;
std::string_view block_name(Block block);

struct BlockTable {
  std::span<const BootRegister> registers;
  std::span<const FieldAt> fields;

  const BootRegister* find(Reg reg) const;
  /// Place of a field in this version; nullptr: it has none.
  const RegisterField* find(Field field) const;
  std::span<const FieldAt> fields_of(const BootRegister& row) const {
    return fields.subspan(row.first_field, row.fields);
  }
  /// "rb_enable=1 rb_size=16", for messages; empty where no field is known.
  std::string decode(const BootRegister& row, uint32_t value) const;
};

/// Register that a field belongs to, and its name in the vendor's headers.
Reg register_of(Field field);
std::string_view field_name(Field field);

/// The table of a block of that version. Errors: kUnsupported naming block and version.
/// Which table serves which version: gmc_v11_0.c and gmc_v12_0.c (*_set_mmhub_funcs,
/// *_set_gfxhub_funcs), amdgpu_discovery.c (amdgpu_discovery_set_*_ip_blocks,
/// amdgpu_discovery_set_ip_blocks for bus and HDP) of Linux 6.12.
Result<BlockTable> block_table(Block block, uint32_t major, uint32_t minor, uint32_t revision);

}  // namespace bm::amd::am
