#pragma once
// A command list resident in GPU memory with a compiled patch list.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drivers/nv/gpu.h"
#include "drivers/nv/script.h"
#include "runtime/hal/command.h"
#include "runtime/hal/device.h"

namespace bm::nv {

/// Data, then each lane's words, at one address; the CPU keeps a copy because the mapping is only
/// written. Thread: under the GPU's mutex, the destructor takes it.
class NvRecording final : public hal::Recording {
 public:
  /// `script` was encoded with `data_va` = memory.va(). `lanes`: that run it, null where none.
  /// Errors: kInvalidArgument for a patch of nothing, or two of one place; kUnsupported when a lane
  /// is longer than a ring entry can say.
  static Result<std::unique_ptr<NvRecording>> build(std::shared_ptr<Gpu> gpu, Allocation memory,
                                                    Script script,
                                                    std::span<const hal::Patch> patches,
                                                    std::array<Lane*, kLanes> lanes);
  ~NvRecording() override;

  /// Bytes build() needs for a script.
  static uint64_t bytes_for(const Script& script);

  /// Writes the words whose value changed. `handovers`: the queue's last hand-over value.
  /// Errors: kInvalidArgument (too few values, a grid or copy beyond the limits, an address that
  /// cannot be one); then nothing has changed.
  Status patch(std::span<const uint64_t> values, uint64_t handovers);

  uint64_t lane_va(size_t lane) const { return memory_.va() + uint64_t{first_[lane]} * 4; }
  uint32_t lane_words(size_t lane) const { return count_[lane]; }
  uint64_t handovers() const { return handovers_; }
  const std::shared_ptr<const std::string>& names() const { return names_; }
  const Gpu* gpu() const { return gpu_.get(); }
  void mark_used() { is_used_ = true; }

 private:
  enum class Kind : uint8_t { kLowHigh, kHighLow, kGrid, kCopyBytes };
  /// What a value must be.
  enum class Rule : uint8_t { kAny, kWordAddress, kAddress };
  struct Store {
    uint32_t at;  ///< dword; kGrid: in the descriptor, kCopyBytes: the length
    Kind kind;
    Rule rule = Rule::kAny;
    uint8_t axis = 0;   ///< kGrid
    uint32_t what = 0;  ///< kGrid: launch; kCopyBytes: copy
    uint32_t slot = 0;
    uint64_t addend = 0;
    uint64_t last = 0;
    bool was_written = false;
  };
  struct Handover {
    uint32_t at;
    uint64_t ordinal;
  };
  struct Copied {
    uint32_t bytes, header;
  };

  NvRecording(std::shared_ptr<Gpu> gpu, Allocation memory, std::array<Lane*, kLanes> lanes)
      : gpu_(std::move(gpu)), memory_(std::move(memory)), lanes_(lanes) {}
  Status lay_out(Script& script);
  Status add_patch(const Script& script, const hal::Patch& patch);
  Status add_value(const Script& script, const Spot& spot, const hal::Patch& patch);
  Status sort_stores();
  uint32_t place(size_t lane, uint32_t word) const { return first_[lane] + word; }
  void set(uint32_t at, uint32_t value);
  Status check(const Store& store, uint64_t value) const;
  void apply(const Store& store, uint64_t value);
  void set_grid(const Store& store, uint64_t value);
  void set_copy_bytes(const Store& store, uint64_t value);

  std::shared_ptr<Gpu> gpu_;
  Allocation memory_;
  std::array<Lane*, kLanes> lanes_;
  std::array<uint32_t, kLanes> first_{}, count_{};
  std::vector<uint32_t> shadow_;
  std::vector<Store> stores_;  ///< by destination
  std::vector<Handover> handover_stores_;
  std::vector<LaunchPart> launches_;
  std::vector<Copied> copies_;
  uint32_t num_slots_ = 0;
  uint64_t handovers_ = 0;
  std::shared_ptr<const std::string> names_;
  bool is_used_ = false;
};

}  // namespace bm::nv
