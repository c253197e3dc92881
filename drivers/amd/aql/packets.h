#pragma once
// AQL: packets of 64 bytes for queues whose command processor launches kernels by itself, and the
// queue object it reads. Pure.
//
// Sources: HSA Platform System Architecture 1.2, "Architected Queuing Language"; ROCm,
// hsa/amd_hsa_queue.h, amd_queue_t (offsets); PM4 inside AQL: ROCR-Runtime, amd_aql_queue.cpp,
// AqlQueue::ExecutePM4().

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "drivers/amd/chips.h"
#include "runtime/base/result.h"

namespace bm::amd::aql {

inline constexpr size_t kPacketBytes = 64;
using Words = std::array<uint32_t, kPacketBytes / 4>;

enum class Scope : uint8_t { kNone = 0, kAgent = 1, kSystem = 2 };

/// What every packet's first 16 bits say beside its type.
struct Header {
  bool waits_for_earlier = true;  ///< barrier bit: starts when all packets before it are done
  Scope acquire = Scope::kSystem, release = Scope::kSystem;
  bool operator==(const Header&) const = default;
};

struct Dispatch {
  Header header{};
  uint16_t dimensions = 3;
  std::array<uint16_t, 3> threads{1, 1, 1};  ///< of a work-group
  std::array<uint32_t, 3> grid{1, 1, 1};     ///< in work-items, not groups
  uint32_t private_bytes = 0, group_bytes = 0;
  uint64_t descriptor = 0;  ///< of the kernel, multiple of 64
  uint64_t kernarg = 0;
  uint64_t completion = 0;  ///< HSA signal, 0: none
  bool operator==(const Dispatch&) const = default;
};
/// Starts when all dependencies (HSA signals) are zero.
struct BarrierAnd {
  Header header{};
  std::array<uint64_t, 5> dependencies{};
  uint64_t completion = 0;
  bool operator==(const BarrierAnd&) const = default;
};
/// Runs PM4 words elsewhere.
struct Pm4Indirect {
  Header header{};
  uint64_t address = 0;  ///< multiple of 4
  uint32_t dwords = 0;
  uint64_t completion = 0;
  bool operator==(const Pm4Indirect&) const = default;
};
using Packet = std::variant<Dispatch, BarrierAnd, Pm4Indirect>;

/// The packet's words. The first one, which makes it valid, must reach the ring last.
Words encode(const Packet& packet);
/// Errors: kCorrupt naming what is wrong, an invalid packet (type 1) among it.
Result<Packet> decode(std::span<const uint32_t> words);
/// First word of a ring slot nobody has filled.
inline constexpr uint32_t kInvalidWord = 1;
/// Indices of patchable words: grid x, y, z; kernarg low.
inline constexpr uint32_t kGridWord = 3, kKernargWord = 10;
std::string describe(const Packet& packet);

/// Facts of a queue that its command processor reads from memory.
struct QueueObject {
  uint32_t max_cu_id = 0, max_wave_id = 0;
  uint32_t tmpring = 0;
  uint64_t scratch = 0;             ///< base, 0: none
  uint64_t scratch_bytes = 0;       ///< of one chiplet
  uint32_t scratch_lane_bytes = 0;  ///< of a wave's scratch, divided by 64
};
inline constexpr size_t kQueueBytes = 256;
/// Byte offsets in the queue object that the host uses, too.
inline constexpr size_t kWriteIndexOffset = 56, kReadIndexOffset = 128;
using QueueWords = std::array<uint32_t, kQueueBytes / 4>;
/// The object with both indices zero. Errors: none; offsets as above.
QueueWords encode_queue(const QueueObject& queue, RegisterSet set);
QueueObject decode_queue(const QueueWords& words);

/// Buffer descriptor over scratch, for whoever reads it; code with architected flat scratch does
/// not.
std::array<uint32_t, 4> scratch_descriptor(uint64_t base, uint64_t bytes, RegisterSet set);

}  // namespace bm::amd::aql
