#pragma once
// A command list resident in GPU memory with a compiled patch list.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/amd/gpu.h"
#include "drivers/amd/encoded_commands.h"
#include "drivers/hcq/recording.h"
#include "runtime/hal/command.h"

namespace bm::amd {

/// How a patched value is written.
enum class PatchKind : uint8_t {
  kLowHigh,
  kWord,       ///< 32 bits; larger values are refused
  kSplit,      ///< low, and high four words on (two fences)
  kAddresses,  ///< of two fences: pairs four words apart, the second 4 bytes on
  kGrid,
  kCopyBytes,
};

/// What goes into one ring at once: entries of the compute ring's block, words of the copy ring's.
struct Stretch {
  size_t ring = 0;
  uint32_t first = 0, count = 0;
};

/// Data, then the compute ring's words. The compute ring's entries and the copy ring's words are
/// kept by the CPU alone and copied into the ring.
class AmdRecording final
    : public hcq::RecordingBase<AmdRecording, Gpu, EncodedCommands, PatchKind> {
 public:
  /// `encoded` was made with `data_va` = memory.va(). `rings`: that run it, null where none.
  /// `scratch`: what its launches use.
  /// Errors: kInvalidArgument for a patch of nothing, or two of one place; kUnsupported when the
  /// compute ring would be filled by more than half.
  static Result<std::unique_ptr<AmdRecording>> build(std::shared_ptr<Gpu> gpu, Allocation memory,
                                                     EncodedCommands encoded,
                                                     std::span<const hal::Patch> patches,
                                                     std::array<HardwareRing*, kRings> rings,
                                                     std::shared_ptr<ScratchArea> scratch);
  ~AmdRecording() override {
    retire("amd", [this] { scratch_.reset(); });
  }

  /// Bytes build() needs for encoded commands.
  static uint64_t bytes_for(const EncodedCommands& encoded);

  /// As patch_sites(). `cross_releases`: the queue's last cross-engine release; `fences`: of each
  /// ring.
  Status patch(std::span<const uint64_t> values, uint64_t cross_releases,
               const std::array<uint64_t, kRings>& fences);

  std::span<const Stretch> stretches() const { return stretches_; }  ///< in order of submission
  const RingBlock& block() const { return block_; }
  /// Entries of the ring, at most.
  uint32_t count(size_t ring) const { return counts_[ring]; }
  std::span<const uint32_t> copy_words() const {
    return std::span(shadow_).subspan(first_[kCopyRing]);
  }
  /// `fence`: of the compute ring.
  void mark_used(uint64_t fence) {
    is_used_ = true;
    last_fence_ = fence;
  }
  uint64_t last_fence() const { return last_fence_; }  ///< 0: never replayed

 private:
  friend RecordingBase;
  AmdRecording(std::shared_ptr<Gpu> gpu, Allocation memory, std::array<HardwareRing*, kRings> rings,
               std::shared_ptr<ScratchArea> scratch)
      : RecordingBase(std::move(gpu), std::move(memory), rings), scratch_(std::move(scratch)) {}
  Status lay_out(const EncodedCommands& encoded);
  void make_block(const EncodedCommands& encoded);
  bool find_argument(const LaunchPart& part, uint32_t word, Site& site) const;
  void find_grid(Site& site) const;
  void find_copy(const CopyPart& copy, bool is_target, Site& site) const;
  void find_copy_bytes(const CopyPart& copy, Site& site) const;
  bool find_address(const CommandSite& command_site, Site& site) const;
  bool find_value(const CommandSite& command_site, Site& site) const;
  bool is_resident(uint32_t at) const { return at < first_[kCopyRing]; }
  bool is_ring_used(size_t ring) const { return ring_used_[ring]; }
  Status check_copy_address(uint64_t address) const;
  Status check_kind(const Site& site, uint64_t value) const;
  void apply(const Site& site, uint64_t value);
  void set_grid(const Site& site, uint64_t value);

  std::shared_ptr<ScratchArea> scratch_;
  std::array<uint32_t, kRings> counts_{};
  struct Packet {
    aql::Words words;
    uint32_t place;  ///< in the block
    /// A launch of no groups is a barrier.
    const aql::Words& effective() const;
  };
  std::vector<Packet> packets_;
  RingBlock block_;
  std::vector<Stretch> stretches_;
  std::vector<CrossEngineSite> cross_engine_sites_;
  std::array<uint32_t, kRings> fence_at_{};
  std::array<bool, kRings> ring_used_{};
  uint64_t last_fence_ = 0;
};

}  // namespace bm::amd
