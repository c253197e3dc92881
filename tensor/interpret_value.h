#pragma once
// Single elements as the reference device sees them: read, write and convert one value.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compiler/ir/dtype.h"
#include "compiler/ir/wrap.h"
#include "runtime/base/half.h"

namespace bm::reference {

/// One element: integers and bool in `i` (uint64 as its bits), floats in `f`.
struct Value {
  int64_t i = 0;
  double f = 0;
};

/// Nearest multiple (ties to even) of the spacing that a format with `bits` fraction bits and
/// smallest normal exponent `min_exponent` has around v. Overflow is left to the caller.
inline double round_to_spacing(double v, int bits, int min_exponent) {
  if (v == 0 || !std::isfinite(v)) return v;
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(v), min_exponent) - bits);
  return std::nearbyint(v / spacing) * spacing;
}

inline uint16_t to_f16(double v) {
  return f32_to_f16(static_cast<float>(round_to_spacing(v, 10, -14)));
}
inline uint16_t to_bf16(double v) {
  return f32_to_bf16(static_cast<float>(round_to_spacing(v, 7, -126)));
}

template <class T>
T read_as(const std::byte* p, int64_t index) {
  T v;
  std::memcpy(&v, p + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}
template <class T>
void write_as(std::byte* p, int64_t index, T v) {
  std::memcpy(p + index * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}

inline Value load(DType t, const std::byte* p, int64_t at) {
  switch (t) {
    case DType::kBool: return {read_as<uint8_t>(p, at) != 0 ? 1 : 0, 0};
    case DType::kI8: return {read_as<int8_t>(p, at), 0};
    case DType::kU8: return {read_as<uint8_t>(p, at), 0};
    case DType::kI16: return {read_as<int16_t>(p, at), 0};
    case DType::kU16: return {read_as<uint16_t>(p, at), 0};
    case DType::kI32: return {read_as<int32_t>(p, at), 0};
    case DType::kU32: return {read_as<uint32_t>(p, at), 0};
    case DType::kI64:
    case DType::kU64: return {read_as<int64_t>(p, at), 0};
    case DType::kF16: return {0, static_cast<double>(f16_to_f32(read_as<uint16_t>(p, at)))};
    case DType::kBF16: return {0, static_cast<double>(bf16_to_f32(read_as<uint16_t>(p, at)))};
    case DType::kF32: return {0, static_cast<double>(read_as<float>(p, at))};
    case DType::kF64: return {0, read_as<double>(p, at)};
  }
  return {};
}

/// Rounds floats once and wraps integers.
inline void store(DType t, std::byte* p, int64_t at, const Value& v) {
  switch (t) {
    case DType::kBool: return write_as<uint8_t>(p, at, v.i != 0 ? 1 : 0);
    case DType::kI8:
    case DType::kU8: return write_as(p, at, static_cast<uint8_t>(v.i));
    case DType::kI16:
    case DType::kU16: return write_as(p, at, static_cast<uint16_t>(v.i));
    case DType::kI32:
    case DType::kU32: return write_as(p, at, static_cast<uint32_t>(v.i));
    case DType::kI64:
    case DType::kU64: return write_as(p, at, v.i);
    case DType::kF16: return write_as(p, at, to_f16(v.f));
    case DType::kBF16: return write_as(p, at, to_bf16(v.f));
    case DType::kF32: return write_as(p, at, static_cast<float>(v.f));
    case DType::kF64: return write_as(p, at, v.f);
  }
}

}  // namespace bm::reference
