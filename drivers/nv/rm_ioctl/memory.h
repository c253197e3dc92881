#pragma once
// Memory of a GPU and of this process, as objects of the resource manager mapped through UVM.

#include <memory>

#include "drivers/nv/rm_ioctl/gpu.h"

namespace bm::nv {

/// Freed on destruction: GPU mappings, then the object, then the CPU's mapping, then the addresses.
class RmMemory final : public Memory {
 public:
  /// See DriverInterface::allocate().
  static Result<std::unique_ptr<Memory>> allocate(RmGpu& gpu, const MemoryRequest& request);
  ~RmMemory() override;

 private:
  explicit RmMemory(RmGpu& gpu) : session_(gpu.session()) {}
  Status make_video(RmGpu& gpu, const MemoryRequest& request);
  Status make_system(RmGpu& gpu);
  Status register_existing(RmGpu& gpu, void* host);
  Status map_gpu(RmGpu& gpu);

  RmSession& session_;
  RmObject object_;
  bool has_addresses_ = false, is_cpu_mapped_ = false, has_range_ = false;
};

}  // namespace bm::nv
