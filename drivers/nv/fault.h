#pragma once
// What went wrong on the GPU, in words.

#include <cstdint>
#include <string_view>

#include "drivers/nv/gpu.h"
#include "runtime/base/result.h"

namespace bm::nv {

/// Robust-channel code of an error notifier: name and what to make of it.
/// Source: open-gpu-kernel-modules 595.45.04, nverror.h, ROBUST_CHANNEL_*.
struct ChannelError {
  uint32_t code;
  std::string_view name;
  std::string_view hint;  ///< may be empty
  bool loses_device;      ///< the GPU, not our channel
};
/// Row of a code; one with an empty name for codes not listed.
ChannelError channel_error(uint32_t code);

/// Everything that can be found out about the dead channel of `ring`.
Error describe_fault(Gpu& gpu, HardwareRing& ring);

}  // namespace bm::nv
