#include "drivers/memory/range_set.h"

#include <gtest/gtest.h>

#include <bitset>
#include <random>

namespace bm::memory {
namespace {

/// Against one bit for each address.
TEST(RangeSet, IsTheUnionOfWhatWasAdded) {
  constexpr uint64_t kBase = 0x1000, kSpan = 200;
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 50; ++round) {
    RangeSet set;
    std::bitset<kSpan> bits;
    for (int i = 0; i < 40; ++i) {
      const uint64_t at = random() % kSpan,
                     bytes = 1 + random() % std::min<uint64_t>(12, kSpan - at);
      set.add(kBase + at, bytes);
      for (uint64_t b = at; b < at + bytes; ++b) bits.set(b);
      const uint64_t from = random() % kSpan, length = 1 + random() % (kSpan - from);
      bool is_in = true;
      for (uint64_t b = from; b < from + length; ++b) is_in = is_in && bits[b];
      ASSERT_EQ(set.contains(kBase + from, length), is_in)
          << from << " +" << length << " after " << bits.to_string();
    }
  }
}

}  // namespace
}  // namespace bm::memory
