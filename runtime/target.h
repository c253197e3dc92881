#pragma once
// The DEV grammar: INTERFACE[:indices]+DEVICE:RENDERER:ARCH, several separated by ';'.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::runtime {

/// Parsed target. Device and renderer are upper case; arch keeps its case.
struct Target {
  std::string interface;
  std::vector<uint32_t> indices;  ///< physical units the interface may use; empty: all
  std::string device;
  uint32_t unit = 0;              ///< "CPU:1" → 1 (a number in the renderer's place names the unit)
  std::string renderer;
  std::string arch;
  bool operator==(const Target&) const = default;
};

Result<std::vector<Target>> parse_targets(std::string_view text);
/// Canonical text; parse(print(t)) == t.
std::string to_string(const Target& target);

}  // namespace bm::runtime
