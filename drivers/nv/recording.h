#pragma once
// A command list resident in GPU memory with a compiled patch list.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/hcq/recording.h"
#include "drivers/nv/gpu.h"
#include "drivers/nv/encoded_commands.h"
#include "runtime/hal/command.h"

namespace bm::nv {

/// How a patched value is written.
enum class PatchKind : uint8_t { kLowHigh, kHighLow, kGrid, kCopyBytes };

/// Data, then each ring's words.
class NvRecording final : public hcq::RecordingBase<NvRecording, Gpu, EncodedCommands, PatchKind> {
 public:
  struct Nothing {};
  /// `encoded` was made with `data_va` = memory.va(). `rings`: that run it, null where none.
  /// Errors: kInvalidArgument for a patch of nothing, or two of one place; kUnsupported when a ring
  /// is longer than a ring entry can say.
  static Result<std::unique_ptr<NvRecording>> build(std::shared_ptr<Gpu> gpu, Allocation memory,
                                                    EncodedCommands encoded,
                                                    std::span<const hal::Patch> patches,
                                                    std::array<HardwareRing*, kRings> rings,
                                                    Nothing);
  ~NvRecording() override {
    retire("nv", [] {});
  }

  /// Bytes build() needs for encoded commands.
  static uint64_t bytes_for(const EncodedCommands& encoded);

  /// As patch_sites(). `cross_releases`: the queue's last cross-engine release.
  Status patch(std::span<const uint64_t> values, uint64_t cross_releases);

  uint64_t ring_va(size_t ring) const { return memory_.va() + uint64_t{first_[ring]} * 4; }
  uint32_t ring_words(size_t ring) const { return count_[ring]; }
  void mark_used() { is_used_ = true; }

 private:
  friend RecordingBase;
  struct CrossEngineStore {
    uint32_t at;
    uint64_t ordinal;
  };
  struct Copied {
    uint32_t bytes, header;
  };

  using RecordingBase::RecordingBase;
  Status lay_out(const EncodedCommands& encoded);
  bool find_argument(const LaunchPart& part, uint32_t word, Site& site) const;
  void find_grid(Site& site) const;
  bool is_resident(uint32_t /*at*/) const { return true; }
  bool is_ring_used(size_t ring) const { return count_[ring] != 0; }
  void find_copy(const CopyPart& copy, bool is_target, Site& site) const;
  void find_copy_bytes(const CopyPart& copy, Site& site) const;
  bool find_address(const CommandSite& command_site, Site& site) const;
  bool find_value(const CommandSite& command_site, Site& site) const;
  Status check_copy_address(uint64_t address) const;
  Status check_kind(const Site& site, uint64_t value) const;
  void apply(const Site& site, uint64_t value);
  void set_grid(const Site& site, uint64_t value);

  std::array<uint32_t, kRings> count_{};
  std::vector<CrossEngineStore> cross_engine_sites_;
  std::vector<Copied> copies_;
};

}  // namespace bm::nv
