#pragma once
// Registers that packets name. Where a block lies differs from card to card: its segment bases come
// from the card's IP discovery, offsets from the tables here.

#include <array>
#include <cstdint>
#include <span>

#include "drivers/amd/chips.h"
#include "runtime/base/result.h"

namespace bm::amd {

enum class Reg : uint8_t;

/// One register of a block: dword address = base of `segment` + `offset`.
struct RegisterAt {
  Reg reg;
  uint8_t segment;
  uint32_t offset;
};

#include "drivers/amd/regs/registers.gen.inc"

inline constexpr size_t kRegisters = static_cast<size_t>(Reg::BIF_BX_PF0_GPU_HDP_FLUSH_DONE) + 1;

/// Name as in the vendor's headers.
const char* register_name(Reg reg);

/// Tables of the graphics block, and of the bus block whose version is `major`.`minor`.`revision`;
/// empty for a bus block without a table.
std::span<const RegisterAt> gc_registers(RegisterSet set);
std::span<const RegisterAt> bus_registers(uint32_t major, uint32_t minor, uint32_t revision);

/// Dword addresses of one card, filled at open.
class RegisterMap {
 public:
  /// Adds a block. Errors: kUnsupported naming every register whose segment the card does not have.
  Status add(std::span<const RegisterAt> table, std::span<const uint32_t> segment_bases);
  bool has(Reg reg) const { return addresses_[static_cast<size_t>(reg)] != 0; }
  uint32_t operator[](Reg reg) const { return addresses_[static_cast<size_t>(reg)]; }
  /// Name of the register at a dword address; nullptr when it is none of ours.
  const char* name_at(uint32_t address) const;

 private:
  std::array<uint32_t, kRegisters> addresses_{};
};

}  // namespace bm::amd
