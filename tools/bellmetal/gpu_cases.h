#pragma once
// The rows of `bellmetal bench gpu`: kernels that memory bounds, and attention.

#include <functional>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "tools/bellmetal/cpu_bench/contest.h"
#include "tools/bellmetal/cpu_bench/world.h"

namespace bm::cli {

/// Copies within a device's memory: by cuMemcpyDtoDAsync where libcuda is, else by its copy queue.
class DeviceCopies {
 public:
  /// Of up to `bytes` bytes at once.
  static Result<std::unique_ptr<DeviceCopies>> open(runtime::Device& device, uint64_t bytes);
  virtual ~DeviceCopies() = default;
  virtual const char* name() const = 0;
  /// Queues a copy of so many bytes.
  virtual void copy(uint64_t bytes) = 0;
  /// Until all are done.
  virtual void wait() = 0;
};

struct GpuCase {
  std::string name;  ///< "softmax bf16 8192 x 8192"
  /// `copies`: nullptr where there are none.
  std::function<Result<Contest>(World&, runtime::Device&, std::shared_ptr<DeviceCopies>)> make;
};

/// Bytes that the largest case wants copied at once.
uint64_t most_copied(const World& world);

std::vector<GpuCase> gpu_cases();

}  // namespace bm::cli
