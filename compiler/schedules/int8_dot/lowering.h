#pragma once
// Lowering of int8 dot products inside other reductions, for targets of both kinds.

#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/analysis/byte_lookup.h"
#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"

namespace bm::compiler {

/// For the table of strategies.
void lower_int8_dot(Emitter& e);

/// int8 dot products by their instructions; see DotPlan.
class Int8Dot final : public EmitRule {
 public:
  explicit Int8Dot(Emitter& e) : e_(e), b_(e.builder()), schedule_(e.schedule()) {}
  std::optional<ValueId> compute(const Node* n, const Env& env) override;
  void reduce(ReduceState& s, BlockId block, const std::function<void(BlockId)>& inner) override;
  void begin_step(const ReduceState& s, const Node* range, uint32_t binding) override;

 private:
  const std::vector<const Node*>& dot_roots(const Node* reduce);
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
  ValueId look_up(const Node* n, const Env& env, const Node* stream);
  ValueId load_word(const Node* n, const Env& env, const Node* stream);
  void prefetch_words(const Node* load, ValueId index, const Node* stream);
  // lower_unaligned.cpp: words of work-items, which must lie at multiples of 4 bytes.
  std::vector<const Node*> unguarded_dots(const ReduceState& s);
  void emit_invariants(const ReduceState& s);
  void guard_words(const std::vector<const Node*>& dots, BlockId block,
                   const std::function<void(BlockId)>& write);
  const Node* wide_range(const Node* load);
  ValueId load_aligned_word(const Node* load, const Env& env);
  void emit_guarded_dot(const Node* dot, const std::vector<Env>& envs);

  Emitter& e_;
  Builder& b_;
  const Schedule& schedule_;
  std::unordered_map<const Node*, std::vector<const Node*>> dot_roots_;  // by outer reduction
  Memo words_;
  std::unordered_map<const Node*, std::optional<ByteLookup>> lookups_;
  bool is_guarded_ = false;         // values being made are for one kind of address
  bool has_aligned_words_ = false;  // words being loaded lie at multiples of 4 bytes
  const Node* dot_ = nullptr;       // the dot product whose words are being loaded
  std::map<std::pair<const Node*, const Node*>, const Node*> wide_ranges_;  // by dot and load
  std::unordered_map<const Node*, uint32_t> step_origins_;
  std::map<std::pair<const Node*, int64_t>, uint32_t> step_bindings_;
};

}  // namespace bm::compiler
