#pragma once
// /dev/nvidia-uvm: who owns the page tables. One space per process, GPUs register with it.

#include <array>
#include <cstdint>
#include <memory>

#include "drivers/nv/rm_ioctl/ioctl_transport.h"

namespace bm::nv {

using GpuUuid = std::array<uint8_t, 16>;

/// Thread: any; the kernel serialises.
class UvmSpace {
 public:
  /// Opens and initialises the space, for objects of `client`. Heterogeneous memory is off: with it
  /// a stray GPU pointer into valid memory of the process would migrate pages instead of faulting.
  static Result<std::unique_ptr<UvmSpace>> open(IoctlTransport& transport, uint32_t client);

  Status register_gpu(const GpuUuid& gpu);
  Status unregister_gpu(const GpuUuid& gpu);
  Status register_va_space(const GpuUuid& gpu, uint32_t va_space);
  Status unregister_va_space(const GpuUuid& gpu);
  /// [base, base + bytes): free addresses where UVM may map the channel's own buffers.
  Status register_channel(const GpuUuid& gpu, uint32_t channel, uint64_t base, uint64_t bytes);
  Status unregister_channel(const GpuUuid& gpu, uint32_t channel);
  Status enable_peer(const GpuUuid& a, const GpuUuid& b);

  /// Makes an empty range. Base and size are multiples of the page size of what will be mapped.
  Status create_range(uint64_t base, uint64_t bytes);
  /// Maps an object of the resource manager over a whole range, for one GPU.
  Status map(uint64_t base, uint64_t bytes, uint32_t memory, const GpuUuid& gpu);
  Status unmap(uint64_t base, uint64_t bytes, const GpuUuid& gpu);
  /// Unmaps for all GPUs and forgets the range. The GPUs must be done with it.
  Status free_range(uint64_t base, uint64_t bytes);

 private:
  UvmSpace(IoctlTransport& transport, uint32_t client, DeviceFile file)
      : transport_(transport), client_(client), file_(std::move(file)) {}

  template <class S>
  Status call(Stage stage, uint32_t number, const std::string& what, abi::Params<S>& params);

  IoctlTransport& transport_;
  const uint32_t client_;  ///< root object whose objects are mapped
  DeviceFile file_;
};

/// "GPU-1b2c…", as nvidia-smi writes it.
std::string uuid_text(const GpuUuid& uuid);

}  // namespace bm::nv
