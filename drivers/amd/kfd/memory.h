#pragma once
// Memory and queues of a GPU of the kernel driver.

#include <cstdint>
#include <memory>
#include <vector>

#include "drivers/amd/driver_interface.h"
#include "drivers/amd/kfd/gpu.h"

namespace bm::amd::kfd {

/// Freed in the order the kernel wants: unmapped from every GPU, from the CPU, then freed.
class KfdMemory final : public Memory {
 public:
  static Result<std::unique_ptr<KfdMemory>> allocate(KfdGpu& gpu, const MemoryRequest& request);
  /// The page with the registers that flush writes over PCIe into a GPU's video memory; not mapped
  /// to any GPU yet. Errors: kUnsupported where the kernel has none (virtual functions).
  static Result<std::unique_ptr<KfdMemory>> flush_page(KfdGpu& gpu);
  ~KfdMemory() override;
  /// Makes it reachable for a GPU of the session. Once per GPU.
  Status map_to(uint32_t gpu_id);
  const Session* session() const { return session_.get(); }

 private:
  explicit KfdMemory(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  Status make(KfdGpu& gpu, const MemoryRequest& request);

  std::shared_ptr<Session> session_;
  uint64_t handle_ = 0;
  bool has_handle_ = false, has_addresses_ = false;
  std::vector<uint32_t> gpu_ids_;
};

/// A user queue with everything the kernel wants beside its ring.
class KfdQueue final : public HardwareQueue {
 public:
  static Result<std::unique_ptr<KfdQueue>> create(KfdGpu& gpu, const QueueRequest& request);
  ~KfdQueue() override;

 private:
  explicit KfdQueue(KfdGpu& gpu) : gpu_(gpu) {}
  Status make(const QueueRequest& request);

  KfdGpu& gpu_;
  std::unique_ptr<Memory> page_, eop_, save_;
  Event event_;
  uint32_t queue_id_ = 0;
  bool is_created_ = false;
};

}  // namespace bm::amd::kfd
