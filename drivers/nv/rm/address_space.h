#pragma once
// Whoever owns the page tables of a GPU: the unified memory module, or a driver of ours.

#include <cstdint>

#include "runtime/base/result.h"

namespace bm::nv {

/// Thread: callers serialise, as for their GPU.
class RmAddressSpace {
 public:
  virtual ~RmAddressSpace() = default;
  /// Makes the space that of a channel, which must not be scheduled before, and maps the buffers
  /// the channel itself asks for. `is_graphics`: it has the context of the graphics engine.
  virtual Status add_channel(uint32_t channel, bool is_graphics) = 0;
  /// Takes that back; the channel's objects are still there. Only after add_channel() succeeded.
  virtual Status remove_channel(uint32_t channel) = 0;
};

}  // namespace bm::nv
