// Registers and LDS that are used before what writes them was waited for: every planted mistake is
// found, and the same code with its wait runs.

#include <cstring>

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
using Lines = std::vector<Line>;

class Waiting : public testing::Test {
 protected:
  /// One wave; s[0:1] is the address of 4 KiB, which begin with it.
  tl::expected<Statistics, Fault> go(const Lines& lines) {
    std::vector<uint32_t> code;
    for (const Line& line : lines) {
      const auto words = words_of(line.isa, line.text);
      const auto decoded = decode(words, line.isa);
      EXPECT_TRUE(decoded) << line.text;
      if (!decoded) continue;
      code.insert(code.end(), words.begin(), words.begin() + decoded->bytes / 4);
    }
    Dispatch d;
    d.isa = lines[0].isa;
    d.wave_size = d.isa == Isa::kGfx9 ? 64 : 32;
    d.entry = memory_.put(code);
    const uint64_t data = memory_.allocate(4096);
    std::memcpy(memory_.at(data, sizeof data, Access::kWrite).host, &data, sizeof data);
    d.user_sgprs = {static_cast<uint32_t>(data), static_cast<uint32_t>(data >> 32)};
    d.rsrc1 = 0xf << 16 | 7;  // 64 VGPRs
    d.rsrc2 = 2 << 1 | 1 << 7;
    d.rsrc3 = 7;  // gfx9: the upper 32 are AccVGPRs
    d.lds_bytes = 1024;
    d.group = {32, 1, 1};
    d.grid = {1, 1, 1};
    d.max_instructions = 1000;
    return run(d, memory_);
  }
  /// `before` and `after` without `wait` are a mistake, named by `why`; with it they are none.
  void expect_needs(const Lines& before, const Line& wait, const Lines& after,
                    std::string_view why) {
    SCOPED_TRACE(after[0].text);
    const Isa isa = before[0].isa;
    for (const bool waits : {false, true}) {
      Lines all = before;
      if (waits) all.push_back(wait);
      all.insert(all.end(), after.begin(), after.end());
      all.push_back({isa, "s_endpgm"});
      const auto result = go(all);
      EXPECT_EQ(result.has_value(), waits) << (result ? "" : result.error().text());
      if (result || waits) continue;
      EXPECT_EQ(result.error().kind, Fault::Kind::kNotWaited) << result.error().text();
      EXPECT_NE(result.error().detail.find(why), std::string::npos) << result.error().text();
    }
  }
  FlatMemory memory_;
};

TEST_F(Waiting, VectorLoads) {
  EXPECT_TRUE(go({{Isa::kGfx10, "s_endpgm"}}));
  expect_needs({{Isa::kGfx11, "global_load_b32 v2, v1, s[0:1]"}},
               {Isa::kGfx11, "s_waitcnt vmcnt(0)"}, {{Isa::kGfx11, "v_mov_b32_e32 v3, v2"}},
               "v2 is read before");
  expect_needs({{Isa::kGfx9, "global_load_dword v2, v1, s[0:1]"}},
               {Isa::kGfx9, "s_waitcnt vmcnt(0)"}, {{Isa::kGfx9, "v_mov_b32_e32 v3, v2"}},
               "v2 is read before");
  expect_needs({{Isa::kGfx10, "global_load_dword v2, v1, s[0:1]"}},
               {Isa::kGfx10, "s_waitcnt vmcnt(0)"}, {{Isa::kGfx10, "v_mov_b32_e32 v3, v2"}},
               "v2 is read before");
  expect_needs({{Isa::kGfx12, "global_load_b32 v2, v1, s[0:1]"}},
               {Isa::kGfx12, "s_wait_loadcnt 0x0"}, {{Isa::kGfx12, "v_mov_b32_e32 v3, v2"}},
               "v2 is read before");
}

/// The load would write it later.
TEST_F(Waiting, RegistersThatLoadsWillWriteAreNotWritten) {
  expect_needs({{Isa::kGfx9, "global_load_dword v2, v1, s[0:1]"}},
               {Isa::kGfx9, "s_waitcnt vmcnt(0)"}, {{Isa::kGfx9, "v_mov_b32_e32 v2, v3"}},
               "v2 is written before");
  // A second load of the same kind comes later.
  EXPECT_TRUE(go({{Isa::kGfx9, "global_load_dword v2, v1, s[0:1]"},
                  {Isa::kGfx9, "global_load_dword v2, v1, s[0:1]"},
                  {Isa::kGfx9, "s_waitcnt vmcnt(0)"},
                  {Isa::kGfx9, "v_mov_b32_e32 v3, v2"},
                  {Isa::kGfx9, "s_endpgm"}}));
  expect_needs({{Isa::kGfx9, "global_load_dword v2, v1, s[0:1]"}},
               {Isa::kGfx9, "s_waitcnt vmcnt(0)"}, {{Isa::kGfx9, "ds_read_b32 v2, v1"}},
               "v2 is written before");
}

/// MFMA reads and writes AccVGPRs, which loads reach too.
TEST_F(Waiting, AccumulatorsOfCdna) {
  expect_needs({{Isa::kGfx9, "global_load_dword a2, v1, s[0:1]"}},
               {Isa::kGfx9, "s_waitcnt vmcnt(0)"}, {{Isa::kGfx9, "v_accvgpr_read_b32 v3, a2"}},
               "a2 is read before");
}

TEST_F(Waiting, LoadsReturnInOrder) {
  const Lines two{{Isa::kGfx11, "global_load_b32 v2, v1, s[0:1]"},
                  {Isa::kGfx11, "global_load_b32 v3, v1, s[0:1]"},
                  {Isa::kGfx11, "s_waitcnt vmcnt(1)"},
                  {Isa::kGfx11, "v_mov_b32_e32 v4, v2"}};
  expect_needs(two, {Isa::kGfx11, "s_waitcnt vmcnt(0)"}, {{Isa::kGfx11, "v_mov_b32_e32 v4, v3"}},
               "v3 is read before");
}

/// gfx9 counts a store with the loads, the others do not.
TEST_F(Waiting, StoresCountOnCdna) {
  expect_needs({{Isa::kGfx9, "global_load_dword v2, v1, s[0:1]"},
                {Isa::kGfx9, "global_load_dword v3, v1, s[0:1]"},
                {Isa::kGfx9, "global_store_dword v1, v4, s[0:1]"},
                {Isa::kGfx9, "s_waitcnt vmcnt(2)"},
                {Isa::kGfx9, "v_mov_b32_e32 v5, v2"}},
               {Isa::kGfx9, "s_waitcnt vmcnt(1)"}, {{Isa::kGfx9, "v_mov_b32_e32 v5, v3"}},
               "v3 is read before");
}

TEST_F(Waiting, ScalarLoadsReturnInAnyOrder) {
  const Lines two{{Isa::kGfx11, "s_load_b32 s4, s[0:1], 0x0"},
                  {Isa::kGfx11, "s_load_b32 s5, s[0:1], 0x4"},
                  {Isa::kGfx11, "s_waitcnt lgkmcnt(1)"}};
  expect_needs(two, {Isa::kGfx11, "s_waitcnt lgkmcnt(0)"}, {{Isa::kGfx11, "v_mov_b32_e32 v2, s4"}},
               "s4 is read before");
  expect_needs({{Isa::kGfx9, "s_load_dword s4, s[0:1], 0x0"}}, {Isa::kGfx9, "s_waitcnt lgkmcnt(0)"},
               {{Isa::kGfx9, "v_mov_b32_e32 v2, s4"}}, "s4 is read before");
  expect_needs({{Isa::kGfx12, "s_load_b32 s4, s[0:1], 0x0"}, {Isa::kGfx12, "s_wait_dscnt 0x0"}},
               {Isa::kGfx12, "s_wait_kmcnt 0x0"}, {{Isa::kGfx12, "v_mov_b32_e32 v2, s4"}},
               "s4 is read before");
}

/// As an address.
TEST_F(Waiting, BasesOfLoads) {
  expect_needs({{Isa::kGfx11, "s_load_b64 s[4:5], s[0:1], 0x0"}},
               {Isa::kGfx11, "s_waitcnt lgkmcnt(0)"}, {{Isa::kGfx11, "s_load_b32 s6, s[4:5], 0x0"}},
               "s4 is read before");
}

TEST_F(Waiting, Lds) {
  expect_needs({{Isa::kGfx11, "ds_load_b32 v2, v1"}}, {Isa::kGfx11, "s_waitcnt lgkmcnt(0)"},
               {{Isa::kGfx11, "v_mov_b32_e32 v3, v2"}}, "v2 is read before");
  expect_needs({{Isa::kGfx9, "ds_read_b32 v2, v1"}, {Isa::kGfx9, "ds_write_b32 v1, v4"}},
               {Isa::kGfx9, "s_waitcnt lgkmcnt(1)"}, {{Isa::kGfx9, "v_mov_b32_e32 v3, v2"}},
               "v2 is read before");
  expect_needs({{Isa::kGfx12, "ds_load_b32 v2, v1"}}, {Isa::kGfx12, "s_wait_dscnt 0x0"},
               {{Isa::kGfx12, "v_mov_b32_e32 v3, v2"}}, "v2 is read before");
}

TEST_F(Waiting, LdsBehindABarrier) {
  expect_needs({{Isa::kGfx11, "ds_store_b32 v1, v2"}}, {Isa::kGfx11, "s_waitcnt lgkmcnt(0)"},
               {{Isa::kGfx11, "s_barrier"}}, "before what this wave has written");
  expect_needs({{Isa::kGfx9, "ds_write_b32 v1, v2"}}, {Isa::kGfx9, "s_waitcnt lgkmcnt(0)"},
               {{Isa::kGfx9, "s_barrier"}}, "before what this wave has written");
  expect_needs({{Isa::kGfx12, "ds_store_b32 v1, v2"}}, {Isa::kGfx12, "s_wait_dscnt 0x0"},
               {{Isa::kGfx12, "s_barrier_signal -1"}, {Isa::kGfx12, "s_barrier_wait 0xffff"}},
               "before what this wave has written");
}

/// 16x16x16 has four passes, so seven wait states before others read its result, and CDNA has no
/// lock for them; s_nop n is n + 1.
TEST_F(Waiting, MatrixInstructions) {
  const Line product{Isa::kGfx9, "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], v[4:7]"};
  expect_needs({product, {Isa::kGfx9, "s_nop 5"}}, {Isa::kGfx9, "s_nop 0"},
               {{Isa::kGfx9, "v_add_f32_e32 v2, v7, v7"}}, "wait states after a matrix");
  expect_needs({product, {Isa::kGfx9, "s_nop 5"}}, {Isa::kGfx9, "s_nop 0"},
               {{Isa::kGfx9, "v_mov_b32_e32 v4, 0"}}, "written 1 more wait states after a matrix");
  expect_needs({product}, {Isa::kGfx9, "s_nop 6"},
               {{Isa::kGfx9, "global_store_dword v1, v4, s[0:1]"}}, "wait states after a matrix");
  // Sums go on in the accumulators at once, factors do not.
  EXPECT_TRUE(go({product, product, {Isa::kGfx9, "s_endpgm"}}));
  expect_needs({product}, {Isa::kGfx9, "s_nop 6"},
               {{Isa::kGfx9, "v_mfma_f32_16x16x16_f16 v[12:15], v[4:5], v[10:11], v[12:15]"}},
               "wait states after a matrix");
  expect_needs({{Isa::kGfx9, "v_mov_b32_e32 v8, 0"}}, {Isa::kGfx9, "s_nop 1"}, {product},
               "wait states after the VALU");
}

/// Of scalar loads and LDS in one counter, LDS alone has an order.
TEST_F(Waiting, ScalarLoadsBesideLds) {
  expect_needs({{Isa::kGfx11, "ds_load_b32 v2, v1"},
                {Isa::kGfx11, "s_load_b32 s4, s[0:1], 0x0"},
                {Isa::kGfx11, "s_waitcnt lgkmcnt(1)"}},
               {Isa::kGfx11, "s_waitcnt lgkmcnt(0)"}, {{Isa::kGfx11, "v_mov_b32_e32 v3, v2"}},
               "v2 is read before");
}

}  // namespace
}  // namespace bm::sim::amd::test
