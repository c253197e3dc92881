#include "compiler/lowering/contract.h"

namespace bm::compiler {

void contract_fma(Builder& b, std::span<const ValueId> left, std::span<const ValueId> right,
                  std::vector<ValueId>* sums) {
  for (size_t i = 0; i < left.size(); ++i)
    for (size_t j = 0; j < right.size(); ++j) {
      ValueId& sum = (*sums)[i * right.size() + j];
      sum = is_float(b.type(sum).dtype) ? b.mad(left[i], right[j], sum)
                                        : b.add(sum, b.mul(left[i], right[j]));
    }
}

void contract_mma(Builder& b, BlockId block, const MatrixInfo& info, std::span<const uint32_t> sums,
                  const SlotWords& left, const SlotWords& right) {
  const uint32_t each = info.words(), together = info.left_slots;
  for (size_t w = 0; w < left[0].size(); w += each)
    for (size_t i = 0; i < left.size() / together; ++i)
      for (size_t j = 0; j < right.size(); ++j) {
        std::vector<ValueId> operands;
        for (size_t h = w; h < w + each; ++h)
          for (size_t row = 0; row < together; ++row)
            operands.push_back(left[together * i + row][h]);
        for (size_t h = w; h < w + each; ++h) operands.push_back(right[j][h]);
        b.matrix(block, info, sums[i * right.size() + j], std::move(operands));
      }
}

void contract_group_mma(Builder& b, BlockId block, const MatrixInfo& info, uint32_t first,
                        uint32_t sums, uint32_t array, const std::array<TileOperand, 2>& tiles) {
  b.pipe(block, PipeOp::kOpenProducts);
  for (int64_t step = 0; step < LineFragments::kPerLine; ++step) {
    std::array<ValueId, 2> bytes = {};
    std::array<TileLayout, 2> layouts = {};
    for (size_t i = 0; i < tiles.size(); ++i) {
      const TileOperand& t = tiles[i];
      const int64_t depth =
          t.is_k_major ? LineFragments::kDepth : t.panel / LineFragments::kPerLine;
      bytes[i] = b.add(t.base, b.index(t.offset + step * depth));
      layouts[i] = {!t.is_k_major, static_cast<uint32_t>(t.panel)};
    }
    b.group_matrix(block, info, first, sums, array, bytes, layouts);
  }
  b.pipe(block, PipeOp::kCommitProducts);
}

}  // namespace bm::compiler
