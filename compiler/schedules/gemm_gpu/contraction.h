#pragma once
// Contractions: reductions over products of two loads, how matrix instructions can read these, and
// the grid of tiles. For plans of gemm_gpu, split_k and attention.

#include <optional>

#include "compiler/analysis/affine.h"
#include "compiler/analysis/cost.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

/// Accumulators of one work-item of a GEMM by MMA; more would not fit into its registers with the
/// fragments.
inline constexpr uint32_t kMaxAccumulators = 128;

/// What plans of GEMM look at.
class GemmPlanner {
 public:
  GemmPlanner(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
              const ScheduleLimits& limits)
      : kernel_(kernel),
        target_(target),
        units_(units > 0 ? units : 1),
        limits_(limits),
        model_(kernel, target, 1) {}

 protected:
  /// Whether the extent is known, not 0 and a multiple of `step`.
  static bool divides(const ir::Node* range, int64_t step);
  /// The kernel's one reduction, if it is a sum of products as wide as itself and of 32 bits at
  /// least: narrower ones would be rounded on their way through shared memory. Else nullptr.
  const ir::Node* wide_contraction() const;

  const ir::KernelIr& kernel_;
  const TargetInfo& target_;
  double units_;  ///< compute units
  ScheduleLimits limits_;
  CostModel model_;
};

struct MatrixProduct {
  const ir::Node* reduce = nullptr;
  const ir::Node* loads[2] = {};  ///< without a gate, of one type
  bool is_for(const MatrixInfo& info) const {
    return info.in == loads[0]->dtype && info.sum == reduce->dtype;
  }
};

/// The kernel's one reduction, if it is a sum over products of loads, perhaps widened.
std::optional<MatrixProduct> find_matrix_product(const CostModel& model);

/// A load without a gate, perhaps widened to the type of the sum; else nullptr.
const ir::Node* matrix_factor(const ir::Node* n, DType sum);

/// How `load` can be read: `along` and `k` must appear as such in its index, and 16 bytes from
/// every address that is read must start at a multiple of 16 if the param does.
std::optional<MatrixOperand> matrix_operand(const CostModel& model, const ir::Node* load,
                                            const ir::Node* along, const ir::Node* k,
                                            const ir::Node* other);

/// `tiles` tiles of the results along `m` and `n`, one of a group, and all other loops in the grid.
/// Nothing if the grid would be too large or has two extents that are known at launch only.
std::optional<Schedule> tile_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                      const ir::Node* m, const ir::Node* n, int64_t tiles);

/// The schedule around a plan: groups of adjacent tiles side by side; nothing as above.
std::optional<Schedule> matrix_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                        MatrixPlan plan);

}  // namespace bm::compiler
