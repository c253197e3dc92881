#include <algorithm>
#include <array>

#include "compiler/lowering/emitter.h"
#include "runtime/base/check.h"

namespace bm::compiler {
namespace {

uint64_t bit(uint32_t n) { return uint64_t{1} << n; }

bool is_narrow(const Node* n) { return n->lo >= INT32_MIN && n->hi <= INT32_MAX; }

}  // namespace

ValueId Emitter::emit(const Node* n, const Env& env) {
  std::vector<uint32_t> k = key(n, env);
  if (const auto it = memo_.find(k); it != memo_.end()) return it->second;
  std::optional<ValueId> own;
  for (EmitRule* rule : rules_)
    if (!own) own = rule->replace(n, env);
  const ValueId v = own ? *own : compute(n, env);
  memo_.emplace(std::move(k), v);
  return v;
}

ValueId Emitter::compute(const Node* n, const Env& env) {
  if (n->op == Op::kConst)
    return is_float(n->dtype) ? b_.constant_f({n->dtype, 1}, n->fimm())
                              : b_.constant({n->dtype, 1}, n->imm);
  if (n->op == Op::kVar) return b_.variable(static_cast<int>(n->imm));
  const uint64_t mask = dependencies(n);
  const uint32_t vr = vector_range(mask, env);
  if (vr != kNone) {
    const uint32_t lanes = bindings_[env[vr]].lanes;
    Strides& along = strides(vr, lanes);
    const bool is_uniform = along.is_uniform(n);
    const std::optional<int64_t> stride = n->dtype == DType::kI64 ? along.stride(n) : std::nullopt;
    if (is_uniform || stride) {
      Env first = env;
      first[vr] = bindings_[env[vr]].first_lane;
      const ValueId base = emit(n, first);
      if (is_uniform) return base;
      const ValueId wide = splat(base, lanes);
      return b_.add(wide, b_.iota(lanes, *stride));
    }
  } else if (n->dtype == DType::kI64) {
    // Instances of a loop body share the index of the first and add a constant.
    for (uint32_t r = 0; mask >> r; ++r) {
      if (!(mask & bit(r)) || env[r] == 0 || bindings_[env[r]].offset == 0) continue;
      const std::optional<int64_t> stride = strides(r, 0).stride(n);
      if (!stride) continue;
      const Binding binding = bindings_[env[r]];
      Env origin = env;
      origin[r] = binding.origin;
      const ValueId base = emit(n, origin);
      return b_.add(base, b_.index(*stride * binding.offset));
    }
  }
  for (EmitRule* rule : rules_)
    if (const std::optional<ValueId> own = rule->compute(n, env)) return *own;
  switch (n->op) {
    case Op::kRange: {
      const uint32_t number = env[number_of(n)];
      BM_CHECK(number != 0);
      const Binding& binding = bindings_[number];
      return b_.add(binding.base, b_.index(binding.offset));
    }
    case Op::kLoad: return emit_load(n, env);
    case Op::kReduce: return emit_reduce(n, env);
    default: return emit_alu(n, env);
  }
}

ValueId Emitter::emit_alu(const Node* n, const Env& env) {
  std::array<ValueId, 3> args{};
  uint32_t lanes = 1;
  // Reductions first: what is loaded beside them would stay in registers all through their loops.
  std::array<size_t, 3> order{0, 1, 2};
  if (b_.target().has_groups)
    std::stable_sort(
        order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n->src.size()),
        [&](size_t x, size_t y) { return reduce_level(n->src[x]) > reduce_level(n->src[y]); });
  for (size_t i = 0; i < n->src.size(); ++i) {
    const size_t at = order[i];
    args[at] = emit(n->src[at], env);
    lanes = std::max(lanes, b_.type(args[at]).lanes);
  }
  for (size_t i = 0; i < n->src.size(); ++i) args[i] = splat(args[i], lanes);
  // Indices are compared in 32 bits where they fit: half the vectors.
  if (lanes > 1 && ir::is_comparison(n->op) && n->src[0]->dtype == DType::kI64 &&
      is_narrow(n->src[0]) && is_narrow(n->src[1]))
    for (size_t i = 0; i < 2; ++i) args[i] = b_.convert(args[i], DType::kI32);
  if (n->dtype == DType::kI64 && (n->op == Op::kDiv || n->op == Op::kMod) && n->src[0]->lo >= 0 &&
      n->src[1]->lo >= 0)
    return emit_index_division(n, args[0], args[1]);
  return b_.alu(n->op, n->dtype, std::span<const ValueId>(args).first(n->src.size()));
}

/// Division of values known not to be negative: unsigned, and in 32 bits where that pays: in lanes,
/// and on GPUs, which build 64-bit division from many instructions.
ValueId Emitter::emit_index_division(const Node* n, ValueId a, ValueId b) {
  constexpr int64_t kMax32 = 0xffffffff;
  const bool is_cheaper = b_.type(a).lanes > 1 || b_.target().has_groups;
  const bool is_narrow = is_cheaper && n->src[0]->hi <= kMax32 && n->src[1]->hi <= kMax32;
  const DType t = is_narrow ? DType::kU32 : DType::kU64;
  const auto as = [&](ValueId v) { return is_narrow ? b_.convert(v, t) : b_.bitcast(v, t); };
  // Conversion of a constant stays a constant, which the division looks at.
  const ValueId divisor =
      n->src[1]->is_const() ? b_.constant({t, b_.type(b).lanes}, n->src[1]->imm) : as(b);
  if (n->src[1]->lo > 0) {
    const ValueId q = b_.raw(n->op, t, {as(a), divisor});
    return is_narrow ? b_.convert(q, DType::kI64) : b_.bitcast(q, DType::kI64);
  }
  const std::array args{as(a), divisor};
  const ValueId q = b_.alu(n->op, t, args);
  return is_narrow ? b_.convert(q, DType::kI64) : b_.bitcast(q, DType::kI64);
}

ValueId Emitter::emit_load(const Node* n, const Env& env) {
  const uint32_t vr = vector_range(dependencies(n), env);
  if (vr != kNone) return emit_load_lanes(n, env, vr);
  const ValueId gate = n->src.size() > 1 ? emit(n->src[1], env) : kNone;
  const ValueId at = emit(n->src[0], env);
  return b_.load(static_cast<int>(n->imm), n->dtype, 1, at, inside(dependencies(n), env, gate));
}

ValueId Emitter::emit_load_lanes(const Node* n, const Env& env, uint32_t vr) {
  const int param = static_cast<int>(n->imm);
  const Binding binding = bindings_[env[vr]];
  const uint32_t lanes = binding.lanes;
  Env first = env;
  first[vr] = binding.first_lane;
  ValueId gate = n->src.size() > 1 ? emit(n->src[1], env) : kNone;
  bool has_vector_gate = gate != kNone && b_.type(gate).lanes > 1;
  Strides& along = strides(vr, lanes);
  const std::optional<int64_t> stride =
      along.is_uniform(n->src[0]) ? std::optional<int64_t>{0} : along.stride(n->src[0]);
  if (binding.mask != kNone && (stride != 0 || has_vector_gate)) {
    gate = masked(gate, binding);
    has_vector_gate = true;
  }
  if (stride == 1) return b_.load(param, n->dtype, lanes, emit(n->src[0], first), gate);
  if (stride == 0) {
    const ValueId scalar_gate = gate == kNone ? kNone : b_.any(gate);
    const ValueId loaded = b_.load(param, n->dtype, 1, emit(n->src[0], first), scalar_gate);
    if (!has_vector_gate) return loaded;
    const Type t{n->dtype, lanes};
    return b_.select(gate, splat(loaded, lanes),
                     is_float(t.dtype) ? b_.constant_f(t, 0) : b_.constant(t, 0));
  }
  if (stride == -1 && !has_vector_gate) {
    const ValueId last = b_.add(emit(n->src[0], first), b_.index(-static_cast<int64_t>(lanes - 1)));
    return b_.reverse(b_.load(param, n->dtype, lanes, last, gate));
  }
  if (stride == 2 && has_masked_loads(lanes, n->dtype)) {
    // Only every other element is touched: the ones between may be beyond the end.
    const ValueId at = emit(n->src[0], first);
    const Type mask{DType::kBool, lanes};
    const ValueId own = gate == kNone ? b_.constant(mask, 1) : splat(gate, lanes);
    std::array<ValueId, 2> halves{};
    for (int which = 0; which < 2; ++which) {
      const ValueId every_other = b_.interleave(own, b_.constant(mask, 0), which);
      halves[static_cast<size_t>(which)] = b_.load(
          param, n->dtype, lanes, b_.add(at, b_.index(which * int64_t{lanes})), every_other);
    }
    return b_.deinterleave(halves[0], halves[1], 0);
  }
  if (stride && gate == kNone && emit_transposed(n, env, vr, *stride)) return memo_.at(key(n, env));
  const ValueId base = stride ? emit(n->src[0], first) : emit(n->src[0], env);
  std::vector<ValueId> scalars;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    const ValueId at = stride ? b_.add(base, b_.index(*stride * lane)) : b_.extract(base, lane);
    const ValueId lane_gate = gate == kNone ? kNone : b_.extract(gate, lane);
    scalars.push_back(b_.load(param, n->dtype, 1, at, lane_gate));
  }
  return b_.build(scalars);
}

/// Whether the target loads some of these lanes at the price of all.
bool Emitter::has_masked_loads(uint32_t lanes, DType dtype) const {
  const TargetInfo& t = b_.target();
  return t.has_masks && lanes >= 4 && lanes * 32 <= t.vector_bits && item_size(dtype) == 4;
}

/// As many vectors as they have lanes.
void Emitter::transpose(std::vector<ValueId>* rows) {
  const auto lanes = static_cast<uint32_t>(rows->size());
  std::vector<ValueId> next(lanes);
  // Every stage moves one bit of the row number into the lane number and one the other way.
  for (uint32_t stage = 1; stage < lanes; stage *= 2) {
    for (uint32_t i = 0; i < lanes / 2; ++i)
      for (int which = 0; which < 2; ++which)
        next[2 * i + static_cast<uint32_t>(which)] =
            b_.interleave((*rows)[i], (*rows)[i + lanes / 2], which);
    rows->swap(next);
  }
}

/// A load that is strided along the lanes but contiguous along a loop merged as many times as there
/// are lanes: rows are loaded along that loop and transposed in registers, for all unrolled
/// instances at once.
bool Emitter::emit_transposed(const Node* n, const Env& env, uint32_t vr, int64_t stride) {
  const uint32_t lanes = bindings_[env[vr]].lanes;
  const uint64_t mask = dependencies(n);
  for (uint32_t u = 0; instances_ && mask >> u; ++u) {
    if (u == vr || !(mask & bit(u)) || env[u] == 0 || bindings_[env[u]].lanes != 1) continue;
    if (strides(u, 0).stride(n->src[0]) != 1) continue;
    const uint32_t origin = bindings_[env[u]].origin;
    std::vector<uint32_t> bindings;  // bindings of the merged loop, by offset
    for (const Env& instance : *instances_) {
      if (instance[u] == 0 || bindings_[instance[u]].origin != origin) continue;
      if (std::find(bindings.begin(), bindings.end(), instance[u]) == bindings.end())
        bindings.push_back(instance[u]);
    }
    if (bindings.size() != lanes) continue;
    Env corner = env;
    corner[vr] = bindings_[env[vr]].first_lane;
    corner[u] = origin;
    const ValueId at = emit(n->src[0], corner);
    std::vector<ValueId> rows;
    for (uint32_t l = 0; l < lanes; ++l)
      rows.push_back(
          b_.load(static_cast<int>(n->imm), n->dtype, lanes, b_.add(at, b_.index(stride * l))));
    transpose(&rows);
    for (uint32_t binding : bindings) {
      Env out = env;
      out[u] = binding;
      memo_[key(n, out)] = rows[static_cast<size_t>(bindings_[binding].offset)];
    }
    return true;
  }
  return false;
}

}  // namespace bm::compiler
