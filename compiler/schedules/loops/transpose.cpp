// Order of the tiles of a transpose that avoids set conflicts of the caches.
#include "compiler/schedules/loops/transpose.h"

#include <algorithm>

namespace bm::compiler {
namespace {

/// Of a tile, along its rows and along its columns.
constexpr int64_t kTileLines = 4;

}  // namespace

void tile_transposition(const ir::KernelIr& kernel, const TargetInfo& target,
                        const LaneChoice& lanes, Schedule* schedule) {
  auto& loops = schedule->loops;
  if (!lanes.range || loops.size() < 2 || !schedule->row_caches.empty()) return;
  int64_t item = INT64_MAX;
  for (const ir::Store& s : kernel.stores) item = std::min(item, item_size(s.value->dtype));
  const double bytes = CostModel::iterations(kernel) * static_cast<double>(item);
  if (bytes < static_cast<double>(target.l2_bytes)) return;
  // The loop in lanes is the last, the one merged as often as there are lanes lies before it.
  const AxisPlan along = loops.back();
  const auto merged =
      std::find_if(loops.begin(), loops.end(), [](const AxisPlan& a) { return a.jam > 1; });
  if (along.range != lanes.range || along.jam != 1 || merged == loops.end() ||
      merged->jam != along.lanes)
    return;
  const AxisPlan across = *merged;
  const int64_t tile = std::max<int64_t>(kTileLines * target.cache_line_bytes / item, along.lanes);
  for (const AxisPlan* a : {&along, &across})
    if (CostModel::trip_count(a->range) < 2.0 * static_cast<double>(tile)) return;
  loops.pop_back();
  loops.erase(merged);
  loops.push_back({.range = along.range, .tile = tile});
  loops.push_back({.range = across.range, .tile = tile});
  loops.push_back(across);
  loops.push_back(along);
}

}  // namespace bm::compiler
