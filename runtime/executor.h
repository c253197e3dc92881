#pragma once
// Pieces of launching a call that the executor and the graph builder share.

#include <cstdint>
#include <span>

#include "runtime/base/result.h"
#include "runtime/graph.h"
#include "runtime/hal/program.h"
#include "runtime/profiler.h"

namespace bm::runtime {

/// Checks that a kernel call's buffers and variables are those its code object takes, and that
/// every buffer lives on the call's device. `num_vars`: how many variables exist to be indexed.
/// Errors: kInvalidArgument naming the call.
Status check_kernel_call(const Call& call, const KernelCall& kernel, size_t num_vars);
/// Checks destination and source of a copy. Errors: kInvalidArgument naming the call.
Status check_copy_call(const Call& call);

/// Value of one grid dimension. Errors: kInvalidArgument when it does not fit 32 bits.
Result<uint32_t> grid_dim(const hal::DimExpr& dim, std::span<const int64_t> vars);

/// Relates the device's Timestamp ticks to the host clock: median of repeated round trips.
/// Synchronises the device.
Result<ClockMap> calibrate_clock(Device& device);

}  // namespace bm::runtime
