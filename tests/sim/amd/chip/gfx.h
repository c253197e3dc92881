#pragma once
// The graphics core's command processor for compute (MEC), RLC and GRBM: what it takes until a
// queue runs. Queues themselves are ../engine's.
//
// Sources: Linux 6.12, amdgpu/gfx_v11_0.c, gfx_v12_0.c (gfx_v11_0_wait_for_rlc_autoload_complete(),
// gfx_v11_0_config_gfx_rs64(), gfx_v11_0_cp_compute_enable(), gfx_v11_0_kiq_init_register()),
// soc21.c (soc21_grbm_select()), v11_structs.h and v12_structs.h (memory queue descriptors).
//
// What it refuses, each a violation:
//   X1  registers of a queue while GRBM_GFX_CNTL selects no compute pipe.
//   X2  a pipe let out of reset without its program counter, or before the firmware is there.
//   X3  an active queue before autoload, on a pipe in reset or not active, or with MEC halted when
//       its doorbell rings.
//   X4  a descriptor (MQD) without its header, or that differs from the queue's registers; it is
//       read when the queue's first doorbell rings, by the engine: unflushed writes are not there.
//   X5  doorbells outside CP_MEC_DOORBELL_RANGE, on no queue's offset, or not enabled: they do not
//       arrive.
//   X6  queues of another VMID than 0, without an EOP buffer, with SH_MEM_CONFIG never set.
//   X7  SQ_IND_INDEX or SQ_IND_DATA while GRBM_GFX_INDEX broadcasts or selects what is not there.
//   X8  no violation, no interrupt: ends of packets without TIME_STAMP_INT_ENABLE of their pipe,
//   bad
//       packets without OPCODE_ERROR_INT_ENABLE: gfx_v11_0_set_compute_eop_interrupt_state(),
//       gfx_v11_0_set_bad_op_fault_state().
//   X9  several chiplets: an AQL queue that not all of them have alike when its first doorbell
//   rings,
//       a descriptor of another logical XCC than its place, or without their distance; a PM4 queue
//       on another than the first; AQL before SPATIAL_PART 1; hubs with other tables than the
//       first. init_mqd_v9_4_3(), hiq_load_mqd_kiq_v9_4_3().
// A read of CP_HQD_PQ_RPTR gives the packet that is being executed; hardware fetches ahead. Waves
// of a queue are shown in its shader engine's first WGP, one after the other on its four SIMDs.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "tests/sim/amd/chip/bus.h"
#include "tests/sim/amd/chip/gmc.h"
#include "tests/sim/amd/chip/ih.h"
#include "tests/sim/amd/chip/nbio.h"
#include "tests/sim/amd/chip/options.h"
#include "tests/sim/amd/chip/psp.h"
#include "tests/sim/amd/engine/engine.h"

namespace bm::sim::amd {

/// What the blocks with queues need of the chip.
struct EngineRoom {
  ChipOptions& options;  ///< hangs end by resets
  RegisterBus& bus;
  Fabric& fabric;
  Hub& hub;
  Hub& copy_hub;  ///< of copy engines that are no part of the graphics core
  InterruptHandler& interrupts;
  Nbio& nbio;
  Psp& psp;
  EngineState& state;
  uint64_t* doorbells;  ///< BAR 2
  std::function<void(const char* engine, const Death&)> died;
};

/// Thread: the register bus's.
class Gfx {
 public:
  /// `xcc`: which chiplet. All of an AQL queue's chiplets have it; the first one runs it.
  Gfx(EngineRoom& room, uint32_t xcc);
  void set_chiplets(std::vector<Gfx*> all) { chiplets_ = std::move(all); }
  ~Gfx();
  void boot();  ///< autoload is done
  void reset();
  /// Whether an active queue has this doorbell.
  bool has(uint32_t dword);
  /// A doorbell for the command processor. False: it does not arrive.
  bool ring(uint32_t dword, uint64_t value);
  void on_soft_reset(std::function<void(uint32_t)> sdma) { soft_reset_sdma_ = std::move(sdma); }
  size_t active_queues() const;

 private:
  static constexpr uint32_t kPipes = 4, kQueues = 8, kWindow = 0x40;
  struct Hqd {
    std::array<uint32_t, kWindow> words{};  ///< from CP_MQD_BASE_ADDR on
    std::unique_ptr<Queue> queue;
    bool is_checked = false;
    bool is_served = false;  ///< active on a chiplet whose engine is the first one's
  };
  struct Pipe {
    uint64_t start = 0;
    bool has_started = false;
    std::array<Hqd, kQueues> queues;
  };
  Hqd* selected();
  uint32_t read_window(uint32_t index);
  uint32_t& word(Hqd& hqd, const char* name);
  void declare_window();
  void declare_start();
  void declare_waves();
  uint32_t wave_register() const;
  void write_window(uint32_t index, uint32_t value);
  void write_mec_control(uint32_t value);
  void soft_reset(uint32_t value);
  void activate(Hqd& hqd, uint32_t pipe, uint32_t queue);
  void deactivate(Hqd& hqd);
  bool check_descriptor(Hqd& hqd);
  void stop_all();
  bool check_chiplets(uint32_t pipe, uint32_t queue);
  bool is_running(uint32_t pipe) const;
  void violation(std::string text) { room_.bus.violations().add("GFX: " + std::move(text)); }

  EngineRoom& room_;
  const uint32_t xcc_;
  const bool is_f32_;  ///< the MEC is no RS64: CP_MEC_CNTL, begins at 0
  std::vector<Gfx*> chiplets_;
  std::map<std::string, uint32_t> offsets_;  ///< in the window, by register
  std::array<Pipe, kPipes> pipes_;
  uint32_t *select_ = nullptr, *mec_control_ = nullptr, *bootload_ = nullptr, *cp_stat_ = nullptr,
           *range_low_ = nullptr, *range_high_ = nullptr, *safe_mode_ = nullptr;
  std::array<uint32_t, 16> sh_mem_config_{}, sh_mem_bases_{};
  uint32_t *gfx_index_ = nullptr, *wave_index_ = nullptr;
  Field pipe_, me_, vmid_, queue_, halt_, complete_, offset_, enable_, size_, command_;
  std::array<Field, kPipes> pipe_reset_, pipe_active_;
  Field time_stamp_, opcode_error_;
  std::array<std::atomic<uint32_t>, kPipes> pipe_interrupts_{};  ///< CP_ME1_PIPEn_INT_CNTL
  std::atomic<uint32_t> mec_state_{0};  ///< a copy of mec_control_ for queue threads
  std::function<void(uint32_t)> soft_reset_sdma_;
};

}  // namespace bm::sim::amd
