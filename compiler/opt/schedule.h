#pragma once
// Schedule: which loops become the grid, which one runs in vector lanes, what is unrolled.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "compiler/codegen/target.h"
#include "compiler/ir/kernel.h"
#include "runtime/hal/program.h"

namespace bm::compiler {

/// One output loop. Each trip covers `lanes`·`jam` iterations: `jam` neighbouring vectors whose
/// bodies are merged, so that what they share is loaded once.
struct AxisPlan {
  const ir::Node* range = nullptr;
  uint32_t lanes = 1;
  uint32_t jam = 1;
  int64_t step() const { return int64_t{lanes} * jam; }
};

/// How one reduction runs.
struct ReducePlan {
  const ir::Node* vector_range = nullptr;  ///< runs in lanes; nullptr: no lanes of its own
  uint32_t lanes = 1;
  uint32_t unroll = 1;  ///< independent accumulators
};

struct Schedule {
  std::vector<AxisPlan> loops;  ///< outer to inner
  uint32_t grid_loops = 0;      ///< leading loops merged into the grid
  int64_t chunk = 1;            ///< trips of the merged loop per block
  hal::DimExpr grid;            ///< number of blocks
  uint64_t work_per_block = 0;
  std::unordered_map<const ir::Node*, ReducePlan> reduces;
};

/// Bounds for kernels whose code would grow out of hand.
struct ScheduleLimits {
  uint32_t max_lanes = 64;
  bool has_tiles = true;
};

/// Chooses a schedule from shapes and the target. `units`: processors that can share the work.
Schedule make_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                       ScheduleLimits limits = {});

}  // namespace bm::compiler
