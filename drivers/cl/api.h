#pragma once
// The OpenCL functions this driver calls, loaded at run time, and what their errors mean.
// Source of all names and numbers: Khronos OpenCL-Headers, CL/cl.h; the OpenCL 3.0 specification.

#define CL_TARGET_OPENCL_VERSION 300
// One call makes queues on every version; its successor does not exist on OpenCL 1.2.
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/result.h"

namespace bm::cl {

/// Function pointers under the vendor's names. Tests copy a table and replace entries.
struct Api {
// Members and the symbols they are loaded from must agree: one list makes both (api.cpp).
#define BM_CL_REQUIRED(name) decltype(&::name) name = nullptr;
#define BM_CL_SVM(name) decltype(&::name) name = nullptr;
#include "drivers/cl/functions.inc"
#undef BM_CL_REQUIRED
#undef BM_CL_SVM
};
using ApiPtr = std::shared_ptr<const Api>;

/// The functions of the ICD loader `library` (empty: libOpenCL.so.1), resolved once per process and
/// never unloaded. Errors: kNotFound naming the package; kUnsupported when a function is missing.
Result<ApiPtr> load_api(std::string_view library = {});

/// "CL_OUT_OF_RESOURCES", or the number.
std::string error_name(cl_int error);
/// kDeviceLost for CL_OUT_OF_RESOURCES, CL_DEVICE_NOT_AVAILABLE and failed execution, kOutOfMemory
/// for failed allocations, kCompile for builds, kInvalidArgument for what the call was given.
Code code_of(cl_int error);

/// kOutOfMemory, kDeviceLost, …: "what: CL_…", or success.
template <class What>
Status check(cl_int error, const What& what) {
  if (error == CL_SUCCESS) [[likely]]
    return {};
  return fail(code_of(error), "{}: {}", what, error_name(error));
}

/// Owns one reference to an OpenCL object.
template <class T, auto Release>
class Owned {
 public:
  Owned() = default;
  Owned(const Api& api, T handle) : api_(&api), handle_(handle) {}
  Owned(Owned&& other) noexcept { swap(other); }
  Owned& operator=(Owned&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) (api_->*Release)(handle_);
  }
  T get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }
  /// Where a call stores a new handle; empty before.
  T* receive(const Api& api) {
    api_ = &api;
    return &handle_;
  }
  /// Gives the reference up.
  T leak() { return std::exchange(handle_, nullptr); }

 private:
  void swap(Owned& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(handle_, other.handle_);
  }
  const Api* api_ = nullptr;
  T handle_ = nullptr;
};
using OwnedMem = Owned<cl_mem, &Api::clReleaseMemObject>;
using OwnedQueue = Owned<cl_command_queue, &Api::clReleaseCommandQueue>;
using OwnedProgram = Owned<cl_program, &Api::clReleaseProgram>;
using OwnedKernel = Owned<cl_kernel, &Api::clReleaseKernel>;
using OwnedEvent = Owned<cl_event, &Api::clReleaseEvent>;

}  // namespace bm::cl
