#pragma once
// Queues of a modelled GPU, the kernel driver's or a bare chip's: each a thread that reads its ring
// and executes packets, strictly. What hardware would not accept kills the queue and raises the
// fault the driver must report.
//
// What each engine refuses, where that is from (Linux 6.12.117 in drivers/gpu/drm/amd unless
// another source is named), and that it does is the matter of tests/unit/amd/engine_test.cpp, one
// test each.
//
// Any ring (queue.cpp)
//   R1  a doorbell ahead of the write pointer in memory: the queue dies. sdma_v6_0_ring_set_wptr(),
//       gfx_v11_0_ring_set_wptr_compute(): memory first, then the doorbell, the same value.
//   R2  a doorbell further ahead than the ring is long: dies. amdgpu_ring_alloc() never lets it.
//   R3  addresses that are mapped to no memory of that GPU: dies with a memory fault.
//       event_interrupt_wq_v11(), event_interrupt_wq_v9().
// Copy engine (sdma.cpp)
//   S1  INDIRECT without IB_ENABLE: the queue stands still. Queues of KFD have IB_CNTL.IB_ENABLE
//   clear: init_mqd_sdma()
//       and update_mqd_sdma() of kfd_mqd_manager_v9.c, v10.c, v11.c and v12.c clear the queue's
//       registers and never write sdmax_rlcx_ib_cntl; sdma_v6_0_gfx_resume() (v4_4_2, v7_0 alike)
//       sets IB_ENABLE, for the kernel's own rings only, before it runs a buffer.
//   S2  a copy or fill with more COUNT bits than the engine has: dies. vega10_sdma_pkt_open.h and
//       sdma_v6_0_0_pkt_open.h, SDMA_PKT_COPY_LINEAR_COUNT_count_mask.
//   S3  a FENCE of another memory type than uncached: dies. sdma_v6_0_ring_emit_fence(),
//       sdma_v4_4_2_ring_emit_fence().
//   S4  a poll that is none of memory for >=: dies, not modelled. sdma_v6_0_ring_emit_reg_wait().
//   S5  unknown opcodes, packets that pass the write pointer: dies.
//       A packet may pass the ring's end: amdgpu_ring_write() wraps dword by dword. The read
//       pointer counts bytes and never wraps: ROCR-Runtime, amd_blit_sdma.h, BlitSdmaV4,
//       HwIndexMonotonic.
// Command processor (pm4.cpp)
//   P1  on gfx10 and gfx11 RELEASE_MEM with one of GLM_WB and GLM_INV: dies.
//       gfx_v11_0_ring_emit_fence(), gfx_v10_0_ring_emit_fence() ("must be set with").
//   P2  a buffer of several chiplets in which two of them write one word, or each raises an
//   interrupt:
//       dies. Hardware does as it is told, late, once a chiplet: tinygrad, ops_amd.py,
//       AMDComputeQueue.signal(), has PRED_EXEC around each; init_mqd_v9_4_3() gives every XCC the
//       queue. Chiplets run a buffer in random order, each
//       until it waits.
//   P3  PRED_EXEC in a ring, where it is ignored: dies. tinygrad, ops_amd.py, pred_exec().
//   P4  DISPATCH_DIRECT in a buffer that several chiplets run: dies, not modelled.
//   P5  ACQUIRE_MEM of another generation's length: dies. gfx_v9_0_emit_mem_sync(),
//       gfx_v11_0_emit_mem_sync().
//   P6  INDIRECT_BUFFER without VALID, one in another: dies. gfx_v11_0_ring_emit_ib_compute().
//   P7  interrupts of context 0 on gfx9 never arrive: event_interrupt_isr_v9(),
//       context_id_expected(). Those with bit 24 on gfx11 and later neither:
//       event_interrupt_isr_v11(), AMDGPU_FENCE_MES_QUEUE_FLAG.
//   P8  other events, data and interrupt selectors of RELEASE_MEM, registers outside the SH window,
//       unknown opcodes, wrong lengths: dies. nvd.h and soc15d.h, PACKET3_*.
//   A PM4 queue of a GPU with several chiplets runs on one: init_mqd_v9_4_3(),
//   pm4_target_xcc_in_xcp.
// AQL (queue.cpp)
//   A1  vendor packets that are no PM4 buffer: dies. ROCR-Runtime, AqlQueue::ExecutePM4().
//   A2  partial work-groups, misaligned descriptors and entries: dies, HSA 1.2, 2.9.6.
//   A3  more scratch than the queue object offers: dies. ROCR-Runtime, InitScratchSRD().

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/sim/amd/engine/gpu_memory.h"
#include "tests/sim/amd/engine/state.h"

namespace bm::sim::amd {

struct QueueSetup {
  uint32_t gpu = 0, gpu_id = 0;
  uint32_t type = 0;  ///< KFD_IOC_QUEUE_TYPE_*
  uint32_t priority = 7;
  uint64_t ring = 0, ring_bytes = 0;
  uint64_t write_pointer = 0, read_pointer = 0;  ///< GPU addresses
  volatile uint64_t* doorbell = nullptr;
  uint32_t xccs = 1;
  uint32_t target_xcc = 0;   ///< of PM4 queues: bits 15:8 of CREATE_QUEUE's percentage
  uint32_t generation = 11;  ///< gfx9 … gfx12
  bool is_gfx9() const { return generation == 9; }
  bool is_gfx10() const { return generation == 10; }
  bool is_evicted = false;  ///< never runs
  uint64_t first = 0;       ///< where reading starts, in the ring's units
  /// A bare chip's: asked before each packet, and IB_ENABLE as it is now; absent: running, clear.
  std::function<bool()> is_halted, runs_buffers;
  /// A bare chip's: a PM4 packet writes `value` to a register and waits for its answer in another.
  /// False: no such pair. Absent: the answer is there at once.
  std::function<bool(uint32_t request, uint32_t answer, uint32_t value)> write_and_wait;
  std::function<void(uint32_t)> interrupt;  ///< with its context
  std::function<void(const Death&)> die;
};

class Queue {
 public:
  Queue(GpuMemory& memory, EngineState& state, QueueSetup setup);
  ~Queue();
  /// Where it reads: the packet that is being executed, in the ring's units and never wrapped.
  uint64_t position() const { return position_; }
  /// The indirect buffer that it is in, and dwords of it that are done; 0: in the ring.
  uint64_t buffer() const { return buffer_; }
  uint32_t buffer_dwords() const { return buffer_dwords_; }
  uint32_t buffer_position() const { return buffer_position_; }
  WaveBoard& waves() { return board_; }
  /// It stops where it is, for good.
  void evict() { stops_ = true; }

 private:
  struct Stop {};  // thrown: the queue is destroyed or dead

  void run();
  void run_ring();
  void run_aql(uint64_t index);
  // PM4, one packet; returns its dwords. `is_indirect`: PRED_EXEC counts.
  uint32_t run_pm4(std::span<const uint32_t> words, bool is_indirect);
  void run_pm4_buffer(uint64_t address, uint32_t dwords);
  /// A buffer that every chiplet runs.
  void run_on_all(uint64_t address, uint32_t dwords);
  bool step(uint64_t address, uint32_t dwords, uint32_t& at);
  uint32_t run_sdma(std::span<const uint32_t> words);
  void run_sdma_buffer(uint64_t address, uint32_t dwords);
  void release_mem(std::span<const uint32_t> body);
  bool is_met(std::span<const uint32_t> body);
  void dispatch(std::span<const uint32_t> body);
  void launch(const Launch& launch);

  std::byte* memory_at(uint64_t va, uint64_t bytes, bool is_write);
  void read(uint64_t va, std::span<std::byte> to);
  uint32_t load32(uint64_t va);
  uint64_t load64(uint64_t va);
  void store32(uint64_t va, uint32_t value);
  void store64(uint64_t va, uint64_t value);
  /// As a copy engine does it: over PCIe where the memory is another GPU's.
  void write(uint64_t va, const std::byte* data, uint64_t bytes);
  void wait_until(const std::function<bool()>& is_done);
  void check(bool is_right, const char* what);
  /// What makes no engine complain and yet is never passed; until the queue is destroyed.
  [[noreturn]] void stand_still(const char* why);
  /// P2: a word is written by one chiplet of those that run a buffer.
  void note_writer(uint64_t va);
  void raise(uint32_t context);
  void pause();
  // What a planted fault damages (damage.cpp).
  /// What a launch is made of, wherever its packet has it.
  struct LaunchFields {
    uint64_t code = 0;   ///< PM4: first instruction; AQL: kernel descriptor
    uint64_t entry = 0;  ///< first instruction
    uint64_t kernarg = 0;
    uint32_t threads_x = 0, groups_x = 0, lds_bytes = 0, private_bytes = 0, rsrc1 = 0;
  };
  void damage(LaunchFields& fields);
  void damage_packet(std::span<uint32_t> packet);  ///< AQL
  void damage_registers(uint32_t groups);          ///< PM4
  bool can_damage(const LaunchFields& fields);
  void damage_code(uint64_t entry);
  void damage_copy(std::span<uint32_t> packet);
  /// True: the wait's value is to become one that never comes.
  bool damages_wait();
  /// Places of the arguments that are addresses, from the first on.
  std::vector<uint64_t> pointers(uint64_t kernarg);
  /// First address at or after `va` that is not mapped.
  uint64_t first_gap(uint64_t va);
  /// Engines that stand still, and GPUs that go away.
  void stop_engine();
  /// A fence: held back, late or lost as the knobs say. False: lost.
  bool may_signal();
  static uint64_t clock();

  GpuMemory& memory_;
  EngineState& state_;
  const QueueSetup setup_;
  using ShRegisters = std::array<uint32_t, 0x400>;  ///< 0x2c00 …
  std::vector<ShRegisters> sh_;                     ///< of each chiplet
  uint32_t xcc_ = 0;                                ///< which is at work
  bool is_shared_ = false;                          ///< in a buffer that every chiplet runs
  std::map<uint64_t, uint32_t> writers_;            ///< of words, in such a buffer; 0: interrupts
  std::vector<uint32_t> packet_;                    ///< of step()
  uint64_t counted_wait_ = 0;                       ///< its packet, in step()
  bool is_handed_over_ = false;                     ///< the copy packet before was a poll
  bool is_stepping_ = false;
  bool is_in_buffer_ = false;  ///< a copy queue's
  uint64_t lost_page_ = 0;
  uint32_t damaged_groups_ = 0;  ///< of a planted fault; 0: none
  std::minstd_rand random_{1};
  std::atomic<bool> stops_{false};
  std::atomic<uint64_t> position_{0}, buffer_{0};
  std::atomic<uint32_t> buffer_dwords_{0}, buffer_position_{0};
  WaveBoard board_;
  std::thread thread_;
};

}  // namespace bm::sim::amd
