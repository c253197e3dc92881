// Schedules as text, for people.
#include <algorithm>

#include <fmt/format.h>

#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"
#include "compiler/schedules/schedule.h"
#include "compiler/schedules/strategy.h"

namespace bm::compiler {
namespace {

std::string range_name(const ir::Node* range) {
  const ir::Node* extent = range->src[0];
  return extent->is_const() ? fmt::format("r{} (0 … {})", range->imm, extent->imm - 1)
                            : fmt::format("r{} (at most {})", range->imm, extent->hi);
}

std::string text_of(const hal::DimExpr& dim) {
  std::string out = fmt::format("{}", dim.constant);
  for (const hal::DimExpr::Term& t : dim.terms)
    out += fmt::format(" + {}·v{}", t.coefficient, t.var);
  return dim.divisor == 1 ? out : fmt::format("({}) / {}", out, dim.divisor);
}

std::string text_of(const AxisPlan& axis) {
  std::string out = range_name(axis.range);
  if (axis.tile > 0) return out + fmt::format(" in tiles of {}", axis.tile);
  if (axis.lanes > 1) out += fmt::format(", {} lanes", axis.lanes);
  if (axis.is_masked) out += ", the last ones masked";
  if (axis.is_side) out += ", work-items side by side";
  if (axis.jam > 1) out += fmt::format(", {} vectors side by side", axis.jam);
  return out;
}

std::string text_of(const ir::Node* reduce, const ReducePlan& plan) {
  std::string out = fmt::format("{} over", ir::reduce_op_name(reduce->reduce_op()));
  for (size_t i = 1; i < reduce->src.size(); ++i) out += " " + range_name(reduce->src[i]);
  if (plan.vector_range)
    out += fmt::format(", {} lanes along r{}", plan.lanes, plan.vector_range->imm);
  if (plan.unroll > 1) out += fmt::format(", {} accumulators", plan.unroll);
  if (plan.is_shared) out += ", shared by the work-items of a group";
  return out;
}

}  // namespace

std::string describe_loops(const Schedule& schedule) {
  std::string out;
  if (schedule.scan)
    out += fmt::format("scan along {}: results so far in registers\n", range_name(schedule.scan));
  if (!schedule.dots.empty())
    out += fmt::format("dot products of 8-bit numbers: {} sums\n", schedule.dots.size());
  if (schedule.has_copies)
    out += fmt::format("{} iterations of a work-item side by side\n", schedule.trips);
  return out;
}

std::string describe_least(const Schedule& schedule) {
  return fmt::format("smallest values of {}: one pass, sorted in registers\n",
                     range_name(schedule.least->src[1])) +
         describe_loops(schedule);
}

std::string describe_dots(const Schedule& schedule) { return describe_loops(schedule); }

std::string describe_panels(const Schedule& schedule) {
  const PanelPlan& p = *schedule.panels();
  std::string out = fmt::format("product: tiles of {} rows × {} vectors of {}, blocks of {} × {}",
                                p.rows, p.vectors, p.lanes, p.row_block, p.column_block);
  if (p.row) out += fmt::format("; rows {}", range_name(p.row));
  if (p.column) out += fmt::format("; columns {}", range_name(p.column));
  for (const ir::Node* b : p.batch) out += fmt::format("; for each {}", range_name(b));
  if (p.is_strip) return out + "; sums in scratch, the matrix read in its own order\n";
  if (p.is_turned) out += "; vectors across the results";
  if (p.products[0].dot) out += "; dot products of words";
  out += p.reads_left ? "; left operand read in place" : "; left operand copied into scratch";
  return out + (p.products[0].reads_right ? ", right one packed before\n" : ", right one copied\n");
}

std::string describe_attention(const Schedule& schedule) {
  const AttentionPlan& p = *schedule.attention();
  std::string out = fmt::format(
      "attention: blocks of {} queries × {} keys, strips of {} vectors of {} queries, tiles of {} "
      "keys and of {} elements; queries {}, keys {}",
      p.row_block, p.key_block, p.vectors, p.lanes, p.key_tile, p.column_tile,
      range_name(p.parts.row), range_name(p.parts.key));
  for (const ir::Node* b : p.parts.batch) out += fmt::format("; for each {}", range_name(b));
  return out + (p.parts.hidden_from ? "; hidden keys are skipped\n" : "\n");
}

std::string describe_group_attention(const Schedule& schedule) {
  const GroupAttentionPlan& p = *schedule.group_attention();
  std::string out = fmt::format(
      "attention: {} sub-groups of {} queries × {} keys by matrix instructions, {} stages of keys "
      "and values in local memory; queries {}, keys {}",
      p.sub_groups, p.kRows, p.kKeys, p.kStages, range_name(p.parts.row), range_name(p.parts.key));
  for (const ir::Node* b : p.parts.batch) out += fmt::format("; for each {}", range_name(b));
  if (p.is_paired) out += "; long and short blocks of queries side by side";
  return out + (p.parts.hidden_from ? "; hidden keys are skipped\n" : "\n");
}

std::string describe_matrix(const Schedule& schedule) {
  const MatrixPlan& p = *schedule.matrix();
  return fmt::format("matrix instructions: {} × {} tiles of sub-groups of {} × {}, {} deep\n",
                     p.tiles_down, p.tiles_across, p.left.rows(), p.right.rows(),
                     p.pipe ? p.stage_depth() : p.trip());
}

std::string describe_pipe(const Schedule& schedule) {
  const MatrixPlan& p = *schedule.matrix();
  return describe_matrix(schedule) +
         fmt::format("tiles of {} × {} in local memory: {} stages, {} ahead{}\n", p.down(),
                     p.across(), p.pipe->stages, p.pipe->ahead,
                     p.info.sub_groups > 1 ? ", read there by instructions" : "");
}

std::string describe_staged(const Schedule& schedule) {
  const StagedPlan& p = *schedule.staged();
  const auto side = [](const StagedOperand& o) { return o.is_deep ? ", transposed" : ""; };
  return fmt::format(
      "GEMM: tiles of {} × {} in local memory, {} deep, {} × {} accumulators of a work-item; rows "
      "{}{}, columns {}{}, depth {}\n",
      p.left.tile, p.right.tile, p.steps, p.left.per_item, p.right.per_item,
      range_name(p.left.along), side(p.left), range_name(p.right.along), side(p.right),
      range_name(p.depth));
}

std::string describe_transpose(const Schedule& schedule) {
  const TransposePlan& p = *schedule.transposed();
  return fmt::format("loads transposed through local memory: {}, tiles of {} × {}\n",
                     p.loads.size(), p.tile, p.tile) +
         describe_loops(schedule);
}

std::string to_string(const Schedule& schedule) {
  const Strategy& strategy = strategy_of(schedule);
  std::string out =
      fmt::format("strategy: {} (compiler/schedules/{})\n", strategy.name, strategy.folder);
  for (size_t i = 0; i < schedule.loops.size(); ++i)
    out += fmt::format("loop {}: {}{}\n", i, text_of(schedule.loops[i]),
                       i < schedule.grid_loops ? ", in the grid" : "");
  std::vector<const ir::Node*> reduces;
  for (const auto& [node, plan] : schedule.reduces) reduces.push_back(node);
  std::sort(reduces.begin(), reduces.end(),
            [](const ir::Node* a, const ir::Node* b) { return a->id < b->id; });
  for (const ir::Node* r : reduces)
    out += fmt::format("reduce: {}\n", text_of(r, schedule.reduces.at(r)));
  out += strategy.describe(schedule);
  out += fmt::format("blocks: {} × {} × {}", text_of(schedule.grid[0]), text_of(schedule.grid[1]),
                     text_of(schedule.grid[2]));
  if (schedule.chunk > 1) out += fmt::format(", {} trips each", schedule.chunk);
  if (schedule.block > 0) out += fmt::format(", {} work-items each", schedule.block);
  return out + fmt::format("; about {} operations per block\n", schedule.work_per_block);
}

}  // namespace bm::compiler
