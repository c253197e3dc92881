#pragma once
// A command list resident in GPU memory with a compiled patch list.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/amd/gpu.h"
#include "drivers/amd/script.h"
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

/// Data, then the compute lane's words. Packets of AQL lanes and the copy lane's words are kept by
/// the CPU alone and copied into the ring.
class AmdRecording final : public hcq::RecordingBase<AmdRecording, Gpu, Script, PatchKind> {
 public:
  /// `script` was encoded with `data_va` = memory.va(). `lanes`: that run it, null where none.
  /// `scratch`: what its launches use.
  /// Errors: kInvalidArgument for a patch of nothing, or two of one place; kUnsupported when the
  /// compute lane needs more entries than half its ring has.
  static Result<std::unique_ptr<AmdRecording>> build(std::shared_ptr<Gpu> gpu, Allocation memory,
                                                     Script script,
                                                     std::span<const hal::Patch> patches,
                                                     std::array<Lane*, kLanes> lanes,
                                                     std::shared_ptr<ScratchArea> scratch);
  ~AmdRecording() override {
    retire("amd", [this] { scratch_.reset(); });
  }

  /// Bytes build() needs for a script.
  static uint64_t bytes_for(const Script& script);

  /// As patch_sites(). `handovers`: the queue's last hand-over value; `fences`: of each lane.
  Status patch(std::span<const uint64_t> values, uint64_t handovers,
               const std::array<uint64_t, kLanes>& fences);

  std::span<const Entry> entries() const { return entries_; }
  /// Places of the lane's ring, at most.
  uint32_t count(size_t lane) const { return counts_[lane]; }
  std::span<const uint32_t> copy_words() const {
    return std::span(shadow_).subspan(first_[kCopyLane]);
  }
  uint64_t entry_va(const Entry& entry) const {
    return memory_.va() + (uint64_t{first_[entry.lane]} + entry.first) * 4;
  }
  /// A launch of no groups becomes a barrier.
  const aql::Words& packet(const Entry& entry) const;
  /// `fence`: of the compute lane.
  void mark_used(uint64_t fence) {
    is_used_ = true;
    last_fence_ = fence;
  }
  uint64_t last_fence() const { return last_fence_; }  ///< 0: never replayed

 private:
  friend RecordingBase;
  AmdRecording(std::shared_ptr<Gpu> gpu, Allocation memory, std::array<Lane*, kLanes> lanes,
               std::shared_ptr<ScratchArea> scratch)
      : RecordingBase(std::move(gpu), std::move(memory), lanes), scratch_(std::move(scratch)) {}
  Status lay_out(const Script& script);
  bool find_argument(const LaunchPart& part, uint32_t word, Site& site) const;
  void find_grid(Site& site) const;
  void find_copy(const CopyPart& copy, bool is_target, Site& site) const;
  void find_copy_bytes(const CopyPart& copy, Site& site) const;
  bool find_address(const Spot& spot, Site& site) const;
  bool find_value(const Spot& spot, Site& site) const;
  bool is_resident(uint32_t at) const { return at < first_[kCopyLane]; }
  bool is_lane_used(size_t lane) const { return lane_used_[lane]; }
  Status check_copy_address(uint64_t address) const;
  Status check_kind(const Site& site, uint64_t value) const;
  void apply(const Site& site, uint64_t value);
  void set_grid(const Site& site, uint64_t value);

  std::shared_ptr<ScratchArea> scratch_;
  std::array<uint32_t, kLanes> counts_{};
  std::vector<aql::Words> packets_;
  aql::Words no_launch_ = aql::encode(aql::BarrierAnd{});
  std::vector<Entry> entries_;
  std::vector<HandoverSpot> handover_stores_;
  std::array<uint32_t, kLanes> fence_at_{};
  std::array<bool, kLanes> lane_used_{};
  uint64_t last_fence_ = 0;
};

}  // namespace bm::amd
