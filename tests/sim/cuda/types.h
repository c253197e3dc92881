#pragma once
// The driver API's types and numbers, from a reading of cuda.h 13.0 of its own (never of
// drivers/cuda).

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace bm::sim::cuda {

enum Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kEccUncorrectable = 214,
  kPeerAccessUnsupported = 217,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kFileNotFound = 301,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchTimeout = 702,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kContextIsDestroyed = 709,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kLaunchFailed = 719,
  kNotSupported = 801,
  kSystemDriverMismatch = 803,
  kGraphExecUpdateFailure = 910,
};

struct ErrorRow {
  int code;
  const char* name;
  const char* text;
};
/// Null for a number that is none.
const ErrorRow* error_row(int code);

/// CUDA_KERNEL_NODE_PARAMS: v1 ends before `kernel`.
struct KernelNodeParams {
  void* function = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  void** params = nullptr;
  void** extra = nullptr;
  void* kernel = nullptr;
  void* context = nullptr;
};
inline constexpr size_t kKernelNodeParamsV1 = 56;
static_assert(sizeof(KernelNodeParams) == 72 && offsetof(KernelNodeParams, kernel) == 56);

struct CopySide {
  size_t x = 0, y = 0, z = 0, lod = 0;
  unsigned memory_type = 0;
  void* host = nullptr;
  uint64_t device = 0;
  void* array = nullptr;
  void* reserved = nullptr;
  size_t pitch = 0, height = 0;
};
/// CUDA_MEMCPY3D_v2
struct CopyParams {
  CopySide src, dst;
  size_t width = 0, height = 0, depth = 0;
};
static_assert(sizeof(CopyParams) == 200 && offsetof(CopyParams, width) == 176);

/// CUDA_MEMSET_NODE_PARAMS_v1
struct MemsetParams {
  uint64_t dst = 0;
  size_t pitch = 0;
  unsigned value = 0, element = 1;
  size_t width = 0, height = 1;
};
static_assert(sizeof(MemsetParams) == 40);

/// CUlaunchConfig; attributes of 72 bytes each: id, padding, value.
struct LaunchConfig {
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  void* stream;
  const void* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

/// CUstreamBatchMemOpParams, its wait and write members.
struct MemOp {
  unsigned operation;
  uint64_t address;
  uint64_t value;
  unsigned flags;
  uint64_t alias;
  uint64_t pad;
};
static_assert(sizeof(MemOp) == 48 && offsetof(MemOp, flags) == 24);

enum MemoryType : unsigned { kHost = 1, kDevice = 2, kArray = 3, kUnified = 4 };

}  // namespace bm::sim::cuda
