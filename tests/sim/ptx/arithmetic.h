#pragma once
// What arithmetic instructions do to the numbers of one thread. Private to ops_arithmetic.cpp.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tests/sim/ptx/dispatch.h"

namespace bm::sim::ptx::arithmetic {

/// Unsigned type in which T wraps; 16-bit ones would be promoted to int.
template <class T>
using Wrap = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrap<T>>(a) + static_cast<Wrap<T>>(b));
    else
      return a + b;
  }
};
struct Sub {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrap<T>>(a) - static_cast<Wrap<T>>(b));
    else
      return a - b;
  }
};
struct MulLow {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrap<T>>(a) * static_cast<Wrap<T>>(b));
    else
      return a * b;
  }
};
template <class T>
struct Twice;
template <>
struct Twice<uint16_t> {
  using type = uint32_t;
};
template <>
struct Twice<int16_t> {
  using type = int32_t;
};
template <>
struct Twice<uint32_t> {
  using type = uint64_t;
};
template <>
struct Twice<int32_t> {
  using type = int64_t;
};
template <>
struct Twice<uint64_t> {
  using type = Uint128;
};
template <>
struct Twice<int64_t> {
  using type = Int128;
};
template <class T>
using TwiceOf = typename Twice<T>::type;

struct MulHigh {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>((static_cast<TwiceOf<T>>(a) * b) >> (8 * sizeof(T)));
  }
};
struct MulWide {
  template <class T>
  auto operator()(T a, T b) const {
    return static_cast<TwiceOf<T>>(static_cast<TwiceOf<T>>(a) * static_cast<TwiceOf<T>>(b));
  }
};
struct MadLow {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add{}(MulLow{}(a, b), c);
  }
};
struct MadHigh {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add{}(MulHigh{}(a, b), c);
  }
};
struct MadWide {
  template <class T>
  TwiceOf<T> operator()(T a, T b, TwiceOf<T> c) const {
    return Add{}(static_cast<TwiceOf<T>>(MulWide{}(a, b)), c);
  }
};
struct Sad {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add{}(c, a < b ? Sub{}(b, a) : Sub{}(a, b));
  }
};
/// Hardware's quotient by zero is all ones, its remainder the dividend (seen by others on sm_7x;
/// the manual leaves it open).
struct Div {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(~T{0});
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Sub{}(T{0}, a);
    }
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct AddSat {
  int32_t operator()(int32_t a, int32_t b) const { return clamp(int64_t{a} + b); }
  static int32_t clamp(int64_t v) {
    return static_cast<int32_t>(v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : v);
  }
};
struct SubSat {
  int32_t operator()(int32_t a, int32_t b) const { return AddSat::clamp(int64_t{a} - b); }
};
struct MadHighSat {
  int32_t operator()(int32_t a, int32_t b, int32_t c) const {
    return AddSat::clamp(int64_t{MulHigh{}(a, b)} + c);
  }
};

/// a + b, inexact results rounded to odd: rounding again to a narrower format is then right.
inline double add_odd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double bb = sum - a;
  const double rest = (a - (sum - bb)) + (b - bb);
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (rest == 0 || (bits & 1)) return sum;
  bits += ((rest > 0) == (sum > 0)) ? 1u : ~uint64_t{0};
  return std::bit_cast<double>(bits);
}
inline float to_float_odd(double v) {
  const float f = static_cast<float>(v);
  if (!std::isfinite(f) || static_cast<double>(f) == v) return f;
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if (bits & 1) return f;
  const bool is_larger = std::fabs(static_cast<double>(f)) > std::fabs(v);
  bits += is_larger ? ~0u : 1u;
  return std::bit_cast<float>(bits);
}

struct Fma {
  float operator()(float a, float b, float c) const { return std::fma(a, b, c); }
  double operator()(double a, double b, double c) const { return std::fma(a, b, c); }
};
/// 16-bit formats: the product is exact in double.
struct FmaHalf {
  double operator()(double a, double b, double c) const { return std::fma(a, b, c); }
  float operator()(float a, float b, float c) const {
    return to_float_odd(add_odd(static_cast<double>(a) * b, c));
  }
};

/// -0 is below +0; a NaN loses against a number.
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a)) return std::isnan(b) ? canonical<T>() : b;
      if (std::isnan(b)) return a;
      if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
  }
  template <class T>
  static T canonical() {
    if constexpr (sizeof(T) == 4)
      return std::bit_cast<float>(0x7fffffffu);
    else
      return std::bit_cast<double>(uint64_t{0x7fffffffffffffff});
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a)) return std::isnan(b) ? Min::canonical<T>() : b;
      if (std::isnan(b)) return a;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a > b ? a : b;
  }
};
/// sm_100 and later.
template <class F>
struct OfThree {
  float operator()(float a, float b, float c) const { return F{}(F{}(a, b), c); }
};
template <class F>
struct WithNan {
  template <class T>
  T operator()(T a, T b) const {
    return std::isnan(a) || std::isnan(b) ? Min::canonical<T>() : F{}(a, b);
  }
};
/// Of the magnitudes, with the exclusive-or of the signs.
template <class F>
struct XorSign {
  template <class T>
  T operator()(T a, T b) const {
    const T m = F{}(std::fabs(a), std::fabs(b));
    return std::signbit(a) != std::signbit(b) ? -m : m;
  }
};

struct Abs {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::fabs(a);
    else
      return a < 0 ? Sub{}(T{0}, a) : a;
  }
};
struct Neg {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>)
      return -a;
    else
      return Sub{}(T{0}, a);
  }
};
template <uint32_t kMask, bool kClear>
struct SignBits {
  uint32_t operator()(uint32_t a) const { return kClear ? a & ~kMask : a ^ kMask; }
  uint16_t operator()(uint16_t a) const {
    return static_cast<uint16_t>(kClear ? a & ~kMask : a ^ kMask);
  }
};
struct CopySign {
  template <class T>
  T operator()(T a, T b) const {
    return std::copysign(b, a);
  }
};

template <class T>
struct Flushed {
  static T of(T v) {
    return std::fabs(v) < std::numeric_limits<T>::min() ? std::copysign(T{0}, v) : v;
  }
};
struct Flush {
  float operator()(float v) const { return Flushed<float>::of(v); }
};
struct FlushHalf {
  float operator()(float v) const { return std::fabs(v) < 0x1p-14f ? std::copysign(0.0f, v) : v; }
};
struct Saturate {
  template <class T>
  T operator()(T v) const {
    return v > 0 ? (v < 1 ? v : T{1}) : T{0};
  }
};
struct Relu {
  template <class T>
  T operator()(T v) const {
    return std::isnan(v) ? Min::canonical<T>() : v > 0 ? v : T{0};
  }
};

struct Low24 {
  template <class T>
  static int64_t cut(T v) {
    return std::is_signed_v<T>
               ? static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(v) << 8) >> 8)
               : static_cast<int64_t>(static_cast<uint32_t>(v) & 0xffffff);
  }
};
template <bool kHigh, bool kAdd>
struct Mul24 {
  template <class T>
  T operator()(T a, T b) const {
    return (*this)(a, b, T{0});
  }
  template <class T>
  T operator()(T a, T b, T c) const {
    const auto product = static_cast<uint64_t>(Low24::cut(a) * Low24::cut(b));
    return Add{}(static_cast<T>(kHigh ? product >> 16 : product), c);
  }
};

}  // namespace bm::sim::ptx::arithmetic
