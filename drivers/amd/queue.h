#pragma once
// Queues of an AMD device: commands are encoded, put where the GPU reads them, and announced.

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "drivers/amd/gpu.h"
#include "drivers/amd/recording.h"
#include "drivers/amd/encoded_commands.h"
#include "drivers/amd/sdma/packets.h"
#include "drivers/hcq/queue.h"

namespace bm::amd {

class AmdQueue final
    : public hcq::QueueBase<AmdQueue, Gpu, EncodingContext, EncodedCommands, AmdRecording> {
 public:
  /// `compute` may be null: a copy queue. Both rings outlive the queue.
  /// Errors: kOutOfMemory for the words that keep the rings in order.
  static Result<std::unique_ptr<AmdQueue>> create(std::shared_ptr<Gpu> gpu, HardwareRing* compute,
                                                  HardwareRing* copies);

  /// Runs packets on the copy engine and waits for them. Caller holds the mutex.
  Status run_copies(const std::function<void(sdma::Writer&)>& emit);
  /// After its rings were restarted: all cross-engine releases so far count as made. Caller holds
  /// the mutex.
  void restart() { set_cross_releases(cross_releases_); }

 private:
  friend QueueBase;
  static constexpr MemoryDomain kRecordingDomain = MemoryDomain::kSystemUncached;
  AmdQueue(std::shared_ptr<Gpu> gpu, HardwareRing* compute, HardwareRing* copies);
  EncodingContext context() const;
  EncodingContext recording_context() const;
  std::shared_ptr<ScratchArea> kept_by_recordings() const { return gpu_->scratch.area(); }
  Status submit_locked(std::span<const hal::Command> commands) {
    return gpu_->with_cause(submit_now(commands));
  }
  Status replay_locked(AmdRecording& recording, std::span<const uint64_t> values) {
    return gpu_->with_cause(replay_now(recording, values));
  }
  /// The words compare 32 bits: long before they wrap the queue starts them anew.
  Status rebase_cross_releases(uint64_t coming);
  Status submit_now(std::span<const hal::Command> commands);
  Status replay_now(AmdRecording& recording, std::span<const uint64_t> values);
  Status make_room(const std::array<uint32_t, kRings>& counts);
  Status submit_encoded();
  Status enqueue_encoded(const CommandSpace& space);
  Status enqueue_recorded(const AmdRecording& recording);
  Status enqueue_copies(std::span<const uint32_t> packets);
  void publish_all();
  void finish(const std::array<bool, kRings>& used);

  std::vector<uint32_t> scratch_words_;
};

}  // namespace bm::amd
