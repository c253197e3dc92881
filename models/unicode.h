#pragma once
// UTF-8 stepping and the character classes that tokenizers split on.
// Categories come from utf8proc (Unicode 15); nothing here depends on the locale.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bm::models {

struct CodePoint {
  char32_t value = 0xFFFD;  ///< U+FFFD when the bytes are not UTF-8
  uint32_t length = 1;      ///< bytes consumed, at least 1
  bool is_valid = false;
};

/// The character at `pos` (< text.size()). Broken bytes are consumed as the "maximal subpart" of
/// the Unicode standard, section 3.9, so that a scan gives one U+FFFD where browsers give one.
CodePoint decode_utf8(std::string_view text, size_t pos);

/// Number of bytes at the end of `text` that may be the start of a character still to be completed;
/// 0 when the text ends on a character boundary or its tail can no longer become valid.
size_t incomplete_tail(std::string_view text);

void append_utf8(std::string& out, char32_t c);

bool is_valid_utf8(std::string_view text);

/// `text` with each broken subpart replaced by U+FFFD; the same text when it is valid.
std::string sanitize_utf8(std::string_view text);

/// Bit set of the classes a character belongs to.
enum CharClass : uint16_t {
  kLetter = 1,        ///< \p{L}
  kNumber = 2,        ///< \p{N}
  kSpace = 4,         ///< White_Space property
  kNewline = 8,       ///< CR or LF
  kMark = 16,         ///< \p{M}
  kPunctuation = 32,  ///< \p{P}
  kSymbol = 64,       ///< \p{S}
  kUpperLike = 128,   ///< Lu Lt Lm Lo M: what may stand before the small letters of a word
  kLowerLike = 256,   ///< Ll Lm Lo M
  kDigit = 512,       ///< Nd: \d
  kWordPart = 1024,   ///< L M Nd Nl Pc: what \b has on one side
};
uint16_t char_classes(char32_t c);

/// Unicode's normal forms of UTF-8: NFC, NFD (not composed), NFKC, NFKD (compatible). The text
/// itself where memory runs out.
std::string normal_form(std::string_view text, bool composes, bool is_compatible);

}  // namespace bm::models
