#pragma once
// The JSON of safetensors files, read event by event: memory stays in proportion to the header and
// nothing deeper than the format's own three levels is accepted.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/safetensors.h"

namespace bm::models {

struct SafeHeaderEntry {
  std::string name;
  SafeDtype dtype = SafeDtype::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  ///< in the data that follows the header
};

struct SafeHeader {
  std::vector<SafeHeaderEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Errors: kCorrupt naming the offset in the header; kUnsupported naming a number type.
Result<SafeHeader> parse_safetensors_header(std::string_view json);

}  // namespace bm::models
