#pragma once
// Commands as push buffers: a pure function of chip, addresses and commands.
//
// A compute queue has two lanes, because its channel moves no memory: copies go to a copy channel
// and two semaphores keep the order. A copy queue has the second lane only.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "drivers/nv/loaded_program.h"
#include "drivers/nv/methods/push.h"
#include "runtime/hal/command.h"

namespace bm::nv {

inline constexpr size_t kComputeLane = 0, kCopyLane = 1, kLanes = 2;
inline constexpr size_t kNoLane = kLanes;

/// Addresses and facts that encoding needs.
struct ScriptContext {
  const Gpu* gpu = nullptr;  ///< programs of other devices are refused
  std::array<ChannelClasses, kLanes> classes;
  bool has_compute = true;
  uint64_t shared_window = 0, local_window = 0;
  uint32_t sm_count = 0;
  uint64_t to_copies = 0;         ///< semaphore: the compute lane hands over
  uint64_t to_compute = 0;        ///< semaphore: the copy lane hands back
  uint64_t flushed = 0;           ///< 16 bytes that a flush of the copy lane may overwrite
  uint64_t handovers = 0;         ///< last value of either semaphore
  bool waits_for_copies = false;  ///< the compute lane begins by waiting for `handovers`
  uint64_t data_va = 0;           ///< where Script::data will lie; multiple of 256
  /// The CPU's view of an argument block, or nullptr.
  std::function<const uint64_t*(uint64_t va, uint64_t bytes)> arguments;
};

/// One launch: where its parts lie in Script::data, in dwords.
struct LaunchPart {
  const NvProgram* program = nullptr;
  uint32_t command = 0;
  uint32_t bank = 0, qmd = 0;
  uint32_t header = 0;     ///< of the launching method in the compute lane; valid when !is_linked
  bool is_linked = false;  ///< started by the descriptor before it
  uint32_t releases = 0;
  hal::Dim3 grid;
};

/// Where a command's address and value lie, for patches.
struct Spot {
  enum class Kind : uint8_t { kNone, kSemaphore, kRelease, kCopy, kTimestamp, kLaunch, kWrite };
  Kind kind = Kind::kNone;
  size_t lane = 0;
  /// kSemaphore: address low word; kTimestamp, kWrite: destination words, the upper one first
  uint32_t at = 0;
  uint32_t first = 0;  ///< kCopy: first piece; kLaunch, kRelease: the launch; kWrite: value words
  uint32_t count = 0;  ///< kCopy: pieces; kRelease: which release
};
struct CopyPart {
  uint32_t addresses = 0, bytes = 0, launch_header = 0;
  uint64_t offset = 0;  ///< of the piece in its copy
};
/// A word pair that holds a hand-over value: `handovers` of the submission + ordinal.
struct HandoverSpot {
  size_t lane = 0;
  uint32_t at = 0;  ///< payload low word
  uint64_t ordinal = 0;
};

struct Script {
  std::array<std::vector<uint32_t>, kLanes> words;
  std::vector<uint32_t> data;  ///< constant banks, descriptors, timestamps
  std::vector<LaunchPart> launches;
  std::vector<Spot> spots;  ///< one per command
  std::vector<CopyPart> copies;
  std::vector<HandoverSpot> handover_spots;
  uint64_t handovers = 0;       ///< made by this script
  bool ends_on_copies = false;  ///< the compute lane must wait before later work
  void clear();
};

/// Bytes of Script::data for these commands. Errors: kInvalidArgument for programs of others.
Result<uint64_t> data_bytes(std::span<const hal::Command> commands, const ScriptContext& context);

/// Errors: kInvalidArgument unless `address` may be that of a signal.
Status check_word(uint64_t address, const char* command);

/// How a command may be patched later, which forbids some shapes.
enum PatchedBits : uint8_t { kPatchedGrid = 1, kPatchedAddress = 2, kPatchedCopy = 4 };

/// Replaces `script`. `patched`: PatchedBits per command, or empty.
/// Errors: kInvalidArgument (grid, alignment, argument block), kUnsupported (kernel on a copy
/// queue).
Status encode(std::span<const hal::Command> commands, std::span<const uint8_t> patched,
              const ScriptContext& context, Script& script);

/// Words with which a compute lane waits for the copy lane when ScriptContext::waits_for_copies;
/// they come first and may be skipped when the value is reached already.
inline constexpr uint32_t kHandoverWords = 6;

}  // namespace bm::nv
