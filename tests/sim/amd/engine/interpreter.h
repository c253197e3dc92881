#pragma once
// The instruction interpreter as what executes launches of the modelled driver.

#include <functional>
#include <optional>

#include "tests/sim/amd/kfd/options.h"

namespace bm::sim::amd {

/// Options::execute for a chip of RDNA3 ("gfx11…") or RDNA4 ("gfx12…"). Faults become what the
/// hardware would report. `max_instructions`: of a launch, then it counts as hung and the GPU is
/// reset; 0: no limit.
std::function<std::optional<Death>(DeviceMemory&, const Launch&)> interpreter(
    const std::string& chip, uint64_t max_instructions = 0);

}  // namespace bm::sim::amd
