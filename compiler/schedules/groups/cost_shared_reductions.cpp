// What groups that share reductions cost: how many are resident on a compute unit, how many
// iterations of a row a work-item takes at once, and what it waits for.
#include <array>
#include <bit>
#include <cmath>

#include "compiler/schedules/groups/plan.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Until all work-items of a group have arrived.
constexpr double kBarrierCost = 4;
/// Start and end of a group.
constexpr double kGroupCost = 40;
/// A load that an earlier pass has done before.
constexpr double kAgain = 6;
/// Most iterations of a work-item that are written out, and operations they may come to.
constexpr uint32_t kMaxReduceUnroll = 32;
constexpr double kMostNodes = 1600;
/// Iterations per iteration where there are more, and loads of an iteration.
constexpr uint32_t kLoopUnroll = 16, kIterationLoads = 16;
/// Of memory, and what every halving of it costs: of adjacent results, of pieces of short rows.
constexpr double kLineBytes = 128, kNarrowLine = 0.25, kNarrow = 0.1;
/// Rows of a work-item that stay in L1 until all of them is read.
constexpr double kShortBytes = 64;
/// Work-items for a row where a group has several.
constexpr uint32_t kLeastParts = 16;
/// Share of what is not scarce.
constexpr double kInTheWay = 0.25;
/// Registers of a work-item besides what it keeps, as compilers of today use them, and as they may.
constexpr double kOwnRegisters = 16, kMostRegisters = 32;
/// Results read by every work-item at the end of a shared reduction, as lower_shared.cpp has it.
constexpr uint32_t kFewParts = 8;

/// Steps at the end of a shared reduction.
double combining_steps(uint32_t parts) {
  if (parts <= kFewParts) return parts;
  const uint32_t left = 1U << (std::countr_zero(parts) - 1) / 2;
  return parts / left + left;
}

double registers_of(const Node* n) { return item_size(n->dtype) > 4 ? 2 : 1; }

}  // namespace

/// Everything that groups which share the reductions of `level` want to know of its rows.
void GroupScheduler::add_row_facts(const Level& level, Costs* c) {
  std::vector<const Node*> loads;
  const auto see = [&](const Node* n) {
    if (n->op != Op::kLoad || std::ranges::find(loads, n) != loads.end()) return;
    loads.push_back(n);
    c->kept += registers_of(n);
    c->load_bytes += static_cast<double>(item_size(n->dtype));
  };
  for (const ReduceFacts& r : reduces_) {
    c->has_inner = c->has_inner || r.is_inner || r.is_dot || !is_within(r.outputs, level);
    if (!is_shared(r, level)) continue;
    c->is_stream = c->is_stream && has_streams(r);
    c->bytes += r.bytes;
    c->trip_count = std::max(c->trip_count, r.trip_count);
    for (size_t i = 1; i < r.node->src.size(); ++i)
      c->is_known = c->is_known && r.node->src[i]->src[0]->is_const();
    double own = 0;
    for (const Node* n : model_.body(r.node)) {
      c->nodes += CostModel::weight(n);
      own += n->op == Op::kLoad;
      see(n);
    }
    c->loads = std::max(c->loads, own);
  }
  for (const Node* n : model_.output_loads()) {
    ++c->again;
    see(n);
  }
  for (const ir::Store& store : kernel_.stores)
    c->store_bytes += static_cast<double>(item_size(store.value->dtype));
  c->nodes += model_.output_nodes();
  for (size_t i = 0; i < loops_.size(); ++i) {
    if (level[i]) continue;
    c->has_item_loops = true;
    c->is_item_known = c->is_item_known && !is_symbolic(i) && jams_[i] == 1;
  }
}

/// Whether several results need what a load brings: it is in a cache then.
bool GroupScheduler::is_used_again(const Node* load, const ReduceFacts& r) {
  return std::ranges::any_of(loops_, [&](const Node* loop) {
    return CostModel::trip_count(loop) > 1 && model_.depends(r.node, loop) &&
           !model_.depends(load, loop);
  });
}

/// Whether some numbers come from memory for one result only.
bool GroupScheduler::has_streams(const ReduceFacts& r) {
  if (r.is_inner || r.is_dot || r.trip_count < kLeastShared) return false;
  return std::ranges::any_of(model_.body(r.node), [&](const Node* n) {
    return n->op == Op::kLoad && !is_used_again(n, r);
  });
}

/// What memory takes for the numbers that reductions load once: several times as much where
/// adjacent work-items read far apart, and more where they are fewer than a line has elements.
/// `is_plain_known`: only what is more than the numbers themselves.
double GroupScheduler::memory_time(const Level& level, bool is_plain_known) {
  double bytes = 0;
  for (const ReduceFacts& r : reduces_) {
    if (r.is_inner || r.is_dot || r.trip_count < kLeastShared) continue;
    const bool is_low = outputs_.loop && !outputs_.is_high;
    const Node* along = !is_shared(r, level) ? item_loop(level)
                        : is_low             ? outputs_.loop
                                             : r.node->src.back();
    double times = r.trip_count;
    for (size_t i = 0; i < loops_.size(); ++i)
      if (r.outputs[i]) times *= CostModel::trip_count(loops_[i]);
    for (const Node* n : model_.body(r.node)) {
      if (n->op != Op::kLoad || is_used_again(n, r)) continue;
      const auto size = static_cast<double>(item_size(n->dtype));
      const double lines = kLineBytes / (size * outputs_.width);
      const double narrow = is_low ? 1 + kNarrowLine * std::log2(std::max(lines, 1.0)) : 1;
      const double far = std::clamp(r.trip_count * size / kShortBytes, 1.0, kUncoalesced);
      bytes += times * size * ((scattered(n, along) > 0 ? far : narrow) - (is_plain_known ? 1 : 0));
    }
  }
  return bytes / (units_ * target_.pipe.cu_bytes);
}

/// Iterations of a row that a work-item may have written out.
uint32_t GroupScheduler::max_reduce_unroll(const Costs& c, uint32_t block) const {
  const double room = target_.pipe.cu_registers / static_cast<double>(block) - kMostRegisters;
  const double most =
      std::min({room / std::max(c.kept, 1.0), kMostNodes / std::max(c.nodes, 1.0),
                static_cast<double>(std::min(kMaxReduceUnroll, limits_.max_lanes))});
  return static_cast<uint32_t>(std::max(most, 1.0));
}

/// How many iterations are written out; false if the shape does not exist.
bool GroupScheduler::choose_unroll(const Costs& c, Shape* s) const {
  if (c.levels == 0 || s->block < 2 || !found_dots_.empty()) return true;
  const double parts = s->block / outputs_.width;
  if (outputs_.is_high && parts < kLeastParts) return false;
  const uint32_t most = max_reduce_unroll(c, s->block);
  const double items = std::ceil(c.iterations / parts),
               trip_count = std::ceil(c.trip_count / parts);
  const bool is_row = s->is_single && !c.has_inner && c.is_item_known && items <= most;
  if (outputs_.loop || c.has_item_loops) s->item_unroll = is_row ? static_cast<uint32_t>(items) : 0;
  if (outputs_.loop && s->item_unroll == 0) return false;
  if (c.has_inner) return true;
  if (c.is_known && trip_count <= most) {
    s->unroll = static_cast<uint32_t>(trip_count);
    return true;
  }
  const double loop =
      std::min({static_cast<double>(kLoopUnroll), static_cast<double>(most), trip_count,
                std::max(kIterationLoads / std::max(c.loads, 1.0), 1.0)});
  s->unroll = std::bit_floor(static_cast<uint32_t>(loop));
  return true;
}

/// Groups resident on one compute unit (occupancy).
double GroupScheduler::groups_of_unit(const Costs& c, const Shape& s) const {
  const PipeInfo& unit = target_.pipe;
  const double registers = kOwnRegisters + c.kept * std::max(s.unroll, s.item_unroll);
  const double bytes = static_cast<double>(c.bytes * s.block + unit.reserved_bytes);
  const double memory = std::max(unit.cu_memory_bytes, target_.shared_memory_bytes);
  return std::max(
      std::floor(std::min(
          {static_cast<double>(unit.cu_groups), static_cast<double>(unit.cu_items) / s.block,
           unit.cu_registers / (s.block * registers), memory / std::max(bytes, 1.0)})),
      1.0);
}

double GroupScheduler::shared_time(const Costs& c, const Shape& s) const {
  const double block = s.block, parts = s.block / outputs_.width;
  const double per_item =
      s.is_single ? std::ceil(c.iterations / parts) : static_cast<double>(s.per_item);
  const double chunks = s.is_single ? 1 : std::ceil(c.iterations / (block * per_item));
  const double trip_count = std::ceil(c.trip_count / parts), unroll = std::max(s.unroll, 1u);
  const bool is_written = c.is_known && trip_count <= unroll && s.unroll > 0;
  const double idle = trip_count * parts / c.trip_count;
  double ops = kStartCost + per_item * c.element + c.repeated + c.partitioned * idle / block +
               c.levels * combining_steps(static_cast<uint32_t>(parts));
  double batches = is_written ? 1 : c.levels * std::ceil(trip_count / unroll);
  if (!is_written) ops += (c.levels - 1) * trip_count * c.loads * kAgain;
  if (s.item_unroll == 0 && c.has_item_loops) {
    batches += per_item / 4;
    ops += per_item * c.again * kAgain;
  }
  const double waits = kLoadLatency * batches;
  const double ends = kGroupCost + 2 * c.levels * kBarrierCost;
  const double passes = is_written ? 1 : c.levels;
  const double again = s.item_unroll == 0 ? c.again * c.load_bytes / std::max(c.loads, 1.0) : 0;
  const double bytes = outputs_.width * (c.trip_count * c.load_bytes * passes +
                                         per_item * parts * (again + c.store_bytes));
  const double memory = bytes / target_.pipe.cu_bytes;
  const double groups = c.groups * chunks;
  const double side_by_side = std::min(groups_of_unit(c, s), std::max(groups / units_, 1.0));
  const double rounds = std::max(groups / (units_ * side_by_side), 1.0);
  const double narrow = outputs_.is_high ? std::max(kMostGroupOutputs / parts, 1.0) : 1;
  // Sub-groups of a loop are in different iterations of it.
  const double alone = ends + (is_written ? ops + waits + memory : std::max(ops + waits, memory));
  // What is scarce counts: a group's own way, operations or memory. The others get in the way.
  const std::array all{alone, side_by_side * block / kItemsPerUnit * ops,
                       side_by_side * memory * (1 + kNarrow * std::log2(narrow))};
  return rounds *
         (std::ranges::max(all) + kInTheWay * (ends + ops + waits + memory + all[1] + all[2]));
}

}  // namespace bm::compiler
