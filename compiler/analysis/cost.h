#pragma once
// What one evaluation of an expression costs, roughly, with a given loop in lanes; and with it the
// choice of the loop for every reduction. Units: one scalar operation.

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"
#include "compiler/analysis/affine.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

/// A loop in lanes; range nullptr: none.
struct LaneChoice {
  const ir::Node* range = nullptr;
  uint32_t lanes = 1;
  bool is_masked = false;  ///< iterations left over run in lanes as well
};

using ReducePlans = std::unordered_map<const ir::Node*, ReducePlan>;

class CostModel {
 public:
  CostModel(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t max_lanes);

  /// Cost of one output iteration with `choice` in lanes; plans of reductions are added to `plans`.
  double output_cost(const LaneChoice& choice, ReducePlans* plans);
  /// Widest lanes for a loop of `extent`, and its cost weighted with the iterations left over.
  LaneChoice best_lanes(const ir::Node* range, double* cost, ReducePlans* plans);
  uint32_t full_lanes() const;  ///< of the kernel's widest type
  /// Trip count of a loop; symbolic ones at half of the largest value.
  static double trip_count(const ir::Node* range);
  /// Iterations of all output loops.
  static double iterations(const ir::KernelIr& kernel);

  /// Operations of one scalar evaluation of a node.
  static double weight(const ir::Node* n);
  /// Bytes of the widest value computed (not of indices).
  int64_t widest() const { return widest_; }
  const std::vector<const ir::Node*>& reduces() const { return reduces_; }
  /// Loads and arithmetic nodes of a reduction's body, nested reductions left out.
  std::vector<const ir::Node*> body(const ir::Node* reduce) const;
  bool depends(const ir::Node* n, const ir::Node* range) const;
  /// Values of the stores, reductions left out: what an output iteration computes itself.
  std::vector<const ir::Node*> output_values() const;
  Strides& strides(const ir::Node* range, int64_t chunk);
  /// Output loop along which a load outside reductions is contiguous although it is strided along
  /// `choice`: merging as many iterations of it as there are lanes allows a transposition in
  /// registers.
  const ir::Node* transposing_range(const ir::Node* load, const LaneChoice& choice);
  /// Values computed per output iteration outside reductions.
  double output_nodes() const;
  /// Loads outside reductions.
  std::vector<const ir::Node*> output_loads() const;

 private:
  /// `around`: nullptr for the output loops, else the reduction whose body it is.
  double scope_cost(const std::vector<const ir::Node*>& roots, const LaneChoice& choice,
                    ReducePlans* plans, const ir::Node* around);
  double node_cost(const ir::Node* n, const LaneChoice& choice);
  double load_cost(const ir::Node* n, const LaneChoice& choice);
  double reduce_cost(const ir::Node* n, const LaneChoice& choice, ReducePlans* plans,
                     const ir::Node* around);
  double share_of(const ir::Node* reduce, const ir::Node* around) const;
  bool can_mask(const ir::Node* range, uint32_t lanes) const;
  void collect(const std::vector<const ir::Node*>& roots,
               std::vector<const ir::Node*>* nodes) const;

  const ir::KernelIr& kernel_;
  TargetInfo target_;
  std::vector<const ir::Node*> reduces_;
  std::unordered_map<const ir::Node*, std::vector<const ir::Node*>> free_ranges_;
  std::map<std::pair<const ir::Node*, int64_t>, Strides> strides_;
  uint32_t max_lanes_;
  int64_t widest_ = 1;
};

}  // namespace bm::compiler
