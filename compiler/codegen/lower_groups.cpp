// Output loops on work-groups.
#include <algorithm>
#include <array>

#include "compiler/codegen/lowerer.h"

namespace bm::compiler {
namespace {

constexpr int64_t kMax32 = 0xffffffff;

/// Largest value of an extent, at least 1.
int64_t largest(const Node* extent) { return std::max<int64_t>(extent->hi, 1); }

}  // namespace

/// Binds `loops` to the digits of `index` in the mixed base `counts`, last digit lowest. Copies of
/// a merged loop are count iterations apart, so that neighbouring work-items stay neighbours.
Lowerer::Instances Lowerer::split_index(ValueId index, const std::vector<size_t>& loops,
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
      digit = divide_index(Op::kMod, rest, counts[d], is_narrow);
      rest = divide_index(Op::kDiv, rest, counts[d], is_narrow);
    }
    const int64_t spacing = axis.jam > 1 ? axis.range->src[0]->imm / axis.jam : 1;
    out = bind_axis(out, axis.range, digit, block, 1, axis.jam, spacing);
  }
  return out;
}

void Lowerer::lower_groups(BlockId root) {
  struct Open {
    Builder::Loop loop;
    uint32_t axis;
    ValueId end;
  };
  std::vector<Open> open;
  Instances instances{Env(ranges_.size(), 0)};
  BlockId block = root;
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
      const bool is_side = !is_chunk && schedule_.loops[f.loop].is_side;
      if (is_side)
        count = b_.index(schedule_.side_groups(f.loop));
      else if (!is_chunk)
        count = emit(schedule_.loops[f.loop].range->src[0], instances[0]);
      ValueId digit = rest;
      if (!is_last) {
        digit = divide_index(Op::kMod, rest, count, false);
        rest = divide_index(Op::kDiv, rest, count, false);
      }
      total = b_.mul(total, count);
      if (f.is_bounded) end = total;
      if (is_side) {
        const ValueId first = b_.mul(digit, b_.index(schedule_.side));
        digit = b_.add(first, side_number());
      }
      if (is_chunk)
        chunk = digit;
      else
        instances = bind_axis(instances, schedule_.loops[f.loop].range, digit, block, 1, 1, 1);
      if (is_side) mask_side(schedule_.loops[f.loop].range, digit, instances[0]);
    }
    open.push_back({loop, axis, end});
  }
  lower_items(block, std::move(instances), chunk);
  for (size_t i = open.size(); i-- > 0;) b_.close_groups(open[i].loop, open[i].axis, open[i].end);
}

/// The other loops, merged: one chunk of their iterations per group.
void Lowerer::lower_items(BlockId block, Instances instances, ValueId chunk) {
  if (schedule_.item_copies > 0) return lower_row(block, instances[0]);
  std::vector<size_t> loops;
  std::vector<ValueId> counts;
  ValueId total = b_.index(schedule_.side);
  int64_t most = 1;
  for (size_t i = schedule_.grid_loops; i < schedule_.loops.size(); ++i) {
    const AxisPlan& axis = schedule_.loops[i];
    const Node* extent = axis.range->src[0];
    loops.push_back(i);
    counts.push_back(axis.jam > 1 ? b_.index(extent->imm / axis.jam) : emit(extent, instances[0]));
    if (extent->lo < 0) {
      const std::array args{counts.back(), b_.index(0)};
      counts.back() = b_.alu(Op::kMax, DType::kI64, args);
    }
    total = b_.mul(total, counts.back());
    if (__builtin_mul_overflow(most, largest(extent), &most)) most = INT64_MAX;
  }
  const Builder::Loop loop = b_.open_loop(block, LoopKind::kItem);
  instances = split_index(loop.index, loops, counts, most <= kMax32, loop.body, instances);
  emit_stores(loop.body, instances, kernel_.stores);
  const ValueId begin = b_.mul(chunk, b_.index(schedule_.chunk));
  b_.close_items(loop, begin, schedule_.is_exact ? kNone : total, schedule_.trips);
}

}  // namespace bm::compiler
