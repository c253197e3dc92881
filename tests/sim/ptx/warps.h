#pragma once
// Instructions that look across the lanes of a warp.

#include <span>

#include "tests/sim/ptx/exec.h"

namespace bm::sim::ptx {

/// f(first lane of the warp, its active lanes) for every warp with any.
template <class F>
void each_warp(const Exec& x, F&& f) {
  for (uint32_t k = 0; k < x.count;) {
    const uint32_t first = x.active[k] / kWarp * kWarp;
    uint32_t end = k;
    while (end < x.count && x.active[end] < first + kWarp) ++end;
    f(first, std::span<const uint16_t>(x.active + k, end - k));
    k = end;
  }
}

/// Matrix instructions need all 32 lanes; false after raising the fault.
inline bool need_whole_warps(Exec& x, const Inst& in) {
  bool is_whole = true;
  each_warp(x, [&](uint32_t, std::span<const uint16_t> lanes) {
    if (lanes.size() == kWarp || !is_whole) return;
    is_whole = false;
    x.raise(in, lanes.front(), Fault::Kind::kIllegal, lanes.size(), Access::kRead,
            "the instruction needs all 32 threads of the warp");
  });
  return is_whole;
}

}  // namespace bm::sim::ptx
