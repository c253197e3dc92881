// Loops partitioned into blocks for threads, on targets without work-groups.
#include <algorithm>
#include <array>

#include "compiler/program/expr.h"
#include "compiler/lowering/prefetch.h"
#include "compiler/schedules/loops/lowering.h"

namespace bm::compiler {

void lower_loops(Emitter& e) { LoopLowering(e).run(); }

LoopLowering::LoopLowering(Emitter& e)
    : e_(e), b_(e.builder()), schedule_(e.schedule()), rows_(e), scan_(e) {
  e.add_rule(rows_);
  e.add_rule(scan_);
}

void LoopLowering::run() {
  const Builder::Loop loop = b_.open_loop(e_.root(), LoopKind::kGrid);
  const Instances start{e_.unbound()};
  if (schedule_.grid_loops == 0) {
    lower_inner(0, loop.body, start);
  } else if (schedule_.grid_loops == 1) {
    const AxisPlan& axis = schedule_.loops[0];
    const ValueId width = b_.index(schedule_.chunk * axis.step());
    const ValueId begin = b_.mul(loop.index, width);
    const ValueId extent = e_.emit(axis.range->src[0], start[0]);
    const ValueId end = b_.add(begin, width);
    if (has_parts())
      lower_parts(begin, loop.body, start);
    else
      lower_axis(0, loop.body, start, begin, e_.min_index(end, extent));
  } else {
    lower_merged(loop.body, loop.index);
  }
  const ValueId begin = b_.bitcast(e_.program().block_begin, DType::kI64);
  const ValueId end = b_.bitcast(e_.program().block_end, DType::kI64);
  b_.close_loop(loop, begin, end, 1);
}

/// Whether a block goes through as many parts of memory at a time as it has vectors side by side:
/// what memory only sees once comes faster in several streams than in one.
bool LoopLowering::has_parts() const {
  const AxisPlan& axis = schedule_.loops[0];
  const Node* extent = axis.range->src[0];
  return schedule_.loops.size() == 1 && axis.jam > 1 && axis.tile == 0 &&
         !schedule_.streams.empty() && e_.reduces().empty() && !e_.is_ordered() &&
         extent->is_const() && extent->imm % axis.step() == 0 &&
         extent->imm % block_iterations() == 0;
}

/// Of a grid of one loop.
int64_t LoopLowering::block_iterations() const {
  const AxisPlan& axis = schedule_.loops[0];
  return std::min(schedule_.chunk * axis.step(), axis.range->src[0]->imm);
}

void LoopLowering::lower_parts(ValueId begin, BlockId block, const Instances& start) {
  const AxisPlan& axis = schedule_.loops[0];
  const int64_t part = block_iterations() / axis.jam;
  const Builder::Loop loop = b_.open_loop(block);
  lower_inner(1, loop.body,
              e_.bind_axis(start, axis.range, loop.index, loop.body, axis.lanes, axis.jam, part));
  b_.close_loop(loop, begin, b_.add(begin, b_.index(part)), axis.lanes);
}

/// Several leading loops as one: a linear iteration number is taken apart, innermost loop fastest.
void LoopLowering::lower_merged(BlockId block, ValueId block_index) {
  const Instances start{e_.unbound()};
  std::vector<ValueId> counts;
  ValueId total = b_.index(1);
  for (uint32_t d = 0; d < schedule_.grid_loops; ++d) {
    const AxisPlan& axis = schedule_.loops[d];
    const ValueId extent = e_.emit(axis.range->src[0], start[0]);
    // The schedule merges loops only where the step divides the extent.
    const std::array args{extent, b_.index(axis.step())};
    counts.push_back(axis.step() == 1 ? extent : b_.alu(Op::kDiv, DType::kI64, args));
    total = b_.mul(total, counts.back());
  }
  const Expr begin = Expr(b_, block_index) * schedule_.chunk;
  const Expr end = min(begin + schedule_.chunk, Expr(b_, total));
  const Builder::Loop loop = b_.open_loop(block);
  Instances instances = start;
  ValueId rest = loop.index;
  for (uint32_t d = schedule_.grid_loops; d-- > 0;) {
    const AxisPlan& axis = schedule_.loops[d];
    const ValueId count = counts[d];
    const ValueId step = d == 0 ? rest : e_.divide_index(Op::kMod, rest, count, false);
    if (d > 0) rest = e_.divide_index(Op::kDiv, rest, count, false);
    if (axis.tile > 0) {
      const ValueId first = b_.mul(step, b_.index(axis.tile));
      tiles_[axis.range] = {first, b_.add(first, b_.index(axis.tile))};
      continue;
    }
    instances = e_.bind_axis(instances, axis.range, b_.mul(step, b_.index(axis.step())), loop.body,
                             axis.lanes, axis.jam, axis.lanes);
  }
  lower_inner(schedule_.grid_loops, loop.body, instances);
  b_.close_loop(loop, begin, end, 1);
}

}  // namespace bm::compiler
