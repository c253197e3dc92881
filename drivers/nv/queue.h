#pragma once
// Queues of an NVIDIA device: commands are encoded, put where the GPU reads them, and announced.

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "drivers/nv/gpu.h"
#include "drivers/nv/recording.h"
#include "drivers/nv/script.h"
#include "runtime/hal/device.h"

namespace bm::nv {

/// Thread: safe, under the GPU's mutex.
class NvQueue final : public hal::Queue {
 public:
  /// `compute` may be null: a copy queue. Both lanes outlive the queue.
  /// Errors: kOutOfMemory for the semaphores.
  static Result<std::unique_ptr<NvQueue>> create(std::shared_ptr<Gpu> gpu, Lane* compute,
                                                 Lane* copies);
  ~NvQueue() override;

  Status submit(std::span<const hal::Command> commands) override;
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override;
  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override;

  /// Fills memory with a word and waits for it. `bytes`: multiple of 4. Caller holds the mutex.
  Status fill(uint64_t va, uint64_t bytes, uint32_t word);

  /// After its lanes were restarted: all hand-overs so far count as made. Caller holds the mutex.
  void restart();

 private:
  NvQueue(std::shared_ptr<Gpu> gpu, Lane* compute, Lane* copies);
  ScriptContext context(uint64_t data_va, uint64_t handovers) const;
  Status submit_script(const CommandSpace& data);
  /// Words of the compute lane that need not run because the copy lane has caught up.
  uint32_t words_to_skip() const;

  std::shared_ptr<Gpu> gpu_;
  std::array<Lane*, kLanes> lanes_;
  ScriptContext base_;
  Allocation semaphores_;  ///< in system memory: to copies, to compute, flushed
  uint64_t handovers_ = 0;
  Script script_;  ///< reused by submit
};

}  // namespace bm::nv
