#include "tests/sim/nv/damage.h"

#include <sys/resource.h>

#include <vector>

#include <fmt/format.h>

namespace bm::sim::nv {
namespace {

constexpr uint64_t kNowhere = 0xdead'0000'0000, kSmallPage = 4096;
constexpr int kLeastUrgent = 19;  // of threads, as nice(1) has it
// As programs of models have them (program_ptx.cpp).
constexpr uint64_t kCountWord = 80 * 4, kArguments = 0x160;

/// Places of the arguments that are addresses.
std::vector<uint64_t> pointers(GpuMemory& memory, const Descriptor& descriptor) {
  std::vector<uint64_t> slots;
  const auto& bank = descriptor.banks[0];
  uint32_t count = 0;
  if (!bank.is_valid || !memory.get(bank.address + kCountWord, &count)) return slots;
  for (uint32_t i = 0; i < count && kArguments + 8 * i + 8 <= bank.size; ++i)
    slots.push_back(bank.address + kArguments + 8 * i);
  return slots;
}

uint64_t target_of(GpuMemory& memory, uint64_t slot) {
  uint64_t value = 0;
  memory.get(slot, &value);
  return value;
}

/// First address at or after `va` that is not mapped, and the first of all those before it that
/// are.
uint64_t gap_after(const GpuMemory& memory, uint64_t va) {
  va = va / kSmallPage * kSmallPage;
  while (memory.is_mapped(va, 1)) va += kSmallPage;
  return va;
}
uint64_t begin_before(const GpuMemory& memory, uint64_t va) {
  va = va / kSmallPage * kSmallPage;
  while (memory.is_mapped(va - kSmallPage, 1)) va -= kSmallPage;
  return va;
}

bool needs_two(PlantEffect effect) {
  return effect == PlantEffect::kReadUnmapped || effect == PlantEffect::kReadBeforeBegin;
}

bool is_text(PlantEffect effect) {
  return effect >= PlantEffect::kAddToUnmapped && effect <= PlantEffect::kNoText;
}

/// Instructions where the kernel's begin.
std::string instructions(PlantEffect effect) {
  switch (effect) {
    case PlantEffect::kAddToUnmapped:
      return fmt::format(
          "{{ .reg .b64 %bad<3>; mov.u64 %bad1, {}; atom.global.add.u64 %bad2, [%bad1], 1; }}",
          kNowhere);
    case PlantEffect::kOutOfRange:
      return "{ .reg .b32 %bad<2>; mov.u32 %bad1, 1048576; st.shared.u32 [%bad1], %bad1; }";
    case PlantEffect::kTrap: return "trap;";
    case PlantEffect::kNonsense: return "frobnicate.u64 %bad1, %bad1;";
    case PlantEffect::kBarrier:
      return "{ .reg .pred %badp; .reg .b32 %bad<2>; mov.u32 %bad1, %tid.x; "
             "setp.lt.u32 %badp, %bad1, 32; @%badp bar.sync 1, 64; }";
    case PlantEffect::kSpin: return "damaged: bra damaged;";
    default: return {};
  }
}

}  // namespace

void damage_text(Gpu& gpu, std::string* text) {
  auto& plant = gpu.knobs().plant;
  const PlantEffect effect = plant.effect();
  if (!is_text(effect) || !plant.is_planted()) return;
  if (effect == PlantEffect::kCutText) return text->resize(text->size() / 2);
  if (effect == PlantEffect::kNoText) {
    text->replace(0, 7, "\x7f\x45LF\2\1\1");
    return;
  }
  const size_t entry = text->find(".entry");
  const size_t body = text->find('{', entry == text->npos ? 0 : entry);
  if (body == text->npos) return;
  // Behind the declarations, which come first.
  const std::string bad = "\n" + instructions(effect) + "\n";
  size_t at = body + 1;
  for (size_t line = at; line < text->size();) {
    const size_t first = text->find_first_not_of(" \t\n", line);
    if (first == text->npos || (*text)[first] != '.') break;
    line = text->find('\n', first);
    if (line == text->npos) break;
    at = line;
  }
  text->insert(at, bad);
}

void damage_launch(Gpu& gpu, GpuMemory& memory, uint32_t major, std::span<uint32_t> words) {
  Knobs& knobs = gpu.knobs();
  auto& plant = knobs.plant;
  if (!plant.awaits(PlantEvent::kLaunch)) return;
  const PlantEffect effect = plant.effect();
  const Descriptor descriptor = decode_descriptor(major, words);
  const auto slots = pointers(memory, descriptor);
  // Not every launch has what is to be damaged: two addresses, or a warp that waits for another.
  if (slots.size() < (needs_two(effect) ? 2u : 1u)) return;
  if (effect == PlantEffect::kBarrier && descriptor.block[0] < 64) return;
  if (!plant.is_due(PlantEvent::kLaunch)) return;
  // A GPU that is busy for nothing takes no time of the host's processors.
  if (effect == PlantEffect::kSpin) setpriority(PRIO_PROCESS, 0, kLeastUrgent);
  const auto point = [&](uint64_t slot, uint64_t value) { memory.write(slot, &value, 8); };
  const uint64_t first = target_of(memory, slots.front()), last = target_of(memory, slots.back());
  using Field = DescriptorField;
  switch (effect) {
    case PlantEffect::kReadUnmapped: return point(slots.back(), kNowhere);
    case PlantEffect::kWriteUnmapped:
    case PlantEffect::kTwoFaults: return point(slots.front(), kNowhere);
    case PlantEffect::kWritePastEnd: return point(slots.front(), gap_after(memory, first));
    case PlantEffect::kReadBeforeBegin: return point(slots.back(), begin_before(memory, last) - 8);
    case PlantEffect::kMisaligned: return point(slots.front(), first + 1);
    case PlantEffect::kThreads: return set_field(major, words, Field::kBlockX, 1025);
    case PlantEffect::kDepth: return set_field(major, words, Field::kBlockZ, 65);
    case PlantEffect::kShared: return set_field(major, words, Field::kShared, 0x3ff80);
    // 65536, of which 16 bits are left.
    case PlantEffect::kGrid: return set_field(major, words, Field::kGridY, 0);
    case PlantEffect::kVersion: return set_field(major, words, Field::kMajor, 7);
    case PlantEffect::kProgram: return set_field(major, words, Field::kProgramHigh, 0xde);
    case PlantEffect::kHang: knobs.is_hung = true; return;
    case PlantEffect::kStall: knobs.is_stalled = true; return;
    case PlantEffect::kLost: knobs.is_lost = true; return;
    default: return;
  }
}

void damage_copy(Gpu& gpu, const GpuMemory& memory, uint64_t* in, uint64_t* out, uint64_t bytes) {
  Knobs& knobs = gpu.knobs();
  if (!knobs.plant.is_due(PlantEvent::kCopy)) return;
  switch (knobs.plant.effect()) {
    case PlantEffect::kCopyFromUnmapped: *in = kNowhere; return;
    case PlantEffect::kCopyToUnmapped: *out = kNowhere; return;
    case PlantEffect::kCopyPastEnd: *in = gap_after(memory, *in) - bytes / 2; return;
    case PlantEffect::kCopyBeyond: *out |= uint64_t{1} << 60; return;
    case PlantEffect::kStall: knobs.is_stalled = true; return;
    default: return;
  }
}

}  // namespace bm::sim::nv
