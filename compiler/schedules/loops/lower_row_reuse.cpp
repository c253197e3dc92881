// Row cache: intermediates of softmax, norms and other row kernels are materialised once, in
// scratch between the passes over the row.
#include <algorithm>

#include "compiler/program/expr.h"
#include "compiler/schedules/loops/lowering.h"

namespace bm::compiler {

RowCache::RowCache(Emitter& e) : e_(e), b_(e.builder()), schedule_(e.schedule()) {
  for (const RowCachePlan& plan : schedule_.row_caches) {
    uint64_t count = 1;
    for (size_t i = 1; i < plan.producer->src.size(); ++i)
      count *= static_cast<uint64_t>(std::max<int64_t>(plan.producer->src[i]->src[0]->hi, 1));
    rows_[plan.node] = {plan.producer, b_.add_local(plan.node->dtype, count), {}};
  }
}

/// The loops of one pass of a producer are bound: what it computes under them is kept.
void RowCache::begin_step(const ReduceState& s, const Node* /*range*/, uint32_t binding) {
  for (auto& [node, row] : rows_)
    if (std::find(s.group.begin(), s.group.end(), row.producer) != s.group.end())
      row.bindings.push_back(binding);
}

/// What other passes will read, whether the sum needed it or only what it is made of.
void RowCache::end_step(const ReduceState& s, const Node* range, uint32_t binding) {
  for (const RowCachePlan& plan : schedule_.row_caches)
    for (size_t m = 0; m < s.members(); ++m)
      if (s.reduce(m) == plan.producer) e_.emit(plan.node, e_.bound(s.env(m), range, binding));
}

/// Row-major index of the element that `env` stands for; the first of several lanes.
ValueId RowCache::index_of(const Row& row, const Env& env) {
  ValueId at = b_.index(0);
  const auto ranges = row.producer->src.subspan(1);
  int64_t step = 1;
  for (size_t i = ranges.size(); i-- > 0;) {
    Env first = env;
    const uint32_t number = e_.number_of(ranges[i]);
    first[number] = e_.binding(env[number]).first_lane;
    const ValueId index = e_.emit(ranges[i], first);
    at = Expr(Expr(b_, index) * step + Expr(b_, at));
    step *= std::max<int64_t>(ranges[i]->src[0]->hi, 1);
  }
  return at;
}

/// nothing: `n` is computed here, and nowhere else.
std::optional<ValueId> RowCache::replace(const Node* n, const Env& env) {
  const auto it = rows_.find(n);
  if (it == rows_.end()) return std::nullopt;
  Row& row = it->second;
  BlockId block = e_.program().root;
  uint32_t lanes = 1;
  bool is_producing = false;
  for (const Node* r : row.producer->src.subspan(1)) {
    const uint32_t number = env[e_.number_of(r)];
    is_producing = is_producing || std::find(row.bindings.begin(), row.bindings.end(), number) !=
                                       row.bindings.end();
    const Binding& binding = e_.binding(number);
    block = b_.deeper(block, binding.block);
    lanes = std::max(lanes, binding.lanes);
  }
  if (!is_producing) {
    e_.emit(row.producer, env);  // its loops come before this one
    return b_.local_load(block, row.array, index_of(row, env), lanes);
  }
  const ValueId value = e_.splat(e_.compute(n, env), lanes);
  b_.local_store(block, row.array, index_of(row, env), value);
  return value;
}

}  // namespace bm::compiler
