#pragma once
// The peer of the OpenCL device: the enqueue calls a programmer would write by hand.

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/result.h"

namespace bm::cli {

/// A chain of kernels of 16 floats on unit `unit` (counted over all platforms, as DEV=CL:n counts).
class OpenClLoop {
 public:
  static Result<std::unique_ptr<OpenClLoop>> create(uint32_t unit, uint32_t kernels);
  ~OpenClLoop();

  /// Enqueues every kernel and flushes. With `sets_arguments` each gets its input set first.
  void submit(bool sets_arguments);
  void wait();

 private:
  OpenClLoop();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bm::cli
