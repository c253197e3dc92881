// Meaning of ir::Op in machine operations: edges of casts, division and shifts, 16-bit floats.
#include <array>
#include <cmath>
#include <limits>

#include "compiler/program/expr.h"
#include "compiler/program/narrow.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

int bit_width_of(DType t) { return static_cast<int>(item_size(t)) * 8; }

/// Digits that float32 has no room for leave one bit behind, which makes its last digit odd
/// (rounding to odd): `narrow`, which rounds a float32, then sees on which side of a tie the number
/// was.
template <class Narrow>
ValueId narrow_f64(Builder& b, ValueId a, DType to, Narrow&& narrow) {
  constexpr int64_t kLost = (int64_t{1} << 29) - 1;
  const Expr value(b, a), bits = bitcast(value, DType::kU64);
  const Expr carried = (bits & kLost) + kLost;
  const Expr last = carried & (kLost + 1), kept = bits & ~kLost;
  const Expr odd = bitcast(kept | last, DType::kF64);
  const ValueId half = narrow(b.convert(odd, DType::kF32));
  if (to == DType::kF16) return half;
  // Subnormal numbers are subnormal in float32 too, which then has fewer digits: the adder of
  // float64 rounds them, and leaves them in its last bits.
  const double step = 0x1p-81;
  const Expr magnitude = bitcast(bits & INT64_MAX, DType::kF64);
  const Expr sum = bitcast(magnitude + step, DType::kU64);
  const Expr tiny = sum - std::bit_cast<int64_t>(step);
  const Expr sign = (bits >> 48) & 0x8000;
  const Expr signed_tiny = convert(tiny | sign, DType::kU16);
  const Expr is_tiny = magnitude < 0x1p-126;
  const Expr half_bits = bitcast(Expr(b, half), DType::kU16);
  return Expr(bitcast(select(is_tiny, signed_tiny, half_bits), to));
}

}  // namespace

ValueId Builder::neg(ValueId a) {
  if (is_float(type(a).dtype)) return raw(Op::kNeg, type(a).dtype, {a});
  return sub(like_int(a, 0), a);
}

ValueId Builder::alu(Op op, DType dtype, std::span<const ValueId> args) {
  if (op == Op::kCast) return cast(args[0], dtype);
  if (op == Op::kBitcast) return bitcast(args[0], dtype);
  if (op == Op::kSelect) return select(args[0], args[1], args[2]);
  const DType in = type(args[0]).dtype;
  if (is_half_like(in)) {
    // Rounding to float32 in between changes nothing: it has more than twice the digits.
    const bool has_own =
        in == DType::kF16 ? target_.has_f16_arithmetic : target_.has_bf16_arithmetic;
    if (has_own && is_half_arithmetic(op)) return raw(op, dtype, {args[0], args[1]});
    std::array<ValueId, 3> wide{};
    for (size_t i = 0; i < args.size(); ++i) wide[i] = widen_half(args[i]);
    // One of the numbers as it is.
    if (has_own && (op == Op::kMax || op == Op::kMin))
      return select(is_beyond(op, wide[0], wide[1]), args[1], args[0]);
    const ValueId r = float_alu(op, ir::is_comparison(op) ? DType::kBool : DType::kF32,
                                std::span(wide).first(args.size()));
    return is_half_like(dtype) ? narrow_half(r, dtype) : r;
  }
  if (is_float(in)) return float_alu(op, dtype, args);
  if (is_bool(in))
    return op == Op::kNot     ? raw(Op::kNot, dtype, {args[0]})
           : args.size() == 1 ? args[0]
                              : binary_bool(op, args[0], args[1]);
  return int_alu(op, dtype, args);
}

ValueId Builder::binary_bool(Op op, ValueId a, ValueId b) {
  const auto negate = [&](ValueId v) { return raw(Op::kNot, DType::kBool, {v}); };
  switch (op) {
    case Op::kAdd:
    case Op::kOr:
    case Op::kMax: return bit_or(a, b);
    case Op::kMul:
    case Op::kAnd:
    case Op::kMin:
    case Op::kDiv: return bit_and(a, b);
    case Op::kSub:
    case Op::kXor:
    case Op::kNe: return bit_xor(a, b);
    case Op::kEq: return negate(bit_xor(a, b));
    case Op::kLt: return bit_and(negate(a), b);
    case Op::kMod: return like_int(a, 0);
    case Op::kShl: return a;
    case Op::kShr: return bit_and(a, negate(b));
    default: break;
  }
  check_failed("operation is not defined on bool", __FILE__, __LINE__);
  return kNone;
}

ValueId Builder::int_alu(Op op, DType dtype, std::span<const ValueId> args) {
  const ValueId a = args[0], b = args.size() > 1 ? args[1] : kNone;
  if (is_modular(op) || is_comparison(op)) return raw(op, dtype, {a, b});
  switch (op) {
    case Op::kNeg: return neg(a);
    case Op::kTrunc: return a;
    case Op::kNot: return raw(Op::kNot, dtype, {a});
    case Op::kMax: return select(lt(a, b), b, a);
    case Op::kMin: return select(lt(b, a), b, a);
    case Op::kShl:
    case Op::kShr: return shift(op, dtype, a, b);
    case Op::kDiv:
    case Op::kMod: return int_divide(op, dtype, a, b);
    default: break;
  }
  check_failed("operation is not defined on integers", __FILE__, __LINE__);
  return kNone;
}

ValueId Builder::shift(Op op, DType dtype, ValueId a, ValueId b) {
  const int width = bit_width_of(dtype);
  const Value amount = program_.values[b];
  const bool keeps_sign = op == Op::kShr && is_signed(dtype);
  const ValueId all =
      keeps_sign ? raw(Op::kShr, dtype, {a, like_int(a, width - 1)}) : like_int(a, 0);
  if (amount.op == ValueOp::kConst) {
    const bool is_over = amount.imm < 0 || amount.imm >= width;
    return is_over ? all : raw(op, dtype, {a, b});
  }
  const ValueId inside = bit_and(b, like_int(b, width - 1));
  // Negative amounts have bits outside the mask, like too large ones.
  const ValueId is_inside = eq(inside, b);
  return select(is_inside, raw(op, dtype, {a, inside}), all);
}

ValueId Builder::int_divide(Op op, DType dtype, ValueId a, ValueId b) {
  const bool is_div = op == Op::kDiv;
  const Value divisor = program_.values[b];
  if (divisor.op == ValueOp::kConst) {
    if (divisor.imm == 0) return like_int(a, 0);
    if (divisor.imm == -1 && is_signed(dtype)) return is_div ? neg(a) : like_int(a, 0);
    return raw(op, dtype, {a, b});
  }
  const ValueId zero = like_int(a, 0), one = like_int(a, 1);
  const ValueId by_zero = eq(b, zero);
  if (!is_signed(dtype)) return select(by_zero, zero, raw(op, dtype, {a, select(by_zero, one, b)}));
  const ValueId by_minus_one = eq(b, like_int(b, -1));
  const ValueId safe = select(bit_or(by_zero, by_minus_one), one, b);
  const ValueId special = is_div ? select(by_zero, zero, neg(a)) : zero;
  return select(bit_or(by_zero, by_minus_one), special, raw(op, dtype, {a, safe}));
}

ValueId Builder::float_alu(Op op, DType dtype, std::span<const ValueId> args) {
  const ValueId a = args[0], b = args.size() > 1 ? args[1] : kNone;
  switch (op) {
    case Op::kNeg: return neg(a);
    case Op::kRecip: return raw(Op::kDiv, dtype, {like(a, 1), a});
    case Op::kSqrt: return raw(Op::kSqrt, dtype, {a});
    case Op::kTrunc: return truncate(a);
    case Op::kExp2: return exp2(a);
    case Op::kLog2: return log2(a);
    case Op::kSin: return sine(a);
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kDiv:
    case Op::kLt:
    case Op::kEq:
    case Op::kNe: return raw(op, dtype, {a, b});
    case Op::kMod: return fmod(a, b);
    case Op::kMax:
    case Op::kMin: return select(is_beyond(op, a, b), b, a);
    case Op::kFma: return fma(a, b, args[2]);
    default: break;
  }
  check_failed("operation is not defined on floats", __FILE__, __LINE__);
  return kNone;
}

/// Whether b is what kMax or kMin of two floats gives. A NaN in a fails the comparison and stays;
/// one in b is taken by the second condition.
ValueId Builder::is_beyond(Op op, ValueId a, ValueId b) {
  const ValueId is_better = op == Op::kMax ? lt(a, b) : lt(b, a), is_nan = ne(b, b);
  return bit_or(is_better, is_nan);
}

ValueId Builder::truncate(ValueId a) {
  const DType t = type(a).dtype;
  if (target_.has_round) return raw(Op::kTrunc, t, {a});
  // Values from 2^23 (2^52) on are integers already; smaller ones survive an iteration through
  // integers.
  const bool is_f32 = t == DType::kF32;
  const DType bits_type = is_f32 ? DType::kU32 : DType::kU64;
  const ValueId sign =
      bit_and(bitcast(a, bits_type),
              constant({bits_type, type(a).lanes}, is_f32 ? int64_t{1} << 31 : INT64_MIN));
  const ValueId magnitude = bitcast(bit_xor(bitcast(a, bits_type), sign), t);
  const ValueId is_small = lt(magnitude, like(a, is_f32 ? 0x1p23 : 0x1p52));
  const ValueId whole = convert(
      convert(select(is_small, magnitude, like(a, 0)), is_f32 ? DType::kI32 : DType::kI64), t);
  return select(is_small, bitcast(bit_or(bitcast(whole, bits_type), sign), t), a);
}

ValueId Builder::fma(ValueId a, ValueId b, ValueId c) {
  if (target_.has_fma) return raw(Op::kFma, type(a).dtype, {a, b, c});
  return type(a).dtype == DType::kF32 ? fma_f32_without_hardware(a, b, c)
                                      : fma_f64_without_hardware(a, b, c);
}

ValueId Builder::mad(ValueId a, ValueId b, ValueId c) {
  if (target_.has_fma) return raw(Op::kFma, type(a).dtype, {a, b, c});
  return add(mul(a, b), c);
}

/// Rounded sum and what rounding lost: high + low = a + b exactly.
Builder::Pair Builder::two_sum(ValueId a, ValueId b) {
  const ValueId s = add(a, b);
  const ValueId back = sub(s, a);
  return {s, add(sub(a, sub(s, back)), sub(b, back))};
}

/// a + b in float64, rounded to odd: an inexact sum gets an odd last bit. A second rounding to
/// fewer digits then sees on which side of a tie the exact sum was.
ValueId Builder::add_to_odd(ValueId a, ValueId b) {
  const auto [s, error] = two_sum(a, b);
  const ValueId zero = like(s, 0);
  const ValueId bits = bitcast(s, DType::kI64);
  const ValueId one = like_int(bits, 1);
  const ValueId is_even = eq(bit_and(bits, one), like_int(bits, 0));
  const ValueId is_away = bit_xor(lt(zero, error), lt(s, zero));
  const ValueId moved = select(is_away, add(bits, one), sub(bits, one));
  const ValueId is_inexact = bit_or(lt(error, zero), lt(zero, error));
  return bitcast(select(bit_and(is_inexact, is_even), moved, bits), DType::kF64);
}

ValueId Builder::fma_f32_without_hardware(ValueId a, ValueId b, ValueId c) {
  // The product is exact in float64.
  const ValueId p = mul(convert(a, DType::kF64), convert(b, DType::kF64));
  return convert(add_to_odd(p, convert(c, DType::kF64)), DType::kF32);
}

ValueId Builder::fma_f64_without_hardware(ValueId a, ValueId b, ValueId c) {
  // Exact product in two parts (Dekker), then their sum with c rounded once (Boldo and Melquiond,
  // "Emulation of FMA and correctly rounded sums", 2008). Operands beyond 2^996 and results near
  // the smallest numbers fall back to two roundings.
  const auto split = [&](ValueId v) {
    const ValueId t = mul(v, like(v, 134217729.0));
    const ValueId high = sub(t, sub(t, v));
    return std::pair(high, sub(v, high));
  };
  const ValueId p = mul(a, b);
  const auto [ah, al] = split(a);
  const auto [bh, bl] = split(b);
  const ValueId low = add(add(add(sub(mul(ah, bh), p), mul(ah, bl)), mul(al, bh)), mul(al, bl));
  const auto [t, t_low] = two_sum(c, low);
  const auto [v, v_low] = two_sum(p, t);
  const ValueId exact = add(v, add_to_odd(t_low, v_low));
  // The plain sum has the right sign of zero, and infinities instead of NaN.
  const ValueId plain = add(p, c), zero = like(p, 0);
  const ValueId is_zero = bit_and(eq(exact, zero), eq(plain, zero));
  return select(bit_or(ne(exact, exact), is_zero), plain, exact);
}

ValueId Builder::cast(ValueId a, DType to) {
  const DType from = type(a).dtype;
  if (from == to) return a;
  if (is_half_like(from)) return cast(widen_half(a), to);
  if (from == DType::kF64 && is_half_like(to))
    return narrow_f64(*this, a, to, [&](ValueId single) { return narrow_half(single, to); });
  if (is_half_like(to)) return narrow_half(from == DType::kF32 ? a : convert(a, DType::kF32), to);
  if (is_bool(to)) return ne(a, like_int(a, 0));
  if (is_float(from) && is_int(to)) return float_to_int(a, to);
  return convert(a, to);
}

ValueId Builder::float_to_int(ValueId a, DType to) {
  const bool is_f32 = type(a).dtype == DType::kF32;
  const int mantissa = is_f32 ? 24 : 53, width = bit_width_of(to);
  const double high = std::ldexp(1.0, is_signed(to) ? width - 1 : width);
  const auto step = [&](double v, double towards) {
    return is_f32 ? static_cast<double>(
                        std::nextafterf(static_cast<float>(v), static_cast<float>(towards)))
                  : std::nextafter(v, towards);
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  // Exclusive lower bound: min - 1, or the next float below min where that does not exist.
  const double low = !is_signed(to) ? -1.0 : width < mantissa ? -high - 1 : step(-high, -kInf);
  const ValueId is_inside = bit_and(lt(like(a, low), a), lt(a, like(a, high)));
  const ValueId value = convert(select(is_inside, a, like(a, 0)), to);
  const Type t{to, type(a).lanes};
  const int64_t max_value = to == DType::kU64 ? -1 : int_max(to);
  const ValueId is_over = lt(like(a, step(high, 0)), a), is_under = lt(a, like(a, step(low, kInf)));
  return select(is_over, constant(t, max_value), select(is_under, constant(t, int_min(to)), value));
}

ValueId Builder::widen_half(ValueId a) {
  const DType from = type(a).dtype;
  if (!is_half_like(from)) return a;
  if (program_.values[a].op == ValueOp::kConst)
    return constant_f({DType::kF32, type(a).lanes}, std::bit_cast<double>(program_.values[a].imm));
  if (from == DType::kBF16)
    return bitcast(shl(convert(bitcast(a, DType::kU16), DType::kU32), 16), DType::kF32);
  if (target_.has_f16c) return convert(a, DType::kF32);
  // Exponent and fraction moved in place, scaled by 2^112 to correct the bias (also for
  // subnormals).
  const ValueId h = convert(bitcast(a, DType::kU16), DType::kU32);
  if (!target_.keeps_subnormals) return widen_f16_in_integers(h);
  const ValueId shifted = shl(bit_and(h, like_int(h, 0x7fff)), 13);
  const ValueId scaled =
      bitcast(mul(bitcast(shifted, DType::kF32), constant_f({DType::kF32, type(a).lanes}, 0x1p112)),
              DType::kU32);
  const ValueId is_special = eq(bit_and(h, like_int(h, 0x7c00)), like_int(h, 0x7c00));
  const ValueId magnitude = select(is_special, bit_or(shifted, like_int(h, 0x7f800000)), scaled);
  return bitcast(bit_or(magnitude, shl(bit_and(h, like_int(h, 0x8000)), 16)), DType::kF32);
}

/// No operand is ever a subnormal float32. `h`: the bits as uint32.
ValueId Builder::widen_f16_in_integers(ValueId h) {
  const auto c = [&](int64_t v) { return like_int(h, v); };
  const ValueId magnitude = bit_and(h, c(0x7fff));
  const ValueId normal = add(shl(magnitude, 13), c(112 << 23));
  const ValueId whole = convert(magnitude, DType::kF32);
  const ValueId tiny = bitcast(mul(whole, like(whole, 0x1p-24)), DType::kU32);
  const ValueId special = bit_or(shl(magnitude, 13), c(0x7f800000));
  const ValueId finite = select(lt(magnitude, c(0x400)), tiny, normal);
  const ValueId bits = select(lt(magnitude, c(0x7c00)), finite, special);
  return bitcast(bit_or(bits, shl(bit_and(h, c(0x8000)), 16)), DType::kF32);
}

ValueId Builder::narrow_half(ValueId a, DType to) {
  if (to == DType::kF16 && target_.has_f16c) return convert(a, DType::kF16);
  if (to == DType::kBF16 && target_.has_bf16_round) return convert(a, DType::kBF16);
  const ValueId bits = bitcast(a, DType::kU32);
  const auto c = [&](int64_t v) { return like_int(bits, v); };
  const ValueId magnitude = bit_and(bits, c(0x7fffffff));
  const ValueId is_nan = lt(c(0x7f800000), magnitude);
  if (to == DType::kBF16) {
    const ValueId rounded = shr(add(bits, add(c(0x7fff), bit_and(shr(bits, 16), c(1)))), 16);
    const ValueId result = select(is_nan, bit_or(shr(bits, 16), c(0x40)), rounded);
    return bitcast(convert(result, DType::kU16), DType::kBF16);
  }
  const ValueId normal =
      sub(shr(add(magnitude, add(c(0xfff), bit_and(shr(magnitude, 13), c(1)))), 13), c(112 << 10));
  // Adding 0.5 leaves multiples of 2^-24, rounded by the adder, in the fraction.
  const ValueId half_one = constant_f({DType::kF32, type(a).lanes}, 0.5);
  const ValueId tiny =
      sub(bitcast(add(bitcast(magnitude, DType::kF32), half_one), DType::kU32), c(0x3f000000));
  const ValueId finite = select(lt(magnitude, c(0x38800000)), tiny, normal);
  const ValueId with_inf = select(lt(magnitude, c(0x477ff000)), finite, c(0x7c00));
  const ValueId nan = bit_or(bit_and(shr(magnitude, 13), c(0x3ff)), c(0x7e00));
  const ValueId sign = bit_and(shr(bits, 16), c(0x8000));
  return bitcast(convert(bit_or(select(is_nan, nan, with_inf), sign), DType::kU16), DType::kF16);
}

ValueId Builder::neutral(ir::ReduceOp op, Type t) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const bool is_f = is_float(t.dtype);
  switch (op) {
    case ir::ReduceOp::kSum: return constant(t, 0);
    case ir::ReduceOp::kProd: return constant(t, 1);
    case ir::ReduceOp::kMax: return is_f ? constant_f(t, -kInf) : constant(t, int_min(t.dtype));
    case ir::ReduceOp::kMin:
      return is_f ? constant_f(t, kInf)
                  : constant(t, t.dtype == DType::kU64 ? -1 : int_max(t.dtype));
  }
  __builtin_unreachable();
}

ValueId Builder::reduce_step(ir::ReduceOp op, ValueId accumulator, ValueId value) {
  const std::array args{accumulator, value};
  const DType t = type(accumulator).dtype;
  const bool is_extreme = op == ir::ReduceOp::kMax || op == ir::ReduceOp::kMin;
  if (is_extreme && target_.has_nan_min_max && type(accumulator) == Type{DType::kF32, 1})
    return raw(op == ir::ReduceOp::kMax ? Op::kMax : Op::kMin, t, {accumulator, value});
  switch (op) {
    case ir::ReduceOp::kSum: return alu(Op::kAdd, t, args);
    case ir::ReduceOp::kProd: return alu(Op::kMul, t, args);
    case ir::ReduceOp::kMax: return alu(Op::kMax, t, args);
    case ir::ReduceOp::kMin: return alu(Op::kMin, t, args);
  }
  __builtin_unreachable();
}

}  // namespace bm::compiler
