#include "models/tokenizer_normalize.h"

#include <cstring>

#include "models/unicode.h"
#include "runtime/base/byte_reader.h"

namespace bm::models {
namespace {

// One unit of the double array: bits 0–7 label, 8 "a value hangs below", 9 "offset is shifted by
// 8", 10–30 offset; a value unit has bit 31 set and the value in the rest.
bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

/// Unicode's longest compatibility decomposition is 33 bytes; the bound keeps a crafted file from
/// turning each character into a megabyte.
constexpr size_t kMaxReplacementBytes = 256;

bool has_long_replacement(std::string_view replacements) {
  size_t begin = 0;
  for (size_t i = 0; i < replacements.size(); ++i) {
    if (i - begin > kMaxReplacementBytes) return true;
    if (replacements[i] == '\0') begin = i + 1;
  }
  return false;
}

}  // namespace

Result<CharsMap> CharsMap::parse(std::span<const std::byte> blob) {
  ByteReader reader(blob);
  const auto bytes = BM_TRY(reader.read<uint32_t>());
  if (bytes % 4 != 0 || bytes > reader.remaining())
    return fail(Code::kCorrupt, "precompiled charsmap: a trie of {} bytes in a blob of {}", bytes,
                blob.size());
  const std::span<const std::byte> units = BM_TRY(reader.bytes(bytes));
  CharsMap map;
  map.units_.resize(bytes / 4);
  if (bytes > 0) std::memcpy(map.units_.data(), units.data(), bytes);
  map.replacements_ = BM_TRY(reader.text(reader.remaining()));
  if (!map.replacements_.empty() && map.replacements_.back() != '\0')
    return fail(Code::kCorrupt, "precompiled charsmap: the last replacement does not end");
  if (has_long_replacement(map.replacements_))
    return fail(Code::kCorrupt, "precompiled charsmap: a replacement is longer than {} bytes",
                kMaxReplacementBytes);
  return map;
}

CharsMap::Match CharsMap::longest_match(std::string_view text) const {
  Match match;
  if (units_.empty()) return match;
  uint32_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    if (c == 0) break;  // NUL marks values
    node ^= c;
    if (node >= units_.size() || label_of(units_[node]) != c) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (has_leaf(unit) && node < units_.size() && value_of(units_[node]) < replacements_.size())
      match = {i + 1, value_of(units_[node])};
  }
  return match;
}

std::string CharsMap::apply(std::string_view text) const {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const Match match = longest_match(text.substr(pos));
    if (match.length > 0) {
      out += replacements_.c_str() + match.replacement;
      pos += match.length;
    } else {
      const uint32_t length = decode_utf8(text, pos).length;
      out.append(text, pos, length);
      pos += length;
    }
  }
  return out;
}

}  // namespace bm::models
