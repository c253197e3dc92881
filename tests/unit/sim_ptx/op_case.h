#pragma once
// One instruction against an expectation written here: every pattern combination, all threads of a
// block at once, then again under a predicate that leaves every third thread out.

#include <bit>
#include <cmath>
#include <functional>

#include "tests/unit/sim_ptx/machine.h"

namespace bm::sim::ptx::test {

inline float f32(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
inline double f64(uint64_t bits) { return std::bit_cast<double>(bits); }
inline uint64_t bits(float v) { return std::bit_cast<uint32_t>(v); }
inline uint64_t bits(double v) { return std::bit_cast<uint64_t>(v); }
template <class T>
T as(uint64_t v) {
  return static_cast<T>(v);
}

/// 16-bit formats by their definition, without the interpreter's conversions.
struct Small {
  int mantissa, exponent_bits;
  double value(uint32_t v) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint32_t fraction = v & ((1u << mantissa) - 1);
    const int exponent = static_cast<int>((v >> mantissa) & ((1u << exponent_bits) - 1));
    const double sign = (v >> (mantissa + exponent_bits)) & 1 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return fraction ? std::nan("") : sign * HUGE_VAL;
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
    return sign * std::ldexp(fraction + (1u << mantissa), exponent - bias - mantissa);
  }
  /// Nearest by bisection over the positive values, ties to even.
  uint32_t nearest(long double v) const {
    const uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa;
    const uint32_t sign = std::signbit(v) ? 1u << (mantissa + exponent_bits) : 0;
    if (std::isnan(v)) return infinity | 1;
    const long double m = std::fabs(v);
    uint32_t low = 0, high = infinity;
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (value(middle) <= m ? low : high) = middle;
    }
    if (m >= value(low) && value(low) == m) return sign | low;
    // The value after the largest finite one stands for infinity when rounding.
    const long double above = high == infinity
                                  ? 2 * static_cast<long double>(value(low)) - value(low - 1)
                                  : static_cast<long double>(value(high));
    const long double down = m - value(low), up = above - m;
    if (std::isinf(m)) return sign | infinity;
    if (down != up) return sign | (down < up ? low : high);
    return sign | (low & 1 ? high : low);
  }
};
inline constexpr Small kHalf{10, 5}, kBrain{7, 8};

struct OpCase {
  std::string text;         ///< "$d" result, "$a", "$b", "$c" sources, "$p" predicate
  std::vector<int> widths;  ///< bits of result and sources; 1: predicate result
  std::function<uint64_t(uint64_t, uint64_t, uint64_t)> expected;
  enum class Compare : uint8_t {
    kBits,
    kF16,
    kBF16,
    kF32,
    kF64,
    kF32Near,
    kF64Near
  } compare = Compare::kBits;
  std::function<bool(uint64_t, uint64_t, uint64_t)> skip = nullptr;
  std::string target = "sm_90";
  std::vector<uint64_t> patterns = {};
  double tolerance = 0;
};

inline bool same(const OpCase& c, uint64_t got, uint64_t want) {
  const auto near = [&](double g, double w) {
    if (std::isnan(g) || std::isnan(w)) return std::isnan(g) && std::isnan(w);
    if (g == w) return true;
    return std::fabs(g - w) <= c.tolerance * std::max(std::fabs(w), 1e-30);
  };
  switch (c.compare) {
    case OpCase::Compare::kBits: return got == want;
    case OpCase::Compare::kF16:
      return got == want || (std::isnan(kHalf.value(as<uint32_t>(got))) &&
                             std::isnan(kHalf.value(as<uint32_t>(want))));
    case OpCase::Compare::kBF16:
      return got == want || (std::isnan(kBrain.value(as<uint32_t>(got))) &&
                             std::isnan(kBrain.value(as<uint32_t>(want))));
    case OpCase::Compare::kF32:
      return got == want || (std::isnan(f32(got)) && std::isnan(f32(want)));
    case OpCase::Compare::kF64:
      return got == want || (std::isnan(f64(got)) && std::isnan(f64(want)));
    case OpCase::Compare::kF32Near: return near(f32(got), f32(want));
    case OpCase::Compare::kF64Near: return near(f64(got), f64(want));
  }
  return false;
}

inline std::string register_of(int width, int index) {
  const std::string n = std::to_string(index);
  if (width == 1) return "%p" + n;
  if (width <= 16) return "%h" + n;
  return (width == 32 ? "%r" : "%rd") + std::to_string(index + 20);
}

/// What .sat makes of a result; NaN becomes 0.
inline float saturated(float v) { return v > 0 ? std::min(v, 1.0f) : 0.0f; }

inline void check_op(const OpCase& c) {
  SCOPED_TRACE(c.text);
  const size_t sources = c.widths.size() - 1;
  std::string body, code = c.text;
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = code.find(from, at)) != std::string::npos; at += to.size())
      code.replace(at, from.size(), to);
  };
  for (size_t i = 0; i < sources; ++i) {
    const std::string r = register_of(c.widths[i + 1], static_cast<int>(i) + 1);
    if (c.widths[i + 1] == 1)
      body +=
          " ld.global.u8 %h20, [%at" + std::to_string(i) + "];\n setp.ne.u16 " + r + ", %h20, 0;\n";
    else
      body += " ld.global.b" + std::to_string(c.widths[i + 1]) + " " + r + ", [%at" +
              std::to_string(i) + "];\n";
    replace("$" + std::string(1, static_cast<char>('a' + i)), r);
  }
  const std::string d = register_of(c.widths[0], 0);
  replace("$d", d);
  const int width = c.widths[0] == 1 ? 32 : c.widths[0];
  const std::string old = width == 16 ? "0x5a5a" : "0x5a5a5a5a";
  if (c.widths[0] == 1)
    body += " setp.ne.u32 %p0, 0, 0;\n";
  else
    body += " mov.b" + std::to_string(width) + " " + d + ", " + old + ";\n";
  const std::string store = c.widths[0] == 1
                                ? " selp.u32 %r40, 1, 0, %p0;\n st.global.b32 [%at3], %r40;"
                                : " st.global.b" + std::to_string(width) + " [%at3], " + d + ";";
  const std::string plain = body + " " + code + "\n" + store;
  const std::string guarded =
      body + " rem.u32 %r41, %r0, 3;\n setp.ne.u32 %p9, %r41, 0;\n @%p9 " + code + "\n" + store;

  const std::vector<uint64_t> values = c.patterns.empty() ? patterns(7, 48) : c.patterns;
  std::vector<uint64_t> in[3];
  std::mt19937_64 random(11);
  const size_t lanes = 1024;
  for (size_t i = 0; i < lanes; ++i) {
    in[0].push_back(values[i % values.size()]);
    in[1].push_back(values[i / values.size() % values.size()]);
    in[2].push_back(values[random() % values.size()]);
  }
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  for (const bool is_guarded : {false, true}) {
    // The guard needs a single instruction.
    if (is_guarded && c.text.find(';') != c.text.size() - 1) continue;
    const auto module = parsed(kernel_text(is_guarded ? guarded : plain, 4, "", c.target));
    ASSERT_TRUE(module);
    FlatMemory memory;
    std::vector<uint64_t> args;
    for (const auto& v : in) args.push_back(memory.put(v));
    args.push_back(memory.put(std::vector<uint64_t>(lanes)));
    const Outcome outcome = launch(*module, memory, args, {1}, {static_cast<uint32_t>(lanes)});
    ASSERT_TRUE(outcome.ok) << outcome.fault.text();
    const auto out = memory.get<uint64_t>(args[3]);
    for (size_t i = 0; i < lanes; ++i) {
      const auto cut = [&](size_t s) {
        if (s >= sources) return in[s][i];
        const int w = c.widths[s + 1];
        if (w == 1) return uint64_t{(in[s][i] & 0xff) != 0};
        return w == 64 ? in[s][i] : in[s][i] & ((uint64_t{1} << w) - 1);
      };
      const uint64_t a = cut(0), b = cut(1), e = cut(2);
      if (c.skip && c.skip(a, b, e)) continue;
      const bool is_left_out = is_guarded && i % 3 == 0;
      const uint64_t untouched = c.widths[0] == 1 ? 0 : 0x5a5a5a5a & mask;
      const uint64_t want = is_left_out ? untouched : c.expected(a, b, e) & mask;
      const uint64_t got = out[i] & mask;
      ASSERT_TRUE(is_left_out ? got == want : same(c, got, want))
          << std::hex << "a 0x" << a << " b 0x" << b << " c 0x" << e << ": 0x" << got << ", not 0x"
          << want << (is_guarded ? " (guarded)" : "");
    }
  }
}

/// Floats worth trying.
inline std::vector<uint64_t> f32_patterns() {
  std::vector<uint64_t> out;
  for (const uint32_t v :
       {0u,          0x80000000u, 1u,          0x80000001u, 0x007fffffu, 0x00800000u, 0x80800000u,
        0x3f800000u, 0xbf800000u, 0x3f000000u, 0x40200000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u,
        0xff800000u, 0x7fc00000u, 0xffc00001u, 0x4b000000u, 0x4b800001u, 0x4f000000u, 0xcf000000u,
        0x4f7fffffu, 0x5f000000u, 0x5f7fffffu, 0x3effffffu, 0x40490fdbu, 0x33000000u, 0x477fefffu,
        0x477ff000u, 0x33000001u, 0x38000000u, 0x387fffffu})
    out.push_back(v);
  std::mt19937 random(3);
  while (out.size() < 90)
    out.push_back(bits(
        std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 80) - 70)));
  return out;
}
inline std::vector<uint64_t> f64_patterns() {
  std::vector<uint64_t> out;
  for (const double v : {0.0,
                         -0.0,
                         1.0,
                         -1.0,
                         0.5,
                         2.5,
                         1e308,
                         -1e308,
                         5e-324,
                         2.3e-308,
                         3e9,
                         -3e9,
                         1e10,
                         9.3e18,
                         1.9e19,
                         -9.3e18,
                         65504.0,
                         65520.0,
                         1e-8,
                         6e-8,
                         3.4028235677973366e38,
                         1e39,
                         1.0000000596046448})
    out.push_back(bits(v));
  out.push_back(bits(HUGE_VAL));
  out.push_back(bits(-HUGE_VAL));
  out.push_back(bits(std::nan("")));
  for (const uint64_t v : f32_patterns())
    out.push_back(bits(static_cast<double>(f32(v)) * (1 + 1e-9)));
  return out;
}
inline std::vector<uint64_t> f16_patterns() {
  std::vector<uint64_t> out = {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x3c00, 0xbc00,
                               0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x3800, 0x3c01, 0x7f80,
                               0x3f80, 0xff7f, 0x7f7f, 0x0080, 0x8080, 0x007f};
  std::mt19937 random(5);
  while (out.size() < 70) out.push_back(random() & 0xffff);
  return out;
}

}  // namespace bm::sim::ptx::test
