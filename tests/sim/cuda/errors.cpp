// Names and texts of results. Source: cuda.h 13.0, enum cudaError_enum.
#include <array>

#include "tests/sim/cuda/driver.h"

namespace bm::sim::cuda {
namespace {

constexpr std::array kRows{
    ErrorRow{kSuccess, "CUDA_SUCCESS", "no error"},
    ErrorRow{kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    ErrorRow{kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    ErrorRow{kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    ErrorRow{kDeinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    ErrorRow{kStubLibrary, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    ErrorRow{kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    ErrorRow{kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    ErrorRow{kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    ErrorRow{kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    ErrorRow{kNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU",
             "no kernel image is available for execution on the device"},
    ErrorRow{kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE",
             "uncorrectable ECC error encountered"},
    ErrorRow{kPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
             "peer access is not supported between these two devices"},
    ErrorRow{kInvalidPtx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    ErrorRow{kUnsupportedPtxVersion, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
             "the provided PTX was compiled with an unsupported toolchain."},
    ErrorRow{kFileNotFound, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    ErrorRow{kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    ErrorRow{kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    ErrorRow{kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    ErrorRow{kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS",
             "an illegal memory access was encountered"},
    ErrorRow{kLaunchOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
             "too many resources requested for launch"},
    ErrorRow{kLaunchTimeout, "CUDA_ERROR_LAUNCH_TIMEOUT",
             "the launch timed out and was terminated"},
    ErrorRow{kPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
             "peer access is already enabled"},
    ErrorRow{kPeerAccessNotEnabled, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
             "peer access has not been enabled"},
    ErrorRow{kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    ErrorRow{kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
             "part or all of the requested memory range is already mapped"},
    ErrorRow{kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
             "pointer does not correspond to a registered memory region"},
    ErrorRow{kIllegalInstruction, "CUDA_ERROR_ILLEGAL_INSTRUCTION",
             "an illegal instruction was encountered"},
    ErrorRow{kMisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    ErrorRow{kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    ErrorRow{kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    ErrorRow{kSystemDriverMismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
             "system has unsupported display driver / cuda driver combination"},
    ErrorRow{kGraphExecUpdateFailure, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
             "the graph update was not performed because it included changes which violated "
             "constraints specific to instantiated graph update"},
    ErrorRow{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

}  // namespace

const ErrorRow* error_row(int code) {
  for (const ErrorRow& row : kRows)
    if (row.code == code) return &row;
  return nullptr;
}

// Both work before cuInit.
BM_FAKE_CUDA cuGetErrorName(int code, const char** name) {
  const ErrorRow* row = error_row(code);
  if (!name) return kInvalidValue;
  *name = row ? row->name : nullptr;
  return row ? kSuccess : kInvalidValue;
}
BM_FAKE_CUDA cuGetErrorString(int code, const char** text) {
  const ErrorRow* row = error_row(code);
  if (!text) return kInvalidValue;
  *text = row ? row->text : nullptr;
  return row ? kSuccess : kInvalidValue;
}

}  // namespace bm::sim::cuda
