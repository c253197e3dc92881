#pragma once
// Alignment, powers of two, checked arithmetic and byte-size literals.

#include <bit>
#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace bm {

constexpr uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
constexpr uint64_t operator""_GiB(unsigned long long n) { return n << 30; }

template <std::unsigned_integral T>
constexpr bool is_power_of_two(T value) {
  return std::has_single_bit(value);
}

/// Largest multiple of `alignment` (a power of two) that is <= value.
template <std::unsigned_integral T>
constexpr T align_down(T value, std::type_identity_t<T> alignment) {
  return static_cast<T>(value & ~static_cast<T>(alignment - 1));
}

/// Smallest multiple of `alignment` (a power of two) that is >= value; wraps to 0 past the type's
/// range: use checked_align_up for sizes that come from outside.
template <std::unsigned_integral T>
constexpr T align_up(T value, std::type_identity_t<T> alignment) {
  return align_down(static_cast<T>(value + (alignment - 1)), alignment);
}

template <std::unsigned_integral T>
constexpr bool is_aligned(T value, std::type_identity_t<T> alignment) {
  return (value & (alignment - 1)) == 0;
}

/// Quotient rounded up; `divisor` > 0.
template <std::unsigned_integral T>
constexpr T ceil_div(T value, std::type_identity_t<T> divisor) {
  return static_cast<T>(value / divisor + (value % divisor != 0));
}

/// Position of the highest set bit; `value` > 0.
template <std::unsigned_integral T>
constexpr uint32_t floor_log2(T value) {
  return static_cast<uint32_t>(std::bit_width(value) - 1);
}

constexpr uint32_t lo32(uint64_t value) { return static_cast<uint32_t>(value); }
constexpr uint32_t hi32(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

/// Sum, product and aligned value, or nothing when they leave the type's range.
template <std::integral T>
constexpr std::optional<T> checked_add(T a, std::type_identity_t<T> b) {
  T sum{};
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
constexpr std::optional<T> checked_mul(T a, std::type_identity_t<T> b) {
  T product{};
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

template <std::unsigned_integral T>
constexpr std::optional<T> checked_align_up(T value, std::type_identity_t<T> alignment) {
  const std::optional<T> sum = checked_add(value, static_cast<T>(alignment - 1));
  if (!sum) return std::nullopt;
  return align_down(*sum, alignment);
}

}  // namespace bm
