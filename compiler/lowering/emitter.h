#pragma once
// Emitter: turns expressions of a kernel into values of a program, each once, in the outermost
// block where its loops are known. What every strategy of schedules/ is written on; it knows none
// of them.

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/analysis/affine.h"
#include "compiler/program/builder.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

using ir::Node;
class Emitter;

/// What a range stands for at one place: `lanes` adjacent indices from base + offset.
struct Binding {
  ValueId base = kNone;
  int64_t offset = 0;
  uint32_t lanes = 1;
  uint32_t first_lane = 0;  ///< binding of the same index without lanes
  uint32_t origin = 0;      ///< binding without lanes and offset
  BlockId block = 0;
  ValueId mask = kNone;  ///< lanes, or whether this work-item's, are iterations of the loop
};

/// Binding number of every range, by dense range number; 0: not bound.
using Env = std::vector<uint32_t>;
/// Copies of one loop body, each with its own bindings.
using Instances = std::vector<Env>;
/// Values by node and the bindings it depends on.
using Memo = std::map<std::vector<uint32_t>, ValueId>;

/// Reductions that run together. Members of one group share loops. Registers are numbered [group
/// member][instance][copy].
struct ReduceState {
  std::vector<const Node*> group;
  Instances envs;                  // instances, with reduce ranges bound as loops open
  std::vector<const Node*> loops;  // outer to inner; the vector range is last
  ReducePlan plan;
  uint32_t value_lanes = 1;  // lanes of values that come from an output loop
  std::vector<std::vector<uint32_t>> vector_registers,
      scalar_registers;         // [member·instance][copy]
  std::vector<ValueId> shared;  // results of a shared reduction, by member

  size_t members() const { return group.size() * envs.size(); }
  const Node* reduce(size_t member) const { return group[member / envs.size()]; }
  const Env& env(size_t member) const { return envs[member % envs.size()]; }
};

/// A value that does not vary along the vector axis may come back without lanes; users splat it on
/// demand.
///
/// Makers of values never stand side by side in one argument list: their order would then be the
/// choice of the compiler that builds us, and so would the numbering in dumps.
class Emitter {
 public:
  /// `roots`: expressions besides those of the kernel's stores that will be emitted.
  Emitter(const ir::KernelIr& kernel, std::span<const Node* const> roots, const Schedule& schedule,
          Program& program, const TargetInfo& target);
  Emitter(const Emitter&) = delete;
  Emitter& operator=(const Emitter&) = delete;
  /// Errors: kUnsupported for kernels with too many loops.
  Status check() const;

  // The whole kernel, as a row of strategies() wants it; one of them is called.
  void lower_grid(BlockId root);    // loops/lower_grid.cpp
  void lower_groups(BlockId root);  // groups/lower.cpp

  const ir::KernelIr& kernel() const { return kernel_; }
  const Schedule& schedule() const { return schedule_; }
  Program& program() { return program_; }
  Builder& builder() { return b_; }
  BlockId root() const { return program_.root; }
  /// The kernel has scans or top-k: the order of its iterations matters.
  bool is_ordered() const { return is_ordered_; }
  const std::vector<const Node*>& reduces() const { return reduces_; }
  uint32_t reduce_level(const Node* n) const { return reduce_level_.at(n); }
  /// Loads in the body of a reduction, without those of nested reductions and gated ones.
  const std::vector<const Node*>& body_loads(const Node* reduce) const;

  // Ranges and what they are bound to.
  size_t count_ranges() const { return ranges_.size(); }
  Env unbound() const { return Env(ranges_.size(), 0); }
  uint32_t number_of(const Node* range) const { return range_number_.at(range); }
  uint64_t dependencies(const Node* n) const { return dependencies_.at(n); }
  const Binding& binding(uint32_t number) const { return bindings_[number]; }
  const Binding& binding(const Env& env, const Node* range) const {
    return bindings_[env[number_of(range)]];
  }
  void set_mask(uint32_t binding, ValueId mask) { bindings_[binding].mask = mask; }
  /// Binding of `lanes` indices at base + offset. `origin` 0: a new origin is made (offset 0 only).
  uint32_t make_bindings(ValueId base, BlockId block, int64_t offset, uint32_t lanes,
                         uint32_t origin);
  Env bound(const Env& env, const Node* range, uint32_t binding) const;
  /// `range` at `index`.
  Env bound_at(const Env& env, const Node* range, ValueId index, BlockId block);
  /// `jam` copies of every instance, `spacing` iterations of `range` from each other.
  Instances bind_axis(const Instances& instances, const Node* range, ValueId base, BlockId block,
                      uint32_t lanes, uint32_t jam, int64_t spacing);
  /// Number of the range among `mask` bound to lanes, or kNone.
  uint32_t vector_range(uint64_t mask, const Env& env) const;
  Strides& strides(uint32_t range, int64_t chunk);
  BlockId block_for(uint64_t mask, const Env& env) const;
  /// `gate` (kNone: always) where the loops in `mask` are inside their extents.
  ValueId inside(uint64_t mask, const Env& env, ValueId gate);
  /// `gate` (kNone: none) and the mask of the lanes.
  ValueId masked(ValueId gate, const Binding& binding);

  // Expressions.
  ValueId emit(const Node* n, const Env& env);
  /// As emit, of something that is not known yet.
  ValueId compute(const Node* n, const Env& env);
  /// The values of `n` for all copies of a body, whose reductions then share loops.
  std::vector<ValueId> emit_all(const Node* n, const Instances& all, uint32_t lanes);
  void emit_stores(BlockId block, const Instances& instances, const std::vector<ir::Store>& stores);
  /// Copies of the body that is being filled; nullptr: only one.
  void set_instances(const Instances* instances) { instances_ = instances; }
  const Instances* instances() const { return instances_; }
  /// All copies of the surrounding loop bodies, which share one set of loops; `env` alone if it is
  /// none of them.
  Instances instances_of(const Node* n, const Env& env, bool* is_instance) const;
  ValueId accumulate_one(const Node* reduce, const Env& env, ValueId accumulator);

  // What is known already.
  std::vector<uint32_t> key(const Node* n, const Env& env) const;
  bool is_known(const std::vector<uint32_t>& key) const { return memo_.contains(key); }
  bool is_known(const Node* n, const Env& env) const { return is_known(key(n, env)); }
  ValueId known(const Node* n, const Env& env) const { return memo_.at(key(n, env)); }
  void set_known(const Node* n, const Env& env, ValueId value) { memo_[key(n, env)] = value; }
  /// What is made in one block is not there in another: save before it, restore behind it.
  Memo save() const { return memo_; }
  void restore(const Memo& memo) { memo_ = memo; }
  /// Registers and loops too stay in the builder's floor or deeper.
  void set_confined(bool is_confined) { is_confined_ = is_confined; }
  /// `body` where `condition` holds. What is read there may not exist elsewhere: nothing moves out,
  /// nothing is shared.
  void branch(ValueId condition, BlockId parent, const std::function<void(BlockId)>& body);

  // Arithmetic.
  ValueId splat(ValueId v, uint32_t lanes) { return b_.splat(v, lanes); }
  /// Of integers that are not negative; `is_narrow`: and below 2^32.
  ValueId divide_index(Op op, ValueId a, ValueId b, bool is_narrow);
  /// Takes the lowest digit, in base `count`, off *rest; `is_last`: that is all of it.
  ValueId next_digit(ValueId* rest, ValueId count, bool is_last);
  ValueId min_index(ValueId a, ValueId b);
  ValueId max_index(ValueId a, ValueId b);
  ValueId negated(ValueId condition);
  /// A square of as many vectors as they have lanes.
  void transpose(std::vector<ValueId>* rows);

 private:
  // emitter.cpp
  void analyse(std::vector<const Node*> roots);
  void collect_loads(const Node* reduce);
  uint32_t add_binding(Binding b);
  void emit_store(BlockId block, const ir::Store& store, const Env& env);

  // lower_expression.cpp
  ValueId emit_load(const Node* n, const Env& env);
  ValueId emit_load_lanes(const Node* n, const Env& env, uint32_t vector_range);
  bool has_masked_loads(uint32_t lanes, DType dtype) const;
  bool emit_transposed(const Node* n, const Env& env, uint32_t vector_range, int64_t stride);
  ValueId emit_alu(const Node* n, const Env& env);
  ValueId emit_index_division(const Node* n, ValueId a, ValueId b);

  // lower_reduce.cpp
  ValueId emit_reduce(const Node* n, const Env& env);
  void emit_reduce_group(const std::vector<const Node*>& group, const Instances& envs,
                         const ReducePlan& plan);
  void reduce_loops(ReduceState& s, size_t depth, BlockId block);
  void reduce_innermost(ReduceState& s, BlockId block);
  void accumulate(ReduceState& s, BlockId body, const Node* range, ValueId index, uint32_t lanes,
                  uint32_t copies, int64_t apart);
  ValueId combine(ReduceState& s, size_t member, BlockId block);

  bool has_parts() const;
  int64_t block_iterations() const;
  void lower_parts(ValueId begin, BlockId block, const Instances& start);
  void lower_merged(BlockId block, ValueId block_index);
  // lower_groups.cpp: the same for targets with work-groups, and reductions shared by a group.
  void lower_items(BlockId block, Instances instances, ValueId chunk);
  ValueId tiles_along(const AxisPlan& axis, const Env& env);
  // lower_group_copies.cpp: trips of a work-item side by side.
  /// Loops that the work-items of a group do, merged: chunk number `chunk` of them.
  struct ItemLoops {
    Instances instances;          // copies of the loops around
    std::vector<size_t> loops;    // numbers in the schedule
    std::vector<ValueId> counts;  // of their iterations
    ValueId total = kNone, chunk = kNone;
    bool is_narrow = false;  // all iterations are counted in 32 bits
  };
  void emit_loads(const Instances& instances);
  void lower_copies(const ItemLoops& items, BlockId block);
  void lower_item_loop(const ItemLoops& items, BlockId block);
  void split_chunks(const ItemLoops& items, BlockId block);
  // lower_group_transpose.cpp: loads transposed through local memory.
  void lower_transposed(BlockId block, const Env& env);
  Instances bind_transposed(const Env& env, const Node* near, const Node* far, BlockId block);
  void mask_binding(uint32_t binding, const Node* range, const Env& env);
  Instances split_index(ValueId index, const std::vector<size_t>& loops,
                        const std::vector<ValueId>& counts, bool is_narrow, BlockId block,
                        const Instances& instances);
  // lower_shared.cpp: reductions that the work-items of a group share, and rows written out.
  struct Dealt;
  struct DealtCopy {
    std::vector<uint32_t> bindings;  // by loop
    ValueId mask = kNone;            // kNone: all work-items have such an iteration
  };
  uint32_t parts() const { return schedule_.block / schedule_.side; }
  ValueId part_number();
  ValueId side_number();
  void mask_side(const Node* range, ValueId number, const Env& env);
  Dealt dealt_loops(const std::vector<const Node*>& loops, const Env& env);
  DealtCopy bind_dealt(const Dealt& dealt, ValueId index, BlockId block);
  std::vector<DealtCopy> bind_copies(const Dealt& dealt, ValueId first, BlockId block,
                                     uint32_t copies, bool is_masked);
  const std::vector<DealtCopy>* row_copies(const Dealt& dealt, uint32_t most);
  void lower_row(BlockId block, const Env& env);
  void deal_reduction(ReduceState& s, BlockId block);
  void accumulate_copies(ReduceState& s, BlockId block, const std::vector<DealtCopy>& copies);
  void deal_singly(ReduceState& s, const Dealt& dealt, ValueId begin, int64_t trips, BlockId block);
  void combine_items(ReduceState& s, BlockId block);
  ValueId reduce_local(const Node* reduce, uint32_t array, ValueId first, int64_t apart,
                       uint32_t count, BlockId block);
  void lower_axis(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                  ValueId end);
  void lower_tiles(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                   ValueId end);
  void masked_trip(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                   ValueId end);
  void lower_inner(size_t axis, BlockId block, const Instances& instances);
  void trips(size_t axis, BlockId block, const Instances& instances, ValueId begin, ValueId end,
             uint32_t lanes, uint32_t jam);
  void run_loops(ReduceState& s, BlockId block);
  // lower_prefetch.cpp.
  bool has_parts(const ReducePlan& plan, std::span<const Node* const> reduces, const Node* range,
                 int64_t part) const;
  bool is_from_memory(const Node* load) const;
  const Node* split_row();
  std::optional<int64_t> row_of(const Node* load, bool is_again);
  void prefetch_split_row(size_t axis, BlockId body, const Env& env, ValueId index);
  bool is_stream(const Node* load, int64_t apart) const;
  void prefetch_rows(const ReduceState& s, BlockId body, const Node* range, uint32_t binding);
  bool is_read_again(const Node* reduce, const Node* load) const;
  void prefetch_next_rows(const ReduceState& s, BlockId body, const Node* range, uint32_t binding);

  // lower_scan.cpp: running results of an output loop.
  ValueId emit_scan(const Node* n, const Env& env);
  ValueId scan_lanes(ir::ReduceOp op, ValueId values);
  uint32_t scan_register(const Node* n, const Env& env, Type type);
  // lower_least.cpp: the smallest values of a loop, in order.
  struct LeastState;
  void lower_least(BlockId block, const Env& env);
  void compare_vectors(const LeastState& s, const Builder::Loop& loop, const Env& env);
  void insert_if_less(const LeastState& s, BlockId block, ValueId value);
  ValueId emit_least(const Node* n, const Env& env);

  // lower_dots.cpp: inner sums of products of 8-bit numbers.
  const std::vector<const Node*>& dot_sums(const Node* reduce);
  void emit_dots_of(const ReduceState& s, const Node* range, uint32_t binding);
  void split_terms(const Node* sum, std::vector<const Node*>* dots,
                   std::vector<const Node*>* others) const;
  void emit_dots(const Node* sum, const std::vector<Env>& envs, const Node* stream);
  bool loop_dots(const Node* sum, const std::vector<const Node*>& dots,
                 const std::vector<Env>& envs, const Node* stream,
                 const std::vector<ValueId>& starts);
  ValueId emit_dot(const Node* dot, const Env& env, ValueId sum, const Node* stream);
  size_t dot_steps(const Node* dot) const;
  Env bind_step(const Node* dot, size_t step, const Env& env);
  uint32_t step_binding(const Node* range, int64_t at);
  ValueId emit_word(const Node* n, const Env& env, const Node* stream);
  ValueId load_word(const Node* n, const Env& env, const Node* stream);
  void prefetch_words(const Node* load, ValueId index, const Node* stream);
  // lower_guards.cpp: words of work-items, which must lie at multiples of 4 bytes.
  std::vector<const Node*> unguarded_dots(const ReduceState& s);
  void emit_invariants(const ReduceState& s);
  void guard_words(const std::vector<const Node*>& dots, BlockId block,
                   const std::function<void(BlockId)>& write);
  const Node* wide_range(const Node* load);
  ValueId load_aligned_word(const Node* load, const Env& env);
  void emit_guarded_dot(const Node* dot, const std::vector<Env>& envs);
  // lower_stages.cpp.
  struct Stage {
    const Node* producer = nullptr;
    uint32_t array = 0;              // local one
    std::vector<uint32_t> bindings;  // of the producer's innermost loop, in its own passes
  };
  void prepare_stages();
  void note_producer(const ReduceState& s, uint32_t binding);
  ValueId stage_index(const Stage& stage, const Env& env);
  std::optional<ValueId> emit_staged(const Node* n, const Env& env);

  ValueId spread(ValueId v, uint32_t lanes) { return b_.splat(v, lanes); }
  void in_branch(ValueId condition, BlockId parent, const std::function<void(BlockId)>& body) {
    branch(condition, parent, body);
  }

  const ir::KernelIr& kernel_;
  const Schedule& schedule_;
  Program& program_;
  Builder b_;
  std::vector<const Node*> ranges_;  // by dense number
  std::unordered_map<const Node*, uint32_t> range_number_;
  std::unordered_map<const Node*, uint64_t> dependencies_;
  std::unordered_map<const Node*, uint32_t> reduce_level_;
  std::vector<const Node*> reduces_;
  std::unordered_map<const Node*, std::vector<const Node*>> body_loads_;
  std::vector<Binding> bindings_;
  Memo memo_;
  std::map<std::pair<uint32_t, int64_t>, Strides> strides_;
  const Instances* instances_ = nullptr;  // of the innermost output block being filled
  std::unordered_map<const Node*, std::vector<const Node*>> dot_sums_;  // by outer reduction
  std::map<std::vector<uint32_t>, ValueId> words_;                      // as memo_, of words
  bool has_aligned_words_ = false;  // words being loaded lie at multiples of 4 bytes
  const Node* dot_ = nullptr;       // the dot product whose words are being loaded
  std::map<std::pair<const Node*, const Node*>, const Node*> wide_ranges_;  // by dot and load
  std::unordered_map<const Node*, uint32_t> step_origins_;
  std::map<std::pair<const Node*, int64_t>, uint32_t> step_bindings_;
  std::unordered_map<const Node*, Stage> stages_;
  std::map<std::vector<const Node*>, std::vector<DealtCopy>> row_copies_;
  /// Of ranges that a loop over tiles is open for: where the tile begins and ends.
  std::unordered_map<const Node*, std::pair<ValueId, ValueId>> tiles_;
  std::optional<const Node*> split_row_;  // see split_row
  const Node* split_range_ = nullptr;     // that its load runs along
  BlockId scan_block_ = kNone;            // around the loop that is scanned
  std::map<std::vector<uint32_t>, uint32_t> scan_registers_;
  uint32_t least_array_ = 0;     // local one
  BlockId least_block_ = kNone;  // where it is filled
  bool is_confined_ = false;
  bool is_ordered_ = false;
};

}  // namespace bm::compiler
