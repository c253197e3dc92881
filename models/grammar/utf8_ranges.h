#pragma once
// Ranges of characters as sequences of ranges of bytes.

#include <array>
#include <cstdint>
#include <vector>

#include "models/grammar/gbnf.h"

namespace bm::models {

struct ByteRange {
  uint8_t first = 0, last = 0;  ///< inclusive
};
/// The characters whose k-th byte lies in the k-th range, for each of `length` bytes.
struct Utf8Range {
  std::array<ByteRange, 4> bytes{};
  uint32_t length = 0;
};

/// `ranges` without surrogates, as UTF-8.
std::vector<Utf8Range> utf8_ranges(const std::vector<CodeRange>& ranges);

}  // namespace bm::models
