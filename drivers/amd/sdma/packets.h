#pragma once
// Packets of the copy engine (SDMA): each as a value, its words, and back. Pure.
//
// Sources: Linux, drivers/gpu/drm/amd/amdgpu/vega10_sdma_pkt_open.h (4.4.2), navi10_sdma_pkt_open.h
// (5.2), sdma_v6_0_0_pkt_open.h (6.x) and sdma_v7_0_0_pkt_open.h, SDMA_PKT_*; the fence's memory
// type as in sdma_v5_2.c and sdma_v6_0.c, sdma_v*_ring_emit_fence().

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "drivers/amd/chips.h"
#include "runtime/base/result.h"

namespace bm::amd::sdma {

/// Bytes one copy or fill packet moves; also a multiple of 32, so that pieces stay aligned.
uint64_t max_piece(SdmaForm form);

struct Nop {
  bool operator==(const Nop&) const = default;
};
/// Words the engine passes over.
struct Skip {
  std::span<const uint32_t> hidden;
};
struct Copy {
  uint64_t source = 0, target = 0;
  uint64_t bytes = 0;  ///< 1 … max_piece()
  bool operator==(const Copy&) const = default;
};
/// Dwords to memory.
struct Write {
  uint64_t target = 0;  ///< multiple of 4
  std::span<const uint32_t> values;
};
/// Zeroes memory.
struct Fill {
  uint64_t target = 0;  ///< multiple of 4
  uint64_t bytes = 0;   ///< multiple of 4, at most max_piece()
  bool operator==(const Fill&) const = default;
};
/// Runs words elsewhere; in a ring it must end at a multiple of 8 dwords. Only where the queue's
/// IB_CNTL.IB_ENABLE is set: GpuFacts::has_indirect_copies.
struct Indirect {
  uint64_t address = 0;  ///< multiple of 32
  uint32_t dwords = 0;   ///< multiple of 8, at most 20 bits
  bool operator==(const Indirect&) const = default;
};
/// 32 bits after all earlier writes have arrived.
struct Fence {
  uint64_t address = 0;  ///< multiple of 4
  uint32_t value = 0;
  bool operator==(const Fence&) const = default;
};
struct Trap {
  uint32_t context = 0;  ///< event id, 28 bits
  bool operator==(const Trap&) const = default;
};
/// Polls until (word & mask) >= value, for ever.
struct WaitMemory {
  uint64_t address = 0;  ///< multiple of 4
  uint32_t value = 0, mask = UINT32_MAX;
  uint16_t interval = 4;
  bool operator==(const WaitMemory&) const = default;
};
/// 64 bits of the clock that all engines share.
struct Timestamp {
  uint64_t target = 0;  ///< multiple of 8
  bool operator==(const Timestamp&) const = default;
};

using Packet =
    std::variant<Nop, Skip, Copy, Write, Fill, Indirect, Fence, Trap, WaitMemory, Timestamp>;

/// Dwords of a packet.
inline constexpr uint32_t kCopyDwords = 7, kIndirectDwords = 6, kFenceDwords = 4, kWaitDwords = 6;
/// Of all but WRITE and NOP over words, which have any length.
inline constexpr uint32_t kLongestDwords = kCopyDwords;
/// One dword passed over, on every engine and firmware; longer ones need BURST_NOP.
inline constexpr uint32_t kNopWord = 0;
/// Headers of a copy, and of the same words passed over.
inline constexpr uint32_t kCopyHeader = 1, kSkippedCopyHeader = (kCopyDwords - 1) << 16;
/// Indices of patchable words in a packet.
inline constexpr uint32_t kCopyCount = 1, kCopySource = 3, kCopyTarget = 5;
inline constexpr uint32_t kFenceAddress = 1, kFenceValue = 3;
inline constexpr uint32_t kWaitAddress = 1, kWaitValue = 3;
inline constexpr uint32_t kTimestampTarget = 1;
/// Indirect buffers are a multiple of this many dwords and start at as many bytes times 4.
inline constexpr uint32_t kIndirectAlign = 8;

/// Appends packets; every put returns the index of the packet's header. Values out of range break a
/// promise of the caller.
class Writer {
 public:
  Writer(std::vector<uint32_t>& words, SdmaForm form) : words_(words), form_(form) {}
  uint32_t position() const { return static_cast<uint32_t>(words_.size()); }
  SdmaForm form() const { return form_; }

  uint32_t put(const Nop& packet);
  uint32_t put(const Skip& packet);
  uint32_t put(const Copy& packet);
  uint32_t put(const Write& packet);
  uint32_t put(const Fill& packet);
  uint32_t put(const Indirect& packet);
  uint32_t put(const Fence& packet);
  uint32_t put(const Trap& packet);
  uint32_t put(const WaitMemory& packet);
  uint32_t put(const Timestamp& packet);
  uint32_t put(const Packet& packet) {
    return std::visit([this](const auto& p) { return put(p); }, packet);
  }

 private:
  template <class... Values>
  uint32_t add(Values... values) {
    const uint32_t at = position();
    (words_.push_back(static_cast<uint32_t>(values)), ...);
    return at;
  }
  std::vector<uint32_t>& words_;
  SdmaForm form_;
};

struct Decoded {
  Packet packet;
  uint32_t dwords = 0;
};
/// First packet of `words`; spans in it view `words`. Errors: kCorrupt naming what is wrong.
Result<Decoded> decode(std::span<const uint32_t> words, SdmaForm form);
/// Dwords of the packets at the start of `words` that fit whole into `room` dwords. `words` are of
/// whole packets that a Writer made: others break a promise of the caller.
size_t whole_packets(std::span<const uint32_t> words, size_t room);
std::string describe(const Packet& packet);

}  // namespace bm::amd::sdma
