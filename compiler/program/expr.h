#pragma once
// Arithmetic on indices as formulas: Index row = min(band * plan.band + in_band, last).
//
// A formula makes its values when an Index takes it, from left to right. Programs are the same
// whatever compiler builds us, as operands of an operator and arguments of a function have no order
// in C++. For the same reason formulas do not convert to a ValueId: two of them would then stand
// side by side in one argument list.

#include <bit>
#include <array>
#include <concepts>

#include "compiler/program/builder.h"

namespace bm::compiler {

/// Of a power of two.
inline int log2_of(int64_t power) { return std::countr_zero(static_cast<uint64_t>(power)); }

/// What is computed for two operands.
template <class L, class R>
struct Formula {
  ValueId (*combine)(Builder&, ValueId, ValueId);
  L left;
  R right;
};

class Index;

template <class T>
inline constexpr bool kIsFormula = false;
template <class L, class R>
inline constexpr bool kIsFormula<Formula<L, R>> = true;
template <class T>
concept IndexTerm = kIsFormula<T> || std::same_as<T, Index>;
/// Beside a term: a number.
template <class T>
concept IndexOperand = IndexTerm<T> || std::integral<T>;

/// An int64 value of a program, with the builder that makes others of it.
class Index {
 public:
  Index(Builder& b, ValueId value) : b_(&b), value_(value) {}
  template <class L, class R>
  Index(const Formula<L, R>& f) : b_(builder_of(f)), value_(make(f)) {}  // NOLINT: as in a formula
  operator ValueId() const { return value_; }                            // NOLINT: for Builder

 private:
  static Builder* builder_of(const Index& i) { return i.b_; }
  template <class L, class R>
  static Builder* builder_of(const Formula<L, R>& f) {
    if constexpr (IndexTerm<L>)
      return builder_of(f.left);
    else
      return builder_of(f.right);
  }
  ValueId make(const Index& i) const { return i.value_; }
  ValueId make(int64_t number) const { return b_->index(number); }
  template <class L, class R>
  ValueId make(const Formula<L, R>& f) const {
    const ValueId left = make(f.left);
    const ValueId right = make(f.right);
    return f.combine(*b_, left, right);
  }

  Builder* b_;
  ValueId value_;
};

/// Numbers in formulas are int64.
template <class T>
struct IndexTermOf {
  using Type = int64_t;
};
template <IndexTerm T>
struct IndexTermOf<T> {
  using Type = T;
};
template <class L, class R>
using FormulaOf = Formula<typename IndexTermOf<L>::Type, typename IndexTermOf<R>::Type>;
template <class L, class R>
concept IndexOperands = IndexOperand<L> && IndexOperand<R> && (IndexTerm<L> || IndexTerm<R>);

template <class L, class R>
  requires IndexOperands<L, R>
FormulaOf<L, R> operator+(const L& a, const R& b) {
  return {[](Builder& to, ValueId x, ValueId y) { return to.add(x, y); }, a, b};
}
template <class L, class R>
  requires IndexOperands<L, R>
FormulaOf<L, R> operator-(const L& a, const R& b) {
  return {[](Builder& to, ValueId x, ValueId y) { return to.sub(x, y); }, a, b};
}
template <class L, class R>
  requires IndexOperands<L, R>
FormulaOf<L, R> operator*(const L& a, const R& b) {
  return {[](Builder& to, ValueId x, ValueId y) { return to.mul(x, y); }, a, b};
}
template <class L, class R>
  requires IndexOperands<L, R>
FormulaOf<L, R> operator&(const L& a, const R& b) {
  return {[](Builder& to, ValueId x, ValueId y) { return to.bit_and(x, y); }, a, b};
}
template <class L, class R>
  requires IndexOperands<L, R>
FormulaOf<L, R> operator^(const L& a, const R& b) {
  return {[](Builder& to, ValueId x, ValueId y) { return to.bit_xor(x, y); }, a, b};
}
template <class L, class R>
  requires IndexOperands<L, R>
FormulaOf<L, R> operator|(const L& a, const R& b) {
  return {[](Builder& to, ValueId x, ValueId y) { return to.bit_or(x, y); }, a, b};
}
/// Of what is not negative.
template <IndexTerm L, std::integral R>
FormulaOf<L, R> operator>>(const L& a, R bits) {
  const auto combine = [](Builder& to, ValueId x, ValueId y) {
    return to.raw(Op::kShr, DType::kI64, {x, y});
  };
  return {combine, a, bits};
}
/// The smaller one.
template <class L, class R>
  requires IndexOperands<L, R>
FormulaOf<L, R> min(const L& a, const R& b) {
  const auto combine = [](Builder& to, ValueId x, ValueId y) {
    return to.alu(Op::kMin, DType::kI64, std::array{x, y});
  };
  return {combine, a, b};
}

/// What whole steps take of `end` iterations; `step` is a power of two.
inline Index whole_steps(const Index& end, int64_t step) { return end - (end & (step - 1)); }

}  // namespace bm::compiler
