#pragma once
// Staging: how tiles of operands come to shared memory and from there to work-items, or packed into
// a CPU's workspace. The first of three parts that GEMM and attention are made of; then contract.h
// and epilogue.h.

#include <functional>
#include <utility>
#include <vector>

#include "compiler/lowering/emitter.h"
#include "compiler/program/expr.h"

namespace bm::compiler {

/// Whole steps from `begin` on, then single iterations. `step`: a power of two, of which `begin` is
/// a multiple.
void in_steps(Builder& b, ValueId begin, ValueId end, int64_t step,
              const std::function<void(ValueId, ValueId, uint32_t)>& run);

/// Takes the lowest digit off the number of a CPU's block, in base `count`; `is_last`: all of it.
ValueId next_grid_digit(Emitter& e, ValueId* rest, ValueId count, bool is_last);
/// `env` with the iterations of `batch`, the other digits, last loop lowest.
Env bind_grid_batch(Emitter& e, ValueId rest, const std::vector<const Node*>& batch, Env env,
                    BlockId block);

/// Vectors of an operand on their way into a CPU's workspace, while a loop of K goes by.
struct VectorStage {
  const Node* value = nullptr;
  uint32_t array = 0;
  uint32_t lanes = 1;
  int64_t spacing = 1;                   ///< elements of the array between two vectors of a step
  const Node* k = nullptr;               ///< the outermost loop of K
  ValueId first = kNone, count = kNone;  ///< iterations of it
  int64_t inner_count = 1;               ///< iterations of the loops inside it
  ValueId at = kNone;                    ///< element that the first step begins at
  int64_t step = 0;                      ///< elements from step to step
  uint32_t unroll = 1;                   ///< unroll factor, a power of two
};
/// At iteration `inner` of the inner loops. `vectors`: instances, whose vectors stand side by side.
/// `ahead`: what is prefetched meanwhile.
void stage_vectors(Emitter& e, const VectorStage& s, ValueId inner, const Instances& vectors,
                   BlockId parent,
                   const std::function<void(const Instances&, BlockId)>& ahead = {});

/// Bindings of one loop at fixed distances from a base.
class Offsets {
 public:
  struct Position {
    uint32_t binding = 0;
    ValueId exists = kNone;  ///< bool; kNone: certainly
  };
  /// `block`: where `base` is known.
  Offsets(Emitter& e, ValueId base, BlockId block) : e_(e), base_(base), block_(block) {}
  /// Indices from `end` on are not there. `is_clamped`: the last one stands for them, for what is
  /// loaded with it.
  Offsets(Emitter& e, ValueId base, BlockId block, ValueId end, bool is_clamped)
      : e_(e), base_(base), block_(block), end_(end), is_clamped_(is_clamped) {}

  Position at(int64_t offset);

 private:
  Emitter& e_;
  ValueId base_;
  BlockId block_;
  ValueId end_ = kNone;
  bool is_clamped_ = false;
  uint32_t origin_ = 0;
};

/// A loop that a tile goes along, from index first·step on.
struct TileAxis {
  const Node* loop = nullptr;
  BlockId block = 0;      ///< where `first` is known
  ValueId first = kNone;  ///< kNone: 0
  int64_t step = 1;
  ValueId end = kNone;  ///< indices from here on are not there; kNone: all are
};

/// A tile of an operand in shared memory, in lines of 128 bytes: what is contiguous in memory is
/// contiguous in a line, and panels of `lines` of them follow each other. Chunks of 16 bytes are
/// permuted within their line by its number (chunk ^= line % 8, the 128-byte swizzle): the same
/// chunk of eight lines is in different banks, so there are no bank conflicts.
struct LineTile {
  static constexpr int64_t kLine = 128, kChunk = 16, kChunks = kLine / kChunk;
  /// Bytes after which the swizzle repeats: alignment of the array.
  static constexpr uint32_t kAlignment = kLine * kChunks;
  const Node* load = nullptr;
  TileAxis across, along;  ///< from line to line, within one
  int64_t lines = 0, panels = 1;
  int64_t panel_lines = 0;  ///< from panel to panel, where these are some of its lines; 0: `lines`

  int64_t per_line() const { return kLine / item_size(load->dtype); }
};

/// 16 bytes, or a word, on their way to shared memory; zeros where `gate` is false. Without `from`
/// and `gate`: where they are when they are there.
struct LineCopy {
  int param = 0;
  ValueId from = kNone, to = kNone, gate = kNone;
};

/// Fragments of 16 rows (of the left operand, columns of the right one) and 32 bytes along K, in a
/// LineTile.
struct LineFragments {
  static constexpr int64_t kRows = 16, kBytesOfK = 32;  ///< of one; bytes
  static constexpr int64_t kPerLine = LineTile::kLine / kBytesOfK;
  bool is_left = false;
  bool is_k_major = false;  ///< a line is a row, else a step of K
  int64_t item_bytes = 2;
  int64_t lines = 0;    ///< of a panel
  ValueId own = kNone;  ///< first row of the sub-group; kNone: 0
};

/// Words along K, by slots of rows (of the left operand) or columns.
using SlotWords = std::vector<std::vector<ValueId>>;

/// What this work-item does with tiles in lines: eight adjacent ones copy a line.
class LineStage {
 public:
  /// `items`: work-items of a group. `array`: shared memory, of bytes.
  LineStage(Emitter& e, uint32_t items, uint32_t array)
      : e_(e), b_(e.builder()), at_once_(items / LineTile::kChunks), array_(array) {}
  uint32_t array() const { return array_; }
  int64_t at_once() const { return at_once_; }  ///< lines

  /// This work-item's share of a tile that lies in shared memory from byte `at` on.
  void for_chunks(const LineTile& t, ValueId at, const Env& env,
                  const std::function<void(const LineCopy&)>& copy, bool is_there = false) const;
  /// The same for a tile whose lines are not contiguous in memory, word by word: work-items copy
  /// squares of eight lines by four words, so that both sides have whole sectors and all banks.
  void for_words(const LineTile& t, ValueId at, const Env& env,
                 const std::function<void(const LineCopy&)>& copy, bool is_there = false) const;
  void issue(BlockId block, CopyKind kind, const LineCopy& c) const {
    b_.copy(block, kind, c.param, c.from, array_, c.to, c.gate);
  }

  /// Where this work-item's line of the fragment at step `step` of K and from row `row` on
  /// starts: a byte of the tile, and a distance from it.
  std::pair<ValueId, int64_t> fragment_byte(const LineFragments& f, int64_t row,
                                            int64_t step) const;
  /// The fragment from that byte of shared memory on: two slots of eight rows.
  SlotWords load_fragment(const LineFragments& f, ValueId byte, BlockId block) const;

 private:
  Expr own(const TileAxis& axis, const Expr& share) const;
  /// What lies at `across` and `along`, and whether both are there.
  LineCopy copy_from(const LineTile& t, const Offsets::Position& across,
                     const Offsets::Position& along, const Env& env) const;

  Emitter& e_;
  Builder& b_;
  int64_t at_once_;
  uint32_t array_;
};

}  // namespace bm::compiler
