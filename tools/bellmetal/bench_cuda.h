#pragma once
// The peer of the NV and CUDA devices: the driver-API and cuBLAS calls a programmer would write by
// hand. Both libraries are looked for when first asked for; the build needs neither.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/result.h"
#include "runtime/hal/program.h"

namespace bm::cli {

enum class CopyKind : uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };

/// One GPU through libcuda, on a stream of its own. Thread: one.
class CudaPeer {
 public:
  /// `unit` as DEV=NV:n and DEV=CUDA:n count. Errors: kNotFound (no libcuda, no GPU), kIo with the
  /// failing call.
  static Result<std::unique_ptr<CudaPeer>> open(uint32_t unit);
  ~CudaPeer();

  /// Loads `code`, whose arguments all become scratch memory, and a graph of `kernels` launches.
  Status prepare_kernel(const hal::CodeObject& code, uint32_t kernels);
  void launch();        ///< cuLaunchKernel
  void launch_graph();  ///< cuGraphLaunch of all `kernels`
  void wait();          ///< cuStreamSynchronize, which spins

  /// Pinned host memory and device memory of `bytes`.
  Status prepare_copies(uint64_t bytes);
  void copy(CopyKind kind, uint64_t bytes);  ///< asynchronous

  /// bfloat16 n × n matrices of random values. Errors: kNotFound (no cuBLAS).
  Status prepare_matmul(uint32_t n);
  /// cublasGemmEx with float32 accumulators. `is_k_major`: A and B are K-major.
  void matmul(bool is_b_transposed);

 private:
  CudaPeer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::cli
