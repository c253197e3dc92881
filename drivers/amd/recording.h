#pragma once
// A command list resident in GPU memory with a compiled patch list.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drivers/amd/gpu.h"
#include "drivers/amd/script.h"
#include "runtime/hal/command.h"
#include "runtime/hal/device.h"

namespace bm::amd {

/// Data, then the compute lane's words, at one address. Packets of AQL lanes and the copy lane's
/// words are kept here and copied into the ring. Thread: under the GPU's mutex, the destructor
/// takes it.
class AmdRecording final : public hal::Recording {
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
  ~AmdRecording() override;

  /// Bytes build() needs for a script.
  static uint64_t bytes_for(const Script& script);

  /// Writes the words whose value changed. `handovers`: the queue's last hand-over value; `fences`:
  /// of each lane. Errors: kInvalidArgument (too few values, a grid or copy beyond the limits, an
  /// address that cannot be one); then nothing has changed.
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
  uint64_t handovers() const { return handovers_; }
  bool ends_on_copies() const { return ends_on_copies_; }
  const std::shared_ptr<const std::string>& names() const { return names_; }
  const Gpu* gpu() const { return gpu_.get(); }
  /// `fence`: of the compute lane.
  void mark_used(uint64_t fence) {
    is_used_ = true;
    last_fence_ = fence;
  }
  uint64_t last_fence() const { return last_fence_; }  ///< 0: never replayed

 private:
  enum class Kind : uint8_t {
    kWord,       ///< 32 bits; larger values are refused
    kPair,       ///< low, high
    kSplit,      ///< low, and high four words on (two fences)
    kAddresses,  ///< of two fences: pairs four words apart, the second 4 bytes on
    kGrid,
    kCopyBytes,
  };
  enum class Rule : uint8_t { kAny, kWordAddress, kAddress };
  struct Store {
    uint32_t at = 0;
    Kind kind = Kind::kPair;
    Rule rule = Rule::kAny;
    uint8_t axis = 0;
    uint32_t what = 0;  ///< kGrid: launch
    uint32_t slot = 0;
    uint64_t addend = 0;
    uint64_t last = 0;
    bool was_written = false;
  };

  AmdRecording(std::shared_ptr<Gpu> gpu, Allocation memory, std::array<Lane*, kLanes> lanes,
               std::shared_ptr<ScratchArea> scratch)
      : gpu_(std::move(gpu)),
        memory_(std::move(memory)),
        lanes_(lanes),
        scratch_(std::move(scratch)) {}
  Status lay_out(Script& script);
  Status add_patch(const Script& script, const hal::Patch& patch);
  Status add_address(const Spot& spot, Store store);
  Status add_value(const Spot& spot, Store store);
  Status sort_stores();
  uint32_t place(size_t lane, uint32_t word) const { return first_[lane] + word; }
  void set(uint32_t at, uint32_t value);
  Status check(const Store& store, uint64_t value) const;
  void apply(const Store& store, uint64_t value);
  void set_grid(const Store& store, uint64_t value);

  std::shared_ptr<Gpu> gpu_;
  Allocation memory_;
  std::array<Lane*, kLanes> lanes_;
  std::shared_ptr<ScratchArea> scratch_;
  std::array<uint32_t, kLanes> first_{}, counts_{};
  std::vector<uint32_t> shadow_;  ///< of memory_, then the copy lane's words
  std::vector<aql::Words> packets_;
  aql::Words no_launch_ = aql::encode(aql::BarrierAnd{});
  std::vector<Entry> entries_;
  std::vector<Store> stores_;  ///< by destination
  std::vector<HandoverSpot> handover_stores_;
  std::vector<LaunchPart> launches_;
  std::array<uint32_t, kLanes> fence_at_{};
  std::array<bool, kLanes> lane_used_{};
  uint32_t num_slots_ = 0;
  uint64_t handovers_ = 0;
  bool ends_on_copies_ = false;
  std::shared_ptr<const std::string> names_;
  bool is_used_ = false;
  uint64_t last_fence_ = 0;
};

}  // namespace bm::amd
