#pragma once
// Lowering of attention by matrix instructions; private to lower_mma*.cpp.

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"
#include "compiler/schedules/attention/attention_plan.h"

namespace bm::compiler {

/// What groups of a GroupAttentionPlan have in common, whatever their instructions are.
class GroupAttention {
 protected:
  struct Group {
    Env env;                                         // loops over heads
    ValueId first_row = kNone, row_extent = kNone;   // queries
    ValueId all_keys = kNone, visible_keys = kNone;  // of any query, of this group's
    ValueId own_lines = kNone;                       // the sub-group's first query in the group
  };
  explicit GroupAttention(Emitter& e)
      : e_(e), b_(e.builder()), p_(*e.schedule().group_attention()), a_(p_.parts) {}

  Expr expr(ValueId v) const { return {b_, v}; }
  void bind_queries(ValueId row_block, ValueId head, BlockId block);
  void find_visible_keys(BlockId block);
  void open_groups(const std::function<void(ValueId row_block, ValueId head, BlockId body)>& run);
  /// Products of the block of keys from `first_key` on become logits: `write` makes them of `logit`
  /// inside `block`, and -inf of keys that may not be there (`has_tail`).
  void finish_logits(
      ValueId first_key, BlockId block,
      const std::function<void(const Node* logit, bool has_tail, BlockId block)>& write);
  /// A product, which becomes a logit in the same register; -inf where `gate` is false.
  struct Logit {
    uint32_t reg = 0;
    ValueId gate = kNone;
  };
  /// Words of codes, each times the float16 `scale`, as twice as many of float16.
  std::vector<ValueId> dequantised(std::span<const ValueId> codes, ValueId scale) const;
  void write_logits(const Node* logit, std::span<const Logit> logits, const Instances& instances,
                    BlockId block);

  Emitter& e_;
  Builder& b_;
  const GroupAttentionPlan& p_;
  const AttentionParts& a_;
  Group g_;
};

/// What a group and each work-item of it do; see GroupAttentionPlan. Results of an instruction lie
/// with work-item 4·g + t of a sub-group: columns 2t and 2t+1 of rows g and g+8.
class FlashAttention : GroupAttention {
 public:
  explicit FlashAttention(Emitter& e) : GroupAttention(e) {}

  void run();

 private:
  /// A tile and where it goes in shared memory.
  using Copy = std::pair<LineTile, ValueId>;
  /// Logits of a block of keys in rows g and g + 8, and the row max that they are shifted by.
  struct RowLogits {
    std::array<std::vector<ValueId>, 2> logits;  // in the order of keys
    std::array<ValueId, 2> shift = {};
  };
  /// Sixteen codes of a key or value on their way.
  struct CodeChunk {
    ValueId from = kNone, gate = kNone;  // element; whether it is there (kNone: certainly)
    ValueId scale = kNone;
    int64_t to = 0;  // byte, from this work-item's first one in a stage
  };
  struct State {
    ValueId part = kNone;                        // t
    ValueId is_aligned = kNone, is_not = kNone;  // params start at multiples of 16 bytes
    std::array<Offsets::Position, 2> rows = {};  // the queries g and g + 8
    std::vector<SlotWords> queries;              // by 16 steps of K
    // First of four registers for 8 keys, for 8 elements of the results.
    std::vector<uint32_t> logits, results;
    std::vector<uint32_t> codes;  // registers of words, four of every CodeChunk
    ValueId first_chunk = kNone;  // byte of a stage where the first CodeChunk goes
    std::array<uint32_t, 2> row_max = {},
                            row_sums = {};  // registers, by row; row sums of this work-item
  };

  bool has_async() const { return b_.target().pipe.has_async_copies; }
  int64_t query_start() const { return p_.stages * p_.stage_bytes(); }
  // lower_mma.cpp
  void run(ValueId row_block, ValueId head, BlockId body);
  void bind_group(ValueId row_block, ValueId head, BlockId block);
  void clear_accumulators(BlockId block);
  LineTile tile(const Node* load, const Node* line, const Node* inner, ValueId first,
                ValueId extent, int64_t step, BlockId block) const;
  std::array<Copy, 2> stage_tiles(ValueId first_key, ValueId stage, BlockId block) const;
  void copy_tiles(std::span<const Copy> tiles, BlockId block);
  void copy_unaligned(LineTile tile, ValueId at, BlockId block);
  std::vector<CodeChunk> gather_codes(bool is_keys, ValueId first_key, BlockId block);
  void keep_codes(std::span<const CodeChunk> chunks, const Expr& stage, BlockId block);
  SlotWords fragment(const LineFragments& f, ValueId start, int64_t row, int64_t step,
                     BlockId block) const;
  SlotWords query_fragment(ValueId start, int64_t step, BlockId block) const;
  void read_queries(BlockId block);
  void run_keys(BlockId block);
  void store_results(BlockId block);
  // lower_mma_softmax.cpp
  void multiply_keys(ValueId stage, BlockId block);
  ValueId exp2_of(ValueId distance);
  void multiply_warpgroup(const MatrixInfo& info, std::span<const uint32_t> accumulators,
                          std::span<const SlotWords> left, ValueId start, bool is_k_major,
                          BlockId block);
  void write_block(const Node* logit, ValueId first_key, bool has_tail, BlockId block);
  RowLogits update_row_max(BlockId block);
  void rescale(const std::array<ValueId, 2>& before, const std::array<ValueId, 2>& now,
               BlockId block);
  void add_values(ValueId stage, BlockId block);

  State s_;
  std::optional<LineStage> stage_;
};

}  // namespace bm::compiler
