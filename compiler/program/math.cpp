// exp2, log2 and sin as polynomials on vectors. Coefficients are series terms, computed here.
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "compiler/program/builder.h"

namespace bm::compiler {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct FloatLayout {
  DType bits;  // signed integer of the same size
  int fraction_bits;
  int64_t bias;
  double rint_magic;  // 1.5·2^fraction_bits: adding and subtracting rounds to an integer
};

FloatLayout layout_of(DType t) {
  if (t == DType::kF32) return {DType::kI32, 23, 127, 0x1.8p23};
  return {DType::kI64, 52, 1023, 0x1.8p52};
}

int64_t magic_bits(DType t) {
  return t == DType::kF32 ? int64_t{std::bit_cast<int32_t>(0x1.8p23F)}
                          : std::bit_cast<int64_t>(0x1.8p52);
}

// π/2 in three parts of 53 bits each.
constexpr double kHalfPi0 = 0x1.921fb54442d18p+0;
constexpr double kHalfPi1 = 0x1.1a62633145c07p-54;
constexpr double kHalfPi2 = -0x1.f1976b7ed8fbcp-110;

/// Exponents that leave nothing of a number, subnormals far behind.
constexpr double kFarBelow = -4000;

/// Σ (x·ln 2)^k / k!, |x| <= 1/2. `is_short`: of degree 6, where the terms of x^7 and x^8 are what
/// Chebyshev's polynomials of these degrees leave of them (y^7 and y^8 without the leading term, y
/// = 2x): 2e-9 away from 2^x.
std::array<double, 14> exp2_series(bool is_short) {
  std::array<double, 14> c{1.0};
  for (size_t k = 1; k < c.size(); ++k)
    c[k] = c[k - 1] * std::numbers::ln2 / static_cast<double>(k);
  if (!is_short) return c;
  const auto fold = [&](size_t degree, std::initializer_list<double> factors) {
    double power = 0.25;  // (1/2)^2, (1/2)^4, …
    size_t k = degree - 2;
    for (const double f : factors) {
      c[k] += c[degree] * power * f;
      power /= 4;
      k -= 2;
    }
  };
  fold(8, {2, -1.25, 0.25});
  fold(7, {1.75, -0.875, 0.109375});
  return c;
}

}  // namespace

ValueId Builder::exp2(ValueId x) {
  const DType t = type(x).dtype;
  const FloatLayout f = layout_of(t);
  const double limit = t == DType::kF32 ? 160 : 1100;
  // Beyond the limits the result is 0 or infinity; a NaN passes both selections. Results that just
  // vanish take the scaling instruction hundreds of cycles, those far below none.
  const bool scales = can_scale(type(x));
  const ValueId least = like(x, scales ? kFarBelow : -limit);
  const ValueId low = select(lt(x, least), least, x);
  const ValueId xc = select(lt(like(x, limit), low), like(x, limit), low);
  const ValueId shifted = add(xc, like(x, f.rint_magic));
  const ValueId whole = sub(shifted, like(x, f.rint_magic));
  const ValueId fraction = sub(xc, whole);
  const int degree = t == DType::kF32 ? 6 : 13;
  const std::array<double, 14> c = exp2_series(t == DType::kF32);
  ValueId p = like(x, c[static_cast<size_t>(degree)]);
  for (int k = degree - 1; k >= 0; --k) p = mad(p, fraction, c[static_cast<size_t>(k)]);
  if (scales) return scale(p, whole);
  const ValueId bits = bitcast(shifted, f.bits);
  const ValueId n = sub(bits, like_int(bits, magic_bits(t)));
  // Two factors, so that subnormal results and the step to infinity round once.
  const ValueId n0 = shr(n, 1), n1 = sub(n, n0);
  const auto power = [&](ValueId e) {
    return bitcast(shl(add(e, like_int(e, f.bias)), f.fraction_bits), t);
  };
  return mul(mul(p, power(n0)), power(n1));
}

/// The polynomial is 2^-64 times as large and the power of two 2^64 times, which then needs no two
/// factors: results that are subnormal are rounded by the one multiplication, as in exp2.
ValueId Builder::exp2_of_distance(ValueId x, double scale) {
  const FloatLayout f = layout_of(DType::kF32);
  const ValueId least = like(x, -160 / scale), factor = like(x, scale);
  const ValueId xc = select(lt(x, least), least, x);
  const ValueId shifted = fma(xc, factor, like(x, f.rint_magic));
  const ValueId whole = sub(shifted, like(x, f.rint_magic));
  const ValueId fraction = fma(xc, factor, neg(whole));
  const std::array<double, 14> c = exp2_series(true);
  ValueId p = like(x, c[6] * 0x1p-64);
  for (size_t k = 6; k-- > 0;) p = mad(p, fraction, c[k] * 0x1p-64);
  // The magic number's own bits leave at the top.
  const ValueId exponent = shl(bitcast(shifted, f.bits), f.fraction_bits);
  const ValueId start = like_int(exponent, (f.bias + 64) << f.fraction_bits);
  return mul(p, bitcast(add(exponent, start), DType::kF32));
}

ValueId Builder::log2(ValueId x) {
  const DType t = type(x).dtype;
  const FloatLayout f = layout_of(t);
  const bool is_f32 = t == DType::kF32;
  // Subnormals are scaled up first.
  const ValueId is_tiny = lt(x, like(x, is_f32 ? 0x1p-126 : 0x1p-1022));
  const ValueId bits =
      bitcast(select(is_tiny, mul(x, like(x, is_f32 ? 0x1p24 : 0x1p54)), x), f.bits);
  // x = m·2^e with m in [√½, √2).
  const int64_t root_half = is_f32 ? 0x3f3504f3 : 0x3fe6a09e667f3bcd;
  const ValueId e = shr(sub(bits, like_int(bits, root_half)), f.fraction_bits);
  const ValueId m = bitcast(sub(bits, shl(e, f.fraction_bits)), t);
  const ValueId bias = select(is_tiny, like(x, is_f32 ? -24 : -54), like(x, 0));
  const ValueId exponent = add(convert(e, t), bias);
  // ln(1+r) = r - r²/2 + s·(r²/2 + R) with s = r/(2+r) and R = Σ 2·s^2k/(2k+1).
  const ValueId r = sub(m, like(x, 1));
  const ValueId s = raw(Op::kDiv, t, {r, add(r, like(x, 2))});
  const ValueId z = mul(s, s);
  const int terms = is_f32 ? 5 : 11;
  ValueId series = like(x, 2.0 / (2 * terms + 1));
  for (int k = terms - 1; k >= 1; --k) series = mad(series, z, 2.0 / (2 * k + 1));
  series = mul(series, z);
  const ValueId half_square = mul(mul(r, like(x, 0.5)), r);
  const ValueId high = sub(r, half_square);
  const ValueId low = mad(s, add(half_square, series), sub(sub(r, high), half_square));
  // 1/ln 2 in two parts.
  const double c0 =
      is_f32 ? static_cast<double>(static_cast<float>(std::numbers::log2e)) : std::numbers::log2e;
  const double c1 = is_f32 ? std::numbers::log2e - c0 : 0x1.777d0ffda0d24p-56;
  const ValueId tail = mad(low, like(x, c0), mul(high, like(x, c1)));
  const ValueId finite = add(exponent, mad(high, like(x, c0), tail));
  const ValueId zero = like(x, 0);
  const ValueId positive = select(lt(x, like(x, kInf)), finite, x);  // +inf and NaN stay
  const ValueId with_zero = select(eq(x, zero), like(x, -kInf), positive);
  return select(lt(x, zero), like(x, kNan), with_zero);
}

ValueId Builder::sine(ValueId x) {
  if (type(x).dtype == DType::kF32 && !target_.has_f64) return sine_f32(x);
  if (type(x).dtype == DType::kF32)
    return convert(sine_f64(convert(x, DType::kF64), true), DType::kF32);
  return sine_f64(x, false);
}

/// `is_single`: x came from a float32 and the result goes back to one; shorter series suffice.
ValueId Builder::sine_f64(ValueId x, bool is_single) {
  const ValueId bits = bitcast(x, DType::kI64);
  const ValueId sign = bit_and(bits, like_int(bits, INT64_MIN));
  const ValueId ax = bitcast(bit_xor(bits, sign), DType::kF64);
  // Where this bound holds, n·π/2 is subtracted in three parts (two for float32); see large_sine.
  const double bound = 0x1p27;
  const ValueId is_large = bit_and(lt(like(x, bound), ax), lt(ax, like(x, kInf)));
  const ValueId safe = select(lt(like(x, bound), ax), like(x, 0), ax);
  const ValueId shifted = mad(safe, like(x, 2 / std::numbers::pi), like(x, 0x1.8p52));
  const ValueId n = sub(shifted, like(x, 0x1.8p52));
  const ValueId minus_n = neg(n);
  Reduced r{.high = kNone, .low = kNone, .quadrant = bitcast(shifted, DType::kI64)};
  const ValueId y = fma(minus_n, like(x, kHalfPi0), safe);  // exact
  if (is_single) {
    r.high = fma(minus_n, like(x, kHalfPi1), y);
  } else {
    const ValueId w = mul(n, like(x, kHalfPi1));
    const ValueId w_low = fma(n, like(x, kHalfPi1), neg(w));
    const ValueId d = sub(y, w);
    const ValueId back = sub(d, y);
    const ValueId error = sub(sub(y, sub(d, back)), add(w, back));
    const ValueId low = sub(sub(error, w_low), mul(n, like(x, kHalfPi2)));
    r.high = add(d, low);
    r.low = add(sub(d, r.high), low);
  }
  ValueId result = sine_from(r, is_single);
  const std::array large_args{ax};
  result = patch_lanes(result, is_large, large_sine_function(), large_args);
  result = bitcast(bit_xor(bitcast(result, DType::kI64), sign), DType::kF64);
  return select(lt(ax, like(x, kInf)), result, like(x, kNan));
}

/// sin(quadrant·π/2 + high + low), |high| <= π/4 and a little; low may be kNone. The quadrant is an
/// integer as wide as the floats.
ValueId Builder::sine_from(const Reduced& r, bool is_single) {
  const ValueId x = r.high;
  const ValueId z = mul(x, x);
  // Alternating Taylor terms: sin to x^(2·terms+1), cos to x^(2·terms).
  const int terms = is_single ? 5 : 8;
  const auto series = [&](int first_factor) {  // Σ over k >= first of (-1)^k z^k / (2k or 2k+1)!
    std::array<double, 10> c{};
    double factorial = 1, sign = 1;
    for (int k = 0; k <= terms; ++k) {
      if (k > 0) {
        factorial *= first_factor == 0 ? (2.0 * k - 1) * (2.0 * k) : (2.0 * k) * (2.0 * k + 1);
        sign = -sign;
      }
      c[static_cast<size_t>(k)] = sign / factorial;
    }
    return c;
  };
  const auto sin_c = series(1), cos_c = series(0);
  ValueId sin_tail = like(x, sin_c[static_cast<size_t>(terms)]);
  for (int k = terms - 1; k >= 1; --k) sin_tail = mad(sin_tail, z, sin_c[static_cast<size_t>(k)]);
  ValueId cos_tail = like(x, cos_c[static_cast<size_t>(terms)]);
  for (int k = terms - 1; k >= 2; --k) cos_tail = mad(cos_tail, z, cos_c[static_cast<size_t>(k)]);
  const ValueId half_z = mul(z, like(x, 0.5));
  ValueId sin_value = kNone, cos_value = kNone;
  if (r.low == kNone) {
    sin_value = mad(mul(x, z), sin_tail, x);
    cos_value = add(sub(like(x, 1), half_z), mul(mul(z, z), cos_tail));
  } else {
    const ValueId correction = mul(r.low, sub(like(x, 1), half_z));
    sin_value = add(x, mad(mul(x, z), sin_tail, correction));
    const ValueId w = sub(like(x, 1), half_z);
    const ValueId lost = sub(sub(like(x, 1), w), half_z);
    const ValueId rest = sub(mul(mul(z, z), cos_tail), mul(x, r.low));
    cos_value = add(w, add(lost, rest));
  }
  const FloatLayout f = layout_of(type(x).dtype);
  const ValueId q = r.quadrant;
  const ValueId is_odd = ne(bit_and(q, like_int(q, 1)), like_int(q, 0));
  const ValueId value = select(is_odd, cos_value, sin_value);
  const ValueId sign = shl(bit_and(q, like_int(q, 2)), item_size(f.bits) * 8 - 2);
  return bitcast(bit_xor(bitcast(value, f.bits), sign), type(x).dtype);
}

ValueId Builder::fmod(ValueId x, ValueId y) {
  const DType t = type(x).dtype;
  const DType u = t == DType::kF32 ? DType::kU32 : DType::kU64;
  const ValueId sign_mask =
      constant({u, type(x).lanes}, t == DType::kF32 ? int64_t{1} << 31 : INT64_MIN);
  const ValueId sign = bit_and(bitcast(x, u), sign_mask);
  const ValueId ax = bitcast(bit_xor(bitcast(x, u), sign), t);
  const ValueId ay = bitcast(bit_and(bitcast(y, u), raw(Op::kNot, u, {sign_mask})), t);
  const ValueId inf = like(x, kInf), zero = like(x, 0);
  const ValueId ratio = raw(Op::kDiv, t, {ax, ay});
  // Below this bound the rounded quotient is at most one too large, and the remainder is exact.
  const ValueId is_small = lt(ratio, like(x, t == DType::kF32 ? 0x1p22 : 0x1p50));
  const ValueId q = truncate(select(is_small, ratio, zero));
  const ValueId r = fma(neg(q), ay, ax);
  ValueId result = select(lt(r, zero), add(r, ay), r);
  const ValueId is_regular = bit_and(bit_and(lt(ax, inf), lt(zero, ay)), lt(ay, inf));
  const ValueId needs_loop = bit_and(raw(Op::kNot, DType::kBool, {is_small}), is_regular);
  const std::array args{ax, ay};
  const DType wide = target_.has_f64 ? DType::kF64 : DType::kF32;
  result = patch_lanes(result, needs_loop, fmod_function(wide), args);
  result = select(is_regular, result, select(bit_and(lt(ax, inf), eq(ay, inf)), ax, like(x, kNan)));
  return bitcast(bit_or(bitcast(result, u), sign), t);
}

}  // namespace bm::compiler
