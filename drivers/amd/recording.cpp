#include "drivers/amd/recording.h"

#include <algorithm>
#include <limits>

#include "drivers/hcq/mapped.h"
#include "drivers/amd/pm4/packets.h"
#include "drivers/amd/sdma/packets.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::amd {
namespace {

constexpr uint32_t kAlignWords = MemoryPool::kAlignment / 4;
constexpr uint64_t kEndOfAddresses = uint64_t{1} << 48;

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

uint64_t AmdRecording::bytes_for(const Script& script) {
  const uint64_t words = uint64_t{aligned_words(script.data.size())} +
                         aligned_words(script.words[kComputeLane].size());
  return std::max<uint64_t>(words * 4, MemoryPool::kAlignment);
}

Result<std::unique_ptr<AmdRecording>> AmdRecording::build(std::shared_ptr<Gpu> gpu,
                                                          Allocation memory, Script script,
                                                          std::span<const hal::Patch> patches,
                                                          std::array<Lane*, kLanes> lanes,
                                                          std::shared_ptr<ScratchArea> scratch) {
  std::unique_ptr<AmdRecording> recording(
      new AmdRecording(std::move(gpu), std::move(memory), lanes, std::move(scratch)));
  BM_TRY(recording->lay_out(script));
  for (const hal::Patch& patch : patches) BM_TRY(recording->add_patch(script, patch));
  BM_TRY(recording->sort_stores());
  hcq::store_words(recording->memory_.host(),
                   std::span(recording->shadow_).first(recording->first_[kCopyLane]));
  return recording;
}

const aql::Words& AmdRecording::packet(const Entry& entry) const {
  const aql::Words& words = packets_[entry.first];
  const bool is_empty = words[aql::kGridWord] == 0 || words[aql::kGridWord + 1] == 0 ||
                        words[aql::kGridWord + 2] == 0;
  return is_empty ? no_launch_ : words;
}

Status AmdRecording::lay_out(Script& script) {
  first_[kComputeLane] = aligned_words(script.data.size());
  first_[kCopyLane] = first_[kComputeLane] + aligned_words(script.words[kComputeLane].size());
  shadow_.assign(first_[kCopyLane] + script.words[kCopyLane].size(), 0);
  std::ranges::copy(script.data, shadow_.begin());
  for (size_t lane = 0; lane < kLanes; ++lane)
    std::ranges::copy(script.words[lane], shadow_.begin() + first_[lane]);
  for (const Entry& entry : script.entries) counts_[entry.lane] += room_of(entry);
  if (const Lane* const compute = lanes_[kComputeLane];
      compute != nullptr && counts_[kComputeLane] > compute->entries() / 2)
    return fail(Code::kUnsupported, "a recording of {} entries for a ring of {}",
                counts_[kComputeLane], compute->entries());
  entries_ = script.entries;
  packets_ = script.packets;
  handover_stores_ = script.handover_spots;
  handovers_ = script.handovers;
  ends_on_copies_ = script.ends_on_copies;
  launches_ = script.launches;
  fence_at_ = script.fence_at;
  lane_used_ = script.lane_used;
  names_ = std::make_shared<const std::string>(names_of(launches_));
  return {};
}

Status AmdRecording::add_patch(const Script& script, const hal::Patch& patch) {
  using hal::PatchField;
  const size_t commands = script.spots.size();
  if (patch.command >= commands || patch.slot == std::numeric_limits<uint32_t>::max())
    return no_such_place(patch, commands);
  num_slots_ = std::max(num_slots_, patch.slot + 1);
  const Spot& spot = script.spots[patch.command];
  Store store;
  store.slot = patch.slot;
  store.addend = patch.addend;
  switch (patch.field) {
    case PatchField::kKernarg: {
      if (spot.kind != Spot::Kind::kLaunch) return no_such_place(patch, commands);
      const LaunchPart& part = launches_[spot.first];
      if (patch.word >= part.program->plan().explicit_bytes / 8)
        return no_such_place(patch, commands);
      store.at = part.block + patch.word * 2;
      stores_.push_back(store);
      return {};
    }
    case PatchField::kGridX:
    case PatchField::kGridY:
    case PatchField::kGridZ:
      if (spot.kind != Spot::Kind::kLaunch) return no_such_place(patch, commands);
      store.kind = Kind::kGrid;
      store.axis = static_cast<uint8_t>(static_cast<uint8_t>(patch.field) -
                                        static_cast<uint8_t>(PatchField::kGridX));
      store.what = spot.first;
      // Of packets no word of the image is patched; the launch tells them apart.
      store.at = std::numeric_limits<uint32_t>::max() - spot.first * 3 - store.axis;
      stores_.push_back(store);
      return {};
    case PatchField::kCopyDst:
    case PatchField::kCopySrc:
      if (spot.kind != Spot::Kind::kCopy) return no_such_place(patch, commands);
      store.rule = Rule::kAddress;
      for (uint32_t i = spot.first; i < spot.first + spot.count; ++i) {
        const CopyPart& copy = script.copies[i];
        store.at =
            place(kCopyLane, copy.at + (patch.field == PatchField::kCopyDst ? sdma::kCopyTarget
                                                                            : sdma::kCopySource));
        store.addend = patch.addend + copy.offset;
        stores_.push_back(store);
      }
      return {};
    case PatchField::kCopyBytes:
      if (spot.kind != Spot::Kind::kCopy || spot.count != 1) return no_such_place(patch, commands);
      store.kind = Kind::kCopyBytes;
      store.at = place(kCopyLane, script.copies[spot.first].at);
      stores_.push_back(store);
      return {};
    case PatchField::kSignalAddress: {
      const Status added = add_address(spot, store);
      return added ? added : no_such_place(patch, commands);
    }
    case PatchField::kSignalValue: {
      const Status added = add_value(spot, store);
      return added ? added : no_such_place(patch, commands);
    }
  }
  __builtin_unreachable();
}

Status AmdRecording::add_address(const Spot& spot, Store store) {
  store.rule = Rule::kWordAddress;
  switch (spot.kind) {
    case Spot::Kind::kWait:
      store.at = place(spot.lane, spot.at + sdma::kWaitAddress);  // alike in both lanes
      break;
    case Spot::Kind::kSignal: store.at = place(spot.lane, spot.at + 2); break;
    case Spot::Kind::kFences:
      store.kind = Kind::kAddresses;
      store.at = place(spot.lane, spot.at + sdma::kFenceAddress);
      break;
    case Spot::Kind::kStamp: store.at = place(spot.lane, spot.at + sdma::kStampTarget); break;
    case Spot::Kind::kNone:
    case Spot::Kind::kCopy:
    case Spot::Kind::kLaunch: return fail(Code::kInvalidArgument, "no address");
  }
  static_assert(sdma::kWaitAddress == 1 && sdma::kWaitValue == 3);
  stores_.push_back(store);
  return {};
}

Status AmdRecording::add_value(const Spot& spot, Store store) {
  switch (spot.kind) {
    case Spot::Kind::kWait:
      store.kind = Kind::kWord;
      store.at = place(spot.lane, spot.at + sdma::kWaitValue);
      break;
    case Spot::Kind::kSignal: store.at = place(spot.lane, spot.at + 4); break;
    case Spot::Kind::kFences:
      store.kind = Kind::kSplit;
      store.at = place(spot.lane, spot.at + sdma::kFenceValue);
      break;
    case Spot::Kind::kNone:
    case Spot::Kind::kStamp:
    case Spot::Kind::kCopy:
    case Spot::Kind::kLaunch: return fail(Code::kInvalidArgument, "no value");
  }
  stores_.push_back(store);
  return {};
}

/// Writes go to memory in address order; equal places would fight.
Status AmdRecording::sort_stores() {
  std::ranges::sort(stores_, {}, &Store::at);
  const auto same = std::ranges::adjacent_find(
      stores_, [](const Store& a, const Store& b) { return a.at == b.at; });
  if (same != stores_.end())
    return fail(Code::kInvalidArgument, "slots {} and {} patch the same place", same->slot,
                std::next(same)->slot);
  return {};
}

void AmdRecording::set(uint32_t at, uint32_t value) {
  if (shadow_[at] == value) return;
  shadow_[at] = value;
  if (at < first_[kCopyLane]) hcq::store32(memory_.host() + uint64_t{at} * 4, value);
}

Status AmdRecording::check(const Store& store, uint64_t value) const {
  switch (store.rule) {
    case Rule::kAny: break;
    case Rule::kWordAddress:
      if (value != 0 && value % 8 == 0) break;
      return fail(Code::kInvalidArgument,
                  "a replayed signal at {:#x}: no address of 8 aligned bytes", value);
    case Rule::kAddress:
      if (value != 0 && value < kEndOfAddresses) break;
      return fail(Code::kInvalidArgument, "a replayed copy from or to {:#x}", value);
  }
  switch (store.kind) {
    case Kind::kWord:
      if (hi32(value) == 0) return {};
      return fail(Code::kInvalidArgument, "a replayed wait for {}: the hardware compares 32 bits",
                  value);
    case Kind::kGrid: {
      const LaunchPart& part = launches_[store.what];
      hal::Dim3 grid = part.grid;
      uint32_t* const dims[] = {&grid.x, &grid.y, &grid.z};
      if (value > UINT32_MAX)
        return fail(Code::kInvalidArgument, "kernel '{}': {} blocks in dimension {}",
                    part.program->code().entry, value, store.axis);
      *dims[store.axis] = static_cast<uint32_t>(value);
      return check_grid(part.program->plan(), grid);
    }
    case Kind::kCopyBytes:
      if (value <= sdma::max_piece(gpu_->chip().sdma)) return {};
      return fail(Code::kInvalidArgument, "a replayed copy of {} bytes; at most {}", value,
                  sdma::max_piece(gpu_->chip().sdma));
    case Kind::kPair:
    case Kind::kSplit:
    case Kind::kAddresses: return {};
  }
  __builtin_unreachable();
}

void AmdRecording::set_grid(const Store& store, uint64_t value) {
  LaunchPart& part = launches_[store.what];
  const LaunchPlan& plan = part.program->plan();
  uint32_t* const dims[] = {&part.grid.x, &part.grid.y, &part.grid.z};
  const uint32_t sizes[] = {plan.block.x, plan.block.y, plan.block.z};
  const auto blocks = static_cast<uint32_t>(value);
  *dims[store.axis] = blocks;
  const bool is_empty = part.grid.x == 0 || part.grid.y == 0 || part.grid.z == 0;
  if (plan.has_hidden_arguments() && plan.kernarg_bytes >= plan.explicit_bytes + 12)
    set(part.block + plan.explicit_bytes / 4 + store.axis, blocks);
  if (part.dispatch != LaunchPart::kNoBlock)
    set(part.dispatch + aql::kGridWord + store.axis, blocks * sizes[store.axis]);
  if (part.groups != 0) {
    const uint32_t at = place(kComputeLane, part.groups);
    set(at + store.axis, blocks);
    set(at - 1, pm4::header(is_empty ? pm4::Op::kNop : pm4::Op::kDispatchDirect, 4));
    return;
  }
  aql::Words& packet = packets_[part.packet];
  packet[aql::kGridWord + store.axis] = blocks * sizes[store.axis];
}

void AmdRecording::apply(const Store& store, uint64_t value) {
  switch (store.kind) {
    case Kind::kWord: set(store.at, lo32(value)); return;
    case Kind::kPair:
      set(store.at, lo32(value));
      set(store.at + 1, hi32(value));
      return;
    case Kind::kSplit:
      set(store.at, lo32(value));
      set(store.at + sdma::kFenceDwords, hi32(value));
      return;
    case Kind::kAddresses:
      set(store.at, lo32(value));
      set(store.at + 1, hi32(value));
      set(store.at + sdma::kFenceDwords, lo32(value + 4));
      set(store.at + sdma::kFenceDwords + 1, hi32(value + 4));
      return;
    case Kind::kGrid: return set_grid(store, value);
    case Kind::kCopyBytes:
      set(store.at + sdma::kCopyCount, value == 0 ? 0 : static_cast<uint32_t>(value - 1));
      set(store.at, value == 0 ? sdma::kSkippedCopyHeader : sdma::kCopyHeader);
      return;
  }
  __builtin_unreachable();
}

Status AmdRecording::patch(std::span<const uint64_t> values, uint64_t handovers,
                           const std::array<uint64_t, kLanes>& fences) {
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
  for (const HandoverSpot& spot : handover_stores_) {
    const uint64_t value = handovers + spot.ordinal;
    set(place(spot.lane, spot.low), lo32(value));
    if (spot.high != UINT32_MAX) set(place(spot.lane, spot.high), hi32(value));
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (!lane_used_[lane]) continue;
    for (uint32_t reader = 0; reader < lanes_[lane]->readers(); ++reader) {
      const uint32_t low = fence_at_[lane] + reader * kNextFence;
      set(place(lane, low), lo32(fences[lane]));
      set(place(lane, fence_high(lane, low)), hi32(fences[lane]));
    }
  }
  return {};
}

AmdRecording::~AmdRecording() {
  const std::lock_guard lock(gpu_->mutex);
  // A caller has seen the last signal; the queue may still be reading the words behind it.
  if (is_used_ && gpu_->health_locked()) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (lanes_[lane] == nullptr || !lane_used_[lane]) continue;
      if (const Status done = lanes_[lane]->drain(); !done)
        log("amd", LogLevel::kWarning, "freeing a recording: {}", done.error().message);
    }
  }
  memory_.reset();
  scratch_.reset();
}

}  // namespace bm::amd
