#pragma once
// Memory and hardware queues of a booted card.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "drivers/amd/am/gpu.h"
#include "drivers/amd/driver_interface.h"
#include "drivers/transport/pci.h"

namespace bm::amd::am {

/// Address on the GPU and in the process have nothing to do with each other: the view is at an
/// offset of its own.
class AmMemory final : public Memory {
 public:
  explicit AmMemory(AmGpu& gpu) : gpu_(gpu) {}
  ~AmMemory() override;

 private:
  friend class AmGpu;
  Status make(const MemoryRequest& request);
  Status attach(const KeptRecord& record);
  Status take_system(bool is_contiguous);
  Status take_video(bool is_seen, std::vector<memory::PhysicalRange>* ranges);
  Status pin(const MemoryRequest& request);
  Status check_reach() const;
  /// Whether it may hold what another process has left there.
  bool is_foreign() const;
  void release();

  AmGpu& gpu_;
  std::vector<std::weak_ptr<GpuLink>> peers_;  ///< GPUs that have mapped it, too
  std::unique_ptr<DmaMemory> pinned_;
  std::unique_ptr<RemoteWindow> window_;  ///< of what stands in for system memory
  std::vector<BusRange> bus_ranges_;
  std::optional<uint64_t> iova_;
  void* host_ = nullptr;  ///< of the process, mapped for DMA
  uint64_t physical_ = 0;
  bool has_physical_ = false, has_addresses_ = false, is_mapped_ = false;
};

class AmQueue final : public HardwareQueue {
 public:
  explicit AmQueue(AmGpu& gpu) : gpu_(gpu) {}
  ~AmQueue() override;
  Status restart() override;

 private:
  friend class AmGpu;
  /// restart() of who holds the mutex.
  Status restart_locked();
  /// In the page of the pointers, behind the queue object.
  static constexpr uint64_t kMailbox = 2048;
  Status make(const QueueRequest& request);
  /// Whether the GPU has read all that it was told of.
  bool is_idle() const;
  Status start();
  Status start_compute();
  Status start_copy();
  Status take_slot(uint32_t* taken, uint32_t count, uint32_t wanted);

  AmGpu& gpu_;
  QueueRequest request_;
  std::unique_ptr<Memory> page_, eop_;
  uint32_t* taken_ = nullptr;  ///< bits of the kind's queues
  uint32_t slot_ = 0;
  bool is_started_ = false;
};

}  // namespace bm::amd::am
