#pragma once
// 16-bit float conversions. Narrowing rounds to nearest even; NaN stays NaN with its sign and as
// much of its payload as fits. Formats: IEEE 754-2019 binary16; bfloat16 = upper half of binary32.

#include <bit>
#include <cstdint>

namespace bm {

constexpr float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  // Zero and subnormals: fraction · 2^-24 is exact in binary32.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

namespace detail {
/// value >> shift, rounded to nearest even; 1 <= shift <= 31.
constexpr uint32_t round_shift(uint32_t value, uint32_t shift) {
  const uint32_t kept = value >> shift;
  const uint32_t rest = value & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  return kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u);
}
}  // namespace detail

constexpr uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    const uint32_t payload = (magnitude >> 13) & 0x3ffu;
    return static_cast<uint16_t>(sign | 0x7c00u | (payload ? payload : 0x200u));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude >= 0x38800000u)  // normal: rounding may carry into the exponent, which is right
    return static_cast<uint16_t>(sign | (detail::round_shift(magnitude, 13) - (112u << 10)));
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // < 2^-25
  const uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
  return static_cast<uint16_t>(sign | detail::round_shift(fraction, 126 - (magnitude >> 23)));
}

constexpr float bf16_to_f32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    const uint32_t high = bits >> 16;
    return static_cast<uint16_t>((high & 0x7fu) ? high : (high | 0x40u));
  }
  return static_cast<uint16_t>(detail::round_shift(bits, 16));
}

}  // namespace bm
