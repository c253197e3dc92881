#pragma once
// The instruction interpreter as what executes launches of the modelled driver.

#include <cstdint>
#include <string>

#include "tests/sim/amd/engine/state.h"

namespace bm::sim::amd {

/// Execute for a chip of RDNA3 ("gfx11…") or RDNA4 ("gfx12…"). Faults become what the
/// hardware would report. `max_instructions`: of a launch, then it counts as hung and the GPU is
/// reset; 0: no limit.
Execute interpreter(const std::string& chip, uint64_t max_instructions = 0);

}  // namespace bm::sim::amd
