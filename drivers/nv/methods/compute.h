#pragma once
// Methods of the compute classes.
//
// Source: open-gpu-doc, classes/compute/clc6c0.h, NVC6C0_*; offsets equal in clc5c0.h … clcec0.h.

#include <cstdint>
#include <span>

#include "drivers/nv/chips.h"
#include "drivers/nv/methods/host.h"
#include "drivers/nv/methods/push.h"

namespace bm::nv {

inline constexpr uint32_t kComputeNoOperation = 0x100;
inline constexpr uint32_t kComputeWaitForIdle = 0x110;
inline constexpr uint32_t kComputeLineLengthIn = 0x180;
inline constexpr uint32_t kComputeLaunchDma = 0x1b0;
inline constexpr uint32_t kComputeLoadInlineData = 0x1b4;
inline constexpr uint32_t kInvalidateSkedCaches = 0x298;
inline constexpr uint32_t kSharedMemoryWindow = 0x2a0;
inline constexpr uint32_t kSendPcasA = 0x2b4;
inline constexpr uint32_t kSendSignalingPcasB = 0x2bc;
inline constexpr uint32_t kSendSignalingPcas2B = 0x2c0;
inline constexpr uint32_t kLocalMemorySize = 0x2e4;
inline constexpr uint32_t kLocalMemory = 0x790;
inline constexpr uint32_t kLocalMemoryWindow = 0x7b0;
inline constexpr uint32_t kInvalidateShaderCachesNoWfi = 0x1698;

/// LAUNCH_DMA: pitch layout, flush only.
inline constexpr uint32_t kInlineWrite = 0x41;
/// INVALIDATE_SHADER_CACHES_NO_WFI: instruction, global data, constant.
inline constexpr uint32_t kAllShaderCaches = 0x1011;
/// SEND_SIGNALING_PCAS_B: INVALIDATE, SCHEDULE.
inline constexpr uint32_t kPcasInvalidateSchedule = 3;

/// Later methods are not started before all grids are done.
inline void wait_for_idle(Push& push) { push.incr(Subchannel::kCompute, kComputeWaitForIdle, 0); }

/// Later grids see memory, code and descriptors as they are now: descriptors lie in memory that is
/// used again, and those of a chain are started by no method that could invalidate them one by one.
inline void invalidate_caches(Push& push) {
  push.incr(Subchannel::kCompute, kInvalidateSkedCaches, 0);
  push.incr(Subchannel::kCompute, kInvalidateShaderCachesNoWfi, kAllShaderCaches);
}

/// Starts the grid of the descriptor at `qmd` (256-byte aligned, below 2^40). Returns the index of
/// the second method's header: overwritten with a no-operation's, nothing is started.
/// `action`: ChipRow::launch_action.
inline uint32_t launch(Push& push, LaunchMethod form, uint32_t action, uint64_t qmd) {
  push.incr(Subchannel::kCompute, kSendPcasA, static_cast<uint32_t>(qmd >> 8));
  const uint32_t header = push.position();
  switch (form) {
    case LaunchMethod::kPcasB:
      push.incr(Subchannel::kCompute, kSendSignalingPcasB, kPcasInvalidateSchedule);
      break;
    case LaunchMethod::kPcas2B:
      push.incr(Subchannel::kCompute, kSendSignalingPcas2B, action);
      break;
  }
  return header;
}
constexpr uint32_t launch_header(LaunchMethod form) {
  return push_header(PushOp::kIncrement, Subchannel::kCompute,
                     form == LaunchMethod::kPcasB ? kSendSignalingPcasB : kSendSignalingPcas2B, 1);
}
inline constexpr uint32_t kComputeNoOperationHeader =
    push_header(PushOp::kIncrement, Subchannel::kCompute, kComputeNoOperation, 1);

/// Where the words of an inline write lie.
struct InlineWords {
  uint32_t bytes;      ///< LINE_LENGTH_IN
  uint32_t addresses;  ///< upper, then lower
  uint32_t header;     ///< of the data, which follows it
};

/// Writes `words` to `address` in order with the grids' launches (not with their ends).
inline InlineWords write_inline(Push& push, uint64_t address, std::span<const uint32_t> words) {
  InlineWords at{};
  at.bytes = push.incr(Subchannel::kCompute, kComputeLineLengthIn, words.size() * sizeof(uint32_t),
                       1, hi32(address), lo32(address));
  at.addresses = at.bytes + 2;
  push.incr(Subchannel::kCompute, kComputeLaunchDma, kInlineWrite);
  at.header = push.position();
  push.non_incr(Subchannel::kCompute, kComputeLoadInlineData, words);
  return at;
}
/// Header of the data of an inline write.
constexpr uint32_t inline_header(uint32_t words) {
  return push_header(PushOp::kNonIncrement, Subchannel::kCompute, kComputeLoadInlineData, words);
}

struct LocalMemorySetup {
  uint64_t address = 0;
  uint64_t bytes_per_tpc = 0;  ///< multiple of 0x8000
  uint32_t max_sms = 0;        ///< third word; 0xff: no limit
};
inline void set_local_memory(Push& push, const LocalMemorySetup& setup) {
  push.incr(Subchannel::kCompute, kLocalMemory, hi32(setup.address), lo32(setup.address));
  push.incr(Subchannel::kCompute, kLocalMemorySize, hi32(setup.bytes_per_tpc),
            lo32(setup.bytes_per_tpc), setup.max_sms);
}

/// First push of a compute channel.
inline void setup_compute(Push& push, uint64_t shared_window, uint64_t local_window) {
  set_object(push, Subchannel::kCompute, push.classes().compute);
  push.incr(Subchannel::kCompute, kLocalMemoryWindow, hi32(local_window), lo32(local_window));
  push.incr(Subchannel::kCompute, kSharedMemoryWindow, hi32(shared_window), lo32(shared_window));
}

}  // namespace bm::nv
