#pragma once
// Integers cut to the width of a type.

#include <cstdint>

#include "compiler/ir/dtype.h"

namespace bm {

/// `v` cut to the width of an integer type (two's complement), or to 0/1 for bool; as it is for
/// types of 64 bits and floats.
constexpr int64_t wrap_integer(DType t, int64_t v) {
  switch (t) {
    case DType::kBool: return v != 0 ? 1 : 0;
    case DType::kI8: return static_cast<int8_t>(v);
    case DType::kU8: return static_cast<uint8_t>(v);
    case DType::kI16: return static_cast<int16_t>(v);
    case DType::kU16: return static_cast<uint16_t>(v);
    case DType::kI32: return static_cast<int32_t>(v);
    case DType::kU32: return static_cast<uint32_t>(v);
    case DType::kI64:
    case DType::kU64:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64: return v;
  }
  return v;
}

}  // namespace bm
