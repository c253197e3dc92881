#pragma once
// Stacks of all threads a GPU can hold: one buffer that grows when a kernel needs more.

#include <cstdint>
#include <vector>

#include "drivers/nv/gpu.h"

namespace bm::nv {

/// Bytes of the buffer, per TPC and in all, for `per_thread` bytes.
struct LocalMemorySize {
  uint64_t per_tpc = 0, total = 0;
};
LocalMemorySize local_memory_size(const GpuFacts& facts, uint64_t per_thread);

/// Thread: under the GPU's mutex.
class LocalMemory {
 public:
  /// Makes room for kernels with `per_thread` bytes (0: nothing needed). Launches submitted before
  /// keep the buffer they began with. Errors: kOutOfMemory naming the size.
  Status ensure(Gpu& gpu, HardwareRing& compute, uint32_t per_thread);
  uint32_t per_thread() const { return per_thread_; }
  /// Tells a new channel of the memory that is there.
  Status restore(Gpu& gpu, HardwareRing& compute);
  void reset();

 private:
  static Result<uint64_t> announce(Gpu& gpu, HardwareRing& compute, const Allocation& memory,
                                   uint64_t per_thread);
  struct Retired {
    Allocation memory;
    uint64_t fence;
  };
  uint32_t per_thread_ = 0;
  Allocation memory_;
  std::vector<Retired> retired_;
};

}  // namespace bm::nv
