// Plan of a transpose through shared memory, free of bank conflicts.
// Schedule for kernels without reductions whose loads are contiguous along one output loop and
// whose stores along another: without it every work-item of a sub-group would touch memory of its
// own. See TransposePlan.
#include <algorithm>
#include <functional>

#include "compiler/ir/linear.h"
#include "compiler/analysis/cost.h"
#include "compiler/tune/knobs.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Shorter loops would leave most of a tile empty.
constexpr double kLeastExtent = 16;
/// Smaller kernels are over before the barrier pays.
constexpr double kLeastElements = 1 << 13;
/// Unroll factor of a work-item's body times the values in it.
constexpr double kMostNodes = 600;
constexpr uint32_t kLargeTile = 64;
/// Rows of a small tile are short if they have less than this. Large tiles are taken where that
/// leaves every unit so many of them; of two kinds, short rows need them sooner.
constexpr int64_t kRowBytes = 128;
constexpr double kFewTiles = 1, kManyTiles = 16;
/// Of the shared memory that a group may have: several groups share a compute unit.
constexpr uint64_t kLocalShare = 2;

class TransposeScheduler {
 public:
  TransposeScheduler(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units)
      : kernel_(kernel), target_(target), units_(std::max(units, 1u)), model_(kernel, target, 1) {}

  std::optional<Schedule> run() {
    if (!model_.reduces().empty() || target_.max_block < TransposePlan::kBlock ||
        CostModel::iterations(kernel_) < kLeastElements)
      return std::nullopt;
    for (const Node* along : kernel_.ranges)
      for (const Node* across : kernel_.ranges)
        if (along != across && is_long(along) && is_long(across) && stores_lie(along))
          consider(along, across);
    if (best_.loads.empty()) return std::nullopt;
    return finish();
  }

 private:
  static bool is_long(const Node* range) { return CostModel::trip_count(range) >= kLeastExtent; }

  bool stores_lie(const Node* along) {
    return std::ranges::all_of(kernel_.stores, [&](const ir::Store& s) {
      return model_.strides(along, 0).stride(s.index) == 1;
    });
  }

  /// Its contiguous elements are adjacent along `across` and not along `along`.
  bool is_transposed(const Node* load, const Node* along, const Node* across) {
    const Node* index = load->src[0];
    if (kernel_.params[static_cast<size_t>(load->imm)].is_written ||
        model_.strides(across, 0).stride(index) != 1 || !ir::depends_on(index, along))
      return false;
    const std::optional<int64_t> other = model_.strides(along, 0).stride(index);
    return !other || std::abs(*other) > 1;
  }

  int64_t narrowest(const TransposePlan& p) const {
    int64_t size = INT64_MAX;
    for (const ir::Store& s : kernel_.stores) size = std::min(size, item_size(s.value->dtype));
    for (const Node* load : p.loads) size = std::min(size, item_size(load->dtype));
    return size;
  }

  /// Rows of small tiles would be short, or there are large ones in plenty.
  bool has_large_tiles(const TransposePlan& p) const {
    const bool is_narrow = narrowest(p) * p.tile < kRowBytes;
    const double tiles = CostModel::iterations(kernel_) / (double{kLargeTile} * kLargeTile);
    return tiles >= units_ * (is_narrow ? kFewTiles : kManyTiles);
  }

  /// What one work-item computes is written out for all its iterations.
  bool is_short(const TransposePlan& p) const {
    const double nodes = model_.output_nodes() + static_cast<double>(kernel_.stores.size());
    return nodes * p.unroll() <= kMostNodes;
  }

  /// Leaves out loads that shared memory has no room for.
  void fit(TransposePlan* p) const {
    uint64_t bytes = 0;
    std::erase_if(p->loads, [&](const Node* load) {
      const uint64_t own = p->local_bytes(load);
      const bool has_room = bytes + own <= target_.shared_memory_bytes / kLocalShare;
      bytes += has_room ? own : 0;
      return !has_room;
    });
  }

  void consider(const Node* along, const Node* across) {
    TransposePlan p{.across = across, .along = along, .loads = {}};
    p.bank_bytes = target_.shared_bank_bytes;
    for (const Node* load : model_.output_loads())
      if (is_transposed(load, along, across)) p.loads.push_back(load);
    if (p.loads.empty()) return;
    TransposePlan large = p;
    large.tile = kLargeTile;
    fit(&large);
    fit(&p);
    if (is_short(large) && large.loads.size() == p.loads.size() && has_large_tiles(p)) p = large;
    if (is_short(p) && p.loads.size() > best_.loads.size()) best_ = p;
  }

  bool set_grid(Schedule* s) const {
    std::vector<uint32_t> order(s->loops.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    // Groups that follow each other write what follows each other.
    const auto rank = [&](uint32_t i) {
      const Node* r = s->loops[i].range;
      return r == best_.along ? 0u : r == best_.across ? 1u : 2u + (s->loops.size() - i);
    };
    std::ranges::sort(order, {}, rank);
    return assign_to_grid(target_, order, s);
  }

  std::optional<Schedule> finish() const {
    Schedule s;
    s.block = TransposePlan::kBlock;
    for (const Node* r : kernel_.ranges) {
      const bool is_tiled = r == best_.across || r == best_.along;
      s.loops.push_back({.range = r, .tile = is_tiled ? int64_t{best_.tile} : 0});
    }
    s.grid_loops = static_cast<uint32_t>(s.loops.size());
    if (!set_grid(&s)) return std::nullopt;
    const double results = static_cast<double>(best_.tile) * best_.tile;
    s.work_per_block = static_cast<uint64_t>(results * (model_.output_nodes() + 2));
    s.plan = best_;
    return s;
  }

  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  double units_;
  CostModel model_;
  TransposePlan best_;
};

}  // namespace

bool assign_to_grid(const TargetInfo& target, std::span<const uint32_t> order, Schedule* s) {
  struct Axis {
    std::vector<GroupFactor> factors;
    hal::DimExpr dim;
    double most = 1;
  };
  std::vector<Axis> axes(1);
  for (const bool is_const : {true, false})
    for (const uint32_t i : order) {
      const AxisPlan& loop = s->loops[i];
      const Node* extent = loop.range->src[0];
      if (extent->is_const() != is_const) continue;
      if (!is_const && !axes.back().factors.empty()) axes.emplace_back();
      Axis& axis = axes.back();
      const int64_t tile = std::max<int64_t>(loop.tile, 1);
      const int64_t hi = std::max<int64_t>(is_const ? extent->imm : extent->hi, 0);
      const int64_t tiles = hi / tile + (hi % tile != 0);
      axis.most *= static_cast<double>(std::max<int64_t>(tiles, 1));
      if (axis.most > static_cast<double>(INT32_MAX)) return false;
      bool is_exact = true;
      if (is_const) {
        axis.dim.constant *= tiles;
      } else {
        is_exact = multiply(&axis.dim, extent, 1);
        axis.dim.divisor = tile;
      }
      axis.factors.push_back({.loop = i, .is_bounded = !is_exact});
    }
  if (axes.size() > s->axes.size()) return false;
  std::ranges::stable_sort(axes, std::greater<>{}, &Axis::most);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].most > static_cast<double>(target.max_groups[i])) return false;
    s->axes[i] = axes[i].factors;
    s->grid[i] = axes[i].dim;
  }
  return true;
}

std::optional<Schedule> make_transpose_schedule(const ir::KernelIr& kernel,
                                                const TargetInfo& target, uint32_t units,
                                                ScheduleLimits limits) {
  // Whoever tries blocks of other sizes tries to do without tiles.
  const bool is_plain = limits.knobs && (limits.knobs->get("block") || limits.knobs->get("items"));
  if (!limits.has_tiles || is_plain) return std::nullopt;
  return TransposeScheduler(kernel, target, units).run();
}

}  // namespace bm::compiler
