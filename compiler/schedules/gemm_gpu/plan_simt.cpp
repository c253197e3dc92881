// SIMT GEMM through shared memory: tiles of work-groups and of work-items.
// Schedule for products of matrices without matrix instructions: a group has a tile of results, its
// operands go through shared memory a few steps of K at a time, and every work-item keeps a small
// tile in registers. Factors may be any expressions: they are computed once for each group.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "compiler/analysis/cost.h"
#include "compiler/schedules/gemm_gpu/contraction.h"
#include "compiler/schedules/gemm_gpu/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Work-items that one compute unit runs side by side.
constexpr double kItemsPerUnit = 1024;
/// Fewer leave a unit's schedulers idle; with several accumulators each, so many fill it to this
/// share.
constexpr double kFewestItems = 64, kLeastFilling = 1.0 / 8;
/// With groups for fewer of the units the rest would stand idle.
constexpr double kSpread = 0.75;
/// Of units that stand idle, in shares of the time: the others have all caches, but no more.
constexpr double kIdleCost = 0.3;
/// Of one iteration of a loop that loads its factors where it needs them.
constexpr double kLoadCost = 2, kIterationCost = 3;
/// Of a multiplication where every work-item has one result: counted in code for 250³.
constexpr double kPlainSlots = 12;
/// Of one element on its way through shared memory, besides its computation; and with what tells
/// whether all steps of K are there.
constexpr double kStageCost = 4, kCutCost = 1.25;
constexpr int64_t kLeastK = 16, kLeastRows = 24;
/// Rows or columns that are known at launch only: with more, most groups might find nothing to do.
constexpr int64_t kMostSymbolicRows = 1 << 16;
/// Results of a work-item times what is computed of each.
constexpr double kMostEpilogue = 600;

struct TileRow {
  uint32_t rows, columns;            // of a group
  uint32_t item_rows, item_columns;  // of a work-item
};
constexpr std::array kTiles = {
    TileRow{128, 128, 8, 8}, TileRow{128, 64, 8, 8}, TileRow{64, 128, 8, 8}, TileRow{64, 64, 8, 8},
    TileRow{64, 64, 4, 4},   TileRow{32, 64, 4, 4},  TileRow{64, 32, 4, 4},  TileRow{32, 32, 4, 4}};

class StagedScheduler : GemmPlanner {
 public:
  using GemmPlanner::GemmPlanner;

  std::optional<Schedule> run() {
    plan_.reduce = wide_contraction();
    if (!plan_.reduce) return std::nullopt;
    for (size_t i = 1; i < plan_.reduce->src.size(); ++i)
      for (const Node* x : kernel_.ranges)
        for (const Node* y : kernel_.ranges)
          if (x != y) consider(plan_.reduce->src[i], x, y);
    if (!best_) return std::nullopt;
    return finish();
  }

 private:
  bool is_factor(const Node* n, const Node* along, const Node* k, const Node* other) const {
    return model_.depends(n, along) && model_.depends(n, k) && !model_.depends(n, other);
  }

  /// Whether the first load of a factor is contiguous along K.
  bool is_k_major(const Node* factor, const Node* k) {
    const Node* n = factor;
    while (n->op != Op::kLoad && !n->src.empty()) n = n->src[0];
    return n->op == Op::kLoad && model_.strides(k, 0).stride(n->src[0]) == 1;
  }

  void consider(const Node* k, const Node* rows, const Node* columns) {
    const Node* product = plan_.reduce->src[0];
    for (size_t side = 0; side < 2; ++side) {
      StagedPlan plan = plan_;
      plan.k = k;
      plan.left = {.value = product->src[side], .along = rows};
      plan.right = {.value = product->src[1 - side], .along = columns};
      if (!is_factor(plan.left.value, rows, k, columns) ||
          !is_factor(plan.right.value, columns, k, rows))
        continue;
      plan.left.is_k_major = is_k_major(plan.left.value, k);
      plan.right.is_k_major = is_k_major(plan.right.value, k);
      for (const TileRow& row : kTiles) {
        plan.left.tile = row.rows;
        plan.left.per_item = row.item_rows;
        plan.right.tile = row.columns;
        plan.right.per_item = row.item_columns;
        for (const uint32_t steps : {16u, 8u}) {
          // Compilers that load all steps' operands before they multiply run out of registers.
          if (target_.hoists_loads && steps == 16 && row.item_rows * row.item_columns >= 64)
            continue;
          plan.steps = steps;
          consider_tile(plan);
        }
      }
    }
  }

  static bool is_extent(const Node* range) {
    const Node* extent = range->src[0];
    return extent->is_const() ? extent->imm >= kLeastRows
                              : extent->hi >= kLeastRows && extent->hi <= kMostSymbolicRows;
  }

  /// With rows and columns that tiles have beyond the matrices.
  static double tiled(const StagedOperand& o) { return static_cast<double>(o.tiles()) * o.tile; }

  void consider_tile(const StagedPlan& p) {
    const double results = p.left.per_item * p.right.per_item;
    const uint32_t items = p.items();
    if (!p.k->src[0]->is_const() || p.k->src[0]->imm < kLeastK || !is_extent(p.left.along) ||
        !is_extent(p.right.along) || items > target_.max_block ||
        local_bytes(p) > target_.shared_memory_bytes ||
        (model_.output_nodes() + 1) * results > kMostEpilogue)
      return;
    const double cost =
        time(p) * asked_factor(limits_.knobs, {.m = p.left.tile, .n = p.right.tile, .k = p.steps});
    if (best_ && cost >= least_ * 0.99) return;
    best_ = p;
    least_ = cost;
  }

  static uint64_t local_bytes(const StagedPlan& p) {
    return (p.left.row() + p.right.row()) * p.steps *
           static_cast<uint64_t>(item_size(p.reduce->dtype));
  }

  /// Of a work-item, per step of K.
  double step_cost(const StagedPlan& p) const {
    const double items = p.items(), results = p.left.per_item * p.right.per_item;
    const bool is_dual = target_.has_dual_fma && p.reduce->dtype == DType::kF32;
    const double loads = (p.left.per_item + p.right.per_item) / 2.0;
    const double staged = (p.left.tile + p.right.tile) * kStageCost / items;
    const double moves = 2 * results / p.steps;
    const bool is_cut = p.k->src[0]->imm % p.steps != 0;
    return results / (is_dual ? 2 : 1) + loads + staged * (is_cut ? kCutCost : 1) + moves;
  }

  /// Cycles of the busiest unit for a step of K. One sub-group of each scheduler hides what the
  /// next instruction waits for if it has accumulators enough to go on with.
  double time(const StagedPlan& p) const {
    const double accumulators = p.left.per_item * p.right.per_item;
    const double groups = all_results(p) / (accumulators * p.items());
    const double idle = std::max(1 - groups / units_, 0.0);  // units without a group
    return step_cost(p) * (1 + kIdleCost * idle) *
           std::max(std::ceil(groups / units_) * p.items() / target_.pipe.cu_lanes,
                    1 + 16 / accumulators);
  }

  /// Share of the time of a full machine that `items` work-items take. Those with accumulators of
  /// their own to go on with fill a unit long before there are kItemsPerUnit of them.
  double filling(double items, double accumulators) const {
    const double least =
        items >= kFewestItems * units_ ? std::max(2 / accumulators, kLeastFilling) : 1;
    return std::max(std::min(least, 1.0), items / slots_);
  }

  /// Whether the best tile is faster than what is done without shared memory.
  bool is_worth_it() const {
    if (asks_for_tile(limits_.knobs) && least_ < kNotAsked) return true;
    const StagedPlan& p = *best_;
    // One result of each work-item, and the machine is not full of them.
    const double each = plain_results() / units_;
    if (is_float(p.reduce->dtype) && each < kItemsPerUnit &&
        least_ < kPlainSlots * std::max(each / target_.pipe.cu_lanes, 1.0))
      return true;
    const double accumulators = p.left.per_item * p.right.per_item;
    const double items = all_results(p) / accumulators;
    // Integers multiply at a fraction of the rate: their loads are hidden anyway.
    const bool is_spread = is_float(p.reduce->dtype) && items / p.items() >= kSpread * units_;
    const double own =
        step_cost(p) * (is_spread ? filling(items, accumulators) : std::max(1.0, items / slots_));
    double plain = INFINITY;
    for (const double t : {1.0, 2.0, 4.0})
      plain = std::min(plain, (t * t + 2 * t * kLoadCost + kIterationCost) *
                                  (is_spread ? filling(plain_results() / (t * t), t * t)
                                             : std::max(1.0, plain_results() / (t * t) / slots_)));
    return own < plain;
  }

  double plain_results() const {
    double n = 1;
    for (const Node* r : kernel_.ranges) n *= CostModel::trip_count(r);
    return n;
  }

  /// With those that tiles have beyond the matrices.
  double all_results(const StagedPlan& p) const {
    double n = tiled(p.left) * tiled(p.right);
    for (const Node* r : kernel_.ranges)
      if (r != p.left.along && r != p.right.along) n *= CostModel::trip_count(r);
    return n;
  }

  std::optional<Schedule> finish() {
    if (!is_worth_it()) return std::nullopt;
    const StagedPlan& p = *best_;
    auto s = tile_schedule(kernel_, target_, p.left.along, p.right.along,
                           p.left.tiles() * p.right.tiles());
    if (!s) return std::nullopt;
    s->block = p.items();
    s->work_per_block =
        static_cast<uint64_t>(int64_t{p.left.tile} * p.right.tile * p.k->src[0]->imm);
    s->plan = p;
    return s;
  }

  double slots_ = units_ * kItemsPerUnit;
  StagedPlan plan_;
  std::optional<StagedPlan> best_;
  double least_ = 0;
};

}  // namespace

std::optional<Schedule> make_staged_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                             uint32_t units, ScheduleLimits limits) {
  if (!limits.has_tiles || limits.max_accumulators < 64) return std::nullopt;
  return StagedScheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
