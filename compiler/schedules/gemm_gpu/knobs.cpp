// Tiles, stages and warps of GEMM on GPUs as choices of the tuner.
#include "compiler/schedules/gemm_gpu/knobs.h"

#include <array>
#include <utility>

namespace bm::compiler {
namespace {

std::array<std::pair<std::string_view, int64_t>, 4> named(const GemmTile& tile) {
  return {{{"tile_m", tile.m}, {"tile_n", tile.n}, {"tile_k", tile.k}, {"stages", tile.stages}}};
}

}  // namespace

double asked_factor(const Knobs* knobs, const GemmTile& tile) {
  if (!knobs) return 1;
  for (const auto& [name, value] : named(tile)) {
    const auto asked = knobs->get(name);
    if (asked && value != 0 && *asked != value) return kNotAsked;
  }
  return 1;
}

bool asks_for_tile(const Knobs* knobs) {
  if (!knobs) return false;
  for (const auto& [name, value] : named({}))
    if (knobs->get(name)) return true;
  return false;
}

}  // namespace bm::compiler
