#pragma once
// JSON of files that somebody else wrote: bounded in size and depth.

#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::models {

/// `text` as an object. Errors: kCorrupt: longer than `max_bytes`, nested deeper than 64 levels, no
/// JSON, or something other than an object.
Result<nlohmann::json> parse_json_object(std::string_view text, size_t max_bytes);

}  // namespace bm::models
