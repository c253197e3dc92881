#include "compiler/opt/schedule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "compiler/ir/linear.h"
#include "compiler/opt/attention.h"
#include "compiler/opt/cost.h"
#include "compiler/opt/knobs.h"
#include "compiler/opt/panels.h"
#include "compiler/opt/schedule_rows.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Cost (scalar operations) that makes a block worth handing to another processor.
constexpr double kBlockWork = 4'096;
/// CodeObject::work_per_block counts operations at vector speed.
constexpr double kWorkPerCost = 8;
constexpr uint32_t kBlocksPerUnit = 8;
/// Merged copies of a body beyond this many nodes cost more to compile than they save.
constexpr double kMaxMergedNodes = 500;

/// Cycles for the cache traffic of one load, and per output of iterations outside full tiles.
constexpr double kVectorTraffic = 0.35, kScalarTraffic = 0.15, kRaggedCost = 1.0;
/// Cycles to start on a row in another page: translation, and caches whose sets such rows share.
constexpr double kFarRowCost = 4;

/// Vectors of a row that a sum over rows adds up at once.
constexpr uint32_t kRowVectors = 8;

/// One way to merge copies of loop bodies around the heaviest reduction.
struct Tile {
  size_t first = 0, second = 0;  // positions in Schedule::loops
  uint32_t first_jam = 1, second_jam = 1;
  double cost = 0;
};

class Scheduler {
 public:
  Scheduler(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
            ScheduleLimits limits)
      : kernel_(kernel),
        target_(target),
        units_(std::max(units, 1u)),
        limits_(limits),
        model_(kernel, target, limits.max_lanes) {}

  Schedule run() {
    choose_lanes();
    rows_ = order_rows(model_, &s_.loops);
    if (limits_.has_tiles) {
      if (!set_jams() && !is_along_row()) choose_tile();
      choose_transposition();
      choose_stages();
      choose_unroll();
      choose_vector_unroll();
    }
    choose_grid();
    choose_streams();
    s_.predicted_cost = predict();
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

  /// Cost of an output iteration, scaled by what merging copies saves of the heaviest reduction.
  double predict() {
    const Node* reduce = heaviest_reduce();
    if (!reduce) return cost_;
    Tile t;
    for (size_t i = 0; i < s_.loops.size(); ++i) {
      if (s_.loops[i].jam == 1) continue;
      if (t.first_jam == 1) {
        t.first = i;
        t.first_jam = s_.loops[i].jam;
      } else {
        t.second = i;
        t.second_jam = s_.loops[i].jam;
      }
    }
    if (t.first_jam == 1 || s_.loops.empty()) return cost_;
    if (t.second_jam == 1) t.second = t.first;
    const std::vector<const Node*> body = model_.body(reduce);
    const auto plain = tile_cost(reduce, body, {t.first, t.first, 1, 1}),
               tiled = tile_cost(reduce, body, t);
    // Beyond the registers: spilling is about as dear as not merging at all.
    return plain && tiled && *plain > 0 ? cost_ * *tiled / *plain : cost_ * 1.5;
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
    // Loops of one trip go last: they are nothing to share out or to tile.
    for (const bool is_single : {false, true}) {
      for (const Node* r : kernel_.ranges)
        if (r != best.range && r->src[0]->is_const(1) == is_single)
          s_.loops.push_back({.range = r});
      if (best.range && !is_single) s_.loops.push_back({.range = best.range, .lanes = best.lanes});
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

  const Node* heaviest_reduce() const {
    const Node* best = nullptr;
    double most = 8;  // shorter reductions are not worth a tile
    for (const Node* n : model_.reduces()) {
      double count = 1;
      for (size_t i = 1; i < n->src.size(); ++i) count *= CostModel::trips(n->src[i]);
      bool has_output = false;
      for (const AxisPlan& a : s_.loops) has_output = has_output || model_.depends(n, a.range);
      if (has_output && count > most) {
        most = count;
        best = n;
      }
    }
    return best;
  }

  uint32_t lanes_of(const Node* reduce) const {
    const auto it = s_.reduces.find(reduce);
    if (it != s_.reduces.end() && it->second.lanes > 1) return it->second.lanes;
    return lanes_.range && model_.depends(reduce, lanes_.range) ? lanes_.lanes : 1;
  }

  double registers_per_value(uint32_t lanes) const {
    return std::max(
        1.0, std::ceil(lanes * static_cast<double>(model_.widest()) * 8 / target_.vector_bits));
  }

  void choose_tile() {
    const Node* reduce = heaviest_reduce();
    if (!reduce) return;
    std::vector<size_t> axes;
    for (size_t i = 0; i < s_.loops.size(); ++i)
      if (model_.depends(reduce, s_.loops[i].range)) axes.push_back(i);
    const std::vector<const Node*> body = model_.body(reduce);
    std::optional<Tile> best;
    for (size_t x = 0; x < axes.size(); ++x)
      for (size_t y = x; y < axes.size(); ++y) consider(reduce, body, axes[x], axes[y], &best);
    if (!best) return;
    s_.loops[best->first].jam = best->first_jam;
    if (best->second != best->first) s_.loops[best->second].jam = best->second_jam;
  }

  void consider(const Node* reduce, const std::vector<const Node*>& body, size_t first,
                size_t second, std::optional<Tile>* best) {
    static constexpr uint32_t kJams[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
    for (uint32_t a : kJams)
      for (uint32_t b : kJams) {
        if (first == second && b != 1) continue;
        Tile t{first, second, a, b, 0};
        // Without a load to share, unrolling the reduction itself hides latency with less code.
        if (own_lanes(reduce) && !(shares(body, first, a) && shares(body, second, b))) continue;
        // Rows of their own are streams of their own: prefetchers follow about eight.
        if (own_lanes(reduce) && std::max(a, b) > 8) continue;
        const std::optional<double> cost = tile_cost(reduce, body, t);
        if (!cost) continue;
        t.cost = *cost;
        // A larger tile must be clearly better.
        const bool is_larger = *best && a * b > (*best)->first_jam * (*best)->second_jam;
        if (!*best || t.cost < (*best)->cost * (is_larger ? 0.97 : 1)) *best = t;
      }
  }

  bool shares(const std::vector<const Node*>& body, size_t loop, uint32_t jam) const {
    for (const Node* n : body)
      if (n->op == Op::kLoad && !model_.depends(n, s_.loops[loop].range)) return true;
    return jam == 1;
  }

  /// Share of iterations that run in full tiles, or nothing if the loop is too short.
  std::optional<double> coverage(size_t loop, uint32_t jam) const {
    if (jam == 1) return 1;
    const AxisPlan& a = s_.loops[loop];
    const double extent = CostModel::trips(a.range), step = double{1} * a.lanes * jam;
    if (extent < step) return std::nullopt;
    if (!a.range->src[0]->is_const()) return jam > 4 ? std::nullopt : std::optional<double>(0.9);
    return std::floor(extent / step) * step / extent;
  }

  /// Copies of the nodes of a reduction body under a tile.
  struct TileCounts {
    double work = 0, vector_loads = 0, scalar_loads = 0, nodes = 0;
    double far_rows = 0;  // groups of neighbouring vectors that are in a new page on every trip
    double kept = 0;      // loads that stay in registers while the other axis runs
  };

  /// Whether neighbouring trips of the reduction read `load` from different pages.
  bool is_far(const Node* reduce, const Node* load) {
    for (size_t i = 1; i < reduce->src.size(); ++i) {
      const std::optional<int64_t> stride = model_.strides(reduce->src[i], 0).stride(load->src[0]);
      if (stride && std::abs(*stride) * item_size(load->dtype) >= int64_t{target_.page_bytes})
        return true;
    }
    return false;
  }

  TileCounts count(const Node* reduce, const std::vector<const Node*>& body, const Tile& t) {
    TileCounts c;
    c.work = double{1} * t.first_jam * t.second_jam;
    const Node* a = s_.loops[t.first].range;
    const Node* b = s_.loops[t.second].range;
    double only_a = 0, only_b = 0;
    for (const Node* n : body) {
      if (n->op == Op::kConst || n->op == Op::kVar || n->op == Op::kRange) continue;
      const bool on_a = model_.depends(n, a), on_b = a != b && model_.depends(n, b);
      const double copies = (on_a ? t.first_jam : 1.0) * (on_b ? t.second_jam : 1.0);
      c.nodes += copies;
      if (n->op != Op::kLoad) {
        if (n != reduce->src[0] || n->op != Op::kMul) c.work += copies;
        continue;
      }
      const bool is_vector = own_lanes(reduce) || (lanes_.range && model_.depends(n, lanes_.range));
      (is_vector ? c.vector_loads : c.scalar_loads) += copies;
      if (is_vector && is_far(reduce, n)) {
        const double along = (a == lanes_.range ? t.first_jam : 1.0) *
                             (b == lanes_.range && a != b ? t.second_jam : 1.0);
        c.far_rows += copies / along;
      }
      if (on_a && !on_b) only_a += copies;
      if (on_b && !on_a) only_b += copies;
    }
    c.kept = std::min(only_a, only_b);
    return c;
  }

  /// Cycles per output value of one trip of the reduction, for two loads and two operations per
  /// cycle and four cycles of latency; data is taken to come from the second cache level.
  std::optional<double> tile_cost(const Node* reduce, const std::vector<const Node*>& body,
                                  const Tile& t) {
    const auto share_a = coverage(t.first, t.first_jam), share_b = coverage(t.second, t.second_jam);
    if (!share_a || !share_b) return std::nullopt;
    const double per_value = registers_per_value(lanes_of(reduce)),
                 copies = t.first_jam * t.second_jam;
    const TileCounts c = count(reduce, body, t);
    const double live = (copies + c.kept + 2) * per_value;
    if (copies > 1 && (live > target_.vector_registers || c.nodes > kMaxMergedNodes))
      return std::nullopt;
    const double unrolled = own_lanes(reduce) ? std::max(1.0, 4 / copies) : 1.0;
    const double loads = c.vector_loads * per_value + c.scalar_loads;
    const double traffic = c.vector_loads * per_value * kVectorTraffic +
                           c.scalar_loads * kScalarTraffic + c.far_rows * kFarRowCost;
    const double cycles = std::max({c.work * per_value / 2, loads / 2, 4 / unrolled}) + traffic;
    // Iterations beyond the second axis' tiles still run in tiles of the first.
    double cost = cycles / copies;
    if (*share_b < 1) {
      const std::optional<double> rest =
          tile_cost(reduce, body, {t.first, t.second, t.first_jam, 1});
      cost = cost * *share_b + rest.value_or(kRaggedCost) * (1 - *share_b);
    }
    if (*share_a < 1) cost = cost * *share_a + kRaggedCost * per_value * (1 - *share_a);
    return cost + (*share_a < 1 ? 0.03 : 0) + (*share_b < 1 ? 0.03 : 0);
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

  bool own_lanes(const Node* reduce) const {
    const auto it = s_.reduces.find(reduce);
    return it != s_.reduces.end() && it->second.lanes > 1;
  }

  void choose_unroll() {
    for (auto& [reduce, plan] : s_.reduces) {
      if (plan.lanes <= 1) continue;
      double copies = 1;
      for (const AxisPlan& a : s_.loops)
        if (model_.depends(reduce, a.range)) copies *= a.jam;
      const double trips = CostModel::trips(plan.vector_range) / plan.lanes;
      const double nodes = static_cast<double>(model_.body(reduce).size());
      uint32_t unroll = copies >= 8 ? 1 : copies >= 4 ? 2 : 4;
      while (unroll > 1 &&
             (unroll > trips || unroll * copies * nodes > kMaxMergedNodes ||
              unroll * copies * registers_per_value(plan.lanes) > target_.vector_registers / 2.0))
        unroll /= 2;
      plan.unroll = static_cast<uint32_t>(knob("unroll").value_or(unroll));
    }
  }

  /// Short bodies without a reduction: several vectors per trip, so that the loop itself costs
  /// little.
  void choose_vector_unroll() {
    if (!lanes_.range || (!model_.reduces().empty() && !is_along_row())) return;
    for (const AxisPlan& a : s_.loops)
      if (a.jam > 1) return;
    const double nodes = model_.output_nodes(),
                 vectors = CostModel::trips(lanes_.range) / lanes_.lanes;
    // A reduction for each element goes over rows of others: the fewer times, the better.
    const bool is_over_rows = std::any_of(
        model_.reduces().begin(), model_.reduces().end(),
        [&](const Node* n) { return model_.depends(n, lanes_.range) && !own_lanes(n); });
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
    s_.stages = plan_stages(kernel_, model_, target_.row_bytes);
    // Lanes must run along the row or not at all.
    std::erase_if(s_.stages, [&](const StagePlan& stage) {
      const auto& loops = stage.producer->src;
      return lanes_.range && model_.depends(stage.node, lanes_.range) &&
             std::find(loops.begin() + 1, loops.end(), lanes_.range) == loops.end();
    });
  }

  /// Results that would only push other things out of the caches.
  void choose_streams() {
    if (target_.stream_bytes == 0 || !lanes_.range) return;
    double iterations = 1;
    for (const AxisPlan& a : s_.loops) {
      if (!a.range->src[0]->is_const()) return;
      iterations *= CostModel::trips(a.range);
    }
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
    double iterations = 1;
    for (const AxisPlan& a : s_.loops) iterations *= CostModel::trips(a.range);
    const double total = iterations * cost_;
    s_.grid[0].constant = 1;
    s_.work_per_block = static_cast<uint64_t>(std::min(total * kWorkPerCost, 1e18));
    if (s_.loops.empty() || total < 2 * kBlockWork) return;
    double trips = 1;
    uint32_t count = 0, symbolic = 0;
    const double wanted = blocks_per_unit() * units_;
    while (count < s_.loops.size() && trips < wanted) {
      if (rows_.is_row_kernel && count == rows_.outer) break;
      const AxisPlan& a = s_.loops[count];
      const bool is_symbolic = !a.range->src[0]->is_const();
      if (count > 0 && (!can_merge(a) || (is_symbolic && symbolic > 0))) break;
      // The first loop alone may have ragged ends; it can only be merged without them.
      if (count == 1 && !can_merge(s_.loops[0])) break;
      symbolic += is_symbolic;
      trips *= std::ceil(CostModel::trips(a.range) / static_cast<double>(a.step()));
      ++count;
    }
    if (count > 0) set_grid(count, trips, total);
  }

  void set_grid(uint32_t count, double trips, double total) {
    bool has_symbol = false;
    for (uint32_t i = 0; i < count; ++i)
      has_symbol = has_symbol || !s_.loops[i].range->src[0]->is_const();
    const double per_trip = total / trips;
    double chunk = std::ceil(kBlockWork / per_trip);
    // With a known size there is no point in many more blocks than processors.
    if (!has_symbol) chunk = std::max(chunk, std::ceil(trips / (blocks_per_unit() * units_)));
    s_.grid_loops = count;
    s_.chunk = static_cast<int64_t>(std::max(chunk, 1.0));
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

  const ir::KernelIr& kernel_;
  TargetInfo target_;
  uint32_t units_;
  ScheduleLimits limits_;
  CostModel model_;
  Schedule s_;
  LaneChoice lanes_;
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

Schedule make_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                       ScheduleLimits limits) {
  if (target.has_groups) return make_group_schedule(kernel, target, units, limits);
  const bool is_plain = limits.knobs && limits.knobs->get("plain") == 1;
  if (!is_plain) {
    if (auto dots = make_dot_schedule(kernel, target, units, limits)) return std::move(*dots);
    if (auto attention = make_attention_schedule(kernel, target, units, limits))
      return std::move(*attention);
    if (auto panels = make_panel_schedule(kernel, target, units, limits)) return std::move(*panels);
  }
  return Scheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
