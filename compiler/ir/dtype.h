#pragma once
// Element types of tensors and kernel values.

#include <cstdint>
#include <optional>
#include <string_view>

namespace bm {

/// Order is promotion order within a category; values are stored in caches, do not renumber.
enum class DType : uint8_t {
  kBool,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
};
inline constexpr int kNumDTypes = 13;

/// Bytes of one element; bool is one byte holding 0 or 1.
constexpr int64_t item_size(DType t) {
  switch (t) {
    case DType::kBool:
    case DType::kI8:
    case DType::kU8: return 1;
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32: return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64: return 8;
  }
  return 0;
}
constexpr bool is_float(DType t) { return t >= DType::kF16; }
constexpr bool is_bool(DType t) { return t == DType::kBool; }
/// Integer, bool excluded.
constexpr bool is_int(DType t) { return t > DType::kBool && t < DType::kF16; }
constexpr bool is_signed(DType t) {
  return is_float(t) || t == DType::kI8 || t == DType::kI16 || t == DType::kI32 || t == DType::kI64;
}
constexpr bool is_unsigned(DType t) { return is_int(t) && !is_signed(t); }
/// float16 or bfloat16: computed in float32, rounded after each operation.
constexpr bool is_half_like(DType t) { return t == DType::kF16 || t == DType::kBF16; }

/// "bool", "int8", "uint8", …, "float16", "bfloat16", "float32", "float64".
std::string_view dtype_name(DType t);
/// Inverse of dtype_name; also accepts the field's short names ("half", "float", "double", "int",
/// "long").
std::optional<DType> dtype_from_name(std::string_view name);

/// Smallest and largest value of an integer type or bool (as int64; kU64 max saturates to
/// INT64_MAX).
int64_t int_min(DType t);
int64_t int_max(DType t);

}  // namespace bm
