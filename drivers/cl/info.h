#pragma once
// What platforms and devices say about themselves.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "drivers/cl/api.h"
#include "runtime/base/result.h"
#include "runtime/hal/arch.h"

namespace bm::cl {

/// One device of one platform.
struct Unit {
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
  uint32_t platform_index = 0, device_index = 0;
};

/// Every device of every platform, in the loader's order (platform, device). Errors: kNotFound
/// naming the packages when there is no platform.
Result<std::vector<Unit>> list_units(const Api& api);

/// Shared virtual memory this driver uses; BM_CL_SVM limits it.
enum class Svm : uint8_t { kNone, kCoarse, kFine };

struct DeviceInfo {
  hal::Arch arch;
  std::string description;    ///< names this unit among equals: platform, version, place
  std::string identity;       ///< device name, driver and platform version: what binaries depend on
  std::string build_options;  ///< of clBuildProgram
  Svm svm = Svm::kNone;
  bool is_unified = false;  ///< device memory is host memory
  uint64_t memory_bytes = 0, max_alloc_bytes = 0;
  uint64_t sub_buffer_align = 1;  ///< bytes
  std::array<uint64_t, 3> max_block{1, 1, 1};
  uint64_t max_argument_bytes = 1024;
};

/// `arch`: an OpenCL C version the device has ("opencl_c_1.2"); empty: its newest. Errors:
/// kInvalidArgument listing the versions; kUnsupported (no compiler, 32-bit or big-endian device).
Result<DeviceInfo> read_info(const Api& api, const Unit& unit, std::string_view arch, Svm limit);

/// "installed: pocl.icd (libpocl.so.2)": drivers that the ICD loader would load by the .icd files
/// of `folder`, none of which is loaded. "" where the environment names others (OCL_ICD_VENDORS and
/// its like). Errors: kNotFound (no .icd file, or only such as name missing libraries).
Result<std::string> installed_icds(const std::string& folder = "/etc/OpenCL/vendors");

}  // namespace bm::cl
