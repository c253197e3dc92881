#include "tests/sim/amd/exec/fp.h"

#include <algorithm>

namespace bm::sim::amd {
namespace {

/// Rounds |value| to `mantissa` bits with exponents from `min_exponent` (of the smallest normal):
/// the multiple of the last place nearest to it, ties to even. Exact: only powers of two.
double round_to(double magnitude, int mantissa, int min_exponent) {
  if (magnitude == 0) return 0;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(e-1), 2^e)
  const int last = std::max(exponent - 1, min_exponent) - mantissa;
  return std::ldexp(std::nearbyint(std::ldexp(magnitude, -last)), last);
}

/// Bits of a small float of 8 - 1 - `mantissa` exponent bits.
uint8_t encode8(double magnitude, int mantissa, int bias) {
  int exponent = 0;
  if (magnitude == 0) return 0;
  std::frexp(magnitude, &exponent);
  const int e = exponent - 1;
  if (e < 1 - bias) return static_cast<uint8_t>(std::ldexp(magnitude, bias - 1 + mantissa));
  const double fraction = std::ldexp(magnitude, mantissa - e);  // in [2^m, 2^(m+1))
  return static_cast<uint8_t>(((e + bias) << mantissa) +
                              (static_cast<int>(fraction) - (1 << mantissa)));
}

struct Small {
  int mantissa, bias;
  double largest;
  uint8_t nan;
};
constexpr Small kFp8{3, 7, 448, 0x7f};
constexpr Small kBf8{2, 15, 57344, 0x7f};

uint8_t narrow(float value, const Small& f) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | f.nan;
  const double rounded = round_to(std::fabs(static_cast<double>(value)), f.mantissa, 1 - f.bias);
  return static_cast<uint8_t>(sign | encode8(std::min(rounded, f.largest), f.mantissa, f.bias));
}
uint8_t narrow_stochastic(float value, uint32_t random, const Small& f) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | f.nan;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= f.largest)
    return static_cast<uint8_t>(sign | encode8(f.largest, f.mantissa, f.bias));
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int last = std::max(exponent - 1, 1 - f.bias) - f.mantissa;
  const double scaled = std::ldexp(magnitude, -last);
  const double up = std::floor(scaled + std::ldexp(static_cast<double>(random), -32));
  return static_cast<uint8_t>(
      sign | encode8(std::min(std::ldexp(up, last), f.largest), f.mantissa, f.bias));
}

}  // namespace

uint16_t f64_to_f16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return f32_to_f16(static_cast<float>(value));
  const double magnitude = round_to(std::min(std::fabs(value), 1e6), 10, -14);
  if (magnitude > 65504) return sign | 0x7c00;
  return static_cast<uint16_t>(sign | f32_to_f16(static_cast<float>(magnitude)));
}

uint16_t f32_to_f16_rtz(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (std::isnan(value) || std::isinf(value)) return f32_to_f16(value);
  const double magnitude = std::min(std::fabs(static_cast<double>(value)), 65504.0);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int last = std::max(exponent - 1, -14) - 10;
  const double cut = std::ldexp(std::floor(std::ldexp(magnitude, -last)), last);
  return static_cast<uint16_t>(sign | f32_to_f16(static_cast<float>(cut)));
}

Half fma_half(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);  // exact: 22 bits
  const double sum = product + static_cast<double>(c);
  if (std::isnan(sum) || std::isinf(sum)) return {static_cast<float>(sum)};
  // What the addition lost, exactly (Knuth's two-sum); it only matters on which side of a tie.
  const double back = sum - product;
  const double lost = (product - (sum - back)) + (static_cast<double>(c) - back);
  double odd = sum;
  if (lost != 0 && !(std::bit_cast<uint64_t>(sum) & 1))
    odd = std::nextafter(sum, (lost > 0) ? std::numeric_limits<double>::infinity()
                                         : -std::numeric_limits<double>::infinity());
  return {f16_to_f32(f64_to_f16(odd))};
}

float fp8_to_f32(uint8_t value) {
  const int exponent = value >> 3 & 15, fraction = value & 7;
  if ((value & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent ? std::ldexp(static_cast<float>(8 + fraction), exponent - 10)
                                   : std::ldexp(static_cast<float>(fraction), -9);
  return value & 0x80 ? -magnitude : magnitude;
}
float bf8_to_f32(uint8_t value) { return f16_to_f32(static_cast<uint16_t>(value << 8)); }
uint8_t f32_to_fp8(float value) { return narrow(value, kFp8); }
uint8_t f32_to_bf8(float value) { return narrow(value, kBf8); }
uint8_t f32_to_fp8_stochastic(float value, uint32_t random) {
  return narrow_stochastic(value, random, kFp8);
}
uint8_t f32_to_bf8_stochastic(float value, uint32_t random) {
  return narrow_stochastic(value, random, kBf8);
}

}  // namespace bm::sim::amd
