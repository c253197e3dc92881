// The compute engine: inline writes, launches, reports. Methods: open-gpu-doc c8607fe,
// classes/compute/clc6c0.h (NVC6C0_*) unless named otherwise.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/damage.h"
#include "tests/sim/nv/descriptor.h"
#include "tests/sim/nv/engine.h"
#include "tests/sim/nv/program.h"

namespace bm::sim::nv {
namespace {

constexpr uint32_t kWaitForIdle = 0x110, kInlineLineLength = 0x180, kInlineLineCount = 0x184,
                   kInlineOutUpper = 0x188, kInlineOutLower = 0x18c, kInlinePitchOut = 0x190,
                   kInlineLaunchDma = 0x1b0, kInlineData = 0x1b4, kInvalidateSked = 0x298,
                   kSharedUpper = 0x2a0, kSharedLower = 0x2a4, kPcasA = 0x2b4,
                   kSignalingPcasB = 0x2bc, kSignalingPcas2B = 0x2c0, kLocalSizeUpper = 0x2e4,
                   kLocalSizeLower = 0x2e8, kInlineQmdUpper = 0x318, kInlineQmdLower = 0x31c,
                   kInlineQmd = 0x320, kLocalUpper = 0x790, kLocalLower = 0x794,
                   kLocalWindowUpper = 0x7b0, kLocalWindowLower = 0x7b4, kReportA = 0x1b00,
                   kReportD = 0x1b0c;
/// HOPPER_COMPUTE_A (clcbc0.h).
constexpr uint32_t kFirstWideWindow = 0xcbc0;
/// Longest chain of dependent launches; a longer one is taken for a loop.
constexpr int kMaxChain = 1 << 20;

uint64_t pair(const Subchannel& subchannel, uint32_t upper, uint32_t lower) {
  return uint64_t{subchannel.methods[upper / 4]} << 32 | subchannel.methods[lower / 4];
}

Outcome exception(std::string what, std::optional<SmError> sm = std::nullopt) {
  return EngineFault{kGraphicsException, std::move(what), std::nullopt, sm};
}

/// LAUNCH_DMA: LINE_LENGTH_IN × LINE_COUNT bytes follow as data.
Outcome start_inline(Channel& channel, const Subchannel& subchannel, uint32_t flags) {
  if (bits(flags, 0, 0) != 1) return exception("inline data to block-linear memory");
  if (channel.inline_left != 0) return exception("inline data while other data is awaited");
  const uint64_t length = subchannel.methods[kInlineLineLength / 4];
  const uint64_t lines = std::max(subchannel.methods[kInlineLineCount / 4], 1u);
  if (length == 0 || length * lines > (uint64_t{1} << 24))
    return exception(fmt::format("inline data of {} lines of {} bytes", lines, length));
  channel.inline_left = length * lines;
  channel.inline_data.clear();
  return {};
}

Outcome add_inline(Gpu& gpu, Channel& channel, const Subchannel& subchannel, uint32_t word) {
  if (channel.inline_left == 0) return exception("inline data that no LAUNCH_DMA awaits");
  const uint64_t part = std::min<uint64_t>(channel.inline_left, 4);
  const auto* bytes = reinterpret_cast<const std::byte*>(&word);
  channel.inline_data.insert(channel.inline_data.end(), bytes, bytes + part);
  channel.inline_left -= part;
  if (channel.inline_left != 0) return {};
  ++gpu.counts().inline_writes;
  GpuMemory memory(*channel.space);
  const uint64_t out = pair(subchannel, kInlineOutUpper, kInlineOutLower);
  const uint64_t length = subchannel.methods[kInlineLineLength / 4];
  const uint64_t pitch = subchannel.methods[kInlinePitchOut / 4];
  for (uint64_t line = 0; line * length < channel.inline_data.size(); ++line)
    if (!memory.write(out + line * pitch, channel.inline_data.data() + line * length, length))
      return mmu_fault(memory, "inline data");
  return {};
}

/// SET_REPORT_SEMAPHORE_D: ordered behind the launches before it.
Outcome report(Gpu& gpu, Channel& channel, const Subchannel& subchannel, uint32_t flags) {
  if (bits(flags, 1, 0) != 0) return exception("report semaphore operation is not a release");
  const uint64_t address = pair(subchannel, kReportA, kReportA + 4);
  const uint64_t payload = subchannel.methods[(kReportA + 8) / 4];
  const uint32_t words = bits(flags, 28, 28) != 0 ? 1 : 4;
  const bool is_interrupting = bits(flags, 20, 20) != 0;
  if (address % (words == 4 ? 16 : 4) != 0)
    return exception(fmt::format("report semaphore at {:#x}", address));
  channel.pending.push_back([&gpu, &channel, address, payload, words, is_interrupting] {
    GpuMemory memory(*channel.space);
    Outcome outcome = release(gpu, memory, address, payload, words);
    if (!outcome && is_interrupting) gpu.interrupt(kNotifyGraphics);
    return outcome;
  });
  return {};
}

/// Local memory must hold every thread that may run at once: bytes per TPC times TPCs.
Outcome check_local(const Gpu& gpu, const GpuMemory& memory, const Subchannel& subchannel,
                    const Descriptor& descriptor) {
  if (descriptor.local_bytes == 0) return {};
  const Chip& chip = gpu.chip();
  const uint64_t base = pair(subchannel, kLocalUpper, kLocalLower);
  const uint64_t per_tpc = pair(subchannel, kLocalSizeUpper, kLocalSizeLower);
  const uint64_t wanted =
      uint64_t{descriptor.local_bytes} * 32 * chip.warps_per_sm * chip.sms_per_tpc;
  if (per_tpc < wanted)
    return exception(
        fmt::format("{} bytes of local memory per TPC, a launch needs {}", per_tpc, wanted));
  if (!memory.is_mapped(base, per_tpc * chip.gpcs * chip.tpcs_per_gpc))
    return exception(fmt::format("local memory at {:#x} is not mapped as a whole", base));
  return {};
}

/// The scheduler's copy of the descriptor at `address`, read from memory when there is none.
Outcome load_descriptor(Channel& channel, const Subchannel& subchannel, uint64_t address) {
  if (channel.descriptors.contains(address)) return {};
  GpuMemory memory(*channel.space);
  std::array<uint32_t, 96> words{};
  // 256 bytes are there in every version; the rest is read where the version has it.
  if (!memory.read(address, words.data(), 256)) return mmu_fault(memory, "launch descriptor");
  std::string why;
  const auto version = descriptor_version(subchannel.object_class, words, &why);
  if (!version) return exception(why);
  if (descriptor_bytes(*version) > 256 &&
      !memory.read(address + 256, words.data() + 64, descriptor_bytes(*version) - 256))
    return mmu_fault(memory, "launch descriptor");
  channel.descriptors[address] = words;
  return {};
}

// SET_SHADER_SHARED_MEMORY_WINDOW and _LOCAL_MEMORY_WINDOW: what threads address there is shared
// and local memory, whatever is mapped. Sizes and alignment of Hopper and later as seen on an H100
// (libmc's notes: 4 GiB, "Invalid Address Space" inside); before, both windows take 16 MiB, as
// Mesa NVK places them next to each other (nvk_cmd_dispatch.c, nvk_push_dispatch_state_init()).
ShaderWindows windows_of(const Subchannel& subchannel) {
  constexpr uint64_t k16M = uint64_t{16} << 20, k4G = uint64_t{4} << 30;
  ShaderWindows windows;
  windows.shared = pair(subchannel, kSharedUpper, kSharedLower);
  windows.local = pair(subchannel, kLocalWindowUpper, kLocalWindowLower);
  // What was never set is not in the way.
  if (windows.shared != 0)
    windows.shared_bytes = subchannel.object_class >= kFirstWideWindow ? k4G : k16M;
  if (windows.local != 0) windows.local_bytes = k16M;
  return windows;
}

Outcome check_windows(const ShaderWindows& windows) {
  if (windows.shared_bytes != 0 && windows.shared % windows.shared_bytes != 0)
    return exception(fmt::format("shared memory window at {:#x}, not aligned to {:#x}",
                                 windows.shared, windows.shared_bytes));
  if (windows.local_bytes != 0 && windows.local % windows.local_bytes != 0)
    return exception(fmt::format("local memory window at {:#x}, not aligned to {:#x}",
                                 windows.local, windows.local_bytes));
  return {};
}

Outcome run_one(Gpu& gpu, Channel& channel, const Subchannel& subchannel, uint64_t address,
                Descriptor* out) {
  if (Outcome outcome = load_descriptor(channel, subchannel, address)) return outcome;
  GpuMemory memory(*channel.space);
  std::array<uint32_t, 96>& words = channel.descriptors[address];
  std::string why;
  auto version = descriptor_version(subchannel.object_class, words, &why);
  if (version) {
    damage_launch(gpu, memory, *version, words);
    version = descriptor_version(subchannel.object_class, words, &why);
  }
  if (!version) return exception(why);
  *out = decode_descriptor(*version, words);
  const Descriptor& descriptor = *out;
  if (const std::string problem = descriptor_problem(descriptor, gpu.chip()); !problem.empty())
    return exception("launch descriptor: " + problem);
  for (const auto& bank : descriptor.banks)
    if (bank.is_valid && !memory.is_mapped(bank.address, bank.size))
      return exception(fmt::format("constant bank at {:#x} is not mapped", bank.address));
  if (Outcome outcome = check_local(gpu, memory, subchannel, descriptor)) return outcome;
  const ShaderWindows windows = windows_of(subchannel);
  if (Outcome outcome = check_windows(windows)) return outcome;
  ++gpu.counts().kernels;
  if (!gpu.knobs().is_stubbed)
    if (Outcome outcome = run_program(gpu, channel, memory, descriptor, windows)) return outcome;
  return {};
}

Outcome release_all(Gpu& gpu, Channel& channel, const Descriptor& descriptor) {
  GpuMemory memory(*channel.space);
  for (const auto& release_at : descriptor.releases) {
    if (!release_at.is_enabled) continue;
    const uint64_t alignment = release_at.words * 4;
    if (release_at.address % alignment != 0 || release_at.words == 3)
      return exception(fmt::format("descriptor release of {} words at {:#x}", release_at.words,
                                   release_at.address));
    if (Outcome outcome =
            release(gpu, memory, release_at.address, release_at.payload, release_at.words))
      return outcome;
  }
  return {};
}

/// What a PCAS method asks of the scheduler, in this order.
struct PcasSteps {
  bool invalidates = false, loads = false, schedules = false;
};

// Source: clc6c0.h … clcec0.h, NVC6C0_SEND_SIGNALING_PCAS2_B_PCAS_ACTION_*: NOP 0, INVALIDATE 1,
// SCHEDULE 2, INVALIDATE_COPY_SCHEDULE 3, PREFETCH 8, PREFETCH_SCHEDULE 9,
// INVALIDATE_PREFETCH_COPY_SCHEDULE 0xa. The others count dependences and are not modelled.
std::optional<PcasSteps> steps_of(uint32_t action) {
  switch (action) {
    case 0: return PcasSteps{};
    case 1: return PcasSteps{.invalidates = true};
    case 2: return PcasSteps{.schedules = true};
    case 3: return PcasSteps{.invalidates = true, .schedules = true};
    case 8: return PcasSteps{.loads = true};
    case 9: return PcasSteps{.loads = true, .schedules = true};
    case 10: return PcasSteps{.invalidates = true, .loads = true, .schedules = true};
    default: return std::nullopt;
  }
}

Outcome launch(Gpu& gpu, Channel& channel, const Subchannel& subchannel, PcasSteps steps) {
  const uint64_t address = uint64_t{subchannel.methods[kPcasA / 4]} << 8;
  // Values, because methods go on being written while the work waits.
  auto registers = std::make_shared<Subchannel>(subchannel);
  channel.pending.push_back([&gpu, &channel, registers, address, steps] {
    if (steps.invalidates) channel.descriptors.erase(address);
    if (steps.loads)
      if (Outcome outcome = load_descriptor(channel, *registers, address)) return outcome;
    return steps.schedules ? run_descriptor(gpu, channel, *registers, address) : Outcome{};
  });
  return {};
}

/// INVALIDATE_SKED_CACHES, in order with the launches.
Outcome invalidate_descriptors(Channel& channel) {
  channel.pending.push_back([&channel] {
    channel.descriptors.clear();
    return Outcome{};
  });
  return {};
}

}  // namespace

Outcome run_descriptor(Gpu& gpu, Channel& channel, const Subchannel& subchannel, uint64_t address) {
  for (int i = 0; i < kMaxChain; ++i) {
    if (channel.is_stopping) return {};
    Descriptor descriptor;
    if (Outcome outcome = run_one(gpu, channel, subchannel, address, &descriptor)) return outcome;
    if (channel.is_stopping) return {};  // cut short: nothing is signalled
    // The last of a chain is followed in this loop, the first dependent of two by a call.
    if (Outcome outcome = release_all(gpu, channel, descriptor)) return outcome;
    uint64_t next = 0;
    for (const auto& dependent : descriptor.dependents) {
      if (!dependent.is_enabled) continue;
      // NVC6C0_QMDV03_00_DEPENDENT_QMD0_ACTION: 1 schedule, 3 invalidate, copy and schedule.
      if (dependent.action != 1 && dependent.action != 3)
        return exception(fmt::format("dependent descriptor action {}", dependent.action));
      ++gpu.counts().chained_kernels;
      if (dependent.action == 3) channel.descriptors.erase(dependent.address);
      if (next != 0)
        if (Outcome outcome = run_descriptor(gpu, channel, subchannel, next)) return outcome;
      next = dependent.address;
    }
    if (next == 0) return {};
    address = next;
  }
  return exception("launch descriptors depend on each other in a circle");
}

Outcome compute_method(Gpu& gpu, Channel& channel, Subchannel& subchannel, uint32_t offset,
                       uint32_t value) {
  switch (offset) {
    case kWaitForIdle: channel.needs_idle = true; return {};
    case kInlineLaunchDma: return start_inline(channel, subchannel, value);
    case kInlineData: return add_inline(gpu, channel, subchannel, value);
    case kReportD: return report(gpu, channel, subchannel, value);
    case kInvalidateSked: return invalidate_descriptors(channel);
    case kSignalingPcasB:
      return launch(gpu, channel, subchannel,
                    {.invalidates = bits(value, 0, 0) != 0, .schedules = bits(value, 1, 1) != 0});
    case kSignalingPcas2B: {
      const auto steps = steps_of(bits(value, 3, 0));
      if (!steps) return exception(fmt::format("PCAS action {}", bits(value, 3, 0)));
      return launch(gpu, channel, subchannel, *steps);
    }
    default: break;
  }
  if (offset >= kInlineQmd && offset < kInlineQmd + 96 * 4) {
    GpuMemory memory(*channel.space);
    const uint64_t to = pair(subchannel, kInlineQmdUpper, kInlineQmdLower) << 8;
    if (!memory.write(to + offset - kInlineQmd, &value, sizeof value))
      return mmu_fault(memory, "inline launch descriptor");
  }
  return {};
}

}  // namespace bm::sim::nv
