// Arithmetic operators, comparisons, division rules, rounding: everything elementwise that needs
// no approximation (those are in ops_math.cpp).
#include "tensor/ops_internal.h"

namespace bm {

using enum ir::Op;
using ops::full_like;

namespace ops {

std::string describe(const Tensor& x) {
  return fmt::format("{} {}", dtype_name(x.dtype()), to_string(x.shape()));
}

Tensor truth(const Tensor& x) { return x.cast(DType::kBool); }

void need_integer(const Tensor& x, std::string_view what) {
  if (!is_int(x.dtype()))
    raise(Code::kInvalidArgument, "{} needs an integer dtype, not {}", what, describe(x));
}

}  // namespace ops

namespace {

/// Operands of a bitwise operator.
void need_bits(const Tensor& a, const Tensor& b, std::string_view what) {
  if (is_float(a.dtype()) || is_float(b.dtype()))
    raise(Code::kInvalidArgument, "{} needs integer or bool operands, not {} and {}", what,
          ops::describe(a), ops::describe(b));
}

Tensor bitwise(ir::Op op, const Tensor& a, const Tensor& b, std::string_view what) {
  need_bits(a, b, what);
  Tensor x = a, y = b;
  match(x, y, what);
  return alu(op, x, y);
}

Tensor shift(ir::Op op, const Tensor& a, const Tensor& b, std::string_view what) {
  need_bits(a, b, what);
  if (is_bool(a.dtype()))
    raise(Code::kInvalidArgument, "{} needs an integer left operand, not {}", what,
          ops::describe(a));
  Tensor x = a, y = b;
  match(x, y, what);
  return alu(op, x, y);
}

/// `x` so wide that the C++ number `weak` fits: u8 < 300 is about 300, not about 44. A uint64_t is
/// kept as an int64_t, so what does not fit uint64 wraps.
Tensor wide_enough(const Tensor& x, const Tensor& weak) {
  const DType t = x.dtype();
  if (is_weak(x) || !is_weak(weak) || !is_int(t) || !is_int(weak.dtype()) || t == DType::kU64)
    return x;
  const int64_t value = weak.node()->scalar.i;
  return value < int_min(t) || value > int_max(t) ? x.cast(DType::kI64) : x;
}

/// Comparison after matching; `less(x, y)` etc. never see different dtypes.
template <class F>
Tensor compare(const Tensor& a, const Tensor& b, std::string_view what, F&& f) {
  Tensor x = wide_enough(a, b), y = wide_enough(b, a);
  match(x, y, what);
  return f(x, y);
}

/// a <= b: for floats not the negation of b < a, because of NaN.
Tensor less_equal(const Tensor& a, const Tensor& b) {
  if (!is_float(a.dtype())) return !alu(kLt, b, a);
  return alu(kOr, alu(kLt, a, b), alu(kEq, a, b));
}

/// True where exactly one of two numbers is below zero.
Tensor signs_differ(const Tensor& a, const Tensor& b) { return alu(kNe, a < 0, b < 0); }

/// Both operands at the width they are computed in; the common dtype they promise.
struct Operands {
  Tensor a, b;
  DType result;
};
Operands widened(const Tensor& a, const Tensor& b, std::string_view what) {
  Operands o{a, b, DType::kF32};
  match(o.a, o.b, what);
  o.result = o.a.dtype();
  if (is_bool(o.result))
    raise(Code::kInvalidArgument, "{} is not defined on bool: {} and {}", what, ops::describe(a),
          ops::describe(b));
  if (is_half_like(o.result)) {
    o.a = o.a.cast(DType::kF32);
    o.b = o.b.cast(DType::kF32);
  }
  return o;
}

/// Quotient rounded down, exact where a/b would round to the next integer up.
Tensor floor_div_float(const Tensor& a, const Tensor& b) {
  const Tensor rest = alu(kMod, a, b);
  Tensor q = alu(kDiv, alu(kSub, a, rest), b);
  const Tensor is_below = alu(kAnd, alu(kNe, rest, scalar_like(rest, 0)), signs_differ(rest, b));
  q = select(is_below, q - 1, q);
  // (a - rest) / b is within half a unit of an integer; zero keeps the sign of a/b.
  const Tensor ratio = alu(kDiv, a, b);
  const Tensor rounded = q.floor();
  const Tensor nearest =
      select(alu(kLt, scalar_like(q, 0.5), alu(kSub, q, rounded)), rounded + 1, rounded);
  return select(alu(kEq, b, scalar_like(b, 0)), ratio,
                select(alu(kEq, q, scalar_like(q, 0)), ratio * 0, nearest));
}

Tensor floor_div_int(const Tensor& a, const Tensor& b) {
  const Tensor q = alu(kDiv, a, b);
  if (is_unsigned(a.dtype())) return q;
  const Tensor rest = alu(kMod, a, b);  // 0 for a zero divisor, so q = 0 stays
  return select(alu(kAnd, alu(kNe, rest, scalar_like(rest, 0)), signs_differ(rest, b)), q - 1, q);
}

}  // namespace

// --- arithmetic -------------------------------------------------------------------------------

Tensor operator+(const Tensor& a, const Tensor& b) {
  Tensor x = a, y = b;
  match(x, y, "add");
  return alu(is_bool(x.dtype()) ? kOr : kAdd, x, y);
}

Tensor operator-(const Tensor& a, const Tensor& b) {
  Tensor x = a, y = b;
  match(x, y, "subtract");
  if (is_bool(x.dtype()))
    raise(Code::kInvalidArgument, "subtract is not defined on bool: {} and {}; use ^ or cast",
          ops::describe(a), ops::describe(b));
  return alu(kSub, x, y);
}

Tensor operator*(const Tensor& a, const Tensor& b) {
  Tensor x = a, y = b;
  match(x, y, "multiply");
  return alu(is_bool(x.dtype()) ? kAnd : kMul, x, y);
}

Tensor operator/(const Tensor& a, const Tensor& b) {
  Tensor x = a, y = b;
  match(x, y, "divide");
  const DType t = float_dtype(x.dtype());
  return alu(kDiv, x.cast(t), y.cast(t));
}

Tensor operator&(const Tensor& a, const Tensor& b) { return bitwise(kAnd, a, b, "and"); }
Tensor operator|(const Tensor& a, const Tensor& b) { return bitwise(kOr, a, b, "or"); }
Tensor operator^(const Tensor& a, const Tensor& b) { return bitwise(kXor, a, b, "xor"); }
Tensor operator<<(const Tensor& a, const Tensor& b) { return shift(kShl, a, b, "shift left"); }
Tensor operator>>(const Tensor& a, const Tensor& b) { return shift(kShr, a, b, "shift right"); }

Tensor Tensor::operator-() const {
  if (is_bool(dtype()))
    raise(Code::kInvalidArgument, "negate is not defined on {}; use !", ops::describe(*this));
  return alu(kNeg, *this);
}

Tensor Tensor::operator!() const { return alu(kNot, ops::truth(*this)); }

Tensor Tensor::operator~() const {
  if (is_float(dtype()))
    raise(Code::kInvalidArgument, "bitwise not needs an integer or bool dtype, not {}",
          ops::describe(*this));
  return alu(kNot, *this);
}

// --- comparisons ------------------------------------------------------------------------------

Tensor operator<(const Tensor& a, const Tensor& b) {
  return compare(a, b, "less", [](const Tensor& x, const Tensor& y) { return alu(kLt, x, y); });
}
Tensor operator>(const Tensor& a, const Tensor& b) {
  return compare(a, b, "greater", [](const Tensor& x, const Tensor& y) { return alu(kLt, y, x); });
}
Tensor operator<=(const Tensor& a, const Tensor& b) {
  return compare(a, b, "less or equal", less_equal);
}
Tensor operator>=(const Tensor& a, const Tensor& b) {
  return compare(a, b, "greater or equal",
                 [](const Tensor& x, const Tensor& y) { return less_equal(y, x); });
}
Tensor operator==(const Tensor& a, const Tensor& b) {
  return compare(a, b, "equal", [](const Tensor& x, const Tensor& y) { return alu(kEq, x, y); });
}
Tensor operator!=(const Tensor& a, const Tensor& b) {
  return compare(a, b, "not equal",
                 [](const Tensor& x, const Tensor& y) { return alu(kNe, x, y); });
}

Tensor Tensor::isnan() const {
  return is_float(dtype()) ? alu(kNe, *this, *this) : full_like(*this, 0, DType::kBool);
}
Tensor Tensor::isinf() const {
  if (!is_float(dtype())) return full_like(*this, 0, DType::kBool);
  return alu(kEq, abs(), scalar_like(*this, HUGE_VAL));
}
Tensor Tensor::isfinite() const {
  if (!is_float(dtype())) return full_like(*this, 1, DType::kBool);
  return alu(kLt, abs(), scalar_like(*this, HUGE_VAL));
}

Tensor Tensor::maximum(const Tensor& other) const {
  Tensor x = *this, y = other;
  match(x, y, "maximum");
  return alu(is_bool(x.dtype()) ? kOr : kMax, x, y);
}
Tensor Tensor::minimum(const Tensor& other) const {
  Tensor x = *this, y = other;
  match(x, y, "minimum");
  return alu(is_bool(x.dtype()) ? kAnd : kMin, x, y);
}

Tensor Tensor::clip(std::optional<double> lo, std::optional<double> hi) const {
  // A whole bound does not turn integers into floats.
  const auto bound = [&](double v) {
    return is_int(dtype()) && v == std::trunc(v) ? scalar_like(*this, v) : Tensor(v);
  };
  Tensor out = *this;
  if (lo) out = out.maximum(bound(*lo));
  if (hi) out = out.minimum(bound(*hi));
  return out;
}

Tensor Tensor::where(const Tensor& a, const Tensor& b) const {
  return select(ops::truth(*this), a, b);
}

Tensor Tensor::lerp(const Tensor& end, const Tensor& weight) const {
  Operands o = widened(*this, end, "lerp");
  const Tensor out = o.a + (o.b - o.a) * weight;
  return is_half_like(o.result) ? out.cast(o.result) : out;
}

// --- division ---------------------------------------------------------------------------------

Tensor Tensor::floor_div(const Tensor& other) const {
  const Operands o = widened(*this, other, "floor_div");
  return (is_float(o.result) ? floor_div_float(o.a, o.b) : floor_div_int(o.a, o.b)).cast(o.result);
}

Tensor Tensor::mod(const Tensor& other) const {
  const Operands o = widened(*this, other, "mod");
  const Tensor rest = alu(kMod, o.a, o.b);
  if (is_unsigned(o.result)) return rest;
  const Tensor is_wrong = alu(kAnd, alu(kNe, rest, scalar_like(rest, 0)), signs_differ(rest, o.b));
  return select(is_wrong, rest + o.b, rest).cast(o.result);
}

Tensor Tensor::trunc_div(const Tensor& other) const {
  const Operands o = widened(*this, other, "trunc_div");
  return alu(kDiv, o.a, o.b).trunc().cast(o.result);
}

Tensor Tensor::fmod(const Tensor& other) const {
  const Operands o = widened(*this, other, "fmod");
  return alu(kMod, o.a, o.b).cast(o.result);
}

// --- sign and rounding ------------------------------------------------------------------------

Tensor Tensor::abs() const {
  if (is_bool(dtype()) || is_unsigned(dtype())) return *this;
  if (!is_float(dtype())) return select(*this < 0, alu(kNeg, *this), *this);
  // Clearing the sign bit also takes -0 and negative NaN.
  const DType bits = item_size(dtype()) == 2   ? DType::kI16
                     : item_size(dtype()) == 4 ? DType::kI32
                                               : DType::kI64;
  const Tensor mask = constant_int(int_max(bits), bits, device());
  return alu(kAnd, bitcast(bits), mask).bitcast(dtype());
}

Tensor Tensor::sign() const {
  if (is_bool(dtype())) return *this;
  const Tensor zero = scalar_like(*this, 0), one = scalar_like(*this, 1);
  if (is_unsigned(dtype())) return select(alu(kEq, *this, zero), zero, one);
  const Tensor minus_one = scalar_like(*this, -1);
  // -0 becomes +0; NaN stays.
  const Tensor neither = select(alu(kEq, *this, zero), zero, *this);
  const Tensor not_negative = select(alu(kLt, zero, *this), one, neither);
  return select(alu(kLt, *this, zero), minus_one, not_negative);
}

Tensor Tensor::trunc() const { return is_float(dtype()) ? alu(kTrunc, *this) : *this; }

Tensor Tensor::floor() const {
  if (!is_float(dtype())) return *this;
  const Tensor t = alu(kTrunc, *this);
  return select(alu(kLt, *this, t), t - 1, t);
}

Tensor Tensor::ceil() const {
  if (!is_float(dtype())) return *this;
  const Tensor t = alu(kTrunc, *this);
  return select(alu(kLt, t, *this), t + 1, t);
}

Tensor Tensor::round() const {
  if (!is_float(dtype())) return *this;
  const Tensor t = alu(kTrunc, *this);
  const Tensor fraction = alu(kSub, *this, t).abs();  // exact
  const Tensor half_of_t = t * 0.5, half = scalar_like(*this, 0.5);
  const Tensor is_odd = alu(kNe, half_of_t, half_of_t.trunc());
  const Tensor moves =
      alu(kOr, alu(kLt, half, fraction), alu(kAnd, alu(kEq, fraction, half), is_odd));
  return select(moves, t + sign(), t);
}

Tensor Tensor::square() const { return *this * *this; }
Tensor Tensor::relu() const {
  return is_bool(dtype()) ? *this : alu(kMax, *this, scalar_like(*this, 0));
}

}  // namespace bm
