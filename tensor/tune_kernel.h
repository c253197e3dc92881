#pragma once
// BM_TUNE: the search of compiler/tune with a device as judge.

#include "compiler/ir/kernel.h"
#include "runtime/device.h"

namespace bm {

/// Searches for a faster schedule of `kernel` on `device` unless one is known, and remembers the
/// outcome, also that there is none. Candidates must give what the untuned kernel gives, for whole
/// numbers as input and several sizes of symbolic loops. A kernel that cannot be tried (memory too
/// small for its buffers, a device that runs nothing) stays as it is.
/// Errors: those of compiling and running the untuned kernel.
Status tune_kernel(runtime::Device& device, const ir::KernelIr& kernel);

}  // namespace bm
