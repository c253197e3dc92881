#pragma once
// Commands as packets: a pure function of chip, addresses and commands.
//
// A ring's words come in segments: of the compute ring each is a buffer, an entry; of
// the copy ring packets that go into the ring themselves. On AQL rings launches are entries of
// their own.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/gpu.h"
#include "drivers/amd/pm4/compute.h"
#include "drivers/hcq/encoded_commands.h"
#include "runtime/hal/command.h"

namespace bm::amd {

using hcq::kComputeRing;
using hcq::kCopyRing;
using hcq::kRings;

struct EncodingContext : hcq::EncodingContext {
  const Gpu* gpu = nullptr;      ///< programs of other devices are refused
  bool is_aql = false;           ///< of the compute ring
  uint32_t readers = 1;          ///< chiplets that run every word of the compute ring
  bool keeps_arguments = false;  ///< argument blocks are copied to EncodedCommands::data
  uint64_t queue_object = 0;
  std::array<uint64_t, kRings> fence_va{},
      fence{};  ///< written at the end of each ring used; see
                ///< HardwareRing::next_fence() where readers are several
  const ScratchArea* scratch = nullptr;
};

/// Where a command's patchable words lie.
struct CommandSite {
  enum class Kind : uint8_t { kNone, kWait, kSignal, kFences, kCopy, kTimestamp, kLaunch };
  Kind kind = Kind::kNone;
  size_t ring = 0;
  uint32_t at = 0;     ///< first payload word (PM4) or header (SDMA)
  uint32_t first = 0;  ///< kCopy: first piece; kLaunch: the launch
  uint32_t count = 0;  ///< kCopy: pieces
};
struct LaunchPart {
  const AmdProgram* program = nullptr;
  hal::Dim3 grid;
  uint32_t groups = 0;           ///< PM4: DISPATCH_DIRECT's first payload word
  uint32_t packet = 0;           ///< AQL: index in EncodedCommands::packets
  uint32_t block = kNoBlock;     ///< dword in EncodedCommands::data of the argument block
  uint32_t dispatch = kNoBlock;  ///< of the dispatch packet's copy
  static constexpr uint32_t kNoBlock = UINT32_MAX;
};
struct CopyPart {
  uint32_t at = 0;      ///< header in the copy ring
  uint64_t offset = 0;  ///< of the piece in its copy
};
/// A 32-bit word (waits) or a pair of them that holds a value of a cross-engine semaphore.
struct CrossEngineSite {
  size_t ring = 0;
  uint32_t low = 0, high = UINT32_MAX;  ///< word indices; no high word in waits
  uint64_t ordinal = 0;                 ///< value: cross_releases of the submission + ordinal
};
/// An entry of a ring, in the order of submission.
struct Entry {
  size_t ring = 0;
  bool is_packet = false;  ///< AQL launch: `first` in EncodedCommands::packets
  uint32_t first = 0, dwords = 0;
};

/// Places of its ring that an entry takes, at most.
inline uint32_t room_of(const Entry& entry) {
  return entry.ring == kCopyRing ? HardwareRing::room_of(entry.dwords) : 1;
}

/// Data: argument blocks and dispatch packets.
struct EncodedCommands : hcq::EncodedCommands<LaunchPart, CommandSite, CopyPart, CrossEngineSite> {
  std::vector<aql::Words> packets;
  std::vector<Entry> entries;
  std::array<uint32_t, kRings> fence_at{};  ///< of the fence's low word; valid where ring_used.
                                            ///< Of further readers each kNextFence further on
  std::array<bool, kRings> ring_used{};
  void clear();
};

/// Words between the low and the high half of a fence's value: 1 on the compute ring, 4 on the copy
/// ring, where each half is a packet.
constexpr uint32_t fence_high(size_t ring, uint32_t low) {
  return low + (ring == kCopyRing ? 4 : 1);
}

/// Words from one reader's fence to the next one's: RELEASE_MEM behind PRED_EXEC.
inline constexpr uint32_t kNextFence = pm4::kOnceDwords;

/// Replaces `encoded`. `patched`: hcq::PatchedBits per command, or empty.
/// Errors: kInvalidArgument (grid, alignment, argument block), kUnsupported (kernel on a copy
/// queue).
Status encode(std::span<const hal::Command> commands, std::span<const uint8_t> patched,
              const EncodingContext& context, EncodedCommands& encoded);

}  // namespace bm::amd
