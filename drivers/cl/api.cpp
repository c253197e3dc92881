#include "drivers/cl/api.h"

#include <dlfcn.h>

#include <string>

#include "drivers/vendor/library.h"
#include "runtime/base/trust.h"

namespace bm::cl {
namespace {

constexpr const char* kDefaultLibrary = "libOpenCL.so.1";
// Some loaders lack this name but return it.
constexpr cl_int kPlatformNotFound = -1001;

Result<ApiPtr> open_library(const std::string& library) {
  if (Status trusted = check_library(library); !trusted)
    return tl::unexpected<Error>(std::move(trusted.error()).within("BM_CL_LIBRARY"));
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return fail(Code::kNotFound,
                "no OpenCL loader ({}): install ocl-icd-libopencl1 and a driver for it, e.g. "
                "pocl-opencl-icd or the vendor's ICD",
                why == nullptr ? library : why);
  }
  auto api = std::make_shared<Api>();
  const char* missing = nullptr;
  const char* missing_svm = nullptr;
  const auto load = [handle]<class F>(F& function, const char* name, const char*& problem) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    if (function == nullptr && problem == nullptr) problem = name;
  };
#define BM_CL_REQUIRED(name) load(api->name, #name, missing);
#define BM_CL_SVM(name) load(api->name, #name, missing_svm);
#include "drivers/cl/functions.inc"
#undef BM_CL_REQUIRED
#undef BM_CL_SVM
  if (missing != nullptr)
    return fail(Code::kUnsupported, "{} lacks {}: a loader for OpenCL 1.2 or later is needed",
                library, missing);
  if (missing_svm != nullptr) api->clSVMAlloc = nullptr;
  return ApiPtr(std::move(api));
}

}  // namespace

Result<ApiPtr> load_api(std::string_view library) {
  return vendor::load_once<ApiPtr>(std::string(library.empty() ? kDefaultLibrary : library),
                                   open_library);
}

std::string error_name(cl_int error) {
  struct Row {
    cl_int error;
    const char* name;
  };
#define BM_CL_ROW(name) {name, #name}
  static constexpr Row kRows[] = {
      BM_CL_ROW(CL_DEVICE_NOT_FOUND),
      BM_CL_ROW(CL_DEVICE_NOT_AVAILABLE),
      BM_CL_ROW(CL_COMPILER_NOT_AVAILABLE),
      BM_CL_ROW(CL_MEM_OBJECT_ALLOCATION_FAILURE),
      BM_CL_ROW(CL_OUT_OF_RESOURCES),
      BM_CL_ROW(CL_OUT_OF_HOST_MEMORY),
      BM_CL_ROW(CL_PROFILING_INFO_NOT_AVAILABLE),
      BM_CL_ROW(CL_MEM_COPY_OVERLAP),
      BM_CL_ROW(CL_BUILD_PROGRAM_FAILURE),
      BM_CL_ROW(CL_MAP_FAILURE),
      BM_CL_ROW(CL_MISALIGNED_SUB_BUFFER_OFFSET),
      BM_CL_ROW(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
      BM_CL_ROW(CL_COMPILE_PROGRAM_FAILURE),
      BM_CL_ROW(CL_LINK_PROGRAM_FAILURE),
      BM_CL_ROW(CL_INVALID_VALUE),
      BM_CL_ROW(CL_INVALID_DEVICE),
      BM_CL_ROW(CL_INVALID_CONTEXT),
      BM_CL_ROW(CL_INVALID_COMMAND_QUEUE),
      BM_CL_ROW(CL_INVALID_HOST_PTR),
      BM_CL_ROW(CL_INVALID_MEM_OBJECT),
      BM_CL_ROW(CL_INVALID_BINARY),
      BM_CL_ROW(CL_INVALID_BUILD_OPTIONS),
      BM_CL_ROW(CL_INVALID_PROGRAM_EXECUTABLE),
      BM_CL_ROW(CL_INVALID_KERNEL_NAME),
      BM_CL_ROW(CL_INVALID_KERNEL_ARGS),
      BM_CL_ROW(CL_INVALID_ARG_INDEX),
      BM_CL_ROW(CL_INVALID_ARG_VALUE),
      BM_CL_ROW(CL_INVALID_ARG_SIZE),
      BM_CL_ROW(CL_INVALID_WORK_GROUP_SIZE),
      BM_CL_ROW(CL_INVALID_WORK_ITEM_SIZE),
      BM_CL_ROW(CL_INVALID_GLOBAL_WORK_SIZE),
      BM_CL_ROW(CL_INVALID_EVENT_WAIT_LIST),
      BM_CL_ROW(CL_INVALID_EVENT),
      BM_CL_ROW(CL_INVALID_OPERATION),
      BM_CL_ROW(CL_INVALID_BUFFER_SIZE),
      {kPlatformNotFound, "CL_PLATFORM_NOT_FOUND_KHR"},
  };
#undef BM_CL_ROW
  for (const Row& row : kRows)
    if (row.error == error) return row.name;
  return fmt::format("OpenCL error {}", error);
}

Code code_of(cl_int error) {
  switch (error) {
    case CL_DEVICE_NOT_FOUND:
    case kPlatformNotFound: return Code::kNotFound;
    case CL_DEVICE_NOT_AVAILABLE:
    case CL_OUT_OF_RESOURCES:
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST: return Code::kDeviceLost;
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY: return Code::kOutOfMemory;
    case CL_COMPILER_NOT_AVAILABLE:
    case CL_BUILD_PROGRAM_FAILURE:
    case CL_COMPILE_PROGRAM_FAILURE:
    case CL_LINK_PROGRAM_FAILURE:
    case CL_INVALID_KERNEL_NAME: return Code::kCompile;
    default:
      return error <= CL_INVALID_VALUE || error == CL_MEM_COPY_OVERLAP ||
                     error == CL_MISALIGNED_SUB_BUFFER_OFFSET
                 ? Code::kInvalidArgument
                 : Code::kInternal;
  }
}

}  // namespace bm::cl
