#pragma once
// What nvidia-uvm.ko refuses, each with the function of open-gpu-kernel-modules 595.45.04 that does
// and, in brackets, the test in tests/unit/sim_nv/rm_test.cpp:
//   every call before UVM_INITIALIZE (uvm.c, uvm_ioctl())  [UvmKeepsOrderAndRanges]
//   ranges that are not of whole pages, overlap, or are not there; mapping outside of one, freeing
//   a
//     part of one (uvm_map_external.c, uvm_api.h)  [UvmKeepsOrderAndRanges]
//   a channel that is none (INVALID_OBJECT_HANDLE), of another space, registered already
//     (uvm_user_channel.c; nv_gpu_ops.c, nvGpuOpsVerifyChannel())  [ChannelsOfGraphicsAreBound…]
//   a channel on graphics' runlist without context buffers (INVALID_OBJECT): a copy engine that
//     works in step with graphics, or no object of graphics or compute yet (nv_gpu_ops.c,
//     nvGpuOpsGetChannelEngineType(), _nvGpuOpsRetainChannelResources(); kernel_graphics_context.c,
//     kgrctxGetCtxBuffers_IMPL())  [CopyEnginesOfGraphicsAreTold…, ChannelsOfGraphicsAreBound…]
//   no room for those buffers in the range given (uvm_user_channel.c, create_va_range())
//     [ChannelsOfGraphicsAreBound…]
// One call into nvidia-uvm.ko.
// Source: open-gpu-kernel-modules 580.142, kernel-open/nvidia-uvm; each function names its model.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/kernel.h"

namespace bm::sim::nv {

using Uuid = std::array<uint8_t, 16>;

/// What UVM_INITIALIZE makes of a file: ranges of addresses, the GPUs that see them, and peers.
struct UvmSpace {
  uint64_t flags = 0;
  struct GpuState {
    std::shared_ptr<AddressSpace> space;  ///< once a GPU address space is registered
  };
  std::map<uint32_t, GpuState> gpus;              ///< registered, by index
  std::set<std::pair<uint32_t, uint32_t>> peers;  ///< smaller index first
  struct Range {
    uint64_t size = 0;
    bool is_channel = false;
    uint32_t channel_client = 0, channel = 0;
    std::set<uint32_t> mapped;  ///< GPUs
  };
  std::map<uint64_t, Range> ranges;
  struct UserChannel {
    uint32_t client = 0, handle = 0, gpu = 0;
    std::shared_ptr<Channel> channel;
  };
  std::vector<UserChannel> channels;
};

class UvmCalls {
 public:
  UvmCalls(Kernel& kernel, File& file, const Caller& caller)
      : kernel_(kernel), file_(file), caller_(caller) {}

  int ioctl(unsigned long request, uint64_t argument);

 private:
  RmStatus run(unsigned long request, Bytes params);
  RmStatus initialize(Bytes params);
  RmStatus mm_initialize(Bytes params);
  RmStatus register_gpu(Bytes params);
  RmStatus unregister_gpu(Bytes params);
  RmStatus register_va_space(Bytes params);
  RmStatus unregister_va_space(Bytes params);
  RmStatus register_channel(Bytes params);
  RmStatus unregister_channel(Bytes params);
  RmStatus enable_peer(Bytes params);
  RmStatus create_range(Bytes params);
  RmStatus map_external(Bytes params);
  RmStatus map_on_gpu(Bytes params, Bytes attributes, MemoryObject& memory);
  RmStatus unmap_external(Bytes params);
  RmStatus free(Bytes params);

  std::optional<uint32_t> gpu_of(Bytes params, size_t offset) const;
  bool overlaps(uint64_t base, uint64_t size) const;

  Kernel& kernel_;
  File& file_;
  const Caller& caller_;
};

}  // namespace bm::sim::nv
