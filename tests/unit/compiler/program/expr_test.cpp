// Formulas of values make the values that nested calls of the builder make, in the same order.
#include "compiler/program/expr.h"

#include <gtest/gtest.h>

namespace bm::compiler {
namespace {

class ExprFormula : public testing::Test {
 protected:
  struct Made {
    Program program;
    Builder b{program, TargetInfo{}};
    ValueId x = b.variable(0), y = b.variable(1);
  };
  Made calls_, formulas_;
};

TEST_F(ExprFormula, OperandsComeFromLeftToRight) {
  Builder& b = calls_.b;
  const ValueId low = b.bit_and(calls_.x, b.index(7));
  const ValueId left = b.mul(low, b.index(3));
  const ValueId difference = b.sub(calls_.y, b.index(5));
  const ValueId right = b.mul(difference, b.index(11));
  b.bit_xor(b.add(left, right), calls_.x);

  const Expr x(formulas_.b, formulas_.x), y(formulas_.b, formulas_.y);
  const Expr sum = ((x & 7) * 3 + (y - 5) * 11) ^ x;
  EXPECT_EQ(to_string(formulas_.program), to_string(calls_.program));
  EXPECT_EQ(formulas_.b.type(sum), (Type{DType::kI64, 1}));
}

TEST_F(ExprFormula, MinimumsAreTakenOfFormulas) {
  Builder& b = calls_.b;
  const ValueId product = b.mul(calls_.x, b.index(3));
  const ValueId last = b.sub(calls_.y, b.index(1));
  b.alu(Op::kMin, DType::kI64, std::array{product, last});

  const Expr x(formulas_.b, formulas_.x), y(formulas_.b, formulas_.y);
  [[maybe_unused]] const Expr smaller = min(x * 3, y - 1);
  EXPECT_EQ(to_string(formulas_.program), to_string(calls_.program));
}

TEST_F(ExprFormula, NumbersOfAnyTypeCountAs64Bits) {
  calls_.b.add(calls_.x, calls_.b.index(4'000'000'000));
  const Expr x(formulas_.b, formulas_.x);
  [[maybe_unused]] const Expr sum = x + uint32_t{4'000'000'000};
  EXPECT_EQ(to_string(formulas_.program), to_string(calls_.program));
}

TEST_F(ExprFormula, NumbersHaveTheTypeOfWhatTheyStandBeside) {
  Builder& b = calls_.b;
  const ValueId single = b.convert(calls_.x, DType::kF32);
  const ValueId is_less = b.lt(single, b.like(single, 2.5));
  b.select(is_less, b.like(single, 0), single);
  const ValueId narrow = b.convert(calls_.y, DType::kU32);
  const ValueId high = b.shr(narrow, 16);
  b.eq(high, b.constant({DType::kU32, 1}, 3));

  const Expr x(formulas_.b, formulas_.x), y(formulas_.b, formulas_.y);
  const Expr one = convert(x, DType::kF32);
  [[maybe_unused]] const Expr positive = select(one < 2.5, 0, one);
  [[maybe_unused]] const Expr is_three = (convert(y, DType::kU32) >> 16) == 3;
  EXPECT_EQ(to_string(formulas_.program), to_string(calls_.program));
  EXPECT_EQ(formulas_.b.type(is_three), (Type{DType::kBool, 1}));
}

TEST_F(ExprFormula, ConversionsAndConditionsNest) {
  Builder& b = calls_.b;
  const ValueId wide = b.bitcast(calls_.x, DType::kU64);
  const ValueId low = b.bit_and(wide, b.constant({DType::kU64, 1}, 7));
  const ValueId back = b.bitcast(low, DType::kI64);
  const ValueId is_less = b.lt(calls_.y, back);
  const ValueId is_not = b.negated(is_less);
  b.bit_and(is_not, b.ne(calls_.x, calls_.y));

  const Expr x(formulas_.b, formulas_.x), y(formulas_.b, formulas_.y);
  [[maybe_unused]] const Expr both =
      (!(y < bitcast(bitcast(x, DType::kU64) & 7, DType::kI64))) & (x != y);
  EXPECT_EQ(to_string(formulas_.program), to_string(calls_.program));
}

/// Two formulas as arguments of one call would be made in an order that is the compiler's choice.
TEST_F(ExprFormula, FormulasAreNoArguments) {
  using Sum = decltype(std::declval<Expr>() + 1);
  static_assert(!std::is_convertible_v<Sum, ValueId>);
  static_assert(std::is_convertible_v<Expr, ValueId>);
}

}  // namespace
}  // namespace bm::compiler
