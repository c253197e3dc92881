#pragma once
// One kernel of four instructions on a card that was just booted: the shortest proof that page
// tables, doorbell, command processor and compute units work together.

#include <cstdint>

#include "drivers/amd/driver_interface.h"
#include "runtime/base/result.h"

namespace bm::cli {

struct KernelRun {
  uint32_t value = 0;    ///< what the kernel has stored
  uint64_t time_us = 0;  ///< from the doorbell until the host saw the end
};

/// A wave of 32 lanes stores a word, a fence follows; memory and queue are given back.
/// Errors: those of allocation and queue; kTimeout with what came and what did not; kDeviceLost and
/// the GPU's own fault; kUnsupported for a chip without code here.
Result<KernelRun> run_small_kernel(amd::DriverInterface& gpu);

}  // namespace bm::cli
