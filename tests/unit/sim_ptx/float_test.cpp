// Floating-point instructions.
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
  near("ex2.approx.f32", [](double v) { return std::exp2(v); }, 0x1p-22);
  near("lg2.approx.f32", [](double v) { return std::log2(v); }, 0x1p-22);
  near("sin.approx.f32", [](double v) { return std::sin(v); }, 0x1p-20);
  near("cos.approx.f32", [](double v) { return std::cos(v); }, 0x1p-20);
  near("tanh.approx.f32", [](double v) { return std::tanh(v); }, 0x1p-11);
  near("rcp.approx.f32", [](double v) { return 1 / v; }, 0x1p-23);
  near(
      "rsqrt.approx.f32",
      [](double v) { return v == 0 ? std::copysign(HUGE_VAL, v) : 1 / std::sqrt(v); }, 0x1p-22);
  near("sqrt.approx.f32", [](double v) { return std::sqrt(v); }, 0x1p-22);
  near("rcp.rn.f32", [](double v) { return 1 / v; }, 0);
  near("sqrt.rn.f32", [](double v) { return std::sqrt(v); }, 0);
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

}  // namespace
}  // namespace bm::sim::ptx::test
