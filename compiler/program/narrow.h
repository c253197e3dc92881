#pragma once
// Index arithmetic in 32 bits: which 64-bit integers of a program never need their upper half.

#include <vector>

#include "compiler/program/program.h"

namespace bm::compiler {

/// Of integers: the low bits of a result depend on the low bits of its operands only.
constexpr bool is_modular(ir::Op op) {
  return (op >= ir::Op::kAdd && op <= ir::Op::kMul) || (op >= ir::Op::kAnd && op <= ir::Op::kXor);
}

/// By value: true for an int64 or uint64 that always lies in [-2^31, 2^31) (uint64: [0, 2^31)) and
/// whose operands do, so that the operation in 32 bits is exact. Loop indices count only if they
/// also fit one step past their end. Values from memory, registers and calls never do.
std::vector<bool> narrow_values(const Program& program);

/// The same, and which of those values are never negative.
struct NarrowValues {
  std::vector<bool> fits, is_natural;
};
NarrowValues narrow_and_natural_values(const Program& program);

}  // namespace bm::compiler
