#pragma once
// Stage P14: the context that the resource manager keeps a copy of, to start every other from. It
// is made when the first object of the graphics engine is allocated, on a channel of our own that
// is freed again; what stays are the buffers that all contexts share.
//
// Source: Linux nouveau, nvkm/subdev/gsp/rm/r535/gr.c, r535_gr_oneinit(); r535/vmm.c,
// r535_mmu_vaspace_new(); tinygrad, runtime/support/nv/ip.py, init_golden_image().

#include <cstdint>
#include <memory>
#include <vector>

#include "drivers/nv/rm_gsp/channel_memory.h"
#include "drivers/nv/rm_gsp/context_buffers.h"
#include "drivers/nv/rm_gsp/mmu.h"
#include "drivers/nv/rm_gsp/rm_calls.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// What the golden context is made with, and every channel after it.
struct ContextFacts {
  const StaticInfo* info = nullptr;
  uint64_t method_buffer_bytes = 0;
  uint32_t channel_class = 0, compute_class = 0;
};

class GoldenContext {
 public:
  /// Part of an address space that the resource manager has for itself: SPLIT_VAS_SERVER_RM_MANAGED
  /// of vaspace.h (570.144). Nothing of ours lies below its end.
  static constexpr uint64_t kReservedBase = uint64_t{4} << 30, kReservedBytes = 512 << 20;

  /// `client`: a handle that nobody has. Errors: of the calls, named; kOutOfMemory.
  static Result<GoldenContext> make(RmCalls& calls, CardMemory& memory, Mmu& mmu,
                                    ChannelNumbers& numbers, const ContextFacts& facts,
                                    uint32_t client);

  const std::vector<ContextBuffer>& buffers() const { return buffers_; }
  const ContextMemory& memory() const { return memory_; }

 private:
  std::vector<ContextBuffer> buffers_;
  ContextMemory memory_;
};

}  // namespace bm::nv::gsp
