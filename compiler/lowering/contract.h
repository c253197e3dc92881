#pragma once
// Contraction: accumulators in registers += products of what was staged (stage.h).

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "compiler/lowering/stage.h"

namespace bm::compiler {

/// `count` new registers that are zero from `block` on: accumulators.
std::vector<uint32_t> clear_registers(Builder& b, BlockId block, Type type, size_t count);

/// accumulators[i·right + j] += left[i]·right[j], by arithmetic of this work-item. A sum that is
/// kNone becomes its first product.
void contract_fma(Builder& b, std::span<const ValueId> left, std::span<const ValueId> right,
                  std::span<ValueId> accumulators);

/// registers[i·right + j] += left(i)·right[j] in vectors; `multiply` makes a sum of a sum and two
/// factors: Builder::mad, Builder::dot.
void contract_vectors(
    Builder& b, BlockId block, std::span<const uint32_t> registers, std::span<const ValueId> right,
    const std::function<ValueId(size_t)>& left,
    const std::function<ValueId(ValueId sum, ValueId left, ValueId right)>& multiply);

/// Pairwise: `count` elements of a shared array, a power of two, from `first` on. `width`: elements
/// that are loaded at a time, at a multiple of as many.
ValueId reduce_shared(Builder& b, BlockId block, ir::ReduceOp op, uint32_t array, ValueId first,
                      int64_t apart, uint32_t count, uint32_t width = 1);

/// accumulators += left·right by matrix instructions on registers; `accumulators`: first register
/// of [left slots of an instruction][right slot].
void contract_mma(Builder& b, BlockId block, const MatrixInfo& info,
                  std::span<const uint32_t> accumulators, const SlotWords& left,
                  const SlotWords& right);

/// Behind the last products and before some work-items go another way than others: the accumulators
/// are made by all of them. Where instructions do not say so themselves, compilers would move them.
void settle_accumulators(Builder& b, BlockId block, const MatrixInfo& info,
                         std::span<const uint32_t> accumulators);

/// A LineTile as instructions on shared memory read it, from byte base + offset on.
struct TileOperand {
  ValueId base = kNone;
  int64_t offset = 0;
  bool is_k_major = false;
  int64_t panel = 0;  ///< bytes
};

/// The same by matrix instructions of a group of sub-groups on shared memory, beside its
/// work-items: all of K in a line. `accumulators` registers from `first` on.
void contract_group_mma(Builder& b, BlockId block, const MatrixInfo& info, uint32_t first,
                        uint32_t accumulators, uint32_t array,
                        const std::array<TileOperand, 2>& tiles);

/// The same where the left operand is in registers: `left`, by steps of K of 32 bytes, the rows of
/// a sub-group as for contract_mma. `right`: as deep as there are steps. `is_new`: accumulators =
/// left·right.
void contract_group_mma(Builder& b, BlockId block, const MatrixInfo& info, uint32_t first,
                        uint32_t accumulators, uint32_t array, std::span<const SlotWords> left,
                        const TileOperand& right, bool is_new);

}  // namespace bm::compiler
