#pragma once
// The SDMA engines: a hardware queue each, or two of the first where a card has only that, and one
// more of the first.

#include <cstdint>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/amd/am/smu.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

inline constexpr uint32_t kCopyEngines = 2, kCopyQueues = 3;
/// What moves bytes through the memory of a USB bridge; other cards do without.
inline constexpr uint32_t kBridgeQueue = 2;
/// Doorbell of the first engine in 64-bit words, and how many each has
/// (AMDGPU_NAVI10_DOORBELL_sDMA_ENGINE0, sdma_doorbell_range).
inline constexpr uint32_t kCopyDoorbell = 0x100, kCopyDoorbellsEach = 0xa;

struct CopyQueueRequest {
  uint64_t ring = 0, ring_bytes = 0, read_pointer = 0, write_pointer = 0;
};

class CopyEngines {
 public:
  CopyEngines(Bus& bus, Smu& smu, const Card& card);

  /// Source: sdma_v6_0_gfx_resume_instance(), sdma_v7_0_gfx_resume_instance(),
  /// sdma_v4_4_2_inst_start().
  Status start();
  /// Doorbell of a queue, in 64-bit words.
  uint32_t doorbell(uint32_t queue) const;
  /// Buffers run by INDIRECT packets are on: IB_CNTL.IB_ENABLE.
  Status start_queue(uint32_t queue, const CopyQueueRequest& request);
  Status stop_queue(uint32_t queue);
  /// Every engine anew; queues are gone. Source: sdma_v6_0_soft_reset(); sdma_v4_4_2_stop_queue(),
  /// amdgpu_sdma_reset_engine(), sdma_v4_4_2_restore_queue() where engines are instances. Too old
  /// power management firmware resets none of those: they are halted and let go.
  Status reset();

 private:
  uint32_t engine(uint32_t queue) const { return queue % engines_; }
  uint32_t instance(uint32_t engine) const { return form_->engine_stride == 0 ? engine : 0; }
  /// Distance of a queue's registers from those of its instance's first engine, first queue.
  uint32_t queue_offset(uint32_t queue) const;
  void start_engine(uint32_t engine);
  Status program_queue(uint32_t queue, const CopyQueueRequest& request);
  void set_halted(uint32_t engine, bool is_halted);
  void set_all_halted(bool is_halted);
  Status reset_instances();

  Bus& bus_;
  Smu& smu_;
  const CopyForm* form_ = nullptr;
  uint32_t engines_ = 1;
  uint32_t numbers_ = 0;  ///< of the engines, where they are instances: bits
};

}  // namespace bm::amd::am
