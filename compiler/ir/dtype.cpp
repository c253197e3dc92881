#include "compiler/ir/dtype.h"

#include <array>
#include <limits>
#include <utility>

namespace bm {
namespace {

constexpr std::array<std::string_view, kNumDTypes> kNames = {
    "bool",  "int8",   "uint8",   "int16",    "uint16",  "int32",  "uint32",
    "int64", "uint64", "float16", "bfloat16", "float32", "float64"};

constexpr std::pair<std::string_view, DType> kAliases[] = {
    {"half", DType::kF16}, {"float", DType::kF32}, {"double", DType::kF64}, {"char", DType::kI8},
    {"uchar", DType::kU8}, {"short", DType::kI16}, {"ushort", DType::kU16}, {"int", DType::kI32},
    {"uint", DType::kU32}, {"long", DType::kI64},  {"ulong", DType::kU64},  {"bf16", DType::kBF16}};

}  // namespace

std::string_view dtype_name(DType t) { return kNames[static_cast<size_t>(t)]; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<DType>(i);
  for (const auto& [alias, dtype] : kAliases)
    if (alias == name) return dtype;
  return std::nullopt;
}

int64_t int_min(DType t) {
  switch (t) {
    case DType::kI8: return INT8_MIN;
    case DType::kI16: return INT16_MIN;
    case DType::kI32: return INT32_MIN;
    case DType::kI64: return INT64_MIN;
    case DType::kBool:
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64: return 0;
  }
  return 0;
}

int64_t int_max(DType t) {
  switch (t) {
    case DType::kBool: return 1;
    case DType::kI8: return INT8_MAX;
    case DType::kU8: return UINT8_MAX;
    case DType::kI16: return INT16_MAX;
    case DType::kU16: return UINT16_MAX;
    case DType::kI32: return INT32_MAX;
    case DType::kU32: return UINT32_MAX;
    case DType::kI64:
    case DType::kU64: return INT64_MAX;
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64: return 0;
  }
  return 0;
}

}  // namespace bm
