#pragma once
// The suite's kernels in CUDA C, compiled for a device by the installed nvrtc.

#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cts {

/// Kernel of kernels.h for an NVIDIA device: a cubin, or PTX text with BM_NV_CODE=ptx. Errors:
/// kNotFound (no nvrtc, no such kernel), kCompile.
Result<hal::CodeObject> cuda_kernel(std::string_view name, const hal::Device& device);

}  // namespace bm::cts
