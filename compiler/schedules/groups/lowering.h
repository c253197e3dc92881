#pragma once
// Lowering of loops by work-groups.

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "compiler/lowering/contiguous.h"
#include "compiler/lowering/contract.h"

namespace bm::compiler {

/// For the table of strategies.
void lower_groups(Emitter& e);
void lower_transpose(Emitter& e);
void lower_group_scan(Emitter& e);

/// Output loops distributed over work-groups and their work-items, which may share reductions.
class GroupLowering : public EmitRule {
 public:
  explicit GroupLowering(Emitter& e)
      : e_(e), b_(e.builder()), schedule_(e.schedule()), contiguous_(e) {}
  void run();
  void reduce(ReduceState& s, BlockId block, const std::function<void(BlockId)>& inner) override;
  bool write_loops(ReduceState& s, BlockId block) override;
  std::optional<ValueId> replace(const Node* n, const Env& env) override {
    return is_single_ ? std::nullopt : contiguous_.replace(n, env);
  }

 protected:
  /// What one group does, whose loops in the grid `instances` binds.
  virtual void lower_items(BlockId block, Instances instances, ValueId chunk);
  void emit_loads(const Instances& instances);
  void where_aligned(BlockId block, const std::function<void(BlockId)>& body);

  Emitter& e_;
  Builder& b_;
  const Schedule& schedule_;
  ContiguousAccess contiguous_;

 private:
  /// Loops that the work-items of a group do, merged: chunk number `chunk` of them.
  struct ItemLoops {
    Instances instances;          // of the loops around
    std::vector<size_t> loops;    // numbers in the schedule
    std::vector<ValueId> counts;  // of their iterations
    ValueId total = kNone, chunk = kNone;
    bool is_narrow = false;  // all iterations are counted in 32 bits
  };
  /// Merged loops distributed over the work-items that share a number of the side.
  struct Distributed {
    std::vector<const Node*> loops;
    std::vector<ValueId> counts;  // by loop
    ValueId total = kNone;
    int64_t most = 1;                    // largest total
    std::optional<int64_t> known_total;  // if it is constant
  };
  struct Iteration {
    std::vector<uint32_t> bindings;  // by loop
    ValueId mask = kNone;            // kNone: all work-items have such an iteration
  };

  // lower.cpp
  ValueId tiles_along(const AxisPlan& axis, const Env& env);
  Instances split_index(ValueId index, const std::vector<size_t>& loops,
                        const std::vector<ValueId>& counts, bool is_narrow, BlockId block,
                        const Instances& instances);
  // lower_unrolled.cpp
  void lower_unrolled(const ItemLoops& items, BlockId block);
  void lower_contiguous(const ItemLoops& items, BlockId block);
  void lower_item_loop(const ItemLoops& items, BlockId block);
  void split_chunks(const ItemLoops& items, BlockId block);
  // lower_shared_reductions.cpp
  uint32_t parts() const { return schedule_.block / schedule_.group_outputs; }
  ValueId part_number();
  ValueId first_index();
  ValueId output_index();
  void mask_outputs(const Node* range, ValueId number, const Env& env);
  Distributed distributed_loops(const std::vector<const Node*>& loops, const Env& env);
  Iteration bind_iteration(const Distributed& loops, ValueId index, BlockId block);
  std::vector<Iteration> bind_iterations(const Distributed& loops, ValueId first, BlockId block,
                                         uint32_t unroll, bool is_masked);
  const std::vector<Iteration>* row_unroll(const Distributed& loops, uint32_t most);
  void lower_row(BlockId block, const Env& env);
  void lower_single(BlockId block, const Env& env);
  void distribute(ReduceState& s, BlockId block);
  void accumulate_unrolled(ReduceState& s, BlockId block, const std::vector<Iteration>& iterations);
  void distribute_singly(ReduceState& s, const Distributed& loops, ValueId begin,
                         int64_t trip_count, BlockId block);
  void combine_partials(ReduceState& s, BlockId block);
  bool can_shuffle(const ReduceState& s) const;
  void combine_by_shuffles(ReduceState& s, BlockId block);
  ValueId reduce_parts(ReduceState& s, size_t member, uint32_t array, ValueId first, int64_t apart,
                       uint32_t count, BlockId block);

  std::map<std::vector<const Node*>, std::vector<Iteration>> row_iterations_;
  bool is_single_ = false;  // iterations are bound one by one, whatever the schedule has contiguous
};

/// Loads transposed through shared memory; see TransposePlan.
class TransposeLowering final : public GroupLowering {
 public:
  explicit TransposeLowering(Emitter& e) : GroupLowering(e), p_(*e.schedule().transposed()) {}

 private:
  void lower_items(BlockId block, Instances instances, ValueId chunk) override;
  Instances bind_transposed(const Env& env, const Node* near, const Node* far, BlockId block);

  const TransposePlan& p_;
  ValueId low_ = kNone, high_ = kNone;  // position of a work-item in a row of a tile, its first row
};

}  // namespace bm::compiler
