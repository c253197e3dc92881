#include "compiler/lowering/lower.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "compiler/lowering/emitter.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/schedules/strategy.h"

namespace bm::compiler {

Lowerer::Lowerer(const ir::KernelIr& kernel, const Schedule& schedule, Program& program,
                 const TargetInfo& target)
    : kernel_(kernel), schedule_(schedule), program_(program), b_(program, target) {
  bindings_.push_back({});  // number 0 means "not bound"
}

Status Lowerer::run() {
  analyse();
  if (ranges_.size() > 64)
    return fail(Code::kUnsupported, "kernel {}: {} loops, at most 64", kernel_.name,
                ranges_.size());
  if (is_ordered_ && !schedule_.scan && !schedule_.least)
    return fail(Code::kUnsupported,
                "kernel {}: scans and orders are for targets without work-groups", kernel_.name);
  prepare_stages();
  (this->*strategy_of(schedule_).lower)(program_.root);
  return {};
}

void Lowerer::analyse() {
  std::vector<const Node*> roots(kernel_.ranges);
  for (const ir::Store& s : kernel_.stores) {
    roots.push_back(s.index);
    roots.push_back(s.value);
    if (s.gate) roots.push_back(s.gate);
  }
  if (schedule_.panels()) add_panel_roots(&roots);
  if (schedule_.attention()) add_attention_roots(schedule_.attention()->parts, &roots);
  if (schedule_.group_attention()) add_attention_roots(schedule_.group_attention()->parts, &roots);
  for (const Node* n : ir::topological(roots)) {
    uint64_t mask = 0;
    uint32_t level = 0;
    for (const Node* s : n->src) level = std::max(level, reduce_level_[s]);
    if (n->op == Op::kRange) {
      const auto number = static_cast<uint32_t>(ranges_.size());
      range_number_[n] = number;
      ranges_.push_back(n);
      mask = number < 64 ? uint64_t{1} << number : 0;
    } else if (n->op == Op::kReduce) {
      mask = dependencies_[n->src[0]];
      for (const Node* r : n->bound()) mask &= ~dependencies_[r];
      reduces_.push_back(n);
      collect_loads(n);
      ++level;
    } else if (n->op == Op::kLeast) {
      mask = (dependencies_[n->src[0]] & ~dependencies_[n->src[1]]) | dependencies_[n->src[2]];
    } else {
      for (const Node* s : n->src) mask |= dependencies_[s];
    }
    is_ordered_ = is_ordered_ || n->op == Op::kScan || n->op == Op::kLeast;
    dependencies_[n] = mask;
    reduce_level_[n] = level;
  }
}

/// Loads in the body of a reduction, without gates and nested reductions.
void Lowerer::collect_loads(const Node* reduce) {
  std::vector<const Node*> stack{reduce->src[0]};
  std::unordered_set<const Node*> seen;
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (n->op == Op::kReduce || !seen.insert(n).second) continue;
    if (n->op == Op::kLoad) {
      if (n->src.size() == 1) body_loads_[reduce].push_back(n);
    } else {
      stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
  }
}

uint32_t Lowerer::add_binding(Binding b) {
  bindings_.push_back(b);
  return static_cast<uint32_t>(bindings_.size() - 1);
}

/// Binding of `lanes` indices at base + offset. `origin` 0: a new origin is made (offset 0 only).
uint32_t Lowerer::make_bindings(ValueId base, BlockId block, int64_t offset, uint32_t lanes,
                                uint32_t origin) {
  if (origin == 0) {
    origin = add_binding({.base = base, .block = block});
    bindings_[origin].first_lane = bindings_[origin].origin = origin;
  }
  uint32_t scalar = origin;
  if (offset != 0) {
    scalar =
        add_binding({.base = base, .offset = offset, .lanes = 1, .origin = origin, .block = block});
    bindings_[scalar].first_lane = scalar;
  }
  if (lanes == 1) return scalar;
  return add_binding({.base = base,
                      .offset = offset,
                      .lanes = lanes,
                      .first_lane = scalar,
                      .origin = origin,
                      .block = block});
}

Env Lowerer::bound(const Env& env, const Node* range, uint32_t binding) const {
  Env out = env;
  out[number_of(range)] = binding;
  return out;
}

Lowerer::Instances Lowerer::bind_axis(const Instances& instances, const Node* range, ValueId base,
                                      BlockId block, uint32_t lanes, uint32_t jam,
                                      int64_t spacing) {
  std::vector<uint32_t> copies;
  uint32_t origin = 0;
  for (uint32_t j = 0; j < jam; ++j) {
    copies.push_back(make_bindings(base, block, int64_t{j} * spacing, lanes, origin));
    origin = bindings_[copies[0]].origin;
  }
  Instances out;
  for (const Env& env : instances)
    for (uint32_t copy : copies) out.push_back(bound(env, range, copy));
  return out;
}

uint32_t Lowerer::vector_range(uint64_t mask, const Env& env) const {
  for (uint32_t r = 0; mask >> r; ++r)
    if ((mask >> r & 1) && env[r] && bindings_[env[r]].lanes > 1) return r;
  return kNone;
}

Strides& Lowerer::strides(uint32_t range, int64_t chunk) {
  return strides_.try_emplace({range, chunk}, ranges_[range], chunk).first->second;
}

BlockId Lowerer::block_for(uint64_t mask, const Env& env) const {
  BlockId block = is_guarded_ ? b_.floor() : program_.root;
  for (uint32_t r = 0; r < ranges_.size(); ++r)
    if ((mask >> r & 1) && env[r]) block = b_.deeper(block, bindings_[env[r]].block);
  return block;
}

std::vector<uint32_t> Lowerer::key(const Node* n, const Env& env) const {
  std::vector<uint32_t> k{n->id};
  const uint64_t mask = dependencies(n);
  for (uint32_t r = 0; r < ranges_.size(); ++r)
    if (mask >> r & 1) k.push_back(env[r]);
  return k;
}

/// Of numbers that are not negative; `is_narrow`: and below 2^32.
ValueId Lowerer::divide_index(Op op, ValueId a, ValueId b, bool is_narrow) {
  if (!is_narrow) {
    const std::array args{b_.bitcast(a, DType::kU64), b_.bitcast(b, DType::kU64)};
    return b_.bitcast(b_.alu(op, DType::kU64, args), DType::kI64);
  }
  const Value divisor = program_.at(b);
  const ValueId narrow_a = b_.convert(a, DType::kU32);
  const ValueId narrow_b = divisor.op == ValueOp::kConst
                               ? b_.constant({DType::kU32, 1}, divisor.imm)
                               : b_.convert(b, DType::kU32);
  const std::array args{narrow_a, narrow_b};
  return b_.convert(b_.alu(op, DType::kU32, args), DType::kI64);
}

void Lowerer::lower_inner(size_t axis, BlockId block, const Instances& instances) {
  if (schedule_.least && axis == schedule_.least_axis) lower_least(block, instances[0]);
  if (axis == schedule_.loops.size()) return emit_stores(block, instances, kernel_.stores);
  if (schedule_.scan && schedule_.loops[axis].range == schedule_.scan) {
    scan_block_ = block;
    scan_registers_.clear();
  }
  const Node* range = schedule_.loops[axis].range;
  if (const auto tile = tiles_.find(range); tile != tiles_.end())
    return lower_axis(axis, block, instances, tile->second.first, tile->second.second);
  const ValueId extent = emit(range->src[0], instances[0]);
  lower_axis(axis, block, instances, b_.index(0), extent);
}

void Lowerer::lower_tiles(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                          ValueId end) {
  const AxisPlan& plan = schedule_.loops[axis];
  const Builder::Loop loop = b_.open_loop(block);
  const std::array ends{b_.add(loop.index, b_.index(plan.tile)), end};
  tiles_[plan.range] = {loop.index, b_.alu(Op::kMin, DType::kI64, ends)};
  lower_inner(axis + 1, loop.body, instances);
  tiles_.erase(plan.range);
  b_.close_loop(loop, begin, end, plan.tile);
}

/// Trips of full width, then one vector at a time, then single iterations.
void Lowerer::lower_axis(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                         ValueId end) {
  const AxisPlan& plan = schedule_.loops[axis];
  if (plan.tile > 0) return lower_tiles(axis, block, instances, begin, end);
  const Node* extent = plan.range->src[0];
  const auto is_multiple = [&](int64_t step) {
    return step == 1 || (extent->is_const() && extent->imm % step == 0);
  };
  std::vector<std::pair<uint32_t, uint32_t>> widths;
  widths.emplace_back(plan.lanes, plan.jam);
  if (!is_multiple(plan.step()) && plan.rest > 1) widths.emplace_back(plan.lanes, plan.rest);
  if (!is_multiple(plan.step()) && plan.jam > 1) widths.emplace_back(plan.lanes, 1);
  if (!is_multiple(plan.lanes)) widths.emplace_back(1, 1);
  const bool is_masked = plan.is_masked && !is_multiple(plan.lanes);
  // Begin is a multiple of the widest step; see lower_grid.
  ValueId from = begin;
  for (size_t i = 0; i < widths.size(); ++i) {
    const int64_t step = int64_t{widths[i].first} * widths[i].second;
    ValueId to = end;
    if (i + 1 < widths.size()) {
      const ValueId count = b_.sub(end, from);
      const std::array positive{count, b_.index(0)};
      const ValueId length = b_.alu(Op::kMax, DType::kI64, positive);
      to = b_.add(from, b_.sub(length, b_.bit_and(length, b_.index(step - 1))));
      if (step & (step - 1)) {
        const ValueId whole = b_.bitcast(
            b_.raw(Op::kMod, DType::kU64,
                   {b_.bitcast(length, DType::kU64), b_.bitcast(b_.index(step), DType::kU64)}),
            DType::kI64);
        to = b_.add(from, b_.sub(length, whole));
      }
    }
    if (is_masked && i + 1 == widths.size())
      masked_trip(axis, block, instances, from, to);
    else
      trips(axis, block, instances, from, to, widths[i].first, widths[i].second);
    from = to;
  }
}

void Lowerer::trips(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                    ValueId end, uint32_t lanes, uint32_t jam) {
  const Builder::Loop loop = b_.open_loop(block);
  const Node* range = schedule_.loops[axis].range;
  lower_inner(axis + 1, loop.body,
              bind_axis(instances, range, loop.index, loop.body, lanes, jam, lanes));
  if (jam == schedule_.loops[axis].jam && lanes > 1)
    prefetch_split_row(axis, loop.body, instances[0], loop.index);
  b_.close_loop(loop, begin, end, int64_t{lanes} * jam);
}

/// Fewer iterations than lanes, if any.
void Lowerer::masked_trip(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                          ValueId end) {
  const AxisPlan& plan = schedule_.loops[axis];
  const Builder::Loop loop = b_.open_loop(block);
  const uint32_t binding = make_bindings(loop.index, loop.body, 0, plan.lanes, 0);
  const ValueId left = b_.convert(b_.sub(end, loop.index), DType::kI32);
  const ValueId lane = b_.convert(b_.iota(plan.lanes, 1), DType::kI32);
  const ValueId most = spread(left, plan.lanes);
  bindings_[binding].mask = b_.lt(lane, most);
  Instances inside;
  for (const Env& env : instances) inside.push_back(bound(env, plan.range, binding));
  lower_inner(axis + 1, loop.body, inside);
  b_.close_loop(loop, begin, end, plan.lanes);
}

/// `gate` (kNone: none) and the mask of the lanes.
ValueId Lowerer::masked(ValueId gate, const Binding& binding) {
  if (binding.mask == kNone) return gate;
  return gate == kNone ? binding.mask : b_.bit_and(spread(gate, binding.lanes), binding.mask);
}

void Lowerer::emit_stores(BlockId block, const Instances& instances,
                          const std::vector<ir::Store>& stores) {
  instances_ = &instances;
  // All values before any store: a param may be read and written at the same element.
  for (const Env& env : instances)
    for (const ir::Store& s : stores) {
      emit(s.value, env);
      if (s.gate) emit(s.gate, env);
    }
  for (const Env& env : instances)
    for (const ir::Store& s : stores) emit_store(block, s, env);
  instances_ = nullptr;
}

void Lowerer::emit_store(BlockId block, const ir::Store& s, const Env& env) {
  const ValueId value = emit(s.value, env);
  ValueId gate = s.gate ? emit(s.gate, env) : kNone;
  // A kernel of a single element has no ranges at all.
  const uint32_t r =
      ranges_.empty() ? kNone : vector_range(~uint64_t{0} >> (64 - ranges_.size()), env);
  if (r == kNone)
    return b_.store(block, s.param, emit(s.index, env), value, inside(~uint64_t{0}, env, gate));
  const Binding binding = bindings_[env[r]];
  Env first = env;
  first[r] = binding.first_lane;
  const uint32_t lanes = binding.lanes;
  gate = masked(gate, binding);
  const std::optional<int64_t> stride = strides(r, lanes).stride(s.index);
  if (stride == 1) {
    const ValueId at = emit(s.index, first);
    const bool is_streamed = schedule_.streams.contains(s.param) && !is_bool(s.value->dtype);
    return b_.store(block, s.param, at, spread(value, lanes), gate, is_streamed);
  }
  const ValueId base = stride ? emit(s.index, first) : emit(s.index, env);
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    const ValueId at = stride ? b_.add(base, b_.index(*stride * lane)) : b_.extract(base, lane);
    const ValueId lane_gate = gate == kNone ? kNone : b_.extract(gate, lane);
    b_.store(block, s.param, at, b_.extract(value, lane), lane_gate);
  }
}

namespace {

/// Largest value of a launch dimension for the variables a kernel is given, saturated.
int64_t largest(const hal::DimExpr& dim, const std::vector<ir::VarDecl>& vars) {
  int64_t sum = dim.constant;
  for (const hal::DimExpr::Term& t : dim.terms) {
    const int64_t value = t.coefficient > 0 ? vars[t.var].max : vars[t.var].min;
    int64_t product = 0;
    if (__builtin_mul_overflow(t.coefficient, value, &product) ||
        __builtin_add_overflow(sum, product, &sum))
      return INT32_MAX;
  }
  return std::clamp<int64_t>(sum / dim.divisor + 1, 1, INT32_MAX);
}

/// No loop of a reduction is there twice, whatever schedules have made of the kernel's nodes: one
/// index for two loops goes over a diagonal only.
Status check_loops(const ir::KernelIr& kernel) {
  std::vector<const Node*> roots;
  for (const ir::Store& s : kernel.stores) roots.push_back(s.value);
  for (const Node* n : ir::topological(roots)) {
    if (n->op != Op::kReduce) continue;
    for (auto at = n->src.begin(); ++at < n->src.end();)
      if (std::find(n->src.begin() + 1, at, *at) != at)
        return fail(Code::kInternal, "kernel {}: a reduction over one loop twice", kernel.name);
  }
  return {};
}

}  // namespace

Result<Program> lower(const ir::KernelIr& kernel, const Schedule& schedule,
                      const TargetInfo& target) {
  Program program;
  program.name = kernel.name;
  program.params = kernel.params;
  program.num_vars = static_cast<uint32_t>(kernel.vars.size());
  for (const ir::VarDecl& v : kernel.vars) program.var_ranges.emplace_back(v.min, v.max);
  program.block = schedule.block;
  for (size_t axis = 0; axis < schedule.grid.size(); ++axis)
    program.max_groups[axis] = largest(schedule.grid[axis], kernel.vars);
  // "buffers first, then vars": params of the kernel are its buffers.
  const ir::KernelIr& lowered = schedule.attention() ? *schedule.attention()->parts.kernel
                                : schedule.group_attention()
                                    ? *schedule.group_attention()->parts.kernel
                                : schedule.panels() ? *schedule.panels()->kernel
                                                    : kernel;
  BM_TRY(check_loops(lowered));
  Lowerer lowerer(lowered, schedule, program, target);
  BM_TRY(lowerer.run());
  BM_TRY(verify(program));
  return program;
}

}  // namespace bm::compiler
