#pragma once
// Epilogue: accumulators become results, which are stored one by one or in pairs; or wait in a
// workspace.

#include <span>
#include <vector>

#include "compiler/lowering/emitter.h"

namespace bm::compiler {

/// What is made while it lives stays in `block` or deeper, also what is known of it.
class Confined {
 public:
  Confined(Emitter& e, BlockId block)
      : e_(e), memo_(e.save()), floor_(e.builder().set_floor(block)) {
    e_.set_confined(true);
  }
  ~Confined() {
    e_.set_confined(false);
    e_.builder().set_floor(floor_);
    e_.restore(memo_);
  }
  Confined(const Confined&) = delete;
  Confined& operator=(const Confined&) = delete;

 private:
  Emitter& e_;
  Memo memo_;
  BlockId floor_;
};

/// Vectors side by side in a workspace array, from element `at` on.
void store_vectors(Builder& b, BlockId block, uint32_t array, ValueId at,
                   std::span<const ValueId> vectors);
/// The same of registers: accumulators that are spilled, or done.
void spill_vectors(Builder& b, BlockId block, uint32_t array, ValueId at,
                   std::span<const uint32_t> registers);

/// Whether what is stored, or whether it is, loads anything besides what `sum` does.
bool has_other_loads(const ir::KernelIr& kernel, const Node* sum);

/// Results of this work-item, in the order they are added.
class Epilogue {
 public:
  /// `sum`: the reduction whose values come from registers.
  Epilogue(Emitter& e, const Node* sum) : e_(e), b_(e.builder()), sum_(sum) {}
  void add(const Env& env, ValueId sum, ValueId gate = kNone);

  /// None has a gate.
  void store(BlockId block) { e_.emit_stores(block, envs_, e_.kernel().stores); }
  /// Results 2i and 2i + 1 are adjacent along `columns`: one store for both where they are in
  /// memory too and params start at multiples of 16 bytes.
  void store_pairs(BlockId block, const Node* columns, bool is_aligned);
  /// The same where only the device knows whether params do.
  void store_pairs(BlockId block, const Node* columns, ValueId is_aligned, ValueId is_not);

 private:
  struct Element {
    ValueId value = kNone, at = kNone, gate = kNone;
  };
  Element element(const ir::Store& s, size_t i);
  void emit_values();

  Emitter& e_;
  Builder& b_;
  const Node* sum_;
  Instances envs_;
  std::vector<ValueId> gates_;
};

}  // namespace bm::compiler
