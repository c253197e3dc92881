// Quantised GEMV and GEMM: rows that share int8 dot products.
// Kernels around int8 dot products, as quantised matrices have: rows of the
// matrix in lanes, a tile of rows and columns in registers, inner reductions as dot products.
#include <algorithm>
#include <cmath>
#include <set>

#include "compiler/ir/linear.h"
#include "compiler/analysis/affine.h"
#include "compiler/analysis/cost.h"
#include "compiler/analysis/dot_products.h"
#include "compiler/tune/knobs.h"
#include "compiler/schedules/schedule.h"
#include "compiler/schedules/gemm_cpu/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Multiplications of 8-bit elements worth a block of their own.
constexpr double kBlockProducts = 1 << 17;
constexpr double kBlocksPerUnit = 8;
/// CodeObject::work_per_block counts vector operations; one is this many products.
constexpr double kProductsPerWork = 32;
/// One is as long as a byte of a matrix takes, whose rows are read once for each vector or tile:
/// about 13 GB/s for a core.
constexpr double kBytesPerWork = 1;
/// Tiles from which on groups left over do not count.
constexpr int64_t kManyTiles = 12;

class DotScheduler {
 public:
  DotScheduler(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
               ScheduleLimits limits)
      : kernel_(kernel),
        target_(target),
        units_(std::max(units, 1u)),
        lanes_(std::min(target.vector_bits / 32, limits.max_lanes)),
        has_tiles_(limits.has_tiles),
        knobs_(limits.knobs) {}

  std::optional<Schedule> run() {
    if (!find_dots() || lanes_ < 2) return std::nullopt;
    const auto is_row = [&](const Node* r) { return runs_in_lanes(r); };
    const auto row = std::find_if(kernel_.ranges.begin(), kernel_.ranges.end(), is_row);
    if (row == kernel_.ranges.end()) return std::nullopt;
    choose_loops(*row);
    choose_grid();
    return std::move(s_);
  }

 private:
  bool find_dots() {
    std::vector<const Node*> roots;
    for (const ir::Store& s : kernel_.stores) roots.push_back(s.value);
    for (const Node* n : ir::topological(roots)) {
      if (n->op != Op::kReduce) continue;
      auto found = find_inner_dot(n, target_);
      if (!found) continue;
      s_.dots.emplace(n, found->plan);
      dots_.push_back({n, std::move(*found)});
    }
    return !dots_.empty();
  }

  /// Whether adjacent iterations of `range` have adjacent words of the matrix and share the vector.
  bool runs_in_lanes(const Node* range) {
    const Node* extent = range->src[0];
    if (!extent->is_const() || extent->imm < lanes_) return false;
    Strides along(range, lanes_);
    for (const auto& [reduce, dot] : dots_) {
      for (const Node* load : dot.left_loads)
        if (along.stride(load->src[0]) != 4) return false;
      for (const Node* load : dot.right_loads)
        if (!along.is_uniform(load->src[0])) return false;
    }
    return true;
  }

  /// Output loop over vectors that the matrix is multiplied with, the longest one.
  const Node* vectors_range(const Node* row) const {
    const Node* best = nullptr;
    for (const Node* r : kernel_.ranges) {
      if (r == row || (best && CostModel::trip_count(r) <= CostModel::trip_count(best))) continue;
      bool is_shared = true;
      for (const auto& [reduce, dot] : dots_)
        for (const Node* load : dot.left_loads)
          is_shared = is_shared && Strides(r, 0).is_uniform(load->src[0]);
      if (is_shared) best = r;
    }
    return best;
  }

  void choose_loops(const Node* row) {
    const Node* vectors = vectors_range(row);
    const int64_t groups = row->src[0]->imm / lanes_;
    // Integer accumulators of a tile fill half of the registers; words of the matrix, and as many
    // accumulators of floats as there is room for, the other half. More vectors rather than more
    // rows: a word is then used more often for each time it comes from L2.
    const uint32_t accumulators = target_.vector_registers / 2;
    uint32_t down = 1, across = 1;
    if (has_tiles_) {
      const double count = vectors ? CostModel::trip_count(vectors) : 1;
      for (const uint32_t jam : {2u, 4u, 8u})
        if (jam <= count && jam <= accumulators) across = jam;
      down = std::min(4u, accumulators / across);
      // Groups left over run one at a time: where they would be many, a smaller tile leaves none.
      while (down > 1 && groups % down != 0 && groups < kManyTiles * down) --down;
      const TileShape tile = tile_of(knobs_, target_, {across, down});
      across = static_cast<uint32_t>(std::min<int64_t>(tile.rows, vectors ? tile.rows : 1));
      down = static_cast<uint32_t>(tile.vectors);
    }
    s_.loops.push_back({.range = row, .lanes = lanes_, .jam = down});
    for (const Node* r : kernel_.ranges)
      if (r != row && r != vectors) s_.loops.push_back({.range = r});
    if (vectors) s_.loops.push_back({.range = vectors, .jam = across, .rest = across / 2});
  }

  /// Blocks are runs of rows; every block goes through all vectors, so that rows stay in a cache.
  void choose_grid() {
    s_.grid[0].constant = 1;
    double products = 0;
    for (const auto& [reduce, dot] : dots_) {
      double count = 1;
      for (const Node* n : ir::topological(std::vector{reduce->src[0]}))
        if (n->op == Op::kRange) count *= CostModel::trip_count(n);
      products += count;
    }
    for (const Node* r : kernel_.ranges)
      if (std::none_of(dots_.begin(), dots_.end(),
                       [&](const auto& d) { return ir::depends_on(d.first, r); }))
        products *= CostModel::trip_count(r);
    const double work = std::max(products / kProductsPerWork, matrix_bytes() / kBytesPerWork);
    s_.work_per_block = static_cast<uint64_t>(std::min(work, 1e18));
    if (products < 2 * kBlockProducts) return;
    const AxisPlan& axis = s_.loops[0];
    const double trip_count =
        std::ceil(static_cast<double>(axis.range->src[0]->imm) / static_cast<double>(axis.step()));
    const auto blocks = knobs_ ? knobs_->get("blocks") : std::nullopt;
    const double least = blocks ? 1 : std::ceil(kBlockProducts / (products / trip_count));
    const double per_unit = blocks ? static_cast<double>(*blocks) : kBlocksPerUnit;
    const double chunk = std::max(least, std::ceil(trip_count / (per_unit * units_)));
    s_.grid_loops = 1;
    s_.chunk = static_cast<int64_t>(chunk);
    s_.work_per_block = static_cast<uint64_t>(std::min(work / trip_count * chunk, 1e18));
    s_.grid[0] = {
        .constant = axis.range->src[0]->imm, .terms = {}, .divisor = s_.chunk * axis.step()};
  }

  /// Of what dot products read of the left: weights, which other weights have pushed out of every
  /// cache since the last time.
  double matrix_bytes() const {
    std::set<int64_t> params;
    for (const auto& [reduce, dot] : dots_)
      for (const Node* load : dot.left_loads) params.insert(load->imm);
    double bytes = 0;
    for (const int64_t p : params)
      bytes += static_cast<double>(kernel_.params[static_cast<size_t>(p)].elements);
    return bytes;
  }

  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  uint32_t units_, lanes_;
  bool has_tiles_;
  const Knobs* knobs_;
  std::vector<std::pair<const Node*, InnerDot>> dots_;
  Schedule s_;
};

}  // namespace

std::optional<Schedule> make_dot_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                          uint32_t units, ScheduleLimits limits) {
  if (target.has_groups) return std::nullopt;
  return DotScheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
