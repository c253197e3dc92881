#pragma once
// What Python's str does, on UTF-8: code points, white space, letter case, the text of numbers.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bm::models::jinja {

/// Python's str.isspace of one character: White_Space and the separators U+001C to U+001F.
bool is_space(char32_t c);
/// Bytes of white space at the start and the end of `text`.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

int64_t count_code_points(std::string_view text);
std::vector<char32_t> code_points(std::string_view text);
std::string from_code_points(const std::vector<char32_t>& text);
/// Byte offset of code point `index`, at most text.size().
size_t byte_offset(std::string_view text, int64_t index);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// First character in title case, the others in lower case.
std::string capitalize(std::string_view text);
/// Python's str.title: the first letter after anything that has no case is in title case.
std::string title(std::string_view text);
std::string swap_case(std::string_view text);

enum class TextClass : uint8_t {
  kAlpha,
  kDigit,
  kDecimal,
  kNumeric,
  kAlnum,
  kSpace,
  kUpper,
  kLower
};
/// str.isalpha and its kin.
bool is_all(std::string_view text, TextClass what);
bool is_printable(char32_t c);

/// repr of a float: the shortest digits that read back the same, 1e+16 from there on.
std::string float_text(double value);
/// repr of a string, in Python's choice of quotes.
std::string quoted(std::string_view text);
/// A JSON string, as json.dumps writes it.
std::string json_quoted(std::string_view text, bool is_ascii_only);
/// `text` with & < > " ' as HTML entities.
std::string escape_html(std::string_view text);

}  // namespace bm::models::jinja
