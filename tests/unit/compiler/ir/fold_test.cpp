// What operations mean on single values; generated code and the reference device agree with this.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compiler/ir/node.h"

namespace bm::ir {
namespace {

int64_t ints(Op op, DType t, int64_t a, int64_t b = 0) {
  const Scalar s[] = {{t, a, 0}, {t, b, 0}};
  return fold(op, t, s).i;
}
double floats(Op op, DType t, double a, double b = 0) {
  const Scalar s[] = {{t, 0, a}, {t, 0, b}};
  return fold(op, t, s).f;
}
int64_t to_int(double v, DType t) {
  const Scalar s{DType::kF64, 0, v};
  return fold(Op::kCast, t, {&s, 1}).i;
}

TEST(Fold, DivisionByZeroGivesZero) {
  EXPECT_EQ(ints(Op::kDiv, DType::kI32, 5, 0), 0);
  EXPECT_EQ(ints(Op::kMod, DType::kU64, 5, 0), 0);
}
TEST(Fold, SmallestIntegerDividedByMinusOneWraps) {
  EXPECT_EQ(ints(Op::kDiv, DType::kI64, INT64_MIN, -1), INT64_MIN);
  EXPECT_EQ(ints(Op::kDiv, DType::kI8, -128, -1), -128);
  EXPECT_EQ(ints(Op::kMod, DType::kI64, INT64_MIN, -1), 0);
}
TEST(Fold, IntegersWrapAtTheirWidth) {
  EXPECT_EQ(ints(Op::kAdd, DType::kU8, 250, 10), 4);
  EXPECT_EQ(ints(Op::kMul, DType::kI16, 300, 300), static_cast<int16_t>(90000));
  EXPECT_EQ(ints(Op::kNeg, DType::kU32, 1), 0xffffffff);
}
TEST(Fold, DivisionTruncatesTowardZero) {
  EXPECT_EQ(ints(Op::kDiv, DType::kI32, -7, 2), -3);
  EXPECT_EQ(ints(Op::kMod, DType::kI32, -7, 2), -1);
}
TEST(Fold, ShiftsPastTheWidthAreEmptied) {
  EXPECT_EQ(ints(Op::kShl, DType::kI32, 1, 32), 0);
  EXPECT_EQ(ints(Op::kShr, DType::kI32, -5, 40), -1);
  EXPECT_EQ(ints(Op::kShr, DType::kU8, 200, 8), 0);
}
TEST(Fold, FloatsToIntegersSaturate) {
  EXPECT_EQ(to_int(1e30, DType::kI32), INT32_MAX);
  EXPECT_EQ(to_int(-1e30, DType::kI64), INT64_MIN);
  EXPECT_EQ(to_int(-3, DType::kU8), 0);
  EXPECT_EQ(to_int(std::nan(""), DType::kI16), 0);
  EXPECT_EQ(to_int(-2.9, DType::kI16), -2);
}
TEST(Fold, AnythingButZeroIsTrue) {
  EXPECT_EQ(to_int(0.25, DType::kBool), 1);
  EXPECT_EQ(to_int(-0.0, DType::kBool), 0);
  EXPECT_EQ(to_int(std::nan(""), DType::kBool), 1);
}
TEST(Fold, MaximumKeepsNaN) {
  EXPECT_TRUE(std::isnan(floats(Op::kMax, DType::kF32, std::nan(""), 1)));
  EXPECT_TRUE(std::isnan(floats(Op::kMin, DType::kF64, 1, std::nan(""))));
  EXPECT_EQ(floats(Op::kMax, DType::kF32, -1, 2), 2);
}
TEST(Fold, ResultsAreRoundedToTheirType) {
  EXPECT_EQ(floats(Op::kAdd, DType::kF32, 16777216, 1), 16777216);
  EXPECT_EQ(floats(Op::kAdd, DType::kF16, 2048, 1), 2048);
  EXPECT_EQ(floats(Op::kMul, DType::kBF16, 1.0078125, 1.0078125), 1.015625);
}
TEST(Fold, BitcastKeepsBits) {
  const Scalar one{DType::kF32, 0, 1.0};
  EXPECT_EQ(fold(Op::kBitcast, DType::kU32, {&one, 1}).i, 0x3f800000);
  const Scalar half{DType::kU16, 0x3c00, 0};
  EXPECT_EQ(fold(Op::kBitcast, DType::kF16, {&half, 1}).f, 1.0);
}

}  // namespace
}  // namespace bm::ir
