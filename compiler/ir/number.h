#pragma once
// Numbers of any element type as doubles, for comparisons.

#include <cstddef>
#include <cstring>

#include "compiler/ir/dtype.h"
#include "runtime/base/half.h"

namespace bm {

/// The element of type `t` at `at`, which need not be aligned. Integers beyond 2^53 are rounded.
inline double number_at(DType t, const std::byte* at) {
  const auto load = [&]<class T>(T v) {
    std::memcpy(&v, at, sizeof v);
    return v;
  };
  switch (t) {
    case DType::kF16: return static_cast<double>(f16_to_f32(load(uint16_t{})));
    case DType::kBF16: return static_cast<double>(bf16_to_f32(load(uint16_t{})));
    case DType::kF32: return static_cast<double>(load(float{}));
    case DType::kF64: return load(double{});
    case DType::kI8: return static_cast<double>(load(int8_t{}));
    case DType::kBool:
    case DType::kU8: return static_cast<double>(load(uint8_t{}));
    case DType::kI16: return static_cast<double>(load(int16_t{}));
    case DType::kU16: return static_cast<double>(load(uint16_t{}));
    case DType::kI32: return static_cast<double>(load(int32_t{}));
    case DType::kU32: return static_cast<double>(load(uint32_t{}));
    case DType::kI64: return static_cast<double>(load(int64_t{}));
    case DType::kU64: return static_cast<double>(load(uint64_t{}));
  }
  return 0;
}

}  // namespace bm
