// The copy engine. Source: open-gpu-doc c8607fe, classes/dma-copy/clc7b5.h (NVC7B5_*).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/damage.h"
#include "tests/sim/nv/engine.h"

namespace bm::sim::nv {
namespace {

constexpr uint32_t kSemaphoreUpper = 0x240, kSemaphoreLower = 0x244, kPayload = 0x248,
                   kPayloadUpper = 0x24c, kLaunchDma = 0x300, kInUpper = 0x400, kInLower = 0x404,
                   kOutUpper = 0x408, kOutLower = 0x40c, kPitchIn = 0x410, kPitchOut = 0x414,
                   kLineLength = 0x418, kLineCount = 0x41c, kConstA = 0x700, kConstB = 0x704,
                   kComponents = 0x708;

/// LAUNCH_DMA with everything it uses, as it was when the method came.
struct Transfer {
  uint32_t flags = 0, object_class = 0, engine = 0;
  uint64_t in = 0, out = 0, pitch_in = 0, pitch_out = 0, length = 0, lines = 1;
  uint32_t const_a = 0, const_b = 0, components = 0;
  uint64_t semaphore = 0, payload = 0;

  uint32_t type() const { return bits(flags, 1, 0); }
  uint32_t semaphore_type() const { return bits(flags, 4, 3); }
  bool has_remap() const { return bits(flags, 10, 10) != 0; }
};

Outcome copy_fault(const Transfer& transfer, std::string what) {
  return EngineFault{copy_error(transfer.engine), std::move(what)};
}

Outcome check(const Transfer& transfer) {
  const uint32_t flags = transfer.flags;
  if (transfer.type() == 3) return copy_fault(transfer, "transfer type 3");
  if (bits(flags, 13, 12) != 0)
    return copy_fault(transfer, "physical addresses on a user's channel");
  if (transfer.type() != 0 && bits(flags, 8, 7) != 3)
    return copy_fault(transfer, "block-linear layout is not modelled");
  if (bits(flags, 19, 19) != 0) return copy_fault(transfer, "semaphore reductions not modelled");
  const uint32_t upper_limit = transfer.object_class >= 0xc8b5 ? 0x1ffffff : 0x1ffff;
  if (transfer.in >> 32 > upper_limit || transfer.out >> 32 > upper_limit)
    return copy_fault(transfer, "address beyond the engine's");
  if (bits(flags, 27, 27) != 0 && transfer.object_class < 0xc7b5)
    return copy_fault(transfer, "two-word payloads came with the second Ampere class");
  return {};
}

Outcome plain(Gpu& gpu, GpuMemory& memory, const Transfer& transfer) {
  for (uint64_t line = 0; line < transfer.lines; ++line)
    if (!memory.copy(transfer.out + line * transfer.pitch_out,
                     transfer.in + line * transfer.pitch_in, transfer.length))
      return mmu_fault(memory, "copy");
  ++gpu.counts().copies;
  gpu.counts().copied_bytes += transfer.length * transfer.lines;
  return {};
}

/// Elements of constants alone, many at once: memory is cleared by the megabyte.
Outcome fill(Gpu& gpu, GpuMemory& memory, const Transfer& transfer,
             std::span<const std::byte> element) {
  constexpr uint64_t kAtOnce = 4096;
  std::vector<std::byte> run(element.size() * std::min(kAtOnce, transfer.length));
  for (size_t at = 0; at < run.size(); ++at) run[at] = element[at % element.size()];
  for (uint64_t line = 0; line < transfer.lines; ++line)
    for (uint64_t i = 0; i < transfer.length; i += kAtOnce) {
      const uint64_t out = transfer.out + line * transfer.pitch_out + i * element.size();
      const uint64_t bytes = std::min(kAtOnce, transfer.length - i) * element.size();
      if (!memory.write(out, run.data(), bytes)) return mmu_fault(memory, "remapped copy");
    }
  ++gpu.counts().fills;
  return {};
}

/// SET_REMAP_COMPONENTS: four selectors of four bits, component size 17:16, counts 21:20 and 25:24,
/// each less one. A line is counted in elements then.
Outcome remapped(Gpu& gpu, GpuMemory& memory, const Transfer& transfer) {
  const uint32_t size = bits(transfer.components, 17, 16) + 1;
  const uint32_t sources = bits(transfer.components, 21, 20) + 1;
  const uint32_t targets = bits(transfer.components, 25, 24) + 1;
  std::array<std::byte, 16> from{}, to{};
  bool is_constant = true;
  for (uint32_t c = 0; c < targets; ++c) {
    const uint32_t select = transfer.components >> (4 * c) & 7;
    is_constant &= select == 4 || select == 5;
    std::memcpy(to.data() + c * size, select == 4 ? &transfer.const_a : &transfer.const_b, size);
  }
  if (is_constant) return fill(gpu, memory, transfer, std::span(to).first(targets * size));
  for (uint64_t line = 0; line < transfer.lines; ++line) {
    for (uint64_t i = 0; i < transfer.length; ++i) {
      const uint64_t in = transfer.in + line * transfer.pitch_in + i * sources * size;
      const uint64_t out = transfer.out + line * transfer.pitch_out + i * targets * size;
      bool needs_source = false, keeps_target = false;
      for (uint32_t c = 0; c < targets; ++c) {
        const uint32_t select = transfer.components >> (4 * c) & 7;
        needs_source |= select < 4;
        keeps_target |= select == 6;
      }
      if (needs_source && !memory.read(in, from.data(), sources * size))
        return mmu_fault(memory, "remapped copy");
      if (keeps_target && !memory.read(out, to.data(), targets * size))
        return mmu_fault(memory, "remapped copy");
      for (uint32_t c = 0; c < targets; ++c) {
        const uint32_t select = transfer.components >> (4 * c) & 7;
        std::byte* const at = to.data() + c * size;
        if (select < 4)
          std::memcpy(at, from.data() + select * size, size);
        else if (select == 4)
          std::memcpy(at, &transfer.const_a, size);
        else if (select == 5)
          std::memcpy(at, &transfer.const_b, size);
        else if (select == 7)
          return copy_fault(transfer, "remap selector 7");
      }
      if (!memory.write(out, to.data(), targets * size)) return mmu_fault(memory, "remapped copy");
    }
  }
  ++gpu.counts().fills;
  return {};
}

Outcome finish(Gpu& gpu, GpuMemory& memory, const Transfer& transfer) {
  const bool is_wide = bits(transfer.flags, 27, 27) != 0;
  const uint64_t payload = is_wide ? transfer.payload : transfer.payload & 0xffffffff;
  const uint32_t type = transfer.semaphore_type();
  if (type == 3) return copy_fault(transfer, "conditional semaphores are not modelled");
  if (type != 0) {
    const uint32_t words = type == 2 ? 4 : is_wide ? 2 : 1;
    if (transfer.semaphore % (words * 4) != 0)
      return copy_fault(transfer, fmt::format("semaphore at {:#x}", transfer.semaphore));
    if (Outcome outcome = release(gpu, memory, transfer.semaphore, payload, words)) return outcome;
  }
  if (bits(transfer.flags, 6, 5) != 0)
    gpu.interrupt(kNotifyCopy0 + (transfer.engine >= 9 ? transfer.engine - 9 : 0));
  return {};
}

Outcome run_transfer(Gpu& gpu, Channel& channel, const Transfer& transfer) {
  GpuMemory memory(*channel.space);
  if (transfer.type() != 0 && !gpu.knobs().is_stubbed) {
    Outcome outcome =
        transfer.has_remap() ? remapped(gpu, memory, transfer) : plain(gpu, memory, transfer);
    if (outcome) return outcome;
  }
  return finish(gpu, memory, transfer);
}

}  // namespace

Outcome copy_method(Gpu& gpu, Channel& channel, Subchannel& subchannel, uint32_t offset,
                    uint32_t value) {
  if (offset != kLaunchDma) return {};
  const auto& methods = subchannel.methods;
  const auto pair = [&](uint32_t upper, uint32_t lower) {
    return uint64_t{methods[upper / 4]} << 32 | methods[lower / 4];
  };
  const bool has_lines = bits(value, 9, 9) != 0;
  Transfer transfer;
  transfer.flags = value;
  transfer.object_class = subchannel.object_class;
  transfer.engine = channel.group->engine;
  transfer.in = pair(kInUpper, kInLower);
  transfer.out = pair(kOutUpper, kOutLower);
  transfer.pitch_in = methods[kPitchIn / 4];
  transfer.pitch_out = methods[kPitchOut / 4];
  transfer.length = methods[kLineLength / 4];
  transfer.lines = has_lines ? methods[kLineCount / 4] : 1;
  transfer.const_a = methods[kConstA / 4];
  transfer.const_b = methods[kConstB / 4];
  transfer.components = methods[kComponents / 4];
  transfer.semaphore = pair(kSemaphoreUpper, kSemaphoreLower);
  transfer.payload = pair(kPayloadUpper, kPayload);
  if (transfer.type() != 0 && !transfer.has_remap())
    damage_copy(gpu, GpuMemory(*channel.space), &transfer.in, &transfer.out, transfer.length);
  if (Outcome outcome = check(transfer)) return outcome;
  channel.pending.push_back(
      [&gpu, &channel, transfer] { return run_transfer(gpu, channel, transfer); });
  return {};
}

}  // namespace bm::sim::nv
