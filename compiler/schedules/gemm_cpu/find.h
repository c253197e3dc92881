#pragma once
// Finding sums of products, and rewriting a kernel around them; steps of make_panel_schedule.

#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"

namespace bm::compiler {

/// What the loops of a kernel mean to its products. Nodes are the kernel's.
struct PanelSides {
  struct Product {
    const ir::Node* reduce = nullptr;
    const ir::Node* factors[2] = {};  ///< varying along the rows, along the columns
  };
  std::vector<Product> products;
  /// Loops that are one loop in the rewritten kernel, outer to inner; only the first of each may
  /// have a symbolic extent.
  std::vector<const ir::Node*> rows, columns;
  std::vector<const ir::Node*> batch;  ///< the other output loops
  bool is_skinny = false;              ///< too few rows for tiles
  bool is_transposed = false;          ///< adjacent results are rows, not columns
  uint32_t lanes = 1;
};

/// Nothing where there are no products, or too small ones. `is_transposed`: vectors run across the
/// adjacent results; nothing where the kernel is not made for that.
std::optional<PanelSides> find_panel_sides(const ir::KernelIr& kernel, const TargetInfo& target,
                                           ScheduleLimits limits, bool is_transposed = false);

/// The kernel with one loop each for rows, columns and K. Sizes of tiles and blocks stay open.
std::optional<PanelPlan> rebuild_for_panels(const ir::KernelIr& kernel, const PanelSides& sides,
                                            const TargetInfo& target);

/// Dot products that sums, of `lanes` lanes, of left · right can be done by: always those of 8-bit
/// integers, others where there is an instruction and it pays.
std::optional<PanelDot> dot_of(const ir::Node* left, const ir::Node* right,
                               const TargetInfo& target, uint32_t lanes);

/// Whether the rows of a tile can be read where they are: one after the other in memory, of what is
/// multiplied, and not in so few sets of a cache that they drive each other out.
bool can_read_left(const PanelPlan& plan, const PanelProduct& p, const TargetInfo& target);
/// Whether the right operand is in the order of panels, as pack_constants leaves it.
bool lies_in_panels(const PanelPlan& plan, const PanelProduct& p);

/// Whether the right operand is read fast enough in its own order: whole tiles of it from the
/// private cache, by too few rows for a copy to cost nothing.
bool is_near(const PanelPlan& plan, const PanelProduct& p, const TargetInfo& target);

inline bool contains(const std::vector<const ir::Node*>& list, const ir::Node* n) {
  return std::find(list.begin(), list.end(), n) != list.end();
}

}  // namespace bm::compiler
