// Plans split-K GEMM: where few results and a long K leave compute units without work.
//
// K is split over the work-items of one group, not over groups: a launch is one kernel whose groups
// may run in any order and one after the other, a program has no atomic operations, and no memory
// but its params outlives a group. What one group cannot hold is split by the tensor layer into two
// kernels (tensor/reduce_parts.h).
#include "compiler/schedules/split_k/split_k.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "compiler/analysis/cost.h"
#include "compiler/schedules/gemm_gpu/contraction.h"
#include "compiler/schedules/gemm_gpu/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

constexpr int64_t kLeastK = 512;
constexpr uint32_t kMostTile = 8;
/// Registers of a work-item besides accumulators and operands, and most of all of them.
constexpr double kOtherRegisters = 32, kMostRegisters = 160;
/// Of the time of any other schedule: estimates are rough, and those of larger tiles read less.
constexpr double kLeastGain = 0.75;
// Rough cycles of one compute unit, as in plan_register.cpp and plan_pipelined.cpp of gemm_gpu.
constexpr double kIssue = 4;              ///< instructions of sub-groups that start at once
constexpr double kLatencyCycles = 600;    ///< of loads that nothing else covers
constexpr double kStageCycles = 250;      ///< of a pipelined stage of K that one group waits for
constexpr double kStageBytes = 128;       ///< of K in it
constexpr double kByteCycles = 2 / 128.;  ///< from the cache of all units
constexpr double kSectorBytes = 32;       ///< least that is read of memory
constexpr double kStartCycles = 1500, kBarrierCycles = 100, kPartialCycles = 8;
/// Rows and columns of the smallest tile by MMA through shared memory, and of SIMT code.
constexpr int64_t kMmaTile = 64, kSimtTile = 32;
constexpr int64_t kSimtK = 16;  ///< steps of K between two barriers

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

class SplitKScheduler : GemmPlanner {
 public:
  using GemmPlanner::GemmPlanner;

  std::optional<Schedule> run() {
    if (!find_contraction()) return std::nullopt;
    for (const uint32_t m : sizes(plan_.m))
      for (const uint32_t n : sizes(plan_.n))
        for (const uint32_t splits : {256u, 128u, 64u, 512u, 1024u})
          for (const uint32_t unroll : {4u, 8u, 2u, 1u}) consider(m, n, splits, unroll);
    if (!best_ || least_ >= kNotAsked) return std::nullopt;
    if (!asks_for_tile(limits_.knobs) && least_ > kLeastGain * other_time()) return std::nullopt;
    return schedule();
  }

 private:
  /// M, N and the longest loop of K of a sum over products, all of known extents.
  bool find_contraction() {
    const Node* reduce = wide_contraction();
    if (!reduce) return false;
    plan_.reduce = reduce;
    for (size_t i = 1; i < reduce->src.size(); ++i) {
      const Node* k = reduce->src[i];
      if (k->src[0]->is_const() && (!plan_.k || k->src[0]->imm > plan_.k->src[0]->imm)) plan_.k = k;
    }
    if (!plan_.k || plan_.k->src[0]->imm < kLeastK) return false;
    for (const Node* m : kernel_.ranges)
      for (const Node* n : kernel_.ranges)
        if (m != n && is_contraction(*reduce->src[0], m, n)) {
          plan_.m.along = m;
          plan_.n.along = n;
        }
    return plan_.m.along != nullptr;
  }

  bool is_factor(const Node* n, const Node* along, const Node* other) const {
    return model_.depends(n, along) && model_.depends(n, plan_.k) && !model_.depends(n, other);
  }

  /// Columns are those whose results are adjacent in memory, if any are.
  bool is_contraction(const Node& product, const Node* m, const Node* n) {
    const auto has_several = [](const Node* range) {
      return range->src[0]->is_const() && range->src[0]->imm > 1;
    };
    const bool is_product = (is_factor(product.src[0], m, n) && is_factor(product.src[1], n, m)) ||
                            (is_factor(product.src[1], m, n) && is_factor(product.src[0], n, m));
    return has_several(m) && has_several(n) && is_product &&
           (!plan_.n.along || model_.strides(n, 0).stride(kernel_.stores[0].index) == 1);
  }

  static std::vector<uint32_t> sizes(const SplitKSide& side) {
    std::vector<uint32_t> out;
    for (uint32_t size = kMostTile; size >= 1; --size)
      if (side.extent() >= int64_t{size}) out.push_back(size);
    return out;
  }

  void consider(uint32_t m, uint32_t n, uint32_t splits, uint32_t unroll) {
    SplitKPlan p = plan_;
    p.m.tile = m;
    p.n.tile = n;
    p.splits = splits;
    p.unroll = unroll;
    if (m * n == 1 || splits < p.results() || splits > target_.max_block ||
        p.results() > limits_.max_accumulators || p.shared_bytes() > target_.shared_memory_bytes ||
        registers(p) >
            std::min(kMostRegisters, target_.pipe.cu_registers / static_cast<double>(splits)))
      return;
    double cost = time(p) * asked_factor(limits_.knobs, {.m = m, .n = n, .k = unroll});
    if (limits_.knobs && limits_.knobs->get("block").value_or(splits) != splits) cost *= kNotAsked;
    if (best_ && cost >= least_ * 0.99) return;
    best_ = p;
    least_ = cost;
  }

  double registers(const SplitKPlan& p) const {
    const double words = item_size(p.reduce->dtype) > 4 ? 2 : 1;
    return words * (p.results() + (p.m.tile + p.n.tile) * p.unroll) + kOtherRegisters;
  }

  /// Of all output loops but M and N.
  double batches() const {
    double n = 1;
    for (const Node* r : kernel_.ranges)
      if (r != plan_.m.along && r != plan_.n.along) n *= CostModel::trip_count(r);
    return n;
  }

  /// Products of one result.
  double length() const {
    double n = 1;
    for (size_t i = 1; i < plan_.reduce->src.size(); ++i)
      n *= CostModel::trip_count(plan_.reduce->src[i]);
    return n;
  }

  /// Bytes that a step of K reads for a tile.
  double step_bytes(const SplitKPlan& p) {
    double bytes = 0;
    for (const Node* n : model_.body(p.reduce)) {
      if (n->op != Op::kLoad) continue;
      const SplitKSide& side = model_.depends(n, p.m.along) ? p.m : p.n;
      const double own = static_cast<double>(side.tile * item_size(n->dtype));
      const bool is_k_major = model_.strides(p.k, 0).stride(n->src[0]) == 1;
      bytes += is_k_major ? own : std::max(own, kSectorBytes);
    }
    return bytes;
  }

  /// Instructions of a step of K: what a factor is made of is done for each of its rows.
  double step_instructions(const SplitKPlan& p) {
    double sum = p.results() + 2.0 / p.unroll;
    for (const Node* n : model_.body(p.reduce)) {
      if (n == p.reduce->src[0] || n->op == Op::kConst || n->op == Op::kRange) continue;
      const bool is_m = model_.depends(n, p.m.along), is_n = model_.depends(n, p.n.along);
      const double count = (is_m ? p.m.tile : 1) * (is_n ? p.n.tile : 1);
      sum += count * (CostModel::weight(n) + (n->op == Op::kLoad ? 1 : 0));
    }
    return sum;
  }

  /// Cycles of the whole kernel.
  double time(const SplitKPlan& p) {
    const double groups = static_cast<double>(p.m.tiles() * p.n.tiles()) * batches();
    const double steps = std::ceil(length() / p.splits);
    const PipeInfo& unit = target_.pipe;
    const double memory = std::max(unit.cu_memory_bytes, target_.shared_memory_bytes);
    double resident =
        std::floor(std::min({unit.cu_registers / (registers(p) * p.splits),
                             memory / static_cast<double>(p.shared_bytes() + unit.reserved_bytes),
                             unit.cu_items / static_cast<double>(p.splits)}));
    resident = std::clamp(resident, 1.0, std::max(1.0, std::ceil(groups / units_)));
    const double sub_groups = static_cast<double>(p.splits) / target_.sub_group;
    const double issue = steps * step_instructions(p) * sub_groups / kIssue;
    const double read = length() * step_bytes(p) * kByteCycles;
    const double waits = std::ceil(steps / p.unroll) * kLatencyCycles;
    const double end = p.results() * sub_groups / kIssue +
                       p.splits / p.adders() * kPartialCycles * sub_groups / kIssue +
                       p.adders() * kPartialCycles + 2 * kBarrierCycles;
    return std::ceil(groups / (units_ * resident)) *
           (std::max({resident * issue, resident * read, waits}) + resident * end + kStartCycles);
  }

  /// The same of the fastest schedule without a split: tiles of results by MMA or SIMT code, or one
  /// result of a group, which shares its sum.
  double other_time() {
    SplitKPlan single = plan_;
    single.m.tile = single.n.tile = 1;
    double least = INFINITY;
    for (const uint32_t splits : {256u, 512u, 1024u}) {
      single.splits = splits;
      if (splits <= target_.max_block) least = std::min(least, time(single));
    }
    const double bytes = length() * static_cast<double>(item_size(plan_.reduce->dtype));
    const auto tiles = [&](int64_t size) {
      const int64_t all = up(plan_.m.extent(), size) * up(plan_.n.extent(), size);
      return std::ceil(static_cast<double>(all) * batches() / units_);
    };
    const double item = kSimtTile * kSimtTile / 16.0;  // work-items, of 4 × 4 results
    const double issue = 24 * kSimtK * item / target_.sub_group / kIssue;
    const double simt = std::max(kLatencyCycles + 2 * kBarrierCycles, tiles(kSimtTile) * issue);
    least = std::min(least, length() / kSimtK * simt + kStartCycles);
    const auto product = find_matrix_product(model_);
    if (!product || std::ranges::none_of(target_.matrix, [&](const MatrixInfo& info) {
          return product->is_for(info);
        }))
      return least;
    const double narrow = static_cast<double>(item_size(product->loads[0]->dtype)) /
                          static_cast<double>(item_size(plan_.reduce->dtype));
    return std::min(least,
                    tiles(kMmaTile) * (bytes * narrow / kStageBytes * kStageCycles + kStartCycles));
  }

  std::optional<Schedule> schedule() const {
    const SplitKPlan& p = *best_;
    auto s = tile_schedule(kernel_, target_, p.m.along, p.n.along, p.m.tiles() * p.n.tiles());
    if (!s) return std::nullopt;
    s->block = p.splits;
    s->work_per_block = static_cast<uint64_t>(p.results() * length());
    s->plan = std::make_shared<const SplitKPlan>(p);
    return s;
  }

  SplitKPlan plan_;
  std::optional<SplitKPlan> best_;
  double least_ = 0;
};

}  // namespace

std::optional<Schedule> make_split_k_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                              uint32_t units, const ScheduleLimits& limits) {
  if (!limits.has_tiles) return std::nullopt;
  return SplitKScheduler(kernel, target, units, limits).run();
}

std::string describe_split_k(const Schedule& schedule) {
  const SplitKPlan& p = *schedule.split_k();
  const auto side = [](const SplitKSide& s) {
    return fmt::format("r{} (0 … {}){}", s.along->imm, s.extent() - 1,
                       s.is_cut() ? ", the last tile cut" : "");
  };
  return fmt::format(
      "split-K GEMM: tiles of {} × {}, K (r{}, {}) split over {} work-items, {} steps in flight; "
      "{} "
      "work-items add each result in shared memory; M {}, N {}\n",
      p.m.tile, p.n.tile, p.k->imm, p.k->src[0]->imm, p.splits, p.unroll, p.adders(), side(p.m),
      side(p.n));
}

std::vector<Knobs> split_k_candidates(const ir::KernelIr&, const TargetInfo& target,
                                      const Schedule& schedule, const Knobs& from) {
  const SplitKPlan& p = *schedule.split_k();
  std::vector<Knobs> out;
  const auto add = [&](std::initializer_list<std::pair<const char*, int64_t>> changes) {
    Knobs next = from;
    for (const auto& [name, value] : changes) next.values[name] = value;
    if (next != from) out.push_back(std::move(next));
  };
  for (const uint32_t splits : {64u, 128u, 256u, 512u, 1024u})
    if (splits <= target.max_block && splits != p.splits) add({{"block", splits}});
  for (const uint32_t m : {2u, 4u, 8u})
    for (const uint32_t n : {2u, 4u, 8u})
      if (m != p.m.tile || n != p.n.tile) add({{"tile_m", m}, {"tile_n", n}});
  for (const uint32_t unroll : {1u, 2u, 4u, 8u})
    if (unroll != p.unroll) add({{"tile_k", unroll}});
  add({{"plain", 1}});
  return out;
}

}  // namespace bm::compiler
