#pragma once
// Lowering of attention by matrix instructions; private to lower_mma*.cpp.

#include <array>
#include <span>
#include <vector>

#include "compiler/lowering/emitter.h"
#include "compiler/schedules/attention/attention_plan.h"

namespace bm::compiler {

/// What a group and each work-item of it do; see GroupAttentionPlan. Results of an instruction lie
/// with work-item 4·g + t of a sub-group: columns 2t and 2t+1 of rows g and g+8.
class FlashAttention {
 public:
  explicit FlashAttention(Emitter& e)
      : e_(e), b_(e.builder()), p_(*e.schedule().group_attention()), a_(p_.parts) {}

  void run();

 private:
  /// Rows of a param on their way to local memory.
  struct Tile {
    const Node *load = nullptr, *along = nullptr, *inner = nullptr;
    ValueId first = kNone, extent = kNone;  // of the loop `along`; extent kNone: all lines exist
    int64_t lines = 0;
    ValueId at = kNone;  // byte
  };
  /// Scores of a block of keys in rows g and g + 8, and what their powers count from.
  struct Powers {
    std::array<std::vector<ValueId>, 2> scores;  // in the order of keys
    std::array<ValueId, 2> from = {};
  };
  struct State {
    Env env;                                          // loops over heads
    ValueId first_row = kNone, row_extent = kNone;    // queries
    ValueId all_keys = kNone, visible_keys = kNone;   // of any query, of this group's
    ValueId lane = kNone, part = kNone;               // in the sub-group; t
    ValueId own_lines = kNone;                        // the sub-group's first query in the group
    ValueId is_aligned = kNone, is_not = kNone;       // params start at multiples of 16 bytes
    uint32_t array = 0;                               // local one
    std::array<uint32_t, 2> rows = {};                // bindings of the queries g and g + 8
    std::array<ValueId, 2> has_row = {kNone, kNone};  // kNone: certainly
    std::vector<std::vector<ValueId>> queries;        // words, by 16 steps of depth
    // First of four registers for 8 keys, for 8 elements of the results.
    std::vector<uint32_t> scores, results;
    std::array<uint32_t, 2> from = {}, totals = {};  // registers, by row; totals of this work-item
  };

  ValueId scaled(ValueId v, int64_t factor) { return b_.mul(v, b_.index(factor)); }
  ValueId moved(ValueId v, int64_t offset) { return b_.add(v, b_.index(offset)); }
  // lower_mma.cpp
  void place(ValueId row_block, ValueId head, BlockId block);
  void clear_sums(BlockId block);
  void copy_tiles(std::span<const Tile> tiles, BlockId block);
  std::array<Tile, 2> stage_tiles(ValueId first_key, ValueId stage);
  std::vector<ValueId> fragment(ValueId start, ValueId lines, ValueId piece, int64_t exchange,
                                bool is_turned, BlockId block);
  void read_queries(BlockId block);
  void run_keys(BlockId block);
  void store_results(BlockId block);
  // lower_mma_softmax.cpp
  void multiply_keys(ValueId stage, BlockId block);
  void finish_scores(ValueId first_key, BlockId block);
  void write_scores(const Node* score, ValueId first_key, bool has_tail, BlockId block);
  Powers take_maxima(BlockId block);
  void fade(const std::array<ValueId, 2>& before, const std::array<ValueId, 2>& now, BlockId block);
  void add_values(ValueId stage, BlockId block);

  Emitter& e_;
  Builder& b_;
  const GroupAttentionPlan& p_;
  const AttentionParts& a_;
  State s_;
};

}  // namespace bm::compiler
