// Schedule for targets with work-groups: which loops are spread over groups, which over the
// work-items of a group, and which reductions a group shares. Times are rough: operations of one
// work-item, times how often the processor has to be filled.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "compiler/ir/linear.h"
#include "compiler/opt/cost.h"
#include "compiler/opt/inner_dots.h"
#include "compiler/opt/knobs.h"
#include "compiler/opt/schedule.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Work-items that one compute unit runs side by side.
constexpr double kItemsPerUnit = 1024;
/// Cost of a load whose neighbouring work-items read far apart, against neighbouring elements.
constexpr double kScattered = 4;
/// Start of a work-item; one level of the tree at the end of a shared reduction.
constexpr double kStartCost = 10, kLevelCost = 10;
/// Reductions below this many trips are not worth a barrier.
constexpr double kLeastShared = 16;
/// Numbers of a dot product's word.
constexpr int kWord = 4;
/// Work-items that read neighbouring words, where a group shares reductions for as many results.
constexpr uint32_t kSide = 16;
/// Merged copies of a body beyond this many nodes cost more to compile than they save.
constexpr double kMaxMergedNodes = 200;
/// Launch dimensions stay below 2^31 on every API; chunks grow before that.
constexpr double kMostChunks = 1 << 22;
constexpr int64_t kMostGroups = INT32_MAX;

/// A reduction as seen from the output loops.
struct ReduceFacts {
  const Node* node = nullptr;
  std::vector<bool> outputs;  ///< by output loop: depends on it
  double trips = 1;           ///< of its own loops
  double evaluations = 1;     ///< of its body per iteration of those output loops
  bool is_inner = false;      ///< depends on a loop of a reduction around it
  bool is_dot = false;        ///< done in words of four numbers
  uint64_t bytes = 4;         ///< of its accumulator
};

struct Shape {
  uint32_t block = 1;
  int64_t per_item = 1;    ///< iterations of one work-item
  bool is_single = false;  ///< one group does all iterations of the item loops
  double time = 0;
};

class GroupScheduler {
 public:
  GroupScheduler(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                 ScheduleLimits limits)
      : kernel_(kernel),
        target_(target),
        slots_(std::max(units, 1u) * kItemsPerUnit),
        units_(std::max(units, 1u)),
        limits_(limits),
        model_(kernel, target, 1) {}

  Schedule run() {
    order_loops();
    find_reductions();
    choose_level();
    choose_side();
    if (limits_.has_tiles) choose_tile();
    shape_ = best_shape(is_group_);
    if (side_ && shape_.block < kSide) {
      side_ = nullptr;
      shape_ = best_shape(is_group_);
    }
    share_reductions();
    set_launch();
    if (!fit_grid()) merge_all();
    return std::move(s_);
  }

 private:
  /// The loop along which neighbouring elements are stored, or else loaded, goes last: its
  /// iterations become neighbouring work-items.
  void order_loops() {
    const Node* last = nullptr;
    const auto consider = [&](const Node* index) {
      for (const Node* r : kernel_.ranges)
        if (!last && CostModel::trips(r) > 1 && model_.strides(r, 0).stride(index) == 1) last = r;
    };
    for (const ir::Store& s : kernel_.stores) consider(s.index);
    for (const Node* load : model_.output_loads()) consider(load->src[0]);
    for (const Node* r : kernel_.ranges)
      if (r != last) loops_.push_back(r);
    if (last) loops_.push_back(last);
    jams_.assign(loops_.size(), 1);
    is_group_.assign(loops_.size(), false);
  }

  void find_reductions() {
    for (const Node* n : model_.reduces()) {
      ReduceFacts f{.node = n, .outputs = {}};
      for (size_t i = 1; i < n->src.size(); ++i) f.trips *= CostModel::trips(n->src[i]);
      for (const Node* r : loops_) f.outputs.push_back(model_.depends(n, r));
      f.evaluations = f.trips;
      std::vector<const Node*> seen;
      for (const Node* other : model_.reduces())
        for (size_t i = 1; i < other->src.size(); ++i) {
          const Node* r = other->src[i];
          if (!model_.depends(n, r) || std::find(seen.begin(), seen.end(), r) != seen.end())
            continue;
          seen.push_back(r);
          f.evaluations *= CostModel::trips(r);
          f.is_inner = true;
        }
      f.bytes = is_half_like(n->dtype) ? 4 : static_cast<uint64_t>(item_size(n->dtype));
      find_dot(&f);
      reduces_.push_back(std::move(f));
    }
  }

  void find_dot(ReduceFacts* f) {
    const bool has_words =
        std::ranges::any_of(target_.dots, [](const DotInfo& d) { return d.bits == 32; });
    const auto dot = has_words ? find_inner_dot(f->node, target_) : std::nullopt;
    if (!dot || !dot->has_aligned_words()) return;
    dots_.emplace(f->node, dot->plan);
    found_dots_.push_back(*dot);
    f->is_dot = true;
    f->evaluations /= kWord;
  }

  using Level = std::vector<bool>;  // by loop: spread over groups

  static bool is_within(const Level& part, const Level& whole) {
    for (size_t i = 0; i < part.size(); ++i)
      if (part[i] && !whole[i]) return false;
    return true;
  }

  bool is_symbolic(size_t loop) const { return !loops_[loop]->src[0]->is_const(); }

  /// Chunks of the item loops can be counted exactly for one symbolic loop only, and the grid has
  /// three axes. With more, everything is merged and the number of chunks is bounded.
  void place_symbols(Level* level) const {
    size_t symbolic = 0;
    for (size_t i = loops_.size(); i-- > 0;)
      if (!(*level)[i] && is_symbolic(i) && symbolic++ > 0) (*level)[i] = true;
    size_t in_groups = 0;
    for (size_t i = 0; i < loops_.size(); ++i) in_groups += (*level)[i] && is_symbolic(i);
    if (in_groups + (symbolic > 0) > 3) level->assign(loops_.size(), false);
  }

  void choose_level() {
    Level none(loops_.size(), false);
    place_symbols(&none);
    is_group_ = none;
    double least = best_shape(none).time;
    for (const ReduceFacts& r : reduces_) {
      if (r.is_inner || r.is_dot || r.trips < kLeastShared) continue;
      Level level = r.outputs;
      place_symbols(&level);
      const double time = best_shape(level).time;
      if (time >= least * 0.95) continue;
      least = time;
      is_group_ = level;
    }
  }

  /// Where a group shares the reductions of every result, its work-items read words far apart. If
  /// neighbouring results have neighbouring words, a group takes some of them side by side.
  void choose_side() {
    const bool is_shared_level = std::ranges::all_of(is_group_, std::identity{}) &&
                                 std::ranges::any_of(reduces_, [&](const ReduceFacts& r) {
                                   return is_shared(r, is_group_);
                                 });
    if (!is_shared_level || found_dots_.empty()) return;
    for (const Node* range : loops_) {
      const Node* extent = range->src[0];
      if (extent->is_const() && extent->imm > 0 && extent->imm % kSide == 0 &&
          std::ranges::all_of(found_dots_,
                              [&](const InnerDot& d) { return d.has_neighbours(range, kSide); }))
        side_ = range;
    }
  }

  /// `width`: elements loaded at once.
  double scattered(const Node* load, const Node* along, int width = 1) {
    if (!along) return 0;
    const int64_t chunk = width == 1 ? 0 : kSide;
    const std::optional<int64_t> stride = model_.strides(along, chunk).stride(load->src[0]);
    return stride && std::abs(*stride) <= width ? 0 : kScattered - 1;
  }

  /// One trip of a reduction whose neighbouring work-items differ in `along`.
  double body_cost(const ReduceFacts& r, const Node* along) {
    double cost = 1;
    for (const Node* n : model_.body(r.node)) {
      if (n->op == Op::kConst || n->op == Op::kVar || n->op == Op::kRange || n->op == Op::kReduce)
        continue;
      cost += trip_cost(r, n, along);
    }
    return cost;
  }

  double trip_cost(const ReduceFacts& r, const Node* n, const Node* along) {
    if (r.is_dot && n->op == Op::kCast) return 0;  // part of the instruction
    const double far = n->op == Op::kLoad ? scattered(n, along, r.is_dot ? kWord : 1) : 0;
    return CostModel::weight(n) + far;
  }

  const Node* item_loop(const Level& level) const {
    for (size_t i = loops_.size(); i-- > 0;)
      if (!level[i]) return loops_[i];
    return nullptr;
  }

  bool is_shared(const ReduceFacts& r, const Level& level) const {
    return !r.is_inner && !r.is_dot && r.trips >= kLeastShared && is_within(r.outputs, level);
  }

  uint64_t shared_bytes(const Level& level, uint32_t block) const {
    uint64_t sum = 0;
    for (const ReduceFacts& r : reduces_)
      if (is_shared(r, level)) sum += r.bytes * block;
    return sum;
  }

  /// The loop around `r` along which neighbouring work-items differ, if a group shares one.
  const Node* shared_loop(const ReduceFacts& r, const Level& level) const {
    if (side_) return side_;
    for (const ReduceFacts& around : reduces_)
      if (is_shared(around, level) && model_.depends(r.node, around.node->src.back()))
        return around.node->src.back();
    return nullptr;
  }

  struct Costs {
    double groups = 1, iterations = 1;  // of the group loops; of the item loops
    double element = 0;                 // per iteration of the item loops
    double dealt = 0, repeated = 0;     // per group: divided among work-items; done by each
    double levels = 0;                  // shared reductions
  };

  Costs costs(const Level& level) {
    Costs c;
    for (size_t i = 0; i < loops_.size(); ++i)
      (level[i] ? c.groups : c.iterations) *= CostModel::trips(loops_[i]) / jams_[i];
    const Node* along = item_loop(level);
    c.element = model_.output_nodes() + static_cast<double>(kernel_.stores.size());
    for (const Node* load : model_.output_loads()) c.element += scattered(load, along);
    for (const ReduceFacts& r : reduces_) {
      if (!is_within(r.outputs, level)) {
        c.element += r.evaluations * body_cost(r, along);
      } else if (is_shared(r, level)) {
        c.dealt += r.evaluations * body_cost(r, r.node->src.back());
        ++c.levels;
      } else if (r.is_inner) {
        c.dealt += r.evaluations * body_cost(r, r.is_dot ? shared_loop(r, level) : nullptr);
      } else {
        c.repeated += r.evaluations * body_cost(r, nullptr);
      }
    }
    if (side_) {
      c.groups /= kSide;
      c.dealt *= kSide;
      c.iterations = kSide;
    }
    return c;
  }

  double time(const Costs& c, const Shape& s) const {
    const double block = s.block, chunk = block * static_cast<double>(s.per_item);
    const double chunks = s.is_single ? 1 : std::ceil(c.iterations / chunk);
    const double per_item =
        s.is_single ? std::ceil(c.iterations / block) : static_cast<double>(s.per_item);
    const double item = kStartCost + per_item * c.element + c.repeated + c.dealt / block +
                        (c.levels > 0 ? std::log2(block) * (kLevelCost + 2 * c.levels) : 0);
    const double groups = c.groups * chunks;
    double t = item * std::max(1.0, groups * block / slots_);
    if (groups < units_) t *= 1.2;
    const double idle = chunks * per_item * block / std::max(c.iterations, 1.0);
    return c.levels > 0 ? t : t * (1 + 0.02 * std::min(idle - 1, 8.0));
  }

  Shape best_shape(const Level& level) {
    const Costs c = costs(level);
    Shape best;
    for (uint32_t block : {256u, 128u, 64u, 32u, 512u, 1024u}) {
      if (block > target_.max_block) block = std::bit_floor(target_.max_block);
      // Large blocks are for reductions: elsewhere they only make the launch coarser.
      if (block > 256 && c.levels == 0) continue;
      if (shared_bytes(level, block) > target_.local_memory_bytes) continue;
      for (const int64_t per_item : {1, 2, 4}) consider(c, {block, per_item, false, 0}, &best);
      if (c.levels > 0) consider(c, {block, 1, true, 0}, &best);
    }
    if (best.time == 0) best = {.block = 1, .time = INFINITY};  // local memory is too small
    return best;
  }

  bool is_wanted(const Shape& s) const {
    if (!limits_.knobs) return true;
    return limits_.knobs->get("block").value_or(s.block) == s.block &&
           limits_.knobs->get("items").value_or(s.per_item) == s.per_item;
  }

  void consider(const Costs& c, Shape s, Shape* best) const {
    if (!is_wanted(s)) return;
    if (s.per_item > 1 && (is_tiled_ || c.iterations < slots_ * static_cast<double>(s.per_item)))
      return;
    s.time = time(c, s);
    if (best->time == 0 || s.time < best->time * 0.99) *best = s;
  }

  /// Copies of the item loops' bodies that share the loads of the heaviest reduction.
  void choose_tile() {
    const ReduceFacts* heaviest = nullptr;
    for (const ReduceFacts& r : reduces_)
      if (!is_within(r.outputs, is_group_) && r.trips >= 8 &&
          (!heaviest || r.evaluations > heaviest->evaluations))
        heaviest = &r;
    if (!heaviest) return;
    std::vector<size_t> axes;
    for (size_t i = loops_.size(); i-- > 0;)
      if (!is_group_[i] && heaviest->outputs[i]) axes.push_back(i);
    double least = tile_cost(*heaviest, 0, 1, 0, 1).value_or(INFINITY);
    for (size_t x : axes)
      for (size_t y : axes)
        for (uint32_t a : {1u, 2u, 4u})
          for (uint32_t b : {1u, 2u, 4u}) {
            if (x <= y && (x != y || b != 1)) continue;
            const std::optional<double> cost = tile_cost(*heaviest, x, a, y, b);
            if (!cost || *cost >= least * 0.9) continue;
            least = *cost;
            jams_.assign(loops_.size(), 1);
            jams_[x] = a;
            if (x != y) jams_[y] = b;
            is_tiled_ = a * b > 1;
          }
  }

  /// Cost of one trip per result, or nothing if the tile does not divide the loops, leaves too few
  /// work-items or makes too much code.
  std::optional<double> tile_cost(const ReduceFacts& r, size_t x, uint32_t a, size_t y,
                                  uint32_t b) {
    const auto divides = [&](size_t loop, uint32_t jam) {
      const Node* extent = loops_[loop]->src[0];
      return jam == 1 || (extent->is_const() && extent->imm % jam == 0);
    };
    const double copies = a * b;
    if (copies > 1 && (!divides(x, a) || !divides(y, b))) return std::nullopt;
    double items = 1, cost = 0, nodes = 0;
    for (size_t i = 0; i < loops_.size(); ++i) items *= CostModel::trips(loops_[i]);
    if (copies > 1 && items / copies < slots_) return std::nullopt;
    const Node* along = item_loop(is_group_);
    for (const Node* n : model_.body(r.node)) {
      if (n->op == Op::kConst || n->op == Op::kVar || n->op == Op::kRange) continue;
      double own = 1;
      if (model_.depends(n, loops_[x])) own *= a;
      if (x != y && model_.depends(n, loops_[y])) own *= b;
      nodes += own;
      cost += own / copies * trip_cost(r, n, along);
    }
    if (copies > 1 && nodes > kMaxMergedNodes) return std::nullopt;
    return cost + 1;
  }

  void share_reductions() {
    for (const ReduceFacts& r : reduces_)
      s_.reduces[r.node] = {.is_shared = shape_.block > 1 && is_shared(r, is_group_)};
    s_.dots = dots_;
  }

  /// Iterations of the item loops if they are constant, else their bound (saturated).
  int64_t count_items(bool* is_const) const {
    int64_t most = 1;
    *is_const = true;
    for (size_t i = 0; i < loops_.size(); ++i) {
      if (is_group_[i]) continue;
      const Node* extent = loops_[i]->src[0];
      *is_const = *is_const && extent->is_const();
      const int64_t n = std::max<int64_t>(extent->is_const() ? extent->imm : extent->hi, 0);
      if (__builtin_mul_overflow(most, n / jams_[i], &most)) most = INT64_MAX;
    }
    return most;
  }

  void set_launch() {
    for (const bool is_group : {true, false})
      for (size_t i = 0; i < loops_.size(); ++i)
        if (is_group_[i] == is_group)
          s_.loops.push_back(
              {.range = loops_[i], .lanes = 1, .jam = jams_[i], .is_side = loops_[i] == side_});
    s_.side = side_ ? kSide : 1;
    s_.grid_loops = static_cast<uint32_t>(std::count(is_group_.begin(), is_group_.end(), true));
    s_.block = shape_.block;
    bool is_const = false;
    const int64_t items = count_items(&is_const);
    const auto block = int64_t{s_.block};
    const auto up = [](int64_t a, int64_t b) { return a / b + (a % b != 0); };
    if (shape_.is_single || items <= block) {
      s_.trips = is_const || items <= block ? std::max<int64_t>(up(items, block), 1) : 0;
      s_.chunk = s_.trips * block;
    } else {
      s_.trips = std::max<int64_t>(
          shape_.per_item, static_cast<int64_t>(std::ceil(static_cast<double>(items) / kMostChunks /
                                                          static_cast<double>(block))));
      s_.chunk = s_.trips * block;
      add_chunks(up(items, s_.chunk), is_const);
    }
    s_.is_exact = is_const && s_.trips > 0 && items % s_.chunk == 0 && items > 0;
    // An axis takes constants, then at most one loop whose extent is known at launch.
    for (const bool is_symbol : {false, true})
      for (uint32_t i = s_.grid_loops; i-- > 0;)
        if (s_.loops[i].range->src[0]->is_const() != is_symbol) add_loop(i);
    const Costs c = costs(is_group_);
    const double ops = c.dealt + static_cast<double>(block) * (kStartCost + c.repeated) +
                       c.element * std::min(c.iterations, static_cast<double>(s_.chunk));
    s_.work_per_block = static_cast<uint64_t>(std::min(ops, 1e18));
  }

  void add_chunks(int64_t most, bool is_const) {
    // Counted at launch where one linear extent is the only unknown.
    hal::DimExpr dim{.constant = 1, .terms = {}, .divisor = 1};
    bool is_counted = !is_const;
    size_t symbolic = 0;
    for (size_t i = s_.grid_loops; i < s_.loops.size(); ++i) {
      const AxisPlan& a = s_.loops[i];
      symbolic += !a.range->src[0]->is_const();
      if (symbolic > 1) break;
      is_counted = multiply(&dim, a.range->src[0], a.jam) && is_counted;
    }
    if (is_counted && symbolic == 1) {
      dim.divisor = s_.chunk;
      s_.grid[0] = dim;
      s_.axes[0].push_back({.count = 0});
      is_closed_ = true;
    } else {
      s_.grid[0].constant = most;
      s_.axes[0].push_back({.count = most});
    }
  }

  /// A digit for a group loop, on the current axis of the grid or the next.
  void add_loop(uint32_t loop) {
    const Node* extent = s_.loops[loop].range->src[0];
    const bool is_const = extent->is_const();
    const auto fits = [&] {
      int64_t product = 0;
      return !is_closed_ &&
             (!is_const ||
              !__builtin_mul_overflow(s_.grid[axis_].constant, extent->imm, &product)) &&
             product <= kMostGroups;
    };
    const bool must_move = !fits() || (!is_const && !s_.grid[axis_].is_constant());
    if (must_move && axis_ + 1 < s_.axes.size()) {
      ++axis_;
      is_closed_ = false;
    }
    const int64_t side = s_.loops[loop].is_side ? s_.side : 1;
    const bool is_exact = multiply(&s_.grid[axis_], extent, side);
    s_.axes[axis_].push_back({.loop = loop, .is_bounded = !is_exact});
    is_closed_ = !is_exact;
  }

  /// Most groups along an axis.
  double most_groups(size_t axis) const {
    double most = 1;
    for (const GroupFactor& f : s_.axes[axis]) {
      bool is_const = false;
      if (f.loop != ~0u)
        most *= static_cast<double>(std::max<int64_t>(s_.loops[f.loop].range->src[0]->hi, 1));
      else
        most *=
            std::ceil(static_cast<double>(count_items(&is_const)) / static_cast<double>(s_.chunk));
    }
    return most;
  }

  /// Puts the longest axis where most groups are allowed, the first; false if another one is still
  /// too long for the target.
  bool fit_grid() {
    const auto is_short = [&](size_t axis, size_t place) {
      return most_groups(axis) <= static_cast<double>(target_.max_groups[place]);
    };
    for (size_t axis = 1; axis < s_.axes.size(); ++axis)
      if (!is_short(axis, axis) && is_short(0, axis)) {
        std::swap(s_.axes[0], s_.axes[axis]);
        std::swap(s_.grid[0], s_.grid[axis]);
      }
    return is_short(0, 0) && is_short(1, 1) && is_short(2, 2);
  }

  /// Starts again with all loops in chunks, which need one axis.
  void merge_all() {
    s_ = {};
    is_group_.assign(loops_.size(), false);
    jams_.assign(loops_.size(), 1);
    is_tiled_ = is_closed_ = false;
    side_ = nullptr;
    axis_ = 0;
    shape_ = best_shape(is_group_);
    share_reductions();
    set_launch();
  }

  const ir::KernelIr& kernel_;
  TargetInfo target_;
  double slots_, units_;
  ScheduleLimits limits_;
  CostModel model_;
  Schedule s_;
  std::vector<const Node*> loops_;  // the item loop with neighbouring elements last
  std::vector<uint32_t> jams_;      // by loop
  std::vector<ReduceFacts> reduces_;
  std::unordered_map<const Node*, DotPlan> dots_;
  std::vector<InnerDot> found_dots_;
  Level is_group_;
  const Node* side_ = nullptr;  ///< the loop that is_side
  Shape shape_;
  bool is_tiled_ = false;
  size_t axis_ = 0;         // of the grid, being filled
  bool is_closed_ = false;  // nothing may follow on that axis
};

}  // namespace

Schedule make_group_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                             ScheduleLimits limits) {
  if (auto matrix = make_matrix_schedule(kernel, target, units, limits)) return std::move(*matrix);
  if (auto staged = make_staged_schedule(kernel, target, units, limits)) return std::move(*staged);
  return GroupScheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
