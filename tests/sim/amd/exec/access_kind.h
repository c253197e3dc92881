#pragma once
// What loads, stores and atomics do to memory, by the last part of their names.

#include <cstdint>
#include <string_view>

namespace bm::sim::amd {

struct AccessKind {
  std::string_view name;  ///< "u8", "b128", "d16_hi_u8"
  uint8_t bytes;
  bool is_signed = false;
  bool d16 = false;   ///< a 16-bit half of the register, the other one stays
  bool high = false;  ///< the upper half
};
/// Null: unknown. `name` as in DS ("u8_d16_hi") or FLAT ("d16_hi_u8").
const AccessKind* find_access(std::string_view name);

struct AtomicKind {
  std::string_view name;  ///< "add_u32"
  uint8_t bytes;
  bool compares = false;  ///< has a second data operand
  uint64_t (*apply)(uint64_t old, uint64_t data, uint64_t compare);
};
/// Null: unknown. `name` without "_rtn".
const AtomicKind* find_atomic(std::string_view name);

}  // namespace bm::sim::amd
