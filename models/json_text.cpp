#include "models/json_text.h"

namespace bm::models {
namespace {

constexpr size_t kMaxDepth = 64;

/// Brackets that are open at once, outside of strings.
size_t depth_of(std::string_view text) {
  size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<nlohmann::json> parse_json_object(std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes)
    return fail(Code::kCorrupt, "JSON of {} bytes (at most {} allowed)", text.size(), max_bytes);
  if (depth_of(text) > kMaxDepth)
    return fail(Code::kCorrupt, "JSON nested deeper than {} levels", kMaxDepth);
  nlohmann::json out = nlohmann::json::parse(text, nullptr, false);
  if (!out.is_object()) return fail(Code::kCorrupt, "no JSON object");
  return out;
}

}  // namespace bm::models
