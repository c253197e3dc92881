#pragma once
// Kernels that compute values per row and use them for every element of the row.

#include <vector>

#include "compiler/analysis/cost.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

/// How the output loops of a kernel relate to its reductions.
struct RowFacts {
  /// Some reduction has one value for many output iterations: it must run outside their loops.
  bool is_row_kernel = false;
  uint32_t outer = 0;  ///< leading loops that every reduction depends on: those may be shared out
};

/// Puts loops that more reductions depend on first, keeping the order otherwise.
RowFacts order_rows(const CostModel& model, std::vector<AxisPlan>* loops);

/// Values that are expensive enough to be kept for later passes over a row. `most_bytes`: of
/// scratch.
std::vector<RowCachePlan> plan_row_caches(const ir::KernelIr& kernel, const CostModel& model,
                                          uint64_t most_bytes);

}  // namespace bm::compiler
