#include "drivers/amd/recording.h"

#include <algorithm>

#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/sdma/packets.h"
#include "runtime/base/bits.h"

namespace bm::amd {
namespace {

constexpr uint64_t kEndOfAddresses = uint64_t{1} << 48;

}  // namespace

uint64_t AmdRecording::bytes_for(const EncodedCommands& encoded) {
  const uint64_t words = uint64_t{hcq::aligned_words(encoded.data.size())} +
                         hcq::aligned_words(encoded.words[kComputeRing].size());
  return std::max<uint64_t>(words * 4, MemoryPool::kAlignment);
}

Result<std::unique_ptr<AmdRecording>> AmdRecording::build(std::shared_ptr<Gpu> gpu,
                                                          Allocation memory,
                                                          EncodedCommands encoded,
                                                          std::span<const hal::Patch> patches,
                                                          std::array<HardwareRing*, kRings> rings,
                                                          std::shared_ptr<ScratchArea> scratch) {
  std::unique_ptr<AmdRecording> recording(
      new AmdRecording(std::move(gpu), std::move(memory), rings, std::move(scratch)));
  BM_TRY(recording->lay_out(encoded));
  BM_TRY(recording->add_patches(encoded, patches));
  recording->memory_.view().copy_in(
      0, std::span<const uint32_t>(recording->shadow_).first(recording->first_[kCopyRing]));
  return recording;
}

const aql::Words& AmdRecording::Packet::effective() const {
  static const aql::Words kBarrier = aql::encode(aql::BarrierAnd{});
  const bool is_empty = words[aql::kGridWord] == 0 || words[aql::kGridWord + 1] == 0 ||
                        words[aql::kGridWord + 2] == 0;
  return is_empty ? kBarrier : words;
}

/// Everything that replays copy into the compute ring, and what follows what.
void AmdRecording::make_block(const EncodedCommands& encoded) {
  packets_.resize(encoded.packets.size());
  uint32_t place = 0;
  for (const Entry& entry : encoded.entries) {
    if (entry.ring == kCopyRing) {
      stretches_.push_back({kCopyRing, entry.first, entry.dwords});
      continue;
    }
    if (entry.is_packet) {
      Packet& packet = packets_[entry.first];
      packet = {encoded.packets[entry.first], place};
      block_.add(packet.effective());
    } else {
      const uint64_t word = uint64_t{first_[kComputeRing]} + entry.first;
      rings_[kComputeRing]->add_to(block_, memory_.va() + word * 4, entry.dwords);
    }
    if (stretches_.empty() || stretches_.back().ring != kComputeRing)
      stretches_.push_back({kComputeRing, place, 0});
    ++stretches_.back().count;
    ++place;
  }
}

Status AmdRecording::lay_out(const EncodedCommands& encoded) {
  first_[kComputeRing] = hcq::aligned_words(encoded.data.size());
  first_[kCopyRing] = first_[kComputeRing] + hcq::aligned_words(encoded.words[kComputeRing].size());
  keep(encoded, first_[kCopyRing] + static_cast<uint32_t>(encoded.words[kCopyRing].size()));
  for (const Entry& entry : encoded.entries) counts_[entry.ring] += room_of(entry);
  if (const HardwareRing* const compute = rings_[kComputeRing];
      compute != nullptr && counts_[kComputeRing] > compute->entries() / 2)
    return fail(Code::kUnsupported, "a recording of {} entries for a ring of {}",
                counts_[kComputeRing], compute->entries());
  make_block(encoded);
  cross_engine_sites_ = encoded.cross_engine_sites;
  fence_at_ = encoded.fence_at;
  ring_used_ = encoded.ring_used;
  return {};
}

bool AmdRecording::find_argument(const LaunchPart& part, uint32_t word, Site& site) const {
  site.at = part.block + word * 2;
  return word < part.program->plan().explicit_bytes / 8;
}

/// Of packets no word of the image is patched; the launch tells them apart.
void AmdRecording::find_grid(Site& site) const {
  site.at = std::numeric_limits<uint32_t>::max() - site.what * 3 - site.axis;
}

void AmdRecording::find_copy(const CopyPart& copy, bool is_target, Site& site) const {
  site.at = place(kCopyRing, copy.at + (is_target ? sdma::kCopyTarget : sdma::kCopySource));
}

void AmdRecording::find_copy_bytes(const CopyPart& copy, Site& site) const {
  site.at = place(kCopyRing, copy.at);
}

bool AmdRecording::find_address(const CommandSite& command_site, Site& site) const {
  switch (command_site.kind) {
    case CommandSite::Kind::kWait:
      site.at =
          place(command_site.ring, command_site.at + sdma::kWaitAddress);  // alike in both rings
      break;
    case CommandSite::Kind::kSignal: site.at = place(command_site.ring, command_site.at + 2); break;
    case CommandSite::Kind::kFences:
      site.kind = PatchKind::kAddresses;
      site.at = place(command_site.ring, command_site.at + sdma::kFenceAddress);
      break;
    case CommandSite::Kind::kTimestamp:
      site.at = place(command_site.ring, command_site.at + sdma::kTimestampTarget);
      break;
    case CommandSite::Kind::kNone:
    case CommandSite::Kind::kCopy:
    case CommandSite::Kind::kLaunch: return false;
  }
  static_assert(sdma::kWaitAddress == 1 && sdma::kWaitValue == 3);
  return true;
}

bool AmdRecording::find_value(const CommandSite& command_site, Site& site) const {
  switch (command_site.kind) {
    case CommandSite::Kind::kWait:
      site.kind = PatchKind::kWord;
      site.at = place(command_site.ring, command_site.at + sdma::kWaitValue);
      break;
    case CommandSite::Kind::kSignal: site.at = place(command_site.ring, command_site.at + 4); break;
    case CommandSite::Kind::kFences:
      site.kind = PatchKind::kSplit;
      site.at = place(command_site.ring, command_site.at + sdma::kFenceValue);
      break;
    case CommandSite::Kind::kNone:
    case CommandSite::Kind::kTimestamp:
    case CommandSite::Kind::kCopy:
    case CommandSite::Kind::kLaunch: return false;
  }
  return true;
}

Status AmdRecording::check_copy_address(uint64_t address) const {
  if (address != 0 && address < kEndOfAddresses) return {};
  return fail(Code::kInvalidArgument, "a replayed copy from or to {:#x}", address);
}

Status AmdRecording::check_kind(const Site& site, uint64_t value) const {
  switch (site.kind) {
    case PatchKind::kWord:
      if (hi32(value) == 0) return {};
      return fail(Code::kInvalidArgument, "a replayed wait for {}: the hardware compares 32 bits",
                  value);
    case PatchKind::kGrid: {
      const LaunchPart& part = launches_[site.what];
      if (value > UINT32_MAX)
        return fail(Code::kInvalidArgument, "kernel '{}': {} blocks in dimension {}",
                    part.program->code().entry, value, site.axis);
      hal::Dim3 grid = part.grid;
      hcq::axis_of(grid, site.axis) = static_cast<uint32_t>(value);
      return check_grid(part.program->plan(), grid);
    }
    case PatchKind::kCopyBytes:
      if (value <= sdma::max_piece(gpu_->chip().sdma)) return {};
      return fail(Code::kInvalidArgument, "a replayed copy of {} bytes; at most {}", value,
                  sdma::max_piece(gpu_->chip().sdma));
    case PatchKind::kLowHigh:
    case PatchKind::kSplit:
    case PatchKind::kAddresses: return {};
  }
  __builtin_unreachable();
}

void AmdRecording::set_grid(const Site& site, uint64_t value) {
  LaunchPart& part = launches_[site.what];
  const LaunchPlan& plan = part.program->plan();
  const hal::Dim3& block = plan.block;
  const uint32_t size = site.axis == 0 ? block.x : site.axis == 1 ? block.y : block.z;
  const auto blocks = static_cast<uint32_t>(value);
  hcq::axis_of(part.grid, site.axis) = blocks;
  if (plan.has_hidden_arguments() && plan.kernarg_bytes >= plan.explicit_bytes + 12)
    set(part.block + plan.explicit_bytes / 4 + site.axis, blocks);
  if (part.dispatch != LaunchPart::kNoBlock)
    set(part.dispatch + aql::kGridWord + site.axis, blocks * size);
  if (part.groups != 0) {
    const uint32_t at = place(kComputeRing, part.groups);
    set(at + site.axis, blocks);
    set(at - 1,
        pm4::header(hcq::is_empty(part.grid) ? pm4::Op::kNop : pm4::Op::kDispatchDirect, 4));
    return;
  }
  Packet& packet = packets_[part.packet];
  packet.words[aql::kGridWord + site.axis] = blocks * size;
  block_.replace(packet.place, packet.effective());
}

void AmdRecording::apply(const Site& site, uint64_t value) {
  switch (site.kind) {
    case PatchKind::kWord: set(site.at, lo32(value)); return;
    case PatchKind::kLowHigh: return;  // written where sites are walked
    case PatchKind::kSplit:
      set(site.at, lo32(value));
      set(site.at + sdma::kFenceDwords, hi32(value));
      return;
    case PatchKind::kAddresses:
      set(site.at, lo32(value));
      set(site.at + 1, hi32(value));
      set(site.at + sdma::kFenceDwords, lo32(value + 4));
      set(site.at + sdma::kFenceDwords + 1, hi32(value + 4));
      return;
    case PatchKind::kGrid: return set_grid(site, value);
    case PatchKind::kCopyBytes:
      set(site.at + sdma::kCopyCount, value == 0 ? 0 : static_cast<uint32_t>(value - 1));
      set(site.at, value == 0 ? sdma::kSkippedCopyHeader : sdma::kCopyHeader);
      return;
  }
  __builtin_unreachable();
}

Status AmdRecording::patch(std::span<const uint64_t> values, uint64_t cross_releases,
                           const std::array<uint64_t, kRings>& fences) {
  BM_TRY(patch_sites(values));
  for (const CrossEngineSite& command_site : cross_engine_sites_) {
    const uint64_t value = cross_releases + command_site.ordinal;
    set(place(command_site.ring, command_site.low), lo32(value));
    if (command_site.high != UINT32_MAX)
      set(place(command_site.ring, command_site.high), hi32(value));
  }
  for (size_t ring = 0; ring < kRings; ++ring) {
    if (!ring_used_[ring]) continue;
    for (uint32_t reader = 0; reader < rings_[ring]->readers(); ++reader) {
      const uint32_t low = fence_at_[ring] + reader * kNextFence;
      set(place(ring, low), lo32(fences[ring]));
      set(place(ring, fence_high(ring, low)), hi32(fences[ring]));
    }
  }
  return {};
}

}  // namespace bm::amd
