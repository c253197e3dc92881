#pragma once
// Methods of the copy engine's classes.
//
// Source: open-gpu-doc, classes/dma-copy/clc6b5.h, NVC6B5_*; offsets equal in clc5b5.h … clcab5.h.

#include <algorithm>
#include <cstdint>

#include "drivers/nv/methods/host.h"
#include "drivers/nv/methods/push.h"

namespace bm::nv {

inline constexpr uint32_t kCopyNop = 0x100;
inline constexpr uint32_t kCopySetSemaphoreA = 0x240;
inline constexpr uint32_t kCopyLaunchDma = 0x300;
inline constexpr uint32_t kCopyOffsetInUpper = 0x400;
inline constexpr uint32_t kCopyOffsetOutUpper = 0x408;
inline constexpr uint32_t kCopyLineLengthIn = 0x418;
inline constexpr uint32_t kCopyRemapConstA = 0x700;
inline constexpr uint32_t kCopyRemapComponents = 0x708;

/// LAUNCH_DMA: not pipelined, pitch layout on both sides.
inline constexpr uint32_t kPlainCopy = 0x182;
/// The same with remapped components.
inline constexpr uint32_t kFillCopy = kPlainCopy | 1u << 10;
/// LAUNCH_DMA: no transfer, flush, four-word semaphore {payload, 0, 64-bit nanoseconds}.
inline constexpr uint32_t kFlushAndRelease = 0x14;
/// SET_REMAP_COMPONENTS: four bytes of constant A to one component.
inline constexpr uint32_t kFillWords = 4 | 3u << 16;

/// SET_REMAP_COMPONENTS: four bytes of constant A, then four of constant B.
inline constexpr uint32_t kFillPairs = 4 | 5u << 4 | 3u << 16 | 1u << 24;

inline constexpr uint64_t kLargestCopy = uint64_t{1} << 31;

/// Where the words of one plain copy lie.
struct CopyWords {
  uint32_t addresses;  ///< source upper, source lower, destination upper, destination lower
  uint32_t bytes;
  uint32_t launch_header;
};

/// Copies at most kLargestCopy bytes, more than 0; any alignment.
inline CopyWords copy_piece(Push& push, uint64_t dst, uint64_t src, uint64_t bytes) {
  CopyWords words{};
  words.addresses =
      push.incr(Subchannel::kCopy, kCopyOffsetInUpper, hi32(src), lo32(src), hi32(dst), lo32(dst));
  words.bytes = push.incr(Subchannel::kCopy, kCopyLineLengthIn, bytes);
  words.launch_header = push.position();
  push.incr(Subchannel::kCopy, kCopyLaunchDma, kPlainCopy);
  return words;
}
/// Header in place of a piece's launch: nothing is copied.
inline constexpr uint32_t kCopyNopHeader =
    push_header(PushOp::kIncrement, Subchannel::kCopy, kCopyNop, 1);
inline constexpr uint32_t kCopyLaunchHeader =
    push_header(PushOp::kIncrement, Subchannel::kCopy, kCopyLaunchDma, 1);

/// Fills `bytes` (a multiple of 4) at `dst` (a multiple of 4) with one word.
inline void fill(Push& push, uint64_t dst, uint64_t bytes, uint32_t word) {
  push.incr(Subchannel::kCopy, kCopyRemapConstA, word, 0, kFillWords);
  for (uint64_t at = 0; at < bytes; at += kLargestCopy) {
    push.incr(Subchannel::kCopy, kCopyOffsetOutUpper, hi32(dst + at), lo32(dst + at));
    // With remapping a line is counted in elements.
    push.incr(Subchannel::kCopy, kCopyLineLengthIn, std::min(bytes - at, kLargestCopy) / 4);
    push.incr(Subchannel::kCopy, kCopyLaunchDma, kFillCopy);
  }
}

/// Where the words of a constant written by the copy engine lie.
struct ConstantWords {
  uint32_t value;      ///< lower, then upper
  uint32_t addresses;  ///< upper, then lower
};
/// Writes one 64-bit word in order with the copies.
inline ConstantWords write_constant(Push& push, uint64_t address, uint64_t value) {
  ConstantWords at{};
  at.value = push.incr(Subchannel::kCopy, kCopyRemapConstA, lo32(value), hi32(value), kFillPairs);
  at.addresses = push.incr(Subchannel::kCopy, kCopyOffsetOutUpper, hi32(address), lo32(address));
  push.incr(Subchannel::kCopy, kCopyLineLengthIn, 1);
  push.incr(Subchannel::kCopy, kCopyLaunchDma, kFillCopy);
  return at;
}

/// When all copies so far are visible everywhere: 16 bytes at `address` (a multiple of 16) =
/// {`payload`, nanoseconds of the GPU's clock}.
inline void flush_and_release(Push& push, uint64_t address, uint32_t payload) {
  push.incr(Subchannel::kCopy, kCopySetSemaphoreA, hi32(address), lo32(address), payload);
  push.incr(Subchannel::kCopy, kCopyLaunchDma, kFlushAndRelease);
}

/// First push of a copy channel.
inline void setup_copy(Push& push) { set_object(push, Subchannel::kCopy, push.classes().copy); }

}  // namespace bm::nv
