#pragma once
// Software prefetch in loops of reductions and of outputs, on targets without work-groups.

#include <optional>
#include <span>

#include "compiler/lowering/emitter.h"

namespace bm::compiler {

class Prefetch {
 public:
  explicit Prefetch(Emitter& e)
      : e_(e), b_(e.builder()), kernel_(e.kernel()), schedule_(e.schedule()) {}

  bool splits_row(const ReducePlan& plan, std::span<const Node* const> reduces, const Node* range,
                  int64_t part) const;
  void rows_ahead(const ReduceState& s, BlockId body, const Node* range, uint32_t binding);
  void next_rows(const ReduceState& s, BlockId body, const Node* range, uint32_t binding);
  void next_row_half(size_t axis, BlockId body, const Env& env, ValueId index);

 private:
  bool is_from_memory(const Node* load) const;
  bool is_stream(const Node* load, int64_t apart) const;
  bool is_read_again(const Node* reduce, const Node* load) const;
  const Node* split_row();
  std::optional<int64_t> row_of(const Node* load, bool is_again);

  Emitter& e_;
  Builder& b_;
  const ir::KernelIr& kernel_;
  const Schedule& schedule_;
  std::optional<const Node*> split_row_;  // see split_row
  const Node* split_range_ = nullptr;     // that its load runs along
};

}  // namespace bm::compiler
