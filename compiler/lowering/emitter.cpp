// Bindings, what is known, and stores.
#include "compiler/lowering/emitter.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "compiler/lowering/prefetch.h"

namespace bm::compiler {

std::optional<ValueId> EmitRule::replace(const Node* /*n*/, const Env& /*env*/) {
  return std::nullopt;
}
std::optional<ValueId> EmitRule::compute(const Node* /*n*/, const Env& /*env*/) {
  return std::nullopt;
}
void EmitRule::reduce(ReduceState& /*s*/, BlockId block,
                      const std::function<void(BlockId)>& inner) {
  inner(block);
}
bool EmitRule::write_loops(ReduceState& /*s*/, BlockId /*block*/) { return false; }
void EmitRule::begin_step(const ReduceState& /*s*/, const Node* /*range*/, uint32_t /*binding*/) {}
void EmitRule::end_step(const ReduceState& /*s*/, const Node* /*range*/, uint32_t /*binding*/) {}

Emitter::~Emitter() = default;

Emitter::Emitter(const ir::KernelIr& kernel, std::span<const Node* const> roots,
                 const Schedule& schedule, Program& program, const TargetInfo& target)
    : kernel_(kernel),
      schedule_(schedule),
      program_(program),
      b_(program, target),
      prefetch_(std::make_unique<Prefetch>(*this)) {
  bindings_.push_back({});  // number 0 means "not bound"
  std::vector<const Node*> all(kernel.ranges);
  for (const ir::Store& s : kernel.stores) {
    all.push_back(s.index);
    all.push_back(s.value);
    if (s.gate) all.push_back(s.gate);
  }
  all.insert(all.end(), roots.begin(), roots.end());
  analyse(std::move(all));
}

Status Emitter::check() const {
  if (ranges_.size() > 64)
    return fail(Code::kUnsupported, "kernel {}: {} loops, at most 64", kernel_.name,
                ranges_.size());
  if (is_ordered_ && !schedule_.scan && !schedule_.top_k)
    return fail(Code::kUnsupported,
                "kernel {}: scans and orders are for targets without work-groups", kernel_.name);
  return {};
}

const std::vector<const Node*>& Emitter::body_loads(const Node* reduce) const {
  static const std::vector<const Node*> kNoLoads;
  const auto it = body_loads_.find(reduce);
  return it == body_loads_.end() ? kNoLoads : it->second;
}

/// Numbers the ranges; finds what every node depends on, and the reductions.
void Emitter::analyse(std::vector<const Node*> roots) {
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
    } else if (n->op == Op::kTopK) {
      mask = (dependencies_[n->src[0]] & ~dependencies_[n->src[1]]) | dependencies_[n->src[2]];
    } else {
      for (const Node* s : n->src) mask |= dependencies_[s];
    }
    is_ordered_ = is_ordered_ || n->op == Op::kScan || n->op == Op::kTopK;
    dependencies_[n] = mask;
    reduce_level_[n] = level;
  }
}

void Emitter::collect_loads(const Node* reduce) {
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

uint32_t Emitter::add_binding(Binding b) {
  bindings_.push_back(b);
  return static_cast<uint32_t>(bindings_.size() - 1);
}

uint32_t Emitter::make_bindings(ValueId base, BlockId block, int64_t offset, uint32_t lanes,
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

Env Emitter::bound(const Env& env, const Node* range, uint32_t binding) const {
  Env out = env;
  out[number_of(range)] = binding;
  return out;
}

Instances Emitter::bind_axis(const Instances& instances, const Node* range, ValueId base,
                             BlockId block, uint32_t lanes, uint32_t jam, int64_t spacing) {
  std::vector<uint32_t> bindings;
  uint32_t origin = 0;
  for (uint32_t j = 0; j < jam; ++j) {
    bindings.push_back(make_bindings(base, block, int64_t{j} * spacing, lanes, origin));
    origin = bindings_[bindings[0]].origin;
  }
  Instances out;
  for (const Env& env : instances)
    for (uint32_t binding : bindings) out.push_back(bound(env, range, binding));
  return out;
}

uint32_t Emitter::vector_range(uint64_t mask, const Env& env) const {
  for (uint32_t r = 0; mask >> r; ++r)
    if ((mask >> r & 1) && env[r] && bindings_[env[r]].lanes > 1) return r;
  return kNone;
}

Strides& Emitter::strides(uint32_t range, int64_t chunk) {
  return strides_.try_emplace({range, chunk}, ranges_[range], chunk).first->second;
}

BlockId Emitter::block_for(uint64_t mask, const Env& env) const {
  BlockId block = is_confined_ ? b_.floor() : program_.root;
  for (uint32_t r = 0; r < ranges_.size(); ++r)
    if ((mask >> r & 1) && env[r]) block = b_.deeper(block, bindings_[env[r]].block);
  return block;
}

std::vector<uint32_t> Emitter::key(const Node* n, const Env& env) const {
  std::vector<uint32_t> k{n->id};
  const uint64_t mask = dependencies(n);
  for (uint32_t r = 0; r < ranges_.size(); ++r)
    if (mask >> r & 1) k.push_back(env[r]);
  return k;
}

ValueId Emitter::divide_index(Op op, ValueId a, ValueId b, bool is_narrow) {
  if (!is_narrow) {
    const ValueId wide_a = b_.bitcast(a, DType::kU64);
    const ValueId wide_b = b_.bitcast(b, DType::kU64);
    const ValueId wide = b_.alu(op, DType::kU64, std::array{wide_a, wide_b});
    return b_.bitcast(wide, DType::kI64);
  }
  const Value divisor = program_.at(b);
  const ValueId narrow_a = b_.convert(a, DType::kU32);
  const ValueId narrow_b = divisor.op == ValueOp::kConst
                               ? b_.constant({DType::kU32, 1}, divisor.imm)
                               : b_.convert(b, DType::kU32);
  const ValueId narrow = b_.alu(op, DType::kU32, std::array{narrow_a, narrow_b});
  return b_.convert(narrow, DType::kI64);
}

ValueId Emitter::masked(ValueId gate, const Binding& binding) {
  if (binding.mask == kNone) return gate;
  return gate == kNone ? binding.mask : b_.bit_and(splat(gate, binding.lanes), binding.mask);
}

void Emitter::emit_stores(BlockId block, const Instances& instances,
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

void Emitter::emit_store(BlockId block, const ir::Store& s, const Env& env) {
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
    return b_.store(block, s.param, at, splat(value, lanes), gate, is_streamed);
  }
  const ValueId base = stride ? emit(s.index, first) : emit(s.index, env);
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    const ValueId at = stride ? b_.add(base, b_.index(*stride * lane)) : b_.extract(base, lane);
    const ValueId lane_gate = gate == kNone ? kNone : b_.extract(gate, lane);
    b_.store(block, s.param, at, b_.extract(value, lane), lane_gate);
  }
}

ValueId Emitter::inside(uint64_t mask, const Env& env, ValueId gate) {
  for (uint32_t r = 0; r < ranges_.size() && mask >> r; ++r) {
    if ((mask >> r & 1) == 0 || env[r] == 0) continue;
    const ValueId own = bindings_[env[r]].mask;
    if (own != kNone) gate = gate == kNone ? own : b_.bit_and(gate, own);
  }
  return gate;
}

Env Emitter::bound_at(const Env& env, const Node* range, ValueId index, BlockId block) {
  return bound(env, range, make_bindings(index, block, 0, 1, 0));
}

std::vector<ValueId> Emitter::emit_all(const Node* n, const Instances& all, uint32_t lanes) {
  instances_ = &all;
  std::vector<ValueId> out;
  for (const Env& env : all) out.push_back(splat(emit(n, env), lanes));
  instances_ = nullptr;
  return out;
}

void Emitter::branch(ValueId condition, BlockId parent, const std::function<void(BlockId)>& body) {
  const BlockId inside = b_.open_block(parent);
  const BlockId floor = b_.set_floor(inside);
  const Memo memo = memo_;
  body(inside);
  memo_ = memo;
  b_.set_floor(floor);
  b_.close_if(inside, condition);
}

ValueId Emitter::next_digit(ValueId* rest, ValueId count, bool is_last) {
  if (is_last) return *rest;
  const ValueId digit = divide_index(Op::kMod, *rest, count, true);
  *rest = divide_index(Op::kDiv, *rest, count, true);
  return digit;
}

ValueId Emitter::min_index(ValueId a, ValueId b) {
  return b_.alu(Op::kMin, DType::kI64, std::array{a, b});
}

ValueId Emitter::max_index(ValueId a, ValueId b) {
  return b_.alu(Op::kMax, DType::kI64, std::array{a, b});
}

}  // namespace bm::compiler
