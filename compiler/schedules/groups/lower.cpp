// Output loops on work-groups.
#include <algorithm>
#include <array>
#include <bit>

#include "compiler/lowering/epilogue.h"
#include "compiler/program/expr.h"
#include "compiler/schedules/groups/lowering.h"
#include "compiler/schedules/groups/segments.h"
#include "compiler/schedules/int8_dot/lowering.h"
#include "compiler/schedules/loops/lowering.h"

namespace bm::compiler {
namespace {

constexpr int64_t kMax32 = 0xffffffff;

/// Largest value of an extent, at least 1.
int64_t largest(const Node* extent) { return std::max<int64_t>(extent->hi, 1); }

}  // namespace

/// Binds `loops` to the digits of `index` in the mixed base `counts`, last digit lowest.
/// Merged iterations of a loop are count iterations apart, so that adjacent work-items stay
/// adjacent.
Instances GroupLowering::split_index(ValueId index, const std::vector<size_t>& loops,
                                     const std::vector<ValueId>& counts, bool is_narrow,
                                     BlockId block, const Instances& instances) {
  Instances out = instances;
  ValueId rest = index;
  for (size_t d = loops.size(); d-- > 0;) {
    const AxisPlan& axis = schedule_.loops[loops[d]];
    const bool is_single = axis.range->src[0]->is_const(1);
    ValueId digit = b_.index(0);
    if (d == 0) {
      digit = rest;
    } else if (!is_single) {
      digit = e_.divide_index(Op::kMod, rest, counts[d], is_narrow);
      rest = e_.divide_index(Op::kDiv, rest, counts[d], is_narrow);
    }
    const int64_t spacing = axis.jam > 1 ? axis.range->src[0]->imm / axis.jam : 1;
    out = e_.bind_axis(out, axis.range, digit, block, 1, axis.jam, spacing);
  }
  return out;
}

namespace {

/// Rules that kernels with work-groups may need besides.
template <class Lowering>
void lower_with(Emitter& e) {
  RowCache rows(e);
  Lowering lowering(e);
  Int8Dot dots(e);
  e.add_rule(rows);
  e.add_rule(lowering);
  e.add_rule(dots);
  lowering.run();
}

}  // namespace

void lower_groups(Emitter& e) {
  if (segment_loop(e.kernel(), e.builder().target()) != nullptr) return lower_segment_groups(e);
  lower_with<GroupLowering>(e);
}
void lower_transpose(Emitter& e) { lower_with<TransposeLowering>(e); }

void GroupLowering::run() {
  struct Open {
    Builder::Loop loop;
    uint32_t axis;
    ValueId end;
  };
  std::vector<Open> open;
  Instances instances{e_.unbound()};
  BlockId block = e_.root();
  ValueId chunk = b_.index(0);
  for (uint32_t axis = 0; axis < schedule_.axes.size(); ++axis) {
    const std::vector<GroupFactor>& factors = schedule_.axes[axis];
    if (factors.empty()) continue;
    const Builder::Loop loop = b_.open_loop(block, LoopKind::kGroup);
    block = loop.body;
    ValueId rest = loop.index, total = b_.index(1), end = kNone;
    for (size_t i = 0; i < factors.size(); ++i) {
      const GroupFactor& f = factors[i];
      const bool is_last = i + 1 == factors.size(), is_chunk = f.loop == kNone;
      // The number of chunks is a constant unless it is the only factor.
      ValueId count = b_.index(f.count);
      const bool has_group_outputs = !is_chunk && schedule_.loops[f.loop].has_group_outputs;
      if (has_group_outputs)
        count = b_.index(schedule_.output_groups(f.loop));
      else if (!is_chunk)
        count = tiles_along(schedule_.loops[f.loop], instances[0]);
      ValueId digit = rest;
      if (!is_last) {
        // Groups along an axis are counted in 32 bits.
        const bool is_known = e_.program().at(count).op == ValueOp::kConst;
        digit = e_.divide_index(Op::kMod, rest, count, is_known);
        rest = e_.divide_index(Op::kDiv, rest, count, is_known);
      }
      total = b_.mul(total, count);
      if (f.is_bounded) end = total;
      if (has_group_outputs) {
        const ValueId first = b_.mul(digit, b_.index(schedule_.group_outputs));
        digit = b_.add(first, output_index());
      }
      if (!is_chunk && schedule_.loops[f.loop].tile > 0)
        digit = b_.mul(digit, b_.index(schedule_.loops[f.loop].tile));
      if (is_chunk)
        chunk = digit;
      else
        instances = e_.bind_axis(instances, schedule_.loops[f.loop].range, digit, block, 1, 1, 1);
      if (has_group_outputs) mask_outputs(schedule_.loops[f.loop].range, digit, instances[0]);
    }
    open.push_back({loop, axis, end});
  }
  lower_items(block, std::move(instances), chunk);
  for (size_t i = open.size(); i-- > 0;) b_.close_groups(open[i].loop, open[i].axis, open[i].end);
}

/// Iterations of a loop in the grid, or tiles of them.
ValueId GroupLowering::tiles_along(const AxisPlan& axis, const Env& env) {
  const ValueId extent = e_.emit(axis.range->src[0], env);
  if (axis.tile == 0) return extent;
  const Value v = e_.program().at(extent);
  if (v.op == ValueOp::kConst) return b_.index((v.imm + axis.tile - 1) / axis.tile);
  const Expr up = Expr(b_, extent) + (axis.tile - 1);
  return Expr(up >> std::countr_zero(static_cast<uint64_t>(axis.tile)));
}

/// One iteration without reductions. The other work-items have nothing to do, nor to load: beside a
/// store in place that would be a race, though they drop what they load.
void GroupLowering::lower_single(BlockId block, const Env& env) {
  const BlockId body = b_.open_block(block);
  {
    const Confined confined(e_, body);
    e_.emit_stores(body, {env}, e_.kernel().stores);
  }
  b_.close_if(body, b_.lt(b_.item(), b_.index(1)));
}

/// The other loops, merged: one chunk of their iterations per group.
void GroupLowering::lower_items(BlockId block, Instances instances, ValueId chunk) {
  const bool is_row = schedule_.item_unroll > 0 || schedule_.loops.size() == schedule_.grid_loops;
  if (is_row && schedule_.contiguous.count > 1)
    return where_aligned(block, [&](BlockId body) { lower_row(body, instances[0]); });
  if (schedule_.item_unroll > 0) return lower_row(block, instances[0]);
  if (is_row && schedule_.group_outputs == 1 && e_.reduces().empty() && !e_.is_ordered())
    return lower_single(block, instances[0]);
  ItemLoops items;
  items.instances = std::move(instances);
  items.total = b_.index(schedule_.group_outputs);
  int64_t most = 1;
  for (size_t i = schedule_.grid_loops; i < schedule_.loops.size(); ++i) {
    const AxisPlan& axis = schedule_.loops[i];
    const Node* extent = axis.range->src[0];
    items.loops.push_back(i);
    ValueId count =
        axis.jam > 1 ? b_.index(extent->imm / axis.jam) : e_.emit(extent, items.instances[0]);
    if (extent->lo < 0) {
      count = e_.max_index(count, b_.index(0));
    }
    items.counts.push_back(count);
    items.total = b_.mul(items.total, count);
    if (__builtin_mul_overflow(most, largest(extent), &most)) most = INT64_MAX;
  }
  items.is_narrow = most <= kMax32;
  items.chunk = chunk;
  if (schedule_.contiguous.count > 1 && schedule_.is_unrolled)
    lower_contiguous(items, block);
  else if (!schedule_.is_unrolled)
    lower_item_loop(items, block);
  else if (schedule_.is_exact)
    lower_unrolled(items, block);
  else
    split_chunks(items, block);
}

}  // namespace bm::compiler
