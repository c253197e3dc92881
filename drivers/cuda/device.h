#pragma once
// NVIDIA GPUs through the CUDA driver API (libcuda.so.1, loaded when asked for).

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cuda {

struct Api;

/// GPUs the driver shows (CUDA_VISIBLE_DEVICES is its own matter). Opens nothing. Errors:
/// kNotFound (no driver, its stub, no GPU), kUnsupported (library and kernel module differ).
Result<uint32_t> count_devices(std::string_view interface);

/// `arch`: "sm_80" for older code this GPU runs; empty: its own. BM_CUDA_LIBRARY and
/// BM_WAIT_TIMEOUT_MS are read now. The GPU's primary context is used, which CUDA's runtime and
/// frameworks on it share. Buffers may outlive the device; recordings and submissions may not.
Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch);
/// The same on given functions.
Result<std::unique_ptr<hal::Device>> open_device_on(std::shared_ptr<const Api> api, uint32_t index,
                                                    std::string_view arch);

/// For programs that use the driver API themselves: CUcontext and the CUstream of the compute
/// queue. Valid while the device is open; `device` was opened here.
struct NativeHandles {
  int device = 0;
  void* context = nullptr;
  void* stream = nullptr;
};
NativeHandles native_handles(const hal::Device& device);

}  // namespace bm::cuda
