#pragma once
// Arithmetic on values as formulas: Expr row = min(band * plan.band + in_band, last).
//
// A formula makes its values when an Expr takes it, from left to right. Programs are the same
// whatever compiler builds us, as operands of an operator and arguments of a function have no order
// in C++. For the same reason formulas do not convert to a ValueId: two of them would then stand
// side by side in one argument list.

#include <array>
#include <bit>
#include <concepts>
#include <span>
#include <tuple>
#include <utility>

#include "compiler/program/builder.h"

namespace bm::compiler {

/// Of a power of two.
inline int log2_of(int64_t power) { return std::countr_zero(static_cast<uint64_t>(power)); }

/// What a formula gives; otherwise it has the type of its last operand that is no number.
enum class Gives : uint8_t { kSame, kCondition, kConverted };

/// What is computed for operands.
template <Gives gives, class... Operands>
struct Formula {
  ValueId (*combine)(Builder&, std::span<const ValueId>, DType);
  std::tuple<Operands...> operands;
  DType to = DType::kI64;  ///< kConverted
};

class Expr;

template <class T>
inline constexpr bool kIsFormula = false;
template <Gives gives, class... Operands>
inline constexpr bool kIsFormula<Formula<gives, Operands...>> = true;
template <class T>
concept ExprTerm = kIsFormula<T> || std::same_as<T, Expr>;
/// Beside a term: a number, of the term's type.
template <class T>
concept ExprOperand = ExprTerm<T> || std::integral<T> || std::floating_point<T>;
template <class... T>
concept ExprOperands = (ExprOperand<T> && ...) && (ExprTerm<T> || ...);

/// A value of a program, with the builder that makes others of it.
class Expr {
 public:
  Expr(Builder& b, ValueId value) : b_(&b), value_(value) {}
  template <Gives gives, class... Operands>
  Expr(const Formula<gives, Operands...>& f)  // NOLINT: as in a formula
      : b_(builder_of(f)), value_(make(f, {})) {}
  operator ValueId() const { return value_; }  // NOLINT: for Builder

 private:
  static Builder* builder_of(const Expr& e) { return e.b_; }
  template <Gives gives, class... Operands>
  static Builder* builder_of(const Formula<gives, Operands...>& f) {
    return builder_of(last_term(f));
  }
  template <Gives gives, class... Operands>
  static const auto& last_term(const Formula<gives, Operands...>& f) {
    return last_term_before<sizeof...(Operands)>(f.operands);
  }
  template <size_t end, class Tuple>
  static const auto& last_term_before(const Tuple& operands) {
    if constexpr (ExprTerm<std::tuple_element_t<end - 1, Tuple>>)
      return std::get<end - 1>(operands);
    else
      return last_term_before<end - 1>(operands);
  }

  Type type_of(const Expr& e) const { return b_->type(e.value_); }
  template <Gives gives, class... Operands>
  Type type_of(const Formula<gives, Operands...>& f) const {
    const Type type = type_of(last_term(f));
    if constexpr (gives == Gives::kCondition) return {DType::kBool, type.lanes};
    if constexpr (gives == Gives::kConverted) return {f.to, type.lanes};
    return type;
  }

  ValueId make(const Expr& e, Type /*numbers*/) const { return e.value_; }
  ValueId make(int64_t number, Type numbers) const { return b_->constant(numbers, number); }
  ValueId make(double number, Type numbers) const { return b_->constant_f(numbers, number); }
  template <Gives gives, class... Operands>
  ValueId make(const Formula<gives, Operands...>& f, Type /*numbers*/) const {
    const Type numbers = type_of(last_term(f));
    return std::apply(
        [&](const auto&... operand) {
          // Elements of braces are evaluated in order.
          const std::array made{make(operand, numbers)...};
          return f.combine(*b_, made, f.to);
        },
        f.operands);
  }

  Builder* b_;
  ValueId value_;
};

/// Whole numbers in formulas are int64, others double.
template <class T>
struct ExprNumber {
  using Type = int64_t;
};
template <std::floating_point T>
struct ExprNumber<T> {
  using Type = double;
};
template <ExprTerm T>
struct ExprNumber<T> {
  using Type = T;
};
template <Gives gives, class... T>
using FormulaOf = Formula<gives, typename ExprNumber<T>::Type...>;

/// How formulas are computed by functions of the builder.
template <auto function>
ValueId call_unary(Builder& b, std::span<const ValueId> made, DType /*to*/) {
  return (b.*function)(made[0]);
}
template <auto function>
ValueId call_binary(Builder& b, std::span<const ValueId> made, DType /*to*/) {
  return (b.*function)(made[0], made[1]);
}
template <Op op>
ValueId call_raw(Builder& b, std::span<const ValueId> made, DType /*to*/) {
  return b.raw(op, b.type(made[0]).dtype, {made[0], made[1]});
}
template <auto function>
ValueId call_conversion(Builder& b, std::span<const ValueId> made, DType to) {
  return (b.*function)(made[0], to);
}

template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator+(const L& a, const R& b) {
  return {call_binary<&Builder::add>, {a, b}};
}
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator-(const L& a, const R& b) {
  return {call_binary<&Builder::sub>, {a, b}};
}
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator*(const L& a, const R& b) {
  return {call_binary<&Builder::mul>, {a, b}};
}
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator&(const L& a, const R& b) {
  return {call_binary<&Builder::bit_and>, {a, b}};
}
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator^(const L& a, const R& b) {
  return {call_binary<&Builder::bit_xor>, {a, b}};
}
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator|(const L& a, const R& b) {
  return {call_binary<&Builder::bit_or>, {a, b}};
}
/// Of integers without a sign, by no zero.
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator%(const L& a, const R& b) {
  return {call_raw<Op::kMod>, {a, b}};
}
/// By less than the bits of the type; `>>` of what is not negative.
template <ExprTerm L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator<<(const L& a, const R& bits) {
  return {call_raw<Op::kShl>, {a, bits}};
}
template <ExprTerm L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> operator>>(const L& a, const R& bits) {
  return {call_raw<Op::kShr>, {a, bits}};
}
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kCondition, L, R> operator<(const L& a, const R& b) {
  return {call_binary<&Builder::lt>, {a, b}};
}
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kCondition, L, R> operator==(const L& a, const R& b) {
  return {call_binary<&Builder::eq>, {a, b}};
}
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kCondition, L, R> operator!=(const L& a, const R& b) {
  return {call_binary<&Builder::ne>, {a, b}};
}
/// Of conditions.
template <ExprTerm T>
FormulaOf<Gives::kSame, T> operator!(const T& condition) {
  return {call_unary<&Builder::negated>, {condition}};
}
/// The smaller one of two integers.
template <class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, L, R> min(const L& a, const R& b) {
  constexpr auto kCall = [](Builder& to, std::span<const ValueId> made, DType) {
    return to.alu(Op::kMin, to.type(made[0]).dtype, made);
  };
  return {kCall, {a, b}};
}
/// `a` where the condition holds, else `b`.
template <ExprTerm C, class L, class R>
  requires ExprOperands<L, R>
FormulaOf<Gives::kSame, C, L, R> select(const C& condition, const L& a, const R& b) {
  constexpr auto kCall = [](Builder& to, std::span<const ValueId> made, DType) {
    return to.select(made[0], made[1], made[2]);
  };
  return {kCall, {condition, a, b}};
}
/// As the functions of the builder say.
template <ExprTerm T>
FormulaOf<Gives::kConverted, T> cast(const T& value, DType to) {
  return {call_conversion<&Builder::cast>, {value}, to};
}
template <ExprTerm T>
FormulaOf<Gives::kConverted, T> convert(const T& value, DType to) {
  return {call_conversion<&Builder::convert>, {value}, to};
}
template <ExprTerm T>
FormulaOf<Gives::kConverted, T> bitcast(const T& value, DType to) {
  return {call_conversion<&Builder::bitcast>, {value}, to};
}

/// What whole steps take of `end` iterations; `step` is a power of two.
inline Expr whole_steps(const Expr& end, int64_t step) { return end - (end & (step - 1)); }

}  // namespace bm::compiler
