// Reductions: registers around loops. Order of additions is fixed by the plan, never by a renderer.
#include <algorithm>
#include <array>
#include <limits>

#include "compiler/lowering/emitter.h"
#include "compiler/lowering/prefetch.h"
#include "compiler/program/expr.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

/// Of indices (argmax), for example: 64-bit integers that 32 bits hold, one at least.
bool has_short_extreme(const Node* reduce) {
  const Node* value = reduce->src[0];
  const bool is_extreme =
      reduce->reduce_op() == ir::ReduceOp::kMax || reduce->reduce_op() == ir::ReduceOp::kMin;
  return is_extreme && reduce->dtype == DType::kI64 && value->lo >= INT32_MIN &&
         value->hi <= INT32_MAX &&
         std::all_of(reduce->src.begin() + 1, reduce->src.end(),
                     [](const Node* range) { return range->src[0]->lo > 0; });
}

/// 16-bit floats accumulate in float32.
DType accumulator_type(const Node* reduce, const TargetInfo& target) {
  if (target.has_groups && has_short_extreme(reduce)) return DType::kI32;
  return is_half_like(reduce->dtype) ? DType::kF32 : reduce->dtype;
}

}  // namespace

ValueId Emitter::emit_reduce(const Node* n, const Env& env) {
  bool is_instance = false;
  const auto plan_it = schedule_.reduces.find(n);
  const ReducePlan plan = plan_it == schedule_.reduces.end() ? ReducePlan{} : plan_it->second;
  const std::vector<Env> envs = instances_of(n, env, &is_instance);
  // Reductions over the same loops that do not need each other run together.
  std::vector<const Node*> group;
  for (const Node* other : reduces_) {
    const bool has_same_loops =
        std::equal(other->src.begin() + 1, other->src.end(), n->src.begin() + 1, n->src.end());
    const auto p = schedule_.reduces.find(other);
    const ReducePlan other_plan = p == schedule_.reduces.end() ? ReducePlan{} : p->second;
    if (other == n ||
        (is_instance && has_same_loops && dependencies(other) == dependencies(n) &&
         reduce_level_.at(other) == reduce_level_.at(n) && other_plan.lanes == plan.lanes &&
         other_plan.is_shared == plan.is_shared && other_plan.vector_range == plan.vector_range &&
         other_plan.item_unroll == plan.item_unroll && !memo_.contains(key(other, env))))
      group.push_back(other);
  }
  emit_reduce_group(group, envs, plan);
  return memo_.at(key(n, env));
}

/// All unrolled instances of the surrounding loop bodies, which share one set of loops; `env` alone
/// if it is none of them.
std::vector<Env> Emitter::instances_of(const Node* n, const Env& env, bool* is_instance) const {
  const std::vector<uint32_t> own = key(n, env);
  std::vector<Env> envs;
  std::vector<std::vector<uint32_t>> keys;
  *is_instance = false;
  for (size_t i = 0; instances_ && i < instances_->size(); ++i) {
    std::vector<uint32_t> k = key(n, (*instances_)[i]);
    *is_instance = *is_instance || k == own;
    if (std::find(keys.begin(), keys.end(), k) != keys.end()) continue;
    keys.push_back(std::move(k));
    envs.push_back((*instances_)[i]);
  }
  return *is_instance ? envs : std::vector<Env>{env};
}

void Emitter::emit_reduce_group(const std::vector<const Node*>& group, const std::vector<Env>& envs,
                                const ReducePlan& plan) {
  const Node* n = group[0];
  const uint64_t mask = dependencies(n);
  ReduceState s{.group = group,
                .envs = envs,
                .loops = {},
                .plan = plan,
                .value_lanes = 1,
                .vector_registers = {},
                .scalar_registers = {},
                .shared = {}};
  const uint32_t vr = vector_range(mask, envs[0]);
  if (vr != kNone) {
    s.value_lanes = bindings_[envs[0][vr]].lanes;
    s.plan = {};
  }
  for (size_t i = 1; i < n->src.size(); ++i)
    if (n->src[i] != s.plan.vector_range) s.loops.push_back(n->src[i]);
  if (s.plan.vector_range) s.loops.push_back(s.plan.vector_range);

  const BlockId block = block_for(mask, envs[0]);
  const uint32_t wide = s.plan.lanes > 1 ? s.plan.lanes : s.value_lanes;
  const uint32_t unroll = s.plan.vector_range ? s.plan.unroll : 1;
  const bool has_tail = s.plan.lanes > 1;
  for (size_t m = 0; m < s.members(); ++m) {
    const Node* r = s.reduce(m);
    const DType t = accumulator_type(r, b_.target());
    const auto make = [&](uint32_t lanes) {
      const uint32_t reg = b_.add_register({t, lanes});
      b_.assign(block, reg, b_.neutral(r->reduce_op(), {t, lanes}));
      return reg;
    };
    std::vector<uint32_t> vectors;
    for (uint32_t c = 0; c < unroll; ++c) vectors.push_back(make(wide));
    s.vector_registers.push_back(std::move(vectors));
    s.scalar_registers.push_back(has_tail ? std::vector<uint32_t>{make(1)}
                                          : std::vector<uint32_t>{});
  }
  run_loops(s, block, 0);
  for (size_t m = 0; m < s.members(); ++m) {
    const Node* r = s.reduce(m);
    // Bindings of reduce ranges do not take part in the key of the reduction itself.
    memo_[key(r, envs[m % envs.size()])] = combine(s, m, block);
  }
}

/// The loops of a group as the rules from number `rule` on want them.
void Emitter::run_loops(ReduceState& s, BlockId block, size_t rule) {
  if (rule < rules_.size())
    return rules_[rule]->reduce(s, block, [&](BlockId body) { run_loops(s, body, rule + 1); });
  for (EmitRule* r : rules_)
    if (r->write_loops(s, block)) return;
  reduce_loops(s, 0, block);
}

void Emitter::begin_step(const ReduceState& s, const Node* range, uint32_t binding) {
  for (EmitRule* rule : rules_) rule->begin_step(s, range, binding);
}

void Emitter::reduce_loops(ReduceState& s, size_t depth, BlockId block) {
  if (depth + 1 == s.loops.size()) return reduce_innermost(s, block);
  const Node* range = s.loops[depth];
  const ValueId extent = emit(range->src[0], s.envs[0]);
  const Builder::Loop loop = b_.open_loop(block);
  const uint32_t binding = make_bindings(loop.index, loop.body, 0, 1, 0);
  for (Env& env : s.envs) env = bound(env, range, binding);
  reduce_loops(s, depth + 1, loop.body);
  b_.close_loop(loop, b_.index(0), extent, 1);
}

void Emitter::reduce_innermost(ReduceState& s, BlockId block) {
  const Node* range = s.loops.back();
  const Node* extent_node = range->src[0];
  ValueId extent = emit(extent_node, s.envs[0]);
  if (extent_node->lo < 0) {
    extent = max_index(extent, b_.index(0));
  }
  const auto run = [&](ValueId begin, ValueId end, uint32_t lanes, uint32_t unroll) {
    const Builder::Loop loop = b_.open_loop(block);
    accumulate(s, loop.body, range, loop.index, lanes, unroll, lanes);
    b_.close_loop(loop, begin, end, int64_t{lanes} * unroll);
  };
  const auto is_multiple = [&](int64_t step) {
    return extent_node->is_const() && extent_node->imm % step == 0;
  };
  const auto up_to = [&](int64_t step) -> ValueId { return whole_steps({b_, extent}, step); };
  const uint32_t lanes = s.plan.vector_range ? s.plan.lanes : 1;
  const uint32_t unroll = s.plan.vector_range ? s.plan.unroll : 1;
  const int64_t step = int64_t{lanes} * unroll;
  if (is_multiple(step) &&
      prefetch_->splits_row(s.plan, s.group, range, extent_node->imm / unroll)) {
    const int64_t part = extent_node->imm / unroll;
    const Builder::Loop loop = b_.open_loop(block);
    accumulate(s, loop.body, range, loop.index, lanes, unroll, part);
    return b_.close_loop(loop, b_.index(0), b_.index(part), lanes);
  }
  if (step == 1) return run(b_.index(0), extent, 1, 1);
  ValueId from = is_multiple(step) ? extent : up_to(step);
  run(b_.index(0), from, lanes, unroll);
  if (!is_multiple(step) && unroll > 1) {
    const ValueId to = is_multiple(lanes) ? extent : up_to(lanes);
    run(from, to, lanes, 1);
    from = to;
  }
  if (!is_multiple(lanes)) run(from, extent, 1, 1);
}

/// One loop body: `unroll` vectors, `apart` iterations from each other, into registers of their
/// own, or single values into the scalar registers when the plan has lanes but this loop does not.
void Emitter::accumulate(ReduceState& s, BlockId body, const Node* range, ValueId index,
                         uint32_t lanes, uint32_t unroll, int64_t apart) {
  const bool is_tail = lanes == 1 && s.plan.lanes > 1;
  uint32_t origin = 0;
  struct Update {
    uint32_t reg;
    ValueId value;
  };
  std::vector<Update> updates;
  for (uint32_t c = 0; c < unroll; ++c) {
    const uint32_t binding = make_bindings(index, body, int64_t{c} * apart, lanes, origin);
    origin = bindings_[binding].origin;
    begin_step(s, range, binding);
    for (size_t m = 0; m < s.members(); ++m) {
      const uint32_t reg = is_tail ? s.scalar_registers[m][0] : s.vector_registers[m][c];
      const Env env = bound(s.env(m), range, binding);
      updates.push_back({reg, accumulate_one(s.reduce(m), env, b_.read(body, reg))});
    }
    for (EmitRule* rule : rules_) rule->end_step(s, range, binding);
    if (lanes > 1 && s.plan.lanes > 1 && !b_.target().has_groups)
      prefetch_->next_rows(s, body, range, binding);
  }
  for (const Update& u : updates) b_.assign(body, u.reg, u.value);
  const bool is_plain = lanes == 1 && unroll == 1 && !is_tail;
  if (is_plain && !b_.target().has_groups) prefetch_->rows_ahead(s, body, range, origin);
}

ValueId Emitter::accumulate_one(const Node* reduce, const Env& env, ValueId accumulator) {
  const Node* value = reduce->src[0];
  const Type t = b_.type(accumulator);
  const bool is_product = value->op == Op::kMul && reduce->reduce_op() == ir::ReduceOp::kSum &&
                          (value->dtype == DType::kF32 || value->dtype == DType::kF64);
  if (is_product) {
    const ValueId a = emit(value->src[0], env), b = emit(value->src[1], env);
    const ValueId wide_a = splat(a, t.lanes), wide_b = splat(b, t.lanes);
    return b_.mad(wide_a, wide_b, accumulator);
  }
  const ValueId v = b_.cast(emit(value, env), t.dtype);
  return b_.reduce_step(reduce->reduce_op(), accumulator, splat(v, t.lanes));
}

/// Unrolled accumulators pairwise, then halves of the vector pairwise, then the scalar tail.
ValueId Emitter::combine(ReduceState& s, size_t m, BlockId block) {
  const Node* r = s.reduce(m);
  if (s.plan.is_shared) return b_.cast(s.shared[m], r->dtype);
  std::vector<ValueId> parts;
  for (uint32_t reg : s.vector_registers[m]) parts.push_back(b_.read(block, reg));
  while (parts.size() > 1) {
    std::vector<ValueId> next;
    for (size_t i = 0; i + 1 < parts.size(); i += 2)
      next.push_back(b_.reduce_step(r->reduce_op(), parts[i], parts[i + 1]));
    if (parts.size() % 2) next.push_back(parts.back());
    parts = std::move(next);
  }
  ValueId v = parts[0];
  if (s.plan.lanes > 1) {
    while (b_.type(v).lanes > 1) {
      const ValueId low = b_.half(v, 0), high = b_.half(v, 1);
      v = b_.reduce_step(r->reduce_op(), low, high);
    }
    v = b_.reduce_step(r->reduce_op(), v, b_.read(block, s.scalar_registers[m][0]));
  }
  return b_.cast(v, r->dtype);
}

}  // namespace bm::compiler
