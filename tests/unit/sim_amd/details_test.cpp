// What is easily taken for granted: modifiers, halves of registers, carries that saturate, steps of
// division, exact quarters of a turn. Expected values: the ISA guides' text; "cards" where a
// hardware test of others is named.

#include <cmath>
#include <random>

#include "runtime/base/half.h"
#include "tests/unit/sim_amd/one_wave.h"
#include "tests/unit/sim_amd/snippets.h"

namespace bm::sim::amd::test {
namespace {

constexpr uint32_t kLanes = 32;
uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
uint64_t bits(double x) { return std::bit_cast<uint64_t>(x); }
uint32_t halves(float low, float high) {
  return f32_to_f16(low) | uint32_t{f32_to_f16(high)} << 16;
}
/// v2 = (1, 2), v4 = (3, 5), v8 = (7, 9) as halves.
void fill_halves(OneWave& o) {
  for (uint32_t l = 0; l < kLanes; ++l)
    o.v(2, l) = halves(1, 2), o.v(4, l) = halves(3, 5), o.v(8, l) = halves(7, 9);
}
/// VOP3: v8 = op(v2, v4, v6), with bits 8 to 15 of the first word.
std::array<uint32_t, 2> long_form(uint32_t code, uint32_t modifiers, bool three = false) {
  return {0xd4000000 | code << 16 | modifiers << 8 | 8,
          258u | 260u << 9 | (three ? 262u << 18 : 0u)};
}

// ---- OP_SEL and registers by halves ----

TEST(Details, LongFormsOf16BitsHonorOpSel) {
  constexpr uint32_t kAddF16 = 0x132, kMulLoU16 = 0x305, kLtF16 = 0x001, kCvtF32F16 = 0x18b;
  for (uint32_t select = 0; select < 16; ++select) {
    SCOPED_TRACE(select);
    OneWave o(Isa::kGfx11);
    fill_halves(o);
    ASSERT_TRUE(o.step(long_form(kAddF16, select << 3)));
    ASSERT_FALSE(select & 4 && !o.wave.failed) << "there is no third source";
    if (select & 4) continue;
    const float sum = (select & 1 ? 2.0f : 1.0f) + (select & 2 ? 5.0f : 3.0f);
    EXPECT_EQ(o.v(8, 3), select & 8 ? halves(7, sum) : halves(sum, 9));
  }
  OneWave o(Isa::kGfx11);
  for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = 0x00030002, o.v(4, l) = 0x00070005;
  ASSERT_TRUE(o.step(long_form(kMulLoU16, 0xb << 3)));
  EXPECT_EQ(o.v(8, 1), 21u << 16);
  // Compares and conversions have no 16-bit destination: only sources count.
  fill_halves(o);
  o.v(4, 5) = halves(0, 1);
  ASSERT_TRUE(o.step({0xd4000000 | kLtF16 << 16 | 3 << 11 | 24, 258 | 260 << 9}));
  EXPECT_EQ(o.wave.s[24], ~0u & ~(1u << 5));
  auto convert = long_form(kCvtF32F16, 1 << 3);
  convert[1] = 258;
  ASSERT_TRUE(o.step(convert));
  EXPECT_EQ(o.v(8, 0), bits(2.0f));
  // A 32-bit destination has no halves.
  convert = long_form(kCvtF32F16, 8 << 3);
  convert[1] = 258;
  ASSERT_TRUE(o.step(convert));
  EXPECT_TRUE(o.wave.failed);
}

/// The assembly here is LLVM's with registers by halves.
TEST(Details, ShortFormsOf16BitsNameUpperHalves) {
  struct Case {
    Isa isa;
    const char* text;
    uint32_t expected;
  };
  const Case cases[] = {
      {Isa::kGfx11, "v_add_f16_e32 v8.h, v2.h, v4.l", halves(7, 5)},
      {Isa::kGfx11, "v_add_f16_e32 v8.l, v2.l, v4.h", halves(6, 9)},
      {Isa::kGfx12, "v_add_f16_e32 v8.h, v2.h, v4.h", halves(7, 7)},
      {Isa::kGfx11, "v_floor_f16_e32 v8.l, v4.h", halves(5, 9)},
      {Isa::kGfx12, "v_mov_b16_e32 v8.h, v2.l", halves(7, 1)},
      {Isa::kGfx11, "v_mov_b16_e32 v8.l, v2.h", halves(2, 9)},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    OneWave o(c.isa);
    fill_halves(o);
    ASSERT_TRUE(o.step(words_of(c.isa, c.text)));
    ASSERT_FALSE(o.wave.failed);
    EXPECT_EQ(o.v(8, 3), c.expected);
  }
  covers("v_mov_b16");
  // Those that this LLVM cannot spell yet, by their encoding (RDNA3 ISA guide, VOP2, VOPC):
  // v_fmac_f16 v8.h, v2.h, v4.h; v_fmamk_f16 v8.l, v2.l, 2.0, v4.h; v_cmp_lt_f16 vcc, v2.h, v4.l.
  OneWave o(Isa::kGfx11);
  fill_halves(o);
  ASSERT_TRUE(o.step({0x36u << 25 | (128 + 8) << 17 | (128 + 4) << 9 | 256 | (128 + 2)}));
  EXPECT_EQ(o.v(8, 3), halves(7, 2 * 5 + 9));
  fill_halves(o);
  ASSERT_TRUE(o.step({0x37u << 25 | 8 << 17 | (128 + 4) << 9 | 258, f32_to_f16(2.0f)}));
  EXPECT_EQ(o.v(8, 3), halves(1 * 2 + 5, 9));
  ASSERT_TRUE(o.step({0x7c000000 | 1 << 17 | 4 << 9 | 256 | (128 + 2)}));
  EXPECT_EQ(o.wave.s[kVccLo], ~0u);
}

// ---- carries ----

TEST(Details, ClampedCarriesSaturateAndAreGiven) {
  const auto run = [](std::span<const uint32_t> words, uint32_t a, uint32_t b, uint32_t carry_in,
                      uint32_t value, uint32_t carry_out) {
    SCOPED_TRACE(testing::Message() << std::hex << words[0]);
    OneWave o(Isa::kGfx11);
    for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = a, o.v(4, l) = b;
    o.wave.s[24] = carry_in;
    ASSERT_TRUE(o.step(words));
    ASSERT_FALSE(o.wave.failed);
    EXPECT_EQ(o.v(8, 0), value);
    EXPECT_EQ(o.wave.s[26], carry_out);
  };
  const auto add = words_of(Isa::kGfx11, "v_add_co_u32 v8, s26, v2, v4 clamp");
  const auto sub = words_of(Isa::kGfx11, "v_sub_co_u32 v8, s26, v2, v4 clamp");
  const auto reverse = words_of(Isa::kGfx11, "v_subrev_co_u32 v8, s26, v2, v4 clamp");
  const auto add_carry = words_of(Isa::kGfx11, "v_add_co_ci_u32_e64 v8, s26, v2, v4, s24 clamp");
  const auto sub_carry = words_of(Isa::kGfx11, "v_sub_co_ci_u32_e64 v8, s26, v2, v4, s24 clamp");
  run(add, 0xfffffff0, 0x20, 0, ~0u, ~0u);
  run(add, 0xfffffff0, 0xf, 0, ~0u, 0);
  run(sub, 3, 5, 0, 0, ~0u);
  run(sub, 5, 3, 0, 2, 0);
  run(reverse, 5, 3, 0, 0, ~0u);
  run(add_carry, ~0u, 0, ~0u, ~0u, ~0u);
  run(add_carry, ~0u - 1, 0, ~0u, ~0u, 0);
  run(sub_carry, 5, 5, ~0u, 0, ~0u);
  run(sub_carry, 6, 5, ~0u, 0, 0);
}

// ---- division ----

/// V_DIV_SCALE on cards: tinygrad, extra/assembly/amd/test/hw/test_vop3.py, TestDivScale (gfx1100).
TEST(Details, DivisionScalesAsCardsDo) {
  struct Case {
    std::span<const uint32_t> words;
    float denominator, numerator;
    bool is_nan;
    float result;
    bool vcc;
  };
  const auto top = words_of(Isa::kGfx11, "v_div_scale_f32 v8, vcc_lo, v2, v4, v2");
  const auto bottom = words_of(Isa::kGfx11, "v_div_scale_f32 v8, vcc_lo, v4, v4, v2");
  const Case cases[] = {
      {top, 4, 1, false, 1, false},
      {top, 0, 1, true, 0, true},
      {top, 1, 0, true, 0, true},
      {bottom, 1, 0x1.fffffep127f, false, 0x1p64f, true},
      {top, 1, 0x1p-126f, false, 0x1p-62f, true},
      {bottom, 1, 0x1p-126f, false, 1, true},
      {top, 0x1p127f, 1, false, 1, true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.numerator << " / " << c.denominator);
    OneWave o(Isa::kGfx11);
    for (uint32_t l = 0; l < kLanes; ++l)
      o.v(2, l) = bits(c.numerator), o.v(4, l) = bits(c.denominator);
    ASSERT_TRUE(o.step(c.words));
    if (c.is_nan)
      EXPECT_TRUE(std::isnan(std::bit_cast<float>(o.v(8, 0))));
    else
      EXPECT_EQ(o.v(8, 0), bits(c.result));
    EXPECT_EQ(o.wave.s[kVccLo], c.vcc ? ~0u : 0u);
  }
  // The same for binary64, where zeros are concerned.
  OneWave o(Isa::kGfx11);
  for (uint32_t l = 0; l < kLanes; ++l) o.put(2, l, bits(5.0)), o.put(4, l, bits(l ? 3.0 : 0.0));
  ASSERT_TRUE(
      o.step(words_of(Isa::kGfx11, "v_div_scale_f64 v[8:9], vcc_lo, v[4:5], v[4:5], v[2:3]")));
  EXPECT_EQ(o.wave.s[kVccLo], 1u);
}

/// "exponent(S2) > 127" scales up: [1, 2) scales down. On cards: TestDivFmas of the same file.
TEST(Details, DivisionScalesBackByTheExponentOfTheAddend) {
  struct Case {
    float a, b, c, result;
  };
  const Case cases[] = {{1, 1, 2, 3 * 0x1p64f},
                        {2, 3, 1, 7 * 0x1p-64f},
                        {2, 3, 1.5f, 7.5f * 0x1p-64f},
                        {2, 3, 0.5f, 6.5f * 0x1p-64f}};
  for (const Case& c : cases) {
    OneWave o(Isa::kGfx11);
    o.wave.s[kVccLo] = 1;
    for (uint32_t l = 0; l < kLanes; ++l)
      o.v(2, l) = bits(c.a), o.v(4, l) = bits(c.b), o.v(6, l) = bits(c.c);
    ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_div_fmas_f32 v8, v2, v4, v6")));
    EXPECT_EQ(o.v(8, 0), bits(c.result)) << c.c;
    EXPECT_EQ(o.v(8, 1), bits(std::fma(c.a, c.b, c.c))) << c.c;
  }
  OneWave o(Isa::kGfx11);
  o.wave.s[kVccLo] = ~0u;
  for (uint32_t l = 0; l < kLanes; ++l)
    o.put(2, l, bits(2.0)), o.put(4, l, bits(3.0)), o.put(6, l, bits(l ? 2.0 : 1.0));
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_div_fmas_f64 v[8:9], v[2:3], v[4:5], v[6:7]")));
  EXPECT_EQ(o.get(8, 0), bits(7 * 0x1p-128));
  EXPECT_EQ(o.get(8, 1), bits(8 * 0x1p128));
}

// ---- lanes, functions, caches ----

TEST(Details, PermuteOf64LanesDoesNothingInAWaveOf32) {
  OneWave o(Isa::kGfx11);
  for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = l, o.v(8, l) = 1000 + l;
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_permlane64_b32 v8, v2")));
  for (uint32_t l = 0; l < kLanes; ++l) EXPECT_EQ(o.v(8, l), 1000 + l);
  OneWave wide(Isa::kGfx11, 64);
  for (uint32_t l = 0; l < 64; ++l) wide.v(2, l) = l;
  ASSERT_TRUE(wide.step(words_of(Isa::kGfx11, "v_permlane64_b32 v8, v2")));
  for (uint32_t l = 0; l < 64; ++l) EXPECT_EQ(wide.v(8, l), l ^ 32);
  covers("v_permlane64_b32");
}

TEST(Details, QuartersOfATurnAreExact) {
  constexpr float kSin[] = {0, 1, 0, -1}, kCos[] = {1, 0, -1, 0};
  OneWave o(Isa::kGfx11);
  for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = bits(static_cast<float>(l) / 4 - 4);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_sin_f32_e32 v8, v2")));
  for (uint32_t l = 0; l < kLanes; ++l)
    EXPECT_EQ(std::bit_cast<float>(o.v(8, l)), kSin[l % 4]) << l;
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_cos_f32_e32 v8, v2")));
  for (uint32_t l = 0; l < kLanes; ++l)
    EXPECT_EQ(std::bit_cast<float>(o.v(8, l)), kCos[l % 4]) << l;
  for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = f32_to_f16(static_cast<float>(l) / 4 - 4);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_cos_f16_e32 v8, v2")));
  for (uint32_t l = 0; l < kLanes; ++l)
    EXPECT_EQ(f16_to_f32(static_cast<uint16_t>(o.v(8, l))), kCos[l % 4]) << l;
}

TEST(Details, ScalarCachesAreInvalidated) {
  OneWave o(Isa::kGfx11);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "s_gl1_inv")));
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "s_dcache_inv")));
  EXPECT_FALSE(o.wave.failed);
  covers("s_gl1_inv");
}

/// Fields that name no operand are no reason to stop: hardware passes them over.
TEST(Details, LdsInstructionsMayHaveAnyUnusedField) {
  OneWave o(Isa::kGfx11);
  for (uint32_t l = 0; l < kLanes; ++l) o.v(1, l) = l * 4, o.v(2, l) = 77 + l, o.v(9, l) = 5;
  auto store = words_of(Isa::kGfx11, "ds_store_b32 v1, v2");
  ASSERT_TRUE(o.step({store[0], store[1] | 9u << 24 | 3u << 16}));
  EXPECT_EQ(o.v(9, 0), 5u);
  auto load = words_of(Isa::kGfx11, "ds_load_b32 v2, v1");
  ASSERT_TRUE(o.step({load[0], load[1] | 7u << 8}));
  EXPECT_EQ(o.v(2, 9), 86u);
}

TEST(Details, SumsOfDistancesSaturateWhenClamped) {
  OneWave o(Isa::kGfx11);
  for (uint32_t l = 0; l < kLanes; ++l)
    o.v(2, l) = 0x00ff1020, o.v(4, l) = 0xff000000, o.v(6, l) = l ? 0xffffffff : 1;
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_sad_u8 v8, v2, v4, v6 clamp")));
  EXPECT_EQ(o.v(8, 0), 255u + 255 + 0x10 + 0x20 + 1);
  EXPECT_EQ(o.v(8, 1), 0xffffffffu);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_msad_u8 v8, v2, v4, v6")));
  EXPECT_EQ(o.v(8, 0), 255u + 1);  // bytes whose reference is 0 do not count
  for (uint32_t l = 0; l < kLanes; ++l) {
    o.put(2, l, 0x0807060504030201);
    o.v(4, l) = 0x01010001;
    for (uint32_t i = 0; i < 4; ++i) o.v(16 + i, l) = i;
  }
  // Windows 04030201, 05040302 …; masked: the second byte of the reference is 0.
  ASSERT_TRUE(o.step(words_of(Isa::kGfx11, "v_mqsad_u32_u8 v[8:11], v[2:3], v4, v[16:19]")));
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(o.v(8 + i, 0), 0u + 2 + 3 + 3 * i + i);
  covers("v_mqsad_u32_u8");
}

TEST(Details, OutputModifiersNeedTheirMode) {
  // (MODE, product by 4): denormals flushed and no IEEE mode, else nothing. RDNA4 has no IEEE mode.
  const auto on11 = words_of(Isa::kGfx11, "v_mul_f32_e64 v8, v2, v4 mul:4");
  const auto on12 = words_of(Isa::kGfx12, "v_mul_f32_e64 v8, v2, v4 mul:4");
  const auto run = [&](Isa isa, uint32_t mode) {
    OneWave o(isa);
    o.wave.mode = mode;
    for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = bits(3.0f), o.v(4, l) = bits(5.0f);
    EXPECT_TRUE(o.step(isa == Isa::kGfx12 ? on12 : on11));
    return std::bit_cast<float>(o.v(8, 0));
  };
  EXPECT_EQ(run(Isa::kGfx11, 0), 60);
  EXPECT_EQ(run(Isa::kGfx11, 0xf0), 15);
  EXPECT_EQ(run(Isa::kGfx11, 1u << 9), 15);
  EXPECT_EQ(run(Isa::kGfx12, 0), 60);
  EXPECT_EQ(run(Isa::kGfx12, 0xf0), 15);
}

/// RDNA2: clocks, NULL and M0 with their numbers changed, work-item ids apart.
TEST(Details, Rdna2HasItsOwnNumbers) {
  OneWave o(Isa::kGfx10);
  o.wave.steps = 77;
  ASSERT_TRUE(o.step(words_of(Isa::kGfx10, "s_memtime s[8:9]")));
  EXPECT_EQ(o.wave.read64(8, 0, false), 77u);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx10, "s_memrealtime s[10:11]")));
  EXPECT_EQ(o.wave.s[10], 77u);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx10, "s_mov_b32 m0, s8")));
  EXPECT_EQ(o.wave.s[kM0], 77u);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx10, "s_mov_b32 null, s8")));
  EXPECT_EQ(o.wave.read32(kNull, 0, '1'), 0u);
  for (uint32_t l = 0; l < kLanes; ++l)
    o.v(2, l) = 0x80ff7f01, o.v(4, l) = 0x02030405, o.v(8, l) = 1000;
  // Bytes of sources, zero and sign extended; the rest of the destination stays.
  ASSERT_TRUE(
      o.step(words_of(Isa::kGfx10,
                      "v_add_nc_u32_sdwa v8, v2, v4 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE "
                      "src0_sel:BYTE_1 src1_sel:WORD_0")));
  EXPECT_EQ(o.v(8, 0), 1000u | (0x7fu + 0x0405) << 16);
  ASSERT_TRUE(o.step(words_of(Isa::kGfx10,
                              "v_mov_b32_sdwa v8, sext(v2) dst_sel:BYTE_1 dst_unused:UNUSED_SEXT "
                              "src0_sel:BYTE_3")));
  EXPECT_EQ(o.v(8, 0), 0xffff8000u);
  ASSERT_TRUE(o.step(
      words_of(Isa::kGfx10, "v_cmp_eq_u32_sdwa s24, v4, v4 src0_sel:BYTE_0 src1_sel:BYTE_0")));
  EXPECT_EQ(o.wave.s[24], ~0u);
  ASSERT_FALSE(o.wave.failed);
  covers("s_memtime");
  covers("s_memrealtime");
}

// ---- nothing is ignored ----

struct Variant {
  std::vector<uint32_t> plain, changed;
  const char* what;
};

/// What makes no difference by its meaning: signs of what only an exponent is asked of.
bool is_without_effect(std::string_view name, std::string_view what) {
  const bool sign = what.starts_with("NEG") || what.starts_with("ABS");
  const auto is = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (is("_cmp_f_") || is("_cmp_t_") || is("_cmp_tru_") || is("_cmpx_f_") || is("_cmpx_t_") ||
      is("_cmpx_tru_"))
    return true;
  // Results that always fit, and bytes that must be equal to a whole register.
  if (what == "CLAMP" && (is("v_fract_") || is("trig_preop") || is("v_pk_lshrrev") ||
                          is("v_pk_ashrrev") || is("v_pk_max_") || is("v_pk_min_")))
    return true;
  if (what.starts_with("SEXT") && (is("_eq_") || is("_ne_"))) return true;
  // The sign of a byte does not reach what is looked at.
  if (what == "SEXT0" &&
      (is("rev_b32") || is("rev_i32") || is("ubyte0") || is("off_f32_i4") || is("ffbl")))
    return true;
  return sign &&
         (is("frexp_exp") || is("v_cos_") || is("div_scale") || is("div_fixup") ||
          is("trig_preop") || is("_cmp_o_") || is("_cmp_u_") || is("_cmpx_o_") || is("_cmpx_u_"));
}

uint32_t operand_of(const OpcodeRow& r, uint32_t slot, uint32_t reg) {
  if (r.operands.size() < 2 * slot + 2 || r.operands[2 * slot] == '-') return 0;
  return class_allows(r.operands[2 * slot], 256 + reg) ? 256 + reg : reg;
}

std::vector<Variant> variants(const OpcodeRow& r) {
  std::vector<Variant> all;
  constexpr uint32_t kDst = 8, kA = 16, kB = 24, kC = 32;
  if (r.format == Format::kVop3 || r.format == Format::kVop3P) {
    uint64_t word =
        (r.format == Format::kVop3 ? 0xd4000000u : 0xcc000000u) | uint32_t{r.code} << 16 | kDst;
    word |= uint64_t{operand_of(r, 1, kA)} << 32 | uint64_t{operand_of(r, 2, kB)} << 41 |
            uint64_t{operand_of(r, 3, kC)} << 50;
    constexpr const char* kShort[] = {"ABS0",    "ABS1",    "ABS2",  "OP_SEL0", "OP_SEL1",
                                      "OP_SEL2", "OP_SEL3", "CLAMP", "OMOD",    "OMOD",
                                      "NEG0",    "NEG1",    "NEG2"};
    for (uint32_t i = 0; i < 13; ++i) {
      const uint32_t bit = i < 8 ? 8 + i : 59 + (i - 8);
      if (r.bits[0] == 'S' && i < 7) continue;
      if (r.bits[i] == '1') word |= uint64_t{1} << bit;
    }
    if (r.bits[0] == 'S') word |= 40u << 8;
    if (r.format == Format::kVop3P) word |= uint64_t{1} << 14 | uint64_t{3} << 59;
    for (uint32_t i = 0; i < 13; ++i) {
      const uint32_t bit = i < 8 ? 8 + i : 59 + (i - 8);
      if (r.bits[i] == '1' || (r.bits[0] == 'S' && i < 7)) continue;
      // OP_SEL_HI, which is set where nobody says otherwise: of a source that is not there, or
      // where it means nothing.
      const bool is_high = r.format == Format::kVop3P && (i == 6 || i == 8 || i == 9);
      if (is_high && (r.bits[i] == '.' || (i == 6 && !operand_of(r, 3, kC)))) continue;
      const uint64_t other = word ^ uint64_t { 1 } << bit;
      all.push_back({{static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)},
                     {static_cast<uint32_t>(other), static_cast<uint32_t>(other >> 32)},
                     kShort[i]});
    }
    return all;
  }
  if (r.bits.size() < 5) return all;
  const uint32_t head = r.format == Format::kVop1 ? 0x7e000000 | kDst << 17 | uint32_t{r.code} << 9
                        : r.format == Format::kVop2 ? uint32_t{r.code} << 25 | kDst << 17 | kB << 9
                                                    : 0x7c000000 | uint32_t{r.code} << 17 | kB << 9;
  const uint32_t plain = head | (256 + kA);
  if (r.bits[0] == 'd') {
    const uint32_t dpp = kA | 0x140 << 8 | 0xffu << 24;  // row_mirror
    all.push_back({{plain}, {head | 250, dpp}, "DPP"});
    all.push_back({{plain}, {head | 233, kA | 0x053977u << 8}, "DPP8"});
    constexpr const char* kSigns[] = {"NEG0", "ABS0", "NEG1", "ABS1"};
    const uint32_t same = kA | 0xe4 << 8 | 0xffu << 24;  // every lane its own
    for (uint32_t i = 0; i < 4; ++i)
      all.push_back({{head | 250, same}, {head | 250, same | 1u << (20 + i)}, kSigns[i]});
  }
  if (r.bits.size() > 5) {  // SDWA
    const bool compares = r.format == Format::kVopc, two = r.format != Format::kVop1;
    const uint32_t whole = kA | 6u << 16 | (two ? 6u << 24 : 0) | (compares ? 0 : 6u << 8);
    const auto add = [&](uint32_t from, uint32_t to, const char* what) {
      all.push_back({{head | 249, from}, {head | 249, to}, what});
    };
    add(whole, (whole & ~(7u << 16)) | 1u << 16, "SRC0_SEL");
    add((whole & ~(7u << 16)) | 3u << 16, (whole & ~(7u << 16)) | 11u << 16, "SEXT0");
    add(whole, whole | 1u << 20, "NEG0");
    add(whole, whole | 1u << 21, "ABS0");
    if (two) {
      add(whole, (whole & ~(7u << 24)) | 5u << 24, "SRC1_SEL");
      add((whole & ~(7u << 24)) | 1u << 24, (whole & ~(7u << 24)) | 9u << 24, "SEXT1");
      add(whole, whole | 1u << 28, "NEG1");
      add(whole, whole | 1u << 29, "ABS1");
    }
    if (!compares) {
      const uint32_t upper = (whole & ~(7u << 8)) | 5u << 8;
      add(whole, upper, "DST_SEL");
      add(upper, upper | 2u << 11, "DST_UNUSED");
      add(whole, whole | 1u << 13, "CLAMP");
      add(whole, whole | 1u << 14, "OMOD");
    }
  }
  return all;
}

/// Any bits, ordinary floats, ordinary halves, small integers, side by side; v24 and up are often
/// v16 and up with other signs or other halves, so that compares see equal values, too.
void fill(OneWave& o, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> around(-2, 2);
  const auto value = [&]() -> uint32_t {
    switch (random() % 8) {
      case 0: return static_cast<uint32_t>(random());
      case 1: return bits(around(random));
      case 2: return halves(around(random), around(random));
      case 3: return random() & 0x00ff00ff;
      case 4: return seed % 4 ? bits(1.5f) : 0x7fc07e00;  // not a number, in any width
      case 5: return 0x7ffffff0 | (random() & 15);
      case 6: return 0xfffffff0 | (random() & 15);
      default: return random() % 4;
    }
  };
  for (uint32_t& x : o.wave.v) x = value();
  for (uint32_t i = 0; i < 100; ++i) o.wave.s[i] = value();
  if (seed % 2)  // doubles
    for (uint32_t r = 1; r < 64; r += 2)
      for (uint32_t l = 0; l < kLanes; ++l) o.v(r, l) = (o.v(r, l) & 0x800fffff) | 0x3ff00000;
  for (uint32_t r = 16; r < 24 && seed % 4 >= 2; ++r)
    for (uint32_t l = 0; l < kLanes; ++l) {
      const uint32_t a = o.v(r, l);
      const uint32_t like[] = {a, a ^ 0x80008000, a >> 16 | a << 16, (a & 0xffff) * 0x10001};
      o.v(r + 8, l) = like[l % 4];
    }
  o.wave.s[kVccLo] = static_cast<uint32_t>(random());
  o.wave.s[kExecLo] = seed % 3 ? ~0u : static_cast<uint32_t>(random());
  o.wave.scc = false;
  o.wave.failed = false;
  o.wave.mode = 0;  // output modifiers are on
}

class EveryModifier : public testing::TestWithParam<const char*> {};

/// A modifier changes what comes out, or the instruction is refused.
TEST_P(EveryModifier, CountsOrIsRefused) {
  const auto isa = isa_of(GetParam());
  ASSERT_TRUE(isa);
  uint32_t counted = 0, refused = 0;
  std::string ignored;
  for (const OpcodeRow& r : opcode_rows()) {
    if (!r.in(*isa)) continue;
    if (r.format != Format::kVop1 && r.format != Format::kVop2 && r.format != Format::kVopc &&
        r.format != Format::kVop3 && r.format != Format::kVop3P)
      continue;
    OneWave a(*isa), b(*isa);
    for (const Variant& v : variants(r)) {
      if (!decode(v.plain, *isa) || !decode(v.changed, *isa)) continue;
      if (is_without_effect(r.name, v.what)) continue;
      bool differs = false, is_refused = false;
      for (uint32_t trial = 0; trial < 16 && !differs && !is_refused; ++trial) {
        fill(a, trial);
        fill(b, trial);
        if (!a.step(v.plain) || a.wave.failed) continue;
        is_refused = !b.step(v.changed) || b.wave.failed;
        differs = a.wave.v != b.wave.v || a.wave.scc != b.wave.scc ||
                  !std::equal(std::begin(a.wave.s), std::end(a.wave.s), std::begin(b.wave.s));
      }
      counted += differs && !is_refused;
      refused += is_refused;
      if (!differs && !is_refused)
        ignored += std::string("\n  ") + std::string(format_name(r.format)) + " " +
                   std::string(r.name) + " " + v.what;
    }
  }
  EXPECT_EQ(ignored, "");
  EXPECT_GT(counted, 300u);
  RecordProperty("counted", static_cast<int>(counted));
  RecordProperty("refused", static_cast<int>(refused));
}
INSTANTIATE_TEST_SUITE_P(Chips, EveryModifier,
                         testing::Values("gfx1030", "gfx1100", "gfx1150", "gfx1201"));

}  // namespace
}  // namespace bm::sim::amd::test
