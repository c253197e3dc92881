// Floating-point instructions and conversions.
#include <cfenv>

#include "tests/unit/sim_ptx/op_case.h"

namespace bm::sim::ptx::test {
namespace {

using U = uint64_t;
using enum OpCase::Compare;

template <class F>
void f32_two(const std::string& op, F f) {
  check_op({op + " $d, $a, $b;",
            {32, 32, 32},
            [f](U a, U b, U) { return bits(f(f32(a), f32(b))); },
            kF32,
            nullptr,
            "sm_90",
            f32_patterns()});
}
template <class F>
void f64_two(const std::string& op, F f) {
  check_op({op + " $d, $a, $b;",
            {64, 64, 64},
            [f](U a, U b, U) { return bits(f(f64(a), f64(b))); },
            kF64,
            nullptr,
            "sm_90",
            f64_patterns()});
}
float flushed(float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; }
float saturated(float v) { return v > 0 ? std::min(v, 1.0f) : 0.0f; }

TEST(PtxFloat, ArithmeticIsExact) {
  f32_two("add.f32", [](float a, float b) { return a + b; });
  f32_two("sub.rn.f32", [](float a, float b) { return a - b; });
  f32_two("mul.f32", [](float a, float b) { return a * b; });
  f32_two("div.rn.f32", [](float a, float b) { return a / b; });
  f64_two("add.f64", [](double a, double b) { return a + b; });
  f64_two("sub.f64", [](double a, double b) { return a - b; });
  f64_two("mul.rn.f64", [](double a, double b) { return a * b; });
  f64_two("div.rn.f64", [](double a, double b) { return a / b; });
  check_op({"fma.rn.f32 $d, $a, $b, $c;",
            {32, 32, 32, 32},
            [](U a, U b, U c) { return bits(std::fma(f32(a), f32(b), f32(c))); },
            kF32,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"fma.rn.f64 $d, $a, $b, $c;",
            {64, 64, 64, 64},
            [](U a, U b, U c) { return bits(std::fma(f64(a), f64(b), f64(c))); },
            kF64,
            nullptr,
            "sm_90",
            f64_patterns()});
}

TEST(PtxFloat, FlushesAndSaturatesWhenAsked) {
  f32_two("add.ftz.f32", [](float a, float b) { return flushed(flushed(a) + flushed(b)); });
  f32_two("mul.ftz.sat.f32",
          [](float a, float b) { return saturated(flushed(flushed(a) * flushed(b))); });
  f32_two("sub.sat.f32", [](float a, float b) { return saturated(a - b); });
  f32_two("max.ftz.f32", [](float a, float b) {
    a = flushed(a), b = flushed(b);
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
  });
}

template <class T>
T in_mode(int mode, T a, T b, T (*f)(T, T)) {
  const int before = std::fegetround();
  std::fesetround(mode);
  volatile T va = a, vb = b;
  const T out = f(va, vb);
  std::fesetround(before);
  return out;
}
TEST(PtxFloat, RoundsInEveryDirection) {
  const std::pair<const char*, int> modes[] = {
      {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
  for (const auto& [name, mode] : modes) {
    const std::string n = name;
    const int m = mode;
    f32_two("add." + n + ".f32", [m](float a, float b) {
      return in_mode<float>(m, a, b, [](float x, float y) {
        volatile float r = x + y;
        return static_cast<float>(r);
      });
    });
    f64_two("mul." + n + ".f64", [m](double a, double b) {
      return in_mode<double>(m, a, b, [](double x, double y) {
        volatile double r = x * y;
        return static_cast<double>(r);
      });
    });
    f32_two("div." + n + ".f32", [m](float a, float b) {
      return in_mode<float>(m, a, b, [](float x, float y) {
        volatile float r = x / y;
        return static_cast<float>(r);
      });
    });
    check_op({"sqrt." + n + ".f32 $d, $a;",
              {32, 32},
              [m](U a, U, U) {
                return bits(in_mode<float>(m, f32(a), 0, [](float x, float) {
                  volatile float r = std::sqrt(x);
                  return static_cast<float>(r);
                }));
              },
              kF32,
              nullptr,
              "sm_90",
              f32_patterns()});
  }
}

TEST(PtxFloat, ExtremesPreferNumbersAndOrderZeros) {
  const auto low = [](auto a, auto b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
  };
  const auto high = [](auto a, auto b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
  };
  f32_two("min.f32", low);
  f32_two("max.f32", high);
  f64_two("min.f64", low);
  check_op({"max.f32 $d, $a, $b, $c;",
            {32, 32, 32, 32},
            [=](U a, U b, U c) { return bits(high(high(f32(a), f32(b)), f32(c))); },
            kF32,
            nullptr,
            "sm_100",
            f32_patterns()});
  f64_two("max.f64", high);
  f32_two("min.NaN.f32", [=](float a, float b) {
    return std::isnan(a + b) && (std::isnan(a) || std::isnan(b)) ? std::nanf("") : low(a, b);
  });
  f32_two("max.xorsign.abs.f32", [=](float a, float b) {
    const float m = high(std::fabs(a), std::fabs(b));
    return std::signbit(a) != std::signbit(b) ? -m : m;
  });
  check_op({"abs.f32 $d, $a;",
            {32, 32},
            [](U a, U, U) { return a & 0x7fffffff; },
            kF32,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"neg.f64 $d, $a;",
            {64, 64},
            [](U a, U, U) { return a ^ (U{1} << 63); },
            kF64,
            nullptr,
            "sm_90",
            f64_patterns()});
  check_op({"copysign.f32 $d, $a, $b;",
            {32, 32, 32},
            [](U a, U b, U) { return (b & 0x7fffffff) | (a & 0x80000000); },
            kBits,
            nullptr,
            "sm_90",
            f32_patterns()});
}

TEST(PtxFloat, ComparesWithAndWithoutOrder) {
  const auto compare = [](const std::string& cmp, auto f) {
    check_op({"setp." + cmp + ".f32 $d, $a, $b;",
              {1, 32, 32},
              [f](U a, U b, U) { return U{f(f32(a), f32(b))}; },
              kBits,
              nullptr,
              "sm_90",
              f32_patterns()});
    check_op({"setp." + cmp + ".f64 $d, $a, $b;",
              {1, 64, 64},
              [f](U a, U b, U) { return U{f(f64(a), f64(b))}; },
              kBits,
              nullptr,
              "sm_90",
              f64_patterns()});
    check_op({"setp." + cmp + ".f16 $d, $a, $b;",
              {1, 16, 16},
              [f](U a, U b, U) {
                return U{f(kHalf.value(as<uint32_t>(a)), kHalf.value(as<uint32_t>(b)))};
              },
              kBits,
              nullptr,
              "sm_90",
              f16_patterns()});
  };
  compare("eq", [](auto a, auto b) { return a == b; });
  compare("lt", [](auto a, auto b) { return a < b; });
  compare("ge", [](auto a, auto b) { return a >= b; });
  compare("ne", [](auto a, auto b) { return !std::isnan(a) && !std::isnan(b) && a != b; });
  compare("neu", [](auto a, auto b) { return a != b; });
  compare("equ", [](auto a, auto b) { return std::isnan(a) || std::isnan(b) || a == b; });
  compare("ltu", [](auto a, auto b) { return std::isnan(a) || std::isnan(b) || a < b; });
  compare("leu", [](auto a, auto b) { return std::isnan(a) || std::isnan(b) || a <= b; });
  compare("gtu", [](auto a, auto b) { return std::isnan(a) || std::isnan(b) || a > b; });
  compare("geu", [](auto a, auto b) { return std::isnan(a) || std::isnan(b) || a >= b; });
  compare("gt", [](auto a, auto b) { return a > b; });
  compare("le", [](auto a, auto b) { return a <= b; });
  compare("num", [](auto a, auto b) { return !std::isnan(a) && !std::isnan(b); });
  compare("nan", [](auto a, auto b) { return std::isnan(a) || std::isnan(b); });
}

TEST(PtxFloat, PropertiesAreTested) {
  const auto property = [](const std::string& name, auto f) {
    check_op({"testp." + name + ".f32 $d, $a;",
              {1, 32},
              [f](U a, U, U) { return U{f(f32(a))}; },
              kBits,
              nullptr,
              "sm_90",
              f32_patterns()});
  };
  property("finite", [](float v) { return v - v == 0; });
  property("infinite", [](float v) { return std::fabs(v) == HUGE_VALF; });
  property("number", [](float v) { return v == v; });
  property("notanumber", [](float v) { return v != v; });
  property("normal", [](float v) { return std::fabs(v) >= 0x1p-126f && std::fabs(v) < HUGE_VALF; });
  property("subnormal", [](float v) { return v != 0 && std::fabs(v) < 0x1p-126f; });
}

TEST(PtxFloat, ApproximateFunctionsAreWithinTheManualsBounds) {
  const auto near = [](const std::string& op, auto f, double tolerance) {
    check_op({op + " $d, $a;",
              {32, 32},
              [f](U a, U, U) { return bits(static_cast<float>(f(static_cast<double>(f32(a))))); },
              kF32Near,
              nullptr,
              "sm_90",
              f32_patterns(),
              tolerance});
  };
  near(
      "ex2.approx.f32", [](double v) { return std::exp2(v); }, 0x1p-22);
  near(
      "lg2.approx.f32", [](double v) { return std::log2(v); }, 0x1p-22);
  near(
      "sin.approx.f32", [](double v) { return std::sin(v); }, 0x1p-20);
  near(
      "cos.approx.f32", [](double v) { return std::cos(v); }, 0x1p-20);
  near(
      "tanh.approx.f32", [](double v) { return std::tanh(v); }, 0x1p-11);
  near(
      "rcp.approx.f32", [](double v) { return 1 / v; }, 0x1p-23);
  near(
      "rsqrt.approx.f32",
      [](double v) { return v == 0 ? std::copysign(HUGE_VAL, v) : 1 / std::sqrt(v); }, 0x1p-22);
  near(
      "sqrt.approx.f32", [](double v) { return std::sqrt(v); }, 0x1p-22);
  near(
      "rcp.rn.f32", [](double v) { return 1 / v; }, 0);
  near(
      "sqrt.rn.f32", [](double v) { return std::sqrt(v); }, 0);
  check_op({"ex2.approx.ftz.f32 $d, $a;",
            {32, 32},
            [](U a, U, U) {
              return bits(
                  flushed(static_cast<float>(std::exp2(static_cast<double>(flushed(f32(a)))))));
            },
            kF32Near,
            nullptr,
            "sm_90",
            f32_patterns(),
            0x1p-22});
  check_op({"sqrt.rn.f64 $d, $a;",
            {64, 64},
            [](U a, U, U) { return bits(std::sqrt(f64(a))); },
            kF64,
            nullptr,
            "sm_90",
            f64_patterns()});
  check_op({"rcp.rn.f64 $d, $a;",
            {64, 64},
            [](U a, U, U) { return bits(1 / f64(a)); },
            kF64,
            nullptr,
            "sm_90",
            f64_patterns()});
  check_op({"div.approx.f32 $d, $a, $b;",
            {32, 32, 32},
            [](U a, U b, U) { return bits(f32(a) / f32(b)); },
            kF32Near,
            nullptr,
            "sm_90",
            f32_patterns(),
            0x1p-22});
  check_op({"sin.approx.f64 $d, $a;",
            {64, 64},
            [](U a, U, U) { return bits(std::sin(f64(a))); },
            kF64Near,
            nullptr,
            "sm_90",
            f64_patterns(),
            1e-12});
  check_op({"ex2.approx.f16 $d, $a;",
            {16, 16},
            [](U a, U, U) { return U{kHalf.nearest(std::exp2(kHalf.value(as<uint32_t>(a))))}; },
            kF16,
            nullptr,
            "sm_90",
            f16_patterns()});
}

template <class F>
void half_two(const std::string& op, F f) {
  check_op({op + ".f16 $d, $a, $b;",
            {16, 16, 16},
            [f](U a, U b, U) {
              return U{
                  kHalf.nearest(f(kHalf.value(as<uint32_t>(a)), kHalf.value(as<uint32_t>(b))))};
            },
            kF16,
            nullptr,
            "sm_90",
            f16_patterns()});
  check_op({op + ".bf16 $d, $a, $b;",
            {16, 16, 16},
            [f](U a, U b, U) {
              return U{
                  kBrain.nearest(f(kBrain.value(as<uint32_t>(a)), kBrain.value(as<uint32_t>(b))))};
            },
            kBF16,
            nullptr,
            "sm_90",
            f16_patterns()});
  // Both halves of the packed forms, one after the other.
  for (const int part : {0, 1})
    check_op({"mov.b32 %r40, {$a, $b}; mov.b32 %r41, {$b, $a}; " + op +
                  ".f16x2 %r42, %r40, %r41; mov.b32 {%h20, %h21}, %r42; mov.b16 $d, %h2" +
                  std::to_string(part) + ";",
              {16, 16, 16},
              [f, part](U a, U b, U) {
                const double x = kHalf.value(as<uint32_t>(part ? b : a)),
                             y = kHalf.value(as<uint32_t>(part ? a : b));
                return U{kHalf.nearest(f(x, y))};
              },
              kF16,
              nullptr,
              "sm_90",
              f16_patterns()});
}
TEST(PtxHalf, ArithmeticRoundsOnce) {
  half_two("add", [](double a, double b) { return a + b; });
  half_two("sub", [](double a, double b) { return a - b; });
  half_two("mul", [](double a, double b) { return a * b; });
  half_two("min", [](double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
  });
  check_op({"fma.rn.f16 $d, $a, $b, $c;",
            {16, 16, 16, 16},
            [](U a, U b, U c) {
              return U{kHalf.nearest(static_cast<long double>(kHalf.value(as<uint32_t>(a))) *
                                         kHalf.value(as<uint32_t>(b)) +
                                     kHalf.value(as<uint32_t>(c)))};
            },
            kF16,
            nullptr,
            "sm_90",
            f16_patterns()});
  check_op({"fma.rn.bf16 $d, $a, $b, $c;",
            {16, 16, 16, 16},
            [](U a, U b, U c) {
              // Exact when the summands lie within 64 bits of each other; others are skipped.
              return U{kBrain.nearest(static_cast<long double>(kBrain.value(as<uint32_t>(a))) *
                                          kBrain.value(as<uint32_t>(b)) +
                                      kBrain.value(as<uint32_t>(c)))};
            },
            kBF16,
            [](U a, U b, U c) {
              const double p = std::fabs(kBrain.value(as<uint32_t>(a)) *
                                         kBrain.value(as<uint32_t>(b))),
                           s = std::fabs(kBrain.value(as<uint32_t>(c)));
              return p > 0 && s > 0 && std::isfinite(p) && std::isfinite(s) &&
                     std::fabs(std::log2(p) - std::log2(s)) > 40;
            },
            "sm_90",
            f16_patterns()});
  check_op({"neg.f16 $d, $a;",
            {16, 16},
            [](U a, U, U) { return a ^ 0x8000; },
            kF16,
            nullptr,
            "sm_90",
            f16_patterns()});
  check_op({"abs.bf16 $d, $a;",
            {16, 16},
            [](U a, U, U) { return a & 0x7fff; },
            kBF16,
            nullptr,
            "sm_90",
            f16_patterns()});
}

TEST(PtxConvert, IntegersTruncateExtendAndSaturate) {
  check_op({"cvt.s64.s32 $d, $a;", {64, 32}, [](U a, U, U) {
              return static_cast<U>(int64_t{as<int32_t>(a)});
            }});
  check_op({"cvt.u64.u32 $d, $a;", {64, 32}, [](U a, U, U) { return a; }});
  check_op({"cvt.u32.u64 $d, $a;", {32, 64}, [](U a, U, U) { return a; }});
  check_op({"cvt.u16.u32 $d, $a;", {16, 32}, [](U a, U, U) { return a; }});
  check_op({"cvt.s32.s8 $d, $a;", {32, 32}, [](U a, U, U) {
              return static_cast<U>(int64_t{as<int8_t>(a)});
            }});
  check_op({"cvt.s16.s8 $d, $a;", {16, 16}, [](U a, U, U) {
              return static_cast<U>(int64_t{as<int8_t>(a)});
            }});
  check_op({"cvt.s8.s32 $d, $a;", {32, 32}, [](U a, U, U) {
              return static_cast<U>(int64_t{as<int8_t>(a)});
            }});
  check_op({"cvt.u8.s32 $d, $a;", {32, 32}, [](U a, U, U) { return a & 0xff; }});
  check_op({"cvt.sat.s8.s32 $d, $a;", {32, 32}, [](U a, U, U) {
              return static_cast<U>(int64_t{std::min(std::max(as<int32_t>(a), -128), 127)});
            }});
  check_op({"cvt.sat.u16.s64 $d, $a;", {16, 64}, [](U a, U, U) {
              return static_cast<U>(std::min<int64_t>(std::max<int64_t>(as<int64_t>(a), 0), 65535));
            }});
  check_op({"cvt.sat.u32.s32 $d, $a;", {32, 32}, [](U a, U, U) {
              return as<int32_t>(a) < 0 ? U{0} : a;
            }});
}

/// Clamped; NaN by the manual's rule.
template <class T>
U to_integer(double v, bool is_f64, double (*round)(double)) {
  if (std::isnan(v)) return is_f64 || sizeof(T) == 8 ? U{1} << (8 * sizeof(T) - 1) : 0;
  v = round(v);
  if (v <= static_cast<double>(std::numeric_limits<T>::min()))
    return static_cast<U>(std::numeric_limits<T>::min());
  if (v >= static_cast<double>(std::numeric_limits<T>::max()))
    return static_cast<U>(std::numeric_limits<T>::max());
  return static_cast<U>(static_cast<T>(v));
}
double even(double v) { return std::nearbyint(v); }
double zero(double v) { return std::trunc(v); }
double down(double v) { return std::floor(v); }
double up(double v) { return std::ceil(v); }
TEST(PtxConvert, FloatsBecomeIntegersClamped) {
  const std::pair<const char*, double (*)(double)> modes[] = {
      {"rni", even}, {"rzi", zero}, {"rmi", down}, {"rpi", up}};
  for (const auto& [mode_name, round_pointer] : modes) {
    const std::string name = mode_name;
    double (*round)(double) = round_pointer;
    const auto from_f32 = [&](const std::string& type, int width, auto zero_value) {
      using T = decltype(zero_value);
      check_op(
          {"cvt." + name + "." + type + ".f32 $d, $a;",
           {width, 32},
           [round](U a, U, U) { return to_integer<T>(static_cast<double>(f32(a)), false, round); },
           kBits,
           nullptr,
           "sm_90",
           f32_patterns()});
      check_op({"cvt." + name + "." + type + ".f64 $d, $a;",
                {width, 64},
                [round](U a, U, U) { return to_integer<T>(f64(a), true, round); },
                kBits,
                nullptr,
                "sm_90",
                f64_patterns()});
    };
    from_f32("s32", 32, int32_t{});
    from_f32("u32", 32, uint32_t{});
    from_f32("s64", 64, int64_t{});
    from_f32("u64", 64, uint64_t{});
    from_f32("u16", 16, uint16_t{});
    from_f32("s16", 16, int16_t{});
    check_op({"cvt." + name + ".f32.f32 $d, $a;",
              {32, 32},
              [round](U a, U, U) {
                return bits(
                    std::copysign(static_cast<float>(round(static_cast<double>(f32(a)))), f32(a)));
              },
              kF32,
              nullptr,
              "sm_90",
              f32_patterns()});
  }
  check_op({"cvt.rzi.s8.f32 $d, $a;",
            {32, 32},
            [](U a, U, U) {
              return static_cast<U>(int64_t{
                  as<int8_t>(to_integer<int8_t>(static_cast<double>(f32(a)), false, zero))});
            },
            kBits,
            nullptr,
            "sm_90",
            f32_patterns()});
}

TEST(PtxConvert, IntegersBecomeFloats) {
  check_op({"cvt.rn.f32.s32 $d, $a;", {32, 32}, [](U a, U, U) {
              return bits(static_cast<float>(as<int32_t>(a)));
            }});
  check_op(
      {"cvt.rn.f32.u64 $d, $a;", {32, 64}, [](U a, U, U) { return bits(static_cast<float>(a)); }});
  check_op({"cvt.rn.f64.s64 $d, $a;", {64, 64}, [](U a, U, U) {
              return bits(static_cast<double>(as<int64_t>(a)));
            }});
  check_op({"cvt.rn.f32.s8 $d, $a;", {32, 32}, [](U a, U, U) {
              return bits(static_cast<float>(as<int8_t>(a)));
            }});
  check_op({"cvt.rn.f16.s32 $d, $a;",
            {16, 32},
            [](U a, U, U) { return U{kHalf.nearest(as<int32_t>(a))}; },
            kF16});
  check_op({"cvt.rn.bf16.u32 $d, $a;",
            {16, 32},
            [](U a, U, U) { return U{kBrain.nearest(static_cast<double>(a))}; },
            kBF16});
  check_op({"cvt.rz.f32.u32 $d, $a;", {32, 32}, [](U a, U, U) {
              float f = static_cast<float>(a);
              if (static_cast<double>(f) > static_cast<double>(a)) f = std::nextafter(f, 0.0f);
              return bits(f);
            }});
}

TEST(PtxConvert, FloatsChangeTheirFormat) {
  check_op({"cvt.f64.f32 $d, $a;",
            {64, 32},
            [](U a, U, U) { return bits(static_cast<double>(f32(a))); },
            kF64,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"cvt.rn.f32.f64 $d, $a;",
            {32, 64},
            [](U a, U, U) { return bits(static_cast<float>(f64(a))); },
            kF32,
            nullptr,
            "sm_90",
            f64_patterns()});
  check_op({"cvt.rn.f16.f32 $d, $a;",
            {16, 32},
            [](U a, U, U) { return U{kHalf.nearest(f32(a))}; },
            kF16,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"cvt.rn.f16.f64 $d, $a;",
            {16, 64},
            [](U a, U, U) { return U{kHalf.nearest(f64(a))}; },
            kF16,
            nullptr,
            "sm_90",
            f64_patterns()});
  check_op({"cvt.rn.bf16.f32 $d, $a;",
            {16, 32},
            [](U a, U, U) { return U{kBrain.nearest(f32(a))}; },
            kBF16,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"cvt.f32.f16 $d, $a;",
            {32, 16},
            [](U a, U, U) { return bits(static_cast<float>(kHalf.value(as<uint32_t>(a)))); },
            kF32,
            nullptr,
            "sm_90",
            f16_patterns()});
  check_op({"cvt.f32.bf16 $d, $a;",
            {32, 16},
            [](U a, U, U) { return bits(static_cast<float>(kBrain.value(as<uint32_t>(a)))); },
            kF32,
            nullptr,
            "sm_90",
            f16_patterns()});
  check_op({"cvt.rz.f32.f64 $d, $a;",
            {32, 64},
            [](U a, U, U) {
              float f = static_cast<float>(f64(a));
              if (std::fabs(static_cast<double>(f)) > std::fabs(f64(a)))
                f = std::nextafter(f, 0.0f);
              return bits(f);
            },
            kF32,
            nullptr,
            "sm_90",
            f64_patterns()});
  check_op({"cvt.rna.tf32.f32 $d, $a;",
            {32, 32},
            [](U a, U, U) {
              // Ties away from zero at bit 13; the exponent takes a carry.
              return std::isnan(f32(a)) || std::isinf(f32(a)) ? a : ((a + 0x1000) & ~U{0x1fff});
            },
            kF32,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"cvt.sat.f32.f32 $d, $a;",
            {32, 32},
            [](U a, U, U) { return bits(saturated(f32(a))); },
            kF32,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"cvt.rn.relu.f16.f32 $d, $a;",
            {16, 32},
            [](U a, U, U) {
              return std::isnan(f32(a)) ? 0x7fff : U{kHalf.nearest(f32(a) > 0 ? f32(a) : 0)};
            },
            kF16,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"cvt.rn.f16x2.f32 $d, $a, $b;",
            {32, 32, 32},
            [](U a, U b, U) { return (U{kHalf.nearest(f32(a))} << 16) | kHalf.nearest(f32(b)); },
            kBits,
            [](U a, U b, U) { return std::isnan(f32(a)) || std::isnan(f32(b)); },
            "sm_90",
            f32_patterns()});
  check_op({"cvt.rn.bf16x2.f32 $d, $a, $b;",
            {32, 32, 32},
            [](U a, U b, U) { return (U{kBrain.nearest(f32(a))} << 16) | kBrain.nearest(f32(b)); },
            kBits,
            [](U a, U b, U) { return std::isnan(f32(a)) || std::isnan(f32(b)); },
            "sm_90",
            f32_patterns()});
}

/// fp8 values straight from the OCP table's definition.
double e4m3(uint32_t v) {
  const double sign = v & 0x80 ? -1 : 1;
  const uint32_t e = (v >> 3) & 15, m = v & 7;
  if ((v & 0x7f) == 0x7f) return std::nan("");
  return sign * (e ? std::ldexp(8 + m, static_cast<int>(e) - 10) : std::ldexp(m, -9));
}
double e5m2(uint32_t v) { return Small{2, 5}.value(v); }
/// Nearest finite value, ties to the even code.
U nearest8(double v, double (*value)(uint32_t), uint32_t largest) {
  if (std::isnan(v)) return 0x7f;
  uint32_t best = 0;
  for (uint32_t c = 0; c <= largest; ++c) {
    const double d = std::fabs(std::fabs(v) - value(c)), b = std::fabs(std::fabs(v) - value(best));
    if (d < b || (d == b && !(c & 1))) best = c;
  }
  if (std::fabs(v) > value(largest)) best = largest;
  return best | (std::signbit(v) ? 0x80u : 0u);
}
TEST(PtxConvert, EightBitFloatsSaturate) {
  check_op({"cvt.rn.satfinite.e4m3x2.f32 $d, $a, $b;",
            {16, 32, 32},
            [](U a, U b, U) {
              return (nearest8(f32(a), e4m3, 0x7e) << 8) | nearest8(f32(b), e4m3, 0x7e);
            },
            kBits,
            nullptr,
            "sm_90",
            f32_patterns()});
  check_op({"cvt.rn.satfinite.e5m2x2.f32 $d, $a, $b;",
            {16, 32, 32},
            [](U a, U b, U) {
              return (nearest8(f32(a), e5m2, 0x7b) << 8) | nearest8(f32(b), e5m2, 0x7b);
            },
            kBits,
            nullptr,
            "sm_90",
            f32_patterns()});
  for (const bool is_e4 : {true, false})
    check_op({std::string("cvt.rn.f16x2.") + (is_e4 ? "e4m3x2" : "e5m2x2") + " $d, $a;",
              {32, 16},
              [is_e4](U a, U, U) {
                const auto one = [&](U v) {
                  return U{kHalf.nearest(is_e4 ? e4m3(as<uint32_t>(v)) : e5m2(as<uint32_t>(v)))};
                };
                return (one(a >> 8) << 16) | one(a & 0xff);
              },
              kBits,
              [is_e4](U a, U, U) {
                const auto nan = [&](U v) {
                  return std::isnan(is_e4 ? e4m3(as<uint32_t>(v)) : e5m2(as<uint32_t>(v)));
                };
                return nan(a >> 8) || nan(a & 0xff);
              },
              "sm_90",
              f16_patterns()});
}

TEST(PtxMove, VectorsPackAndUnpack) {
  check_op({"mov.b32 $d, {$a, $b};", {32, 16, 16}, [](U a, U b, U) { return a | (b << 16); }});
  check_op({"mov.b64 $d, {$a, $b};", {64, 32, 32}, [](U a, U b, U) { return a | (b << 32); }});
  check_op({"mov.b64 {%r40, $d}, $a;", {32, 64}, [](U a, U, U) { return a >> 32; }});
  check_op({"mov.b64 {%h20, %h21, %h22, $d}, $a;", {16, 64}, [](U a, U, U) { return a >> 48; }});
  check_op({"mov.b64 {_, $d}, $a;", {32, 64}, [](U a, U, U) { return a >> 32; }});
  check_op({"mov.f32 $d, 0f40490FDB;", {32, 32}, [](U, U, U) { return U{0x40490fdb}; }});
  check_op(
      {"mov.f64 $d, 0d400921FB54442D18;", {64, 64}, [](U, U, U) { return U{0x400921fb54442d18}; }});
  check_op({"mov.f32 $d, 1.5;", {32, 32}, [](U, U, U) { return bits(1.5f); }});
  check_op({"mov.u32 $d, -5;", {32, 32}, [](U, U, U) { return U{0xfffffffb}; }});
}

}  // namespace
}  // namespace bm::sim::ptx::test
