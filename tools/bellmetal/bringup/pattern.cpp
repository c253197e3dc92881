#include "tools/bellmetal/bringup/pattern.h"

#include <charconv>

namespace bm::cli {
namespace {

char upper(char letter) {
  return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
}

}  // namespace

std::optional<uint64_t> parse_number(std::string_view text) {
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    base = 16;
    text.remove_prefix(2);
  }
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value, base);
  if (text.empty() || problem != std::errc() || stop != end) return std::nullopt;
  return value;
}

Result<uint32_t> parse_word(std::string_view text) {
  const auto value = parse_number(text);
  if (!value || *value > UINT32_MAX)
    return fail(Code::kInvalidArgument, "'{}' is no value of 32 bits; write 0x1234 or 4660", text);
  return static_cast<uint32_t>(*value);
}

bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, from = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = t;
    } else if (p < pattern.size() && upper(pattern[p]) == upper(text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace bm::cli
