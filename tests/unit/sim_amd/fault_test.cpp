// What stops a wave, and that nothing else does: bad code, bad addresses, endless loops.

#include <random>

#include <gtest/gtest.h>

#include "tests/sim/amd/isa/instruction.h"
#include "tests/unit/sim_amd/rig.h"
#include "tests/unit/sim_amd/snippets.h"

namespace bm::sim::amd::test {
namespace {

struct Line {
  Isa isa;
  const char* text;
};

class Faults : public testing::Test {
 protected:
  tl::expected<Statistics, Fault> go(std::initializer_list<Line> lines) {
    std::vector<uint32_t> code;
    for (const Line& line : lines) {
      const auto words = words_of(line.isa, line.text);
      const auto decoded = decode_length(words, line.isa);
      code.insert(code.end(), words.begin(), words.begin() + decoded);
    }
    return go(code, lines.begin()->isa);
  }
  tl::expected<Statistics, Fault> go(const std::vector<uint32_t>& code, Isa isa) {
    d_.isa = isa;
    d_.entry = memory_.put(code);
    d_.user_sgprs = {0, 0};
    d_.rsrc1 = 0xf << 16;  // denormals; 8 VGPRs
    d_.rsrc2 = 2 << 1 | 1 << 7;
    if (d_.max_instructions == 0) d_.max_instructions = 10'000;
    return run(d_, memory_);
  }
  static uint32_t decode_length(std::span<const uint32_t> words, Isa isa);
  void expect_fault(const tl::expected<Statistics, Fault>& result, Fault::Kind kind) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, kind) << result.error().text();
    EXPECT_FALSE(result.error().text().empty());
  }
  FlatMemory memory_;
  Dispatch d_;
};

uint32_t Faults::decode_length(std::span<const uint32_t> words, Isa isa) {
  const auto decoded = decode(words, isa);
  return decoded ? decoded->bytes / 4u : 1;
}

TEST_F(Faults, EndsNormally) {
  d_.grid = {3, 2, 1};
  d_.group = {48, 1, 1};
  const auto result = go({{Isa::kGfx11, "v_mov_b32_e32 v1, 1.0"}, {Isa::kGfx11, "s_endpgm"}});
  ASSERT_TRUE(result) << result.error().text();
  EXPECT_EQ(result->groups, 6u);
  EXPECT_EQ(result->waves, 12u);
  EXPECT_EQ(result->instructions, 24u);
  EXPECT_EQ(result->opcodes.at("v_mov_b32"), 12u);
}

TEST_F(Faults, IllegalOpcodeNamesItsPlace) {
  auto result = go({0xbf800000, 0xffffffff}, Isa::kGfx11);
  expect_fault(result, Fault::Kind::kIllegalOpcode);
  EXPECT_EQ(result.error().pc, d_.entry + 4);
}
/// RSRC3 divides the registers of a wave of CDNA: here four VGPRs and four AccVGPRs.
TEST_F(Faults, RegistersOfCdnaAreThoseOfTheirPart) {
  d_.wave_size = 64;
  EXPECT_TRUE(go({{Isa::kGfx9, "v_accvgpr_write_b32 a3, v3"}, {Isa::kGfx9, "s_endpgm"}}));
  expect_fault(go({{Isa::kGfx9, "v_accvgpr_write_b32 a4, v3"}}), Fault::Kind::kRegisterOutOfRange);
  expect_fault(go({{Isa::kGfx9, "v_mov_b32_e32 v4, 0"}}), Fault::Kind::kRegisterOutOfRange);
  // v_pk_mul_f32 v[1:2], v[2:3], v[2:3], which assemblers refuse: pairs begin at even registers.
  expect_fault(go({0xd3b14001, 0x18020502}, Isa::kGfx9), Fault::Kind::kRegisterOutOfRange);
  d_.wave_size = 32;
  expect_fault(go({{Isa::kGfx9, "s_endpgm"}}), Fault::Kind::kInvalidDispatch);
}
TEST_F(Faults, CodeThatEndsInTheMiddleOfTheMap) {
  FlatMemory small(4096);
  memory_ = small;
  std::vector<uint32_t> code(1024, 0xbf800000);
  code.back() = 0xbe8000ff;  // s_mov_b32 s0, literal: the literal is not mapped
  expect_fault(go(code, Isa::kGfx11), Fault::Kind::kIllegalOpcode);
  memory_ = FlatMemory(4096);
  code.back() = 0xbf800000;
  const auto result = go(code, Isa::kGfx11);
  expect_fault(result, Fault::Kind::kUnmapped);
  EXPECT_EQ(result.error().access, Access::kExecute);
}
TEST_F(Faults, EndlessLoopMeetsTheLimitAndTheCancelFlag) {
  expect_fault(go({{Isa::kGfx11, "s_branch 65535"}}), Fault::Kind::kInstructionLimit);
  std::atomic<bool> cancel = true;
  d_.cancel = &cancel;
  expect_fault(go({{Isa::kGfx11, "s_branch 65535"}}), Fault::Kind::kCancelled);
}
TEST_F(Faults, UnmappedAddressNamesTheLane) {
  const auto result = go({{Isa::kGfx11, "v_lshlrev_b32_e32 v1, 20, v0"},
                          {Isa::kGfx11, "global_load_b32 v2, v1, s[0:1]"},
                          {Isa::kGfx11, "s_endpgm"}});
  expect_fault(result, Fault::Kind::kUnmapped);
  EXPECT_EQ(result.error().lane, 0u);
  expect_fault(go({{Isa::kGfx11, "s_load_b32 s4, s[0:1], 0x10"}, {Isa::kGfx11, "s_endpgm"}}),
               Fault::Kind::kUnmapped);
}
TEST_F(Faults, AtomicsAreAligned) {
  d_.group = {1, 1, 1};
  expect_fault(go({{Isa::kGfx11, "v_mov_b32_e32 v1, 2"},
                   {Isa::kGfx11, "s_mov_b32 s0, 0x200000"},
                   {Isa::kGfx11, "global_atomic_add_u32 v1, v0, s[0:1]"},
                   {Isa::kGfx11, "s_endpgm"}}),
               Fault::Kind::kMisaligned);
}
TEST_F(Faults, LdsAndScratchHaveEnds) {
  d_.lds_bytes = 512;
  expect_fault(go({{Isa::kGfx11, "v_mov_b32_e32 v1, 0x1fd"},
                   {Isa::kGfx11, "ds_load_b32 v2, v1"},
                   {Isa::kGfx11, "s_endpgm"}}),
               Fault::Kind::kLdsOutOfRange);
  d_.scratch_per_lane = 16;
  d_.scratch_base = memory_.allocate(16 * 64);
  expect_fault(
      go({{Isa::kGfx11, "scratch_load_b64 v[2:3], off, off offset:12"}, {Isa::kGfx11, "s_endpgm"}}),
      Fault::Kind::kScratchOutOfRange);
}
TEST_F(Faults, RegistersBeyondTheAllocation) {
  expect_fault(go({{Isa::kGfx11, "v_mov_b32_e32 v8, 0"}, {Isa::kGfx11, "s_endpgm"}}),
               Fault::Kind::kRegisterOutOfRange);
}
TEST_F(Faults, TrapAndDeadlock) {
  const auto result = go({{Isa::kGfx11, "s_trap 2"}});
  expect_fault(result, Fault::Kind::kTrap);
  EXPECT_EQ(result.error().address, 2u);
  expect_fault(go({{Isa::kGfx12, "s_barrier_wait 0xffff"}, {Isa::kGfx12, "s_endpgm"}}),
               Fault::Kind::kBarrierDeadlock);
}
TEST_F(Faults, LaunchesHardwareWouldNotTake) {
  d_.group = {1025, 1, 1};
  expect_fault(go({{Isa::kGfx11, "s_endpgm"}}), Fault::Kind::kInvalidDispatch);
  d_.group = {0, 1, 1};
  expect_fault(go({{Isa::kGfx11, "s_endpgm"}}), Fault::Kind::kInvalidDispatch);
  d_.group = {1, 1, 1};
  d_.scratch_per_lane = 4;
  expect_fault(go({{Isa::kGfx11, "s_endpgm"}}), Fault::Kind::kInvalidDispatch);
}
TEST_F(Faults, EndedWavesDoNotHoldABarrierUp) {
  d_.group = {64, 1, 1};
  // The second wave (v0 >= 32) leaves at once, the first waits at the barrier.
  const auto result = go({{Isa::kGfx11, "v_readfirstlane_b32 s4, v0"},
                          {Isa::kGfx11, "s_cmp_lg_u32 s4, 0"},
                          {Isa::kGfx11, "s_cbranch_scc1 1"},
                          {Isa::kGfx11, "s_barrier"},
                          {Isa::kGfx11, "s_endpgm"}});
  EXPECT_TRUE(result) << result.error().text();
}

// Words at random, most of them instructions: no crash, no hang.
TEST_F(Faults, RandomCodeEndsSomehow) {
  std::mt19937 random(11);
  const auto rows = opcode_rows();
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint32_t> code(64);
    for (uint32_t& w : code) w = static_cast<uint32_t>(random());
    for (size_t i = 0; i < code.size(); i += 2) {
      const OpcodeRow& r = rows[static_cast<size_t>(random()) % rows.size()];
      const uint32_t c = r.code;
      const auto small = [&] { return static_cast<uint32_t>(random() & 7); };
      const uint32_t vop = small() << 17 | small() << 9 | 0x100 | small();
      if (r.format == Format::kVop1) code[i] = 0x7e000000 | c << 9 | (vop & 0xfe01ff);
      if (r.format == Format::kVop2) code[i] = c << 25 | vop;
      if (r.format == Format::kVop3)
        code[i] = 0xd4000000 | c << 16 | small(), code[i + 1] = 0x100 | small() | 0x100 << 9;
      if (r.format == Format::kSop2) code[i] = 0x80000000 | c << 23 | (code[i] & 0x7fffff);
      if (r.format == Format::kSopp) code[i] = 0xbf800000 | c << 16 | (code[i] & 15);
      if (r.format == Format::kDs) code[i] = 0xd8000000 | c << 18, code[i + 1] &= 0x07070707;
    }
    FlatMemory fresh(1 << 16);
    memory_ = fresh;
    d_.lds_bytes = 256;
    d_.max_instructions = 500;
    const Isa isa = round % 3 == 0 ? Isa::kGfx11 : round % 3 == 1 ? Isa::kGfx115 : Isa::kGfx12;
    const auto result = go(code, isa);
    if (!result) {
      EXPECT_FALSE(result.error().text().empty());
    }
  }
}

}  // namespace
}  // namespace bm::sim::amd::test
