#include "compiler/schedules/groups/segments.h"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <vector>

#include "compiler/program/expr.h"
#include "compiler/schedules/groups/lowering.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Of one sub-group on any target.
constexpr int64_t kMostSegment = 32;

std::vector<const Node*> nodes_of(const ir::KernelIr& kernel) {
  std::vector<const Node*> roots;
  for (const ir::Store& s : kernel.stores) roots.push_back(s.value);
  return ir::topological(roots);
}

bool is_along(const Node* n, const Node* loop) {
  return n->op == Op::kReduce && std::find(n->src.begin() + 1, n->src.end(), loop) != n->src.end();
}

/// What is different for different iterations of `loop`. `nodes`: sources first.
std::unordered_set<const Node*> varying(std::span<const Node* const> nodes, const Node* loop) {
  std::unordered_set<const Node*> out{loop};
  for (const Node* n : nodes) {
    if (is_along(n, loop)) continue;
    const size_t count = n->op == Op::kReduce ? 1 : n->src.size();
    for (size_t i = 0; i < count; ++i)
      if (out.contains(n->src[i])) out.insert(n);
  }
  return out;
}

}  // namespace

bool is_segment(const Node* n, const Node* loop) {
  return loop != nullptr && n->op == Op::kReduce && n->src.size() == 2 && n->src[1] == loop;
}

const Node* segment_loop(const ir::KernelIr& kernel, const TargetInfo& target) {
  if (kernel.stores.size() < 2 || kernel.ranges.empty() || !target.has_segments) return nullptr;
  const Node* loop = kernel.ranges.back();
  const Node* extent = loop->src[0];
  // All lanes of a sub-group come to a shuffle: work-items are as many as whole sub-groups.
  if (!extent->is_const(kMostSegment) || target.sub_group % kMostSegment != 0) return nullptr;
  int64_t items = 1;
  for (const Node* r : kernel.ranges)
    if (r->src[0]->is_const()) items *= r->src[0]->imm;
  if (items % target.sub_group != 0) return nullptr;
  const auto nodes = nodes_of(kernel);
  const bool is_found =
      std::ranges::any_of(nodes, [&](const Node* n) { return is_segment(n, loop); });
  const bool is_narrow = std::ranges::all_of(nodes, [&](const Node* n) {
    return !is_segment(n, loop) || n->dtype == DType::kF32 || n->dtype == DType::kI32;
  });
  return is_found && is_narrow ? loop : nullptr;
}

bool has_segments_only(const ir::KernelIr& kernel, const TargetInfo& target) {
  const Node* loop = segment_loop(kernel, target);
  if (loop == nullptr || kernel.ranges.size() < 2) return false;
  const Node* around = kernel.ranges[kernel.ranges.size() - 2];
  const auto nodes = nodes_of(kernel);
  const auto inside = varying(nodes, loop), outside = varying(nodes, around);
  return std::ranges::all_of(nodes, [&](const Node* n) {
    if (n->op == Op::kScan || n->op == Op::kTopK) return false;
    return n->op != Op::kReduce || is_segment(n, loop) ||
           (!inside.contains(n) && !outside.contains(n));
  });
}

std::optional<ValueId> SegmentReductions::replace(const Node* n, const Env& env) {
  if (!is_segment(n, loop_)) return std::nullopt;
  Builder& b = e_.builder();
  ValueId value = e_.emit(n->src[0], env);
  const BlockId block = b.deeper(e_.binding(env, loop_).block, b.block_of(value));
  for (uint32_t with = kMostSegment / 2; with > 0; with /= 2)
    value = b.reduce_step(n->reduce_op(), value, b.shuffle(block, value, with));
  return value;
}

namespace {

/// Every work-item has one element. Those behind the end have one of the last segment, which they
/// do not store: all lanes come to every shuffle.
class SegmentLowering final : public GroupLowering {
 public:
  using GroupLowering::GroupLowering;

 private:
  void lower_items(BlockId block, Instances instances, ValueId chunk) override;
};

void SegmentLowering::lower_items(BlockId block, Instances instances, ValueId chunk) {
  Env env = instances[0];
  std::vector<ValueId> counts;
  ValueId total = b_.index(1);
  for (size_t i = schedule_.grid_loops; i < schedule_.loops.size(); ++i) {
    counts.push_back(e_.emit(schedule_.loops[i].range->src[0], env));
    total = b_.mul(total, counts.back());
  }
  const Expr item(b_, b_.item());
  const Expr number = Expr(b_, chunk) * schedule_.chunk + item;
  const Expr lane = item & (kMostSegment - 1);
  const Expr last = Expr(b_, total) - kMostSegment + lane;
  ValueId rest = Expr(min(number, last));
  const ValueId exists = b_.lt(number, total);
  for (size_t i = counts.size(); i-- > 0;) {
    const ValueId digit = e_.next_digit(&rest, counts[i], i == 0);
    const uint32_t binding = e_.make_bindings(digit, block, 0, 1, 0);
    if (!schedule_.is_exact) e_.set_mask(binding, exists);
    env = e_.bound(env, schedule_.loops[schedule_.grid_loops + i].range, binding);
  }
  e_.emit_stores(block, {env}, e_.kernel().stores);
}

}  // namespace

void lower_segment_groups(Emitter& e) {
  SegmentReductions segments(e);
  SegmentLowering lowering(e);
  e.add_rule(segments);
  e.add_rule(lowering);
  lowering.run();
}

}  // namespace bm::compiler
