// Loops of CPU kernels: which are vectorised, unrolled, partitioned over threads.
#include "compiler/schedules/schedule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>
#include <optional>

#include <fmt/format.h>

#include "compiler/ir/linear.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/analysis/cost.h"
#include "compiler/tune/knobs.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"
#include "compiler/schedules/loops/row_reuse.h"
#include "compiler/schedules/loops/scan.h"
#include "compiler/schedules/loops/unroll_and_jam.h"
#include "compiler/schedules/loops/transpose.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Cost (scalar operations) that makes a block worth handing to another processor.
constexpr double kBlockWork = 4'096;
/// CodeObject::work_per_block counts operations at vector speed.
constexpr double kWorkPerCost = 8;
constexpr uint32_t kBlocksPerUnit = 8;
/// Vectors of a row that a sum over rows adds up at once.
constexpr uint32_t kRowVectors = 8;

class Scheduler {
 public:
  Scheduler(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
            ScheduleLimits limits)
      : kernel_(kernel),
        target_(target),
        units_(std::max(units, 1u)),
        limits_(limits),
        model_(kernel, target, limits.max_lanes),
        tiles_(model_, target_, lanes_, s_) {}

  Schedule run() {
    choose_lanes();
    s_.scan = scan_loop(kernel_);
    if (s_.scan)
      order_scan(lanes_, limits_.has_tiles && !set_jams(), &s_);
    else
      rows_ = order_rows(model_, &s_.loops);
    if (limits_.has_tiles && !s_.scan) {
      if (!set_jams() && !is_along_row()) tiles_.choose();
      choose_transposition();
      choose_stages();
      choose_unroll();
      choose_vector_unroll();
      tile_transposition(kernel_, target_, lanes_, &s_);
    }
    choose_streams();
    choose_grid();
    s_.predicted_cost = tiles_.predict(cost_);
    return std::move(s_);
  }

 private:
  std::optional<int64_t> knob(std::string_view name) const {
    return limits_.knobs ? limits_.knobs->get(name) : std::nullopt;
  }

  /// The loop in lanes that a knob asks for, if it does.
  bool set_lanes(LaneChoice* lanes) {
    const auto axis = knob("axis");
    if (!axis || *axis >= static_cast<int64_t>(kernel_.ranges.size())) return false;
    *lanes = {};
    const auto count = static_cast<uint32_t>(knob("lanes").value_or(1));
    if (*axis >= 0 && count > 1)
      *lanes = {kernel_.ranges[static_cast<size_t>(*axis)],
                std::min(std::bit_floor(count), limits_.max_lanes)};
    s_.reduces.clear();
    cost_ = model_.output_cost(*lanes, &s_.reduces);
    return true;
  }

  bool set_jams() {
    bool is_set = false;
    for (AxisPlan& a : s_.loops) {
      const auto at = std::find(kernel_.ranges.begin(), kernel_.ranges.end(), a.range);
      const auto jam = knob(fmt::format("jam{}", at - kernel_.ranges.begin()));
      if (!jam) continue;
      is_set = true;
      a.jam = static_cast<uint32_t>(*jam);
    }
    return is_set;
  }

  void choose_lanes() {
    cost_ = model_.output_cost({}, &s_.reduces);
    LaneChoice best;
    if (!set_lanes(&best))
      for (const Node* r : kernel_.ranges) {
        const LaneChoice c = model_.best_lanes(r, &cost_, &s_.reduces);
        if (c.range) best = c;
      }
    if (knob("rlanes") == 0)
      for (auto& [reduce, plan] : s_.reduces) plan = {};
    // Loops of one iteration go last: they are nothing to share out or to tile.
    for (const bool is_single : {false, true}) {
      for (const Node* r : kernel_.ranges)
        if (r != best.range && r->src[0]->is_const(1) == is_single)
          s_.loops.push_back({.range = r});
      if (best.range && !is_single)
        s_.loops.push_back({.range = best.range, .lanes = best.lanes, .is_masked = best.is_masked});
    }
    lanes_ = best;
  }

  /// Whether lanes run along the rows of a row kernel: then each row is done on its own.
  bool is_along_row() const {
    if (!rows_.is_row_kernel || !lanes_.range) return rows_.is_row_kernel;
    for (uint32_t i = 0; i < rows_.outer; ++i)
      if (s_.loops[i].range == lanes_.range) return false;
    return true;
  }

  /// Loads across the lanes want the loop they are contiguous along merged `lanes` times.
  void choose_transposition() {
    for (const Node* load : model_.output_loads()) {
      const Node* u = model_.transposing_range(load, lanes_);
      if (!u) continue;
      bool is_free = true;
      for (const AxisPlan& a : s_.loops) is_free = is_free && a.jam == 1;
      for (AxisPlan& a : s_.loops)
        if (a.range == u && is_free) a.jam = lanes_.lanes;
    }
  }

  void choose_unroll() {
    for (auto& [reduce, plan] : s_.reduces) {
      if (plan.lanes <= 1) continue;
      double bodies = 1;
      for (const AxisPlan& a : s_.loops)
        if (model_.depends(reduce, a.range)) bodies *= a.jam;
      const double trip_count = CostModel::trip_count(plan.vector_range) / plan.lanes;
      const double nodes = static_cast<double>(model_.body(reduce).size());
      uint32_t unroll = bodies >= 8 ? 1 : bodies >= 4 ? 2 : 4;
      while (unroll > 1 && (unroll > trip_count || unroll * bodies * nodes > kMaxMergedNodes ||
                            unroll * bodies * tiles_.registers_per_value(plan.lanes) >
                                target_.vector_registers / 2.0))
        unroll /= 2;
      plan.unroll = static_cast<uint32_t>(knob("unroll").value_or(unroll));
    }
  }

  /// Short bodies without a reduction: several vectors per iteration, so that the loop itself costs
  /// little.
  void choose_vector_unroll() {
    if (!lanes_.range || (!model_.reduces().empty() && !is_along_row())) return;
    for (const AxisPlan& a : s_.loops)
      if (a.jam > 1) return;
    const double nodes = model_.output_nodes(),
                 vectors = CostModel::trip_count(lanes_.range) / lanes_.lanes;
    // A reduction for each element goes over rows of others: the fewer times, the better.
    const bool is_over_rows = std::any_of(
        model_.reduces().begin(), model_.reduces().end(),
        [&](const Node* n) { return model_.depends(n, lanes_.range) && !tiles_.own_lanes(n); });
    uint32_t jam = is_over_rows ? kRowVectors : nodes <= 16 ? 4 : nodes <= 40 ? 2 : 1;
    while (is_over_rows && jam > 1 && std::fmod(vectors, jam) != 0) jam /= 2;
    const Node* extent = lanes_.range->src[0];
    const bool has_rest = !extent->is_const() || extent->imm % (int64_t{lanes_.lanes} * jam) != 0;
    if (!is_over_rows && vectors < (has_rest ? 16.0 : 2.0) * jam) return;
    for (AxisPlan& a : s_.loops)
      if (a.range == lanes_.range) a.jam = jam;
  }

  double blocks_per_unit() const {
    return static_cast<double>(knob("blocks").value_or(kBlocksPerUnit));
  }

  /// One row at a time: what it keeps is overwritten by the next.
  void choose_stages() {
    if (!is_along_row()) return;
    for (const AxisPlan& a : s_.loops)
      if (a.jam > 1) return;
    s_.row_caches = plan_row_caches(kernel_, model_, target_.row_bytes);
    // Scratch has room for the row, not for vectors that reach beyond it.
    for (AxisPlan& a : s_.loops) a.is_masked = a.is_masked && s_.row_caches.empty();
    // Contiguous elements in scratch are adjacent along the producer's last loop.
    std::erase_if(s_.row_caches, [&](const RowCachePlan& stage) {
      const auto& loops = stage.producer->src;
      const auto is_across = [&](const Node* lanes) {
        return std::find(loops.begin() + 1, loops.end() - 1, lanes) != loops.end() - 1;
      };
      return is_across(lanes_.range) ||
             std::any_of(s_.reduces.begin(), s_.reduces.end(),
                         [&](const auto& r) { return is_across(r.second.vector_range); });
    });
    // Lanes must run along the row or not at all.
    std::erase_if(s_.row_caches, [&](const RowCachePlan& stage) {
      const auto& loops = stage.producer->src;
      return lanes_.range && model_.depends(stage.node, lanes_.range) &&
             std::find(loops.begin() + 1, loops.end(), lanes_.range) == loops.end();
    });
    for (auto& [reduce, plan] : s_.reduces)
      if (plan.lanes == 1 && reads_row_cache(reduce))
        plan = {.vector_range = reduce->src[1], .lanes = model_.full_lanes(), .unroll = 1};
  }

  /// Whether a reduction over a row has what is expensive of it from scratch: the cost of computing
  /// it, by which lanes were chosen, does not count then.
  bool reads_row_cache(const Node* reduce) const {
    const Node* row = reduce->src[1];
    if (reduce->src.size() != 2 || CostModel::trip_count(row) < 4 * model_.full_lanes() ||
        model_.full_lanes() < 4 || (lanes_.range && model_.depends(reduce, lanes_.range)))
      return false;
    std::vector<const Node*> stack{reduce->src[0]};
    std::unordered_set<const Node*> seen;
    bool is_cached = false;
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      if (!model_.depends(n, row) || !seen.insert(n).second) continue;
      if (n->op == Op::kReduce || n->op == Op::kLoad) return false;
      const bool is_row =
          std::any_of(s_.row_caches.begin(), s_.row_caches.end(),
                      [&](const RowCachePlan& c) { return c.node == n && c.producer != reduce; });
      is_cached = is_cached || is_row;
      if (!is_row) stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
    return is_cached;
  }

  /// Results that would only push other things out of the caches.
  void choose_streams() {
    if (target_.stream_bytes == 0 || !lanes_.range) return;
    for (const Node* r : kernel_.ranges)
      if (!r->src[0]->is_const()) return;
    const double iterations = CostModel::iterations(kernel_);
    for (const ir::Store& s : kernel_.stores) {
      const ir::Param& p = kernel_.params[static_cast<size_t>(s.param)];
      const double bytes = iterations * static_cast<double>(item_size(p.dtype));
      if (!p.is_read && bytes >= static_cast<double>(target_.stream_bytes))
        s_.streams.insert(s.param);
    }
  }

  bool can_merge(const AxisPlan& a) const {
    if (a.step() == 1) return true;
    return a.range->src[0]->is_const() && a.range->src[0]->imm % a.step() == 0;
  }

  void choose_grid() {
    const double total = CostModel::iterations(kernel_) * cost_;
    s_.grid[0].constant = 1;
    s_.work_per_block = static_cast<uint64_t>(std::min(total * kWorkPerCost, 1e18));
    if (s_.loops.empty() || total < 2 * kBlockWork) return;
    double trip_count = 1;
    uint32_t count = 0, symbolic = 0;
    const double wanted = blocks_per_unit() * units_;
    const bool is_tiled =
        std::any_of(s_.loops.begin(), s_.loops.end(), [](const AxisPlan& a) { return a.tile > 0; });
    while (count < s_.loops.size() && trip_count < wanted) {
      if (rows_.is_row_kernel && count == rows_.outer) break;
      const AxisPlan& a = s_.loops[count];
      if (a.range == s_.scan || (is_tiled && a.tile == 0)) break;
      const bool is_symbolic = !a.range->src[0]->is_const();
      if (count > 0 && (!can_merge(a) || (is_symbolic && symbolic > 0))) break;
      // The first loop alone may have ragged ends; it can only be merged without them.
      if (count == 1 && !can_merge(s_.loops[0])) break;
      symbolic += is_symbolic;
      trip_count *= std::ceil(CostModel::trip_count(a.range) / static_cast<double>(a.step()));
      ++count;
    }
    if (count > 0) set_grid(count, trip_count, total);
  }

  void set_grid(uint32_t count, double trip_count, double total) {
    bool has_symbol = false;
    for (uint32_t i = 0; i < count; ++i)
      has_symbol = has_symbol || !s_.loops[i].range->src[0]->is_const();
    const double per_trip = total / trip_count;
    double chunk = std::ceil(kBlockWork / per_trip);
    // With a known size there is no point in many more blocks than processors.
    if (!has_symbol) chunk = std::max(chunk, std::ceil(trip_count / (blocks_per_unit() * units_)));
    s_.grid_loops = count;
    s_.chunk = static_cast<int64_t>(std::max(chunk, 1.0));
    if (count == 1 && !s_.streams.empty()) s_.chunk = equal_chunk(static_cast<int64_t>(trip_count));
    s_.work_per_block = static_cast<uint64_t>(
        std::min(per_trip * static_cast<double>(s_.chunk) * kWorkPerCost, 1e18));
    hal::DimExpr dim{.constant = 1, .terms = {}, .divisor = s_.chunk};
    for (uint32_t i = 0; i < count; ++i) {
      const AxisPlan& a = s_.loops[i];
      if (count == 1) dim.divisor *= a.step();
      const int64_t step = count == 1 ? 1 : a.step();
      multiply(&dim, a.range->src[0], step);
    }
    s_.grid[0] = dim;
  }

  /// Blocks of equal length, of which each can go through several parts of memory at a time.
  int64_t equal_chunk(int64_t trip_count) const {
    const int64_t blocks = std::max<int64_t>(trip_count / s_.chunk, 1);
    for (int64_t b = blocks; 2 * b > blocks; --b)
      if (trip_count % b == 0) return trip_count / b;
    return s_.chunk;
  }

  const ir::KernelIr& kernel_;
  TargetInfo target_;
  uint32_t units_;
  ScheduleLimits limits_;
  CostModel model_;
  Schedule s_;
  LaneChoice lanes_;
  TileSearch tiles_;
  RowFacts rows_;
  double cost_ = 0;
};

}  // namespace

bool multiply(hal::DimExpr* dim, const Node* extent, int64_t step) {
  if (extent->is_const()) {
    const int64_t factor = extent->imm / step;
    dim->constant *= factor;
    for (auto& t : dim->terms) t.coefficient *= factor;
    return true;
  }
  const ir::Linear l = ir::linear(extent);
  bool is_linear = true;
  for (const auto& t : l.terms) is_linear = is_linear && t.atom->op == Op::kVar;
  if (!is_linear) {
    dim->constant *= std::max<int64_t>(extent->hi, 1);
    for (auto& t : dim->terms) t.coefficient *= std::max<int64_t>(extent->hi, 1);
    return false;
  }
  // At most one factor is symbolic, so what is there so far is a constant.
  const int64_t before = dim->constant;
  dim->constant = before * l.constant;
  for (const auto& t : l.terms)
    dim->terms.push_back(
        {.var = static_cast<uint32_t>(t.atom->imm), .coefficient = before * t.coefficient});
  return true;
}

Schedule make_loop_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                            ScheduleLimits limits) {
  return Scheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
