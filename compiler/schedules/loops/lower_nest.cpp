// Output loops in lanes, unrolled and jammed, on targets without work-groups.
#include <algorithm>
#include <array>

#include "compiler/program/expr.h"
#include "compiler/lowering/prefetch.h"
#include "compiler/schedules/loops/lowering.h"

namespace bm::compiler {

void LoopLowering::lower_inner(size_t axis, BlockId block, const Instances& instances) {
  if (before_axis) before_axis(axis, block, instances[0]);
  if (axis == schedule_.loops.size()) return e_.emit_stores(block, instances, e_.kernel().stores);
  if (schedule_.scan && schedule_.loops[axis].range == schedule_.scan) scan_.start(block);
  const Node* range = schedule_.loops[axis].range;
  if (const auto tile = tiles_.find(range); tile != tiles_.end())
    return lower_axis(axis, block, instances, tile->second.first, tile->second.second);
  const ValueId extent = e_.emit(range->src[0], instances[0]);
  lower_axis(axis, block, instances, b_.index(0), extent);
}

void LoopLowering::lower_tiles(size_t axis, BlockId block, const Instances& instances,
                               ValueId begin, ValueId end) {
  const AxisPlan& plan = schedule_.loops[axis];
  const Builder::Loop loop = b_.open_loop(block);
  const Expr first(b_, loop.index), last(b_, end);
  const Expr tile_end = min(first + plan.tile, last);
  tiles_[plan.range] = {loop.index, tile_end};
  lower_inner(axis + 1, loop.body, instances);
  tiles_.erase(plan.range);
  b_.close_loop(loop, begin, end, plan.tile);
}

/// Iterations of full width, then one vector at a time, then single iterations.
void LoopLowering::lower_axis(size_t axis, BlockId block, const Instances& instances, ValueId begin,
                              ValueId end) {
  const AxisPlan& plan = schedule_.loops[axis];
  if (plan.tile > 0) return lower_tiles(axis, block, instances, begin, end);
  const Node* extent = plan.range->src[0];
  const auto is_multiple = [&](int64_t step) {
    return step == 1 || (extent->is_const() && extent->imm % step == 0);
  };
  std::vector<std::pair<uint32_t, uint32_t>> widths;
  widths.emplace_back(plan.lanes, plan.jam);
  if (!is_multiple(plan.step()) && plan.rest > 1) widths.emplace_back(plan.lanes, plan.rest);
  if (!is_multiple(plan.step()) && plan.jam > 1) widths.emplace_back(plan.lanes, 1);
  if (!is_multiple(plan.lanes)) widths.emplace_back(1, 1);
  const bool is_masked = plan.is_masked && !is_multiple(plan.lanes);
  // Begin is a multiple of the widest step; see lower_grid.
  ValueId from = begin;
  for (size_t i = 0; i < widths.size(); ++i) {
    const int64_t step = int64_t{widths[i].first} * widths[i].second;
    ValueId to = end;
    if (i + 1 < widths.size()) {
      const ValueId count = b_.sub(end, from);
      const ValueId length = e_.max_index(count, b_.index(0));
      const Expr first(b_, from);
      to = Expr(first + whole_steps({b_, length}, step));
      if (step & (step - 1)) {
        const Expr wide = bitcast(Expr(b_, length), DType::kU64);
        const Expr whole =
            bitcast(wide % bitcast(Expr(b_, b_.index(step)), DType::kU64), DType::kI64);
        to = Expr(first + (Expr(b_, length) - whole));
      }
    }
    if (is_masked && i + 1 == widths.size())
      lower_masked(axis, block, instances, from, to);
    else
      lower_vectors(axis, block, instances, from, to, widths[i].first, widths[i].second);
    from = to;
  }
}

void LoopLowering::lower_vectors(size_t axis, BlockId block, const Instances& instances,
                                 ValueId begin, ValueId end, uint32_t lanes, uint32_t jam) {
  const Builder::Loop loop = b_.open_loop(block);
  const Node* range = schedule_.loops[axis].range;
  lower_inner(axis + 1, loop.body,
              e_.bind_axis(instances, range, loop.index, loop.body, lanes, jam, lanes));
  if (jam == schedule_.loops[axis].jam && lanes > 1)
    e_.prefetch().next_row_half(axis, loop.body, instances[0], loop.index);
  b_.close_loop(loop, begin, end, int64_t{lanes} * jam);
}

/// Fewer iterations than lanes, if any.
void LoopLowering::lower_masked(size_t axis, BlockId block, const Instances& instances,
                                ValueId begin, ValueId end) {
  const AxisPlan& plan = schedule_.loops[axis];
  const Builder::Loop loop = b_.open_loop(block);
  const uint32_t binding = e_.make_bindings(loop.index, loop.body, 0, plan.lanes, 0);
  const Expr left = convert(Expr(b_, end) - Expr(b_, loop.index), DType::kI32);
  const ValueId lane = b_.convert(b_.iota(plan.lanes, 1), DType::kI32);
  const ValueId most = e_.splat(left, plan.lanes);
  e_.set_mask(binding, b_.lt(lane, most));
  Instances inside;
  for (const Env& env : instances) inside.push_back(e_.bound(env, plan.range, binding));
  lower_inner(axis + 1, loop.body, inside);
  b_.close_loop(loop, begin, end, plan.lanes);
}

}  // namespace bm::compiler
