#include "tests/sim/amd/chip/registers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace bm::sim::amd {
namespace {

struct Line {
  enum class Kind : uint8_t { kHeader, kRegister, kField } kind;
  std::string_view name;
  uint32_t first, second;
};

constexpr Line kLines[] = {
#define BM_HEADER(name) {Line::Kind::kHeader, #name, 0, 0},
#define BM_HEADER_END()
#define BM_REGISTER(name, segment, offset) {Line::Kind::kRegister, #name, segment, offset},
#define BM_FIELD(name, shift, mask) {Line::Kind::kField, #name, shift, mask},
#include "tests/sim/amd/chip/registers.inc"
#undef BM_HEADER
#undef BM_HEADER_END
#undef BM_REGISTER
#undef BM_FIELD
};

struct Header {
  std::vector<RegisterRow> registers;
  std::map<std::string_view, std::vector<FieldRow>> fields;  ///< by register
};

/// Built once: the lines are in the order in which they belong together.
const std::map<std::string_view, Header>& headers() {
  static const std::map<std::string_view, Header> all = [] {
    std::map<std::string_view, Header> out;
    Header* header = nullptr;
    for (const Line& line : kLines) switch (line.kind) {
        case Line::Kind::kHeader: header = &out[line.name]; break;
        case Line::Kind::kRegister:
          header->registers.push_back({line.name, line.first, line.second});
          break;
        case Line::Kind::kField:
          header->fields[header->registers.back().name].push_back(
              {line.name, line.first, line.second});
          break;
      }
    return out;
  }();
  return all;
}

}  // namespace

const std::vector<RegisterRow>& registers_of(std::string_view header) {
  static const std::vector<RegisterRow> none;
  const auto found = headers().find(header);
  return found == headers().end() ? none : found->second.registers;
}

std::optional<Field> find_field(std::string_view header, std::string_view register_name,
                                std::string_view field) {
  const auto at = headers().find(header);
  if (at == headers().end()) return std::nullopt;
  const auto fields = at->second.fields.find(register_name);
  if (fields == at->second.fields.end()) return std::nullopt;
  const auto found = std::ranges::find(fields->second, field, &FieldRow::name);
  if (found == fields->second.end()) return std::nullopt;
  return Field{found->shift, found->mask};
}

Field field_of(std::string_view header, std::string_view register_name, std::string_view field) {
  const auto found = find_field(header, register_name, field);
  if (found) return *found;
  std::fprintf(stderr, "sim-amd chip: %.*s has no field %.*s.%.*s\n",
               static_cast<int>(header.size()), header.data(),
               static_cast<int>(register_name.size()), register_name.data(),
               static_cast<int>(field.size()), field.data());
  std::abort();
}

}  // namespace bm::sim::amd
