#pragma once
// Floating point as the shader has it: 16-bit formats, denormal modes, rounding of exact results.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/base/half.h"

namespace bm::sim::amd {

/// A 16-bit float; operations see its value in binary32 and round what they return.
struct Half {
  float value = 0;
};
struct Brain {
  float value = 0;
};

// MODE register: FP_ROUND 3:0, FP_DENORM 7:4 (5:4 for 32 bits, 7:6 for 16 and 64), of each pair the
// lower bit allows denormal inputs, the upper one outputs.
inline constexpr uint32_t kDenormIn32 = 1u << 4, kDenormOut32 = 1u << 5, kDenormIn64 = 1u << 6,
                          kDenormOut64 = 1u << 7;

inline float flush(float a) {
  const uint32_t b = std::bit_cast<uint32_t>(a);
  return (b & 0x7f800000u) ? a : std::bit_cast<float>(b & 0x80000000u);
}
inline double flush(double a) {
  const uint64_t b = std::bit_cast<uint64_t>(a);
  return (b & 0x7ff0000000000000u) ? a : std::bit_cast<double>(b & 0x8000000000000000u);
}
inline uint16_t flush_half(uint16_t a) { return (a & 0x7c00u) ? a : a & 0x8000u; }

/// Rounds binary64 to binary16 once, to nearest even.
uint16_t f64_to_f16(double value);
/// Rounds toward zero.
uint16_t f32_to_f16_rtz(float value);
/// a · b + c of halves, rounded once.
Half fma_half(float a, float b, float c);
/// The same rounded once to binary32 precision and then bfloat16 is the caller's business.

float fp8_to_f32(uint8_t value);  ///< E4M3, no infinities
float bf8_to_f32(uint8_t value);  ///< E5M2
/// To nearest even, out of range becomes the largest value; NaN stays NaN.
uint8_t f32_to_fp8(float value);
uint8_t f32_to_bf8(float value);
/// The same with `random`'s upper bits deciding the rounding.
uint8_t f32_to_fp8_stochastic(float value, uint32_t random);
uint8_t f32_to_bf8_stochastic(float value, uint32_t random);

template <class T>
T quiet(T a) {
  return a + T{0};
}
inline bool is_signaling(float a) {
  const uint32_t b = std::bit_cast<uint32_t>(a);
  return std::isnan(a) && !(b & 0x400000u);
}

/// IEEE 754-2008 minNum and maxNum with -0 < +0, as v_min_f32 and v_max_f32.
template <class T>
T min_num(T a, T b) {
  if (std::isnan(a)) return std::isnan(b) ? quiet(a) : b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
template <class T>
T max_num(T a, T b) {
  if (std::isnan(a)) return std::isnan(b) ? quiet(a) : b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
/// IEEE 754-2019 minimum and maximum: NaN wins.
template <class T>
T minimum(T a, T b) {
  if (std::isnan(a)) return quiet(a);
  if (std::isnan(b)) return quiet(b);
  return min_num(a, b);
}
template <class T>
T maximum(T a, T b) {
  if (std::isnan(a)) return quiet(a);
  if (std::isnan(b)) return quiet(b);
  return max_num(a, b);
}
/// The middle one; with a NaN, the smallest of three.
template <class T>
T median(T a, T b, T c) {
  if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return min_num(min_num(a, b), c);
  const T high = max_num(max_num(a, b), c);
  if (high == a) return max_num(b, c);
  if (high == b) return max_num(a, c);
  return max_num(a, b);
}

/// Out of range saturates, NaN becomes 0.
template <class I, class F>
I to_integer(F value) {
  if (std::isnan(value)) return 0;
  constexpr double kLow = static_cast<double>(std::numeric_limits<I>::min());
  constexpr double kHigh = static_cast<double>(std::numeric_limits<I>::max());
  const double v = static_cast<double>(value);
  if (v <= kLow) return std::numeric_limits<I>::min();
  if (v >= kHigh) return std::numeric_limits<I>::max();
  return static_cast<I>(v);
}

/// V_CMP_CLASS: bits of the mask are sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal,
/// +normal, +inf.
template <class T>
bool in_class(T value, bool is_quiet, bool is_denormal, uint32_t mask) {
  uint32_t bit = 0;
  const bool negative = std::signbit(value);
  if (std::isnan(value))
    bit = is_quiet ? 1 : 0;
  else if (std::isinf(value))
    bit = negative ? 2 : 9;
  else if (value == 0)
    bit = negative ? 5 : 6;
  else if (is_denormal)
    bit = negative ? 4 : 7;
  else
    bit = negative ? 3 : 8;
  return mask >> bit & 1;
}

}  // namespace bm::sim::amd
