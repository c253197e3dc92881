#pragma once
// State of a wave and of its work-group, and access to operands.

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "tests/sim/amd/exec/interpreter.h"
#include "tests/sim/amd/exec/matrix_hazards.h"
#include "tests/sim/amd/exec/waits.h"
#include "tests/sim/amd/isa/instruction.h"

namespace bm::sim::amd {

struct Wave;
struct Step;
using Handler = void (*)(Wave&, const Step&);

/// An instruction with what executes it.
struct Step : Instruction {
  Handler run = nullptr;
  uint64_t pc = 0;
  const void* detail = nullptr;  ///< what the handler wants to know of the opcode
  const Step* x = nullptr;       ///< halves of a VOPD
  const Step* y = nullptr;
  uint32_t count = 0, count_y = 0;  ///< index of the opcode rows
  uint32_t modifiers = 0;           ///< modifiers_of(); the handler must honor every one
  Traffic traffic;
  uint32_t matrix_states = 0;  ///< MatrixHazards::states_of
};

struct Group {
  const Dispatch* dispatch = nullptr;
  Memory* memory = nullptr;
  std::vector<std::byte> lds;
  uint64_t scratch = 0;  ///< of the first lane of the first wave
  Extent3 id;
  uint32_t live_waves = 0, arrived = 0;
  uint64_t barrier_phase = 0;
  uint64_t lds_conflicts = 0;  ///< see Statistics
};

inline constexpr uint32_t kMaxLanes = 64;

enum class WaveState : uint8_t { kRunning, kBarrier, kEnded };

struct Wave {
  Isa isa = Isa::kGfx11;
  uint32_t lanes = 32;
  Group* group = nullptr;
  uint32_t index = 0;  ///< in the work-group
  alignas(64) uint32_t s[128] = {};
  bool scc = false;
  uint64_t pc = 0, next_pc = 0;
  uint32_t mode = 0;
  uint32_t vgprs = 0;        ///< allocated
  uint32_t first_acc = 256;  ///< of them the first AccVGPR
  std::vector<uint32_t> v;
  WaveState state = WaveState::kRunning;
  uint64_t wait_phase = 0;  ///< barrier phase that frees this wave
  bool signalled = false;   ///< gfx12: s_barrier_signal without its wait yet
  uint64_t steps = 0;
  bool flush_icache = false;
  bool yield = false;
  bool failed = false;
  Fault fault;
  uint64_t write_mask = ~uint64_t{0};  ///< lanes the current DPP instruction may write
  uint32_t honored = 0;                ///< modifiers that the current handler looked at
  Waits waits;
  MatrixHazards hazards;  ///< gfx9

  /// Column `n` of the VGPRs, or from kAccVgpr - kVgpr on of the AccVGPRs.
  uint32_t* reg(uint32_t n) {
    constexpr uint32_t kAcc = kAccVgpr - kVgpr;
    return v.data() + size_t{n < kAcc ? n : n - kAcc + first_acc} * lanes;
  }
  uint64_t all_lanes() const { return lanes == 64 ? ~uint64_t{0} : 0xffffffffu; }
  uint64_t exec() const {
    return lanes == 64 ? uint64_t{s[kExecLo + 1]} << 32 | s[kExecLo] : s[kExecLo];
  }
  uint64_t active() const { return exec() & write_mask; }

  void fail(Fault::Kind kind, uint64_t address = 0, uint32_t lane = 0,
            Access access = Access::kRead) {
    if (failed) return;
    failed = true;
    fault.kind = kind;
    fault.address = address;
    fault.lane = lane;
    fault.access = access;
  }

  // ---- scalar operands ----
  uint32_t read32(uint32_t code, uint32_t literal, char width) const;
  uint64_t read64(uint32_t code, uint32_t literal, bool sign) const;
  uint32_t in32(const Step& in, uint32_t i) const {
    return read32(in.src[i].code, in.literal, in.src[i].width);
  }
  uint64_t in64(const Step& in, uint32_t i, bool sign = false) const {
    return read64(in.src[i].code, in.literal, sign);
  }
  void write32(uint32_t code, uint32_t value) {
    if (code < 128 && code != kNull) s[code] = value;
  }
  void write64(uint32_t code, uint64_t value) {
    write32(code, static_cast<uint32_t>(value));
    if (code != kNull) write32(code + 1, static_cast<uint32_t>(value >> 32));
  }
  /// A mask of lanes: one SGPR in wave32, two in wave64.
  uint64_t read_mask(uint32_t code) const {
    return lanes == 64 ? read64(code, 0, false) : read32(code, 0, '1');
  }
  void write_mask_to(uint32_t code, uint64_t value) {
    if (lanes == 64)
      write64(code, value);
    else
      write32(code, static_cast<uint32_t>(value));
  }
};

/// Runs `in`. Fails with an illegal opcode where the handler did not look at a modifier that is
/// set: nothing is ignored silently.
void run_step(Wave& w, const Step& in);
/// Modifiers of `in` that run_step() found nobody to honor.
inline uint32_t unhonored(const Wave& w, const Step& in) { return in.modifiers & ~w.honored; }

/// Value of the inline constant `code` (128 … 208, 240 … 248) as 32 bits, a half or 64 bits.
uint32_t constant32(uint32_t code);
uint32_t constant16(uint32_t code);
uint64_t constant64(uint32_t code);

/// f(lane) for every set bit.
template <class F>
void each_lane(uint64_t mask, F f) {
  for (; mask; mask &= mask - 1) f(static_cast<uint32_t>(std::countr_zero(mask)));
}

}  // namespace bm::sim::amd
