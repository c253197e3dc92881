#include "models/model_error.h"

#include <fmt/format.h>

#include "models/unicode.h"

namespace bm::models {
namespace {
constexpr size_t kShownBytes = 80;
}

std::string quote_name(std::string_view text) {
  std::string out = "\"";
  size_t pos = 0;
  while (pos < text.size() && pos < kShownBytes) {
    const CodePoint c = decode_utf8(text, pos);
    const bool is_control = c.value < 0x20 || (c.value >= 0x7f && c.value < 0xa0);
    if (!c.is_valid || is_control) {
      for (size_t i = 0; i < c.length; ++i)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[pos + i]));
    } else {
      if (c.value == '"' || c.value == '\\') out += '\\';
      out += text.substr(pos, c.length);
    }
    pos += c.length;
  }
  out += pos < text.size() ? "…\"" : "\"";
  return out;
}

std::string mib(uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576.0);
}

}  // namespace bm::models
