// Values of a row kept in scratch between the passes over it.
#include <algorithm>

#include "compiler/lowering/emitter.h"

namespace bm::compiler {

void Emitter::prepare_stages() {
  for (const StagePlan& plan : schedule_.stages) {
    uint64_t count = 1;
    for (size_t i = 1; i < plan.producer->src.size(); ++i)
      count *= static_cast<uint64_t>(std::max<int64_t>(plan.producer->src[i]->src[0]->hi, 1));
    stages_[plan.node] = {plan.producer, b_.add_local(plan.node->dtype, count), {}};
  }
}

/// The loops of one pass of a producer are bound: what it computes under them is kept.
void Emitter::note_producer(const ReduceState& s, uint32_t binding) {
  for (auto& [node, stage] : stages_)
    if (std::find(s.group.begin(), s.group.end(), stage.producer) != s.group.end())
      stage.bindings.push_back(binding);
}

/// Row-major place of the element that `env` stands for; the first of several lanes.
ValueId Emitter::stage_index(const Stage& stage, const Env& env) {
  ValueId at = b_.index(0);
  const auto ranges = stage.producer->src.subspan(1);
  int64_t step = 1;
  for (size_t i = ranges.size(); i-- > 0;) {
    Env first = env;
    const uint32_t number = number_of(ranges[i]);
    first[number] = bindings_[env[number]].first_lane;
    const ValueId index = emit(ranges[i], first);
    at = b_.add(b_.mul(index, b_.index(step)), at);
    step *= std::max<int64_t>(ranges[i]->src[0]->hi, 1);
  }
  return at;
}

/// nothing: `n` is computed here, and nowhere else.
std::optional<ValueId> Emitter::emit_staged(const Node* n, const Env& env) {
  const auto it = stages_.find(n);
  if (it == stages_.end()) return std::nullopt;
  Stage& stage = it->second;
  BlockId block = program_.root;
  uint32_t lanes = 1;
  bool is_producing = false;
  for (const Node* r : stage.producer->src.subspan(1)) {
    const uint32_t number = env[number_of(r)];
    is_producing = is_producing || std::find(stage.bindings.begin(), stage.bindings.end(),
                                             number) != stage.bindings.end();
    const Binding& binding = bindings_[number];
    block = b_.deeper(block, binding.block);
    lanes = std::max(lanes, binding.lanes);
  }
  if (!is_producing) {
    emit(stage.producer, env);  // its loops come before this one
    return b_.local_load(block, stage.array, stage_index(stage, env), lanes);
  }
  const ValueId value = spread(compute(n, env), lanes);
  b_.local_store(block, stage.array, stage_index(stage, env), value);
  return value;
}

}  // namespace bm::compiler
