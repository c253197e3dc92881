#include "compiler/lowering/epilogue.h"

#include <algorithm>
#include <array>
#include <unordered_set>

namespace bm::compiler {
namespace {

constexpr size_t kPair = 2;

/// Whether pairs along `columns`, from an even one on, are contiguous in memory.
bool has_pairs(const ir::Store& s, const Node* columns) {
  return !s.gate && columns->src[0]->is_const() && columns->src[0]->imm % int64_t{kPair} == 0 &&
         is_row(ir::linear(s.index), columns, kPair);
}

bool has_loads(const Node* n, const Node* sum, std::unordered_set<const Node*>* seen) {
  if (n == nullptr || n == sum || !seen->insert(n).second) return false;
  return n->op == Op::kLoad ||
         std::ranges::any_of(n->src, [&](const Node* s) { return has_loads(s, sum, seen); });
}

}  // namespace

bool has_other_loads(const ir::KernelIr& kernel, const Node* sum) {
  std::unordered_set<const Node*> seen;
  return std::ranges::any_of(kernel.stores, [&](const ir::Store& s) {
    return has_loads(s.value, sum, &seen) || has_loads(s.gate, sum, &seen);
  });
}

void store_vectors(Builder& b, BlockId block, uint32_t array, ValueId at,
                   std::span<const ValueId> vectors) {
  int64_t offset = 0;
  for (const ValueId v : vectors) {
    b.local_store(block, array, b.add(at, b.index(offset)), v);
    offset += b.type(v).lanes;
  }
}

void spill_vectors(Builder& b, BlockId block, uint32_t array, ValueId at,
                   std::span<const uint32_t> registers) {
  int64_t offset = 0;
  for (const uint32_t reg : registers) {
    const ValueId to = b.add(at, b.index(offset)), v = b.read(block, reg);
    b.local_store(block, array, to, v);
    offset += b.type(v).lanes;
  }
}

void Epilogue::add(const Env& env, ValueId sum, ValueId gate) {
  envs_.push_back(env);
  gates_.push_back(gate);
  e_.set_known(sum_, env, sum);
}

Epilogue::Element Epilogue::element(const ir::Store& s, size_t i) {
  Element out{.gate = gates_[i]};
  out.value = e_.emit(s.value, envs_[i]);
  out.at = e_.emit(s.index, envs_[i]);
  if (!s.gate) return out;
  const ValueId own = e_.emit(s.gate, envs_[i]);
  out.gate = out.gate == kNone ? own : b_.bit_and(own, out.gate);
  return out;
}

void Epilogue::emit_values() {
  for (const Env& env : envs_)
    for (const ir::Store& s : e_.kernel().stores) {
      e_.emit(s.value, env);
      if (s.gate) e_.emit(s.gate, env);
    }
}

void Epilogue::store_pairs(BlockId block, const Node* columns, bool is_aligned) {
  e_.set_instances(&envs_);
  const auto is_changed = [](const ir::Param& param) { return param.is_read && param.is_written; };
  // All values before any store: a param may be read and written at the same element.
  if (std::ranges::any_of(e_.kernel().params, is_changed)) emit_values();
  for (size_t i = 0; i < envs_.size(); i += kPair)
    for (const ir::Store& s : e_.kernel().stores) {
      const bool is_paired = is_aligned && has_pairs(s, columns);
      for (size_t e = i; e < i + (is_paired ? 1 : kPair); ++e) {
        const Element own = element(s, e);
        if (is_paired)
          b_.store_together(block, s.param, own.at, {own.value, e_.emit(s.value, envs_[e + 1])},
                            own.gate);
        else
          b_.store(block, s.param, own.at, own.value, own.gate);
      }
    }
  e_.set_instances(nullptr);
}

void Epilogue::store_pairs(BlockId block, const Node* columns, ValueId is_aligned, ValueId is_not) {
  e_.set_instances(&envs_);
  std::vector<std::vector<Element>> elements;  // by store
  for (const ir::Store& s : e_.kernel().stores) {
    std::vector<Element>& own = elements.emplace_back();
    for (size_t i = 0; i < envs_.size(); ++i) own.push_back(element(s, i));
  }
  e_.set_instances(nullptr);
  for (const bool is_fast : {true, false}) {
    const BlockId inside = b_.open_block(block);
    for (size_t n = 0; n < elements.size(); ++n) {
      const ir::Store& s = e_.kernel().stores[n];
      const bool is_paired = is_fast && has_pairs(s, columns);
      for (size_t i = 0; i < envs_.size(); i += is_paired ? kPair : 1) {
        const Element& own = elements[n][i];
        if (is_paired)
          b_.store_together(inside, s.param, own.at, {own.value, elements[n][i + 1].value},
                            own.gate);
        else
          b_.store(inside, s.param, own.at, own.value, own.gate);
      }
    }
    b_.close_if(inside, is_fast ? is_aligned : is_not);
  }
}

}  // namespace bm::compiler
