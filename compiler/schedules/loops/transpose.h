#pragma once
// The order of the tiles of a transposition.

#include "compiler/analysis/cost.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

/// Where loads are transposed in registers and more is read than a core's cache holds: puts loops
/// over tiles of a few cache lines each way around the two loops, so that lines next to each other
/// are read, and written, soon after each other.
void tile_transposition(const ir::KernelIr& kernel, const TargetInfo& target,
                        const LaneChoice& lanes, Schedule* schedule);

}  // namespace bm::compiler
