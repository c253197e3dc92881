#include "drivers/memory/va_space.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "drivers/memory/iova.h"

namespace bm::memory {
namespace {

constexpr uint64_t kPage = 4096;

TEST(VaSpace, AllocatesAlignedAndMergesWhatIsFreed) {
  VaSpace space = *VaSpace::create(0x10000, 0x100000);
  const uint64_t a = *space.allocate(100), b = *space.allocate(kPage, 0x10000);
  EXPECT_EQ(a, 0x10000u);
  EXPECT_EQ(b, 0x20000u);
  EXPECT_EQ(space.size_of(a), kPage);
  EXPECT_EQ(space.range_at(b + 5), (std::pair<uint64_t, uint64_t>{b, kPage}));
  EXPECT_FALSE(space.range_at(b + kPage));
  EXPECT_EQ(space.free_bytes(), 0x100000 - 2 * kPage);
  EXPECT_TRUE(space.free(a));
  EXPECT_TRUE(space.free(b));
  EXPECT_EQ(space.largest_gap(), 0x100000u);
}

TEST(VaSpace, SmallRequestsLeaveLargeGapsAlone) {
  VaSpace space = *VaSpace::create(0, 0x100000);
  ASSERT_TRUE(space.reserve(0x80000, kPage));  // a gap of 0x80000 before, one of 0x7f000 behind
  EXPECT_EQ(*space.allocate(kPage), 0x81000u);
  EXPECT_EQ(*space.allocate(0x80000), 0u);
}

TEST(VaSpace, FixedRangesAreTakenOnce) {
  VaSpace space = *VaSpace::create(0x1000, 0x10000);
  EXPECT_TRUE(space.reserve(0x3000, 0x2000));
  const Status again = space.reserve(0x4000, 0x2000);
  EXPECT_EQ(again.error().code, Code::kOutOfMemory);
  EXPECT_NE(again.error().message.find("0x3000"), std::string::npos) << again.error().message;
  EXPECT_EQ(space.reserve(0, 0x2000).error().code, Code::kInvalidArgument);
  EXPECT_EQ(space.reserve(0x10000, 0x2000).error().code, Code::kInvalidArgument);
  EXPECT_EQ(space.reserve(0x5000, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(space.reserve(0x5001, kPage).error().code, Code::kInvalidArgument);
  EXPECT_EQ(space.reserve(0x1000, ~uint64_t{0xfff}).error().code, Code::kInvalidArgument);
  EXPECT_FALSE(space.free(0x4000));
  EXPECT_TRUE(space.free(0x3000));
  EXPECT_FALSE(space.free(0x3000));
}

TEST(VaSpace, SpacesThatCannotBe) {
  EXPECT_FALSE(VaSpace::create(0, 0));
  EXPECT_FALSE(VaSpace::create(1, kPage));
  EXPECT_FALSE(VaSpace::create(0, kPage + 1));
  EXPECT_FALSE(VaSpace::create(0, kPage, 3));
  EXPECT_FALSE(VaSpace::create(~uint64_t{0xfff}, 2 * kPage));
  VaSpace space = *VaSpace::create(0, 16 * kPage);
  EXPECT_EQ(space.allocate(0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(space.allocate(kPage, 3).error().code, Code::kInvalidArgument);
  EXPECT_EQ(space.allocate(~uint64_t{0}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(space.allocate(17 * kPage).error().code, Code::kOutOfMemory);
  EXPECT_EQ(*space.allocate(kPage, uint64_t{1} << 63), 0u);
  EXPECT_EQ(space.allocate(kPage, uint64_t{1} << 63).error().code, Code::kOutOfMemory);
}

TEST(VaSpace, RandomUseAgreesWithAListOfPages) {
  std::mt19937_64 random(3);
  constexpr uint64_t kPages = 256, kBase = 7 * kPage;
  VaSpace space = *VaSpace::create(kBase, kPages * kPage);
  std::vector<uint64_t> owner(kPages, 0);
  std::map<uint64_t, uint64_t> live;
  const auto is_free = [&owner](uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i)
      if (owner[i] != 0) return false;
    return true;
  };
  for (uint64_t step = 1; step < 20'000; ++step) {
    const uint64_t count = 1 + random() % 24, alignment = kPage << random() % 5;
    if (random() % 5 < 2 && !live.empty()) {
      const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      ASSERT_TRUE(space.free(victim->first));
      for (uint64_t& who : owner)
        if (who == victim->second) who = 0;
      live.erase(victim);
      continue;
    }
    uint64_t first = random() % (kPages - count);
    if (random() % 4 == 0) {
      const bool was_free = is_free(first, count);
      ASSERT_EQ(space.reserve(kBase + first * kPage, count * kPage).has_value(), was_free);
      if (!was_free) continue;
    } else {
      const Result<uint64_t> got = space.allocate(count * kPage, alignment);
      if (!got) {
        for (uint64_t i = 0; i + count <= kPages; ++i)
          ASSERT_FALSE((kBase + i * kPage) % alignment == 0 && is_free(i, count))
              << "there is room";
        continue;
      }
      ASSERT_EQ(*got % alignment, 0u);
      first = (*got - kBase) / kPage;
      ASSERT_TRUE(is_free(first, count));
    }
    for (uint64_t i = first; i < first + count; ++i) owner[i] = step;
    live[kBase + first * kPage] = step;
  }
  uint64_t used = 0;
  for (const uint64_t who : owner) used += who != 0;
  EXPECT_EQ(space.free_bytes(), (kPages - used) * kPage);
}

TEST(Iova, StaysBelowWhatBothSidesCanAddress) {
  IovaAllocator iova = *IovaAllocator::create({.takes_iova = true, .address_bits = 48}, 44);
  EXPECT_EQ(iova.free_bytes(), (uint64_t{1} << 44) - (64 << 10));
  EXPECT_FALSE(iova.allocate(uint64_t{1} << 44));
  const uint64_t small = *iova.allocate(1);
  EXPECT_GE(small, 64u << 10);
  EXPECT_EQ(*iova.allocate(3 << 20) % (2 << 20), 0u);
  EXPECT_EQ(*iova.allocate(uint64_t{1} << 30) % (uint64_t{1} << 30), 0u);
  EXPECT_TRUE(iova.free(small));
  EXPECT_FALSE(iova.free(small));
}

TEST(Iova, GoesAroundWhatTheMachineKeeps) {
  DmaLimits limits{.takes_iova = true, .address_bits = 32};
  // Overlapping, unordered, beyond the end, empty, not of whole pages.
  limits.reserved = {{0xfee00000, 0x100000},     {0, 0x100},   {0xf0000000, 0x0f000000},
                     {0xffffff00, ~uint64_t{0}}, {0x80000, 0}, {0x20080, 0x10}};
  IovaAllocator iova = *IovaAllocator::create(limits, 64);
  const uint64_t big = *iova.allocate(0xe0000000);
  EXPECT_GE(big, 0x21000u);
  EXPECT_LE(big + 0xe0000000, 0xf0000000u);
  EXPECT_FALSE(iova.free(0xf0000000));
  while (const auto got = iova.allocate(4096)) {
    const uint64_t end = *got + 4096;
    EXPECT_TRUE(*got >= 0x10000 && end <= 0xfffff000);
    EXPECT_FALSE(*got < 0xff000000 && end > 0xf0000000) << std::hex << *got;
    EXPECT_FALSE(*got == 0x20000);
  }
  EXPECT_EQ(iova.free_bytes(), 0u);
}

TEST(Iova, LimitsThatLeaveNothing) {
  EXPECT_FALSE(IovaAllocator::create({.page_bytes = 0}, 44));
  EXPECT_FALSE(IovaAllocator::create({.page_bytes = 3000}, 44));
  EXPECT_FALSE(IovaAllocator::create({}, 12));
  EXPECT_TRUE(IovaAllocator::create({.address_bits = 64}, 64));
}

}  // namespace
}  // namespace bm::memory
