#pragma once
// Recorded commands with their patch sites: which words of a recording a replay's values go to,
// what they must be, and the CPU's copy of the words, so that only what changed is written.

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "drivers/hcq/memory_pool.h"
#include "drivers/hcq/encoded_commands.h"
#include "runtime/base/log.h"
#include "runtime/base/result.h"
#include "runtime/hal/command.h"
#include "runtime/hal/device.h"

namespace bm::hcq {

/// What a value must be.
enum class PatchRule : uint8_t { kAny, kWordAddress, kAddress };

/// Where a value goes. `Kind`: how it is written; every vendor has kLowHigh (two words, the
/// default), kGrid and kCopyBytes.
template <class Kind>
struct PatchSite {
  uint32_t at = 0;  ///< dword of the recording
  Kind kind = Kind::kLowHigh;
  PatchRule rule = PatchRule::kAny;
  uint8_t axis = 0;   ///< kGrid
  uint32_t what = 0;  ///< kGrid: launch; kCopyBytes: copy
  uint32_t slot = 0;
  uint64_t addend = 0;
  uint64_t last = 0;
  bool was_written = false;
};

tl::unexpected<Error> no_such_patch(const hal::Patch& patch, size_t commands);
/// `words` filled up to where an allocation may begin.
uint32_t aligned_words(size_t words);

/// Data, then words of rings, at one address; the CPU keeps a copy because the mapping may be only
/// written. Thread: under the GPU's mutex, destructors take it.
///
/// `Derived` says where things lie (bool: there is such a place) and writes them:
///   bool find_argument(const LaunchPart&, uint32_t word, Site&), void find_grid(Site&),
///   void find_copy(const CopyPart&, bool is_target, Site&),
///   void find_copy_bytes(const CopyPart&, Site&),
///   bool find_address(const CommandSite&, Site&), bool find_value(const CommandSite&, Site&),
///   Status check_copy_address(uint64_t), Status check_kind(const Site&, uint64_t) (not asked where
///   a kLowHigh takes any value),
///   void apply(const Site&, uint64_t) (all but kLowHigh), bool is_resident(uint32_t at), bool
///   is_ring_used(size_t).
template <class Derived, class Gpu, class EncodedCommands, class Kind>
class RecordingBase : public hal::Recording {
 public:
  uint64_t cross_releases() const { return cross_releases_; }
  const std::shared_ptr<const std::string>& names() const { return names_; }
  const Gpu* gpu() const { return gpu_.get(); }

 protected:
  using Ring = typename Gpu::Ring;
  using Site = PatchSite<Kind>;
  using LaunchPart = typename EncodedCommands::LaunchPart;
  using CommandSite = typename EncodedCommands::CommandSite;
  using CopyPart = typename EncodedCommands::CopyPart;

  RecordingBase(std::shared_ptr<Gpu> gpu, Allocation memory, std::array<Ring*, kRings> rings)
      : gpu_(std::move(gpu)), memory_(std::move(memory)), rings_(rings) {}

  /// Takes over what all recordings keep of encoded commands, the rings' words at first_.
  void keep(const EncodedCommands& encoded, uint32_t words) {
    shadow_.assign(words, 0);
    std::ranges::copy(encoded.data, shadow_.begin());
    for (size_t ring = 0; ring < kRings; ++ring)
      std::ranges::copy(encoded.words[ring], shadow_.begin() + first_[ring]);
    cross_releases_ = encoded.cross_releases;
    launches_ = encoded.launches;
    names_ = std::make_shared<const std::string>(names_of(launches_));
  }
  /// Errors: kInvalidArgument for a patch of nothing, or two of one place.
  Status add_patches(const EncodedCommands& encoded, std::span<const hal::Patch> patches) {
    for (const hal::Patch& patch : patches) BM_TRY(add_patch(encoded, patch));
    // Writes go to memory in address order; equal addresses would fight.
    std::ranges::sort(sites_, {}, &Site::at);
    const auto same = std::ranges::adjacent_find(
        sites_, [](const Site& a, const Site& b) { return a.at == b.at; });
    if (same != sites_.end())
      return fail(Code::kInvalidArgument, "slots {} and {} patch the same place", same->slot,
                  std::next(same)->slot);
    checked_.clear();
    for (uint32_t i = 0; i < sites_.size(); ++i)
      if (!takes_any(sites_[i])) checked_.push_back(i);
    return {};
  }

  /// Writes the words whose value changed. Errors: kInvalidArgument (too few values, a grid or copy
  /// beyond the limits, an address that cannot be one); then nothing has changed.
  Status patch_sites(std::span<const uint64_t> values) {
    if (values.size() < num_slots_)
      return fail(Code::kInvalidArgument, "{} values given, the recording has {} slots",
                  values.size(), num_slots_);
    const auto is_new = [&](const Site& site, uint64_t value) {
      return !site.was_written || value != site.last;
    };
    for (const uint32_t i : checked_) {
      const Site& site = sites_[i];
      const uint64_t value = values[site.slot] + site.addend;
      if (is_new(site, value)) BM_TRY(check(site, value));
    }
    for (Site& site : sites_) {
      const uint64_t value = values[site.slot] + site.addend;
      if (!is_new(site, value)) continue;
      if (site.kind == Kind::kLowHigh) [[likely]]
        set_pair(site, value);
      else
        self().apply(site, value);
      site.last = value;
      site.was_written = true;
    }
    return {};
  }

  uint32_t place(size_t ring, uint32_t word) const { return first_[ring] + word; }
  void set(uint32_t at, uint32_t value) {
    if (shadow_[at] == value) return;
    shadow_[at] = value;
    if (self().is_resident(at)) memory_.view().store(uint64_t{at} * 4, value);
  }

  /// Nobody but its site writes a pair: what it had last tells what changes, and the CPU's copy of
  /// resident words, which is far from everything else here, is not looked at.
  [[gnu::always_inline]] void set_pair(const Site& site, uint64_t value) {
    if (!self().is_resident(site.at)) [[unlikely]] {
      set(site.at, lo32(value));
      set(site.at + 1, hi32(value));
      return;
    }
    const uint64_t changed = site.was_written ? value ^ site.last : UINT64_MAX;
    const HostView& memory = memory_.view();
    if (lo32(changed) != 0) memory.store(uint64_t{site.at} * 4, lo32(value));
    if (hi32(changed) != 0) memory.store(uint64_t{site.at} * 4 + 4, hi32(value));
  }

  /// All of a destructor: `also` frees what else the GPU may be reading.
  template <class Also>
  void retire(const char* vendor, const Also& also) {
    const std::lock_guard lock(gpu_->mutex);
    // A caller has seen the last signal; the queue may still be reading the words behind it.
    if (is_used_ && gpu_->health_locked()) {
      for (size_t ring = 0; ring < kRings; ++ring) {
        if (rings_[ring] == nullptr || !self().is_ring_used(ring)) continue;
        if (const Status done = rings_[ring]->drain(); !done)
          log(vendor, LogLevel::kWarning, "freeing a recording: {}", done.error().message);
      }
    }
    memory_.reset();
    also();
  }

  std::shared_ptr<Gpu> gpu_;
  Allocation memory_;
  std::array<Ring*, kRings> rings_;
  std::array<uint32_t, kRings> first_{};  ///< dword of each ring's words
  std::vector<uint32_t> shadow_;
  std::vector<LaunchPart> launches_;
  bool is_used_ = false;

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  /// "a recording of 17 kernels from 'a' to 'b'", built once so that replays only keep a reference.
  static std::string names_of(std::span<const LaunchPart> launches) {
    if (launches.empty()) return "copies only";
    const auto name = [](const LaunchPart& part) { return part.program->code().entry; };
    if (launches.size() == 1) return name(launches[0]);
    return fmt::format("a recording of {} kernels from '{}' to '{}'", launches.size(),
                       name(launches.front()), name(launches.back()));
  }

  Status add_patch(const EncodedCommands& encoded, const hal::Patch& patch) {
    const size_t commands = encoded.command_sites.size();
    if (patch.command >= commands || patch.slot == std::numeric_limits<uint32_t>::max())
      return no_such_patch(patch, commands);
    num_slots_ = std::max(num_slots_, patch.slot + 1);
    const CommandSite& command_site = encoded.command_sites[patch.command];
    Site site;
    site.slot = patch.slot;
    site.addend = patch.addend;
    if (patch.field == hal::PatchField::kCopyDst || patch.field == hal::PatchField::kCopySrc) {
      if (command_site.kind != CommandSite::Kind::kCopy) return no_such_patch(patch, commands);
      site.rule = PatchRule::kAddress;
      for (uint32_t i = command_site.first; i < command_site.first + command_site.count; ++i) {
        const CopyPart& copy = encoded.copies[i];
        site.addend = patch.addend + copy.offset;
        self().find_copy(copy, patch.field == hal::PatchField::kCopyDst, site);
        sites_.push_back(site);
      }
      return {};
    }
    if (!find_site(encoded, patch, command_site, site)) return no_such_patch(patch, commands);
    sites_.push_back(site);
    return {};
  }

  /// False: the command has no such word.
  bool find_site(const EncodedCommands& encoded, const hal::Patch& patch,
                 const CommandSite& command_site, Site& site) {
    using hal::PatchField;
    switch (patch.field) {
      case PatchField::kKernarg:
        return command_site.kind == CommandSite::Kind::kLaunch &&
               self().find_argument(launches_[command_site.first], patch.word, site);
      case PatchField::kGridX:
      case PatchField::kGridY:
      case PatchField::kGridZ:
        if (command_site.kind != CommandSite::Kind::kLaunch) return false;
        site.kind = Kind::kGrid;
        site.axis = static_cast<uint8_t>(static_cast<uint8_t>(patch.field) -
                                         static_cast<uint8_t>(PatchField::kGridX));
        site.what = command_site.first;
        self().find_grid(site);
        return true;
      case PatchField::kCopyBytes:
        if (command_site.kind != CommandSite::Kind::kCopy || command_site.count != 1) return false;
        site.kind = Kind::kCopyBytes;
        site.what = command_site.first;
        self().find_copy_bytes(encoded.copies[command_site.first], site);
        return true;
      case PatchField::kSignalAddress:
        site.rule = PatchRule::kWordAddress;
        return self().find_address(command_site, site);
      case PatchField::kSignalValue: return self().find_value(command_site, site);
      case PatchField::kCopyDst:
      case PatchField::kCopySrc: return false;  // several places: add_patch()
    }
    __builtin_unreachable();
  }

  /// Arguments and values of signals, nearly all there is.
  static bool takes_any(const Site& site) {
    return site.rule == PatchRule::kAny && site.kind == Kind::kLowHigh;
  }
  Status check(const Site& site, uint64_t value) const {
    switch (site.rule) {
      case PatchRule::kAny: break;
      case PatchRule::kWordAddress: return check_word(value, "a replayed signal");
      case PatchRule::kAddress: return self().check_copy_address(value);
    }
    return self().check_kind(site, value);
  }

  std::vector<Site> sites_;        ///< by place
  std::vector<uint32_t> checked_;  ///< those of them that do not take any value
  uint32_t num_slots_ = 0;
  uint64_t cross_releases_ = 0;
  std::shared_ptr<const std::string> names_;
};

}  // namespace bm::hcq
