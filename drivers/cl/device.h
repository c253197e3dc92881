#pragma once
// OpenCL devices of every platform, through the ICD loader (libOpenCL.so.1, loaded when asked for).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cl {

struct Api;

/// Devices of all platforms. Errors: kNotFound naming the package (no loader, no platform).
Result<uint32_t> count_devices(std::string_view interface);

/// Drivers by the files that name them; loads the ICD loader, but none of them. "" where files do
/// not tell (BM_CL_LIBRARY). Errors: as above.
Result<std::string> installed();

/// `index`: platforms in the loader's order, devices within. `arch`: an OpenCL C version the device
/// has ("opencl_c_1.2"), empty: its newest. BM_CL_LIBRARY, BM_CL_SVM and BM_WAIT_TIMEOUT_MS are
/// read now. Buffers may outlive the device; recordings and submissions may not.
Result<std::unique_ptr<hal::Device>> open_device(std::string_view interface, uint32_t index,
                                                 std::string_view arch);
/// The same on given functions.
Result<std::unique_ptr<hal::Device>> open_device_on(std::shared_ptr<const Api> api, uint32_t index,
                                                    std::string_view arch);

/// For programs that use OpenCL themselves: cl_platform_id, cl_device_id, cl_context. A cl_mem made
/// in this context can be wrapped (hal::ExternalKind::kClMem). Valid while the device is open;
/// `device` was opened here.
struct NativeHandles {
  void* platform = nullptr;
  void* device = nullptr;
  void* context = nullptr;
};
NativeHandles native_handles(const hal::Device& device);

/// What OpenCL made of a kernel: an image that load() takes in place of the text on the same
/// device, driver and platform version, and refuses (kInvalidArgument) elsewhere. `program` was
/// loaded by an OpenCL device. Errors: kUnsupported when the driver gives no binary.
Result<std::vector<std::byte>> program_binary(const hal::Program& program);

}  // namespace bm::cl
