#pragma once
// What a device, its queues, buffers and programs share.

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "drivers/nv/chips.h"
#include "drivers/nv/driver_interface.h"
#include "drivers/nv/lane.h"
#include "drivers/hcq/memory_pool.h"
#include "runtime/base/result.h"
#include "runtime/hal/command.h"

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

/// Copies submitted last, for fault messages: nothing tells which address a copy engine missed.
/// Noting costs no allocation. Copies of replays are not noted.
class CopyLog {
 public:
  void note(const hal::Copy& copy) { copies_[next_++ % copies_.size()] = copy; }
  /// Those that touch what is no memory of the pool, oldest first: "copy of 64 bytes from 0x… to
  /// 0x… touches 0x… (12 bytes past …)"; empty when there is none.
  std::string suspects(const MemoryPool& pool) const;

 private:
  std::array<hal::Copy, 8> copies_{};
  size_t next_ = 0;
};

/// Waits submitted last, for messages about hangs. As CopyLog.
class WaitLog {
 public:
  void note(const hal::Wait& wait) { waits_[next_++ % waits_.size()] = wait; }
  /// Those whose word is the host's to read and still too small, oldest first: "; a queue may wait
  /// at 0x… for value 7, it is 0"; empty when there is none.
  std::string unmet(const MemoryPool& pool) const;

 private:
  std::array<hal::Wait, 4> waits_{};
  size_t next_ = 0;
};

/// Thread: `mutex` protects everything but what is atomic; buffers and programs take it when freed.
struct Gpu {
  Gpu(std::unique_ptr<DriverInterface> the_kernel, uint64_t slab_bytes)
      : kernel(std::move(the_kernel)), pool(*kernel, slab_bytes) {}

  const ChipRow& chip() const { return *kernel->facts().chip; }
  uint32_t sm_count() const;

  /// The first fault, once there was one. Cheap while there is none.
  Status health();
  /// The same under `mutex`.
  Status health_locked();

  std::mutex mutex;
  /// Taken after `mutex`: exclusive while channels are replaced; shared by those who look at them
  /// without `mutex`.
  std::shared_mutex channels;
  std::unique_ptr<DriverInterface> kernel;
  MemoryPool pool;
  /// Compute, copies of the copy queue, copies of the compute queue.
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<const NvProgram*> programs;
  LaunchLog launches;
  CopyLog copies;
  WaitLog waits;
  std::atomic<bool> has_fault{false};
  std::optional<Error> fault;  ///< under mutex
  /// Gives the GPU up. Never waits for `mutex`: who holds it may be waiting for the GPU.
  void lose(const Error& cause);
  std::atomic<bool> is_given_up{false};  ///< ends the lanes' waits
  std::mutex given_up_mutex;
  std::optional<Error> given_up;  ///< under given_up_mutex
};

}  // namespace bm::nv
