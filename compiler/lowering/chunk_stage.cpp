#include "compiler/lowering/chunk_stage.h"

#include <utility>

namespace bm::compiler {

/// Bits 1 and 2 of the line; bits 3, 4 and 5 as 1, 0 and 2. Exclusive or of two lines without
/// common bits gives that of their sum.
Expr ChunkStage::exchange(const Expr& line) {
  const Expr far = (((line >> 2) & 2) | ((line >> 4) & 1)) | ((line >> 3) & kChunks);
  return far ^ ((line >> 1) & (kChunks - 1));
}

int64_t ChunkStage::exchange(int64_t line) {
  const int64_t far = ((line >> 2) & 2) | ((line >> 4) & 1) | ((line >> 3) & kChunks);
  return far ^ ((line >> 1) & (kChunks - 1));
}

Expr ChunkStage::address(const Expr& line, const Expr& chunk) const {
  const Expr in_pair = ((line & 1) * kChunks) | chunk;
  const Expr moved = in_pair ^ exchange(line);
  return (line >> 1) * (2 * kLineWords) + moved * kChunkWords;
}

void ChunkStage::store(BlockId block, ValueId at, std::vector<ValueId> words) const {
  b_.local_store_together(block, array_, at, std::move(words));
}

ChunkStage::Fragments ChunkStage::fragments(const MatrixInfo& info, const Expr& own,
                                            const Expr& lane_group, const Expr& part) const {
  const Expr in_pair = ((lane_group & 1) * kChunks) | part;
  const Expr lane = in_pair ^ exchange(lane_group) ^ exchange(own);
  const Expr lines = ((own >> 1) + (lane_group >> 1)) * (2 * kLineWords);
  return {lane, lines, info.slot, info.parts};
}

SlotWords ChunkStage::load_from(const Fragments& f, const Expr& start, uint32_t first_slot,
                                uint32_t slots, uint32_t first, uint32_t count,
                                BlockId block) const {
  SlotWords out(slots);
  for (uint32_t k_step = first; k_step < first + count; ++k_step)
    for (uint32_t slot = 0; slot < slots; ++slot) {
      // Bits of the slot, the lane and the step of K do not meet in a sum: exclusive or takes them
      // apart.
      const int64_t line = (first_slot + slot) * f.slot;
      const int64_t moved = exchange(line) ^ (k_step * f.parts);
      const Expr chunk = (f.lane ^ moved) * kChunkWords + f.lines;
      const Expr at = chunk + start + line / 2 * (2 * kLineWords);
      const ValueId words = b_.local_load(block, array_, at, kChunkWords);
      for (uint32_t w = 0; w < kChunkWords; ++w) out[slot].push_back(b_.extract(words, w));
    }
  return out;
}

std::vector<ValueId> ChunkStage::transposed(std::span<const std::vector<ValueId>> steps,
                                            size_t row) const {
  const auto half = [&](ValueId word, bool to_high) {
    const bool is_high = row % 2 != 0;
    if (is_high == to_high)
      return b_.bit_and(word, b_.like_int(word, to_high ? 0xffff0000 : 0xffff));
    return to_high ? b_.shl(word, 16) : b_.shr(word, 16);
  };
  std::vector<ValueId> words;
  for (size_t s = 0; s < steps.size(); s += 2) {
    const ValueId low = half(steps[s][row / 2], false);
    words.push_back(b_.bit_or(low, half(steps[s + 1][row / 2], true)));
  }
  return words;
}

}  // namespace bm::compiler
