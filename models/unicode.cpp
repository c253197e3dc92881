#include "models/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>

namespace bm::models {
namespace {

uint8_t byte_at(std::string_view text, size_t pos) { return static_cast<uint8_t>(text[pos]); }

struct LeadByte {
  uint32_t length;  // 0: cannot start a character
  uint8_t second_low, second_high;
};

// Table 3-7 of the Unicode standard: the second byte's range excludes overlong forms, surrogates
// and everything above U+10FFFF.
constexpr LeadByte lead_byte(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

/// Bytes from `pos` that are a correct start of the character announced by its first byte.
uint32_t good_prefix(std::string_view text, size_t pos, const LeadByte& lead) {
  uint32_t n = 1;
  while (n < lead.length && pos + n < text.size()) {
    const uint8_t b = byte_at(text, pos + n);
    const uint8_t low = n == 1 ? lead.second_low : 0x80;
    const uint8_t high = n == 1 ? lead.second_high : 0xBF;
    if (b < low || b > high) break;
    ++n;
  }
  return n;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

uint16_t category_classes(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return kLetter | kUpperLike | kWordPart;
    case UTF8PROC_CATEGORY_LL: return kLetter | kLowerLike | kWordPart;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return kLetter | kUpperLike | kLowerLike | kWordPart;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return kMark | kUpperLike | kLowerLike | kWordPart;
    case UTF8PROC_CATEGORY_ND: return kNumber | kDigit | kWordPart;
    case UTF8PROC_CATEGORY_NL: return kNumber | kWordPart;
    case UTF8PROC_CATEGORY_NO: return kNumber;
    case UTF8PROC_CATEGORY_PC: return kPunctuation | kWordPart;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return kSymbol;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN: return 0;
  }
  return 0;
}

uint16_t compute_classes(char32_t c) {
  uint16_t classes = category_classes(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
  if (is_white_space(c)) classes |= kSpace;
  if (c == '\r' || c == '\n') classes |= kNewline;
  return classes;
}

}  // namespace

CodePoint decode_utf8(std::string_view text, size_t pos) {
  const uint8_t first = byte_at(text, pos);
  const LeadByte lead = lead_byte(first);
  if (lead.length == 1) return {first, 1, true};
  if (lead.length == 0) return {};
  const uint32_t good = good_prefix(text, pos, lead);
  if (good < lead.length) return {0xFFFD, good, false};
  char32_t value = first & (0xFFu >> (lead.length + 1));
  for (uint32_t i = 1; i < lead.length; ++i)
    value = (value << 6) | (byte_at(text, pos + i) & 0x3Fu);
  return {value, lead.length, true};
}

size_t incomplete_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t pos = text.size() - back;
    const uint8_t b = byte_at(text, pos);
    if ((b & 0xC0) == 0x80) continue;  // continuation byte: look further back for its lead byte
    const LeadByte lead = lead_byte(b);
    return lead.length > back && good_prefix(text, pos, lead) == back ? back : 0;
  }
  return 0;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&out](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = decode_utf8(text, pos);
    if (!c.is_valid) return false;
    pos += c.length;
  }
  return true;
}

std::string sanitize_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = decode_utf8(text, pos);
    if (c.is_valid)
      out.append(text, pos, c.length);
    else
      append_utf8(out, 0xFFFD);
    pos += c.length;
  }
  return out;
}

uint16_t char_classes(char32_t c) {
  static const std::array<uint16_t, 128> ascii = [] {
    std::array<uint16_t, 128> table{};
    for (char32_t i = 0; i < 128; ++i) table[i] = compute_classes(i);
    return table;
  }();
  return c < 128 ? ascii[c] : compute_classes(c);
}

std::string normal_form(std::string_view text, bool composes, bool is_compatible) {
  utf8proc_uint8_t* mapped = nullptr;
  const int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (is_compatible ? UTF8PROC_COMPAT : 0);
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  std::string out =
      size >= 0 ? std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size))
                : std::string(text);
  std::free(mapped);
  return out;
}

}  // namespace bm::models
