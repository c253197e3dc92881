// Sizes of tiles and blocks for sums of products.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "compiler/opt/affine.h"
#include "compiler/opt/cost.h"
#include "compiler/opt/panel_sides.h"
#include "compiler/opt/tile_knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;

/// Cycles per vector copied: neighbours, transposed, element by element.
constexpr double kCopyCycles = 3, kTransposeCycles = 8, kGatherCycles = 24;
constexpr double kFarCycles = 8;  // more where it comes from beyond the private caches
constexpr double kLatency = 4;    // of a multiply-add, two of which start per cycle
/// Share of the time from which on copies are worth avoiding.
constexpr double kDearCopy = 0.04;
/// Arithmetic operations that CodeObject::work_per_block counts as one.
constexpr double kOperationsPerWork = 8;
/// Rows of a tile that may begin at the same place of their pages: a set of the first cache holds
/// them with room for more.
constexpr int64_t kRowsOfPlace = 8;
/// Steps of a copied block of the depth, where there are more than one: the rows of a tile stay in
/// the first cache while panels go through it.
constexpr int64_t kMostSteps = 256;
/// Blocks that are rather one: sums need not be put aside.
constexpr double kBlocksAsOne = 2.5;
/// Rows of a matrix up to which copying the right operand in a pass of its own is noticed.
constexpr int64_t kMostRowsAlong = 1024;
/// Up to which a right operand from the private cache is not copied.
constexpr int64_t kMostNearSteps = 512, kMostNearRows = 512;

int64_t round_up(int64_t v, int64_t step) { return (v + step - 1) / step * step; }

class PanelScheduler {
 public:
  PanelScheduler(PanelPlan plan, const TargetInfo& target, uint32_t units, const Knobs* knobs)
      : plan_(std::move(plan)), target_(target), units_(std::max(units, 1u)), knobs_(knobs) {}

  std::optional<Schedule> run() {
    if (plan_.is_strip) {
      if (!choose_strip()) return std::nullopt;
    } else {
      choose_tile();
      plan_.reads_left = std::all_of(plan_.products.begin(), plan_.products.end(),
                                     [&](const PanelProduct& p) { return can_read_left(p); });
      for (PanelProduct& p : plan_.products) p.reads_right = lies_in_panels(p);
      choose_blocks();
    }
    set_blocks(knobs_, target_, &plan_);
    return finish();
  }

 private:
  static double extent(const Node* range) { return range ? CostModel::trips(range) : 1; }
  double batch_count() const {
    double count = 1;
    for (const Node* r : plan_.batch) count *= CostModel::trips(r);
    return count;
  }

  /// Steps of the innermost loop for one sum.
  static double steps(const PanelProduct& p) {
    return static_cast<double>(p.inner) * extent(p.right_depth[0]) / static_cast<double>(p.pack());
  }

  /// Whether a row of the matrix is one run of memory, not runs of a few columns.
  bool lies_side_by_side(const Node* right) const {
    Strides columns(plan_.column, 0);
    const std::vector<const Node*> nodes = ir::topological({&right, 1});
    return std::all_of(nodes.begin(), nodes.end(), [&](const Node* n) {
      return n->op != ir::Op::kLoad || columns.stride(n->src[0]).has_value();
    });
  }

  /// Columns are shared out; the depth is one loop and read as the right operand lies.
  bool choose_strip() {
    plan_.vectors = 4;
    plan_.rows = static_cast<uint32_t>(extent(plan_.row));
    if (plan_.rows > 1) plan_.vectors = 2;
    plan_.vectors = static_cast<uint32_t>(tile_of(knobs_, target_, {1, plan_.vectors}).vectors);
    plan_.row_block = plan_.rows;
    for (PanelProduct& p : plan_.products) {
      if (p.right_depth.size() > 1 || p.right_copy != PanelCopy::kVectors) return false;
      if (!lies_side_by_side(p.right)) return false;
      p.block = plan_.strip_depths;
      p.is_single = false;
    }
    const double columns = std::ceil(extent(plan_.column) / std::max(1.0, units_ / batch_count()));
    const int64_t most = static_cast<int64_t>(target_.first_cache_bytes) / 2 /
                         (item_size(plan_.products[0].reduce->dtype) * plan_.rows);
    plan_.column_block =
        round_up(std::clamp<int64_t>(static_cast<int64_t>(columns), 1, std::max<int64_t>(most, 1)),
                 plan_.tile_columns());
    return true;
  }

  /// Tiles of as many sums as registers hold, chosen for little waste at the edges.
  void choose_tile() {
    const double rows = extent(plan_.row), vectors = std::ceil(extent(plan_.column) / plan_.lanes);
    double least = 0;
    for (uint32_t v = 1; v <= 4; ++v)
      for (uint32_t r = 1; r * v + operands(v) <= target_.vector_registers && r <= 16; ++r) {
        const double cycles = std::max({r * v / 2.0, (r + v) / 2.0, kLatency});
        // Several columns of sums share what is read of a row, and the loop's own instructions.
        const double cost = std::ceil(rows / r) * std::ceil(vectors / v) * (cycles + 0.5);
        const bool is_larger = r * v > plan_.rows * plan_.vectors;
        if (least != 0 && cost >= least * (is_larger ? 1.0 : 0.97)) continue;
        least = least == 0 ? cost : std::min(least, cost);
        plan_.rows = r;
        plan_.vectors = v;
      }
    const TileShape tile = tile_of(knobs_, target_, {plan_.rows, plan_.vectors});
    plan_.rows = static_cast<uint32_t>(tile.rows);
    plan_.vectors = static_cast<uint32_t>(tile.vectors);
  }

  /// Registers besides the sums' for a tile of `vectors` columns.
  uint32_t operands(uint32_t vectors) const {
    for (const PanelProduct& p : plan_.products)
      if (p.dot && !is_native(*p.dot)) return 2 * vectors + 4;  // even and odd numbers apart
    return vectors + 1;
  }

  bool is_native(const PanelDot& dot) const {
    return std::any_of(target_.dots.begin(), target_.dots.end(), [&](const DotInfo& d) {
      return d.kind == dot.kind && d.bits == plan_.lanes * 32;
    });
  }

  /// Whether the rows of a tile can be read where they are: one after the other in memory, of what
  /// is multiplied, and not in so few sets of a cache that they drive each other out.
  bool can_read_left(const PanelProduct& p) const {
    const Node* extent = plan_.row->src[0];
    const Node* load = p.left;
    const bool is_plain = load->op == ir::Op::kLoad && load->src.size() == 1 &&
                          (p.dot || load->dtype == p.reduce->dtype);
    if (!is_plain || !extent->is_const() || extent->imm < plan_.rows) return false;
    const Node* depth = p.right_depth[0]->src[0];
    const bool has_whole_words =
        depth->is_const() && depth->imm % p.pack() == 0 && !(p.dot && p.dot->flips_left);
    if (p.dot && !has_whole_words) return false;
    const auto row = Strides(plan_.row, 0).stride(load->src[0]);
    if (Strides(p.left_depth, 0).stride(load->src[0]) != 1 || !row) return false;
    const int64_t bytes = std::abs(*row) * item_size(load->dtype);
    const int64_t apart = std::gcd(bytes, int64_t{target_.page_bytes});
    return apart * plan_.rows <= kRowsOfPlace * target_.page_bytes;
  }

  /// Whether the right operand is read fast enough in its own order: whole tiles of it from the
  /// private cache, by too few rows for a copy to cost nothing.
  bool is_near(const PanelProduct& p) const {
    const Node *columns = plan_.column->src[0], *depth = p.right_depth[0]->src[0];
    if (!columns->is_const() || !depth->is_const()) return false;
    const int64_t bytes = columns->imm * depth->imm * item_size(p.right->dtype);
    return columns->imm % plan_.tile_columns() == 0 && depth->imm <= kMostNearSteps &&
           extent(plan_.row) <= kMostNearRows &&
           bytes <= static_cast<int64_t>(target_.private_cache_bytes) / 4;
  }

  /// Whether the right operand is in the order of panels, as pack_constants leaves it, or as good.
  bool lies_in_panels(const PanelProduct& p) const {
    const Node* load = p.right;
    const bool is_plain = load->op == ir::Op::kLoad && load->src.size() == 1 &&
                          (p.dot ? !p.dot->flips_left : load->dtype == p.reduce->dtype);
    if (!is_plain || p.right_depth.size() > 1) return false;
    const int64_t pack = p.pack(), tile = plan_.tile_columns();
    const auto column = Strides(plan_.column, tile).stride(load->src[0]);
    const auto depth = Strides(p.right_depth[0], pack == 1 ? 0 : pack).stride(load->src[0]);
    if (pack == 1 && column == 1 && is_near(p)) return true;
    // A matrix of as many columns as a tile has is in this order by itself.
    if (column != pack || depth != (pack == 1 ? tile : 1)) return false;
    // The last tile is read to its end.
    const Node* extent = plan_.column->src[0];
    if (!extent->is_const()) return false;
    ir::Graph& g = *plan_.kernel->graph;
    const std::array from{plan_.column}, to{g.range(g.index(round_up(extent->imm, tile)))};
    return g.substitute(load->src[0], from, to)->hi <
           plan_.kernel->params[static_cast<size_t>(load->imm)].elements;
  }

  static double copy_cycles(PanelCopy copy) {
    switch (copy) {
      case PanelCopy::kVectors: return kCopyCycles;
      case PanelCopy::kTransposed: return kTransposeCycles;
      case PanelCopy::kSingle: return kGatherCycles;
    }
    __builtin_unreachable();
  }

  void choose_depth(PanelProduct* p) const {
    const Node* outer = p->right_depth[0]->src[0];
    const int64_t most = std::max<int64_t>(depth_of(knobs_, kMostSteps) * p->pack() / p->inner, 1);
    const int64_t trips = outer->is_const() ? outer->imm : INT64_MAX;
    const double as_one = knobs_ && knobs_->get("depth") ? 1.5 : kBlocksAsOne;
    if (static_cast<double>(trips) <= static_cast<double>(most) * as_one) {
      p->block = trips;
      return;
    }
    p->is_single = false;
    p->block = trips == INT64_MAX
                   ? most
                   : (trips + (trips + most - 1) / most - 1) / ((trips + most - 1) / most);
    p->block = round_up(p->block, p->inner == 1 ? plan_.lanes * p->pack() : 1);
    p->is_single = p->block >= trips;
  }

  void choose_blocks() {
    double depth = 0, copy_right = 0;  // in steps
    int64_t deepest = 1;
    for (PanelProduct& p : plan_.products) {
      choose_depth(&p);
      deepest = std::max(deepest, p.steps_block());
      depth += steps(p);
      const double bytes = steps(p) * static_cast<double>(p.pack() * item_size(p.right->dtype)) *
                           extent(plan_.column);
      const bool is_far = bytes > static_cast<double>(target_.private_cache_bytes);
      if (!p.reads_right)
        copy_right += steps(p) * static_cast<double>(p.pack()) *
                      (copy_cycles(p.right_copy) + (is_far ? kFarCycles : 0));
    }
    // Every vector of the right operand is multiplied with every row.
    for (PanelProduct& p : plan_.products)
      p.copies_along = !p.reads_right && !p.dot && p.right_copy == PanelCopy::kVectors &&
                       p.right_depth.size() == 1 && extent(plan_.row) <= kMostRowsAlong;
    plan_.is_copying_dear = copy_right > kDearCopy * depth * extent(plan_.row) / 2;
    const double rows = extent(plan_.row), columns = extent(plan_.column), batch = batch_count();
    const int64_t item = item_size(plan_.products[0].reduce->dtype);
    const int64_t most_columns =
        std::max<int64_t>(static_cast<int64_t>(target_.private_cache_bytes) / 2 / (deepest * item),
                          plan_.tile_columns());
    double least = 0;
    const double tile = plan_.rows * plan_.vectors / 2.0 + 0.5;
    const int64_t parts = int64_t{4} * units_;
    for (int64_t down = 1; down <= parts; ++down)
      for (int64_t across = 1; across <= parts; ++across) {
        int64_t r =
            round_up(static_cast<int64_t>(std::ceil(rows / static_cast<double>(down))), plan_.rows);
        int64_t c = round_up(static_cast<int64_t>(std::ceil(columns / static_cast<double>(across))),
                             plan_.tile_columns());
        c = std::min(
            c, std::max<int64_t>(most_columns / plan_.tile_columns(), 1) * plan_.tile_columns());
        r = std::min(r, round_up(kMostRows, plan_.rows));
        const double blocks = std::ceil(rows / static_cast<double>(r)) *
                              std::ceil(columns / static_cast<double>(c)) * batch;
        const double per_block =
            static_cast<double>(r / plan_.rows) *
                (static_cast<double>(c / plan_.tile_columns()) * (tile * depth + kTileCycles) +
                 (plan_.reads_left ? 0 : plan_.rows * depth / plan_.lanes * kCopyCycles)) +
            static_cast<double>(c) / plan_.lanes * copy_right + kBlockCycles;
        const double share = std::ceil(blocks / units_) + (units_ > 1 ? kDisturbance : 0);
        const double cost = share * per_block;
        if (least != 0 && cost >= least) continue;
        least = cost;
        plan_.row_block = r;
        plan_.column_block = c;
      }
  }
  static constexpr int64_t kMostRows = 2048;
  static constexpr double kTileCycles = 100, kBlockCycles = 500;
  /// Part of a block that a core taken away for a while keeps the others waiting: small blocks go
  /// to whoever is free.
  static constexpr double kDisturbance = 0.05;

  std::optional<Schedule> finish() {
    Schedule s;
    s.grid[0] = blocks(plan_.column->src[0], plan_.column_block);
    if (!plan_.is_strip) s.grid[1] = blocks(plan_.row->src[0], plan_.row_block);
    s.grid[2].constant = 1;
    for (const bool is_const : {true, false})
      for (const Node* r : plan_.batch)
        if (r->src[0]->is_const() == is_const) multiply(&s.grid[2], r->src[0], 1);
    double depth = 0;
    for (const PanelProduct& p : plan_.products) depth += steps(p);
    const double rows = std::min(extent(plan_.row), static_cast<double>(plan_.row_block));
    const double columns = std::min(extent(plan_.column), static_cast<double>(plan_.column_block));
    s.work_per_block =
        static_cast<uint64_t>(std::min(2 * rows * columns * depth / kOperationsPerWork, 1e18));
    s.panels = std::make_shared<const PanelPlan>(std::move(plan_));
    return s;
  }

  /// ceil(extent / step); of extents that are not linear in the variables, of their bound.
  static hal::DimExpr blocks(const Node* extent, int64_t step) {
    hal::DimExpr dim{.constant = 1, .terms = {}, .divisor = step};
    multiply(&dim, extent, 1);
    return dim;
  }

  PanelPlan plan_;
  const TargetInfo& target_;
  uint32_t units_;
  const Knobs* knobs_;  ///< or nullptr
};

/// Rows up to which a matrix from memory is read once where it is: copying it would take as long as
/// all products. As many vectors of the left operand as a trip has stay in the first cache.
constexpr int64_t kMostStripRows = 24;

bool is_better_in_place(const PanelPlan& plan, const TargetInfo& target) {
  if (plan.is_strip || !plan.row || !plan.row->src[0]->is_const()) return false;
  if (plan.row->src[0]->imm > kMostStripRows) return false;
  return std::ranges::all_of(plan.products, [&](const PanelProduct& p) {
    const double bytes = CostModel::trips(p.left_depth) * CostModel::trips(plan.column) *
                         static_cast<double>(item_size(p.right->dtype));
    return !p.dot && p.right_copy == PanelCopy::kVectors &&
           bytes > static_cast<double>(target.private_cache_bytes);
  });
}

}  // namespace

std::optional<Schedule> make_panel_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                            uint32_t units, ScheduleLimits limits) {
  if (target.has_groups || !limits.has_tiles) return std::nullopt;
  const auto sides = find_panel_sides(kernel, target, limits);
  if (!sides) return std::nullopt;
  auto plan = rebuild_for_panels(kernel, *sides, target);
  if (!plan) return std::nullopt;
  if (limits.has_strips && is_better_in_place(*plan, target)) {
    PanelSides strip = *sides;
    strip.is_strip = true;
    auto in_place = rebuild_for_panels(kernel, strip, target);
    if (!in_place) return std::nullopt;
    if (auto s = PanelScheduler(std::move(*in_place), target, units, limits.knobs).run()) return s;
  }
  return PanelScheduler(std::move(*plan), target, units, limits.knobs).run();
}

}  // namespace bm::compiler
