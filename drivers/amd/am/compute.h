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

class Compute {
 public:
  Compute(Bus& bus, Gmc& gmc, VideoMemory& memory, const Generation& generation)
      : bus_(bus), gmc_(gmc), memory_(memory), generation_(generation) {}

  Status allocate_boot();
  /// The RLC loads what the PSP gave it. Source: gfx_v11_0_wait_for_rlc_autoload_complete().
  Status wait_autoload();
  /// The second half of it: nothing works on the firmware any more.
  Status wait_idle();
  /// Where the RISC-V processors begin. Source: gfx_v11_0_config_gfx_rs64(),
  /// gfx_v12_0_config_gfx_rs64().
  Status set_start_addresses(const Firmware& firmware);
  /// RLC, apertures per VMID, doorbells. Source: gfx_v11_0_hw_init() and what it calls
  /// (constants_init, rlc_resume, cp_set_doorbell_range), gfx_v12_0 alike.
  Status configure();
  /// Source: gfx_v11_0_cp_compute_enable(), gfx_v9_4_3_xcc_cp_compute_enable().
  Status set_running(bool is_running);

  /// Programs and starts hardware queue `queue`; every chiplet reads an AQL queue, the first one a
  /// PM4 queue. Source: hqd_load_v11() in amdgpu_amdkfd_gfx_v11.c, gfx_v12_0_kiq_init_register(),
  /// hiq_load_mqd_kiq_v9_4_3() in kfd_mqd_manager_v9.c.
  Status start_queue(uint32_t queue, MqdRequest request);
  /// Waves that run are thrown away. kTimeout: it does not let go.
  /// Source: hqd_destroy_v11(), gfx_v11_0_soft_reset().
  Status stop_queue(uint32_t queue);
  /// All of them, tolerating those that hang; whether all let go.
  bool stop_queues();
  /// The processor from its first instruction; its queues are gone.
  Status reset(const Firmware& firmware);

  /// Doorbell of a queue, in 64-bit words.
  uint32_t doorbell(uint32_t queue) const { return generation_.compute_doorbell + queue; }

 private:
  Status configure_instance(uint32_t xcc);
  void set_running_instance(bool is_running);
  Status set_start_instance(const Firmware& firmware);
  Status program_queue(uint32_t queue, uint64_t physical, const MqdRequest& request);
  Status stop_instance(uint32_t queue);
  void select(uint32_t me, uint32_t pipe, uint32_t queue, uint32_t vmid);

  Bus& bus_;
  Gmc& gmc_;
  VideoMemory& memory_;
  const Generation& generation_;
  uint64_t mqds_ = 0;  ///< physical; a page for each queue and chiplet
};

}  // namespace bm::amd::am
