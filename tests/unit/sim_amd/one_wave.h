#pragma once
// One wave whose registers a test fills in, and one instruction at a time for it.

#include <memory>
#include <span>

#include <gtest/gtest.h>

#include "tests/sim/amd/exec/tables.h"
#include "tests/unit/sim_amd/rig.h"

namespace bm::sim::amd::test {

class OneWave {
 public:
  /// CDNA's waves have 64 lanes, and here AccVGPRs after 64 VGPRs.
  explicit OneWave(Isa isa) : OneWave(isa, isa == Isa::kGfx9 ? 64 : 32) {}
  OneWave(Isa isa, uint32_t lanes) {
    dispatch.isa = isa;
    dispatch.scratch_per_lane = 64;
    group.dispatch = &dispatch;
    group.memory = &memory;
    group.lds.resize(1024);
    group.live_waves = 1;
    group.scratch = memory.allocate(64 * 64);
    wave.isa = isa;
    wave.lanes = lanes;
    wave.group = &group;
    wave.vgprs = isa == Isa::kGfx9 ? 128 : 64;
    wave.first_acc = 64;
    wave.v.resize(size_t{wave.vgprs} * lanes);
    wave.mode = 0xf0;  // denormals everywhere
    wave.s[kExecLo] = ~0u;
    wave.s[kExecLo + 1] = lanes == 64 ? ~0u : 0;
  }

  /// Executes the instruction; false where it does not decode or has no semantics.
  bool step(std::span<const uint32_t> words) {
    const auto decoded = decode(words, wave.isa);
    if (!decoded) return false;
    Step step;
    static_cast<Instruction&>(step) = *decoded;
    Step x, y;
    if (step.row_y) {
      x.row = step.row;
      y.row = step.row_y;
      x.dst = step.dst;
      y.dst = step.dst_y;
      for (int i = 0; i < 3; ++i) x.src[i] = step.src[i], y.src[i] = step.src_y[i];
      for (Step* half : {&x, &y}) {
        half->literal = step.literal;
        half->run = handler_for(*half->row).run;
        bind_operands(*half);
        if (!half->run) return false;
      }
      step.x = &x;
      step.y = &y;
      step.run = run_dual;
    } else {
      const Bound bound = handler_for(*step.row);
      step.run = bound.run;
      step.detail = bound.detail;
      bind_operands(step);
      step.modifiers = modifiers_of(step);
    }
    if (!step.run) return false;
    wave.next_pc = wave.pc + step.bytes;
    wave.write_mask = ~uint64_t{0};
    run_step(wave, step);
    return true;
  }
  bool step(std::initializer_list<uint32_t> words) {
    return step(std::span<const uint32_t>(words.begin(), words.size()));
  }

  uint32_t& v(uint32_t reg, uint32_t lane = 0) { return wave.reg(reg)[lane]; }
  void put(uint32_t reg, uint32_t lane, uint64_t value) {
    v(reg, lane) = static_cast<uint32_t>(value);
    v(reg + 1, lane) = static_cast<uint32_t>(value >> 32);
  }
  uint64_t get(uint32_t reg, uint32_t lane) {
    return uint64_t{v(reg + 1, lane)} << 32 | v(reg, lane);
  }

  FlatMemory memory{1 << 20};
  Dispatch dispatch;
  Group group;
  Wave wave;
};

/// Names of opcodes that a test executes; the table test compares them with the tables.
void covers(std::string_view name);
const std::vector<std::string>& covered();

}  // namespace bm::sim::amd::test
