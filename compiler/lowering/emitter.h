#pragma once
// Emitter: turns expressions of a kernel into values of a program, each once, in the outermost
// block where its loops are known. What every strategy of schedules/ is written on; it knows none
// of them.

#include <functional>
#include <map>
#include <memory>
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
class Prefetch;

/// What a range stands for in one instance: `lanes` adjacent indices from base + offset.
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
/// Instances of one loop body, each with its own bindings.
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

/// What a strategy emits in its own way. The functions here leave everything to the emitter.
class EmitRule {
 public:
  virtual ~EmitRule() = default;
  /// The value of `n` in place of all that the emitter would do; nothing: not this rule's.
  virtual std::optional<ValueId> replace(const Node* n, const Env& env);
  /// The same for the operation alone: what is uniform or linear along the lanes is not asked for.
  virtual std::optional<ValueId> compute(const Node* n, const Env& env);
  /// A group of reductions; `inner` is how it is done without this rule.
  virtual void reduce(ReduceState& s, BlockId block, const std::function<void(BlockId)>& inner);
  /// Its loops, in place of serial ones; false: they are not this rule's.
  virtual bool write_loops(ReduceState& s, BlockId block);
  /// Before and after what one iteration (or vector of them) adds to a group of reductions, whose
  /// loop `range` is bound to `binding`.
  virtual void begin_step(const ReduceState& s, const Node* range, uint32_t binding);
  virtual void end_step(const ReduceState& s, const Node* range, uint32_t binding);
};

/// A value that does not vary along the vector axis may come back without lanes; users splat it on
/// demand.
///
/// Makers of values are never arguments of one call: their order would then be the
/// choice of the compiler that builds us, and so would the numbering in dumps.
class Emitter {
 public:
  /// `roots`: expressions besides those of the kernel's stores that will be emitted.
  Emitter(const ir::KernelIr& kernel, std::span<const Node* const> roots, const Schedule& schedule,
          Program& program, const TargetInfo& target);
  ~Emitter();
  Emitter(const Emitter&) = delete;
  Emitter& operator=(const Emitter&) = delete;
  /// Errors: kUnsupported for kernels with too many loops.
  Status check() const;
  /// Outermost rule first. It must outlive the emitter's use.
  void add_rule(EmitRule& rule) { rules_.push_back(&rule); }

  const ir::KernelIr& kernel() const { return kernel_; }
  const Schedule& schedule() const { return schedule_; }
  Program& program() { return program_; }
  Builder& builder() { return b_; }
  Prefetch& prefetch() { return *prefetch_; }
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
  /// Every instance `jam` times, `spacing` iterations of `range` from each other.
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
  /// The values of `n` for all unrolled instances of a body, whose reductions then share loops.
  std::vector<ValueId> emit_all(const Node* n, const Instances& all, uint32_t lanes);
  void emit_stores(BlockId block, const Instances& instances, const std::vector<ir::Store>& stores);
  /// Instances of the body that is being filled; nullptr: only one.
  void set_instances(const Instances* instances) { instances_ = instances; }
  const Instances* instances() const { return instances_; }
  /// All unrolled instances of the surrounding loop bodies, which share one set of loops; `env`
  /// alone if it is none of them.
  Instances instances_of(const Node* n, const Env& env, bool* is_instance) const;
  ValueId accumulate_one(const Node* reduce, const Env& env, ValueId accumulator);
  void begin_step(const ReduceState& s, const Node* range, uint32_t binding);

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
  void run_loops(ReduceState& s, BlockId block, size_t rule);
  void reduce_loops(ReduceState& s, size_t depth, BlockId block);
  void reduce_innermost(ReduceState& s, BlockId block);
  void accumulate(ReduceState& s, BlockId body, const Node* range, ValueId index, uint32_t lanes,
                  uint32_t unroll, int64_t apart);
  ValueId combine(ReduceState& s, size_t member, BlockId block);

  const ir::KernelIr& kernel_;
  const Schedule& schedule_;
  Program& program_;
  Builder b_;
  std::unique_ptr<Prefetch> prefetch_;
  std::vector<EmitRule*> rules_;
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
  bool is_confined_ = false;
  bool is_ordered_ = false;
};

}  // namespace bm::compiler
