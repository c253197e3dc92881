#pragma once
// What the driver's error numbers mean and what to do about them.

#include <string>

#include "drivers/cuda/api.h"
#include "runtime/base/result.h"

namespace bm::cuda {

/// "CUDA_ERROR_ILLEGAL_ADDRESS (700)": the driver's name, else ours, else the number.
std::string error_name(const Api& api, CuResult error);
/// kDeviceFault and kDeviceLost for errors after which the context is unusable, kOutOfMemory,
/// kCompile for images that do not load, kUnsupported, kInvalidArgument; kInternal for the rest.
Code code_of(CuResult error);
/// Whether every later call of the context fails the same way.
bool is_sticky(CuResult error);
/// "CUDA_ERROR_… (n): what happened; what to do". Parts unknown are left out.
std::string explain(const Api& api, CuResult error);

/// "what: CUDA_ERROR_…", or success.
template <class What>
Status check(const Api& api, CuResult error, const What& what) {
  if (error == kSuccess) [[likely]]
    return {};
  return fail(code_of(error), "{}: {}", what, explain(api, error));
}

}  // namespace bm::cuda
