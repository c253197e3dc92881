#pragma once
// The alphabet in which byte-level vocabularies spell bytes. Source: openai/gpt-2, encoder.py.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "models/unicode.h"

namespace bm::models {

/// Printable Latin-1 stands for itself, the 68 other bytes for U+0100 onwards.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    size_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      const size_t at = is_printable ? static_cast<size_t>(b) : next++;
      bytes_[at] = static_cast<int16_t>(b);
      append_utf8(spellings_[static_cast<size_t>(b)], static_cast<char32_t>(at));
    }
  }

  /// Bytes that `spelling` stands for; nothing when it uses another character.
  std::optional<std::string> decode(std::string_view spelling) const {
    std::string out;
    for (size_t pos = 0; pos < spelling.size();) {
      const CodePoint c = decode_utf8(spelling, pos);
      if (!c.is_valid || c.value >= bytes_.size() || bytes_[c.value] < 0) return std::nullopt;
      out += static_cast<char>(bytes_[c.value]);
      pos += c.length;
    }
    return out;
  }

  std::string encode(std::string_view bytes) const {
    std::string out;
    for (const char c : bytes) out += spellings_[static_cast<uint8_t>(c)];
    return out;
  }

 private:
  std::array<int16_t, 256 + 68> bytes_;  // by code point; −1: not in the alphabet
  std::array<std::string, 256> spellings_;
};

}  // namespace bm::models
