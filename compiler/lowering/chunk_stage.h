#pragma once
// Staging through registers: lines of 64 bytes along K in shared memory, one for every row of the
// left operand or column of the right one, as matrix instructions on registers read them on any
// target: 16 bytes at a time. What stage.h has for asynchronous copies and ldmatrix.

#include <span>
#include <vector>

#include "compiler/lowering/stage.h"

namespace bm::compiler {

/// Lines lie in pairs of 128 bytes, once over all banks. The eight chunks of 16 bytes of a pair
/// are permuted by the line's number (swizzle), so that there are no bank conflicts between eight
/// work-items whose chunks are those of a pair of lines, or the same one of eight adjacent lines,
/// of twice four that are eight apart, or of lines that are each eight apart.
class ChunkStage {
 public:
  static constexpr int64_t kLine = 64, kChunk = 16, kChunks = kLine / kChunk;
  static constexpr int64_t kLineWords = kLine / 4, kChunkWords = kChunk / 4;

  /// `array`: shared memory, of uint32.
  ChunkStage(Emitter& e, uint32_t array) : b_(e.builder()), array_(array) {}

  /// Word where a chunk of a line starts, from the start of its tile.
  Expr address(const Expr& line, const Expr& chunk) const;
  /// Up to 16 bytes, to a word that is a multiple of them all.
  void store(BlockId block, ValueId at, std::vector<ValueId> words) const;

  /// Lines from `own` on, a multiple of `count` (a power of two), as a sub-group's work-items read
  /// them: the one whose lane group is g and part p reads, at step k of K, chunk k·parts +
  /// p of line slot·info.slot + g.
  struct Fragments {
    Expr lane;   ///< what it permutes chunks by
    Expr lines;  ///< word
    int64_t slot = 16, parts = 1;
  };
  Fragments fragments(const MatrixInfo& info, const Expr& own, const Expr& lane_group,
                      const Expr& part) const;
  /// Of steps of K [first, first + count) of `slots` slots, in the tile that starts at word
  /// `start`.
  SlotWords load(const Fragments& f, const Expr& start, uint32_t slots, uint32_t first,
                 uint32_t count, BlockId block) const {
    return load_from(f, start, 0, slots, first, count, block);
  }
  /// The same of slots from `first_slot` on.
  SlotWords load_from(const Fragments& f, const Expr& start, uint32_t first_slot, uint32_t slots,
                      uint32_t first, uint32_t count, BlockId block) const;

  /// Sixteen bits of eight rows at a step of K each: words of row `row` along K.
  static constexpr int64_t kTransposed = 8;
  std::vector<ValueId> transposed(std::span<const std::vector<ValueId>> steps, size_t row) const;

 private:
  /// The swizzle: what chunks of a pair are permuted by.
  static int64_t exchange(int64_t line);
  static Expr exchange(const Expr& line);

  Builder& b_;
  uint32_t array_;
};

}  // namespace bm::compiler
