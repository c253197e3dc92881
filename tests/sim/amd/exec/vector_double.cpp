// double arithmetic, and the steps of exact division (v_div_scale, v_div_fmas, v_div_fixup).

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

using D = double;

template <class T>
int exponent_of(T x) {
  int e = 0;
  std::frexp(x, &e);
  return e - 1;
}
template <class T>
bool is_denormal(T x) {
  return x != 0 && std::fabs(x) < std::numeric_limits<T>::min();
}

/// The three parameters that differ between the formats of V_DIV_SCALE.
template <class T>
struct ScaleRule;
template <>
struct ScaleRule<float> {
  static constexpr int kScale = 64, kTooFar = 96, kSmall = 23 - 127;
};
template <>
struct ScaleRule<double> {
  static constexpr int kScale = 128, kTooFar = 768, kSmall = 53 - 1023;
};

/// V_DIV_SCALE: `a` is what to scale, numerator `c` or denominator `b`; `vcc` says that V_DIV_FMAS
/// must scale the quotient back. Source: RDNA3 ISA guide, V_DIV_SCALE_F32 and _F64. Two things are
/// as gfx1100 answered to the hardware tests of tinygrad (extra/assembly/amd/test/hw/test_vop3.py,
/// TestDivScale) and not in the guide: VCC is set where a zero makes a NaN, and a quotient counts
/// as denormal as soon as the exponents say that it may be.
template <class T>
T div_scale(T a, T b, T c, bool& vcc) {
  using R = ScaleRule<T>;
  vcc = false;
  if (b == 0 || c == 0) {
    vcc = true;
    return std::numeric_limits<T>::quiet_NaN();
  }
  if (std::isnan(b) || std::isnan(c) || std::isinf(b) || std::isinf(c)) return a;
  const int distance = exponent_of(c) - exponent_of(b);
  if (distance >= R::kTooFar) {  // the quotient is near overflow: scale the denominator up
    vcc = true;
    return a == b ? std::ldexp(a, R::kScale) : a;
  }
  if (is_denormal(b)) return std::ldexp(a, R::kScale);
  const bool reciprocal_denormal = is_denormal(T{1} / b);
  const bool quotient_denormal = distance <= std::numeric_limits<T>::min_exponent - 1;
  if (reciprocal_denormal && quotient_denormal) {
    // The guides write + here, which would make every such denominator infinite; only - gives the
    // quotients that division must have.
    vcc = true;
    return a == b ? std::ldexp(a, -R::kScale) : a;
  }
  if (reciprocal_denormal) return std::ldexp(a, -R::kScale);
  if (quotient_denormal) {
    vcc = true;
    return a == c ? std::ldexp(a, R::kScale) : a;
  }
  if (exponent_of(c) <= R::kSmall) return std::ldexp(a, R::kScale);
  return a;
}

template <class T>
void scale_op(Wave& w, const Step& in) {
  alignas(64) Raw<T> a[kMaxLanes], b[kMaxLanes], c[kMaxLanes];
  fetch<T>(w, in, 0, a);
  fetch<T>(w, in, 1, b);
  fetch<T>(w, in, 2, c);
  uint64_t mask = 0;
  for (uint32_t l = 0; l < w.lanes; ++l) {
    bool vcc = false;
    a[l] = to_raw<T>(div_scale(from_raw<T>(a[l]), from_raw<T>(b[l]), from_raw<T>(c[l]), vcc));
    mask |= uint64_t{vcc} << l;
  }
  store<T>(w, in, a);
  w.write_mask_to(in.sdst.code, mask & w.exec());
}

/// a · b + c, scaled back where VCC says so; which way, the exponent of c tells: up above that of 1
/// (RDNA3 ISA guide, V_DIV_FMAS_F32: "exponent(S2) > 127").
template <class T>
void fmas_op(Wave& w, const Step& in) {
  alignas(64) Raw<T> a[kMaxLanes], b[kMaxLanes], c[kMaxLanes];
  fetch<T>(w, in, 0, a);
  fetch<T>(w, in, 1, b);
  fetch<T>(w, in, 2, c);
  const uint64_t vcc = w.read_mask(kVccLo);
  constexpr int kScale = ScaleRule<T>::kScale;
  for (uint32_t l = 0; l < w.lanes; ++l) {
    T d = std::fma(from_raw<T>(a[l]), from_raw<T>(b[l]), from_raw<T>(c[l]));
    if (vcc >> l & 1) {
      const int scale = exponent_of(from_raw<T>(c[l])) > 0 ? kScale : -kScale;
      if constexpr (std::is_same_v<T, float>)  // rounded once, also where the result is denormal
        d = static_cast<float>(
            std::ldexp(std::fma(double{from_raw<T>(a[l])}, double{from_raw<T>(b[l])},
                                double{from_raw<T>(c[l])}),
                       scale));
      else
        d = std::ldexp(d, scale);
    }
    a[l] = to_raw<T>(d);
  }
  finish_float<T>(w, in, a);
  store<T>(w, in, a);
}

/// The quotient `a` of c / b with the special cases put right.
template <class T>
T fixup(T a, T b, T c) {
  const bool negative = std::signbit(b) != std::signbit(c);
  const auto with_sign = [&](T x) { return negative ? -x : x; };
  constexpr T kInf = std::numeric_limits<T>::infinity();
  if (std::isnan(c)) return quiet(c);
  if (std::isnan(b)) return quiet(b);
  if ((b == 0 && c == 0) || (std::isinf(b) && std::isinf(c)))
    return std::numeric_limits<T>::quiet_NaN();
  if (b == 0 || std::isinf(c)) return with_sign(kInf);
  if (std::isinf(b) || c == 0) return with_sign(T{0});
  constexpr int kLow = std::is_same_v<T, float> ? -150 : -1075;
  constexpr int kHigh = std::is_same_v<T, float> ? 255 : 2047;
  const int distance = exponent_of(c) - exponent_of(b);
  if (distance < kLow) return with_sign(T{0});
  if (distance > kHigh) return with_sign(kInf);
  const T magnitude = std::fabs(a);
  if (std::isnan(a)) return with_sign(kInf);
  return with_sign(magnitude);
}

/// x - floor(x), below 1.
double fraction(double x) {
  if (std::isnan(x)) return quiet(x);
  if (std::isinf(x)) return std::numeric_limits<double>::quiet_NaN();
  return std::min(x - std::floor(x), 0x1.fffffffffffffp-1);
}
double mantissa(double x) {
  int e = 0;
  return std::isnan(x) || std::isinf(x) ? x : std::frexp(x, &e);
}
int32_t exponent(double x) {
  return std::isnan(x) || std::isinf(x) || x == 0 ? 0 : exponent_of(x) + 1;
}

// 2/pi in binary, for V_TRIG_PREOP_F64.
constexpr uint32_t kTwoOverPi[] = {
    0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561,
    0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5, 0x2ebb4484,
    0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f,
    0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b,
    0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b6bab, 0xf0cfbc20};

/// Segment `index` (53 bits) of 2/pi for reducing `x`.
double trig_preop(double x, uint32_t index) {
  const uint32_t biased = static_cast<uint32_t>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff);
  uint32_t shift = (index & 31) * 53;
  if (biased > 1077) shift += biased - 1077;
  uint64_t word = 0;
  for (uint32_t i = 0; i < 53; ++i) {
    const uint32_t bit = shift + i;
    const uint32_t value =
        bit / 32 < std::size(kTwoOverPi) ? kTwoOverPi[bit / 32] >> (31 - bit % 32) & 1 : 0;
    word = word << 1 | value;
  }
  const int scale = -53 - static_cast<int>(shift) + (biased >= 1968 ? 128 : 0);
  return std::ldexp(static_cast<double>(word), scale);
}

void fixup_half(Wave& w, const Step& in) {
  vop<[](Half a, Half b, Half c) { return Half{fixup(a.value, b.value, c.value)}; }>(w, in);
}

constexpr Semantics kVectorDoubleOps[] = {
    {"v_add_f64", vop<[](D a, D b) { return a + b; }>},
    {"v_mul_f64", vop<[](D a, D b) { return a * b; }>},
    {"v_fma_f64", vop<[](D a, D b, D c) { return std::fma(a, b, c); }>},
    {"v_fmac_f64", vop<[](D a, D b, D c) { return std::fma(a, b, c); }>},
    {"v_min_f64", vop<[](D a, D b) { return min_num(a, b); }>},
    {"v_max_f64", vop<[](D a, D b) { return max_num(a, b); }>},
    {"v_minimum_f64", vop<[](D a, D b) { return minimum(a, b); }>},
    {"v_maximum_f64", vop<[](D a, D b) { return maximum(a, b); }>},
    {"v_trunc_f64", vop<[](D a) { return std::trunc(a); }>},
    {"v_ceil_f64", vop<[](D a) { return std::ceil(a); }>},
    {"v_rndne_f64", vop<[](D a) { return std::nearbyint(a); }>},
    {"v_floor_f64", vop<[](D a) { return std::floor(a); }>},
    {"v_fract_f64", vop<[](D a) { return fraction(a); }>},
    {"v_rcp_f64", vop<[](D a) { return 1.0 / a; }>},
    {"v_rsq_f64", vop<[](D a) { return 1.0 / std::sqrt(a); }>},
    {"v_sqrt_f64", vop<[](D a) { return std::sqrt(a); }>},
    {"v_ldexp_f64", vop<[](D a, int32_t b) { return std::ldexp(a, std::clamp(b, -4000, 4000)); }>},
    {"v_frexp_exp_i32_f64", vop<[](D a) { return exponent(a); }>},
    {"v_frexp_mant_f64", vop<[](D a) { return mantissa(a); }>},
    {"v_trig_preop_f64", vop<[](D a, uint32_t b) { return trig_preop(a, b); }>},
    {"v_div_scale_f32", scale_op<float>},
    {"v_div_scale_f64", scale_op<double>},
    {"v_div_fmas_f32", fmas_op<float>},
    {"v_div_fmas_f64", fmas_op<double>},
    {"v_div_fixup_f32", vop<[](float a, float b, float c) { return fixup(a, b, c); }>},
    {"v_div_fixup_f64", vop<[](D a, D b, D c) { return fixup(a, b, c); }>},
    {"v_div_fixup_f16", fixup_half},
};

}  // namespace

std::span<const Semantics> vector_double_ops() { return kVectorDoubleOps; }

}  // namespace bm::sim::amd
