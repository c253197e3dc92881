#include "runtime/base/tlsf.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "runtime/base/bits.h"

namespace bm {
namespace {

TEST(Tlsf, HandsOutTheWholeArenaWithAlignment) {
  Tlsf tlsf = *Tlsf::create(0x10000, 0x10000, 256);
  const Result<uint64_t> address = tlsf.allocate(0x10000, 0x10000);
  ASSERT_TRUE(address) << address.error().message;
  EXPECT_EQ(*address, 0x10000u);
  EXPECT_EQ(tlsf.largest_free(), 0u);
  ASSERT_TRUE(tlsf.free(*address));
  EXPECT_EQ(tlsf.largest_free(), 0x10000u);
}

TEST(Tlsf, RejectsDoubleForeignAndInnerFrees) {
  Tlsf tlsf = *Tlsf::create(4096, 65536, 256);
  const uint64_t a = *tlsf.allocate(1024);
  const uint64_t b = *tlsf.allocate(1024);
  ASSERT_TRUE(tlsf.free(a));
  for (uint64_t wrong : {a, b + 256, b + 1, uint64_t{0}, uint64_t{4096} + 65536, UINT64_MAX}) {
    const Status status = tlsf.free(wrong);
    ASSERT_FALSE(status) << wrong;
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  }
  EXPECT_EQ(tlsf.stats().allocations, 1u);
  EXPECT_EQ(tlsf.stats().used, 1024u);
  EXPECT_TRUE(tlsf.free(b));
  EXPECT_TRUE(tlsf.is_empty());
}

TEST(Tlsf, MergesWithBothNeighbours) {
  Tlsf tlsf = *Tlsf::create(0, 4096, 256);
  const uint64_t a = *tlsf.allocate(256), b = *tlsf.allocate(256), c = *tlsf.allocate(256);
  ASSERT_TRUE(tlsf.allocate(4096 - 3 * 256));
  ASSERT_TRUE(tlsf.free(a));
  ASSERT_TRUE(tlsf.free(c));
  EXPECT_EQ(tlsf.stats().free_blocks, 2u);
  ASSERT_TRUE(tlsf.free(b));
  EXPECT_EQ(tlsf.stats().free_blocks, 1u);
  EXPECT_EQ(tlsf.largest_free(), 768u);
}

TEST(Tlsf, SaysWhyItIsFull) {
  Tlsf tlsf = *Tlsf::create(0, 1024, 256);
  ASSERT_TRUE(tlsf.allocate(512));
  const auto refused = tlsf.allocate(768);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kOutOfMemory);
  EXPECT_NE(refused.error().message.find("768"), std::string::npos);
  EXPECT_NE(refused.error().message.find("largest gap 512"), std::string::npos)
      << refused.error().message;
}

TEST(Tlsf, RefusesNonsense) {
  EXPECT_FALSE(Tlsf::create(0, 1024, 100));
  EXPECT_FALSE(Tlsf::create(100, 1024, 256));
  EXPECT_FALSE(Tlsf::create(uint64_t{1} << 63, UINT64_MAX, 256));
  Tlsf tlsf = *Tlsf::create(0, 1024, 256);
  EXPECT_EQ(tlsf.allocate(0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(tlsf.allocate(1, 3).error().code, Code::kInvalidArgument);
  EXPECT_EQ(tlsf.allocate(UINT64_MAX).error().code, Code::kOutOfMemory);
  EXPECT_EQ(tlsf.allocate(1, uint64_t{1} << 63).value_or(1), 0u);
  Tlsf empty = *Tlsf::create(0, 255, 256);
  EXPECT_FALSE(empty.allocate(1));
  EXPECT_TRUE(empty.ranges().empty());
}

TEST(Tlsf, ManagesTheTopOfTheAddressSpace) {
  const uint64_t base = UINT64_MAX - (uint64_t{1} << 40) + 1;
  Tlsf tlsf = *Tlsf::create(base, uint64_t{1} << 40, 4096);
  EXPECT_EQ(*tlsf.allocate(uint64_t{1} << 40), base);
  ASSERT_TRUE(tlsf.free(base));
  EXPECT_FALSE(tlsf.allocate(1, uint64_t{1} << 63)) << "aligning up would pass 2^64";
}

TEST(Tlsf, HoldsNearlyTheWholeAddressSpace) {
  Tlsf tlsf = *Tlsf::create(0, UINT64_MAX, 1);
  EXPECT_TRUE(tlsf.allocate(uint64_t{1} << 63));
  EXPECT_TRUE(tlsf.allocate((uint64_t{1} << 63) - 1));
  EXPECT_FALSE(tlsf.allocate(1));
}

/// Address-ordered map of live blocks: what any correct allocator must agree with.
struct Oracle {
  uint64_t base, size;
  std::map<uint64_t, uint64_t> live;

  bool fits(uint64_t bytes, uint64_t alignment) const {
    uint64_t at = base;
    const auto gap_fits = [&](uint64_t end) { return align_up(at, alignment) + bytes <= end; };
    for (const auto& [start, length] : live) {
      if (gap_fits(start)) return true;
      at = start + length;
    }
    return gap_fits(base + size);
  }
  bool is_disjoint(uint64_t start, uint64_t bytes) const {
    const auto after = live.lower_bound(start);
    if (after != live.end() && after->first < start + bytes) return false;
    return after == live.begin() || std::prev(after)->first + std::prev(after)->second <= start;
  }
};

TEST(Tlsf, AgreesWithBruteForceOnRandomPrograms) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const uint64_t granule = uint64_t{1} << (random() % 9);
    const uint64_t size = granule * (1 + random() % 700);
    Oracle oracle{granule * (random() % 50), size, {}};
    Tlsf tlsf = *Tlsf::create(oracle.base, size, granule);
    uint64_t used = 0;
    for (int step = 0; step < 600; ++step) {
      if (random() % 5 < 3) {
        const uint64_t bytes = 1 + random() % (random() % 4 == 0 ? size : granule * 12);
        const uint64_t alignment = uint64_t{1} << (random() % 14);
        const uint64_t rounded = align_up(bytes, granule);
        const std::optional<uint64_t> got = tlsf.try_allocate(bytes, alignment);
        ASSERT_EQ(got.has_value(), oracle.fits(rounded, std::max(alignment, granule)))
            << seed << ": " << bytes << " aligned " << alignment;
        if (!got) continue;
        ASSERT_EQ(*got % alignment, 0u);
        ASSERT_TRUE(oracle.is_disjoint(*got, rounded));
        ASSERT_LE(*got + rounded, oracle.base + size);
        oracle.live[*got] = rounded;
        used += rounded;
      } else if (!oracle.live.empty()) {
        auto victim =
            std::next(oracle.live.begin(), static_cast<long>(random() % oracle.live.size()));
        ASSERT_EQ(tlsf.size_of(victim->first), victim->second);
        ASSERT_TRUE(tlsf.free(victim->first));
        ASSERT_FALSE(tlsf.free(victim->first));
        used -= victim->second;
        oracle.live.erase(victim);
      }
      ASSERT_EQ(tlsf.stats().used, used);
    }
    // The block list tiles the arena, and no two free neighbours are left unmerged.
    uint64_t at = oracle.base, largest = 0;
    bool was_free = false;
    for (const Tlsf::Range& range : tlsf.ranges()) {
      ASSERT_EQ(range.address, at);
      ASSERT_FALSE(was_free && range.is_free);
      was_free = range.is_free;
      if (range.is_free) largest = std::max(largest, range.size);
      at += range.size;
    }
    ASSERT_EQ(at, oracle.base + size);
    ASSERT_EQ(tlsf.largest_free(), largest);
  }
}

}  // namespace
}  // namespace bm
