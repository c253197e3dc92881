// Top-k and sort along one loop.
// Schedule of kernels that want the smallest values of a loop: rows are shared out, each is passed
// over once; see schedules/topk/lower.cpp.
#include <algorithm>
#include <cmath>

#include "compiler/analysis/cost.h"
#include "compiler/schedules/schedule.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Operations of a comparison, and of inserting one value.
constexpr double kCompareCost = 4, kInsertCost = 30;
/// Rows of about this many operations are worth handing to another processor.
constexpr double kBlockWork = 4'096;

const Node* find_top_k(const ir::KernelIr& kernel) {
  std::vector<const Node*> roots;
  for (const ir::Store& s : kernel.stores) roots.push_back(s.value);
  for (const Node* n : ir::topological(roots))
    if (n->op == Op::kTopK) return n;
  return nullptr;
}

}  // namespace

std::optional<Schedule> make_top_k_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                            uint32_t units, ScheduleLimits limits) {
  Schedule s;
  s.top_k = find_top_k(kernel);
  if (!s.top_k) return std::nullopt;
  const CostModel model(kernel, target, limits.max_lanes);
  double rows = 1;
  for (const Node* r : kernel.ranges) {
    if (!model.depends(s.top_k->src[0], r)) continue;
    s.loops.push_back({.range = r});
    rows *= CostModel::trip_count(r);
  }
  s.top_k_axis = static_cast<uint32_t>(s.loops.size());
  for (const Node* r : kernel.ranges)
    if (!model.depends(s.top_k->src[0], r)) s.loops.push_back({.range = r});
  const double count = static_cast<double>(s.top_k->src[2]->hi) + 1;
  const double per_row =
      CostModel::trip_count(s.top_k->src[1]) * kCompareCost + count * kInsertCost;
  s.predicted_cost = per_row / count;
  s.grid[0].constant = 1;
  s.work_per_block = static_cast<uint64_t>(std::min(rows * per_row, 1e18));
  if (s.top_k_axis == 0 || rows * per_row < 2 * kBlockWork) return s;
  // Loops after the first of a symbolic extent stay inside.
  uint32_t symbolic = 0;
  for (const AxisPlan& a : s.loops) {
    const bool is_symbolic = !a.range->src[0]->is_const();
    if (s.grid_loops == s.top_k_axis || (s.grid_loops > 0 && is_symbolic && symbolic > 0)) break;
    symbolic += is_symbolic;
    ++s.grid_loops;
  }
  double trip_count = 1;
  for (uint32_t i = 0; i < s.grid_loops; ++i) trip_count *= CostModel::trip_count(s.loops[i].range);
  const double per_trip = rows * per_row / trip_count;
  constexpr int64_t kBlocksPerUnit = 8;
  const auto asked = limits.knobs ? limits.knobs->get("blocks") : std::nullopt;
  const auto blocks = static_cast<double>(asked.value_or(kBlocksPerUnit)) * units;
  double chunk = asked ? 1 : std::ceil(kBlockWork / per_trip);
  if (symbolic == 0) chunk = std::max(chunk, std::ceil(trip_count / blocks));
  s.chunk = static_cast<int64_t>(std::max(chunk, 1.0));
  s.work_per_block = static_cast<uint64_t>(per_trip * static_cast<double>(s.chunk));
  hal::DimExpr dim{.constant = 1, .terms = {}, .divisor = s.chunk};
  for (uint32_t i = 0; i < s.grid_loops; ++i) multiply(&dim, s.loops[i].range->src[0], 1);
  s.grid[0] = dim;
  return s;
}

}  // namespace bm::compiler
