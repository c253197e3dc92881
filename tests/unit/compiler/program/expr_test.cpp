// Formulas of indices make the values that nested calls of the builder make, in the same order.
#include "compiler/program/expr.h"

#include <gtest/gtest.h>

namespace bm::compiler {
namespace {

class IndexFormula : public testing::Test {
 protected:
  struct Made {
    Program program;
    Builder b{program, TargetInfo{}};
    ValueId x = b.variable(0), y = b.variable(1);
  };
  Made calls_, formulas_;
};

TEST_F(IndexFormula, OperandsComeFromLeftToRight) {
  Builder& b = calls_.b;
  const ValueId low = b.bit_and(calls_.x, b.index(7));
  const ValueId left = b.mul(low, b.index(3));
  const ValueId difference = b.sub(calls_.y, b.index(5));
  const ValueId right = b.mul(difference, b.index(11));
  b.bit_xor(b.add(left, right), calls_.x);

  const Index x(formulas_.b, formulas_.x), y(formulas_.b, formulas_.y);
  const Index sum = ((x & 7) * 3 + (y - 5) * 11) ^ x;
  EXPECT_EQ(to_string(formulas_.program), to_string(calls_.program));
  EXPECT_EQ(formulas_.b.type(sum), (Type{DType::kI64, 1}));
}

TEST_F(IndexFormula, MinimumsAreTakenOfFormulas) {
  Builder& b = calls_.b;
  const ValueId product = b.mul(calls_.x, b.index(3));
  const ValueId last = b.sub(calls_.y, b.index(1));
  b.alu(Op::kMin, DType::kI64, std::array{product, last});

  const Index x(formulas_.b, formulas_.x), y(formulas_.b, formulas_.y);
  [[maybe_unused]] const Index smaller = min(x * 3, y - 1);
  EXPECT_EQ(to_string(formulas_.program), to_string(calls_.program));
}

TEST_F(IndexFormula, NumbersOfAnyTypeCountAs64Bits) {
  calls_.b.add(calls_.x, calls_.b.index(4'000'000'000));
  const Index x(formulas_.b, formulas_.x);
  [[maybe_unused]] const Index sum = x + uint32_t{4'000'000'000};
  EXPECT_EQ(to_string(formulas_.program), to_string(calls_.program));
}

/// Two formulas as arguments of one call would be made in an order that is the compiler's choice.
TEST_F(IndexFormula, FormulasAreNoArguments) {
  using Sum = decltype(std::declval<Index>() + 1);
  static_assert(!std::is_convertible_v<Sum, ValueId>);
  static_assert(std::is_convertible_v<Index, ValueId>);
}

}  // namespace
}  // namespace bm::compiler
