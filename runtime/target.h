#pragma once
// The DEV grammar: INTERFACE[:indices]+DEVICE[:unit]:RENDERER:ARCH, several separated by ';'.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::runtime {

/// Parsed target. Interface, device and renderer are upper case; arch keeps its case.
struct Target {
  std::string interface;
  std::vector<uint32_t> indices;  ///< physical units the interface may use; empty: all
  std::string device;
  uint32_t unit = 0;  ///< "CPU:1" → 1 (a number in the renderer's place names the unit)
  std::string renderer;
  std::string arch;
  bool operator==(const Target&) const = default;
};

/// Largest unit number and length of an index list; a longer one is a typing mistake.
inline constexpr uint32_t kMaxUnits = 1024;

/// Parses one or more targets. Case of kinds does not matter, ":0" is dropped, blanks around a
/// target are ignored. The arch is the rest of a target after the renderer's colon, commas and
/// colons included; one empty field before it is passed over ("NULL:PTX::sm_90"). `known_devices`:
/// when not empty, a device name outside of it is an error with a "did you mean". Errors:
/// kInvalidArgument quoting the offending part.
Result<std::vector<Target>> parse_targets(std::string_view text,
                                          std::span<const std::string_view> known_devices = {});
/// Exactly one target.
Result<Target> parse_target(std::string_view text,
                            std::span<const std::string_view> known_devices = {});
/// Canonical text; parse(print(t)) == t.
std::string to_string(const Target& target);

/// `, did you mean "X"?` for the nearest candidate (edit distance, case ignored), or "" when none
/// is near.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);
/// The words of a space separated list such as hal::DriverInfo::renderers.
std::vector<std::string_view> split_words(std::string_view list);
std::string upper_case(std::string_view text);

}  // namespace bm::runtime
