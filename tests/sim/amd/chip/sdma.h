#pragma once
// The copy engines, two queues each (regSDMA*_QUEUE0_*, _QUEUE1_*; cards have eight; of MI300X,
// where an engine is an IP instance, the one of regSDMA_GFX_*): what it takes until a queue runs.
// The queue itself is ../engine's.
//
// Sources: Linux 6.12, amdgpu/sdma_v6_0.c, sdma_v7_0.c: *_gfx_resume(), *_enable().
//
// What it refuses, each a violation:
//   D1  a ring before the graphics core booted, or on an engine that is halted when it rings.
//   D2  a doorbell that is off, or that the bus interface gives to nobody (N2).
//   D3  IB_ENABLE clear: INDIRECT stands still (../engine/engine.h, S1).
//   D5  MI300X: an engine that rings without UTC_L1_ENABLE. sdma_v4_4_2_inst_start().
//   D4  rings of another VMID than 0.
// The read pointer is written back where RPTR_WRITEBACK_ENABLE says so, TRAP interrupts where
// SDMA_CNTL.TRAP_ENABLE does.

#include <array>
#include <atomic>
#include <deque>
#include <memory>

#include "tests/sim/amd/chip/gfx.h"

namespace bm::sim::amd {

/// Thread: the register bus's.
class Sdma {
 public:
  explicit Sdma(EngineRoom& room);
  ~Sdma();
  bool has(uint32_t dword) const;
  /// Of that doorbell.
  uint32_t engine_of(uint32_t dword) const;
  /// False: it does not arrive.
  bool ring(uint32_t dword, uint64_t value);
  /// Engines that the PSP has loaded run: sdma_v4_4_2_inst_enable() lets go only of others.
  void let_go();
  void soft_reset(uint32_t engine);
  /// By the power management firmware, which lets them run again. False: there is no such engine,
  /// or one still has its queue.
  bool reset_engines(uint32_t engines);
  void reset();
  size_t active_queues() const;

 private:
  struct Engine {
    uint32_t *control = nullptr, *halt = nullptr;
    std::atomic<bool> is_halted{true}, traps{false};
  };
  struct Ring {
    Engine* engine = nullptr;
    uint32_t *rb_control = nullptr, *base = nullptr, *base_hi = nullptr, *rptr = nullptr,
             *rptr_hi = nullptr, *rptr_address = nullptr, *rptr_address_hi = nullptr,
             *poll = nullptr, *poll_hi = nullptr, *wptr = nullptr, *wptr_hi = nullptr,
             *doorbell = nullptr, *doorbell_offset = nullptr, *ib_control = nullptr,
             *ib_base = nullptr, *ib_base_hi = nullptr, *ib_size = nullptr, *ib_rptr = nullptr;
    std::unique_ptr<Queue> queue;
    std::atomic<bool> runs_buffers{false};
  };
  void declare_engine(uint32_t index);
  void declare_queue(uint32_t index);
  bool is_instance() const { return ip_ == Ip::kSdma; }
  std::string prefix(uint32_t engine) const;
  void start(uint32_t index);
  void stop(Ring& ring);
  void violation(std::string text) { room_.bus.violations().add("SDMA: " + std::move(text)); }

  EngineRoom& room_;
  const Ip ip_;
  const uint32_t count_;  ///< engines
  std::deque<Engine> engines_;
  std::deque<Ring> rings_;  ///< queue 0 of each engine, then queue 1
  Field enable_, size_, writeback_, vmid_, doorbell_enable_, doorbell_offset_, ib_enable_, halt_,
      trap_;
};

}  // namespace bm::sim::amd
