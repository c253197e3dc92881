// VOPD: two operations that read everything before either writes.

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {

void run_dual(Wave& w, const Step& in) {
  // Both write whole registers, different ones; only Y's sources must not see X's result.
  uint32_t* d = w.reg(in.dst.code - kVgpr);
  uint32_t before[kMaxLanes], result[kMaxLanes];
  std::copy_n(d, w.lanes, before);
  in.x->run(w, *in.x);
  std::copy_n(d, w.lanes, result);
  std::copy_n(before, w.lanes, d);
  in.y->run(w, *in.y);
  std::copy_n(result, w.lanes, d);
}

}  // namespace bm::sim::amd
