// Matches prefix sums and other scans.
#include "compiler/schedules/loops/scan.h"

#include <algorithm>

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Vectors of a scan along the lanes whose chains of steps overlap.
constexpr uint32_t kScanVectors = 4;
/// Vectors of adjacent scans: whole lines of several pages are better than one of each.
constexpr uint32_t kScanRowVectors = 8;

}  // namespace

const Node* scan_loop(const ir::KernelIr& kernel) {
  std::vector<const Node*> roots;
  for (const ir::Store& s : kernel.stores) roots.push_back(s.value);
  for (const Node* n : ir::topological(roots))
    if (n->op == Op::kScan) return n->src[1];
  return nullptr;
}

void order_scan(const LaneChoice& lanes, bool has_jams, Schedule* schedule) {
  auto& loops = schedule->loops;
  std::stable_partition(loops.begin(), loops.end(),
                        [&](const AxisPlan& a) { return a.range != schedule->scan; });
  if (!has_jams || !lanes.range) return;
  for (AxisPlan& a : loops) {
    if (a.range != lanes.range) continue;
    const double vectors = CostModel::trip_count(a.range) / a.lanes;
    a.jam = a.range == schedule->scan ? kScanVectors : kScanRowVectors;
    while (a.jam > 1 && vectors < a.jam) a.jam /= 2;
  }
}

}  // namespace bm::compiler
