#pragma once
// Registers that say what a card does, by name, with their fields, and which cards have them: for
// whoever looks at one. A boot has its own (registers.h).

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "drivers/nv/gsp/generation.h"

namespace bm::nv::gsp {

struct NamedField {
  std::string_view name;
  uint8_t high = 0, low = 0;
  uint32_t get(uint32_t value) const { return value >> low & max(); }
  uint32_t max() const { return high - low == 31 ? UINT32_MAX : (1u << (high - low + 1)) - 1; }
};

struct NamedRegister {
  std::string_view name;
  uint32_t offset = 0;  ///< in BAR0, bytes
  bool (*is_there)(const Generation& generation) = nullptr;
  std::span<const NamedField> fields = {};
};

/// In the order of a look at a card: who it is, its ROM, memory, processors, faults.
std::span<const NamedRegister> named_registers();

/// "HALTED 0x1, ALIAS_EN 0x1": the fields that are not 0.
std::string fields_text(const NamedRegister& which, uint32_t value);

}  // namespace bm::nv::gsp
