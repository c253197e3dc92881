#include "runtime/base/bits.h"

#include <gtest/gtest.h>

#include "runtime/base/bump.h"

namespace bm {
namespace {

TEST(Bits, AlignUpGivesTheSmallestMultipleNotBelow) {
  for (uint32_t alignment : {1u, 2u, 8u, 256u})
    for (uint32_t value = 0; value < 1030; ++value) {
      const uint32_t aligned = align_up(value, alignment);
      EXPECT_EQ(aligned % alignment, 0u);
      EXPECT_GE(aligned, value);
      EXPECT_LT(aligned - value, alignment);
    }
}

TEST(Bits, CheckedArithmeticRefusesOverflow) {
  EXPECT_EQ(checked_add(UINT64_MAX - 1, 1), UINT64_MAX);
  EXPECT_FALSE(checked_add(UINT64_MAX, 1));
  EXPECT_FALSE(checked_mul(uint64_t{1} << 33, uint64_t{1} << 31));
  EXPECT_EQ(checked_mul(uint64_t{1} << 33, uint64_t{1} << 30), uint64_t{1} << 63);
  EXPECT_FALSE(checked_align_up(UINT64_MAX - 5, 256));
  EXPECT_EQ(checked_align_up(UINT64_MAX - 300, 256), UINT64_MAX - 255);
  EXPECT_FALSE(checked_add(INT64_MAX, 1));
}

TEST(Bits, CeilDivDoesNotOverflowAtTheTop) {
  EXPECT_EQ(ceil_div(UINT64_MAX, 2), uint64_t{1} << 63);
  EXPECT_EQ(ceil_div(uint32_t{0}, 7), 0u);
  EXPECT_EQ(ceil_div(uint32_t{8}, 7), 2u);
}

TEST(Bits, SizeLiteralsAreBinary) {
  EXPECT_EQ(3_KiB, 3072u);
  EXPECT_EQ(2_MiB, 2u << 20);
  EXPECT_EQ(1_GiB, 1u << 30);
}

TEST(Bump, HandsOutAlignedRangesUntilFull) {
  Bump bump(100, 100);
  EXPECT_EQ(bump.allocate(10, 64), 128u);
  EXPECT_EQ(bump.allocate(62), 138u);
  EXPECT_FALSE(bump.allocate(1));
  bump.reset();
  EXPECT_EQ(bump.allocate(100), 100u);
}

TEST(Bump, RefusesSizesThatWouldWrap) {
  Bump bump(UINT64_MAX - 1000, 1000);
  EXPECT_FALSE(bump.allocate(UINT64_MAX));
  EXPECT_FALSE(bump.allocate(1, uint64_t{1} << 20));
  EXPECT_TRUE(bump.allocate(1000));
}

}  // namespace
}  // namespace bm
