#pragma once
// Queue of the inline devices (CPU, REF, NULL): the calling thread executes the commands.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "drivers/cpu/host_commands.h"
#include "drivers/cpu/pool.h"
#include "drivers/cpu/recording.h"
#include "runtime/hal/device.h"

namespace bm::cpu {

/// What a counting queue has seen.
struct QueueCounts {
  uint64_t submits = 0, replays = 0, kernels_and_copies = 0;
};

/// Thread: any number of threads may submit at once; a recording is replayed by one at a time.
/// Both queue kinds of a device are this one queue.
class HostQueue final : public hal::Queue {
 public:
  struct Options {
    Pool* pool = nullptr;  ///< outlives the queue; nullptr: everything on the calling thread
    uint32_t wait_timeout_ms = kDefaultWaitTimeoutMs;
    bool counts_only = false;
  };
  explicit HostQueue(const Options& options);

  /// Errors: kTimeout from Wait (later commands did not run), kInvalidArgument from malformed
  /// commands, found before anything runs except for addresses.
  Status submit(std::span<const hal::Command> commands) override;
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override;
  /// `recording` comes from record() of this queue. Kernels that go to the pool may wake parked
  /// workers by a system call; everything else makes none.
  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override;

  QueueCounts counts() const;

 private:
  Status execute(std::span<const Call> calls);
  /// Wait, Signal, Write and Timestamp on memory of this process.
  Status execute_word(const Call& call) const;

  Pool* pool_;
  uint32_t wait_timeout_ms_;
  CallRules rules_;
  std::atomic<uint64_t> submits_{0}, replays_{0}, counted_{0};
};

}  // namespace bm::cpu
