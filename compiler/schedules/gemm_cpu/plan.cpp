// Register tiles (MR × NR) and cache blocks (MC, NC, KC) of packed GEMM.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "compiler/analysis/affine.h"
#include "compiler/analysis/cost.h"
#include "compiler/schedules/gemm_cpu/find.h"
#include "compiler/schedules/gemm_cpu/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;

/// Cycles per vector copied: contiguous, transposed, element by element.
constexpr double kCopyCycles = 3, kTransposeCycles = 8, kGatherCycles = 24;
constexpr double kEvenCycles = 8;  // every other element, in vectors
constexpr double kFarCycles = 8;   // more where it comes from beyond the private caches
/// Per number of A that is not contiguous along K; per vector
/// of accumulators that is transposed and stored afterwards.
constexpr double kElementCycles = 2, kTransposedStoreCycles = 12;
constexpr double kLatency = 4;  // of a multiply-add, two of which start per cycle
/// Share of the time from which on packing is worth avoiding.
constexpr double kExpensivePacking = 0.04;
/// Arithmetic operations that CodeObject::work_per_block counts as one.
constexpr double kOperationsPerWork = 8;
/// Steps of a copied block of K, where there are more than one: the rows of a tile stay in
/// L1 while panels go through it.
constexpr int64_t kMostSteps = 256;
/// Blocks that are rather one: accumulators need not be spilled.
constexpr double kBlocksAsOne = 2.5;
/// Rows of a matrix up to which copying B in a pass of its own is noticed.
constexpr int64_t kMostRowsAlong = 1024;
/// Lines of a cache that the rows of a tile lie in at one step, of A copied step
/// by step of K.
constexpr double kLinesOfStep = 1.5;
/// Share of L1 for what stays there.
constexpr double kShareOfCache = 0.5;
/// A schedule that transposes its accumulators is worth it if it takes this part of the time.
constexpr double kTransposedShare = 0.97;

int64_t round_up(int64_t v, int64_t step) { return (v + step - 1) / step * step; }

class PanelScheduler {
 public:
  PanelScheduler(PackedGemmPlan plan, const TargetInfo& target, uint32_t units,
                 ScheduleLimits limits)
      : plan_(std::move(plan)),
        target_(target),
        units_(std::max(units, 1u)),
        knobs_(limits.knobs),
        is_packed_(limits.is_packed) {}

  std::optional<Schedule> run() {
    if (plan_.is_skinny) {
      if (!choose_skinny()) return std::nullopt;
    } else {
      plan_.reads_b_once = std::ranges::all_of(
          plan_.products, [&](const PanelProduct& p) { return is_read_once(plan_, p); });
      choose_tile();
      plan_.reads_a_in_place =
          !plan_.is_transposed &&
          std::all_of(plan_.products.begin(), plan_.products.end(),
                      [&](const PanelProduct& p) { return can_read_left(plan_, p, target_); });
      for (PanelProduct& p : plan_.products)
        p.reads_b_in_place =
            plan_.reads_b_once || is_prepacked(plan_, p) || fits_in_l2(plan_, p, target_);
      choose_blocks();
    }
    set_blocks(knobs_, target_, &plan_);
    if (plan_.is_transposed) plan_.row_block = legal_rows(plan_.row_block);
    return finish();
  }

  double cost() const { return cost_; }  ///< cycles, of plans that are not skinny

 private:
  static double extent(const Node* range) { return range ? CostModel::trip_count(range) : 1; }
  double batch_count() const {
    double count = 1;
    for (const Node* r : plan_.batch) count *= CostModel::trip_count(r);
    return count;
  }

  /// Steps of the innermost loop for one sum.
  static double steps(const PanelProduct& p) {
    return static_cast<double>(p.inner) * extent(p.right_k[0]) / static_cast<double>(p.pack());
  }

  /// Whether a row of the matrix is one run of memory, not runs of a few columns.
  bool lies_side_by_side(const Node* right) const {
    Strides columns(plan_.column, 0);
    const std::vector<const Node*> nodes = ir::topological({&right, 1});
    return std::all_of(nodes.begin(), nodes.end(), [&](const Node* n) {
      return n->op != ir::Op::kLoad || columns.stride(n->src[0]).has_value();
    });
  }

  /// Columns are shared out; K is one loop and read as B lies.
  bool choose_skinny() {
    plan_.vectors = 4;
    plan_.rows = static_cast<uint32_t>(extent(plan_.row));
    if (plan_.rows > 1) plan_.vectors = 2;
    plan_.vectors = static_cast<uint32_t>(tile_of(knobs_, target_, {1, plan_.vectors}).vectors);
    plan_.row_block = plan_.rows;
    for (PanelProduct& p : plan_.products) {
      if (p.right_k.size() > 1 || p.right_copy != PanelCopy::kVectors) return false;
      if (!lies_side_by_side(p.right)) return false;
      p.block = plan_.k_unroll;
      p.is_single = false;
    }
    const double columns = std::ceil(extent(plan_.column) / std::max(1.0, units_ / batch_count()));
    const int64_t most = static_cast<int64_t>(target_.l1_bytes) / 2 /
                         (item_size(plan_.products[0].reduce->dtype) * plan_.rows);
    plan_.column_block =
        round_up(std::clamp<int64_t>(static_cast<int64_t>(columns), 1, std::max<int64_t>(most, 1)),
                 plan_.tile_columns());
    return true;
  }

  /// Cycles of one step of a tile. Several columns of accumulators share what is read of a row, and
  /// the loop's own instructions.
  static double step_cycles(uint32_t rows, uint32_t vectors) {
    return std::max({rows * vectors / 2.0, (rows + vectors) / 2.0, kLatency}) + 0.5;
  }

  /// Tiles of as many accumulators as registers hold, chosen for little waste at the edges.
  void choose_tile() {
    const double rows = extent(plan_.row), vectors = std::ceil(extent(plan_.column) / plan_.lanes);
    double least = 0;
    for (uint32_t v = 1; v <= 4; ++v)
      for (uint32_t r = 1; r * v + operands(v) <= target_.vector_registers && r <= 16; ++r) {
        // Of one tile: no columns that are not there, which B in place would be read beyond.
        if (plan_.reads_b_once && (r < rows || std::fmod(vectors, v) != 0)) continue;
        const double cost = std::ceil(rows / r) * std::ceil(vectors / v) * step_cycles(r, v);
        const bool is_larger = r * v > plan_.rows * plan_.vectors;
        if (least != 0 && cost >= least * (is_larger ? 1.0 : 0.97)) continue;
        least = least == 0 ? cost : std::min(least, cost);
        plan_.rows = r;
        plan_.vectors = v;
      }
    if (least == 0) {
      plan_.reads_b_once = false;
      return choose_tile();
    }
    const TileShape tile = tile_of(knobs_, target_, {plan_.rows, plan_.vectors});
    plan_.reads_b_once = plan_.reads_b_once && tile.rows >= static_cast<int64_t>(rows) &&
                         std::fmod(vectors, static_cast<double>(tile.vectors)) == 0;
    plan_.rows = static_cast<uint32_t>(tile.rows);
    plan_.vectors = static_cast<uint32_t>(tile.vectors);
  }

  /// Registers besides the accumulators' for a tile of `vectors` columns.
  uint32_t operands(uint32_t vectors) const {
    for (const PanelProduct& p : plan_.products)
      if (p.dot && !is_native(*p.dot)) return 2 * vectors + 4;  // even and odd elements apart
    return vectors + 1;
  }

  bool is_native(const PanelDot& dot) const {
    return std::any_of(target_.dots.begin(), target_.dots.end(), [&](const DotInfo& d) {
      return d.kind == dot.kind && d.bits == plan_.lanes * 32;
    });
  }

  static double copy_cycles(PanelCopy copy) {
    switch (copy) {
      case PanelCopy::kVectors: return kCopyCycles;
      case PanelCopy::kTransposed: return kTransposeCycles;
      case PanelCopy::kSingle: return kGatherCycles;
    }
    __builtin_unreachable();
  }

  /// More for an operand of `width` rows or columns beyond L2.
  double far_cycles(const PanelProduct& p, const Node* operand, double width) const {
    const double bytes =
        steps(p) * static_cast<double>(p.pack() * item_size(operand->dtype)) * width;
    return bytes > static_cast<double>(target_.l2_bytes) ? kFarCycles : 0;
  }

  void choose_k_block(PanelProduct* p) const {
    const Node* outer = p->right_k[0]->src[0];
    const int64_t steps = kc_of(knobs_, plan_.is_transposed ? transposed_steps() : kMostSteps);
    const int64_t most = std::max<int64_t>(steps * p->pack() / p->inner, 1);
    const int64_t trip_count = outer->is_const() ? outer->imm : INT64_MAX;
    const bool is_exact = plan_.is_transposed || (knobs_ && knobs_->get("kc"));
    double as_one = is_exact ? 1.5 : kBlocksAsOne;
    // B goes by once: A of all of K stays in L2, and accumulators in registers.
    if (plan_.reads_b_once && !is_exact) {
      const double bytes = static_cast<double>(trip_count) * plan_.rows *
                           static_cast<double>(item_size(p->left->dtype));
      if (bytes <= kShareOfCache * static_cast<double>(target_.l2_bytes)) as_one = HUGE_VAL;
    }
    if (static_cast<double>(trip_count) <= static_cast<double>(most) * as_one) {
      p->block = trip_count;
      return;
    }
    p->is_single = false;
    p->block = trip_count == INT64_MAX ? most
                                       : (trip_count + (trip_count + most - 1) / most - 1) /
                                             ((trip_count + most - 1) / most);
    int64_t unit = p->inner == 1 ? plan_.lanes * p->pack() : 1;
    // Whole iterations of the outermost loop, and whole iterations.
    if (plan_.is_transposed && p->inner == 1) unit = std::lcm(p->line_inner, int64_t{4});
    p->block = round_up(p->block, unit);
    p->is_single = p->block >= trip_count;
  }

  /// Steps whose elements stay in L1: a panel of B for all rows, and
  /// the lines of the left one that a tile reads.
  int64_t transposed_steps() const {
    const int64_t item = item_size(plan_.products[0].reduce->dtype);
    const double bytes =
        static_cast<double>(plan_.tile_columns() * item) + kLinesOfStep * target_.cache_line_bytes;
    const double room = kShareOfCache * static_cast<double>(target_.l1_bytes);
    return std::max<int64_t>(static_cast<int64_t>(room / bytes), 16);
  }

  /// Rows of a block of transposed accumulators: whole tiles, vectors and lines, or all rows.
  int64_t legal_rows(int64_t rows) const {
    int64_t unit = std::lcm(int64_t{plan_.rows}, int64_t{plan_.lanes});
    for (const PanelProduct& p : plan_.products)
      if (p.line_outer) unit = std::lcm(unit, p.line->src[0]->imm);
    const int64_t all = round_up(plan_.row->src[0]->imm, plan_.rows);
    return std::min(round_up(rows, unit), all);
  }

  /// Per vector of A that is copied along its lines.
  double line_cycles(const PanelProduct& p) const {
    Strides along(p.line, plan_.lanes);
    for (const Node* n : ir::topological({&p.left_line, 1}))
      if (n->op == ir::Op::kLoad && along.stride(n->src[0]) == 2) return kEvenCycles;
    return kCopyCycles;
  }

  /// Cycles for copying one row of A, and for transposing one of accumulators.
  double row_cycles(double columns) const {
    double cycles = 0;
    if (plan_.reads_a_in_place) return 0;
    for (const PanelProduct& p : plan_.products) {
      const double elements = steps(p) * static_cast<double>(p.pack());
      if (!plan_.is_transposed) {
        cycles += elements * (p.left_lanes > 1 ? kCopyCycles / plan_.lanes : kElementCycles);
        continue;
      }
      const double line = extent(p.line), lanes = line / std::ceil(line / plan_.lanes);
      const double copy = line_cycles(p) + far_cycles(p, p.left, extent(plan_.row));
      cycles += elements * copy / lanes + columns * kTransposedStoreCycles / plan_.lanes;
    }
    return cycles;
  }

  void choose_blocks() {
    double k_steps = 0, copy_right = 0;  // in steps
    int64_t deepest = 1;
    for (PanelProduct& p : plan_.products) {
      choose_k_block(&p);
      deepest = std::max(deepest, p.steps_block());
      k_steps += steps(p);
      if (!p.reads_b_in_place && !is_packed_)
        copy_right += steps(p) * static_cast<double>(p.pack()) *
                      (copy_cycles(p.right_copy) + far_cycles(p, p.right, extent(plan_.column)));
    }
    // Every vector of B is multiplied with every row.
    for (PanelProduct& p : plan_.products)
      p.packs_b_on_the_fly = !plan_.is_transposed && !p.reads_b_in_place && !p.dot &&
                             p.right_copy == PanelCopy::kVectors && p.right_k.size() == 1 &&
                             extent(plan_.row) <= kMostRowsAlong;
    plan_.is_packing_b_expensive = copy_right > kExpensivePacking * k_steps * extent(plan_.row) / 2;
    const double rows = extent(plan_.row), columns = extent(plan_.column), batch = batch_count();
    const int64_t item = item_size(plan_.products[0].reduce->dtype);
    const int64_t most_columns = std::max<int64_t>(
        static_cast<int64_t>(target_.l2_bytes) / 2 / (deepest * item), plan_.tile_columns());
    double least = 0;
    const double tile = step_cycles(plan_.rows, plan_.vectors);
    const int64_t most_rows = plan_.is_transposed ? transposed_rows(deepest * item) : kMostRows;
    const int64_t parts = int64_t{4} * units_;
    for (int64_t down = 1; down <= parts; ++down)
      for (int64_t across = 1; across <= parts; ++across) {
        int64_t r =
            round_up(static_cast<int64_t>(std::ceil(rows / static_cast<double>(down))), plan_.rows);
        int64_t c = round_up(static_cast<int64_t>(std::ceil(columns / static_cast<double>(across))),
                             plan_.tile_columns());
        c = std::min(
            c, std::max<int64_t>(most_columns / plan_.tile_columns(), 1) * plan_.tile_columns());
        r = std::min(r, round_up(most_rows, plan_.rows));
        if (plan_.is_transposed) r = legal_rows(r);
        const double blocks = std::ceil(rows / static_cast<double>(r)) *
                              std::ceil(columns / static_cast<double>(c)) * batch;
        const double per_block =
            static_cast<double>(r / plan_.rows) *
                (static_cast<double>(c / plan_.tile_columns()) * (tile * k_steps + kTileCycles)) +
            static_cast<double>(r) * row_cycles(static_cast<double>(c)) +
            static_cast<double>(c) / plan_.lanes * copy_right + kBlockCycles;
        const double share = std::ceil(blocks / units_) + (units_ > 1 ? kDisturbance : 0);
        const double cost = share * per_block;
        if (least != 0 && cost >= least) continue;
        least = cost;
        plan_.row_block = r;
        plan_.column_block = c;
      }
    cost_ = least;
  }

  /// Rows whose A takes a quarter of L2 at `bytes` a row.
  int64_t transposed_rows(int64_t bytes) const {
    const auto most = static_cast<int64_t>(target_.l2_bytes) / 4 / bytes;
    return std::clamp<int64_t>(most, plan_.rows, kMostRows);
  }
  static constexpr int64_t kMostRows = 2048;
  static constexpr double kTileCycles = 100, kBlockCycles = 500;
  /// Part of a block that a core taken away for a while keeps the others waiting: small blocks go
  /// to whoever is free.
  static constexpr double kDisturbance = 0.05;

  std::optional<Schedule> finish() {
    Schedule s;
    s.grid[0] = blocks(plan_.column->src[0], plan_.column_block);
    if (!plan_.is_skinny) s.grid[1] = blocks(plan_.row->src[0], plan_.row_block);
    s.grid[2].constant = 1;
    for (const bool is_const : {true, false})
      for (const Node* r : plan_.batch)
        if (r->src[0]->is_const() == is_const) multiply(&s.grid[2], r->src[0], 1);
    double k_steps = 0;
    for (const PanelProduct& p : plan_.products) k_steps += steps(p);
    const double rows = std::min(extent(plan_.row), static_cast<double>(plan_.row_block));
    const double columns = std::min(extent(plan_.column), static_cast<double>(plan_.column_block));
    s.work_per_block =
        static_cast<uint64_t>(std::min(2 * rows * columns * k_steps / kOperationsPerWork, 1e18));
    s.plan = std::make_shared<const PackedGemmPlan>(std::move(plan_));
    return s;
  }

  /// ceil(extent / step); of extents that are not linear in the variables, of their bound.
  static hal::DimExpr blocks(const Node* extent, int64_t step) {
    hal::DimExpr dim{.constant = 1, .terms = {}, .divisor = step};
    multiply(&dim, extent, 1);
    return dim;
  }

  PackedGemmPlan plan_;
  const TargetInfo& target_;
  uint32_t units_;
  const Knobs* knobs_;  ///< or nullptr
  bool is_packed_;      ///< B will be in the order of panels
  double cost_ = 0;
};

/// Rows up to which a matrix from memory is read once where it is: copying it would take as long as
/// all products. As many vectors of A as an iteration has stay in L1.
constexpr int64_t kMostSkinnyRows = 24;

bool is_better_in_place(const PackedGemmPlan& plan, const TargetInfo& target) {
  if (plan.is_skinny || !plan.row || !plan.row->src[0]->is_const()) return false;
  if (plan.row->src[0]->imm > kMostSkinnyRows) return false;
  return std::ranges::all_of(plan.products, [&](const PanelProduct& p) {
    const double bytes = CostModel::trip_count(p.left_k) * CostModel::trip_count(plan.column) *
                         static_cast<double>(item_size(p.right->dtype));
    return !p.dot && p.right_copy == PanelCopy::kVectors &&
           bytes > static_cast<double>(target.l2_bytes);
  });
}

std::optional<PanelScheduler> transposed_scheduler(const ir::KernelIr& kernel,
                                                   const TargetInfo& target, uint32_t units,
                                                   ScheduleLimits limits) {
  const auto sides = match_gemm(kernel, target, limits, true);
  if (!sides) return std::nullopt;
  auto plan = canonicalize_gemm(kernel, *sides, target);
  if (!plan) return std::nullopt;
  return PanelScheduler(std::move(*plan), target, units, limits);
}

}  // namespace

std::optional<Schedule> make_panel_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                            uint32_t units, ScheduleLimits limits) {
  if (target.has_groups || !limits.has_tiles) return std::nullopt;
  const auto sides = match_gemm(kernel, target, limits);
  if (!sides) return std::nullopt;
  auto plan = canonicalize_gemm(kernel, *sides, target);
  if (!plan) return std::nullopt;
  if (limits.has_skinny && is_better_in_place(*plan, target)) {
    GemmMatch skinny = *sides;
    skinny.is_skinny = true;
    auto in_place = canonicalize_gemm(kernel, skinny, target);
    if (!in_place) return std::nullopt;
    if (auto s = PanelScheduler(std::move(*in_place), target, units, limits).run()) return s;
  }
  auto transposed =
      plan->is_skinny ? std::nullopt : transposed_scheduler(kernel, target, units, limits);
  limits.is_packed = false;
  PanelScheduler straight(std::move(*plan), target, units, limits);
  auto schedule = straight.run(), other = transposed ? transposed->run() : std::nullopt;
  if (!other) return schedule;
  const auto asked = limits.knobs ? limits.knobs->get("transposed") : std::nullopt;
  const bool is_better =
      asked ? *asked != 0 : transposed->cost() < kTransposedShare * straight.cost();
  return is_better ? std::move(other) : std::move(schedule);
}

}  // namespace bm::compiler
