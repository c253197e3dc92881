// float and half arithmetic. Products and sums are rounded once each; this file is compiled without
// contraction.

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

using F = float;

float fma32(float a, float b, float c) { return std::fma(a, b, c); }
/// 0 times anything is 0.
float mul_zero(float a, float b) { return a == 0 || b == 0 ? 0.0f : a * b; }
float fma_zero(float a, float b, float c) {
  return a == 0 || b == 0 ? 0.0f + c : std::fma(a, b, c);
}

/// x - floor(x), below 1.
template <class T>
T fraction(T x) {
  constexpr T kBelowOne = T{1} - std::numeric_limits<T>::epsilon() / 2;
  if (std::isnan(x)) return quiet(x);
  return std::isinf(x) ? std::numeric_limits<T>::quiet_NaN()
                       : std::min(x - std::floor(x), kBelowOne);
}
template <class T>
T mantissa(T x) {
  int e = 0;
  return std::isnan(x) || std::isinf(x) ? x : std::frexp(x, &e);
}
template <class T>
int32_t exponent(T x) {
  int e = 0;
  if (std::isnan(x) || std::isinf(x)) return 0;
  std::frexp(x, &e);
  return e;
}
float round_even(float x) { return std::nearbyint(x); }

// The transcendental ones in binary64, rounded once more: correctly rounded but for ties of double
// rounding, which the hardware's 1 ulp does not resolve either.
float through64(double x) { return static_cast<float>(x); }
float exp2_32(float x) { return through64(std::exp2(static_cast<double>(x))); }
float log2_32(float x) { return through64(std::log2(static_cast<double>(x))); }
float rcp32(float x) { return 1.0f / x; }
float rsq32(float x) { return through64(1.0 / std::sqrt(static_cast<double>(x))); }
/// The argument counts turns. Quarters of a turn are exact, as the guides promise: 0, 1, 0, -1.
template <bool Cosine>
float turn(float x) {
  if (std::isnan(x) || std::isinf(x)) return std::numeric_limits<float>::quiet_NaN();
  const double whole = static_cast<double>(x);
  const double turns = whole - std::nearbyint(whole);  // exact, at most half a turn
  if (const double quarters = turns * 4; quarters == std::nearbyint(quarters)) {
    const int at = (static_cast<int>(quarters) + (Cosine ? 1 : 0)) & 3;
    // The sine of 0 has the sign of its argument.
    return at == 1 ? 1.0f : at == 3 ? -1.0f : !Cosine && at == 0 ? std::copysign(0.0f, x) : 0.0f;
  }
  const double part = turns * 6.283185307179586476925;
  return through64(Cosine ? std::cos(part) : std::sin(part));
}

// Accumulating and literal forms have their third source filled in by bind_operands().
constexpr auto kFma32 = [](F a, F b, F c) { return fma32(a, b, c); };
constexpr auto kFma16 = [](Half a, Half b, Half c) { return fma_half(a.value, b.value, c.value); };

/// A half operation computed in binary32: +, -, *, /, sqrt and comparisons round the same.
template <auto G>
constexpr auto kHalf1 = [](Half a) { return Half{G(a.value)}; };
template <auto G>
constexpr auto kHalf2 = [](Half a, Half b) { return Half{G(a.value, b.value)}; };
template <auto G>
constexpr auto kHalf3 = [](Half a, Half b, Half c) { return Half{G(a.value, b.value, c.value)}; };

constexpr auto kMin3 = [](F a, F b, F c) { return min_num(min_num(a, b), c); };
constexpr auto kMax3 = [](F a, F b, F c) { return max_num(max_num(a, b), c); };
constexpr auto kMinimum3 = [](F a, F b, F c) { return minimum(minimum(a, b), c); };
constexpr auto kMaximum3 = [](F a, F b, F c) { return maximum(maximum(a, b), c); };
constexpr auto kMed3 = [](F a, F b, F c) { return median(a, b, c); };
constexpr auto kMaxMin = [](F a, F b, F c) { return min_num(max_num(a, b), c); };
constexpr auto kMinMax = [](F a, F b, F c) { return max_num(min_num(a, b), c); };
constexpr auto kMaximumMinimum = [](F a, F b, F c) { return minimum(maximum(a, b), c); };
constexpr auto kMinimumMaximum = [](F a, F b, F c) { return maximum(minimum(a, b), c); };
constexpr auto kMin2 = [](F a, F b) { return min_num(a, b); };
constexpr auto kMax2 = [](F a, F b) { return max_num(a, b); };
constexpr auto kMinimum2 = [](F a, F b) { return minimum(a, b); };
constexpr auto kMaximum2 = [](F a, F b) { return maximum(a, b); };
constexpr auto kAdd = [](F a, F b) { return a + b; };
constexpr auto kSub = [](F a, F b) { return a - b; };
constexpr auto kSubRev = [](F a, F b) { return b - a; };
constexpr auto kMul = [](F a, F b) { return a * b; };
constexpr auto kFloor = [](F a) { return std::floor(a); };
constexpr auto kCeil = [](F a) { return std::ceil(a); };
constexpr auto kTrunc = [](F a) { return std::trunc(a); };
constexpr auto kRndne = [](F a) { return round_even(a); };
constexpr auto kRcp = [](F a) { return rcp32(a); };
constexpr auto kSqrt = [](F a) { return std::sqrt(a); };
constexpr auto kRsq = [](F a) { return rsq32(a); };
constexpr auto kExp = [](F a) { return exp2_32(a); };
constexpr auto kLog = [](F a) { return log2_32(a); };
constexpr auto kSin = [](F a) { return turn<false>(a); };
constexpr auto kCos = [](F a) { return turn<true>(a); };
constexpr auto kMant = [](F a) { return mantissa(a); };
constexpr auto kLdexp32 = [](F a, int32_t b) { return std::ldexp(a, std::clamp(b, -400, 400)); };
constexpr auto kLdexp16 = [](Half a, int16_t b) {
  return Half{f16_to_f32(f64_to_f16(std::ldexp(static_cast<double>(a.value), b)))};
};
constexpr auto kFract16 = [](Half a) {
  const float x = a.value;
  if (std::isnan(x) || std::isinf(x)) return Half{std::numeric_limits<float>::quiet_NaN()};
  return Half{std::min(x - std::floor(x), 0x1.ffcp-1f)};
};

constexpr Semantics kVectorFloatOps[] = {
    {"v_add_f32", vop<kAdd>},
    {"v_sub_f32", vop<kSub>},
    {"v_subrev_f32", vop<kSubRev>},
    {"v_mul_f32", vop<kMul>},
    {"v_mul_dx9_zero_f32", vop<[](F a, F b) { return mul_zero(a, b); }>},
    {"v_fma_f32", vop<kFma32>},
    {"v_fma_dx9_zero_f32", vop<[](F a, F b, F c) { return fma_zero(a, b, c); }>},
    {"v_fmac_f32", vop<kFma32>},
    {"v_fmac_dx9_zero_f32", vop<[](F a, F b, F c) { return fma_zero(a, b, c); }>},
    {"v_fmamk_f32", vop<kFma32>},
    {"v_fmaak_f32", vop<kFma32>},
    {"v_min_f32", vop<kMin2>},
    {"v_max_f32", vop<kMax2>},
    {"v_minimum_f32", vop<kMinimum2>},
    {"v_maximum_f32", vop<kMaximum2>},
    {"v_min3_f32", vop<kMin3>},
    {"v_max3_f32", vop<kMax3>},
    {"v_med3_f32", vop<kMed3>},
    {"v_maxmin_f32", vop<kMaxMin>},
    {"v_minmax_f32", vop<kMinMax>},
    {"v_minimum3_f32", vop<kMinimum3>},
    {"v_maximum3_f32", vop<kMaximum3>},
    {"v_maximumminimum_f32", vop<kMaximumMinimum>},
    {"v_minimummaximum_f32", vop<kMinimumMaximum>},
    {"v_fract_f32", vop<[](F a) { return fraction(a); }>},
    {"v_trunc_f32", vop<kTrunc>},
    {"v_ceil_f32", vop<kCeil>},
    {"v_rndne_f32", vop<kRndne>},
    {"v_floor_f32", vop<kFloor>},
    {"v_exp_f32", vop<kExp>},
    {"v_log_f32", vop<kLog>},
    {"v_rcp_f32", vop<kRcp>},
    {"v_rcp_iflag_f32", vop<kRcp>},
    {"v_rsq_f32", vop<kRsq>},
    {"v_sqrt_f32", vop<kSqrt>},
    {"v_sin_f32", vop<kSin>},
    {"v_cos_f32", vop<kCos>},
    {"v_frexp_exp_i32_f32", vop<[](F a) { return exponent(a); }>},
    {"v_frexp_mant_f32", vop<kMant>},
    {"v_ldexp_f32", vop<kLdexp32>},
};

constexpr Semantics kHalfOps[] = {
    {"v_add_f16", vop<kHalf2<kAdd>>},
    {"v_sub_f16", vop<kHalf2<kSub>>},
    {"v_subrev_f16", vop<kHalf2<kSubRev>>},
    {"v_mul_f16", vop<kHalf2<kMul>>},
    {"v_fma_f16", vop<kFma16>},
    {"v_fmac_f16", vop<kFma16>},
    {"v_fmamk_f16", vop<kFma16>},
    {"v_fmaak_f16", vop<kFma16>},
    {"v_min_f16", vop<kHalf2<kMin2>>},
    {"v_max_f16", vop<kHalf2<kMax2>>},
    {"v_minimum_f16", vop<kHalf2<kMinimum2>>},
    {"v_maximum_f16", vop<kHalf2<kMaximum2>>},
    {"v_min3_f16", vop<kHalf3<kMin3>>},
    {"v_max3_f16", vop<kHalf3<kMax3>>},
    {"v_med3_f16", vop<kHalf3<kMed3>>},
    {"v_maxmin_f16", vop<kHalf3<kMaxMin>>},
    {"v_minmax_f16", vop<kHalf3<kMinMax>>},
    {"v_minimum3_f16", vop<kHalf3<kMinimum3>>},
    {"v_maximum3_f16", vop<kHalf3<kMaximum3>>},
    {"v_maximumminimum_f16", vop<kHalf3<kMaximumMinimum>>},
    {"v_minimummaximum_f16", vop<kHalf3<kMinimumMaximum>>},
    {"v_fract_f16", vop<kFract16>},
    {"v_trunc_f16", vop<kHalf1<kTrunc>>},
    {"v_ceil_f16", vop<kHalf1<kCeil>>},
    {"v_rndne_f16", vop<kHalf1<kRndne>>},
    {"v_floor_f16", vop<kHalf1<kFloor>>},
    {"v_exp_f16", vop<kHalf1<kExp>>},
    {"v_log_f16", vop<kHalf1<kLog>>},
    {"v_rcp_f16", vop<kHalf1<kRcp>>},
    {"v_rsq_f16", vop<kHalf1<kRsq>>},
    {"v_sqrt_f16", vop<kHalf1<kSqrt>>},
    {"v_sin_f16", vop<kHalf1<kSin>>},
    {"v_cos_f16", vop<kHalf1<kCos>>},
    {"v_frexp_exp_i16_f16", vop<[](Half a) { return static_cast<int16_t>(exponent(a.value)); }>},
    {"v_frexp_mant_f16", vop<kHalf1<kMant>>},
    {"v_ldexp_f16", vop<kLdexp16>},
};

// ---- scalar float: gfx11.5 and gfx12 ----
template <auto G, class T = float>
void scalar(Wave& w, const Step& in) {
  using S = SignatureOf<G>;
  using R = typename S::Result;
  using Args = typename S::Args;
  const auto arg = [&](auto* type, uint32_t i) {
    using A = std::remove_pointer_t<decltype(type)>;
    uint32_t bits = w.read32(in.src[i].code, in.literal, std::is_same_v<A, Half> ? 'h' : '1');
    if constexpr (kIsFloat<A>) {  // the VOP3 forms have modifiers
      if (in.abs >> i & 1) bits &= ~sign_bit<A>();
      if (in.neg >> i & 1) bits ^= sign_bit<A>();
    }
    return from_raw<A>(bits);
  };
  R result{};
  if constexpr (std::tuple_size_v<Args> == 1) {
    result = G(arg(static_cast<std::tuple_element_t<0, Args>*>(nullptr), 0));
  } else {
    result = G(arg(static_cast<std::tuple_element_t<0, Args>*>(nullptr), 0),
               arg(static_cast<std::tuple_element_t<1, Args>*>(nullptr), 1));
  }
  w.honored |= (modifier::kNeg | modifier::kAbs) * 7;
  if constexpr (kIsFloat<R>) {
    w.honored |= modifier::kClamp;
    if (in.clamp) result = clamped(result);
  }
  w.write32(in.dst.code, to_raw<R>(result));
}
/// d = a · b + c with c the destination, or a literal somewhere.
enum class Third : uint8_t { kDestination, kLiteralAddend, kLiteralFactor };
template <Third T>
void scalar_fma32(Wave& w, const Step& in) {
  const float a = std::bit_cast<float>(w.in32(in, 0)), b = std::bit_cast<float>(w.in32(in, 1));
  const float k = std::bit_cast<float>(in.literal);
  const float d = T == Third::kDestination
                      ? std::fma(a, b, std::bit_cast<float>(w.read32(in.dst.code, 0, '1')))
                  : T == Third::kLiteralAddend ? std::fma(a, b, k)
                                               : std::fma(a, k, b);
  w.write32(in.dst.code, std::bit_cast<uint32_t>(d));
}
void scalar_fmac16(Wave& w, const Step& in) {
  const auto half = [](uint32_t bits) { return f16_to_f32(static_cast<uint16_t>(bits)); };
  const Half d = fma_half(half(w.read32(in.src[0].code, in.literal, 'h')),
                          half(w.read32(in.src[1].code, in.literal, 'h')),
                          half(w.read32(in.dst.code, 0, 'h')));
  w.write32(in.dst.code, f32_to_f16(d.value));
}
template <class T, auto G>
void scalar_compare(Wave& w, const Step& in) {
  const char width = std::is_same_v<T, Half> ? 'h' : '1';
  const T a = from_raw<T>(w.read32(in.src[0].code, in.literal, width));
  const T b = from_raw<T>(w.read32(in.src[1].code, in.literal, width));
  if constexpr (std::is_same_v<T, Half>)
    w.scc = G(a.value, b.value);
  else
    w.scc = G(a, b);
}
uint32_t pack_rtz(float a, float b) {
  return uint32_t{f32_to_f16_rtz(b)} << 16 | f32_to_f16_rtz(a);
}

constexpr auto kIsLt = [](F a, F b) { return a < b; };
constexpr auto kIsEq = [](F a, F b) { return a == b; };
constexpr auto kIsLe = [](F a, F b) { return a <= b; };
constexpr auto kIsGt = [](F a, F b) { return a > b; };
constexpr auto kIsLg = [](F a, F b) { return a < b || a > b; };
constexpr auto kIsGe = [](F a, F b) { return a >= b; };
constexpr auto kIsO = [](F a, F b) { return !std::isnan(a) && !std::isnan(b); };
constexpr auto kIsU = [](F a, F b) { return std::isnan(a) || std::isnan(b); };
constexpr auto kIsNge = [](F a, F b) { return !(a >= b); };
constexpr auto kIsNlg = [](F a, F b) { return !(a < b || a > b); };
constexpr auto kIsNgt = [](F a, F b) { return !(a > b); };
constexpr auto kIsNle = [](F a, F b) { return !(a <= b); };
constexpr auto kIsNeq = [](F a, F b) { return !(a == b); };
constexpr auto kIsNlt = [](F a, F b) { return !(a < b); };

#define BM_SCMP(name, f) \
  {"s_cmp_" name "_f32", scalar_compare<F, f>}, { "s_cmp_" name "_f16", scalar_compare<Half, f> }

constexpr Semantics kScalarOps[] = {
    {"s_add_f32", scalar<kAdd>},
    {"s_sub_f32", scalar<kSub>},
    {"s_mul_f32", scalar<kMul>},
    {"s_min_f32", scalar<kMin2>},
    {"s_max_f32", scalar<kMax2>},
    {"s_minimum_f32", scalar<kMinimum2>},
    {"s_maximum_f32", scalar<kMaximum2>},
    {"s_fmac_f32", scalar_fma32<Third::kDestination>},
    {"s_fmaak_f32", scalar_fma32<Third::kLiteralAddend>},
    {"s_fmamk_f32", scalar_fma32<Third::kLiteralFactor>},
    {"s_cvt_pk_rtz_f16_f32", scalar<[](F a, F b) { return pack_rtz(a, b); }>},
    {"s_add_f16", scalar<kHalf2<kAdd>>},
    {"s_sub_f16", scalar<kHalf2<kSub>>},
    {"s_mul_f16", scalar<kHalf2<kMul>>},
    {"s_min_f16", scalar<kHalf2<kMin2>>},
    {"s_max_f16", scalar<kHalf2<kMax2>>},
    {"s_minimum_f16", scalar<kHalf2<kMinimum2>>},
    {"s_maximum_f16", scalar<kHalf2<kMaximum2>>},
    {"s_fmac_f16", scalar_fmac16},
    {"s_ceil_f32", scalar<kCeil>},
    {"s_floor_f32", scalar<kFloor>},
    {"s_trunc_f32", scalar<kTrunc>},
    {"s_rndne_f32", scalar<kRndne>},
    {"s_ceil_f16", scalar<kHalf1<kCeil>>},
    {"s_floor_f16", scalar<kHalf1<kFloor>>},
    {"s_trunc_f16", scalar<kHalf1<kTrunc>>},
    {"s_rndne_f16", scalar<kHalf1<kRndne>>},
    {"s_cvt_f32_i32", scalar<[](int32_t a) { return static_cast<F>(a); }>},
    {"s_cvt_f32_u32", scalar<[](uint32_t a) { return static_cast<F>(a); }>},
    {"s_cvt_i32_f32", scalar<[](F a) { return to_integer<int32_t>(a); }>},
    {"s_cvt_u32_f32", scalar<[](F a) { return to_integer<uint32_t>(a); }>},
    {"s_cvt_f16_f32", scalar<[](F a) { return Half{a}; }>},
    {"s_cvt_f32_f16", scalar<[](Half a) { return a.value; }>},
    {"s_cvt_hi_f32_f16",
     [](Wave& w, const Step& in) {
       const uint32_t a = w.in32(in, 0);
       w.write32(in.dst.code, std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(a >> 16))));
     }},
    BM_SCMP("lt", kIsLt),
    BM_SCMP("eq", kIsEq),
    BM_SCMP("le", kIsLe),
    BM_SCMP("gt", kIsGt),
    BM_SCMP("lg", kIsLg),
    BM_SCMP("ge", kIsGe),
    BM_SCMP("o", kIsO),
    BM_SCMP("u", kIsU),
    BM_SCMP("nge", kIsNge),
    BM_SCMP("nlg", kIsNlg),
    BM_SCMP("ngt", kIsNgt),
    BM_SCMP("nle", kIsNle),
    BM_SCMP("neq", kIsNeq),
    BM_SCMP("nlt", kIsNlt),
    {"v_s_exp_f32", scalar<kExp>},
    {"v_s_log_f32", scalar<kLog>},
    {"v_s_rcp_f32", scalar<kRcp>},
    {"v_s_rsq_f32", scalar<kRsq>},
    {"v_s_sqrt_f32", scalar<kSqrt>},
    {"v_s_exp_f16", scalar<kHalf1<kExp>>},
    {"v_s_log_f16", scalar<kHalf1<kLog>>},
    {"v_s_rcp_f16", scalar<kHalf1<kRcp>>},
    {"v_s_rsq_f16", scalar<kHalf1<kRsq>>},
    {"v_s_sqrt_f16", scalar<kHalf1<kSqrt>>},
};
#undef BM_SCMP

}  // namespace

std::span<const Semantics> vector_float_ops() { return kVectorFloatOps; }
std::span<const Semantics> vector_half_ops() { return kHalfOps; }
std::span<const Semantics> scalar_float_ops() { return kScalarOps; }

}  // namespace bm::sim::amd
