#pragma once
// Commands as push buffers: a pure function of chip, addresses and commands. A compute channel
// moves no memory, so copies go to a copy channel, and two semaphores keep the order
// (hcq/encoded_commands.h).

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "drivers/hcq/encoded_commands.h"
#include "drivers/nv/loaded_program.h"
#include "drivers/nv/methods/push.h"
#include "runtime/hal/command.h"

namespace bm::nv {

using hcq::kComputeRing;
using hcq::kCopyRing;
using hcq::kRings;

struct EncodingContext : hcq::EncodingContext {
  const Gpu* gpu = nullptr;  ///< programs of other devices are refused
  std::array<ChannelClasses, kRings> classes;
  uint64_t shared_window = 0, local_window = 0;
  uint32_t sm_count = 0;
  uint64_t flushed = 0;  ///< 16 bytes that a flush of the copy ring may overwrite
};

/// One launch: where its parts lie in EncodedCommands::data, in dwords.
struct LaunchPart {
  const NvProgram* program = nullptr;
  uint32_t command = 0;
  uint32_t bank = 0, qmd = 0;
  uint32_t header = 0;     ///< of the launching method in the compute ring; valid when !is_linked
  bool is_linked = false;  ///< started by the descriptor before it
  uint32_t releases = 0;
  hal::Dim3 grid;
};

/// Where a command's address and value lie, for patches.
struct CommandSite {
  enum class Kind : uint8_t { kNone, kSemaphore, kRelease, kCopy, kTimestamp, kLaunch, kWrite };
  Kind kind = Kind::kNone;
  size_t ring = 0;
  /// kSemaphore: address low word; kTimestamp, kWrite: destination words, the upper one first
  uint32_t at = 0;
  uint32_t first = 0;  ///< kCopy: first piece; kLaunch, kRelease: the launch; kWrite: value words
  uint32_t count = 0;  ///< kCopy: pieces; kRelease: which release
};
struct CopyPart {
  uint32_t addresses = 0, bytes = 0, launch_header = 0;
  uint64_t offset = 0;  ///< of the piece in its copy
};
/// A word pair that holds a value of a cross-engine semaphore: `cross_releases` of the submission +
/// ordinal.
struct CrossEngineSite {
  size_t ring = 0;
  uint32_t at = 0;  ///< payload low word
  uint64_t ordinal = 0;
};

/// Data: constant banks, descriptors, timestamps.
using EncodedCommands = hcq::EncodedCommands<LaunchPart, CommandSite, CopyPart, CrossEngineSite>;

/// Bytes of EncodedCommands::data for these commands. Errors: kInvalidArgument for programs of
/// others.
Result<uint64_t> data_bytes(std::span<const hal::Command> commands, const EncodingContext& context);

/// Replaces `encoded`. `patched`: hcq::PatchedBits per command, or empty.
/// Errors: kInvalidArgument (grid, alignment, argument block), kUnsupported (kernel on a copy
/// queue).
Status encode(std::span<const hal::Command> commands, std::span<const uint8_t> patched,
              const EncodingContext& context, EncodedCommands& encoded);

/// Words with which a compute ring waits for the copy ring when EncodingContext::waits_for_copies;
/// they come first and may be skipped when the value is reached already.
inline constexpr uint32_t kCrossEngineWords = 6;

}  // namespace bm::nv
