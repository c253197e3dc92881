// Schedule for targets with work-groups: which loops are spread over groups, which over the
// work-items of a group, and which reductions a group shares. Times are rough: operations of one
// work-item, times how often the processor has to be filled.
#include "compiler/schedules/groups/plan.h"

#include <bit>
#include <cmath>
#include <functional>

#include "compiler/ir/linear.h"
#include "compiler/lowering/contiguous.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Launch dimensions stay below 2^31 on every API; chunks grow before that.
constexpr double kMostChunks = 1 << 22;
constexpr int64_t kMostGroups = INT32_MAX;

}  // namespace

Schedule GroupScheduler::run() {
  order_loops();
  find_reductions();
  choose_level();
  choose_side();
  if (limits_.has_tiles) choose_tile();
  shape_ = best_shape(is_group_);
  if (outputs_.loop && shape_.block < 2 * outputs_.width) {
    outputs_ = {};
    shape_ = best_shape(is_group_);
  }
  share_reductions();
  set_launch();
  if (!fit_grid()) merge_all();
  choose_contiguous();
  return std::move(s_);
}

/// The loop along which adjacent elements are stored, or else loaded, goes last: its
/// iterations become adjacent work-items.
void GroupScheduler::order_loops() {
  const Node* last = segments_;
  const auto consider = [&](const Node* index) {
    for (const Node* r : kernel_.ranges)
      if (!last && CostModel::trip_count(r) > 1 && model_.strides(r, 0).stride(index) == 1)
        last = r;
  };
  for (const ir::Store& s : kernel_.stores) consider(s.index);
  for (const Node* load : model_.output_loads()) consider(load->src[0]);
  for (const Node* r : kernel_.ranges)
    if (r != last) loops_.push_back(r);
  if (last) loops_.push_back(last);
  jams_.assign(loops_.size(), 1);
  is_group_.assign(loops_.size(), false);
}

void GroupScheduler::find_reductions() {
  for (const Node* n : model_.reduces()) {
    if (is_segment(n, segments_)) continue;  // one operation of a lane
    ReduceFacts f{.node = n, .outputs = {}};
    for (size_t i = 1; i < n->src.size(); ++i) f.trip_count *= CostModel::trip_count(n->src[i]);
    for (const Node* r : loops_) f.outputs.push_back(model_.depends(n, r));
    f.evaluations = f.trip_count;
    std::vector<const Node*> seen;
    for (const Node* other : model_.reduces())
      for (size_t i = 1; i < other->src.size(); ++i) {
        const Node* r = other->src[i];
        if (!model_.depends(n, r) || std::find(seen.begin(), seen.end(), r) != seen.end()) continue;
        seen.push_back(r);
        f.evaluations *= CostModel::trip_count(r);
        f.is_inner = true;
      }
    f.bytes = is_half_like(n->dtype) ? 4 : static_cast<uint64_t>(item_size(n->dtype));
    find_dot(&f);
    reduces_.push_back(std::move(f));
  }
}

void GroupScheduler::find_dot(ReduceFacts* f) {
  const bool has_words =
      std::ranges::any_of(target_.dots, [](const DotInfo& d) { return d.bits == 32; });
  const auto dot = has_words ? find_inner_dot(f->node, target_) : std::nullopt;
  if (!dot || !dot->has_aligned_words()) return;
  dots_.emplace(f->node, dot->plan);
  found_dots_.push_back(*dot);
  f->is_dot = true;
  f->evaluations /= kWord;
}

bool GroupScheduler::is_within(const Level& part, const Level& whole) {
  for (size_t i = 0; i < part.size(); ++i)
    if (part[i] && !whole[i]) return false;
  return true;
}

/// Chunks of the item loops can be counted exactly for one symbolic loop only, and the grid has
/// three axes. With more, everything is merged and the number of chunks is bounded.
void GroupScheduler::merge_symbolic(Level* level) const {
  size_t symbolic = 0;
  for (size_t i = loops_.size(); i-- > 0;)
    if (!(*level)[i] && is_symbolic(i) && symbolic++ > 0) (*level)[i] = true;
  size_t in_groups = 0;
  for (size_t i = 0; i < loops_.size(); ++i) in_groups += (*level)[i] && is_symbolic(i);
  if (in_groups + (symbolic > 0) > 3) level->assign(loops_.size(), false);
}

void GroupScheduler::choose_level() {
  Level none(loops_.size(), false);
  merge_symbolic(&none);
  is_group_ = none;
  double least = best_shape(none).time + memory_time(none, false);
  GroupOutputs best;
  for (const ReduceFacts& r : reduces_) {
    if (r.is_inner || r.is_dot || r.trip_count < kLeastShared) continue;
    Level level = r.outputs;
    merge_symbolic(&level);
    for (const GroupOutputs& outputs : group_outputs(level)) {
      outputs_ = outputs;
      const double time = best_shape(level).time + memory_time(level, costs(level).is_stream);
      if (time >= least * 0.95) continue;
      least = time;
      is_group_ = level;
      best = outputs;
    }
  }
  outputs_ = best;
}

/// Whether some load of a shared reduction is contiguous along `loop`.
bool GroupScheduler::has_contiguous(const Level& level, const Node* loop) {
  for (const ReduceFacts& r : reduces_) {
    if (!is_shared(r, level)) continue;
    for (const Node* n : model_.body(r.node))
      if (n->op == Op::kLoad && model_.strides(loop, 0).stride(n->src[0]) == 1) return true;
  }
  return false;
}

/// None, and results that a group may do at once: contiguous ones, or where reductions
/// are short those of the last loop.
std::vector<GroupScheduler::GroupOutputs> GroupScheduler::group_outputs(const Level& level) {
  std::vector<GroupOutputs> out(1);
  if (segments_ != nullptr) return out;  // lanes of a segment stay together
  const bool has_streams_only = std::ranges::all_of(
      reduces_, [&](const ReduceFacts& r) { return !is_shared(r, level) || has_streams(r); });
  if (!found_dots_.empty() || !has_streams_only) return out;
  const Node* last = nullptr;
  for (size_t i = 0; i < loops_.size(); ++i) {
    const Node* extent = loops_[i]->src[0];
    if (!level[i] || !extent->is_const() || extent->imm < 2) continue;
    last = loops_[i];
    if (has_contiguous(level, last))
      for (uint32_t width = kMostGroupOutputs; width >= kMostGroupOutputs / 4; width /= 2)
        if (extent->imm >= width) out.push_back({last, width, false});
  }
  for (uint32_t width = 2; last && width <= kMostGroupOutputs && width <= last->src[0]->imm;
       width *= 2)
    out.push_back({last, width, true});
  return out;
}

/// Where a group shares the reductions of every result, its work-items read words far apart. If
/// adjacent results have adjacent words, a group takes some of them side by side.
void GroupScheduler::choose_side() {
  const bool is_shared_level =
      std::ranges::all_of(is_group_, std::identity{}) &&
      std::ranges::any_of(reduces_, [&](const ReduceFacts& r) { return is_shared(r, is_group_); });
  if (!is_shared_level || found_dots_.empty()) return;  // else it is there already
  for (const Node* range : loops_) {
    const Node* extent = range->src[0];
    if (extent->is_const() && extent->imm > 0 && extent->imm % kDotOutputs == 0 &&
        std::ranges::all_of(
            found_dots_, [&](const InnerDot& d) { return d.has_contiguous(range, kDotOutputs); }))
      outputs_ = {range, kDotOutputs, false};
  }
}

void GroupScheduler::share_reductions() {
  for (const ReduceFacts& r : reduces_) {
    const bool is_shared_one = shape_.block > 1 && is_shared(r, is_group_);
    s_.reduces[r.node] = {.is_shared = is_shared_one,
                          .item_unroll = is_shared_one ? shape_.unroll : 0};
  }
  s_.dots = dots_;
}

/// Iterations of the item loops if they are constant, else their bound (saturated).
int64_t GroupScheduler::count_items(bool* is_const) const {
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

void GroupScheduler::set_launch() {
  for (const bool is_group : {true, false})
    for (size_t i = 0; i < loops_.size(); ++i)
      if (is_group_[i] == is_group)
        s_.loops.push_back({.range = loops_[i],
                            .lanes = 1,
                            .jam = jams_[i],
                            .has_group_outputs = loops_[i] == outputs_.loop});
  s_.group_outputs = outputs_.width;
  s_.is_output_major = outputs_.is_high;
  s_.item_unroll = shape_.item_unroll;
  s_.grid_loops = static_cast<uint32_t>(std::count(is_group_.begin(), is_group_.end(), true));
  s_.block = shape_.block;
  bool is_const = false;
  const int64_t items = count_items(&is_const);
  const auto block = int64_t{s_.block};
  const auto up = [](int64_t a, int64_t b) { return a / b + (a % b != 0); };
  if (shape_.is_single || items <= block) {
    s_.trip_count = is_const || items <= block ? std::max<int64_t>(up(items, block), 1) : 0;
    s_.chunk = s_.trip_count * block;
  } else {
    s_.trip_count = std::max<int64_t>(
        shape_.per_item, static_cast<int64_t>(std::ceil(static_cast<double>(items) / kMostChunks /
                                                        static_cast<double>(block))));
    s_.chunk = s_.trip_count * block;
    add_chunks(up(items, s_.chunk), is_const);
  }
  s_.is_unrolled = s_.trip_count > 1 && s_.trip_count <= max_unroll();
  s_.is_exact = is_const && s_.trip_count > 0 && items % s_.chunk == 0 && items > 0;
  // An axis takes constants, then at most one loop whose extent is known at launch.
  for (const bool is_symbol : {false, true})
    for (uint32_t i = s_.grid_loops; i-- > 0;)
      if (s_.loops[i].range->src[0]->is_const() != is_symbol) add_loop(i);
  const Costs c = costs(is_group_);
  const double ops = c.partitioned + static_cast<double>(block) * (kStartCost + c.repeated) +
                     c.element * std::min(c.iterations, static_cast<double>(s_.chunk));
  s_.work_per_block = static_cast<uint64_t>(std::min(ops, 1e18));
}

/// Most elements that a work-item may have contiguous: those of its iterations, which runs of as
/// many must fill, where something is narrower than a word.
uint32_t GroupScheduler::most_contiguous() const {
  if (!target_.has_wide_stores || segments_ != nullptr || is_tiled_ || !found_dots_.empty())
    return 1;
  if (limits_.knobs && limits_.knobs->get("contiguous") == 0) return 1;
  if (s_.is_unrolled) return std::bit_floor(static_cast<uint32_t>(s_.trip_count));
  return shape_.unroll;
}

/// The loads of a shared reduction, along its loop.
bool GroupScheduler::add_rows(const ReduceFacts& r) {
  const Node* range = r.node->src.back();
  const Node* extent = range->src[0];
  const int64_t count = s_.contiguous.count, parts = s_.block / s_.group_outputs;
  if (!s_.reduces[r.node].is_shared || r.node->src.size() != 2 || !extent->is_const() ||
      extent->imm % count != 0)
    return false;
  // Written out, or a loop over as many.
  const bool is_row = extent->imm <= shape_.unroll * parts;
  if (!is_row && shape_.unroll % count != 0) return false;
  std::vector<const Node*> loads = model_.body(r.node);
  std::erase_if(loads, [](const Node* n) { return n->op != Op::kLoad; });
  return add_contiguous(model_, loads, {}, range, &s_.contiguous);
}

/// Elements narrower than a word, loaded singly, leave most of what an instruction could bring.
void GroupScheduler::choose_contiguous() {
  const bool is_row = !s_.is_unrolled && shape_.unroll > 1 && !outputs_.loop;
  const bool has_item_loop = s_.loops.size() > s_.grid_loops;
  if (!s_.is_unrolled && (!is_row || (has_item_loop && s_.item_unroll == 0))) return;
  const Node* last = has_item_loop ? s_.loops.back().range : nullptr;
  if (is_row && s_.loops.size() > s_.grid_loops + 1) return;
  for (uint32_t count = std::min(std::bit_floor(most_contiguous()), 16u); count > 1; count /= 2) {
    s_.contiguous = {.count = count, .loads = {}, .params = {}};
    bool is_it = true;
    if (last != nullptr)
      is_it = last->src[0]->is_const() && last->src[0]->imm % count == 0 &&
              (is_row || s_.trip_count % count == 0) &&
              add_contiguous(model_, model_.output_loads(), kernel_.stores, last, &s_.contiguous);
    for (const ReduceFacts& r : reduces_) is_it = is_it && add_rows(r);
    int64_t narrowest = 4;
    for (const int param : s_.contiguous.params)
      narrowest = std::min(narrowest, item_size(kernel_.params[static_cast<size_t>(param)].dtype));
    if (is_it && narrowest < 4 && count * narrowest <= 16) return;
  }
  s_.contiguous = {};
}

void GroupScheduler::add_chunks(int64_t most, bool is_const) {
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
void GroupScheduler::add_loop(uint32_t loop) {
  const Node* extent = s_.loops[loop].range->src[0];
  const bool is_const = extent->is_const();
  const auto fits = [&] {
    int64_t product = 0;
    return !is_closed_ &&
           (!is_const || !__builtin_mul_overflow(s_.grid[axis_].constant, extent->imm, &product)) &&
           product <= kMostGroups;
  };
  const bool must_move = !fits() || (!is_const && !s_.grid[axis_].is_constant());
  if (must_move && axis_ + 1 < s_.axes.size()) {
    ++axis_;
    is_closed_ = false;
  }
  bool is_exact = true;
  if (s_.loops[loop].has_group_outputs)
    s_.grid[axis_].constant *= s_.output_groups(loop);
  else
    is_exact = multiply(&s_.grid[axis_], extent, 1);
  s_.axes[axis_].push_back({.loop = loop, .is_bounded = !is_exact});
  is_closed_ = !is_exact;
}

/// Most groups along an axis.
double GroupScheduler::most_groups(size_t axis) const {
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
bool GroupScheduler::fit_grid() {
  const auto is_short = [&](size_t axis, size_t at) {
    return most_groups(axis) <= static_cast<double>(target_.max_groups[at]);
  };
  for (size_t axis = 1; axis < s_.axes.size(); ++axis)
    if (!is_short(axis, axis) && is_short(0, axis)) {
      std::swap(s_.axes[0], s_.axes[axis]);
      std::swap(s_.grid[0], s_.grid[axis]);
    }
  return is_short(0, 0) && is_short(1, 1) && is_short(2, 2);
}

/// Starts again with all loops in chunks, which need one axis.
void GroupScheduler::merge_all() {
  s_ = {};
  is_group_.assign(loops_.size(), false);
  jams_.assign(loops_.size(), 1);
  is_tiled_ = is_closed_ = false;
  outputs_ = {};
  axis_ = 0;
  shape_ = best_shape(is_group_);
  share_reductions();
  set_launch();
}

Schedule make_group_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                             ScheduleLimits limits) {
  return GroupScheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
