#pragma once
// Knobs of tiles in registers: those of panels and of dot products of bytes.

#include <cstdint>
#include <vector>

#include "compiler/tune/knobs.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"

namespace bm::compiler {

/// A tile: `rows` broadcast elements by `vectors` vectors of accumulators.
struct TileShape {
  int64_t rows = 1, vectors = 1;
};

/// `chosen`, or what knobs ask for where registers hold it: its accumulators, a vector for every
/// column and one more.
TileShape tile_of(const Knobs* knobs, const TargetInfo& target, TileShape chosen);

/// K of a packed block as knobs ask for it.
int64_t kc_of(const Knobs* knobs, int64_t chosen);

/// Rows and columns of a block as knobs ask for them, as long as what is copied stays within a few
/// private caches.
void set_blocks(const Knobs* knobs, const TargetInfo& target, PackedGemmPlan* plan);

}  // namespace bm::compiler
