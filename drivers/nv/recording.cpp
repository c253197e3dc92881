#include "drivers/nv/recording.h"

#include <algorithm>

#include "drivers/nv/methods/bank0.h"
#include "drivers/nv/methods/compute.h"
#include "drivers/nv/methods/copy.h"
#include "runtime/base/bits.h"

namespace bm::nv {
namespace {

QmdKey grid_key(uint8_t axis) {
  return static_cast<QmdKey>(static_cast<uint8_t>(QmdKey::kGridX) + axis);
}

}  // namespace

uint64_t NvRecording::bytes_for(const EncodedCommands& encoded) {
  uint64_t words = hcq::aligned_words(encoded.data.size());
  for (const auto& ring : encoded.words) words += hcq::aligned_words(ring.size());
  return std::max(words * 4, MemoryPool::kAlignment);
}

Result<std::unique_ptr<NvRecording>> NvRecording::build(std::shared_ptr<Gpu> gpu, Allocation memory,
                                                        EncodedCommands encoded,
                                                        std::span<const hal::Patch> patches,
                                                        std::array<HardwareRing*, kRings> rings,
                                                        Nothing) {
  std::unique_ptr<NvRecording> recording(new NvRecording(std::move(gpu), std::move(memory), rings));
  BM_TRY(recording->lay_out(encoded));
  BM_TRY(recording->add_patches(encoded, patches));
  recording->memory_.view().copy_in(0, recording->shadow_);
  return recording;
}

Status NvRecording::lay_out(const EncodedCommands& encoded) {
  uint32_t next = hcq::aligned_words(encoded.data.size());
  for (size_t ring = 0; ring < kRings; ++ring) {
    if (encoded.words[ring].size() > kMaxEntryWords)
      return fail(Code::kUnsupported, "{} words of methods exceed a ring entry",
                  encoded.words[ring].size());
    first_[ring] = next;
    count_[ring] = static_cast<uint32_t>(encoded.words[ring].size());
    next += hcq::aligned_words(count_[ring]);
  }
  keep(encoded, next);
  for (const CrossEngineSite& command_site : encoded.cross_engine_sites)
    cross_engine_sites_.push_back(
        {place(command_site.ring, command_site.at), command_site.ordinal});
  std::ranges::sort(cross_engine_sites_, {}, &CrossEngineStore::at);
  for (const CopyPart& copy : encoded.copies)
    copies_.push_back({place(kCopyRing, copy.bytes), place(kCopyRing, copy.launch_header)});
  return {};
}

bool NvRecording::find_argument(const LaunchPart& part, uint32_t word, Site& site) const {
  const hal::CodeObject& code = part.program->code();
  site.at = part.bank + part.program->plan().bank0.params / 4u + word * 2;
  return word < code.num_buffers + code.num_vars;
}

void NvRecording::find_grid(Site& site) const {
  const LaunchPart& part = launches_[site.what];
  site.at = part.qmd + qmd_format(part.program->plan().version)[grid_key(site.axis)].low / 32u;
}

void NvRecording::find_copy(const CopyPart& copy, bool is_target, Site& site) const {
  site.kind = PatchKind::kHighLow;
  site.at = place(kCopyRing, copy.addresses + (is_target ? 2 : 0));
}

void NvRecording::find_copy_bytes(const CopyPart& copy, Site& site) const {
  site.at = place(kCopyRing, copy.bytes);
}

bool NvRecording::find_address(const CommandSite& command_site, Site& site) const {
  site.at = place(command_site.ring, command_site.at);
  if (command_site.kind == CommandSite::Kind::kTimestamp ||
      command_site.kind == CommandSite::Kind::kWrite)
    site.kind = PatchKind::kHighLow;
  return site.kind == PatchKind::kHighLow || command_site.kind == CommandSite::Kind::kSemaphore;
}

bool NvRecording::find_value(const CommandSite& command_site, Site& site) const {
  if (command_site.kind == CommandSite::Kind::kSemaphore) {
    site.at = place(command_site.ring, command_site.at + 2);
  } else if (command_site.kind == CommandSite::Kind::kWrite) {
    site.at = place(command_site.ring, command_site.first);
  } else if (command_site.kind == CommandSite::Kind::kRelease) {
    const LaunchPart& part = launches_[command_site.first];
    const QmdField& payload = qmd_format(part.program->plan().version)[QmdKey::kReleasePayload];
    // All versions keep the payload in two words of their own.
    BM_CHECK(payload.low % 32 == 0 && payload.upper_low == payload.low + 32);
    site.at = part.qmd + (payload.low + command_site.count * payload.stride) / 32u;
  } else {
    return false;
  }
  return true;
}

Status NvRecording::check_copy_address(uint64_t address) const {
  if (address != 0) return {};
  return fail(Code::kInvalidArgument, "a replayed copy from or to address 0");
}

Status NvRecording::check_kind(const Site& site, uint64_t value) const {
  if (site.kind == PatchKind::kGrid &&
      (value > kLargestGridX || (site.axis > 0 && value > kLargestGridYZ)))
    return fail(Code::kInvalidArgument, "kernel '{}': {} blocks in dimension {}",
                launches_[site.what].program->code().entry, value, site.axis);
  if (site.kind == PatchKind::kCopyBytes && value > kLargestCopy)
    return fail(Code::kInvalidArgument, "a replayed copy of {} bytes; at most {}", value,
                kLargestCopy);
  return {};
}

void NvRecording::set_grid(const Site& site, uint64_t value) {
  LaunchPart& part = launches_[site.what];
  const auto blocks = static_cast<uint32_t>(value);
  hcq::axis_of(part.grid, site.axis) = blocks;
  const LaunchPlan& plan = part.program->plan();
  const QmdField& field = qmd_format(plan.version)[grid_key(site.axis)];
  const uint32_t shift = field.low % 32u;
  const uint32_t mask = field.bits == 32 ? UINT32_MAX : (1u << field.bits) - 1;
  const GridWords words = grid_words(plan.bank0, site.axis);
  if (words.blocks != kNoWord) set(part.bank + words.blocks / 4u, blocks);
  if (words.clusters != kNoWord) {
    hal::Dim3 cluster = plan.shape.has_cluster ? plan.shape.cluster : hal::Dim3{};
    const uint32_t clusters = ceil_div(blocks, hcq::axis_of(cluster, site.axis));
    set(part.bank + words.clusters / 4u, clusters);
    set(part.bank + (words.clusters - plan.bank0.second_place) / 4u, clusters);
  }
  set(site.at, (shadow_[site.at] & ~(mask << shift)) | blocks << shift);
  set(place(kComputeRing, part.header),
      hcq::is_empty(part.grid) ? kComputeNoOperationHeader : launch_header(plan.method));
}

void NvRecording::apply(const Site& site, uint64_t value) {
  switch (site.kind) {
    case PatchKind::kLowHigh: return;  // written where sites are walked
    case PatchKind::kHighLow:
      set(site.at, hi32(value));
      set(site.at + 1, lo32(value));
      return;
    case PatchKind::kGrid: return set_grid(site, value);
    case PatchKind::kCopyBytes:
      set(site.at, static_cast<uint32_t>(value));
      set(copies_[site.what].header, value == 0 ? kCopyNopHeader : kCopyLaunchHeader);
      return;
  }
  __builtin_unreachable();
}

Status NvRecording::patch(std::span<const uint64_t> values, uint64_t cross_releases) {
  BM_TRY(patch_sites(values));
  for (const CrossEngineStore& store : cross_engine_sites_) {
    const uint64_t value = cross_releases + store.ordinal;
    set(store.at, lo32(value));
    set(store.at + 1, hi32(value));
  }
  return {};
}

}  // namespace bm::nv
