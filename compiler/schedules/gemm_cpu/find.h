#pragma once
// Recognising GEMM (contractions), and rewriting a kernel around them; steps of
// make_panel_schedule.

#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"

namespace bm::compiler {

/// What the loops of a kernel mean to its products. Nodes are the kernel's.
struct GemmMatch {
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
std::optional<GemmMatch> match_gemm(const ir::KernelIr& kernel, const TargetInfo& target,
                                    ScheduleLimits limits, bool is_transposed = false);

/// The kernel with one loop each for rows, columns and K. Sizes of tiles and blocks stay open.
std::optional<PackedGemmPlan> canonicalize_gemm(const ir::KernelIr& kernel, const GemmMatch& match,
                                                const TargetInfo& target);

/// Dot products that accumulators, of `lanes` lanes, of left · right can be done by: always those
/// of 8-bit integers, others where there is an instruction and it pays.
std::optional<PanelDot> dot_of(const ir::Node* left, const ir::Node* right,
                               const TargetInfo& target, uint32_t lanes);

/// Whether A can be read in place, the rows of a tile where they are: one after the other in
/// memory, of what is multiplied, and not in so few sets of a cache that they conflict (set
/// conflicts).
bool can_read_left(const PackedGemmPlan& plan, const PanelProduct& p, const TargetInfo& target);
/// Whether B is in the order of panels, as pack_constants leaves it.
bool is_prepacked(const PackedGemmPlan& plan, const PanelProduct& p);

/// Whether packing B can be skipped: whole N tiles fit in L2, and M is too small to amortise the
/// copy.
bool fits_in_l2(const PackedGemmPlan& plan, const PanelProduct& p, const TargetInfo& target);
/// Whether all rows are one tile, for which B, in panels of any width, is streamed from memory:
/// a copy would be read once.
bool is_read_once(const PackedGemmPlan& plan, const PanelProduct& p);

inline bool contains(const std::vector<const ir::Node*>& list, const ir::Node* n) {
  return std::find(list.begin(), list.end(), n) != list.end();
}

}  // namespace bm::compiler
