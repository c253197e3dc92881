#include "compiler/tune/candidates.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "compiler/analysis/cost.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/schedules/implicit_gemm/implicit_gemm.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"
#include "compiler/schedules/strategy.h"

namespace bm::compiler {
namespace {

using Changes = std::vector<std::pair<std::string, int64_t>>;

class Candidates {
 public:
  Candidates(const ir::KernelIr& kernel, const TargetInfo& target, const Knobs& from)
      : kernel_(kernel), target_(target), from_(from) {}

  void lanes() {
    const CostModel model(kernel_, target_, kMostKnobLanes);
    const int64_t full =
        std::max<int64_t>(target_.vector_bits / 8 / std::max<int64_t>(model.widest(), 1), 1);
    add({{"axis", -1}, {"lanes", 1}});
    for (size_t i = 0; i < kernel_.ranges.size(); ++i) {
      const double trip_count = CostModel::trip_count(kernel_.ranges[i]);
      for (const int64_t n : {full / 2, full, 2 * full, 4 * full})
        if (n > 1 && n <= kMostKnobLanes && trip_count >= static_cast<double>(n))
          add({{"axis", static_cast<int64_t>(i)}, {"lanes", n}});
    }
  }

  void jams() {
    for (size_t i = 0; i < kernel_.ranges.size(); ++i) {
      const std::string name = fmt::format("jam{}", i);
      int64_t others = 1;
      for (const auto& [other, value] : from_.values)
        if (other.starts_with("jam") && other != name) others *= value;
      for (const int64_t jam : {1, 2, 3, 4, 6, 8, 12, 14, 16})
        if (jam * others <= kMaxKnobUnroll &&
            CostModel::trip_count(kernel_.ranges[i]) >= static_cast<double>(jam))
          add({{name, jam}});
    }
  }

  /// Half and twice a tile of `m` × `n`.
  void tiles(int64_t m, int64_t n) {
    for (const int64_t rows : {m / 2, m, m * 2})
      for (const int64_t columns : {n / 2, n, n * 2})
        if (rows > 0 && columns > 0 && (rows != m || columns != n))
          add({{"tile_m", rows}, {"tile_n", columns}});
  }

  void add(const Changes& changes) {
    Knobs next = from_;
    for (const auto& [name, value] : changes) next.values[name] = value;
    if (next != from_) out_.push_back(std::move(next));
  }

  std::vector<Knobs> take() { return std::move(out_); }

 private:
  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  const Knobs& from_;
  std::vector<Knobs> out_;
};

}  // namespace

std::vector<Knobs> loop_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                   const Schedule&, const Knobs& from) {
  Candidates n(kernel, target, from);
  n.add({{"plain", 1}});
  n.lanes();
  n.jams();
  const CostModel model(kernel, target, kMostKnobLanes);
  if (!model.reduces().empty()) {
    for (const int64_t unroll : {1, 2, 4, 8}) n.add({{"unroll", unroll}});
    n.add({{"rlanes", 0}});
  }
  for (const int64_t blocks : {1, 2, 4, 8, 16, 32}) n.add({{"blocks", blocks}});
  return n.take();
}

std::vector<Knobs> group_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                    const Schedule&, const Knobs& from) {
  Candidates n(kernel, target, from);
  for (const int64_t block : {32, 64, 128, 256, 512, 1024})
    if (block <= int64_t{target.max_block}) n.add({{"block", block}});
  for (const int64_t items : {1, 2, 4, 8}) n.add({{"items", items}});
  return n.take();
}

std::vector<Knobs> gemm_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                   const Schedule& schedule, const Knobs& from) {
  Candidates n(kernel, target, from);
  int64_t rows = 0, columns = 0, tile_k = 0;
  if (const MatrixPlan* p = schedule.matrix()) {
    rows = p->block_m();
    columns = p->block_n();
    tile_k = p->pipe ? 0 : p->tile_k();
    if (p->pipe)
      for (const int64_t stages : {2, 3, 4, 5, 6})
        if (stages != int64_t{p->pipe->stages}) n.add({{"stages", stages}});
  } else if (const StagedPlan* s = schedule.staged()) {
    rows = s->left.tile;
    columns = s->right.tile;
    tile_k = s->steps;
  } else if (const ImplicitPlan* i = schedule.implicit()) {
    rows = i->block_m();
    columns = i->block_n();
  } else if (const QuantisedPlan* q = schedule.quantised(); q && q->dequantised) {
    rows = q->dequantised->block_m();
    columns = q->dequantised->block_n();
  } else if (q) {
    rows = q->block_m();
    columns = q->block_n();
    for (const int64_t unroll : {1, 2, 4})
      if (unroll != int64_t{q->unroll}) n.add({{"unroll", unroll}});
    for (const int64_t sub_groups : {1, 2, 4})
      if (sub_groups != int64_t{q->warps_m} * q->warps_n) n.add({{"sub_groups", sub_groups}});
  }
  n.tiles(rows, columns);
  if (tile_k > 1)
    for (const int64_t k : {tile_k / 2, tile_k * 2}) n.add({{"tile_k", k}});
  n.add({{"plain", 1}});
  return n.take();
}

std::vector<Knobs> group_attention_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                              const Schedule& schedule, const Knobs& from) {
  Candidates n(kernel, target, from);
  for (const int64_t sub_groups : {2, 4, 8})
    if (sub_groups != int64_t{schedule.group_attention()->sub_groups})
      n.add({{"sub_groups", sub_groups}});
  n.add({{"plain", 1}});
  return n.take();
}

std::vector<Knobs> attention_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                        const Schedule& schedule, const Knobs& from) {
  Candidates n(kernel, target, from);
  n.tiles(schedule.attention()->row_block, schedule.attention()->key_block);
  n.add({{"plain", 1}});
  return n.take();
}

std::vector<Knobs> tuning_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                     const Knobs& from, uint32_t units) {
  const Schedule schedule = make_schedule(kernel, target, units, {.knobs = &from});
  return strategy_of(schedule).candidates(kernel, target, schedule, from);
}

}  // namespace bm::compiler
