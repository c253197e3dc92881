#include "compiler/tune/knobs.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace bm::compiler {
namespace {

struct KnobRow {
  std::string_view name;  ///< "jam" stands for jam0, jam1, …
  int64_t least, most;
};
constexpr std::array kKnobs = {KnobRow{"axis", -1, 63},      KnobRow{"block", 1, 1024},
                               KnobRow{"blocks", 1, 4096},   KnobRow{"ctiles", 1, 1024},
                               KnobRow{"items", 1, 64},      KnobRow{"jam", 1, kMaxKnobUnroll},
                               KnobRow{"kc", 8, 4096},       KnobRow{"lanes", 1, kMostKnobLanes},
                               KnobRow{"plain", 0, 1},       KnobRow{"rlanes", 0, 1},
                               KnobRow{"rtiles", 1, 1024},   KnobRow{"stages", 2, 8},
                               KnobRow{"sub_groups", 1, 32}, KnobRow{"tile_k", 1, 1024},
                               KnobRow{"tile_m", 1, 1024},   KnobRow{"tile_n", 1, 1024},
                               KnobRow{"trows", 1, 16},      KnobRow{"transposed", 0, 1},
                               KnobRow{"tvectors", 1, 4},    KnobRow{"unroll", 1, 16}};

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_known(std::string_view name, int64_t value) {
  for (const KnobRow& row : kKnobs) {
    std::string_view rest = name;
    if (!rest.starts_with(row.name)) continue;
    rest.remove_prefix(row.name.size());
    const bool fits = row.name == "jam" ? number(rest).value_or(-1) >= 0 : rest.empty();
    if (fits) return value >= row.least && value <= row.most;
  }
  return false;
}

}  // namespace

std::optional<int64_t> Knobs::get(std::string_view name) const {
  const auto it = values.find(name);
  if (it == values.end()) return std::nullopt;
  return it->second;
}

std::string Knobs::text() const {
  std::string out;
  for (const auto& [name, value] : values)
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", name, value);
  return out;
}

Result<Knobs> Knobs::parse(std::string_view text) {
  Knobs knobs;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    const auto value =
        equals == std::string_view::npos ? std::nullopt : number(word.substr(equals + 1));
    if (!value || !is_known(word.substr(0, equals), *value))
      return fail(Code::kInvalidArgument, "'{}' is no choice of a schedule", word);
    knobs.values[std::string(word.substr(0, equals))] = *value;
  }
  return knobs;
}

}  // namespace bm::compiler
