#include "models/grammar/utf8_ranges.h"

#include "models/unicode.h"

namespace bm::models {
namespace {

/// A range whose characters have the same length: cut where a byte below the first would not run
/// over all its values.
void add(CodeRange r, std::vector<Utf8Range>& out) {
  std::vector<CodeRange> todo = {r};
  while (!todo.empty()) {
    r = todo.back();
    todo.pop_back();
    std::string first, last;
    append_utf8(first, r.first);
    append_utf8(last, r.last);
    bool is_cut = false;
    for (unsigned i = 1; i < first.size() && !is_cut; ++i) {
      const char32_t low = (char32_t{1} << (6 * i)) - 1;
      if ((r.first & ~low) == (r.last & ~low)) continue;
      char32_t cut = 0;  // the first character of the upper part
      if ((r.first & low) != 0)
        cut = (r.first | low) + 1;
      else if ((r.last & low) != low)
        cut = r.last & ~low;
      else
        continue;
      todo.push_back({r.first, cut - 1});
      todo.push_back({cut, r.last});
      is_cut = true;
    }
    if (is_cut) continue;
    Utf8Range range;
    range.length = static_cast<uint32_t>(first.size());
    for (size_t i = 0; i < first.size(); ++i)
      range.bytes[i] = {static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])};
    out.push_back(range);
  }
}

}  // namespace

std::vector<Utf8Range> utf8_ranges(const std::vector<CodeRange>& ranges) {
  constexpr char32_t kEnds[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};  // of 1, 2, 3 and 4 bytes
  std::vector<Utf8Range> out;
  for (const CodeRange& r : ranges) {
    char32_t first = r.first;
    for (const char32_t end : kEnds) {
      if (first > end || first > r.last) continue;
      add({first, r.last < end ? r.last : end}, out);
      first = end + 1;
    }
  }
  return out;
}

}  // namespace bm::models
