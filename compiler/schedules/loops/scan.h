#pragma once
// Kernels with scans: one pass, the results so far in registers.

#include "compiler/analysis/cost.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

/// The output loop that the scans of a kernel run along, if it has any. All run along one
/// (ir::verify).
const ir::Node* scan_loop(const ir::KernelIr& kernel);

/// Makes the loop of the scan the innermost. `has_jams`: chooses how many vectors one iteration
/// covers.
void order_scan(const LaneChoice& lanes, bool has_jams, Schedule* schedule);

}  // namespace bm::compiler
