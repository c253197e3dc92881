// Operations that do more than map lanes: masks, lanes, control, memory, matrices. The words of the
// assembly here are in snippets.inc (make_snippets.py).

#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/base/half.h"
#include "tests/sim/amd/exec/fp.h"
#include "tests/unit/sim_amd/one_wave.h"
#include "tests/unit/sim_amd/snippets.h"

namespace bm::sim::amd::test {
namespace {

struct Special {
  Isa isa;
  const char* text;
  std::function<void(OneWave&)> before;
  std::function<void(OneWave&)> after;
};

constexpr uint32_t kLanes = 32;

/// v2 = 100 + lane, v4 = 1000 + lane, v6 = lane * 4, v8 old.
void fill(OneWave& o) {
  for (uint32_t l = 0; l < kLanes; ++l) {
    o.put(2, l, 100 + l);
    o.put(4, l, 1000 + l);
    o.put(6, l, l * 4);
    o.put(8, l, 0xdddddddd00000000 + l);
  }
}
void run_all(std::span<const Special> cases) {
  for (const Special& c : cases) {
    SCOPED_TRACE(c.text);
    OneWave o(c.isa);
    fill(o);
    if (c.before) c.before(o);
    ASSERT_TRUE(o.step(words_of(c.isa, c.text)));
    ASSERT_FALSE(o.wave.failed) << fault_name(o.wave.fault.kind);
    c.after(o);
    const std::string_view all = c.text;
    std::string name(all.substr(0, all.find(' ')));
    for (const char* suffix : {"_e32", "_e64", "_dpp"})
      if (name.ends_with(suffix)) name.resize(name.size() - 4);
    covers(name);
    if (const size_t second = all.find(":: "); second != std::string_view::npos) {
      const std::string_view rest = all.substr(second + 3);
      covers(rest.substr(0, rest.find(' ')));
    }
  }
}
/// Every lane of v8.
std::function<void(OneWave&)> lanes(std::function<uint32_t(uint32_t)> expected) {
  return [expected](OneWave& o) {
    for (uint32_t l = 0; l < kLanes; ++l) EXPECT_EQ(o.v(8, l), expected(l)) << "lane " << l;
  };
}
std::function<void(OneWave&)> sgpr(uint32_t n, uint64_t value, int dwords = 1) {
  return
      [=](OneWave& o) { EXPECT_EQ(dwords == 2 ? o.wave.read64(n, 0, false) : o.wave.s[n], value); };
}
std::function<void(OneWave&)> set(uint32_t n, uint64_t value) {
  return [=](OneWave& o) { o.wave.write64(n, value); };
}
uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

TEST(Special, MasksSelectAndCarry) {
  const auto vcc = set(kVccLo, 0x55555555), s24 = set(24, 0x0f0f0f0f);
  const auto ones = [](OneWave& o) {
    for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = l < 16 ? ~0u : 5, o.v(4, l) = 1;
    o.wave.s[kVccLo] = 0x0000ffff;
    o.wave.s[24] = 0x000000ff;
  };
  const std::vector<Special> cases{
      {Isa::kGfx11, "v_cndmask_b32_e32 v8, v2, v4, vcc_lo", vcc,
       lanes([](uint32_t l) { return l % 2 ? 100 + l : 1000 + l; })},
      {Isa::kGfx11, "v_cndmask_b32_e64 v8, v2, v4, s24", s24,
       lanes([](uint32_t l) { return l / 4 % 2 ? 100 + l : 1000 + l; })},
      {Isa::kGfx11, "v_cndmask_b16 v8, v2, v4, s24", s24,
       lanes([](uint32_t l) { return l / 4 % 2 ? 100 + l : 1000 + l; })},
      {Isa::kGfx11, "v_add_co_u32 v8, vcc_lo, v2, v4", ones,
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[kVccLo], 0xffffu);
         EXPECT_EQ(o.v(8, 3), 0u);
         EXPECT_EQ(o.v(8, 20), 6u);
       }},
      {Isa::kGfx11, "v_sub_co_u32 v8, s24, v4, v2", ones,
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[24], ~0u);
         EXPECT_EQ(o.v(8, 3), 2u);
       }},
      {Isa::kGfx11, "v_subrev_co_u32 v8, s24, v4, v2", ones,
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[24], 0u);
         EXPECT_EQ(o.v(8, 20), 4u);
       }},
      {Isa::kGfx11, "v_add_co_ci_u32_e32 v8, vcc_lo, v2, v4, vcc_lo", ones,
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[kVccLo], 0xffffu);
         EXPECT_EQ(o.v(8, 3), 1u);
         EXPECT_EQ(o.v(8, 20), 6u);
       }},
      {Isa::kGfx11, "v_sub_co_ci_u32_e64 v8, s26, v2, v4, s24", ones,
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[26], 0u);
         EXPECT_EQ(o.v(8, 3), ~0u - 2);
         EXPECT_EQ(o.v(8, 20), 4u);
       }},
      {Isa::kGfx11, "v_subrev_co_ci_u32_e64 v8, s26, v4, v2, s24", ones,
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[26], 0u);
         EXPECT_EQ(o.v(8, 3), ~0u - 2);
       }},
      {Isa::kGfx11, "v_add_nc_u32_e64 v8, v2, v4 clamp", ones,
       lanes([](uint32_t l) { return l < 16 ? ~0u : 6; })},
      {Isa::kGfx11, "v_mbcnt_lo_u32_b32 v8, -1, v2", nullptr,
       lanes([](uint32_t l) { return l + 100 + l; })},
      {Isa::kGfx11, "v_mbcnt_hi_u32_b32 v8, -1, v2", nullptr,
       lanes([](uint32_t l) { return 100 + l; })},
      {Isa::kGfx11, "v_div_scale_f32 v8, vcc_lo, v4, v4, v2",
       [](OneWave& o) {
         for (uint32_t l = 0; l < kLanes; ++l)
           o.v(2, l) = bits(0x1p100f), o.v(4, l) = bits(l & 1 ? 0x1p-20f : 3.0f);
       },
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[kVccLo], 0xffffffffu);
         EXPECT_EQ(o.v(8, 1), bits(0x1p44f));
         EXPECT_EQ(o.v(8, 0), bits(3 * 0x1p64f));
       }},
      {Isa::kGfx11, "v_div_scale_f32 v8, vcc_lo, v4, v4, v2",  // reciprocal and quotient denormal
       [](OneWave& o) {
         for (uint32_t l = 0; l < kLanes; ++l)
           o.v(2, l) = bits(0.5f), o.v(4, l) = bits(0x1.7cp126f);
       },
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[kVccLo], 0xffffffffu);
         EXPECT_EQ(o.v(8, 3), bits(0x1.7cp62f));
       }},
      {Isa::kGfx11, "v_div_scale_f64 v[8:9], vcc_lo, v[4:5], v[4:5], v[2:3]",
       [](OneWave& o) {
         for (uint32_t l = 0; l < kLanes; ++l)
           o.put(2, l, std::bit_cast<uint64_t>(5.0)),
               o.put(4, l, std::bit_cast<uint64_t>(l ? 3.0 : 0.0));
       },
       [](OneWave& o) {
         EXPECT_EQ(o.wave.s[kVccLo], 1u);  // a zero: details_test.cpp
         EXPECT_EQ(o.get(8, 1), std::bit_cast<uint64_t>(3.0));
         EXPECT_TRUE(std::isnan(std::bit_cast<double>(o.get(8, 0))));
       }},
  };
  run_all(cases);
}

TEST(Special, ScalarExecAndBits) {
  const auto start = [](OneWave& o) {
    o.wave.write64(2, 0x00ff00ff0ff00ff0);
    o.wave.write64(kExecLo, 0xf0f0f0f033333333);
    o.wave.scc = false;
  };
  std::vector<Special> cases;
  struct Logic {
    const char* name;
    uint64_t (*f)(uint64_t s, uint64_t e);
  };
  constexpr Logic kLogic[] = {{"and", [](uint64_t s, uint64_t e) { return s & e; }},
                              {"or", [](uint64_t s, uint64_t e) { return s | e; }},
                              {"xor", [](uint64_t s, uint64_t e) { return s ^ e; }},
                              {"nand", [](uint64_t s, uint64_t e) { return ~(s & e); }},
                              {"nor", [](uint64_t s, uint64_t e) { return ~(s | e); }},
                              {"xnor", [](uint64_t s, uint64_t e) { return ~(s ^ e); }},
                              {"and_not0", [](uint64_t s, uint64_t e) { return ~s & e; }},
                              {"or_not0", [](uint64_t s, uint64_t e) { return ~s | e; }},
                              {"and_not1", [](uint64_t s, uint64_t e) { return s & ~e; }},
                              {"or_not1", [](uint64_t s, uint64_t e) { return s | ~e; }}};
  constexpr struct {
    Isa isa;
    const char* text;
  } k32[] = {{Isa::kGfx11, "s_and_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_or_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_xor_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_nand_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_nor_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_xnor_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_and_not0_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_or_not0_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_and_not1_saveexec_b32 s8, s2"},
             {Isa::kGfx11, "s_or_not1_saveexec_b32 s8, s2"}};
  constexpr struct {
    Isa isa;
    const char* text;
  } k64[] = {{Isa::kGfx11, "s_and_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_or_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_xor_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_nand_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_nor_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_xnor_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_and_not0_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_or_not0_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_and_not1_saveexec_b64 s[8:9], s[2:3]"},
             {Isa::kGfx11, "s_or_not1_saveexec_b64 s[8:9], s[2:3]"}};
  for (size_t i = 0; i < std::size(kLogic); ++i) {
    const auto expected = kLogic[i].f(0x00ff00ff0ff00ff0, 0xf0f0f0f033333333);
    cases.push_back({Isa::kGfx11, k32[i].text, start, [=](OneWave& o) {
                       EXPECT_EQ(o.wave.s[8], 0x33333333u);
                       EXPECT_EQ(o.wave.s[kExecLo], static_cast<uint32_t>(expected));
                       EXPECT_EQ(o.wave.scc, static_cast<uint32_t>(expected) != 0);
                     }});
    cases.push_back({Isa::kGfx11, k64[i].text, start, [=](OneWave& o) {
                       EXPECT_EQ(o.wave.read64(8, 0, false), 0xf0f0f0f033333333u);
                       EXPECT_EQ(o.wave.read64(kExecLo, 0, false), expected);
                       EXPECT_EQ(o.wave.scc, expected != 0);
                     }});
  }
  const auto scc = [](bool value) { return [=](OneWave& o) { EXPECT_EQ(o.wave.scc, value); }; };
  const auto both = [](uint64_t v, int dwords) {
    return [=](OneWave& o) {
      sgpr(8, v, dwords)(o);
      EXPECT_EQ(dwords == 2 ? o.wave.read64(kExecLo, 0, false) : o.wave.s[kExecLo], v);
    };
  };
  const std::vector<Special> more{
      {Isa::kGfx11, "s_and_not0_wrexec_b32 s8, s2", start, both(~0x0ff00ff0u & 0x33333333u, 1)},
      {Isa::kGfx11, "s_and_not1_wrexec_b32 s8, s2", start, both(0x0ff00ff0u & ~0x33333333u, 1)},
      {Isa::kGfx11, "s_and_not0_wrexec_b64 s[8:9], s[2:3]", start,
       both(~0x00ff00ff0ff00ff0u & 0xf0f0f0f033333333u, 2)},
      {Isa::kGfx11, "s_and_not1_wrexec_b64 s[8:9], s[2:3]", start,
       both(0x00ff00ff0ff00ff0u & ~0xf0f0f0f033333333u, 2)},
      {Isa::kGfx11, "s_bitcmp0_b32 s2, 3", start, scc(true)},
      {Isa::kGfx11, "s_bitcmp1_b32 s2, 4", start, scc(true)},
      {Isa::kGfx11, "s_bitcmp0_b64 s[2:3], 33", start, scc(false)},
      {Isa::kGfx11, "s_bitcmp1_b64 s[2:3], 33", start, scc(true)},
      {Isa::kGfx11, "s_getreg_b32 s8, hwreg(HW_REG_MODE, 4, 4)", start, sgpr(8, 15)},
      {Isa::kGfx11, "s_setreg_b32 hwreg(HW_REG_MODE, 4, 4), s3", start,
       [](OneWave& o) { EXPECT_EQ(o.wave.mode, 0xf0u); }},
      {Isa::kGfx11, "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 9", start,
       [](OneWave& o) { EXPECT_EQ(o.wave.mode, 0xf9u); }},
      {Isa::kGfx11, "s_round_mode 0x5", start, [](OneWave& o) { EXPECT_EQ(o.wave.mode, 0xf5u); }},
      {Isa::kGfx11, "s_denorm_mode 3", start, [](OneWave& o) { EXPECT_EQ(o.wave.mode, 0x30u); }},
      {Isa::kGfx11, "s_sendmsg_rtn_b32 s8, sendmsg(MSG_RTN_GET_DOORBELL)", start, sgpr(8, 0)},
      {Isa::kGfx11, "s_sendmsg_rtn_b64 s[8:9], sendmsg(MSG_RTN_GET_REALTIME)",
       [](OneWave& o) { o.wave.steps = 77; }, sgpr(8, 77, 2)},
  };
  cases.insert(cases.end(), more.begin(), more.end());
  run_all(cases);
}

TEST(Special, Control) {
  const auto at = [](OneWave& o) {
    o.wave.pc = 0x1000;
    o.wave.write64(2, 0x2000);
    o.wave.scc = true;
  };
  const auto to = [](uint64_t pc) { return [=](OneWave& o) { EXPECT_EQ(o.wave.next_pc, pc); }; };
  const auto state = [](WaveState s) { return [=](OneWave& o) { EXPECT_EQ(o.wave.state, s); }; };
  std::vector<Special> cases{
      {Isa::kGfx11, "s_branch 4", at, to(0x1014)},
      {Isa::kGfx11, "s_cbranch_scc0 4", at, to(0x1004)},
      {Isa::kGfx11, "s_cbranch_scc1 65534", at, to(0xffc)},
      {Isa::kGfx11, "s_cbranch_vccz 4", at, to(0x1014)},
      {Isa::kGfx11, "s_cbranch_vccnz 4", at, to(0x1004)},
      {Isa::kGfx11, "s_cbranch_execz 4", at, to(0x1004)},
      {Isa::kGfx11, "s_cbranch_execnz 4", at, to(0x1014)},
      {Isa::kGfx11, "s_getpc_b64 s[8:9]", at, sgpr(8, 0x1004, 2)},
      {Isa::kGfx11, "s_setpc_b64 s[2:3]", at, to(0x2000)},
      {Isa::kGfx11, "s_swappc_b64 s[8:9], s[2:3]", at,
       [](OneWave& o) {
         EXPECT_EQ(o.wave.next_pc, 0x2000u);
         EXPECT_EQ(o.wave.read64(8, 0, false), 0x1004u);
       }},
      {Isa::kGfx11, "s_call_b64 s[8:9], 2", at,
       [](OneWave& o) {
         EXPECT_EQ(o.wave.next_pc, 0x100cu);
         EXPECT_EQ(o.wave.read64(8, 0, false), 0x1004u);
       }},
      {Isa::kGfx11, "s_endpgm", at, state(WaveState::kEnded)},
      {Isa::kGfx11, "s_barrier", at, state(WaveState::kBarrier)},
      {Isa::kGfx12, "s_barrier_signal -1", at,
       [](OneWave& o) {
         EXPECT_TRUE(o.wave.signalled);
         EXPECT_EQ(o.group.barrier_phase, 1u);
       }},
      {Isa::kGfx12, "s_barrier_wait 0xffff", at, state(WaveState::kBarrier)},
      {Isa::kGfx11, "s_sleep 1", at, [](OneWave& o) { EXPECT_TRUE(o.wave.yield); }},
      {Isa::kGfx12, "s_sleep_var s2", at, [](OneWave& o) { EXPECT_TRUE(o.wave.yield); }},
      {Isa::kGfx11, "s_icache_inv", at, [](OneWave& o) { EXPECT_TRUE(o.wave.flush_icache); }},
  };
  constexpr struct {
    Isa isa;
    const char* text;
  } kNothing[] = {{Isa::kGfx11, "s_nop 3"},
                  {Isa::kGfx11, "s_sethalt 0"},
                  {Isa::kGfx11, "s_set_inst_prefetch_distance 0x1"},
                  {Isa::kGfx11, "s_clause 0x2"},
                  {Isa::kGfx11, "s_delay_alu instid0(VALU_DEP_1)"},
                  {Isa::kGfx11, "s_waitcnt_depctr 0xfffe"},
                  {Isa::kGfx12, "s_wait_alu 0xfffe"},
                  {Isa::kGfx11, "s_waitcnt vmcnt(0)"},
                  {Isa::kGfx11, "s_waitcnt_vscnt null, 0x0"},
                  {Isa::kGfx11, "s_waitcnt_vmcnt null, 0x0"},
                  {Isa::kGfx11, "s_waitcnt_expcnt null, 0x0"},
                  {Isa::kGfx11, "s_waitcnt_lgkmcnt null, 0x0"},
                  {Isa::kGfx11, "s_wait_idle"},
                  {Isa::kGfx12, "s_wait_loadcnt 0x0"},
                  {Isa::kGfx12, "s_wait_storecnt 0x0"},
                  {Isa::kGfx12, "s_wait_samplecnt 0x0"},
                  {Isa::kGfx12, "s_wait_expcnt 0x0"},
                  {Isa::kGfx12, "s_wait_dscnt 0x0"},
                  {Isa::kGfx12, "s_wait_kmcnt 0x0"},
                  {Isa::kGfx12, "s_wait_loadcnt_dscnt 0x0"},
                  {Isa::kGfx12, "s_wait_storecnt_dscnt 0x0"},
                  {Isa::kGfx11, "s_wakeup"},
                  {Isa::kGfx11, "s_setprio 1"},
                  {Isa::kGfx11, "s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)"},
                  {Isa::kGfx11, "s_dcache_inv"},
                  {Isa::kGfx11, "buffer_gl0_inv"},
                  {Isa::kGfx11, "buffer_gl1_inv"},
                  {Isa::kGfx12, "global_inv"},
                  {Isa::kGfx12, "global_wb"},
                  {Isa::kGfx12, "global_wbinv"},
                  {Isa::kGfx11, "v_nop"},
                  {Isa::kGfx11, "v_pipeflush"}};
  for (const auto& n : kNothing)
    cases.push_back({n.isa, n.text, at, [](OneWave& o) {
                       EXPECT_EQ(o.wave.state, WaveState::kRunning);
                       EXPECT_GT(o.wave.next_pc, 0x1000u);
                       EXPECT_EQ(o.v(8, 1), 1u);
                     }});
  run_all(cases);
  OneWave o(Isa::kGfx11);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, Special{Isa::kGfx11, "s_trap 2", {}, {}}.text)));
  EXPECT_EQ(o.wave.fault.kind, Fault::Kind::kTrap);
  covers("s_trap");
}

TEST(Special, LanesAndDpp) {
  const auto some = [](OneWave& o) {
    o.wave.s[kExecLo] = 0xfffffff8;
    o.wave.write64(2, 5);
    o.wave.s[4] = 0x76543210;
    o.wave.s[5] = 0xfedcba98;
  };
  const auto sel = [](OneWave& o) {
    o.wave.s[4] = 0x32107654;
    o.wave.s[5] = 0xba98fedc;
    for (uint32_t l = 0; l < kLanes; ++l) o.v(4, l) = 15 - l % 16;
  };
  const std::vector<Special> cases{
      {Isa::kGfx11, "v_readfirstlane_b32 s8, v2", some, sgpr(8, 103)},
      {Isa::kGfx11, "v_readlane_b32 s8, v2, s2", some, sgpr(8, 105)},
      {Isa::kGfx11, "v_writelane_b32 v8, s2, 7", some,
       [](OneWave& o) {
         EXPECT_EQ(o.v(8, 7), 5u);
         EXPECT_EQ(o.v(8, 6), 6u);
       }},
      {Isa::kGfx11, "v_swap_b32 v8, v2", some,
       [](OneWave& o) {
         EXPECT_EQ(o.v(8, 3), 103u);
         EXPECT_EQ(o.v(2, 3), 3u);
         EXPECT_EQ(o.v(8, 2), 2u);
       }},
      {Isa::kGfx11, "v_permlane16_b32 v8, v2, s4, s5", sel,
       lanes([](uint32_t l) { return 100 + (l & 16) + ((l & 15) ^ 4); })},
      {Isa::kGfx11, "v_permlanex16_b32 v8, v2, s4, s5", sel,
       lanes([](uint32_t l) { return 100 + ((l & 16) ^ 16) + ((l & 15) ^ 4); })},
      {Isa::kGfx12, "v_permlane16_var_b32 v8, v2, v4", sel,
       lanes([](uint32_t l) { return 100 + (l & 16) + 15 - l % 16; })},
      {Isa::kGfx12, "v_permlanex16_var_b32 v8, v2, v4", sel,
       lanes([](uint32_t l) { return 100 + ((l & 16) ^ 16) + 15 - l % 16; })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", nullptr,
       lanes([](uint32_t l) { return 100 + (l ^ 1); })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 row_shl:1 row_mask:0xf bank_mask:0xf bound_ctrl:1",
       nullptr, lanes([](uint32_t l) { return l % 16 == 15 ? 0 : 101 + l; })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 row_shr:3 row_mask:0xf bank_mask:0xf", nullptr,
       lanes([](uint32_t l) { return l % 16 < 3 ? l : 97 + l; })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 row_ror:4 row_mask:0xf bank_mask:0xf", nullptr,
       lanes([](uint32_t l) { return 100 + (l & 16) + ((l - 4) & 15); })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 row_mirror row_mask:0xf bank_mask:0xf", nullptr,
       lanes([](uint32_t l) { return 100 + (l & 16) + 15 - l % 16; })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 row_half_mirror row_mask:0xf bank_mask:0xf", nullptr,
       lanes([](uint32_t l) { return 100 + (l & 24) + 7 - l % 8; })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 row_share:2 row_mask:0xf bank_mask:0xf", nullptr,
       lanes([](uint32_t l) { return 102 + (l & 16); })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 row_xmask:5 row_mask:0x1 bank_mask:0xf", nullptr,
       lanes([](uint32_t l) { return l < 16 ? 100 + (l ^ 5) : l; })},
      {Isa::kGfx11, "v_mov_b32_dpp v8, v2 dpp8:[7,6,5,4,3,2,1,0]", nullptr,
       lanes([](uint32_t l) { return 100 + (l ^ 7); })},
      {Isa::kGfx11, "ds_bpermute_b32 v8, v6, v2 offset:4", nullptr,
       lanes([](uint32_t l) { return 100 + (l + 1) % 32; })},
      {Isa::kGfx11, "ds_permute_b32 v8, v6, v2 offset:4", nullptr,
       lanes([](uint32_t l) { return 100 + (l + 31) % 32; })},
      {Isa::kGfx11, "ds_swizzle_b32 v8, v2 offset:0x041f", nullptr,
       lanes([](uint32_t l) { return 100 + (l ^ 1); })},
      {Isa::kGfx11, "ds_swizzle_b32 v8, v2 offset:0x80b1", nullptr,
       lanes([](uint32_t l) { return 100 + (l ^ 1); })},
  };
  run_all(cases);
}

TEST(Special, DualIssue) {
  const auto floats = [](OneWave& o) {
    for (uint32_t l = 0; l < kLanes; ++l) {
      for (uint32_t r : {2u, 4u, 3u, 5u})
        o.v(r, l) = bits(static_cast<float>(l) + static_cast<float>(r));
      o.v(8, l) = bits(1), o.v(9, l) = bits(2);
    }
    o.wave.s[kVccLo] = 0x0000ffff;
  };
  const auto two = [](std::function<float(float)> x, std::function<float(float)> y) {
    return [=](OneWave& o) {
      for (uint32_t l = 0; l < kLanes; ++l) {
        EXPECT_EQ(o.v(8, l), bits(x(static_cast<float>(l)))) << l;
        EXPECT_EQ(o.v(9, l), bits(y(static_cast<float>(l)))) << l;
      }
    };
  };
  const auto f = [](auto g) { return std::function<float(float)>(g); };
  const std::vector<Special> cases{
      {Isa::kGfx11, "v_dual_add_f32 v8, v2, v4 :: v_dual_mul_f32 v9, v3, v5", floats,
       two(f([](float l) { return 2 * l + 6; }), f([](float l) { return (l + 3) * (l + 5); }))},
      {Isa::kGfx11, "v_dual_sub_f32 v8, v2, v4 :: v_dual_subrev_f32 v9, v3, v5", floats,
       two(f([](float) { return -2; }), f([](float) { return 2; }))},
      {Isa::kGfx11, "v_dual_fmac_f32 v8, v2, v4 :: v_dual_mov_b32 v9, v8", floats,
       two(f([](float l) { return (l + 2) * (l + 4) + 1; }), f([](float) { return 1; }))},
      {Isa::kGfx11,
       "v_dual_fmaak_f32 v8, v2, v4, 0x40400000 :: v_dual_fmamk_f32 v9, v3, 0x40400000, v5", floats,
       two(f([](float l) { return (l + 2) * (l + 4) + 3; }),
           f([](float l) { return (l + 3) * 3 + l + 5; }))},
      {Isa::kGfx11, "v_dual_mul_dx9_zero_f32 v8, v2, v4 :: v_dual_cndmask_b32 v9, v3, v5", floats,
       two(f([](float l) { return (l + 2) * (l + 4); }),
           f([](float l) { return l < 16 ? l + 5 : l + 3; }))},
      {Isa::kGfx11, "v_dual_max_f32 v8, v2, v4 :: v_dual_min_f32 v9, v3, v5", floats,
       two(f([](float l) { return l + 4; }), f([](float l) { return l + 3; }))},
      {Isa::kGfx12, "v_dual_max_num_f32 v8, v2, v4 :: v_dual_min_num_f32 v9, v3, v5", floats,
       two(f([](float l) { return l + 4; }), f([](float l) { return l + 3; }))},
      {Isa::kGfx11, "v_dual_mov_b32 v8, 2.0 :: v_dual_add_nc_u32 v9, 0, v5", floats,
       two(f([](float) { return 2; }), f([](float l) { return l + 5; }))},
      {Isa::kGfx11, "v_dual_mov_b32 v8, 2.0 :: v_dual_lshlrev_b32 v9, 0, v5", floats,
       two(f([](float) { return 2; }), f([](float l) { return l + 5; }))},
      {Isa::kGfx11, "v_dual_mov_b32 v8, 2.0 :: v_dual_and_b32 v9, -1, v5", floats,
       two(f([](float) { return 2; }), f([](float l) { return l + 5; }))},
      {Isa::kGfx11, "v_dual_dot2acc_f32_f16 v8, v2, v4 :: v_dual_mov_b32 v9, 0",
       [&](OneWave& o) {
         floats(o);
         for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = 0x40003c00, o.v(4, l) = 0x42004000;
       },
       two(f([](float) { return 1 * 2 + 2 * 3 + 1; }), f([](float) { return 0; }))},
  };
  run_all(cases);
}

TEST(Special, MixedAndDotProducts) {
  // v2 = (1, 2) halves, v4 = (3, 4), v6 = 10 as a float.
  const auto h = [](OneWave& o) {
    for (uint32_t l = 0; l < kLanes; ++l)
      o.v(2, l) = 0x40003c00, o.v(4, l) = 0x44004200, o.v(6, l) = bits(10), o.v(8, l) = bits(1);
  };
  const auto b = [](OneWave& o) {
    for (uint32_t l = 0; l < kLanes; ++l)
      o.v(2, l) = 0x40003f80, o.v(4, l) = 0x40804040, o.v(6, l) = bits(10), o.v(8, l) = 0;
  };
  const auto e = [](OneWave& o) {
    for (uint32_t l = 0; l < kLanes; ++l)
      o.v(2, l) = 0x38383838, o.v(4, l) = 0x3c3c3c3c, o.v(6, l) = bits(10), o.v(8, l) = 0;
  };
  const auto is = [](uint32_t value) { return lanes([=](uint32_t) { return value; }); };
  const std::vector<Special> cases{
      {Isa::kGfx11, "v_fma_mix_f32 v8, v2, v4, v6 op_sel:[1,0,0] op_sel_hi:[1,1,0]", h,
       is(bits(2 * 3 + 10))},
      {Isa::kGfx11, "v_fma_mixlo_f16 v8, v2, v4, v6 op_sel_hi:[1,1,0]", h,
       is(0x3f800000 | f32_to_f16(13))},
      {Isa::kGfx11, "v_fma_mixhi_f16 v8, v2, -v4, v6 op_sel_hi:[1,1,0]", h,
       is(uint32_t{f32_to_f16(7)} << 16)},
      {Isa::kGfx11, "v_dot2_f32_f16 v8, v2, v4, v6", h, is(bits(3 + 8 + 10))},
      {Isa::kGfx11, "v_dot2_f32_bf16 v8, v2, v4, v6", b, is(bits(3 + 8 + 10))},
      {Isa::kGfx11, "v_dot2acc_f32_f16 v8, v2, v4", h, is(bits(3 + 8 + 1))},
      {Isa::kGfx11, "v_dot2_f16_f16 v8, v2, v4, v2", h, is(0x3f800000 | f32_to_f16(12))},
      {Isa::kGfx11, "v_dot2_bf16_bf16 v8, v2, v4, v2", b, is(f32_to_bf16(12))},
      {Isa::kGfx12, "v_dot4_f32_fp8_fp8 v8, v2, v4, v6", e, is(bits(4 * 1.0f * 1.5f + 10))},
      {Isa::kGfx12, "v_dot4_f32_fp8_bf8 v8, v2, v4, v6", e, is(bits(4 * 1.0f * 1.0f + 10))},
      {Isa::kGfx12, "v_dot4_f32_bf8_fp8 v8, v2, v4, v6", e, is(bits(4 * 0.5f * 1.5f + 10))},
      {Isa::kGfx12, "v_dot4_f32_bf8_bf8 v8, v2, v4, v6", e, is(bits(4 * 0.5f * 1.0f + 10))},
      {Isa::kGfx12, "v_cvt_pk_f32_fp8_e32 v[8:9], v4", e,
       [](OneWave& o) { EXPECT_EQ(o.get(8, 0), uint64_t{bits(1.5f)} << 32 | bits(1.5f)); }},
      {Isa::kGfx12, "v_cvt_pk_f32_bf8_e32 v[8:9], v4", e,
       [](OneWave& o) { EXPECT_EQ(o.get(8, 0), uint64_t{bits(1)} << 32 | bits(1)); }},
      {Isa::kGfx12, "v_cvt_sr_fp8_f32 v8, v6, 0", e, is(0x52)},
      {Isa::kGfx12, "v_cvt_sr_bf8_f32 v8, v6, 0", e, is(0x49)},
      {Isa::kGfx11, "v_trig_preop_f64 v[8:9], v[2:3], 0",
       [](OneWave& o) {
         for (uint32_t l = 0; l < kLanes; ++l) o.put(2, l, std::bit_cast<uint64_t>(1.0));
       },
       [](OneWave& o) {
         EXPECT_NEAR(std::bit_cast<double>(o.get(8, 0)), 2 / 3.14159265358979, 1e-15);
       }},
  };
  run_all(cases);
}

/// Each source of v_dot4_i32_iu8 says by its neg_lo whether its bytes have signs. RDNA3 ISA guide,
/// "V_DOT4_I32_IU8".
TEST(Special, DotProductsOfBytesTakeSignsByOperand) {
  // Every pair of extremes, and others.
  constexpr uint32_t kBytes[] = {0x80ff7f01, 0x017f80ff, 0xffffffff, 0x80808080,
                                 0x7f7f7f7f, 0,          0x12ef9a5c};
  const auto left = [&](uint32_t l) { return kBytes[l % 7]; };
  const auto right = [&](uint32_t l) { return kBytes[(l / 7 + l) % 7]; };
  const auto addend = [](uint32_t l) { return l % 3 == 0 ? 0x7ffffff0u : 0x80000007u + l; };
  const auto before = [&](OneWave& o) {
    for (uint32_t l = 0; l < kLanes; ++l)
      o.v(2, l) = left(l), o.v(4, l) = right(l), o.v(6, l) = addend(l);
  };
  const auto sum = [&](bool is_left_signed, bool is_right_signed, bool saturates) {
    return lanes([=](uint32_t l) {
      int64_t total = static_cast<int32_t>(addend(l));
      for (uint32_t i = 0; i < 4; ++i) {
        const auto a = static_cast<uint8_t>(left(l) >> 8 * i);
        const auto b = static_cast<uint8_t>(right(l) >> 8 * i);
        total +=
            (is_left_signed && a > 127 ? a - 256 : a) * (is_right_signed && b > 127 ? b - 256 : b);
      }
      if (saturates) total = std::clamp<int64_t>(total, INT32_MIN, INT32_MAX);
      return static_cast<uint32_t>(total);
    });
  };
  const std::vector<Special> cases{
      {Isa::kGfx11, "v_dot4_i32_iu8 v8, v2, v4, v6", before, sum(false, false, false)},
      {Isa::kGfx11, "v_dot4_i32_iu8 v8, v2, v4, v6 neg_lo:[1,0,0]", before,
       sum(true, false, false)},
      {Isa::kGfx11, "v_dot4_i32_iu8 v8, v2, v4, v6 neg_lo:[0,1,0]", before,
       sum(false, true, false)},
      {Isa::kGfx11, "v_dot4_i32_iu8 v8, v2, v4, v6 neg_lo:[1,1,0]", before, sum(true, true, false)},
      {Isa::kGfx11, "v_dot4_i32_iu8 v8, v2, v4, v6 neg_lo:[0,1,0] clamp", before,
       sum(false, true, true)},
      {Isa::kGfx12, "v_dot4_i32_iu8 v8, v2, v4, v6 neg_lo:[1,0,0]", before,
       sum(true, false, false)},
      {Isa::kGfx12, "v_dot4_i32_iu8 v8, v2, v4, v6 neg_lo:[0,1,0]", before,
       sum(false, true, false)},
      {Isa::kGfx12, "v_dot4_i32_iu8 v8, v2, v4, v6 neg_lo:[1,1,0]", before, sum(true, true, false)},
  };
  run_all(cases);
}

}  // namespace
}  // namespace bm::sim::amd::test
