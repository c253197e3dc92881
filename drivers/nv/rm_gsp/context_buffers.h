#pragma once
// Memory in which the graphics engine keeps the state of a context: which buffers there are, and
// telling the resource manager where they lie.
//
// Source: Linux nouveau, nvkm/subdev/gsp/rm/r535/gr.c (r535_gr_get_ctxbuf_info(),
// r535_gr_promote_ctx()); open-gpu-kernel-modules 570.144, kernel_graphics_object.c
// (kgrobjPromoteContext_IMPL()), ctrl2080gpu.h (NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ID_*).

#include <cstdint>
#include <optional>
#include <vector>

#include "drivers/nv/abi/abi.h"
#include "drivers/nv/rm_gsp/memory.h"
#include "drivers/nv/rm_gsp/mmu.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// One buffer of a context.
struct ContextBuffer {
  uint16_t id = 0;              ///< NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ID_*
  uint64_t bytes = 0;           ///< whole pages
  uint64_t alignment = 0;       ///< of its address on the GPU
  bool is_global = false;       ///< all contexts share one
  bool is_initialized = false;  ///< the resource manager fills it, by its physical address
  bool is_read_only = false;
  bool is_unmapped = false;  ///< has no address on the GPU in the golden context
};

/// The buffers of this card, from what STATIC_KGR_GET_CONTEXT_BUFFERS_INFO answers.
/// Errors: kUnsupported (no main buffer).
Result<std::vector<ContextBuffer>> list_context_buffers(
    const abi::Params<abi::ContextBuffers>& info);

/// Buffers of one context, mapped into a space. Freed after its channel: the resource manager wants
/// them mapped until then.
class ContextMemory {
 public:
  /// Empty until make().
  ContextMemory() = default;
  ContextMemory(ContextMemory&&) = default;
  ContextMemory& operator=(ContextMemory&& other) noexcept;
  ~ContextMemory() { release(); }

  /// `shared`: the golden context's, whose global buffers are mapped; nullptr: this is the golden
  /// context, and has its own. `window`: of the space.
  static Result<ContextMemory> make(CardMemory& memory, AddressSpace& space, size_t window,
                                    const std::vector<ContextBuffer>& list,
                                    const ContextMemory* shared);

  /// Entries of PROMOTE_CTX for channel `channel` of `client`.
  void describe(abi::Params<abi::PromoteCtx>& params, uint32_t client, uint32_t channel) const;

  /// Keeps the global buffers and gives up all mappings: the golden context's end.
  void keep_global();

 private:
  struct Part {
    ContextBuffer buffer;
    std::optional<Block> block;  ///< none: the golden context's
    uint64_t physical = 0;
    uint64_t va = 0;  ///< 0: not mapped
  };
  void release();
  Status map(Part& part);

  AddressSpace* space_ = nullptr;
  size_t window_ = 0;
  std::vector<Part> parts_;
};

}  // namespace bm::nv::gsp
