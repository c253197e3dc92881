#pragma once
// Int8 and bfloat16 dot products (dp4a, VNNI): packed elements of a 32-bit word, summed into one
// value per lane.

#include <cstdint>

#include "compiler/ir/dtype.h"

namespace bm::compiler {

/// What two words hold and what their products add up to. Values are printed, not stored.
enum class DotKind : uint8_t {
  kU8S8,      ///< four uint8 · int8 → int32; the sum wraps
  kS8S8,      ///< four int8 · int8 → int32; the sum wraps
  kS16S16,    ///< two int16 · int16 → int32; the sum wraps
  kBF16BF16,  ///< two bfloat16 · bfloat16 → float32: upper halves added first, then the lower ones;
              ///< subnormal operands and results may count as zero
};

constexpr DType dot_sum(DotKind kind) {
  return kind == DotKind::kBF16BF16 ? DType::kF32 : DType::kI32;
}
/// Elements in a word: K of one instruction.
constexpr uint32_t dot_k(DotKind kind) {
  return kind == DotKind::kU8S8 || kind == DotKind::kS8S8 ? 4 : 2;
}

/// An instruction for vectors of `bits`; one word of a work-item has 32.
struct DotInfo {
  DotKind kind = DotKind::kU8S8;
  uint32_t bits = 512;
};

}  // namespace bm::compiler
