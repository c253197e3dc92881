// GEMM on tensor cores without shared memory: tiles of warps.
// Schedule for kernels whose one reduction is a product of matrices: tiles of sub-groups, fragments
// loaded straight from memory, 16 bytes at a time. Depth may be summed in any order, so work-items
// take words that are adjacent in memory where the instruction wants words from two halves.
#include <algorithm>
#include <cmath>
#include <optional>

#include "compiler/schedules/gemm_gpu/contraction.h"
#include "compiler/schedules/gemm_gpu/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;

/// Words that are loaded per iteration.
constexpr uint32_t kMostFragments = 64;
/// Values behind the product that a work-item computes; more make too much code.
constexpr double kMostEpilogue = 1200;
// Rough cycles of one multiprocessor. Source: measurements of mma.sync in arXiv 2402.13499.
constexpr double kMmaCycles = 2;        ///< one instruction of 16·8 results, 32 bytes of K
constexpr double kLoadCycles = 4;       ///< 16 bytes for each of 32 work-items
constexpr double kLatencyCycles = 600;  ///< of an iteration with nothing beside it
constexpr double kFarCycles = 16;       ///< the same beyond the multiprocessor's own cache
constexpr double kOtherRegisters = 48;
constexpr double kRegisters = 65536.0;
/// Of a tile that is contiguous along its rows or columns; fewer would be loaded in crumbs.
constexpr uint32_t kLeastRows = 64;

class MatrixScheduler : GemmPlanner {
 public:
  using GemmPlanner::GemmPlanner;

  std::optional<Schedule> run() {
    if (!find_product()) return std::nullopt;
    for (size_t i = 1; i < plan_.reduce->src.size(); ++i)
      for (const Node* x : kernel_.ranges)
        for (const Node* y : kernel_.ranges)
          if (x != y) consider(plan_.reduce->src[i], x, y);
    return best_ ? matrix_schedule(kernel_, target_, *best_) : std::nullopt;
  }

 private:
  bool find_product() {
    const auto product = find_matrix_product(model_);
    if (!product) return false;
    loads_[0] = product->loads[0];
    loads_[1] = product->loads[1];
    for (const MatrixInfo& info : target_.matrix)
      if (info.sub_groups == 1 && product->is_for(info)) {
        plan_.reduce = product->reduce;
        plan_.info = info;
        plan_.sub_group = target_.sub_group;
        return true;
      }
    return false;
  }

  void consider(const Node* k, const Node* rows, const Node* columns) {
    if (!divides(k, plan_.k_step())) return;
    for (int side = 0; side < 2; ++side) {
      const auto left = matrix_operand(model_, loads_[side], rows, k, columns);
      const auto right = matrix_operand(model_, loads_[1 - side], columns, k, rows);
      if (!left || !right) continue;
      MatrixPlan plan = plan_;
      plan.k = k;
      plan.left = *left;
      plan.right = *right;
      plan.left.slot = plan.right.slot = plan.info.slot;
      for (const uint32_t down : {8u, 4u, 2u, 1u})
        for (const uint32_t across : {8u, 4u, 2u, 1u})
          for (const auto& [warps_m, warps_n] :
               {std::pair{2u, 2u}, {1u, 4u}, {4u, 1u}, {1u, 2u}, {2u, 1u}, {1u, 1u}}) {
            plan.left.slots = down;
            plan.right.slots = across;
            plan.warps_m = warps_m;
            plan.warps_n = warps_n;
            for (const uint32_t k_steps : {1u, 2u, 4u}) {
              plan.k_steps = k_steps;
              if (4 * k_steps % plan.info.words() == 0 && divides(k, plan.tile_k()))
                consider_tile(plan);
            }
          }
    }
  }

  static uint32_t fragment_words(const MatrixPlan& p) {
    return 4 * (p.left.slots + p.right.slots) * p.k_steps;
  }

  void consider_tile(const MatrixPlan& p) {
    for (const MatrixOperand* o : {&p.left, &p.right})
      if (!o->is_k_major && o->slots % std::min(o->per_load(), kLeastRows / o->slot) != 0) return;
    if (p.left.slots % p.info.a_slots != 0) return;
    const uint32_t accumulators =
        p.info.accumulators * p.left.slots / p.info.a_slots * p.right.slots;
    if (!divides(p.left.along, p.block_m()) || !divides(p.right.along, p.block_n()) ||
        accumulators > std::min(kMaxAccumulators, limits_.max_accumulators) ||
        fragment_words(p) > kMostFragments ||
        p.sub_group * p.warps_m * p.warps_n > target_.max_block ||
        (model_.output_nodes() + 1) * accumulators > kMostEpilogue)
      return;
    const double cost =
        time(p, accumulators) *
        asked_factor(limits_.knobs, {.m = p.block_m(), .n = p.block_n(), .k = p.tile_k()});
    if (best_ && cost >= least_ * 0.99) return;
    best_ = p;
    least_ = cost;
  }

  /// Of one step of K in all groups.
  double time(const MatrixPlan& p, uint32_t accumulators) {
    double groups = 1;
    for (const Node* r : kernel_.ranges) groups *= CostModel::trip_count(r);
    groups /= static_cast<double>(p.block_m() * p.block_n());
    const double sub_groups = p.warps_m * p.warps_n;
    const double products =
        p.left.slots / static_cast<double>(p.info.a_slots) * p.right.slots * 4 / p.info.words();
    const double loads = p.left.slots + p.right.slots;
    // Adjacent sub-groups of a group read the same rows or columns.
    // Sub-groups of one group read the same rows or columns at about the same time.
    const double far = p.left.slots / p.warps_n + p.right.slots / p.warps_m;
    const double busy = std::max({products * kMmaCycles, loads * kLoadCycles, far * kFarCycles});
    const double room =
        std::floor(kRegisters / p.sub_group / (accumulators + fragment_words(p) + kOtherRegisters) /
                   sub_groups);
    const double waves = std::ceil(groups / units_) * sub_groups;
    const double resident = std::min(std::max(1.0, room) * sub_groups, waves);
    double t = std::max(
        waves * busy, std::ceil(waves / resident) * (kLatencyCycles / p.k_steps + resident * busy));
    if (model_.strides(p.right.along, 0).stride(kernel_.stores[0].index) != 1) t *= 1.2;
    return t;
  }

  MatrixPlan plan_;
  const Node* loads_[2] = {};
  std::optional<MatrixPlan> best_;
  double least_ = 0;
};

}  // namespace

std::optional<Schedule> make_matrix_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                             uint32_t units, ScheduleLimits limits) {
  if (target.matrix.empty() || !limits.has_tiles) return std::nullopt;
  return MatrixScheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
