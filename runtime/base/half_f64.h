#pragma once
// float64 to 16-bit floats, rounded to nearest even once: by way of float32, numbers next to a tie
// would become the tie. Formats as in half.h.

#include <bit>
#include <cstdint>

#include "runtime/base/half.h"

namespace bm {

namespace detail {
/// Nearest number of a binary format with `fraction_bits` whose smallest normal exponent is
/// `least`: bits without the sign. Rounds once, straight from all 53 digits. `value` is no NaN.
constexpr uint32_t narrow_f64(double value, int fraction_bits, int least, uint32_t infinity) {
  const uint64_t magnitude = std::bit_cast<uint64_t>(value) & ~(uint64_t{1} << 63);
  const int biased = static_cast<int>(magnitude >> 52);
  if (biased == 0) return 0;  // subnormal in binary64: far below half of every narrow number
  const int exponent = biased - 1023, base = exponent < least ? least : exponent;
  const int shift = 52 - fraction_bits + (base - exponent);
  if (shift > 54) return 0;
  if (exponent > 128) return infinity;
  const uint64_t digits = (magnitude & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  const uint64_t kept = digits >> shift, rest = digits & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  const uint64_t rounded = kept + (rest > half || (rest == half && kept % 2 != 0) ? 1 : 0);
  // Rounding may carry into the exponent, which is right.
  const uint64_t bits = (static_cast<uint64_t>(base - least) << fraction_bits) + rounded;
  return bits < infinity ? static_cast<uint32_t>(bits) : infinity;
}
}  // namespace detail

constexpr uint16_t f64_to_f16(double value) {
  if (value != value) return f32_to_f16(static_cast<float>(value));
  const uint32_t sign = static_cast<uint32_t>(std::bit_cast<uint64_t>(value) >> 48) & 0x8000u;
  return static_cast<uint16_t>(sign | detail::narrow_f64(value, 10, -14, 0x7c00u));
}
constexpr uint16_t f64_to_bf16(double value) {
  if (value != value) return f32_to_bf16(static_cast<float>(value));
  const uint32_t sign = static_cast<uint32_t>(std::bit_cast<uint64_t>(value) >> 48) & 0x8000u;
  return static_cast<uint16_t>(sign | detail::narrow_f64(value, 7, -126, 0x7f80u));
}

}  // namespace bm
