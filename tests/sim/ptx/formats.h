#pragma once
// Values of the 8-bit float formats. Source: OCP 8-bit Floating Point Specification 1.0.

#include <cmath>
#include <cstdint>

namespace bm::sim::ptx {

inline double decode_small(uint32_t bits, int mantissa, int exponent_bits, int bias,
                           bool has_infinity) {
  const uint32_t fraction = bits & ((1u << mantissa) - 1);
  const uint32_t exponent = (bits >> mantissa) & ((1u << exponent_bits) - 1);
  const bool is_negative = (bits >> (mantissa + exponent_bits)) & 1;
  const uint32_t top = (1u << exponent_bits) - 1;
  double v = 0;
  if (exponent == top && (has_infinity ? true : fraction == (1u << mantissa) - 1))
    v = has_infinity && fraction == 0 ? HUGE_VAL : std::nan("");
  else if (exponent == 0)
    v = std::ldexp(fraction, 1 - bias - mantissa);
  else
    v = std::ldexp(fraction + (1u << mantissa), static_cast<int>(exponent) - bias - mantissa);
  return is_negative ? -v : v;
}

/// No infinities; all ones is the only NaN.
inline double decode_e4m3(uint8_t bits) { return decode_small(bits, 3, 4, 7, false); }
inline double decode_e5m2(uint8_t bits) { return decode_small(bits, 2, 5, 15, true); }

}  // namespace bm::sim::ptx
