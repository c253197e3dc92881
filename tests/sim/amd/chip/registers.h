#pragma once
// Offsets and fields of AMD's registers, by header of the Linux kernel. The model's own table: read
// from the headers by extract_registers.py, shared with no driver.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace bm::sim::amd {

struct RegisterRow {
  std::string_view name;
  uint32_t segment = 0;  ///< index of the base address
  uint32_t offset = 0;   ///< dwords
};
struct FieldRow {
  std::string_view name;
  uint32_t shift = 0, mask = 0;
};

/// A field's position; value = (register & mask) >> shift.
struct Field {
  uint32_t shift = 0, mask = 0;
  uint32_t of(uint32_t value) const { return (value & mask) >> shift; }
  uint32_t put(uint32_t value) const { return value << shift & mask; }
};

/// Registers of one header, "gc_11_0_0"; empty for one there is not.
const std::vector<RegisterRow>& registers_of(std::string_view header);
/// Ends the process for a name that the header has not: tables and blocks belong together.
Field field_of(std::string_view header, std::string_view register_name, std::string_view field);
std::optional<Field> find_field(std::string_view header, std::string_view register_name,
                                std::string_view field);

}  // namespace bm::sim::amd
