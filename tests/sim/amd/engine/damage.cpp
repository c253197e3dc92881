// Faults that come by themselves: a submission is changed on its way in, as a flipped bit or a lost
// write would, or what it points to is; engines and interpreter find the rest.

#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "tests/sim/amd/engine/engine.h"

namespace bm::sim::amd {
namespace {

constexpr uint64_t kNowhere = 0x7ead'0000'0000, kPage = 4096;
constexpr int kLeastUrgent = 19;  // of threads, as nice(1) has it
constexpr uint32_t kManyGroups = 1 << 20, kMuchLds = 511 * 512, kMuchScratch = 64 << 20;

/// Code that goes wrong, of RDNA2, RDNA3 and RDNA4; llvm-mc 19 assembled it.
struct Snippet {
  Effect effect;
  std::array<std::vector<uint32_t>, 3> words;
};

const std::vector<Snippet>& snippets() {
  static const std::vector<Snippet> all = {
      // s[0:1] = 0x7ead00000000, v0 = 0, v1 = 2; global_atomic_add_u32 v0, v1, s[0:1]
      {Effect::kAddToUnmapped,
       {{{0xbe800380, 0xbe8103ff, 0x7ead, 0x7e000280, 0x7e020282, 0xdcc88000, 0x00000100},
         {0xbe800080, 0xbe8100ff, 0x7ead, 0x7e000280, 0x7e020282, 0xdcd60000, 0x00000100},
         {0xbe800080, 0xbe8100ff, 0x7ead, 0x7e000280, 0x7e020282, 0xee0d4000, 0x00800000, 0}}}},
      // The same at v0 = 2, which no atomic of 4 bytes may have.
      {Effect::kMisaligned,
       {{{0xbe800380, 0xbe8103ff, 0x7ead, 0x7e000282, 0x7e020282, 0xdcc88000, 0x00000100},
         {0xbe800080, 0xbe8100ff, 0x7ead, 0x7e000282, 0x7e020282, 0xdcd60000, 0x00000100},
         {0xbe800080, 0xbe8100ff, 0x7ead, 0x7e000282, 0x7e020282, 0xee0d4000, 0x00800000, 0}}}},
      // s[0:1] = 0x7ead0000; s_setpc_b64 s[0:1]
      {Effect::kJump,
       {{{0xbe8003ff, 0x7ead0000, 0xbe810380, 0xbe802000},
         {0xbe8000ff, 0x7ead0000, 0xbe810080, 0xbe804800},
         {0xbe8000ff, 0x7ead0000, 0xbe810080, 0xbe804800}}}},
      // v1 = 0x7ead0000; ds_store_b32 v1, v1
      {Effect::kLeaveLds,
       {{{0x7e0202ff, 0x7ead0000, 0xd8340000, 0x00000101},
         {0x7e0202ff, 0x7ead0000, 0xd8340000, 0x00000101},
         {0x7e0202ff, 0x7ead0000, 0xd8340000, 0x00000101}}}},
      {Effect::kIllegal, {{{0xffffffff}, {0xffffffff}, {0xffffffff}}}},
      {Effect::kNoCode,
       {{std::vector<uint32_t>(16, 0x01010101), std::vector<uint32_t>(16, 0x01010101),
         std::vector<uint32_t>(16, 0x01010101)}}},
      // s_wait_kmcnt 0 is RDNA4's; RDNA4 has no s_waitcnt_vscnt null, 0.
      {Effect::kForeignCode, {{{0xbfc70000}, {0xbfc70000}, {0xbc7c0000}}}},
      {Effect::kTrap, {{{0xbf920002}, {0xbf900002}, {0xbf900002}}}},
      // s_branch to itself
      {Effect::kSpin, {{{0xbf82ffff}, {0xbfa0ffff}, {0xbfa0ffff}}}},
  };
  return all;
}

bool is_code(Effect effect) {
  return std::ranges::any_of(snippets(), [&](const Snippet& s) { return s.effect == effect; });
}

}  // namespace

std::vector<uint64_t> Queue::pointers(uint64_t kernarg) {
  std::vector<uint64_t> slots;
  for (uint64_t at = kernarg; kernarg != 0; at += 8) {
    const std::byte* const word = memory_.at(setup_.gpu_id, at, 8, false);
    uint64_t value = 0;
    if (word != nullptr) std::memcpy(&value, word, 8);
    if (value == 0 || memory_.at(setup_.gpu_id, value, 1, false) == nullptr) break;
    slots.push_back(at);
  }
  return slots;
}

uint64_t Queue::first_gap(uint64_t va) {
  while (const auto range = memory_.local_range(setup_.gpu_id, va)) va = range->va + range->bytes;
  return va;
}

void Queue::damage_packet(std::span<uint32_t> w) {
  constexpr uint64_t kRsrc1 = 48, kEntry = 16;
  const auto pair = [&](size_t i) { return uint64_t{w[i + 1]} << 32 | w[i]; };
  const auto set = [&](size_t i, uint64_t value) {
    w[i] = static_cast<uint32_t>(value);
    w[i + 1] = static_cast<uint32_t>(value >> 32);
  };
  const uint64_t descriptor = pair(8);
  const uint32_t threads = std::max(w[1] & 0xffff, 1u);
  const LaunchFields was{.code = descriptor,
                         .entry = descriptor + load64(descriptor + kEntry),
                         .kernarg = pair(10),
                         .threads_x = threads,
                         .groups_x = w[3] / threads,
                         .lds_bytes = w[7],
                         .private_bytes = w[6],
                         .rsrc1 = load32(descriptor + kRsrc1)};
  LaunchFields now = was;
  damage(now);
  w[1] = (w[1] & 0xffff0000) | now.threads_x;
  w[3] = now.threads_x * now.groups_x;
  w[6] = now.private_bytes;
  w[7] = now.lds_bytes;
  set(8, now.code);
  set(10, now.kernarg);
  if (now.rsrc1 != was.rsrc1) store32(descriptor + kRsrc1, now.rsrc1);
}

/// Not every launch has what is to be damaged.
bool Queue::can_damage(const LaunchFields& f) {
  constexpr uint32_t kAqlQueue = 2;
  switch (state_.knobs.plant.effect()) {
    case Effect::kReadUnmapped: return pointers(f.kernarg).size() >= 2;
    case Effect::kWriteUnmapped:
    case Effect::kWritePastEnd:
    case Effect::kTwoFaults: return !pointers(f.kernarg).empty();
    case Effect::kReadOtherGpu:
      return pointers(f.kernarg).size() >= 2 && memory_.mapped_elsewhere(setup_.gpu_id) != 0;
    case Effect::kShortArguments:
    case Effect::kNoArguments: return f.kernarg != 0;
    case Effect::kRegisters: return (f.rsrc1 & 0x3f) > 1;
    case Effect::kGrid:
      return f.groups_x > 1;  // or the group's number is not looked at
    // PM4 packets do not say what a kernel needs of it.
    case Effect::kScratch: return setup_.type == kAqlQueue;
    default: return true;
  }
}

void Queue::damage_code(uint64_t entry) {
  Effect effect = state_.knobs.plant.effect();
  if (effect == Effect::kTwoFaults) effect = Effect::kTrap;
  const auto found = std::ranges::find(snippets(), effect, &Snippet::effect);
  const auto& words = found->words[std::clamp(setup_.generation, 10u, 12u) - 10];
  std::memcpy(memory_at(entry, words.size() * 4, true), words.data(), words.size() * 4);
}

void Queue::damage(LaunchFields& f) {
  auto& plant = state_.knobs.plant;
  if (!plant.awaits(PlantEvent::kLaunch) || !can_damage(f) || !plant.is_due(PlantEvent::kLaunch))
    return;
  // A GPU that is busy for nothing takes no time of the host's processors.
  if (plant.effect() == Effect::kSpin || plant.effect() == Effect::kGrid)
    setpriority(PRIO_PROCESS, 0, kLeastUrgent);
  if (is_code(plant.effect())) return damage_code(f.entry);
  const auto slots = pointers(f.kernarg);
  const auto target = [&](uint64_t slot) {
    uint64_t value = 0;
    std::memcpy(&value, memory_at(slot, 8, false), 8);
    return value;
  };
  switch (plant.effect()) {
    case Effect::kReadUnmapped: store64(slots.back(), kNowhere); break;
    case Effect::kWriteUnmapped:
    case Effect::kTwoFaults: store64(slots.front(), kNowhere); break;
    case Effect::kWritePastEnd: store64(slots.front(), first_gap(target(slots.front()))); break;
    case Effect::kReadOtherGpu:
      store64(slots.back(), memory_.mapped_elsewhere(setup_.gpu_id));
      break;
    case Effect::kCutCode: lost_page_ = f.entry / kPage * kPage; break;
    case Effect::kEntry: f.code = kNowhere; break;
    case Effect::kThreads: f.threads_x = 1025; break;
    case Effect::kGrid: f.groups_x = kManyGroups; break;
    case Effect::kLds: f.lds_bytes = kMuchLds; break;
    case Effect::kScratch: f.private_bytes = kMuchScratch; break;
    case Effect::kRegisters: f.rsrc1 &= ~0x3fu; break;
    case Effect::kShortArguments: f.kernarg = first_gap(f.kernarg) - 8; break;
    case Effect::kNoArguments: f.kernarg = kNowhere; break;
    default: stop_engine();
  }
}

void Queue::damage_copy(std::span<uint32_t> packet) {
  auto& plant = state_.knobs.plant;
  const bool is_due = plant.is_due(PlantEvent::kCopy) ||
                      (is_handed_over_ && plant.is_due(PlantEvent::kHandedOverCopy));
  if (!is_due) return;
  const auto set = [&](size_t i, uint64_t address) {
    packet[i] = static_cast<uint32_t>(address);
    packet[i + 1] = static_cast<uint32_t>(address >> 32);
  };
  const uint64_t from = uint64_t{packet[4]} << 32 | packet[3];
  switch (plant.effect()) {
    case Effect::kCopyFromUnmapped: set(3, kNowhere); break;
    case Effect::kCopyToUnmapped: set(5, kNowhere); break;
    // Its count is what the engine is told less one.
    case Effect::kCopyPastEnd:
      packet[1] = static_cast<uint32_t>(first_gap(from) - from + kPage - 1);
      break;
    case Effect::kCopyBeyond: packet[6] |= 1u << 28; break;
    default: stop_engine();
  }
}

bool Queue::damages_wait() {
  auto& plant = state_.knobs.plant;
  return plant.effect() == Effect::kUnmet && plant.is_due(PlantEvent::kWait);
}

void Queue::stop_engine() {
  Knobs& knobs = state_.knobs;
  switch (knobs.plant.effect()) {
    case Effect::kHang: knobs.is_hung = true; return;  // the launch waits
    case Effect::kStall:
      (setup_.type == 1 ? knobs.is_copy_stalled : knobs.is_stalled) = true;
      break;
    case Effect::kLost: knobs.is_lost = true; break;
    case Effect::kReset:
      setup_.die({Death::Kind::kReset, 0, false, "the driver resets the GPU", -1});
      break;
    default: return;
  }
  for (;;) pause();
}

}  // namespace bm::sim::amd
