#include "runtime/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace bm {
namespace {

TEST(Half, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits)
    ASSERT_EQ(f32_to_f16(f16_to_f32(static_cast<uint16_t>(bits))), bits);
}

TEST(Half, EveryBf16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits)
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(static_cast<uint16_t>(bits))), bits);
}

TEST(Half, WideningMatchesTheDefinition) {
  EXPECT_EQ(f16_to_f32(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x7bff), 65504.0f);
  EXPECT_EQ(f16_to_f32(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(f16_to_f32(0x8000)));
}

/// Nearest of all 63,488 finite halves by search in double precision: independent of bit tricks.
uint16_t nearest_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) return sign | 0x7c00;
  uint16_t low = 0, high = 0x7bff;
  while (low < high) {
    const auto middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (static_cast<double>(f16_to_f32(middle)) <= magnitude)
      low = middle;
    else
      high = static_cast<uint16_t>(middle - 1);
  }
  if (low == 0x7bff) return sign | low;
  const double below = magnitude - static_cast<double>(f16_to_f32(low));
  const double above = static_cast<double>(f16_to_f32(static_cast<uint16_t>(low + 1))) - magnitude;
  const bool up = above < below || (above == below && (low & 1));
  return static_cast<uint16_t>(sign | (low + (up ? 1 : 0)));
}

TEST(Half, NarrowingRoundsToNearestEven) {
  std::mt19937 random(7);
  for (int i = 0; i < 200'000; ++i) {
    // Random sign and mantissa, exponents from far below the smallest half to above the largest.
    const uint32_t exponent = 127 - 30 + static_cast<uint32_t>(random() % 50);
    uint32_t bits = (random() & 0x807fffffu) | (exponent << 23);
    if (i % 3 == 0) bits &= ~0xfffu;  // many ties
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(f32_to_f16(value), nearest_half(value)) << value;
  }
}

TEST(Half, NarrowingHandlesTheEdges) {
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // tie with zero: even
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
}

TEST(Half, NanStaysNanWithItsSign) {
  for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(nan))));
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan))));
    EXPECT_EQ(f32_to_f16(nan) >> 15, bits >> 31);
    EXPECT_EQ(f32_to_bf16(nan) >> 15, bits >> 31);
  }
}

}  // namespace
}  // namespace bm
