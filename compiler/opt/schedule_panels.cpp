// Finds sums of products and chooses their tiles. Nothing here knows of matrix products or
// convolutions: what counts is which output loops each factor varies along.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "compiler/ir/linear.h"
#include "compiler/opt/affine.h"
#include "compiler/opt/cost.h"
#include "compiler/opt/panels.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

/// Below these the copies cost more than tiles bring.
constexpr double kLeastRows = 4, kLeastDepth = 8, kLeastProducts = 1 << 15;
constexpr size_t kMostProducts = 4;
/// Nodes of what is computed around the sums; beyond it is no epilogue any more.
constexpr double kMostEpilogue = 200;
/// Cycles per vector copied: neighbours, transposed, element by element.
constexpr double kCopyCycles = 3, kTransposeCycles = 8, kGatherCycles = 24;
constexpr double kLatency = 4;  // of a multiply-add, two of which start per cycle
/// Arithmetic operations that CodeObject::work_per_block counts as one.
constexpr double kOperationsPerWork = 8;
/// Depth of a copied block: long enough that sums are rarely put aside.
constexpr int64_t kMostDepth = 512;

bool contains(const std::vector<const Node*>& list, const Node* n) {
  return std::find(list.begin(), list.end(), n) != list.end();
}

int64_t round_up(int64_t v, int64_t step) { return (v + step - 1) / step * step; }

/// Calls f for every load reachable from `root` without entering reductions.
template <class F>
void for_loads(const Node* root, F&& f) {
  for (const Node* n : ir::topological({&root, 1}))
    if (n->op == Op::kLoad) f(n);
}

/// Rebuilds `root` with `gate` in front of every load that depends on `range`.
class Gater {
 public:
  Gater(Graph& graph, const Node* range, const Node* gate)
      : graph_(graph), range_(range), gate_(gate) {}

  const Node* operator()(const Node* root) {
    for (const Node* n : ir::topological({&root, 1}))
      if (!map_.count(n)) map_[n] = rebuild(n);
    return map_.at(root);
  }

 private:
  const Node* rebuild(const Node* n) {
    std::vector<const Node*> from, to;
    for (const Node* s : n->src)
      if (map_.at(s) != s && !contains(from, s)) {
        from.push_back(s);
        to.push_back(map_.at(s));
      }
    if (!from.empty()) n = graph_.substitute(n, from, to);
    if (n->op != Op::kLoad || !ir::depends_on(n, range_)) return n;
    const Node* before = n->src.size() > 1 ? n->src[1] : nullptr;
    return graph_.load(static_cast<int>(n->imm), n->dtype, n->src[0], graph_.both(before, gate_));
  }

  Graph& graph_;
  const Node *range_, *gate_;
  std::unordered_map<const Node*, const Node*> map_;
};

class PanelScheduler {
 public:
  PanelScheduler(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                 ScheduleLimits limits)
      : original_(kernel),
        target_(target),
        units_(std::max(units, 1u)),
        limits_(limits),
        model_(kernel, target, limits.max_lanes) {}

  std::optional<Schedule> run() {
    if (!find_products() || !choose_sides() || !is_worth_it()) return std::nullopt;
    if (!rebuild()) return std::nullopt;
    if (plan_.is_strip) {
      if (!choose_strip()) return std::nullopt;
    } else {
      choose_tile();
      choose_blocks();
    }
    return finish();
  }

 private:
  // --- which loops are rows, columns, depth --------------------------------------------------

  struct Product {
    const Node* reduce;
    const Node* factors[2];
  };

  bool find_products() {
    for (const Node* n : model_.reduces()) {
      const Node* body = n->src[0];
      const bool is_product = n->reduce_op() == ir::ReduceOp::kSum && body->op == Op::kMul &&
                              (body->dtype == DType::kF32 || body->dtype == DType::kF64) &&
                              body->dtype == n->dtype;
      if (!is_product) return false;
      found_.push_back({n, {body->src[0], body->src[1]}});
    }
    if (found_.empty() || found_.size() > kMostProducts) return false;
    for (const Product& p : found_) {
      if (p.reduce->dtype != found_[0].reduce->dtype) return false;
      // Of sums of sums the outer one would evaluate the inner one again and again.
      for (const Product& q : found_)
        if (p.reduce != q.reduce && reaches(p.reduce->src[0], q.reduce)) return false;
      int symbolic = 0;
      for (size_t i = 1; i < p.reduce->src.size(); ++i) {
        const Node* extent = p.reduce->src[i]->src[0];
        symbolic += !extent->is_const();
        if (extent->is_const() && extent->imm <= 0) return false;
      }
      if (symbolic > (p.reduce->src.size() == 2 ? 1 : 0)) return false;
    }
    return model_.output_nodes() <= kMostEpilogue;
  }

  static bool reaches(const Node* from, const Node* to) {
    for (const Node* n : ir::topological({&from, 1}))
      if (n == to) return true;
    return false;
  }

  /// All products have the same rows and columns; `swap` says which factor is which.
  bool choose_sides() {
    for (const Node* r : original_.ranges) {
      const bool a = model_.depends(found_[0].factors[0], r),
                 b = model_.depends(found_[0].factors[1], r);
      if (a && !b) exclusive_[0].push_back(r);
      if (b && !a) exclusive_[1].push_back(r);
      if (a == b) batch_.push_back(r);
      if (!a && !b) return false;
    }
    if (exclusive_[0].empty() && exclusive_[1].empty()) return false;
    for (Product& p : found_) {
      if (same_sides(p.factors[0], p.factors[1])) continue;
      std::swap(p.factors[0], p.factors[1]);
      if (!same_sides(p.factors[0], p.factors[1])) return false;
    }
    // Vectors run along the columns: where the result is contiguous, if there is room for them.
    const double lanes = lane_count();
    const int contiguous = contiguous_side();
    right_ = contiguous >= 0 ? contiguous : trips(exclusive_[1]) >= trips(exclusive_[0]) ? 1 : 0;
    if (exclusive_[right_].empty() ||
        (trips(exclusive_[right_]) < lanes && trips(exclusive_[1 - right_]) >= lanes))
      right_ = 1 - right_;
    choose_columns();
    rows_ = exclusive_[1 - right_];
    return merge_limits(&rows_);
  }

  bool same_sides(const Node* a, const Node* b) const {
    for (const Node* r : original_.ranges) {
      const bool in_a = contains(exclusive_[0], r), in_b = contains(exclusive_[1], r);
      const bool in_both = !in_a && !in_b;
      if (model_.depends(a, r) != (in_a || in_both)) return false;
      if (model_.depends(b, r) != (in_b || in_both)) return false;
    }
    return true;
  }

  int contiguous_side() {
    for (int side = 0; side < 2; ++side)
      for (const Node* r : exclusive_[side])
        if (Strides(r, 0).stride(original_.stores[0].index) == 1 && CostModel::trips(r) > 1)
          return side;
    return -1;
  }

  static double trips(const std::vector<const Node*>& ranges) {
    double product = 1;
    for (const Node* r : ranges) product *= CostModel::trips(r);
    return product;
  }

  double lane_count() const {
    return static_cast<double>(target_.vector_bits) / 8 /
           static_cast<double>(item_size(found_[0].reduce->dtype));
  }

  /// Columns are the loops that the results are evenly spaced along when they are one loop; others
  /// are done one after the other.
  void choose_columns() {
    std::vector<const Node*> side = exclusive_[right_];
    // The loop with the smallest step in the result is the innermost.
    const auto step = [&](const Node* r) {
      const auto s = Strides(r, 0).stride(original_.stores[0].index);
      return s ? std::abs(*s) : INT64_MAX;
    };
    std::stable_sort(side.begin(), side.end(),
                     [&](const Node* a, const Node* b) { return step(a) > step(b); });
    columns_ = {side.back()};
    side.pop_back();
    while (!side.empty() && columns_[0]->src[0]->is_const() && merges(side.back())) {
      columns_.insert(columns_.begin(), side.back());
      side.pop_back();
    }
    batch_.insert(batch_.end(), side.begin(), side.end());
  }

  bool merges(const Node* outer) const {
    for (const ir::Store& s : original_.stores) {
      const auto inner = Strides(columns_[0], 0).stride(s.index),
                 step = Strides(outer, 0).stride(s.index);
      if (!inner || !step || *step != *inner * columns_[0]->src[0]->imm) return false;
    }
    return true;
  }

  /// Only the outermost of merged loops may have a symbolic extent.
  bool merge_limits(std::vector<const Node*>* ranges) {
    std::stable_partition(ranges->begin(), ranges->end(),
                          [](const Node* r) { return !r->src[0]->is_const(); });
    for (size_t i = 1; i < ranges->size(); ++i)
      if (!(*ranges)[i]->src[0]->is_const()) return false;
    int symbolic = 0;
    for (const Node* r : batch_) symbolic += !r->src[0]->is_const();
    return symbolic <= 1;
  }

  double depth_of(const Product& p) const {
    double depth = 1;
    for (size_t i = 1; i < p.reduce->src.size(); ++i) depth *= CostModel::trips(p.reduce->src[i]);
    return depth;
  }

  bool is_worth_it() {
    const double rows = trips(rows_), columns = trips(columns_);
    double work = 0;
    for (const Product& p : found_) {
      if (depth_of(p) < kLeastDepth) return false;
      work += depth_of(p) * rows * columns * trips(batch_);
    }
    plan_.is_strip = rows < kLeastRows;
    if (rows_.size() > 1 && plan_.is_strip) return false;
    for (const Node* r : rows_) plan_.is_strip = plan_.is_strip && r->src[0]->is_const();
    return (rows >= kLeastRows || plan_.is_strip) && columns >= lane_count() &&
           work >= kLeastProducts;
  }

  // --- the kernel with one loop for all rows, columns and depths -------------------------------

  /// Digits of one loop over the product of `ranges`' extents.
  const Node* merge(Graph& g, const std::vector<const Node*>& ranges,
                    std::vector<const Node*>* digits) {
    const Node* extent = g.index(1);
    for (const Node* r : ranges) extent = g.mul(extent, r->src[0]);
    const Node* all = ranges.size() == 1 ? ranges[0] : g.range(extent);
    int64_t inner = 1;
    digits->assign(ranges.size(), nullptr);
    for (size_t i = ranges.size(); i-- > 0;) {
      const Node* digit = g.div(all, inner);
      (*digits)[i] = i == 0 ? digit : g.mod(digit, ranges[i]->src[0]->imm);
      if (i > 0) inner *= ranges[i]->src[0]->imm;
    }
    return all;
  }

  bool rebuild() {
    auto copy = ir::deserialize(ir::serialize(original_));
    if (!copy) return false;
    kernel_ = std::make_shared<ir::KernelIr>(std::move(*copy));
    kernel_->name = original_.name;
    kernel_->vars = original_.vars;
    // The copy has the same loops in the same order.
    std::vector<const Node*> from, to;
    Graph& g = *kernel_->graph;
    const auto counterpart = [&](const Node* r) {
      for (size_t i = 0; i < original_.ranges.size(); ++i)
        if (original_.ranges[i] == r) return kernel_->ranges[i];
      return static_cast<const Node*>(nullptr);
    };
    const auto map_all = [&](std::vector<const Node*>* list) {
      for (const Node*& r : *list) r = counterpart(r);
    };
    map_all(&rows_);
    map_all(&columns_);
    map_all(&batch_);
    std::vector<const Node*> digits;
    if (!rows_.empty()) plan_.row = merge(g, rows_, &digits);
    from = rows_;
    to = digits;
    plan_.column = merge(g, columns_, &digits);
    from.insert(from.end(), columns_.begin(), columns_.end());
    to.insert(to.end(), digits.begin(), digits.end());
    substitute_stores(g, from, to);
    kernel_->ranges = batch_;
    if (plan_.row) kernel_->ranges.push_back(plan_.row);
    kernel_->ranges.push_back(plan_.column);
    plan_.batch = batch_;
    return rebuild_products(g);
  }

  void substitute_stores(Graph& g, const std::vector<const Node*>& from,
                         const std::vector<const Node*>& to) {
    for (ir::Store& s : kernel_->stores) {
      s.index = g.substitute(s.index, from, to);
      s.value = g.substitute(s.value, from, to);
      if (s.gate) s.gate = g.substitute(s.gate, from, to);
    }
  }

  bool rebuild_products(Graph& g) {
    std::vector<const Node*> reduces;
    for (const ir::Store& s : kernel_->stores)
      for (const Node* n : ir::topological({&s.value, 1}))
        if (n->op == Op::kReduce && !contains(reduces, n)) reduces.push_back(n);
    if (reduces.size() != found_.size()) return false;
    const Node* extent = plan_.column->src[0];
    lanes_ = static_cast<uint32_t>(lane_count());
    // The widest tile is four vectors; how wide this one will be is not known yet.
    plan_.edge_column = g.range(g.add(extent, int64_t{4} * lanes_));
    Gater gated(g, plan_.edge_column, g.less(plan_.edge_column, extent));
    const auto to_edge = [&](const Node* n) {
      const Node* from[] = {plan_.column};
      const Node* to[] = {plan_.edge_column};
      return gated(g.substitute(n, from, to));
    };
    for (const ir::Store& s : kernel_->stores) {
      const Node* inside = g.less(plan_.edge_column, extent);
      ir::Store edge = s;
      edge.index = to_edge(s.index);
      edge.value = to_edge(s.value);
      edge.gate = g.both(s.gate ? to_edge(s.gate) : nullptr, inside);
      plan_.edge_stores.push_back(edge);
    }
    for (const Node* reduce : reduces) {
      const Node* body = reduce->src[0];
      if (body->op != Op::kMul) return false;
      PanelProduct p;
      p.reduce = reduce;
      p.edge_reduce = to_edge(reduce);
      const bool is_first = !ir::depends_on(body->src[0], plan_.column);
      p.left = body->src[is_first ? 0 : 1];
      p.right = body->src[is_first ? 1 : 0];
      if ((plan_.row && ir::depends_on(p.right, plan_.row)) ||
          ir::depends_on(p.left, plan_.column) || p.edge_reduce->op != Op::kReduce)
        return false;
      merge_depth(g, &p);
      p.edge_right = to_edge(p.right);
      plan_.products.push_back(std::move(p));
    }
    return true;
  }

  void merge_depth(Graph& g, PanelProduct* p) {
    const std::vector<const Node*> loops(p->reduce->src.begin() + 1, p->reduce->src.end());
    std::vector<const Node*> digits;
    p->left_depth = merge(g, loops, &digits);
    p->left = g.substitute(p->left, loops, digits);
    const Node* merged = g.substitute(p->right, loops, digits);
    if (loops.size() == 1 || is_even(merged, p->left_depth)) {
      p->right = merged;
      p->right_depth = {p->left_depth};
    } else {
      p->right_depth = loops;
      for (size_t i = 1; i < loops.size(); ++i) p->inner *= loops[i]->src[0]->imm;
    }
    Strides along(p->left_depth, 0);
    bool is_contiguous = true;
    for_loads(p->left, [&](const Node* n) {
      const bool is_gated = n->src.size() > 1 && !along.is_uniform(n->src[1]);
      const auto stride = along.stride(n->src[0]);
      is_contiguous = is_contiguous && !is_gated && stride && (*stride == 0 || *stride == 1);
    });
    p->left_lanes = is_contiguous ? lanes_ : 1;
    p->right_copy = right_copy(*p);
  }

  /// Whether every load is evenly spaced along `range`.
  static bool is_even(const Node* value, const Node* range) {
    Strides along(range, 0);
    bool result = true;
    for_loads(value, [&](const Node* n) {
      result =
          result && along.stride(n->src[0]) && (n->src.size() == 1 || along.is_uniform(n->src[1]));
    });
    return result;
  }

  PanelCopy right_copy(const PanelProduct& p) const {
    Strides depth(p.right_depth[0], 0), columns(plan_.column, lanes_);
    PanelCopy worst = PanelCopy::kVectors;
    for_loads(p.right, [&](const Node* n) {
      const auto step = columns.stride(n->src[0]);
      if (columns.is_uniform(n->src[0]) || step == 0 || step == 1) return;
      if (step == 2 && target_.has_masks && item_size(n->dtype) == 4 &&
          lanes_ * 32 == target_.vector_bits)
        return;
      const bool is_across = step && depth.stride(n->src[0]) == 1 && n->src.size() == 1;
      worst = std::max(worst, is_across ? PanelCopy::kTransposed : PanelCopy::kSingle);
    });
    return worst;
  }

  // --- sizes -----------------------------------------------------------------------------------

  static double extent(const Node* range) { return range ? CostModel::trips(range) : 1; }

  /// Columns are shared out; the depth is one loop and read as the right operand lies.
  bool choose_strip() {
    plan_.lanes = lanes_;
    plan_.vectors = 4;
    plan_.rows = static_cast<uint32_t>(extent(plan_.row));
    if (plan_.rows > 1) plan_.vectors = 2;
    plan_.row_block = plan_.rows;
    for (PanelProduct& p : plan_.products) {
      if (p.right_depth.size() > 1 || p.right_copy != PanelCopy::kVectors) return false;
      p.block = PanelPlan::kStripDepths;
      p.is_single = false;
    }
    const double columns = std::ceil(extent(plan_.column) / std::max(1.0, units_ / trips(batch_)));
    const int64_t most = static_cast<int64_t>(target_.first_cache_bytes) / 2 /
                         (item_size(plan_.products[0].reduce->dtype) * plan_.rows);
    plan_.column_block =
        round_up(std::clamp<int64_t>(static_cast<int64_t>(columns), 1, std::max<int64_t>(most, 1)),
                 plan_.tile_columns());
    return true;
  }

  /// Tiles of as many sums as registers hold, chosen for little waste at the edges.
  void choose_tile() {
    plan_.lanes = lanes_;
    const double rows = extent(plan_.row), vectors = std::ceil(extent(plan_.column) / lanes_);
    double least = 0;
    for (uint32_t v = 1; v <= 4; ++v)
      for (uint32_t r = 1; r * v + v + 1 <= target_.vector_registers && r <= 16; ++r) {
        const double cycles = std::max({r * v / 2.0, (r + v) / 2.0, kLatency});
        // Several columns of sums share what is read of a row, and the loop's own instructions.
        const double cost = std::ceil(rows / r) * std::ceil(vectors / v) * (cycles + 0.5);
        const bool is_larger = r * v > plan_.rows * plan_.vectors;
        if (least != 0 && cost >= least * (is_larger ? 1.0 : 0.97)) continue;
        least = least == 0 ? cost : std::min(least, cost);
        plan_.rows = r;
        plan_.vectors = v;
      }
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
    const int64_t most = std::max<int64_t>(kMostDepth / p->inner, 1);
    const int64_t trips = outer->is_const() ? outer->imm : INT64_MAX;
    if (trips <= most + most / 2) {
      p->block = trips;
      return;
    }
    p->is_single = false;
    p->block = trips == INT64_MAX
                   ? most
                   : (trips + (trips + most - 1) / most - 1) / ((trips + most - 1) / most);
    p->block = round_up(p->block, p->inner == 1 ? lanes_ : 1);
    p->is_single = p->block >= trips;
  }

  void choose_blocks() {
    double depth = 0, copy_right = 0;
    int64_t deepest = 1;
    for (PanelProduct& p : plan_.products) {
      choose_depth(&p);
      deepest = std::max(deepest, p.depth_block());
      const double d = static_cast<double>(p.inner) * extent(p.right_depth[0]);
      depth += d;
      copy_right += d * copy_cycles(p.right_copy);
    }
    const double rows = extent(plan_.row), columns = extent(plan_.column), batch = trips(batch_);
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
                 plan_.rows * depth / lanes_ * kCopyCycles) +
            static_cast<double>(c) / lanes_ * copy_right + kBlockCycles;
        const double cost = std::ceil(blocks / units_) * per_block;
        if (least != 0 && cost >= least) continue;
        least = cost;
        plan_.row_block = r;
        plan_.column_block = c;
      }
  }
  static constexpr int64_t kMostRows = 512;
  static constexpr double kTileCycles = 100, kBlockCycles = 500;

  std::optional<Schedule> finish() {
    Schedule s;
    s.grid[0] = blocks(plan_.column->src[0], plan_.column_block);
    if (!plan_.is_strip) s.grid[1] = blocks(plan_.row->src[0], plan_.row_block);
    s.grid[2].constant = 1;
    for (const bool is_const : {true, false})
      for (const Node* r : batch_)
        if (r->src[0]->is_const() == is_const) multiply(&s.grid[2], r->src[0], 1);
    double depth = 0;
    for (const PanelProduct& p : plan_.products)
      depth += static_cast<double>(p.inner) * extent(p.right_depth[0]);
    const double rows = std::min(extent(plan_.row), static_cast<double>(plan_.row_block));
    const double columns = std::min(extent(plan_.column), static_cast<double>(plan_.column_block));
    s.work_per_block =
        static_cast<uint64_t>(std::min(2 * rows * columns * depth / kOperationsPerWork, 1e18));
    plan_.kernel = kernel_;
    s.panels = std::make_shared<const PanelPlan>(std::move(plan_));
    return s;
  }

  /// ceil(extent / step); of extents that are not linear in the variables, of their bound.
  static hal::DimExpr blocks(const Node* extent, int64_t step) {
    hal::DimExpr dim{.constant = 1, .terms = {}, .divisor = step};
    multiply(&dim, extent, 1);
    return dim;
  }

  const ir::KernelIr& original_;
  const TargetInfo& target_;
  uint32_t units_;
  ScheduleLimits limits_;
  CostModel model_;
  std::vector<Product> found_;
  std::vector<const Node*> exclusive_[2], batch_, rows_, columns_;
  int right_ = 1;
  uint32_t lanes_ = 1;
  std::shared_ptr<ir::KernelIr> kernel_;
  PanelPlan plan_;
};

}  // namespace

std::optional<Schedule> make_panel_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                            uint32_t units, ScheduleLimits limits) {
  if (target.has_groups || !limits.has_tiles) return std::nullopt;
  return PanelScheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
