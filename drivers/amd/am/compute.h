#pragma once
// The graphics block as compute needs it: run list controller, command processor, and its hardware
// queues.

#include <cstdint>

#include "drivers/amd/am/bus.h"
#include "drivers/amd/am/card.h"
#include "drivers/amd/am/gmc.h"
#include "drivers/amd/am/mqd.h"
#include "drivers/amd/am/video_memory.h"
#include "runtime/base/result.h"

namespace bm::amd::am {

/// Hardware queues that are handed out: ME 1, pipe 0.
inline constexpr uint32_t kComputeQueues = 4;
/// Doorbell of the first one, in 64-bit words (AMDGPU_NAVI10_DOORBELL_MEC_RING0).
inline constexpr uint32_t kComputeDoorbell = 3;

class Compute {
 public:
  Compute(Bus& bus, Gmc& gmc, VideoMemory& memory) : bus_(bus), gmc_(gmc), memory_(memory) {}

  Status allocate_boot();
  /// The RLC loads what the PSP gave it. Source: gfx_v11_0_wait_for_rlc_autoload_complete().
  Status wait_autoload();
  /// The second half of it: nothing works on the firmware any more.
  Status wait_idle();
  /// Where the RISC-V processors begin. Source: gfx_v11_0_config_gfx_rs64(),
  /// gfx_v12_0_config_gfx_rs64().
  Status set_start_addresses(const Card& card, const Firmware& firmware);
  /// RLC, apertures per VMID, doorbells. Source: gfx_v11_0_hw_init() and what it calls
  /// (constants_init, rlc_resume, cp_set_doorbell_range), gfx_v12_0 alike.
  Status configure(const Card& card);
  /// Source: gfx_v11_0_cp_compute_enable().
  Status set_running(bool is_running);

  /// Programs and starts hardware queue `queue`. Source: hqd_load_v11() in
  /// amdgpu_amdkfd_gfx_v11.c, gfx_v12_0_kiq_init_register().
  Status start_queue(uint32_t queue, MqdRequest request);
  /// Waves that run are thrown away. kTimeout: it does not let go.
  /// Source: hqd_destroy_v11(), gfx_v11_0_soft_reset().
  Status stop_queue(uint32_t queue);
  /// All of them, tolerating those that hang; whether all let go.
  bool stop_queues();
  /// The processor from its first instruction; its queues are gone.
  Status reset(const Card& card, const Firmware& firmware);

 private:
  void select(uint32_t me, uint32_t pipe, uint32_t queue, uint32_t vmid);

  Bus& bus_;
  Gmc& gmc_;
  VideoMemory& memory_;
  uint64_t mqds_ = 0;  ///< physical; a page each
};

}  // namespace bm::amd::am
