#pragma once
// Commands as words for hardware: what the encoders of all vendors begin from and what they leave
// behind for submissions and recordings.
//
// A compute queue has two rings, because copies run on an engine of their own: two words in memory
// keep the order. A copy queue has the second ring only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "drivers/hcq/memory_pool.h"
#include "runtime/base/bits.h"
#include "runtime/base/result.h"
#include "runtime/hal/command.h"
#include "runtime/hal/program.h"

namespace bm::hcq {

inline constexpr size_t kComputeRing = 0, kCopyRing = 1, kRings = 2;

/// Addresses and facts that every encoder needs.
struct EncodingContext {
  bool has_compute = true;
  uint64_t to_copies = 0;         ///< semaphore released by the compute ring
  uint64_t to_compute = 0;        ///< semaphore released by the copy ring
  uint64_t cross_releases = 0;    ///< last value of either
  bool waits_for_copies = false;  ///< the compute ring begins by waiting for `cross_releases`
  uint64_t data_va = 0;           ///< where EncodedCommands::data will lie; multiple of 256
  /// The CPU's view of an argument block, or an empty one.
  std::function<HostView(uint64_t va, uint64_t bytes)> arguments;
};

/// What an encoder makes of a list of commands. `LaunchPart`, `CommandSite`, `CopyPart`,
/// `CrossEngineSite`: a launch, where a command's patchable words lie, a piece of a copy, a word
/// with a value of a cross-engine semaphore.
template <class LaunchPartType, class CommandSiteType, class CopyPartType,
          class CrossEngineSiteType>
struct EncodedCommands {
  using LaunchPart = LaunchPartType;
  using CommandSite = CommandSiteType;
  using CopyPart = CopyPartType;
  std::array<std::vector<uint32_t>, kRings> words;
  std::vector<uint32_t> data;  ///< what launches read, see the vendor's encoder
  std::vector<LaunchPart> launches;
  std::vector<CommandSite> command_sites;  ///< one per command
  std::vector<CopyPart> copies;
  std::vector<CrossEngineSiteType> cross_engine_sites;
  uint64_t cross_releases = 0;  ///< made by these commands
  bool ends_on_copies = false;  ///< the compute ring must wait before later work
  void clear() {
    for (std::vector<uint32_t>& ring : words) ring.clear();
    data.clear();
    launches.clear();
    command_sites.clear();
    copies.clear();
    cross_engine_sites.clear();
    cross_releases = 0;
    ends_on_copies = false;
  }
};

/// How a command may be patched later, which forbids some shapes.
enum PatchedBits : uint8_t {
  kPatchedGrid = 1,
  kPatchedAddress = 2,
  kPatchedCopy = 4,
  kPatchedValue = 8
};
/// PatchedBits of each command. Errors: kInvalidArgument for a patch of no command.
Result<std::vector<uint8_t>> patched_bits(std::span<const hal::Command> commands,
                                          std::span<const hal::Patch> patches);

/// Errors: kInvalidArgument unless `address` may be that of a signal.
Status check_word(uint64_t address, const char* command);

inline bool is_empty(const hal::Dim3& grid) { return grid.x == 0 || grid.y == 0 || grid.z == 0; }
inline uint32_t& axis_of(hal::Dim3& grid, uint8_t axis) {
  uint32_t* const axes[] = {&grid.x, &grid.y, &grid.z};
  return *axes[axis];
}

/// The CPU's view of the `bytes` of arguments of a launch. Errors: kInvalidArgument.
Result<HostView> argument_block(const hal::Dispatch& dispatch, uint64_t bytes,
                                const EncodingContext& context);

/// The one checked downcast: programs of other devices have no image here.
/// Errors: kInvalidArgument.
template <class Program, class Gpu>
Result<const Program*> own_program(const hal::Dispatch& dispatch, const Gpu* gpu) {
  const auto* program = dynamic_cast<const Program*>(dispatch.program);
  if (program == nullptr || program->gpu() != gpu)
    return fail(Code::kInvalidArgument, "Dispatch of kernel '{}', which this device did not load",
                dispatch.program == nullptr ? "" : dispatch.program->code().entry);
  return program;
}

/// What the vendors' encoders are built on.
template <class EncodedCommands, class Context>
class EncoderBase {
 protected:
  EncoderBase(std::span<const uint8_t> patched, const Context& context, EncodedCommands& encoded)
      : encoded_(encoded),
        context_(context),
        ring_(context.has_compute ? kComputeRing : kCopyRing),
        patched_(patched),
        data_va_(context.data_va) {}

  auto& command_site() { return encoded_.command_sites.back(); }
  uint32_t command() const { return static_cast<uint32_t>(encoded_.command_sites.size() - 1); }
  bool is_patched(uint8_t bits) const {
    return !patched_.empty() && (patched_[command()] & bits) != 0;
  }
  /// Room in EncodedCommands::data, as a dword of it; aligned to 256 bytes.
  uint32_t take_data(uint64_t bytes) {
    const auto at = static_cast<uint32_t>(encoded_.data.size());
    encoded_.data.resize(at + align_up(bytes, MemoryPool::kAlignment) / 4);
    return at;
  }
  uint64_t data_va(uint32_t dword) const { return data_va_ + uint64_t{dword} * 4; }
  /// The pieces of the copy just encoded, from `first` on.
  void note_copy(uint32_t first) {
    command_site() = {.kind = EncodedCommands::CommandSite::Kind::kCopy,
                      .ring = kCopyRing,
                      .first = first,
                      .count = static_cast<uint32_t>(encoded_.copies.size()) - first};
  }

  EncodedCommands& encoded_;
  const Context& context_;
  size_t ring_;
  uint64_t ordinal_ = 0;  ///< of the last cross-engine release

 private:
  std::span<const uint8_t> patched_;
  const uint64_t data_va_;
};

}  // namespace bm::hcq
