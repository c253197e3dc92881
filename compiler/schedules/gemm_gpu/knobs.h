#pragma once
// Tiles of a GEMM on GPUs that knobs ask for: tile_m × tile_n results of a group, tile_k of K a
// iteration, stages of a pipeline.

#include <cstdint>

#include "compiler/tune/knobs.h"

namespace bm::compiler {

struct GemmTile {
  int64_t m = 0, n = 0, k = 0;
  int64_t stages = 0;  ///< 0: there is no pipeline
};

/// Factor of the cost of a tile that a knob does not ask for: taken only where none of those that
/// are asked for fits.
inline constexpr double kNotAsked = 1e9;

/// 1 or kNotAsked. `knobs` may be null.
double asked_factor(const Knobs* knobs, const GemmTile& tile);
/// Whether a knob says something about tiles.
bool asks_for_tile(const Knobs* knobs);

}  // namespace bm::compiler
