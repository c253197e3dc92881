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
  if (axis.has_group_outputs) out += ", work-items side by side";
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
  if (!schedule.dots.empty()) out += fmt::format("int8 dot products: {}\n", schedule.dots.size());
  if (schedule.is_unrolled)
    out += fmt::format("{} iterations of a work-item side by side\n", schedule.trip_count);
  if (schedule.contiguous.count > 1)
    out += fmt::format("{} contiguous elements of a work-item, 16 bytes an access\n",
                       schedule.contiguous.count);
  return out;
}

std::string describe_top_k(const Schedule& schedule) {
  return fmt::format("smallest values of {}: one pass, sorted in registers\n",
                     range_name(schedule.top_k->src[1])) +
         describe_loops(schedule);
}

std::string describe_dots(const Schedule& schedule) { return describe_loops(schedule); }

std::string describe_panels(const Schedule& schedule) {
  const PackedGemmPlan& p = *schedule.panels();
  std::string out =
      fmt::format("packed GEMM: tiles of {} rows × {} vectors of {}, blocks of {} × {}", p.rows,
                  p.vectors, p.lanes, p.row_block, p.column_block);
  if (p.row) out += fmt::format("; M {}", range_name(p.row));
  if (p.column) out += fmt::format("; N {}", range_name(p.column));
  for (const ir::Node* b : p.batch) out += fmt::format("; for each {}", range_name(b));
  if (p.is_skinny)
    return out + "; GEMV: accumulators in the workspace, B streamed in its own order\n";
  if (p.is_transposed) out += "; transposed: vectors across the results";
  if (p.products[0].dot) out += "; int8 dot products";
  out += p.reads_a_in_place ? "; A read in place" : "; A packed into the workspace";
  if (p.reads_b_once) return out + ", B streamed in place: the rows are one tile\n";
  return out + (p.products[0].reads_b_in_place ? ", B prepacked\n" : ", B packed\n");
}

std::string describe_attention(const Schedule& schedule) {
  const AttentionPlan& p = *schedule.attention();
  std::string out = fmt::format(
      "attention: blocks of {} queries × {} keys, strips of {} vectors of {} queries, tiles of {} "
      "keys and of {} elements; queries {}, keys {}",
      p.row_block, p.key_block, p.vectors, p.lanes, p.key_tile, p.column_tile,
      range_name(p.parts.row), range_name(p.parts.key));
  for (const ir::Node* b : p.parts.batch) out += fmt::format("; for each {}", range_name(b));
  return out + (p.parts.causal_bound ? "; masked keys are skipped\n" : "\n");
}

std::string describe_group_attention(const Schedule& schedule) {
  const GroupAttentionPlan& p = *schedule.group_attention();
  std::string out = fmt::format(
      "attention: {} sub-groups of {} queries × {} keys by {}MMA, {} stages of keys and values in "
      "shared memory; queries {}, keys {}",
      p.sub_groups, p.kRows, p.key_block, p.has_warpgroups ? "warpgroup " : "", p.stages,
      range_name(p.parts.row), range_name(p.parts.key));
  for (const ir::Node* b : p.parts.batch) out += fmt::format("; for each {}", range_name(b));
  if (p.has_codes()) out += "; int8 codes become float16 on their way there";
  if (p.is_paired) out += "; causal load balancing: long and short blocks of queries side by side";
  return out + (p.parts.causal_bound ? "; masked keys are skipped\n" : "\n");
}

std::string describe_matrix(const Schedule& schedule) {
  const MatrixPlan& p = *schedule.matrix();
  return fmt::format("MMA: {} × {} sub-groups with tiles of {} × {}, {} of K at a time\n",
                     p.warps_m, p.warps_n, p.left.rows(), p.right.rows(),
                     p.pipe ? p.stage_k() : p.tile_k());
}

std::string describe_pipe(const Schedule& schedule) {
  const MatrixPlan& p = *schedule.matrix();
  return describe_matrix(schedule) +
         fmt::format(
             "multistage pipeline: tiles of {} × {} in shared memory, {} stages, {} prefetched{}\n",
             p.block_m(), p.block_n(), p.pipe->stages, p.pipe->ahead,
             p.info.has_tensor_memory ? ", read there by tcgen05, accumulators in tensor memory"
             : p.info.sub_groups > 1  ? ", read there by warpgroup MMA"
                                      : "");
}

std::string describe_staged(const Schedule& schedule) {
  const StagedPlan& p = *schedule.staged();
  const auto side = [](const StagedOperand& o) { return o.is_k_major ? ", K-major" : ""; };
  return fmt::format(
      "SIMT GEMM: tiles of {} × {} in shared memory, {} of K at a time, {} × {} accumulators of a "
      "work-item; M {}{}, N {}{}, K {}\n",
      p.left.tile, p.right.tile, p.steps, p.left.per_item, p.right.per_item,
      range_name(p.left.along), side(p.left), range_name(p.right.along), side(p.right),
      range_name(p.k));
}

std::string describe_transpose(const Schedule& schedule) {
  const TransposePlan& p = *schedule.transposed();
  return fmt::format("loads transposed through shared memory: {}, tiles of {} × {}\n",
                     p.loads.size(), p.tile, p.tile) +
         describe_loops(schedule);
}

std::string describe_group_scan(const Schedule& schedule) {
  const ScanPlan& p = *schedule.group_scan();
  std::string out = fmt::format("scan along {}: tiles of {} elements, {} of each work-item",
                                range_name(p.along), p.tile(), p.per_item * p.runs);
  if (p.beside != nullptr)
    out += fmt::format("; {} lines of {} side by side", p.columns, range_name(p.beside));
  if (schedule.contiguous.count > 1) out += "; 16 bytes an access";
  return out + "\n";
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
  if (schedule.chunk > 1) out += fmt::format(", {} iterations each", schedule.chunk);
  if (schedule.block > 0) out += fmt::format(", {} work-items each", schedule.block);
  return out + fmt::format("; about {} operations per block\n", schedule.work_per_block);
}

}  // namespace bm::compiler
