#pragma once
// Queues of the modelled GPU: each a thread that reads its ring and executes packets, strictly.
// What hardware would not accept kills the queue and raises the fault the driver must report.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "tests/sim/amd/kfd/machine.h"
#include "tests/sim/amd/kfd/memory.h"

namespace bm::sim::amd {

struct QueueSetup {
  uint32_t gpu = 0, gpu_id = 0;
  uint32_t type = 0;  ///< KFD_IOC_QUEUE_TYPE_*
  uint32_t priority = 7;
  uint64_t ring = 0, ring_bytes = 0;
  uint64_t write_pointer = 0, read_pointer = 0;  ///< GPU addresses
  volatile uint64_t* doorbell = nullptr;
  uint32_t xccs = 1;
  bool is_gfx9 = false, is_gfx10 = false;
  bool is_evicted = false;                  ///< never runs
  std::function<void(uint32_t)> interrupt;  ///< with its context
  std::function<void(const Death&)> die;
};

class Queue {
 public:
  Queue(DeviceMemory& memory, Machine& machine, QueueSetup setup);
  ~Queue();
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
  uint32_t run_sdma(std::span<const uint32_t> words, bool is_indirect);
  void run_sdma_buffer(uint64_t address, uint32_t dwords);
  void release_mem(std::span<const uint32_t> body);
  void wait_reg_mem(std::span<const uint32_t> body);
  void dispatch(std::span<const uint32_t> body);
  void launch(const Launch& launch);

  std::byte* memory_at(uint64_t va, uint64_t bytes, bool is_write);
  uint32_t load32(uint64_t va);
  uint64_t load64(uint64_t va);
  void store32(uint64_t va, uint32_t value);
  void store64(uint64_t va, uint64_t value);
  /// As a copy engine does it: over PCIe where the memory is another GPU's.
  void write(uint64_t va, const std::byte* data, uint64_t bytes);
  void wait_until(const std::function<bool()>& is_done);
  void check(bool is_right, const char* what);
  void pause();
  /// A fence: held back, late or lost as the knobs say. False: lost.
  bool may_signal();
  static uint64_t clock();

  DeviceMemory& memory_;
  Machine& machine_;
  const QueueSetup setup_;
  std::array<uint32_t, 0x400> sh_{};  ///< registers 0x2c00 …
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace bm::sim::amd
