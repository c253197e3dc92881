// Functions that are approximated: built from exp2, log2, sin and sqrt. float32 results are good
// to a few units in the last place unless a comment says less; 16-bit floats go through float32.
#include <array>
#include <numbers>

#include "tensor/ops_internal.h"

namespace bm {

using enum ir::Op;
using ops::in_float;

namespace {

constexpr double kLn2 = std::numbers::ln2, kLog2e = std::numbers::log2e, kPi = std::numbers::pi;

/// e^x with a relative error of |x|·2^-24 in float32: for arguments whose large values do not
/// matter (softmax, sigmoid), where two operations beat ten.
Tensor quick_exp(const Tensor& x) { return alu(kExp2, x * kLog2e); }

/// e^x: the rounding error of y = x·log2(e) is recovered and applied as a factor 1 + error.
Tensor exp_of(const Tensor& x) {
  // ln 2 = high + low, high short enough for n·high to be exact.
  const bool is_f64 = x.dtype() == DType::kF64;
  const double high = is_f64 ? 0x1.62e42feep-1 : 0x1.63p-1;
  const double low = is_f64 ? 0x1.a39ef35793c76p-33 : -0x1.bd0105c610ca8p-13;
  const Tensor y = x * kLog2e, n = y.trunc();
  const Tensor error = (x - n * high) - n * low - (y - n) * kLn2;
  const Tensor rough = alu(kExp2, y);
  // Infinity times a negative error would be subtracted from infinity, and far below the error is
  // not finite.
  const Tensor is_corrected = (rough < HUGE_VAL) & (y > (is_f64 ? -1100.0 : -200.0));
  return select(is_corrected, rough + rough * error, rough);
}

Tensor log_of(const Tensor& x) { return alu(kLog2, x) * kLn2; }

/// Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1: the errors of u cancel. Beyond
/// 2^60 no dtype tells u - 1 from u, and v·x would be infinite before the result is.
Tensor expm1_of(const Tensor& x) {
  const Tensor u = exp_of(x), v = u - 1;
  const Tensor middle = v * x / log_of(u);
  return select(u == 1, x, select((v == -1) | (u > 0x1p60), v, middle));
}

Tensor log1p_of(const Tensor& x) {
  const Tensor u = x + 1;
  return select(u == 1, x, select(u == HUGE_VAL, u, log_of(u) * (x / (u - 1))));
}

/// Sine and cosine of an angle: x, or x/2 where 2·x would be infinite.
struct Turn {
  Tensor sine, cosine, is_halved;
};

/// The cosine is √(1 - sin²x) where that is large, else sin(2x) / (2·sin x): sines are right in all
/// their digits next to their zeros, and 2·x is exact, where x + π/2 would round.
Turn turn_of(const Tensor& x) {
  Turn t;
  t.is_halved = x.abs() > (x.dtype() == DType::kF64 ? 0x1p1022 : 0x1p126);
  const Tensor angle = select(t.is_halved, x * 0.5, x);
  t.sine = alu(kSin, angle);
  const Tensor twice = alu(kSin, angle * 2), square = t.sine * t.sine;
  const Tensor root = alu(kSqrt, 1 - square);
  const Tensor large = select(twice * t.sine < 0, -root, root);
  t.cosine = select(square < 0.5, large, twice / (t.sine * 2));
  return t;
}

Tensor cos_of(const Tensor& x) {
  if (x.dtype() == DType::kF32 && x.device().hal().arch().has_f64) {
    // By one sine in place of two. Float32 angles keep 2^-30 away from the zeros, and float64 has
    // digits enough for the difference there.
    const Tensor s = alu(kSin, x.cast(DType::kF64) * 0.5);
    return (1 - s * s * 2).cast(DType::kF32);
  }
  const Turn t = turn_of(x);
  return select(t.is_halved, t.cosine * t.cosine * 2 - 1, t.cosine);
}

Tensor tan_of(const Tensor& x) {
  const Turn t = turn_of(x);
  const Tensor double_sine = t.sine * t.cosine * 2, double_cosine = t.cosine * t.cosine * 2 - 1;
  return select(t.is_halved, double_sine, t.sine) / select(t.is_halved, double_cosine, t.cosine);
}

/// Argument to [0, 1] by 1/x, halved twice by tan(θ/2) = t / (1 + √(1 + t²)), then the power
/// series.
Tensor atan_of(const Tensor& x) {
  const Tensor ax = x.abs(), is_big = ax > 1;
  const Tensor start = select(is_big, alu(kRecip, ax), ax);
  Tensor t = start;
  for (int i = 0; i < 2; ++i) t = t / (alu(kSqrt, t * t + 1) + 1);
  // t <= tan(π/16) = 0.199: the first term left out is below half a unit in the last place.
  const int terms = x.dtype() == DType::kF64 ? 11 : 5;
  const Tensor z = t * t;
  Tensor series = scalar_like(z, (terms % 2 ? -1.0 : 1.0) / (2 * terms + 1));
  for (int k = terms - 1; k >= 0; --k) series = series * z + (k % 2 ? -1.0 : 1.0) / (2 * k + 1);
  const Tensor angle = series * t * 4;
  const Tensor result = select(is_big, kPi / 2 - angle, angle);
  return select(x < 0, -result, select(x == 0, x, result));
}

/// Taylor series on [-1, 1]; beyond that 1 - e^(-x²)·q(x), q from tests/oracle/erf_coefficients.py.
Tensor erf_of(const Tensor& x) {
  static constexpr std::array kShort = {
      0.25539567631050575,   -0.42718598976848671,  0.2416582015255602,     -0.078968306127934734,
      0.0037323717589395444, 0.0068111401310856348, -0.00083797543870231344};
  static constexpr std::array kLong = {
      0.25539567631050569,     -0.42718584741395849,    0.24165819424248763,
      -0.078978581015712687,   0.0037328924016564484,   0.0069974617392005748,
      -0.00084714312294153333, -0.00098197711147407149, 4.3552653598178827e-05,
      0.00017436477257256738,  2.7560352756678313e-05,  -2.7640727821912852e-05,
      -1.4166339069117108e-05, 1.8594273874294019e-06,  4.1463021832684878e-06,
      -2.2281295763723501e-07};
  const bool is_f64 = x.dtype() == DType::kF64;
  const std::span<const double> q =
      is_f64 ? std::span<const double>(kLong) : std::span<const double>(kShort);
  const int terms = is_f64 ? 19 : 11;
  const Tensor z = x * x;
  double factor = 2 / std::sqrt(kPi);
  std::array<double, 20> taylor{};
  for (int n = 0; n <= terms; ++n) {
    taylor[static_cast<size_t>(n)] = factor / (2 * n + 1);
    factor /= -(n + 1);
  }
  Tensor inner = scalar_like(z, taylor[static_cast<size_t>(terms)]);
  for (int n = terms - 1; n >= 0; --n) inner = inner * z + taylor[static_cast<size_t>(n)];
  const Tensor ax = alu(kMin, x.abs(), scalar_like(x, is_f64 ? 6 : 4));
  const Tensor s = (ax - 2) / (ax + 2);
  Tensor outer = scalar_like(s, q.back());
  for (size_t n = q.size() - 1; n-- > 0;) outer = outer * s + q[n];
  const Tensor tail = 1 - quick_exp(-(ax * ax)) * outer;
  return select(x.abs() < 1, inner * x, select(x < 0, -tail, tail));
}

Tensor sigmoid_of(const Tensor& x) {
  return alu(kRecip, quick_exp(-x) + 1);
}  // e^(-x) = inf gives 0
Tensor softplus_of(const Tensor& x) {
  return alu(kMax, x, scalar_like(x, 0)) + log1p_of(quick_exp(-x.abs()));
}
/// tanh from expm1(2|x|); beyond 20 it is 1 in every dtype.
Tensor tanh_of(const Tensor& x) {
  const Tensor e = expm1_of(alu(kMin, x.abs(), scalar_like(x, 20)) * 2);
  const Tensor t = e / (e + 2);
  return select(x < 0, -t, select(x == 0, x, t));
}

Tensor sinh_of(const Tensor& x) {
  const Tensor ax = x.abs(), e = expm1_of(ax), half = quick_exp(ax * 0.5);
  const Tensor small = (e + e / (e + 1)) * 0.5;
  const Tensor s = select(ax > 20, half * 0.5 * half, small);  // e would overflow before the result
  return select(x < 0, -s, select(x == 0, x, s));
}

Tensor cosh_of(const Tensor& x) {
  const Tensor half = exp_of(x.abs() * 0.5);
  return half * 0.5 * half + 0.5 / half / half;
}

Tensor asin_of(const Tensor& x) { return atan_of(x / (alu(kSqrt, (1 - x) * (x + 1)) + 1)) * 2; }
/// Half-angle form; x = -1 goes through infinity.
Tensor acos_of(const Tensor& x) { return atan_of(alu(kSqrt, (1 - x) / (x + 1))) * 2; }

/// base^n by squaring; wraps for integers. n >= 1.
Tensor power_by_squaring(const Tensor& base, int64_t n) {
  Tensor result, square = base;
  for (; n > 0; n >>= 1) {
    if (n & 1) result = result.is_valid() ? result * square : square;
    if (n > 1) square = square * square;
  }
  return result;
}

/// Integer power: every bit of the exponent. A negative exponent leaves only bases 1 and -1 whole.
Tensor pow_int(const Tensor& base, const Tensor& exponent) {
  const DType t = base.dtype();
  const int bits = static_cast<int>(item_size(t)) * 8 - (is_signed(t) ? 1 : 0);
  const Tensor one = scalar_like(base, 1), zero = scalar_like(base, 0);
  Tensor result = one, square = base;
  for (int i = 0; i < bits; ++i) {
    const Tensor bit =
        alu(kAnd, exponent, constant_int(static_cast<int64_t>(uint64_t{1} << i), t, base.device()));
    result = select(alu(kNe, bit, zero), result * square, result);
    if (i + 1 < bits) square = square * square;
  }
  if (!is_signed(t)) return result;
  const Tensor is_odd = alu(kEq, alu(kAnd, exponent, one), one);
  const Tensor of_minus_one = select(is_odd, scalar_like(base, -1), one);
  const Tensor inverse = select(base == 1, one, select(base == -1, of_minus_one, zero));
  return select(exponent < 0, inverse, result);
}

/// |base|^exponent through exp2 and log2, with the sign and the special cases of C's pow.
/// Relative error up to |exponent·log2(base)|·2^-24 in float32.
Tensor pow_float(const Tensor& base, const Tensor& exponent) {
  const Tensor magnitude_base = base.abs();
  Tensor magnitude = alu(kExp2, exponent * alu(kLog2, magnitude_base));
  magnitude = select((exponent == 0) | (magnitude_base == 1), scalar_like(base, 1), magnitude);
  const Tensor half = exponent * 0.5;
  const Tensor is_whole = exponent.trunc() == exponent;
  const Tensor is_odd = is_whole & (half.trunc() != half);
  const Tensor is_finite_negative = (base < 0) & (base > -HUGE_VAL);
  const Tensor signed_value = select(is_odd & (base < 0), -magnitude, magnitude);
  const Tensor nan = scalar_like(base, std::nan(""));
  const Tensor value = select(is_finite_negative & !is_whole, nan, signed_value);
  // 1^NaN and NaN^0 are 1; every other NaN operand stays.
  const Tensor is_one = (base == 1) | (exponent == 0);
  return select(is_one, scalar_like(base, 1), select(base.isnan() | exponent.isnan(), nan, value));
}

/// The exponent when it is a plain number known now.
std::optional<double> known_exponent(const Tensor& e) {
  const Node* n = e.node().get();
  while (n->kind == NodeKind::kExpand || n->kind == NodeKind::kReshape) n = n->src[0].get();
  if (n->kind != NodeKind::kConst) return std::nullopt;
  return is_float(n->dtype) ? n->scalar.f : static_cast<double>(n->scalar.i);
}

}  // namespace

Tensor Tensor::exp2() const {
  return in_float(*this, [](const Tensor& x) { return alu(kExp2, x); });
}
Tensor Tensor::exp() const { return in_float(*this, exp_of); }
Tensor Tensor::expm1() const { return in_float(*this, expm1_of); }
Tensor Tensor::log2() const {
  return in_float(*this, [](const Tensor& x) { return alu(kLog2, x); });
}
Tensor Tensor::log() const { return in_float(*this, log_of); }
Tensor Tensor::log1p() const { return in_float(*this, log1p_of); }
Tensor Tensor::log10() const {
  return in_float(*this,
                  [](const Tensor& x) { return alu(kLog2, x) * (kLn2 / std::numbers::ln10); });
}
Tensor Tensor::sin() const {
  return in_float(*this, [](const Tensor& x) { return alu(kSin, x); });
}
Tensor Tensor::cos() const { return in_float(*this, cos_of); }
Tensor Tensor::tan() const { return in_float(*this, tan_of); }
Tensor Tensor::asin() const { return in_float(*this, asin_of); }
Tensor Tensor::acos() const { return in_float(*this, acos_of); }
Tensor Tensor::atan() const { return in_float(*this, atan_of); }
Tensor Tensor::sinh() const { return in_float(*this, sinh_of); }
Tensor Tensor::cosh() const { return in_float(*this, cosh_of); }
Tensor Tensor::tanh() const { return in_float(*this, tanh_of); }
Tensor Tensor::sqrt() const {
  return in_float(*this, [](const Tensor& x) { return alu(kSqrt, x); });
}
Tensor Tensor::rsqrt() const {
  return in_float(*this, [](const Tensor& x) { return alu(kRecip, alu(kSqrt, x)); });
}
Tensor Tensor::reciprocal() const {
  return in_float(*this, [](const Tensor& x) { return alu(kRecip, x); });
}
Tensor Tensor::erf() const { return in_float(*this, erf_of); }

Tensor Tensor::sigmoid() const { return in_float(*this, sigmoid_of); }
Tensor Tensor::silu() const {
  return in_float(*this, [](const Tensor& x) { return x * sigmoid_of(x); });
}
Tensor Tensor::softplus() const { return in_float(*this, softplus_of); }
Tensor Tensor::mish() const {
  return in_float(*this, [](const Tensor& x) { return x * tanh_of(softplus_of(x)); });
}

Tensor Tensor::gelu(bool tanh_form) const {
  return in_float(*this, [&](const Tensor& x) {
    if (!tanh_form) return x * 0.5 * (erf_of(x * std::numbers::sqrt2 * 0.5) + 1);
    // (1 + tanh(u)) / 2 = sigmoid(2u).
    return x * sigmoid_of((x + x * x * x * 0.044715) * (2 * std::sqrt(2 / kPi)));
  });
}

Tensor Tensor::leaky_relu(double slope) const {
  return in_float(*this, [&](const Tensor& x) { return select(x < 0, x * slope, x); });
}
Tensor Tensor::elu(double alpha) const {
  return in_float(*this, [&](const Tensor& x) { return select(x < 0, expm1_of(x) * alpha, x); });
}
Tensor Tensor::hardsigmoid() const {
  return in_float(*this, [](const Tensor& x) { return (x / 6 + 0.5).clip(0, 1); });
}
Tensor Tensor::hardswish() const {
  return in_float(*this, [](const Tensor& x) { return x * (x + 3).clip(0, 6) / 6; });
}

Tensor Tensor::pow(const Tensor& exponent) const {
  Tensor base = *this, e = exponent;
  match(base, e, "pow");
  const DType t = base.dtype();
  if (is_bool(t))
    raise(Code::kInvalidArgument, "pow is not defined on bool: {} and {}", ops::describe(*this),
          ops::describe(exponent));
  const std::optional<double> known = known_exponent(exponent);
  const bool is_small_whole = known && *known == std::trunc(*known) && std::fabs(*known) <= 64;
  if (!is_float(t) && known && *known < 0)
    raise(Code::kInvalidArgument,
          "pow of {} with the exponent {}: integers to negative powers are no integers; cast the "
          "base to a floating dtype",
          ops::describe(*this), *known);
  if (!is_float(t))
    return is_small_whole && *known >= 1 ? power_by_squaring(base, static_cast<int64_t>(*known))
                                         : pow_int(base, e);
  const DType wide = ops::wide_float(t);
  base = base.cast(wide);
  e = e.cast(wide);
  if (known && *known == 0.5) return alu(kSqrt, base).cast(t);
  if (is_small_whole && *known >= 1)
    return power_by_squaring(base, static_cast<int64_t>(*known)).cast(t);
  if (is_small_whole && *known <= -1)
    return alu(kRecip, power_by_squaring(base, static_cast<int64_t>(-*known))).cast(t);
  return pow_float(base, e).cast(t);
}

}  // namespace bm
