#include "compiler/lowering/contract.h"

#include "compiler/program/expr.h"

namespace bm::compiler {

std::vector<uint32_t> clear_registers(Builder& b, BlockId block, Type type, size_t count) {
  std::vector<uint32_t> registers;
  for (size_t i = 0; i < count; ++i) {
    registers.push_back(b.add_register(type));
    b.assign(block, registers.back(), b.constant(type, 0));
  }
  return registers;
}

void contract_fma(Builder& b, std::span<const ValueId> left, std::span<const ValueId> right,
                  std::span<ValueId> accumulators) {
  for (size_t i = 0; i < left.size(); ++i)
    for (size_t j = 0; j < right.size(); ++j) {
      ValueId& sum = accumulators[i * right.size() + j];
      if (sum == kNone)
        sum = b.mul(left[i], right[j]);
      else
        sum = is_float(b.type(sum).dtype)
                  ? b.mad(left[i], right[j], sum)
                  : ValueId{Expr(Expr(b, sum) + Expr(b, left[i]) * Expr(b, right[j]))};
    }
}

void contract_vectors(
    Builder& b, BlockId block, std::span<const uint32_t> registers, std::span<const ValueId> right,
    const std::function<ValueId(size_t)>& left,
    const std::function<ValueId(ValueId sum, ValueId left, ValueId right)>& multiply) {
  for (size_t i = 0; i * right.size() < registers.size(); ++i) {
    const ValueId wide = left(i);
    for (size_t j = 0; j < right.size(); ++j) {
      const uint32_t reg = registers[i * right.size() + j];
      b.assign(block, reg, multiply(b.read(block, reg), wide, right[j]));
    }
  }
}

ValueId reduce_shared(Builder& b, BlockId block, ir::ReduceOp op, uint32_t array, ValueId first,
                      int64_t apart, uint32_t count, uint32_t width) {
  std::vector<ValueId> values;
  for (uint32_t i = 0; i < count; i += width) {
    const ValueId words = b.local_load(block, array, b.add(first, b.index(i * apart)), width);
    for (uint32_t lane = 0; lane < width; ++lane) values.push_back(b.extract(words, lane));
  }
  for (; values.size() > 1; values.resize(values.size() / 2))
    for (size_t i = 0; i < values.size() / 2; ++i)
      values[i] = b.reduce_step(op, values[2 * i], values[2 * i + 1]);
  return values[0];
}

void contract_mma(Builder& b, BlockId block, const MatrixInfo& info,
                  std::span<const uint32_t> accumulators, const SlotWords& left,
                  const SlotWords& right) {
  const uint32_t each = info.words(), together = info.a_slots;
  for (size_t w = 0; w < left[0].size(); w += each)
    for (size_t i = 0; i < left.size() / together; ++i)
      for (size_t j = 0; j < right.size(); ++j) {
        std::vector<ValueId> operands;
        for (size_t h = w; h < w + each; ++h)
          for (size_t row = 0; row < together; ++row)
            operands.push_back(left[together * i + row][h]);
        for (size_t h = w; h < w + each; ++h) operands.push_back(right[j][h]);
        // The instruction would cut the low bits off: every sum would be too near to 0.
        if (info.in == DType::kF32)
          for (ValueId& word : operands) word = b.round_tf32(word);
        b.matrix(block, info, accumulators[i * right.size() + j], std::move(operands));
      }
}

void settle_accumulators(Builder& b, BlockId block, const MatrixInfo& info,
                         std::span<const uint32_t> accumulators) {
  if (info.row_step == 0) return;
  for (const uint32_t first : accumulators) b.settle(block, first, info.accumulators);
}

void contract_group_mma(Builder& b, BlockId block, const MatrixInfo& info, uint32_t first,
                        uint32_t accumulators, uint32_t array,
                        const std::array<TileOperand, 2>& tiles) {
  b.pipe(block, PipeOp::kWgmmaFence);
  for (int64_t step = 0; step < LineFragments::kPerLine; ++step) {
    std::array<ValueId, 2> bytes = {};
    std::array<TileLayout, 2> layouts = {};
    for (size_t i = 0; i < tiles.size(); ++i) {
      const TileOperand& t = tiles[i];
      const int64_t depth =
          t.is_k_major ? LineFragments::kBytesOfK : t.panel / LineFragments::kPerLine;
      bytes[i] = b.add(t.base, b.index(t.offset + step * depth));
      layouts[i] = {!t.is_k_major, static_cast<uint32_t>(t.panel)};
    }
    b.warpgroup_mma(block, info, first, accumulators, array, bytes, layouts);
  }
  b.pipe(block, PipeOp::kWgmmaCommit);
}

void contract_group_mma(Builder& b, BlockId block, const MatrixInfo& info, uint32_t first,
                        uint32_t accumulators, uint32_t array, std::span<const SlotWords> left,
                        const TileOperand& right, bool is_new) {
  b.pipe(block, PipeOp::kWgmmaFence);
  for (size_t step = 0; step < left.size(); ++step) {
    const SlotWords& rows = left[step];
    const auto n = static_cast<int64_t>(step);
    int64_t at = n * (LineFragments::kBytesOfK / item_size(info.in)) * LineTile::kLine;
    if (right.is_k_major)
      at = n / LineFragments::kPerLine * right.panel +
           n % LineFragments::kPerLine * LineFragments::kBytesOfK;
    b.warpgroup_mma(block, info, first, accumulators, array,
                    {rows[0][0], rows[1][0], rows[0][1], rows[1][1]},
                    b.add(right.base, b.index(right.offset + at)),
                    {!right.is_k_major, static_cast<uint32_t>(right.panel)}, is_new && step == 0);
  }
  b.pipe(block, PipeOp::kWgmmaCommit);
}

}  // namespace bm::compiler
