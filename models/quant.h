#pragma once
// Number formats of GGUF tensors: sizes of their blocks, and their float32 values.
//
// Layouts: quant_blocks.h. Results are bit-equal to ggml's (ggml-quants.c, dequantize_row_*) on any
// machine: products are exact, and differences are rounded once.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace bm::models {

/// Numbers as stored in GGUF files. Source: ggml.h, enum ggml_type.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
};

struct GgmlTypeInfo {
  GgmlType type;
  const char* name;       ///< ggml's spelling, "Q4_K"
  uint32_t block_values;  ///< values in one block; 1 for unquantised values
  uint32_t block_bytes;
};

/// Sizes of a supported type; nullptr for any other number.
const GgmlTypeInfo* find_ggml_type(uint32_t number);
const GgmlTypeInfo& ggml_type_info(GgmlType type);

/// "Q4_K"; also knows the names of types we cannot read ("Q8_1"); "type 77" for unknown numbers.
std::string ggml_type_name(uint32_t number);

/// Bytes of `values` consecutive values.
/// Errors: kInvalidArgument when they are not whole blocks or the size does not fit in 64 bits.
Result<uint64_t> ggml_row_bytes(GgmlType type, uint64_t values);

/// Values of `dst.size()` numbers stored at `src`, as float32. `src` needs no alignment.
/// Integers and doubles are rounded to the nearest float32.
/// Errors: kInvalidArgument when `src` is not exactly ggml_row_bytes(type, dst.size()) long.
Status dequantize_row(GgmlType type, std::span<const std::byte> src, std::span<float> dst);

/// The reverse for F32, F16, BF16, Q8_0 and Q4_0: ggml's reference quantisers, for tests and tools.
/// Errors: kInvalidArgument on sizes; kUnsupported for the other types.
Status quantize_row(GgmlType type, std::span<const float> src, std::span<std::byte> dst);

}  // namespace bm::models
