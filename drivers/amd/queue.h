#pragma once
// Queues of an AMD device: commands are encoded, put where the GPU reads them, and announced.

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "drivers/amd/gpu.h"
#include "drivers/amd/recording.h"
#include "drivers/amd/script.h"
#include "drivers/amd/sdma/packets.h"
#include "runtime/hal/device.h"

namespace bm::amd {

/// Thread: safe, under the GPU's mutex.
class AmdQueue final : public hal::Queue {
 public:
  /// `compute` may be null: a copy queue. Both lanes outlive the queue.
  /// Errors: kOutOfMemory for the words that keep the lanes in order.
  static Result<std::unique_ptr<AmdQueue>> create(std::shared_ptr<Gpu> gpu, Lane* compute,
                                                  Lane* copies);
  ~AmdQueue() override;

  Status submit(std::span<const hal::Command> commands) override;
  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override;
  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override;

  /// Runs packets on the copy engine and waits for them. Caller holds the mutex.
  Status run_copies(const std::function<void(sdma::Writer&)>& emit);

 private:
  AmdQueue(std::shared_ptr<Gpu> gpu, Lane* compute, Lane* copies);
  ScriptContext context() const;
  /// The words compare 32 bits: long before they wrap the queue starts them anew.
  Status rebase_handovers(uint64_t coming);
  Status submit_now(std::span<const hal::Command> commands);
  Status replay_now(AmdRecording& recording, std::span<const uint64_t> values);
  Status make_room(const std::array<uint32_t, kLanes>& counts);
  Status submit_script();
  template <class Enqueue>
  Status enqueue_all(std::span<const Entry> entries, std::span<const uint32_t> copies,
                     const Enqueue& enqueue);
  Status enqueue_copies(std::span<const uint32_t> packets);
  void publish_all();
  void finish(const std::array<bool, kLanes>& used);

  std::shared_ptr<Gpu> gpu_;
  std::array<Lane*, kLanes> lanes_;
  ScriptContext base_;
  Allocation words_;  ///< to copies, to compute
  uint64_t handovers_ = 0;
  Script script_;  ///< reused by submit
  std::vector<uint32_t> scratch_words_;
};

}  // namespace bm::amd
