#include "drivers/cuda/errors.h"

namespace bm::cuda {
namespace {

constexpr const char* kFindKernel =
    "find the kernel with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; the process must be started "
    "again";
constexpr const char* kRestart = "see `nvidia-smi` and the kernel log; start the process again";

/// One error number. Names from cuda.h's CUresult, for drivers that do not tell them.
struct Row {
  CuResult error;
  const char* name;
  Code code;
  bool is_sticky;
  const char* meaning;  ///< what happened; nullptr: the name says it
  const char* remedy;   ///< nullptr: none known
};
// clang-format off
constexpr Row kRows[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", Code::kInvalidArgument, false, nullptr, nullptr},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", Code::kOutOfMemory, false, nullptr, nullptr},
    {3, "CUDA_ERROR_NOT_INITIALIZED", Code::kInternal, false, nullptr, nullptr},
    {4, "CUDA_ERROR_DEINITIALIZED", Code::kDeviceLost, true, "the process is ending", nullptr},
    {34, "CUDA_ERROR_STUB_LIBRARY", Code::kNotFound, false,
     "this is the toolkit's stub; no NVIDIA driver is installed", "install the driver"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", Code::kUnsupported, false, nullptr,
     "install a newer driver"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", Code::kDeviceLost, true,
     "the GPU is busy in exclusive mode or lost", kRestart},
    {100, "CUDA_ERROR_NO_DEVICE", Code::kNotFound, false, nullptr, nullptr},
    {101, "CUDA_ERROR_INVALID_DEVICE", Code::kInvalidArgument, false, nullptr, nullptr},
    {200, "CUDA_ERROR_INVALID_IMAGE", Code::kCompile, false, "the image is no cubin or PTX text",
     nullptr},
    {201, "CUDA_ERROR_INVALID_CONTEXT", Code::kDeviceLost, true,
     "the primary context was destroyed or reset by another user of it", "open the device again"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", Code::kCompile, false,
     "the image was compiled for another architecture", nullptr},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", Code::kDeviceFault, true,
     "the GPU's memory has an error that ECC cannot correct", kRestart},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", Code::kUnsupported, false, nullptr, nullptr},
    {218, "CUDA_ERROR_INVALID_PTX", Code::kCompile, false, nullptr, nullptr},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", Code::kDeviceFault, true, "an NVLink failed", kRestart},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", Code::kUnsupported, false,
     "PTX needs libnvidia-ptxjitcompiler.so.1, which comes with the driver",
     "install it or compile to a cubin"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", Code::kUnsupported, false,
     "the PTX is newer than the driver", "install a newer driver or compile to a cubin"},
    {226, "CUDA_ERROR_CONTAINED", Code::kDeviceFault, true, "a memory error was contained", kRestart},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", Code::kIo, false,
     "a call to the operating system failed",
     "check that /dev/nvidia0, /dev/nvidiactl and /dev/nvidia-uvm can be opened"},
    {400, "CUDA_ERROR_INVALID_HANDLE", Code::kInternal, false, nullptr, nullptr},
    {500, "CUDA_ERROR_NOT_FOUND", Code::kNotFound, false, nullptr, nullptr},
    {600, "CUDA_ERROR_NOT_READY", Code::kInternal, false, nullptr, nullptr},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", Code::kDeviceFault, true,
     "a kernel or copy used memory that is not mapped", kFindKernel},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Code::kInvalidArgument, false,
     "the launch needs more registers or shared memory than there are", nullptr},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", Code::kDeviceFault, true,
     "a kernel ran longer than the display's watchdog allows", "use smaller kernels or a GPU without a display"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", Code::kInternal, false, nullptr, nullptr},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", Code::kDeviceLost, true,
     "the primary context was destroyed by another user of it", "open the device again"},
    {710, "CUDA_ERROR_ASSERT", Code::kDeviceFault, true, "an assertion in a kernel failed", kFindKernel},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", Code::kUnsupported, false, nullptr, nullptr},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", Code::kInvalidArgument, false, nullptr, nullptr},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", Code::kInternal, false, nullptr, nullptr},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", Code::kDeviceFault, true,
     "a kernel's call stack is corrupt or overflowed", kFindKernel},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", Code::kDeviceFault, true,
     "a kernel met an instruction this GPU does not have", kFindKernel},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", Code::kDeviceFault, true,
     "a kernel used an address that is not aligned to its access", kFindKernel},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", Code::kDeviceFault, true,
     "a kernel used an address of the wrong kind of memory", kFindKernel},
    {718, "CUDA_ERROR_INVALID_PC", Code::kDeviceFault, true, "a kernel jumped out of its code", kFindKernel},
    {719, "CUDA_ERROR_LAUNCH_FAILED", Code::kDeviceFault, true,
     "a kernel failed while it ran, e.g. beyond its shared memory", kFindKernel},
    {800, "CUDA_ERROR_NOT_PERMITTED", Code::kPermission, false, nullptr, nullptr},
    {801, "CUDA_ERROR_NOT_SUPPORTED", Code::kUnsupported, false, nullptr, nullptr},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", Code::kUnsupported, false,
     "the system is not ready for CUDA",
     "start nvidia-fabricmanager (NVSwitch systems) or wait for the driver to come up"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", Code::kUnsupported, false,
     "library and kernel module are of different releases", nullptr},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", Code::kUnsupported, false,
     "a forward-compatibility library is in use on a GPU it is not made for",
     "take the compat folder out of LD_LIBRARY_PATH"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", Code::kIo, false, "the MPS server does not answer",
     "start it or unset CUDA_MPS_PIPE_DIRECTORY"},
    {999, "CUDA_ERROR_UNKNOWN", Code::kInternal, true, nullptr, kRestart},
};
// clang-format on

const Row* find(CuResult error) {
  for (const Row& row : kRows)
    if (row.error == error) return &row;
  return nullptr;
}

}  // namespace

std::string error_name(const Api& api, CuResult error) {
  const char* name = nullptr;
  if (api.cuGetErrorName != nullptr && api.cuGetErrorName(error, &name) == kSuccess &&
      name != nullptr)
    return fmt::format("{} ({})", name, error);
  const Row* row = find(error);
  return row == nullptr ? fmt::format("CUDA error {}", error)
                        : fmt::format("{} ({})", row->name, error);
}

Code code_of(CuResult error) {
  const Row* row = find(error);
  return row == nullptr ? Code::kInternal : row->code;
}

bool is_sticky(CuResult error) {
  const Row* row = find(error);
  return row != nullptr && row->is_sticky;
}

std::string explain(const Api& api, CuResult error) {
  std::string text = error_name(api, error);
  const Row* row = find(error);
  const char* meaning = row == nullptr ? nullptr : row->meaning;
  if (meaning == nullptr && api.cuGetErrorString != nullptr &&
      api.cuGetErrorString(error, &meaning) != kSuccess)
    meaning = nullptr;
  if (meaning != nullptr) text += fmt::format(": {}", meaning);
  if (row != nullptr && row->remedy != nullptr) text += fmt::format("; {}", row->remedy);
  return text;
}

}  // namespace bm::cuda
