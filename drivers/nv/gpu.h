#pragma once
// What a device, its queues, buffers and programs share.

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "drivers/nv/chips.h"
#include "drivers/nv/kernel_interface.h"
#include "drivers/nv/lane.h"
#include "drivers/nv/memory_pool.h"
#include "runtime/base/result.h"

namespace bm::nv {

class NvProgram;

/// Names of what ran last, for fault messages. Noting costs no allocation.
class LaunchLog {
 public:
  void note(std::string_view kernel);
  /// `names` of a whole recording: kept by reference.
  void note(std::shared_ptr<const std::string> names);
  /// "a, b, c", latest last; "no kernel yet".
  std::string text() const;

 private:
  static constexpr size_t kNames = 4, kBytes = 64;
  std::array<std::array<char, kBytes>, kNames> names_{};
  size_t next_ = 0;
  std::shared_ptr<const std::string> replayed_;
  bool is_replay_last_ = false;
};

/// Thread: `mutex` protects everything but what is atomic; buffers and programs take it when freed.
struct Gpu {
  Gpu(std::unique_ptr<KernelInterface> the_kernel, uint64_t slab_bytes)
      : kernel(std::move(the_kernel)), pool(*kernel, slab_bytes) {}

  const ChipRow& chip() const { return *kernel->facts().chip; }
  uint32_t sm_count() const;

  /// The first fault, once there was one. Cheap while there is none.
  Status health();
  /// The same under `mutex`.
  Status health_locked();

  std::mutex mutex;
  std::unique_ptr<KernelInterface> kernel;
  MemoryPool pool;
  /// Compute, copies of the copy queue, copies of the compute queue.
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<const NvProgram*> programs;
  LaunchLog launches;
  std::atomic<bool> has_fault{false};
  std::optional<Error> fault;  ///< under mutex
};

}  // namespace bm::nv
