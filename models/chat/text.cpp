#include "models/chat/text.h"

#include <utf8proc.h>

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "models/unicode.h"

namespace bm::models::jinja {
namespace {

struct FullUpper {
  char32_t from;
  char32_t upper[3];
  char32_t title[3];
};
// Characters whose upper case is several: Unicode 15, SpecialCasing.txt, its unconditional rows.
constexpr FullUpper kFullUpper[] = {
#include "models/chat/special_casing.gen.inc"
};

const FullUpper* find_full_upper(char32_t c) {
  for (const FullUpper& row : kFullUpper)
    if (row.from == c) return &row;
  return nullptr;
}

void append_upper(std::string& out, char32_t c, bool is_title) {
  if (c >= 0x80) {
    if (const FullUpper* const row = find_full_upper(c)) {
      for (const char32_t part : is_title ? row->title : row->upper)
        if (part != 0) append_utf8(out, part);
      return;
    }
  }
  const auto code = static_cast<utf8proc_int32_t>(c);
  append_utf8(out,
              static_cast<char32_t>(is_title ? utf8proc_totitle(code) : utf8proc_toupper(code)));
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

/// Upper, lower or title case; false for what has none.
bool is_cased(char32_t c) {
  const auto code = static_cast<utf8proc_int32_t>(c);
  return category(c) == UTF8PROC_CATEGORY_LT || utf8proc_isupper(code) != 0 ||
         utf8proc_islower(code) != 0;
}
/// Marks and the like, which the rule of the final sigma looks through.
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: break;
  }
  return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019 ||
         c == 0x2024 || c == 0x2027;
}

/// Whether the capital sigma at `index` ends a word.
bool is_final_sigma(const std::vector<char32_t>& text, size_t index) {
  size_t before = index;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = index + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string& out, const std::vector<char32_t>& text, size_t index) {
  const char32_t c = text[index];
  if (c == 0x3a3) return append_utf8(out, is_final_sigma(text, index) ? 0x3c2 : 0x3c3);
  if (c == 0x130) {
    append_utf8(out, 'i');
    return append_utf8(out, 0x307);
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

bool is_in(char32_t c, TextClass what) {
  const utf8proc_category_t kind = category(c);
  const bool is_letter = kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
  switch (what) {
    case TextClass::kAlpha: return is_letter;
    case TextClass::kDecimal: return kind == UTF8PROC_CATEGORY_ND;
    // Superscripts and circled digits are digits without being decimals.
    case TextClass::kDigit:
      return kind == UTF8PROC_CATEGORY_ND || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
             (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
    case TextClass::kNumeric: return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
    case TextClass::kAlnum:
      return is_letter || (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO);
    case TextClass::kSpace: return is_space(c);
    case TextClass::kUpper:
    case TextClass::kLower: break;
  }
  return false;
}

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t leading_space(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const CodePoint c = decode_utf8(text, pos);
    if (!is_space(c.value)) break;
    pos += c.length;
  }
  return pos;
}

size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!is_space(decode_utf8(text, begin).value)) break;
    end = begin;
  }
  return text.size() - end;
}

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = decode_utf8(text, pos);
    out.push_back(c.value);
    pos += c.length;
  }
  return out;
}

std::string from_code_points(const std::vector<char32_t>& text) {
  std::string out;
  for (const char32_t c : text) append_utf8(out, c);
  return out;
}

size_t byte_offset(std::string_view text, int64_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos += decode_utf8(text, pos).length;
  return pos;
}

std::string upper(std::string_view text) {
  std::string out;
  for (const char32_t c : code_points(text)) append_upper(out, c, false);
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  const std::vector<char32_t> points = code_points(text);
  for (size_t i = 0; i < points.size(); ++i) append_lower(out, points, i);
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  const std::vector<char32_t> points = code_points(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == 0)
      append_upper(out, points[i], true);
    else
      append_lower(out, points, i);
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  const std::vector<char32_t> points = code_points(text);
  bool follows_case = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (follows_case)
      append_lower(out, points, i);
    else
      append_upper(out, points[i], true);
    follows_case = is_cased(points[i]);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  const std::vector<char32_t> points = code_points(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (utf8proc_isupper(static_cast<utf8proc_int32_t>(points[i])) != 0)
      append_lower(out, points, i);
    else if (utf8proc_islower(static_cast<utf8proc_int32_t>(points[i])) != 0)
      append_upper(out, points[i], false);
    else
      append_utf8(out, points[i]);
  }
  return out;
}

bool is_all(std::string_view text, TextClass what) {
  const std::vector<char32_t> points = code_points(text);
  if (what == TextClass::kUpper || what == TextClass::kLower) {
    bool has_case = false;
    for (const char32_t c : points) {
      const auto code = static_cast<utf8proc_int32_t>(c);
      const bool is_upper = utf8proc_isupper(code) != 0;
      const bool is_lower = utf8proc_islower(code) != 0;
      if ((what == TextClass::kUpper ? is_lower : is_upper) || category(c) == UTF8PROC_CATEGORY_LT)
        return false;
      has_case |= is_upper || is_lower;
    }
    return has_case;
  }
  for (const char32_t c : points)
    if (!is_in(c, what)) return false;
  return !points.empty();
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t exponent_begin = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + exponent_begin, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", text.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  const auto plain =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
  std::string out(buffer, plain);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char32_t c : code_points(text)) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else {
      const auto value = static_cast<uint32_t>(c);
      out += c < 0x100     ? fmt::format("\\x{:02x}", value)
             : c < 0x10000 ? fmt::format("\\u{:04x}", value)
                           : fmt::format("\\U{:08x}", value);
    }
  }
  return out + quote;
}

std::string json_quoted(std::string_view text, bool is_ascii_only) {
  std::string out = "\"";
  for (const char32_t c : code_points(text)) {
    const auto value = static_cast<uint32_t>(c);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\f': out += "\\f"; break;
      case '\b': out += "\\b"; break;
      default:
        if (c < 0x20 || (is_ascii_only && c >= 0x7f && c < 0x10000 && c != 0x7f))
          out += fmt::format("\\u{:04x}", value);
        else if (is_ascii_only && c >= 0x10000)
          out +=
              fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (value >> 10), 0xdc00 + (value & 0x3ff));
        else
          append_utf8(out, c);
    }
  }
  return out + '"';
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace bm::models::jinja
