// What a way to spread a kernel's loops over groups and work-items costs.
#include <bit>
#include <cmath>

#include "compiler/tune/knobs.h"
#include "compiler/schedules/groups/plan.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// One level of the tree at the end of a shared reduction.
constexpr double kLevelCost = 10;
/// Merged bodies beyond this many nodes cost more to compile than they save.
constexpr double kMaxMergedNodes = 200;
/// The same of iterations that have nothing in common: what they save is waiting for memory.
constexpr double kMaxUnrolledNodes = 400;
/// Iterations of a work-item that pay for its start, and most that are written out.
constexpr int64_t kPlainIterations = 4, kMaxUnroll = 16;

}  // namespace

/// `width`: elements loaded at once.
double GroupScheduler::scattered(const Node* load, const Node* along, int width) {
  if (!along) return 0;
  const int64_t chunk = width == 1 ? 0 : kDotOutputs;
  const std::optional<int64_t> stride = model_.strides(along, chunk).stride(load->src[0]);
  return stride && std::abs(*stride) <= width ? 0 : kUncoalesced - 1;
}

/// One iteration of a reduction whose adjacent work-items differ in `along`.
double GroupScheduler::body_cost(const ReduceFacts& r, const Node* along) {
  double cost = 1;
  for (const Node* n : model_.body(r.node)) {
    if (n->op == Op::kConst || n->op == Op::kVar || n->op == Op::kRange || n->op == Op::kReduce)
      continue;
    cost += iteration_cost(r, n, along);
  }
  return cost;
}

double GroupScheduler::iteration_cost(const ReduceFacts& r, const Node* n, const Node* along) {
  if (r.is_dot && n->op == Op::kCast) return 0;  // part of the instruction
  const double far = n->op == Op::kLoad ? scattered(n, along, r.is_dot ? kWord : 1) : 0;
  return CostModel::weight(n) + far;
}

const Node* GroupScheduler::item_loop(const Level& level) const {
  for (size_t i = loops_.size(); i-- > 0;)
    if (!level[i]) return loops_[i];
  return nullptr;
}

bool GroupScheduler::is_shared(const ReduceFacts& r, const Level& level) const {
  return !r.is_inner && !r.is_dot && r.trip_count >= kLeastShared && is_within(r.outputs, level);
}

uint64_t GroupScheduler::shared_bytes(const Level& level, uint32_t block) const {
  uint64_t sum = 0;
  for (const ReduceFacts& r : reduces_)
    if (is_shared(r, level)) sum += r.bytes * block;
  return sum;
}

/// The loop around `r` along which adjacent work-items differ, if a group shares one.
const Node* GroupScheduler::shared_loop(const ReduceFacts& r, const Level& level) const {
  if (outputs_.loop) return outputs_.loop;
  for (const ReduceFacts& around : reduces_)
    if (is_shared(around, level) && model_.depends(r.node, around.node->src.back()))
      return around.node->src.back();
  return nullptr;
}

GroupScheduler::Costs GroupScheduler::costs(const Level& level) {
  Costs c;
  for (size_t i = 0; i < loops_.size(); ++i)
    (level[i] ? c.groups : c.iterations) *= CostModel::trip_count(loops_[i]) / jams_[i];
  const Node* along = item_loop(level);
  c.element = model_.output_nodes() + static_cast<double>(kernel_.stores.size());
  for (const Node* load : model_.output_loads()) c.element += scattered(load, along);
  for (const ReduceFacts& r : reduces_) {
    if (!is_within(r.outputs, level)) {
      c.element += r.evaluations * body_cost(r, along);
      if (has_streams(r)) c.waits += r.evaluations / kLoopLoads;
    } else if (is_shared(r, level)) {
      const bool is_low = outputs_.loop && !outputs_.is_high;
      c.partitioned += r.evaluations * body_cost(r, is_low ? outputs_.loop : r.node->src.back());
      ++c.levels;
    } else if (r.is_inner) {
      c.partitioned += r.evaluations * body_cost(r, r.is_dot ? shared_loop(r, level) : nullptr);
    } else {
      c.repeated += r.evaluations * body_cost(r, nullptr);
    }
  }
  if (outputs_.loop) {
    c.groups = std::ceil(c.groups / outputs_.width);
    c.partitioned *= outputs_.width;
  }
  add_row_facts(level, &c);
  return c;
}

double GroupScheduler::time(const Costs& c, const Shape& s) const {
  const double block = s.block, chunk = block * static_cast<double>(s.per_item);
  const double chunks = s.is_single ? 1 : std::ceil(c.iterations / chunk);
  const double per_item =
      s.is_single ? std::ceil(c.iterations / block) : static_cast<double>(s.per_item);
  const double item = kStartCost + per_item * c.element + c.repeated + c.partitioned / block +
                      (c.levels > 0 ? std::log2(block) * (kLevelCost + 2 * c.levels) : 0);
  const double groups = c.groups * chunks;
  const double waits = item + per_item * c.waits * kLoadLatency;
  double t = std::max(item * std::max(1.0, groups * block / resident_items_),
                      waits * std::max(1.0, groups * block / (units_ * target_.pipe.cu_items)));
  if (groups < units_) t *= 1.2;
  const double idle = chunks * per_item * block / std::max(c.iterations, 1.0);
  return c.levels > 0 ? t : t * (1 + 0.02 * std::min(idle - 1, 8.0));
}

GroupScheduler::Shape GroupScheduler::best_shape(const Level& level) {
  const Costs c = costs(level);
  Shape best;
  for (uint32_t block : {256u, 128u, 64u, 32u, 512u, 1024u}) {
    if (block > target_.max_block) block = std::bit_floor(target_.max_block);
    // Large blocks are for reductions: elsewhere they only make the launch coarser.
    if (block > 256 && c.levels == 0) continue;
    if (shared_bytes(level, block) > target_.shared_memory_bytes) continue;
    if (block < 2 * outputs_.width) continue;
    for (const int64_t per_item : {1, 2, 4})
      if (!outputs_.loop) consider(c, {.block = block, .per_item = per_item}, &best);
    for (int64_t n = 2 * kPlainIterations; n <= max_unroll(); n *= 2)
      if (!outputs_.loop) consider(c, {.block = block, .per_item = n}, &best);
    if (c.levels > 0) consider(c, {.block = block, .is_single = true}, &best);
  }
  if (best.time == 0) best = {.block = 1, .time = INFINITY};  // shared memory is too small
  return best;
}

/// Iterations of a work-item that are unrolled; 1: a loop. Kernels without
/// reductions only wait for memory.
int64_t GroupScheduler::max_unroll() const {
  if (!reduces_.empty() || !limits_.has_tiles || is_tiled_) return 1;
  int64_t widest = 0;
  for (const Node* load : model_.output_loads()) widest = std::max(widest, item_size(load->dtype));
  for (const ir::Store& s : kernel_.stores)
    if (model_.output_loads().empty()) widest = std::max(widest, item_size(s.value->dtype));
  const double nodes = model_.output_nodes() + static_cast<double>(kernel_.stores.size());
  int64_t unroll = kMaxUnroll;
  while (unroll > kPlainIterations && (unroll * widest > target_.item_bytes_ahead ||
                                       static_cast<double>(unroll) * nodes > kMaxUnrolledNodes))
    unroll /= 2;
  return static_cast<double>(unroll) * nodes > kMaxUnrolledNodes ? 1 : unroll;
}

bool GroupScheduler::is_wanted(const Shape& s) const {
  if (!limits_.knobs) return true;
  return limits_.knobs->get("block").value_or(s.block) == s.block &&
         limits_.knobs->get("items").value_or(s.per_item) == s.per_item;
}

void GroupScheduler::consider(const Costs& c, Shape s, Shape* best) const {
  if (!is_wanted(s)) return;
  // Lanes of a segment do the same iteration, and all of them do one.
  if (segments_ != nullptr && (s.per_item > 1 || s.is_single)) return;
  if (s.per_item > 1 &&
      (is_tiled_ || c.iterations < resident_items_ * static_cast<double>(s.per_item)))
    return;
  if (!choose_unroll(c, &s)) return;
  const bool is_row = c.levels > 0 && c.is_stream && found_dots_.empty();
  s.time = is_row ? shared_time(c, s) : time(c, s);
  if (best->time == 0 || s.time < best->time * 0.99) *best = s;
}

/// Merged bodies of the item loops that share the loads of the heaviest reduction.
void GroupScheduler::choose_tile() {
  const ReduceFacts* heaviest = nullptr;
  for (const ReduceFacts& r : reduces_)
    if (!is_within(r.outputs, is_group_) && r.trip_count >= 8 &&
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

/// Cost of one iteration per result, or nothing if the tile does not divide the loops, leaves too
/// few work-items or makes too much code.
std::optional<double> GroupScheduler::tile_cost(const ReduceFacts& r, size_t x, uint32_t a,
                                                size_t y, uint32_t b) {
  const auto divides = [&](size_t loop, uint32_t jam) {
    const Node* extent = loops_[loop]->src[0];
    return jam == 1 || (extent->is_const() && extent->imm % jam == 0);
  };
  const double bodies = a * b;
  if (bodies > 1 && (!divides(x, a) || !divides(y, b))) return std::nullopt;
  double items = 1, cost = 0, nodes = 0;
  for (size_t i = 0; i < loops_.size(); ++i) items *= CostModel::trip_count(loops_[i]);
  if (bodies > 1 && items / bodies < resident_items_) return std::nullopt;
  const Node* along = item_loop(is_group_);
  for (const Node* n : model_.body(r.node)) {
    if (n->op == Op::kConst || n->op == Op::kVar || n->op == Op::kRange) continue;
    double own = 1;
    if (model_.depends(n, loops_[x])) own *= a;
    if (x != y && model_.depends(n, loops_[y])) own *= b;
    nodes += own;
    cost += own / bodies * iteration_cost(r, n, along);
  }
  if (bodies > 1 && nodes > kMaxMergedNodes) return std::nullopt;
  return cost + 1;
}

}  // namespace bm::compiler
