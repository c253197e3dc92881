#pragma once
// Lowering of loops in lanes, unrolled and jammed, on targets without work-groups.

#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/lowering/emitter.h"

namespace bm::compiler {

/// For the table of strategies.
void lower_loops(Emitter& e);

/// Values of a row that its first pass keeps in scratch for later ones; see RowCachePlan.
class RowCache final : public EmitRule {
 public:
  explicit RowCache(Emitter& e);
  std::optional<ValueId> replace(const Node* n, const Env& env) override;
  void begin_step(const ReduceState& s, const Node* range, uint32_t binding) override;
  void end_step(const ReduceState& s, const Node* range, uint32_t binding) override;

 private:
  struct Row {
    const Node* producer = nullptr;
    uint32_t array = 0;              // local one
    std::vector<uint32_t> bindings;  // of the producer's innermost loop, in its own passes
  };
  ValueId index_of(const Row& row, const Env& env);

  Emitter& e_;
  Builder& b_;
  const Schedule& schedule_;
  std::unordered_map<const Node*, Row> rows_;
};

/// Running results of an output loop.
class Scan final : public EmitRule {
 public:
  explicit Scan(Emitter& e) : e_(e), b_(e.builder()) {}
  /// `block` is around the loop that is scanned, which starts anew.
  void start(BlockId block);
  std::optional<ValueId> compute(const Node* n, const Env& env) override;

 private:
  ValueId emit(const Node* n, const Env& env);
  ValueId scan_lanes(ir::ReduceOp op, ValueId values);
  uint32_t register_of(const Node* n, const Env& env, Type type);

  Emitter& e_;
  Builder& b_;
  BlockId block_ = kNone;
  std::map<std::vector<uint32_t>, uint32_t> registers_;
};

/// Output loops, the first of them distributed in blocks.
class LoopLowering {
 public:
  explicit LoopLowering(Emitter& e);
  void run();

  /// If set: called in front of output loop `axis`, and with their number in front of the stores.
  std::function<void(size_t axis, BlockId block, const Env& env)> before_axis;

 private:
  bool has_parts() const;
  int64_t block_iterations() const;
  void lower_parts(ValueId begin, BlockId block, const Instances& start);
  void lower_merged(BlockId block, ValueId block_index);
  // lower_nest.cpp
  void lower_inner(size_t axis, BlockId block, const Instances& instances);
  void lower_axis(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                  ValueId end);
  void lower_tiles(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                   ValueId end);
  void lower_masked(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                    ValueId end);
  void lower_vectors(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                     ValueId end, uint32_t lanes, uint32_t jam);

  Emitter& e_;
  Builder& b_;
  const Schedule& schedule_;
  RowCache rows_;
  Scan scan_;
  /// Of ranges that a loop over tiles is open for: where the tile begins and ends.
  std::unordered_map<const Node*, std::pair<ValueId, ValueId>> tiles_;
};

}  // namespace bm::compiler
