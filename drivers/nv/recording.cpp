#include "drivers/nv/recording.h"

#include <algorithm>
#include <limits>

#include "drivers/hcq/mapped.h"
#include "drivers/nv/methods/bank0.h"
#include "drivers/nv/methods/compute.h"
#include "drivers/nv/methods/copy.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::nv {
namespace {

constexpr uint32_t kAlignWords = MemoryPool::kAlignment / 4;

uint32_t aligned_words(size_t words) { return align_up(static_cast<uint32_t>(words), kAlignWords); }

/// "17 kernels from 'a' to 'b'", built once so that replays only keep a reference.
std::string names_of(std::span<const LaunchPart> launches) {
  if (launches.empty()) return "copies only";
  const auto name = [](const LaunchPart& part) { return part.program->code().entry; };
  if (launches.size() == 1) return name(launches[0]);
  return fmt::format("a recording of {} kernels from '{}' to '{}'", launches.size(),
                     name(launches.front()), name(launches.back()));
}

tl::unexpected<Error> no_such_place(const hal::Patch& patch, size_t commands) {
  return fail(Code::kInvalidArgument, "patch field {} (word {}) does not exist in command {} of {}",
              static_cast<int>(patch.field), patch.word, patch.command, commands);
}

}  // namespace

uint64_t NvRecording::bytes_for(const Script& script) {
  uint64_t words = aligned_words(script.data.size());
  for (const auto& lane : script.words) words += aligned_words(lane.size());
  return words * 4;
}

Result<std::unique_ptr<NvRecording>> NvRecording::build(std::shared_ptr<Gpu> gpu, Allocation memory,
                                                        Script script,
                                                        std::span<const hal::Patch> patches,
                                                        std::array<Lane*, kLanes> lanes) {
  std::unique_ptr<NvRecording> recording(new NvRecording(std::move(gpu), std::move(memory), lanes));
  BM_TRY(recording->lay_out(script));
  for (const hal::Patch& patch : patches) BM_TRY(recording->add_patch(script, patch));
  BM_TRY(recording->sort_stores());
  hcq::store_words(recording->memory_.host(), recording->shadow_);
  return recording;
}

Status NvRecording::lay_out(Script& script) {
  uint32_t next = aligned_words(script.data.size());
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (script.words[lane].size() > kMaxEntryWords)
      return fail(Code::kUnsupported, "{} words of methods exceed a ring entry",
                  script.words[lane].size());
    first_[lane] = next;
    count_[lane] = static_cast<uint32_t>(script.words[lane].size());
    next += aligned_words(count_[lane]);
  }
  shadow_.assign(next, 0);
  std::ranges::copy(script.data, shadow_.begin());
  for (size_t lane = 0; lane < kLanes; ++lane)
    std::ranges::copy(script.words[lane], shadow_.begin() + first_[lane]);
  for (const HandoverSpot& spot : script.handover_spots)
    handover_stores_.push_back({place(spot.lane, spot.at), spot.ordinal});
  for (const CopyPart& copy : script.copies)
    copies_.push_back({place(kCopyLane, copy.bytes), place(kCopyLane, copy.launch_header)});
  handovers_ = script.handovers;
  launches_ = script.launches;
  names_ = std::make_shared<const std::string>(names_of(launches_));
  return {};
}

Status NvRecording::add_patch(const Script& script, const hal::Patch& patch) {
  using hal::PatchField;
  if (patch.command >= script.spots.size() || patch.slot == std::numeric_limits<uint32_t>::max())
    return no_such_place(patch, script.spots.size());
  num_slots_ = std::max(num_slots_, patch.slot + 1);
  const Spot& spot = script.spots[patch.command];
  Store store{.at = 0, .kind = Kind::kLowHigh, .slot = patch.slot, .addend = patch.addend};
  switch (patch.field) {
    case PatchField::kKernarg: {
      if (spot.kind != Spot::Kind::kLaunch) return no_such_place(patch, script.spots.size());
      const LaunchPart& part = launches_[spot.first];
      const hal::CodeObject& code = part.program->code();
      if (patch.word >= code.num_buffers + code.num_vars)
        return no_such_place(patch, script.spots.size());
      store.at = part.bank + part.program->plan().bank0.params / 4u + patch.word * 2;
      stores_.push_back(store);
      return {};
    }
    case PatchField::kGridX:
    case PatchField::kGridY:
    case PatchField::kGridZ: {
      if (spot.kind != Spot::Kind::kLaunch) return no_such_place(patch, script.spots.size());
      const LaunchPart& part = launches_[spot.first];
      store.kind = Kind::kGrid;
      store.axis = static_cast<uint8_t>(patch.field) - static_cast<uint8_t>(PatchField::kGridX);
      store.what = spot.first;
      const auto key = static_cast<QmdKey>(static_cast<uint8_t>(QmdKey::kGridX) + store.axis);
      store.at = part.qmd + qmd_format(part.program->plan().version)[key].low / 32u;
      stores_.push_back(store);
      return {};
    }
    case PatchField::kCopyDst:
    case PatchField::kCopySrc: {
      if (spot.kind != Spot::Kind::kCopy) return no_such_place(patch, script.spots.size());
      store.kind = Kind::kHighLow;
      store.rule = Rule::kAddress;
      for (uint32_t i = spot.first; i < spot.first + spot.count; ++i) {
        const CopyPart& copy = script.copies[i];
        const uint32_t half = patch.field == PatchField::kCopyDst ? 2 : 0;
        store.at = place(kCopyLane, copy.addresses + half);
        store.addend = patch.addend + copy.offset;
        stores_.push_back(store);
      }
      return {};
    }
    case PatchField::kCopyBytes: {
      if (spot.kind != Spot::Kind::kCopy || spot.count != 1)
        return no_such_place(patch, script.spots.size());
      store.kind = Kind::kCopyBytes;
      store.what = spot.first;
      store.at = copies_[spot.first].bytes;
      stores_.push_back(store);
      return {};
    }
    case PatchField::kSignalAddress:
      store.rule = Rule::kWordAddress;
      if (spot.kind == Spot::Kind::kSemaphore) {
        store.at = place(spot.lane, spot.at);
      } else if (spot.kind == Spot::Kind::kTimestamp || spot.kind == Spot::Kind::kWrite) {
        store.kind = Kind::kHighLow;
        store.at = place(spot.lane, spot.at);
      } else {
        return no_such_place(patch, script.spots.size());
      }
      stores_.push_back(store);
      return {};
    case PatchField::kSignalValue: return add_value(script, spot, patch);
  }
  __builtin_unreachable();
}

Status NvRecording::add_value(const Script& script, const Spot& spot, const hal::Patch& patch) {
  Store store{.at = 0, .kind = Kind::kLowHigh, .slot = patch.slot, .addend = patch.addend};
  if (spot.kind == Spot::Kind::kSemaphore) {
    store.at = place(spot.lane, spot.at + 2);
  } else if (spot.kind == Spot::Kind::kWrite) {
    store.at = place(spot.lane, spot.first);
  } else if (spot.kind == Spot::Kind::kRelease) {
    const LaunchPart& part = launches_[spot.first];
    const QmdField& payload = qmd_format(part.program->plan().version)[QmdKey::kReleasePayload];
    // All versions keep the payload in two words of their own.
    BM_CHECK(payload.low % 32 == 0 && payload.upper_low == payload.low + 32);
    store.at = part.qmd + (payload.low + spot.count * payload.stride) / 32u;
  } else {
    return no_such_place(patch, script.spots.size());
  }
  stores_.push_back(store);
  return {};
}

/// Writes go to the mapping in address order; equal places would fight.
Status NvRecording::sort_stores() {
  std::ranges::sort(stores_, {}, &Store::at);
  const auto same = std::ranges::adjacent_find(
      stores_, [](const Store& a, const Store& b) { return a.at == b.at; });
  if (same != stores_.end())
    return fail(Code::kInvalidArgument, "slots {} and {} patch the same place", same->slot,
                std::next(same)->slot);
  std::ranges::sort(handover_stores_, {}, &Handover::at);
  return {};
}

void NvRecording::set(uint32_t at, uint32_t value) {
  if (shadow_[at] == value) return;
  shadow_[at] = value;
  hcq::store32(memory_.host() + uint64_t{at} * 4, value);
}

Status NvRecording::check(const Store& store, uint64_t value) const {
  switch (store.rule) {
    case Rule::kAny: break;
    case Rule::kWordAddress: return check_word(value, "a replayed signal");
    case Rule::kAddress:
      if (value != 0) return {};
      return fail(Code::kInvalidArgument, "a replayed copy from or to address 0");
  }
  if (store.kind == Kind::kGrid &&
      (value > kLargestGridX || (store.axis > 0 && value > kLargestGridYZ)))
    return fail(Code::kInvalidArgument, "kernel '{}': {} blocks in dimension {}",
                launches_[store.what].program->code().entry, value, store.axis);
  if (store.kind == Kind::kCopyBytes && value > kLargestCopy)
    return fail(Code::kInvalidArgument, "a replayed copy of {} bytes; at most {}", value,
                kLargestCopy);
  return {};
}

void NvRecording::set_grid(const Store& store, uint64_t value) {
  LaunchPart& part = launches_[store.what];
  const auto blocks = static_cast<uint32_t>(value);
  uint32_t* const dims[] = {&part.grid.x, &part.grid.y, &part.grid.z};
  *dims[store.axis] = blocks;
  const LaunchPlan& plan = part.program->plan();
  const auto key = static_cast<QmdKey>(static_cast<uint8_t>(QmdKey::kGridX) + store.axis);
  const QmdField& field = qmd_format(plan.version)[key];
  const uint32_t shift = field.low % 32u;
  const uint32_t mask = field.bits == 32 ? UINT32_MAX : (1u << field.bits) - 1;
  const GridWords words = grid_words(plan.bank0, store.axis);
  if (words.blocks != kNoWord) set(part.bank + words.blocks / 4u, blocks);
  if (words.clusters != kNoWord) {
    const hal::Dim3 cluster = plan.shape.has_cluster ? plan.shape.cluster : hal::Dim3{};
    const uint32_t sizes[] = {cluster.x, cluster.y, cluster.z};
    const uint32_t clusters = ceil_div(blocks, sizes[store.axis]);
    set(part.bank + words.clusters / 4u, clusters);
    set(part.bank + (words.clusters - plan.bank0.second_place) / 4u, clusters);
  }
  set(store.at, (shadow_[store.at] & ~(mask << shift)) | blocks << shift);
  const bool is_empty = part.grid.x == 0 || part.grid.y == 0 || part.grid.z == 0;
  set(place(kComputeLane, part.header),
      is_empty ? kComputeNoOperationHeader : launch_header(plan.method));
}

void NvRecording::set_copy_bytes(const Store& store, uint64_t value) {
  set(store.at, static_cast<uint32_t>(value));
  set(copies_[store.what].header, value == 0 ? kCopyNopHeader : kCopyLaunchHeader);
}

void NvRecording::apply(const Store& store, uint64_t value) {
  switch (store.kind) {
    case Kind::kLowHigh:
      set(store.at, lo32(value));
      set(store.at + 1, hi32(value));
      return;
    case Kind::kHighLow:
      set(store.at, hi32(value));
      set(store.at + 1, lo32(value));
      return;
    case Kind::kGrid: return set_grid(store, value);
    case Kind::kCopyBytes: return set_copy_bytes(store, value);
  }
  __builtin_unreachable();
}

Status NvRecording::patch(std::span<const uint64_t> values, uint64_t handovers) {
  if (values.size() < num_slots_)
    return fail(Code::kInvalidArgument, "{} values given, the recording has {} slots",
                values.size(), num_slots_);
  const auto is_new = [&](const Store& store, uint64_t value) {
    return !store.was_written || value != store.last;
  };
  for (const Store& store : stores_) {
    const uint64_t value = values[store.slot] + store.addend;
    if (is_new(store, value)) BM_TRY(check(store, value));
  }
  for (Store& store : stores_) {
    const uint64_t value = values[store.slot] + store.addend;
    if (!is_new(store, value)) continue;
    apply(store, value);
    store.last = value;
    store.was_written = true;
  }
  for (const Handover& handover : handover_stores_) {
    const uint64_t value = handovers + handover.ordinal;
    set(handover.at, lo32(value));
    set(handover.at + 1, hi32(value));
  }
  return {};
}

NvRecording::~NvRecording() {
  const std::lock_guard lock(gpu_->mutex);
  // A caller has seen the last signal; the channel may still be reading the words behind it.
  if (is_used_ && gpu_->health_locked()) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (lanes_[lane] == nullptr || count_[lane] == 0) continue;
      if (const Status done = lanes_[lane]->drain(); !done)
        log("nv", LogLevel::kWarning, "freeing a recording: {}", done.error().message);
    }
  }
  memory_.reset();
}

}  // namespace bm::nv
