// Conversions between formats, and vectors of registers.
#include "tests/unit/sim_ptx/op_case.h"

namespace bm::sim::ptx::test {
namespace {

using U = uint64_t;
using enum OpCase::Compare;

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
