// The host engine: fetches ring entries and push buffers, executes host methods and passes the rest
// on. Source: open-gpu-doc c8607fe, classes/host/clc56f.h (NVC56F_*) unless named otherwise.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>

#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/engine.h"
#include "tests/sim/nv/method_ranges.h"

namespace bm::sim::nv {
namespace {

constexpr uint32_t kGpGet = 0x88, kGpPut = 0x8c;  ///< Nvc56fControl
/// First channel class whose USERD has nothing but GPPut: the model never touches the rest.
/// Source: open-gpu-kernel-modules 595.45.04, clc96f.h, Nvc96fControl, and clca6f.h, Nvca6fControl;
/// clc86f.h, Nvc86fControl, is the last with GPGet.
constexpr uint32_t kFirstWithoutGet = 0xc96f;
constexpr uint32_t kSetObject = 0x0, kNop = 0x8, kNonStallInterrupt = 0x20, kFbFlush = 0x24,
                   kMemOpA = 0x28, kMemOpD = 0x34, kSetReference = 0x50, kSemAddressLow = 0x5c,
                   kSemAddressHigh = 0x60, kSemPayloadLow = 0x64, kSemPayloadHigh = 0x68,
                   kSemExecute = 0x6c, kWaitForIdle = 0x78, kYield = 0x80;
/// Words executed before other channels get their turn.
constexpr int kSlice = 4096;
/// More than this much unfinished work makes the host wait.
constexpr size_t kMaxPending = 256;
/// Nothing is ever mapped there.
constexpr uint64_t kNowhere = 0xdead'0001'0000;

enum class Step : uint8_t { kDone, kWaits };

Outcome pbdma(std::string what) { return EngineFault{kPbdmaError, std::move(what)}; }

/// 64-bit compare of an acquire; 32-bit payloads are compared as 32 bits.
bool is_acquired(uint32_t operation, uint64_t memory, uint64_t payload, bool is_wide) {
  if (!is_wide) memory &= 0xffffffff, payload &= 0xffffffff;
  const int64_t distance = is_wide ? static_cast<int64_t>(memory - payload)
                                   : static_cast<int32_t>(static_cast<uint32_t>(memory - payload));
  const uint64_t mask = is_wide ? ~uint64_t{0} : 0xffffffff;
  switch (operation) {
    case 0: return memory == payload;
    case 2: return memory >= payload;
    case 3: return distance >= 0;
    case 4: return (memory & payload) != 0;
    case 5: return (~(memory | payload) & mask) != 0;
    default: return false;
  }
}

uint64_t reduced(uint32_t operation, uint64_t memory, uint64_t payload, bool is_signed) {
  const auto left = static_cast<int64_t>(memory), right = static_cast<int64_t>(payload);
  switch (operation) {
    case 0: return is_signed ? (left < right ? memory : payload) : std::min(memory, payload);
    case 1: return is_signed ? (left < right ? payload : memory) : std::max(memory, payload);
    case 2: return memory ^ payload;
    case 3: return memory & payload;
    case 4: return memory | payload;
    case 5: return memory + payload;
    case 6: return memory >= payload ? 0 : memory + 1;
    default: return memory == 0 || memory > payload ? payload : memory - 1;
  }
}

class Host {
 public:
  Host(Gpu& gpu, Channel& channel) : gpu_(gpu), channel_(channel) {}

  /// True when anything was done.
  bool run();
  void die(const EngineFault& fault);

 private:
  bool fetch();
  void write_get();
  Outcome step(uint32_t word);
  Outcome header(uint32_t word);
  Outcome method(uint32_t subchannel, uint32_t offset, uint32_t value);
  Outcome host_method(uint32_t subchannel, uint32_t offset, uint32_t value);
  Outcome bind(uint32_t subchannel, uint32_t value);
  Outcome semaphore(uint32_t execute);
  Outcome mem_op(uint32_t value);
  bool run_pending();

  Gpu& gpu_;
  Channel& channel_;
  Step state_ = Step::kDone;
};

void Host::die(const EngineFault& fault) {
  ChannelGroup& group = *channel_.group;
  {
    const std::lock_guard lock(group.mutex);
    if (fault.mmu) group.mmu_faults.push_back(*fault.mmu);
    if (fault.sm) {
      if (group.sm_errors.size() <= fault.sm->sm) group.sm_errors.resize(fault.sm->sm + 1);
      group.sm_errors[fault.sm->sm] = *fault.sm;
    }
  }
  gpu_.report_fault(fmt::format("channel {}: {} (code {})", channel_.id, fault.what, fault.code));
  gpu_.kill(channel_, fault.code);
}

bool Host::run_pending() {
  if (gpu_.knobs().is_hung) return false;
  const auto work = std::move(channel_.pending.front());
  channel_.pending.pop_front();
  if (const Outcome outcome = work()) {
    die(*outcome);
    if (gpu_.knobs().plant.effect() == PlantEffect::kTwoFaults) gpu_.fault_another();
  }
  return true;
}

bool Host::run() {
  channel_.is_rung = false;
  bool is_busy = false;
  for (int i = 0; i < kSlice; ++i) {
    if (channel_.is_stopping || channel_.group->is_dead) return is_busy;
    const bool must_wait = channel_.needs_idle || channel_.pending.size() > kMaxPending;
    if (must_wait && !channel_.pending.empty()) {
      channel_.is_rung = true;
      return run_pending() || is_busy;
    }
    channel_.needs_idle = false;
    if (channel_.push_at == channel_.push.size() && !fetch()) {
      if (channel_.group->is_dead) return is_busy;
      if (channel_.pending.empty()) {
        write_get();
        return is_busy;
      }
      channel_.is_rung = true;
      return run_pending() || is_busy;
    }
    if (channel_.push_at == channel_.push.size()) continue;  // an entry without words
    const Outcome outcome = step(channel_.push[channel_.push_at]);
    if (outcome) {
      die(*outcome);
      return true;
    }
    if (state_ == Step::kWaits) {
      // Asked again at every turn; what the engines already have goes on meanwhile.
      state_ = Step::kDone;
      channel_.is_rung = true;
      if (!channel_.pending.empty()) is_busy |= run_pending();
      return is_busy;
    }
    if (channel_.needs_idle && !channel_.pending.empty()) continue;  // the word is taken again
    channel_.needs_idle = false;
    ++channel_.push_at;
    is_busy = true;
  }
  channel_.is_rung = true;
  return true;
}

/// Takes the next ring entry; false when the ring is empty or the channel died.
bool Host::fetch() {
  uint32_t put = 0;
  channel_.userd->read(channel_.userd_offset + kGpPut, &put, sizeof put);
  if (put == channel_.get) return false;
  const auto fault = [&](EngineFault what) {
    die(what);
    return false;
  };
  if (put >= channel_.entries)
    return fault(
        {kPbdmaError, fmt::format("put {} is outside of a ring of {}", put, channel_.entries)});
  GpuMemory memory(*channel_.space);
  uint64_t entry = 0;
  if (!memory.get(channel_.ring + 8ull * channel_.get, &entry))
    return fault(*mmu_fault(memory, "ring"));
  channel_.get = (channel_.get + 1) % channel_.entries;
  const uint64_t address = entry & 0xff'ffff'fffc;
  const uint32_t words = bits(entry, 62, 42);
  ++gpu_.counts().entries;
  channel_.push.clear();
  channel_.push_at = 0;
  if (words == 0) {
    const uint32_t opcode = bits(entry, 39, 32);
    if (opcode != 0)
      return fault({kPbdmaError, fmt::format("control entry with opcode {}", opcode)});
  } else {
    if (channel_.burst.count != 0)
      gpu_.complain("a method's data continues in the next ring entry");
    channel_.push.resize(words);
    if (!memory.read(address, channel_.push.data(), words * 4ull))
      return fault(*mmu_fault(memory, "push buffer"));
  }
  return true;
}

/// GPGet goes out as late as it may: when the channel has nothing left to do. dev_ram.ref (GA100),
/// RAMUSERD: it is updated at intervals, can be switched off for a channel, and progress is to be
/// followed by semaphores that do not wait for idle.
void Host::write_get() {
  if (channel_.channel_class >= kFirstWithoutGet) return;
  channel_.userd->write(channel_.userd_offset + kGpGet, &channel_.get, sizeof channel_.get);
}

Outcome Host::step(uint32_t word) {
  Channel::Burst& burst = channel_.burst;
  if (burst.count == 0) return header(word);
  const uint32_t at = burst.opcode == 3   ? 0
                      : burst.opcode == 5 ? std::min(burst.done, 1u)
                                          : burst.done;
  const Outcome outcome = method(burst.subchannel, burst.method + 4 * at, word);
  if (outcome || state_ == Step::kWaits) return outcome;
  if (channel_.needs_idle && !channel_.pending.empty()) return outcome;
  --burst.count;
  ++burst.done;
  return outcome;
}

// NVC56F_DMA_*: opcode 31:29, count or data 28:16, subchannel 15:13, method 11:0 in words.
Outcome Host::header(uint32_t word) {
  if (word == 0) return {};
  const uint32_t opcode = bits(word, 31, 29), count = bits(word, 28, 16);
  const uint32_t subchannel = bits(word, 15, 13), offset = bits(word, 11, 0) * 4;
  switch (opcode) {
    case 1:
    case 3:
    case 5: channel_.burst = {count, offset, subchannel, opcode, 0}; return {};
    case 4: return method(subchannel, offset, count);
    case 7: channel_.push_at = channel_.push.size() - 1; return {};
    default: return pbdma(fmt::format("method header {:#010x} has opcode {}", word, opcode));
  }
}

Outcome Host::method(uint32_t subchannel, uint32_t offset, uint32_t value) {
  ++gpu_.counts().methods;
  if (offset < 0x100) return host_method(subchannel, offset, value);
  Subchannel& bound = channel_.subchannels[subchannel];
  if (bound.object_class == 0)
    return pbdma(
        fmt::format("method {:#x} on subchannel {}, which has no object", offset, subchannel));
  if (!has_method(bound.object_class, offset))
    return EngineFault{engine_kind(bound.object_class) == EngineKind::kCopy
                           ? copy_error(channel_.group->engine)
                           : kGraphicsException,
                       fmt::format("class {:x} has no method {:#x}", bound.object_class, offset)};
  bound.methods[offset / 4] = value;
  return engine_kind(bound.object_class) == EngineKind::kCopy
             ? copy_method(gpu_, channel_, bound, offset, value)
             : compute_method(gpu_, channel_, bound, offset, value);
}

Outcome Host::host_method(uint32_t subchannel, uint32_t offset, uint32_t value) {
  channel_.host[offset / 4] = value;
  switch (offset) {
    case kSetObject: return bind(subchannel, value);
    case kNop:
    case kFbFlush:
    case kSetReference:
    case kYield:
    case kSemPayloadLow:
    case kSemPayloadHigh: return {};
    case kSemAddressLow:
      if (value % 4 != 0) return pbdma(fmt::format("semaphore address {:#x}", value));
      return {};
    case kSemAddressHigh: {
      // 8 bits up to Ampere's channel class, 25 from Hopper's (clc86f.h).
      const uint32_t limit = channel_.channel_class >= 0xc86f ? 0x1ffffff : 0xff;
      if (value > limit) return pbdma(fmt::format("semaphore address {:#x} in bits 63:32", value));
      return {};
    }
    case kSemExecute: return semaphore(value);
    case kNonStallInterrupt: gpu_.interrupt(kNotifyHost); return {};
    case kWaitForIdle: channel_.needs_idle = true; return {};
    default: break;
  }
  if (offset >= kMemOpA && offset < kMemOpD) return {};
  if (offset == kMemOpD) return mem_op(value);
  return pbdma(fmt::format("host has no method {:#x} for users", offset));
}

Outcome Host::bind(uint32_t subchannel, uint32_t value) {
  const uint32_t object_class = bits(value, 15, 0);
  if (!gpu_.has_object(channel_, object_class))
    return EngineFault{
        channel_.group->engine == 1 ? kClassError : kPbdmaError,
        fmt::format("SET_OBJECT of class {:x}, of which the channel has no object", object_class)};
  // Copies of a graphics channel go to the engine that listens on subchannel 4 only.
  if (channel_.group->engine == 1 && engine_kind(object_class) == EngineKind::kCopy &&
      subchannel != 4)
    return pbdma("a copy class of the graphics runlist belongs on subchannel 4");
  channel_.subchannels[subchannel].object_class = object_class;
  return {};
}

// MEM_OP_D 31:27: only the memory barrier is for users; the rest touches page tables and caches.
Outcome Host::mem_op(uint32_t value) {
  const uint32_t operation = bits(value, 31, 27);
  if (operation == 5) return {};
  return pbdma(fmt::format("privileged memory operation {:#x}", operation));
}

Outcome Host::semaphore(uint32_t execute) {
  const uint32_t operation = bits(execute, 2, 0);
  const bool is_wide = bits(execute, 24, 24) != 0, has_time = bits(execute, 25, 25) != 0;
  const uint64_t address =
      channel_.host[kSemAddressLow / 4] | uint64_t{channel_.host[kSemAddressHigh / 4]} << 32;
  const uint64_t payload = channel_.host[kSemPayloadLow / 4] |
                           uint64_t{is_wide ? channel_.host[kSemPayloadHigh / 4] : 0} << 32;
  if (operation > 6) return pbdma("semaphore operation 7");
  const uint64_t alignment = has_time ? 16 : is_wide ? 8 : 4;
  if (address % alignment != 0)
    return pbdma(fmt::format("semaphore at {:#x}, not aligned to {}", address, alignment));
  GpuMemory memory(*channel_.space);
  if (operation == 1) {
    if (bits(execute, 20, 20) != 0 && !channel_.pending.empty()) {
      channel_.needs_idle = true;
      return {};
    }
    return release(gpu_, memory, address, payload, has_time ? 4 : is_wide ? 2 : 1);
  }
  uint64_t value = 0;
  if (!memory.read(address, &value, is_wide ? 8 : 4)) return mmu_fault(memory, "semaphore");
  if (operation == 6) {
    value = reduced(bits(execute, 30, 27), value, payload, bits(execute, 31, 31) == 0);
    return memory.write(address, &value, is_wide ? 8 : 4) ? Outcome{}
                                                          : mmu_fault(memory, "reduction");
  }
  // The word is taken again at every turn, with the value as it is then.
  if (gpu_.knobs().plant.is_due(PlantEvent::kWait)) {
    channel_.host[kSemPayloadLow / 4] = INT32_MAX;
    state_ = Step::kWaits;
    return {};
  }
  if (!is_acquired(operation, value, payload, is_wide))
    state_ = Step::kWaits;
  else
    ++gpu_.counts().acquires;
  return {};
}

}  // namespace

Outcome mmu_fault(const GpuMemory& memory, std::string_view who) {
  constexpr std::array<std::string_view, 3> kAccess = {"read", "write", "atomic"};
  const MmuFault& fault = memory.fault();
  return EngineFault{kMmuFault,
                     fmt::format("{}: {} of {:#x}, fault type {}", who,
                                 kAccess[std::min(fault.access, 2u)], fault.address, fault.type),
                     fault, std::nullopt};
}

uint32_t copy_error(uint32_t engine) {
  const uint32_t copy = engine >= 9 ? engine - 9 : 0;
  if (copy < 3) return 39 + copy;
  if (copy < 6) return 70 + copy - 3;
  if (copy < 9) return 75 + copy - 6;
  return 85;
}

Outcome release(Gpu& gpu, GpuMemory& memory, uint64_t address, uint64_t payload, uint32_t words) {
  Knobs& knobs = gpu.knobs();
  if (const uint32_t delay = knobs.semaphore_delay_us; delay != 0)
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
  if (knobs.plant.is_due(PlantEvent::kFence) ||
      (knobs.plant.effect() == PlantEffect::kWithhold && knobs.plant.is_planted()))
    return {};
  if (knobs.withheld_release >= 0 && knobs.withheld_release-- == 0) return {};
  ++gpu.counts().releases;
  const uint64_t now = gpu.tick();
  if (words == 4 && !memory.write(address + 8, &now, sizeof now))
    return mmu_fault(memory, "semaphore release");
  // Last, because whoever polls it reads the time next.
  if (!memory.write(address, &payload, words == 1 ? 4 : 8))
    return mmu_fault(memory, "semaphore release");
  return {};
}

bool run_channel(Gpu& gpu, Channel& channel) { return Host(gpu, channel).run(); }

void copy_from_nowhere(Gpu& gpu, Channel& channel) {
  GpuMemory memory(*channel.space);
  if (!memory.copy(0, kNowhere, 4096)) Host(gpu, channel).die(*mmu_fault(memory, "copy"));
}

}  // namespace bm::sim::nv
