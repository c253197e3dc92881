#pragma once
// Queues of an NVIDIA device: commands are encoded, put where the GPU reads them, and announced.

#include <array>
#include <memory>
#include <span>

#include "drivers/hcq/queue.h"
#include "drivers/nv/gpu.h"
#include "drivers/nv/recording.h"
#include "drivers/nv/encoded_commands.h"
#include "runtime/hal/device.h"

namespace bm::nv {

class NvQueue final
    : public hcq::QueueBase<NvQueue, Gpu, EncodingContext, EncodedCommands, NvRecording> {
 public:
  /// `compute` may be null: a copy queue. Both rings outlive the queue.
  /// Errors: kOutOfMemory for the semaphores.
  static Result<std::unique_ptr<NvQueue>> create(std::shared_ptr<Gpu> gpu, HardwareRing* compute,
                                                 HardwareRing* copies);

  /// Fills memory with a word and waits for it. `bytes`: multiple of 4. Caller holds the mutex.
  Status fill(uint64_t va, uint64_t bytes, uint32_t word);

  /// After its rings were restarted: all cross-engine releases so far count as made. Caller holds
  /// the mutex.
  void restart() { set_cross_releases(cross_releases_); }

 private:
  friend QueueBase;
  static constexpr MemoryDomain kRecordingDomain = MemoryDomain::kVideoMapped;
  NvQueue(std::shared_ptr<Gpu> gpu, HardwareRing* compute, HardwareRing* copies);
  Status submit_locked(std::span<const hal::Command> commands);
  Status replay_locked(NvRecording& recording, std::span<const uint64_t> values);
  EncodingContext recording_context() const;
  NvRecording::Nothing kept_by_recordings() const { return {}; }
  Status submit_encoded(const CommandSpace& data);
  /// Words of the compute ring that need not run because the copy ring has caught up.
  uint32_t words_to_skip() const { return has_caught_up() ? kCrossEngineWords : 0; }
};

}  // namespace bm::nv
