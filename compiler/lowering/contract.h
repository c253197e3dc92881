#pragma once
// Contraction: sums in registers += products of what was staged (stage.h).

#include <array>
#include <span>
#include <vector>

#include "compiler/lowering/stage.h"

namespace bm::compiler {

/// sums[i·right + j] += left[i]·right[j], by arithmetic of this work-item.
void contract_fma(Builder& b, std::span<const ValueId> left, std::span<const ValueId> right,
                  std::vector<ValueId>* sums);

/// The same by matrix instructions on registers; `sums`: first register of [left slots of an
/// instruction][right slot].
void contract_mma(Builder& b, BlockId block, const MatrixInfo& info, std::span<const uint32_t> sums,
                  const SlotWords& left, const SlotWords& right);

/// A LineTile as instructions on shared memory read it, from byte base + offset on.
struct TileOperand {
  ValueId base = kNone;
  int64_t offset = 0;
  bool is_k_major = false;
  int64_t panel = 0;  ///< bytes
};

/// The same by matrix instructions of a group of sub-groups on shared memory, beside its
/// work-items: all of K in a line. `sums` registers from `first` on.
void contract_group_mma(Builder& b, BlockId block, const MatrixInfo& info, uint32_t first,
                        uint32_t sums, uint32_t array, const std::array<TileOperand, 2>& tiles);

}  // namespace bm::compiler
