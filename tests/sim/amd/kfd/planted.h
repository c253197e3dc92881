#pragma once
// Faults by name that are planted while an unmodified program runs; the names are those of the
// tables in tests/unit/amd_faults.

#include <string_view>

#include "tests/sim/amd/kfd/options.h"

namespace bm::sim::amd {

/// Sets what has to be so from the beginning in `options`, and what comes at the n-th event in
/// `knobs`. False: no such name, or one that no program we know can meet here.
bool plant(std::string_view name, uint64_t nth, Options& options, Knobs& knobs);

}  // namespace bm::sim::amd
