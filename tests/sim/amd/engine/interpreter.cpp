#include "tests/sim/amd/engine/interpreter.h"

#include <array>

#include "tests/sim/amd/exec/interpreter.h"
#include "tests/sim/amd/engine/gpu_memory.h"

namespace bm::sim::amd {
namespace {

/// Page tables of one GPU.
class Pages final : public Memory {
 public:
  Pages(GpuMemory& memory, uint32_t gpu_id, uint64_t lost_page)
      : memory_(memory), gpu_id_(gpu_id), lost_page_(lost_page) {}
  /// What was found last is most often found again, without asking anybody.
  Place at(uint64_t address, uint32_t bytes, Access access) override {
    if (access == Access::kExecute && lost_page_ != 0 && address - lost_page_ < kPage)
      return {nullptr, false};
    Known& known = known_[address >> 21 & (kKnown - 1)];
    const uint64_t generation = memory_.generation();
    if (known.generation != generation || address - known.range.va >= known.range.bytes) {
      const auto range = memory_.local_range(gpu_id_, address);
      if (!range)
        return {memory_.at(gpu_id_, address, bytes,
                           access == Access::kWrite || access == Access::kAtomic),
                false};
      known = {*range, generation};
    }
    const uint64_t offset = address - known.range.va;
    if (bytes > known.range.bytes - offset) return {nullptr, false};
    if (!allows(known.range, access)) return {nullptr, true};
    return {known.range.host + offset, false};
  }

 private:
  static bool allows(const GpuMemory::Range& range, Access access) {
    switch (access) {
      case Access::kRead: return range.is_readable;
      case Access::kWrite: return range.is_writable;
      case Access::kAtomic: return range.is_readable && range.is_writable;
      case Access::kExecute: return range.is_executable;
    }
    __builtin_unreachable();
  }
  static constexpr size_t kKnown = 16;
  static constexpr uint64_t kPage = 4096;
  struct Known {
    GpuMemory::Range range{};
    uint64_t generation = UINT64_MAX;
  };
  GpuMemory& memory_;
  uint32_t gpu_id_;
  uint64_t lost_page_;
  std::array<Known, kKnown> known_{};
};

/// SQ_INTERRUPT_ERROR_TYPE_ILLEGAL_INST and _MEMVIOL.
int wave_error_of(Fault::Kind kind) {
  constexpr int kIllegal = 1, kViolation = 2;
  switch (kind) {
    case Fault::Kind::kIllegalOpcode:
    case Fault::Kind::kRegisterOutOfRange: return kIllegal;
    case Fault::Kind::kMisaligned:
    case Fault::Kind::kLdsOutOfRange:
    case Fault::Kind::kScratchOutOfRange: return kViolation;
    case Fault::Kind::kInvalidDispatch:
    case Fault::Kind::kUnmapped:
    case Fault::Kind::kPermission:
    case Fault::Kind::kTrap:
    case Fault::Kind::kBarrierDeadlock:
    case Fault::Kind::kInstructionLimit:
    case Fault::Kind::kCancelled:
    case Fault::Kind::kNotWaited: return -1;
  }
  __builtin_unreachable();
}

Death death_of(const Fault& fault) {
  Death::Kind kind = Death::Kind::kException;
  if (fault.kind == Fault::Kind::kUnmapped || fault.kind == Fault::Kind::kPermission)
    kind = Death::Kind::kMemory;
  if (fault.kind == Fault::Kind::kCancelled) kind = Death::Kind::kCancelled;
  return {kind, fault.address, fault.access == Access::kWrite || fault.access == Access::kAtomic,
          fault.text(), wave_error_of(fault.kind)};
}

}  // namespace

Execute interpreter(const std::string& chip, uint64_t max_instructions) {
  const Isa isa = isa_of(chip).value_or(Isa::kGfx11);
  return [isa, max_instructions](GpuMemory& memory, const Launch& launch) -> std::optional<Death> {
    Dispatch dispatch;
    dispatch.isa = isa;
    dispatch.entry = launch.entry;
    dispatch.rsrc1 = launch.rsrc1;
    dispatch.rsrc2 = launch.rsrc2;
    dispatch.rsrc3 = launch.rsrc3;
    dispatch.user_sgprs = launch.user_data;
    // As many as the kernel has room for, whatever the packet brought.
    dispatch.user_sgprs.resize(launch.rsrc2 >> 1 & 0x1f);
    dispatch.grid = {launch.groups[0], launch.groups[1], launch.groups[2]};
    dispatch.group = {launch.threads[0], launch.threads[1], launch.threads[2]};
    dispatch.lds_bytes = launch.lds_bytes;
    dispatch.wave_size = launch.is_wave32 ? 32 : 64;
    dispatch.scratch_base = launch.scratch;
    dispatch.scratch_per_lane = launch.scratch_wave_bytes / dispatch.wave_size;
    dispatch.max_instructions = max_instructions;
    dispatch.cancel = launch.cancel;
    Pages pages(memory, launch.gpu_id, launch.lost_page);
    std::vector<ResidentWave> resident;
    if (launch.board != nullptr)
      dispatch.observe = [&](std::span<const WaveView> waves) {
        resident.clear();
        for (const WaveView& wave : waves)
          resident.push_back({.pc = wave.pc,
                              .exec = wave.exec,
                              .is_in_barrier = wave.is_in_barrier,
                              .is_halted = wave.has_failed});
        launch.board->show(resident);
      };
    const auto ran = run(dispatch, pages);
    if (!ran && launch.board != nullptr) {
      // Without a trap handler a wave stands at the instruction it failed at.
      for (ResidentWave& wave : resident) {
        if (!wave.is_halted) continue;
        const Fault::Kind kind = ran.error().kind;
        wave.has_trapped = kind == Fault::Kind::kTrap;
        wave.has_memory_violation = kind == Fault::Kind::kUnmapped ||
                                    kind == Fault::Kind::kPermission || wave_error_of(kind) == 2;
        wave.has_illegal_instruction = wave_error_of(kind) == 1;
      }
      launch.board->show(resident);
    }
    return ran ? std::nullopt : std::optional(death_of(ran.error()));
  };
}

}  // namespace bm::sim::amd
