#pragma once
// Types and numbers of the CUDA driver API as this driver uses them: the build needs no toolkit.
// Source of every number, layout and signature here and in functions.inc: NVIDIA CUDA 13.0, cuda.h.

#include <cstddef>
#include <cstdint>

namespace bm::cuda {

using CuResult = int;
using CuDevice = int;
using CuDevicePtr = uint64_t;
using CuContext = struct CuContextObject*;
using CuStream = struct CuStreamObject*;
using CuEvent = struct CuEventObject*;
using CuModule = struct CuModuleObject*;
using CuFunction = struct CuFunctionObject*;
using CuGraph = struct CuGraphObject*;
using CuGraphNode = struct CuGraphNodeObject*;
using CuGraphExec = struct CuGraphExecObject*;

/// CUresult. Those this driver decides on; names and advice for more are in errors.cpp.
inline constexpr CuResult kSuccess = 0, kErrorInvalidValue = 1, kErrorOutOfMemory = 2,
                          kErrorStubLibrary = 34, kErrorNoDevice = 100, kErrorNoBinary = 209,
                          kErrorNotFound = 500, kErrorNotReady = 600, kErrorIllegalAddress = 700,
                          kErrorPeerAlreadyEnabled = 704, kErrorAlreadyRegistered = 712;

/// CUdevice_attribute
enum Attribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxBlockX = 2,  ///< and y, z
  kMaxGridX = 5,   ///< and y, z
  kMaxSharedPerBlock = 8,
  kMultiprocessors = 16,
  kUnifiedAddressing = 41,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kMaxSharedPerBlockOptin = 97,
  kReadOnlyHostRegister = 113,
  kStreamMemOps64 = 122,  ///< of cuStreamWaitValue64_v2 and cuStreamWriteValue64_v2
};

/// CUfunction_attribute
enum FunctionAttribute : int {
  kFuncMaxThreads = 0,
  kFuncSharedBytes = 1,
  kFuncLocalBytes = 3,
  kFuncRegisters = 4,
  kFuncDynamicShared = 8,  ///< most that a launch may ask for
};

/// CUpointer_attribute
enum PointerAttribute : int {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerHostPointer = 4,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
  kPointerRangeStart = 11,
  kPointerRangeSize = 12,
};

/// CUmemorytype
inline constexpr unsigned kMemoryHost = 1, kMemoryDevice = 2;

inline constexpr unsigned kHostPortable = 1, kHostDeviceMap = 2, kHostRegisterReadOnly = 8;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0, kEventDisableTiming = 2;
/// CU_STREAM_WAIT_VALUE_GEQ and CU_STREAM_WRITE_VALUE_DEFAULT (which makes earlier work visible).
inline constexpr unsigned kWaitGreaterOrEqual = 0, kWriteDefault = 0;
/// CUjit_option
inline constexpr int kJitErrorLog = 5, kJitErrorLogBytes = 6;

/// Keys of cuLaunchKernel's `extra`: arguments as one packed block.
inline void* const kParamEnd = nullptr;
inline void* const kParamPointer = reinterpret_cast<void*>(uintptr_t{1});
inline void* const kParamSize = reinterpret_cast<void*>(uintptr_t{2});

/// CUlaunchAttribute: the value is a union of 64 bytes, of which a number takes the first.
struct LaunchAttribute {
  unsigned id = 0;
  alignas(8) int value = 0;
  char rest[60] = {};
};
static_assert(sizeof(LaunchAttribute) == 72 && offsetof(LaunchAttribute, value) == 8);
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: not 0 lets the grid start before the one
/// ahead of it in the stream is done.
inline constexpr unsigned kProgrammaticSerialization = 6;

/// CUlaunchConfig
struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  CuStream stream = nullptr;
  const LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, attributes) == 40);

/// CUDA_KERNEL_NODE_PARAMS_v1, which the symbols without suffix take.
struct KernelNodeParams {
  CuFunction function = nullptr;
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  void** kernel_params = nullptr;
  void** extra = nullptr;
};
static_assert(sizeof(KernelNodeParams) == 56 && offsetof(KernelNodeParams, extra) == 48);

/// One side of CUDA_MEMCPY3D_v2.
struct CopySide {
  size_t x_bytes = 0, y = 0, z = 0, lod = 0;
  unsigned memory_type = kMemoryDevice;
  void* host = nullptr;
  CuDevicePtr device = 0;
  void* array = nullptr;
  void* reserved = nullptr;
  size_t pitch = 0, height = 0;
};
/// CUDA_MEMCPY3D_v2
struct CopyParams {
  CopySide src, dst;
  size_t width_bytes = 0, height = 1, depth = 1;
};
static_assert(sizeof(CopyParams) == 200 && offsetof(CopyParams, dst) == 88);

}  // namespace bm::cuda
