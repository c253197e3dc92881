#pragma once
// The peers of the CUDA device: the driver calls a programmer would write by hand.

#include <cstdint>
#include <memory>

#include "runtime/base/result.h"

namespace bm::cli {

/// A chain of kernels of 16 floats on CUDA device `unit`, on a stream of its own.
class CudaLoop {
 public:
  /// Errors: kUnsupported for a driver without graphs.
  static Result<std::unique_ptr<CudaLoop>> create(uint32_t unit, uint32_t kernels);
  ~CudaLoop();

  /// One cuLaunchKernel per kernel; arguments are packed anew either way.
  void launch(bool has_new_input);
  /// One cuGraphLaunch; with a new input each node gets its parameters set first.
  void launch_graph(bool has_new_input);
  void wait();

 private:
  CudaLoop();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::cli
