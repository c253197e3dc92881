#pragma once
// Contiguous elements of one work-item, 16 bytes at a time.

#include <cstdint>
#include <map>
#include <vector>

#include "compiler/analysis/cost.h"
#include "compiler/lowering/emitter.h"

namespace bm::compiler {

/// Elements of `dtype` in one access of a work-item that has `count` contiguous ones.
constexpr uint32_t access_width(DType dtype, uint32_t count) {
  const auto most = static_cast<uint32_t>(16 / item_size(dtype));
  return count < most ? count : most;
}

/// Whether `load`, for `count` iterations of `range` from a multiple of as many on, is a whole
/// number of accesses of access_width elements: contiguous, and at a multiple of their bytes where
/// the param is at one of 16. A gate holds for all of them or for none.
bool is_contiguous_load(CostModel& model, const Node* load, const Node* range, uint32_t count);
/// The same of a store.
bool is_contiguous_store(CostModel& model, const ir::Store& store, const Node* range,
                         uint32_t count);
/// Adds `loads` and `stores` along `range` to the plan of `count` contiguous elements. False if one
/// of them depends on `range` in another way, is wider than two accesses or narrower than a word:
/// adjacent work-items would not read and write whole sectors.
bool add_contiguous(CostModel& model, const std::vector<const Node*>& loads,
                    const std::vector<ir::Store>& stores, const Node* range, ContiguousPlan* plan);

/// While it is on, loads are made `count` iterations of a loop at a time: of those whose binding's
/// offset differs in its rest by `count` only. Masks of such iterations are the same.
class ContiguousAccess final : public EmitRule {
 public:
  explicit ContiguousAccess(Emitter& e) : e_(e), b_(e.builder()) {}
  /// From here to stop() params of the schedule's ContiguousPlan are at multiples of 16 bytes.
  void start() { set(e_.schedule().contiguous.count); }
  void stop() { set(1); }
  /// 1: it is off.
  uint32_t count() const { return count_; }
  /// bool: whether all params of the plan are at multiples of 16 bytes.
  ValueId is_aligned();
  std::optional<ValueId> replace(const Node* n, const Env& env) override;
  /// As Emitter::emit_stores; `instances` come in runs of `count` iterations of such a loop.
  void emit_stores(BlockId block, const Instances& instances);

 private:
  void set(uint32_t count);
  ValueId element(const Node* load, ValueId word, uint32_t number);

  Emitter& e_;
  Builder& b_;
  uint32_t count_ = 1;
  std::map<std::pair<uint32_t, int64_t>, uint32_t> firsts_;  // bindings, by origin and offset
  std::map<std::vector<uint32_t>, std::vector<ValueId>> words_;
};

}  // namespace bm::compiler
