// What CDNA3 has and RDNA has not: matrices in AccVGPRs, pairs of floats, lanes over a whole wave
// of 64, and where the two differ under one name.

#include <cmath>
#include <functional>
#include <random>
#include <string>

#include "runtime/base/half.h"
#include "tests/unit/sim_amd/one_wave.h"
#include "tests/unit/sim_amd/snippets.h"

namespace bm::sim::amd::test {
namespace {

constexpr uint32_t kLanes = 64;

std::string_view name_of(std::string_view text) {
  std::string_view name = text.substr(0, text.find(' '));
  for (const std::string_view suffix : {"_e32", "_e64", "_dpp"})
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  return name;
}

// ---- matrices ----
struct Mfma {
  Isa isa;
  const char* text;
  char in;  ///< 'h' half, 'b' bfloat, '8' integers, 'f' float, 'd' double
  uint32_t side, depth, blocks;
};
constexpr Mfma kMfmas[] = {
    {Isa::kGfx9, "v_mfma_f32_32x32x4_2b_f16 a[0:31], v[2:3], v[4:5], a[32:63]", 'h', 32, 4, 2},
    {Isa::kGfx9, "v_mfma_f32_16x16x4_4b_f16 a[0:15], v[2:3], v[4:5], a[32:47]", 'h', 16, 4, 4},
    {Isa::kGfx9, "v_mfma_f32_4x4x4_16b_f16 a[0:3], v[2:3], v[4:5], a[32:35]", 'h', 4, 4, 16},
    {Isa::kGfx9, "v_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[4:5], a[32:47]", 'h', 32, 8, 1},
    {Isa::kGfx9, "v_mfma_f32_16x16x16_f16 a[0:3], v[2:3], v[4:5], a[32:35]", 'h', 16, 16, 1},
    {Isa::kGfx9, "v_mfma_f32_32x32x4_2b_bf16 a[0:31], v[2:3], v[4:5], a[32:63]", 'b', 32, 4, 2},
    {Isa::kGfx9, "v_mfma_f32_16x16x4_4b_bf16 a[0:15], v[2:3], v[4:5], a[32:47]", 'b', 16, 4, 4},
    {Isa::kGfx9, "v_mfma_f32_4x4x4_16b_bf16 a[0:3], v[2:3], v[4:5], a[32:35]", 'b', 4, 4, 16},
    {Isa::kGfx9, "v_mfma_f32_32x32x8_bf16 a[0:15], v[2:3], v[4:5], a[32:47]", 'b', 32, 8, 1},
    {Isa::kGfx9, "v_mfma_f32_16x16x16_bf16 a[0:3], v[2:3], v[4:5], a[32:35]", 'b', 16, 16, 1},
    {Isa::kGfx9, "v_mfma_i32_32x32x4_2b_i8 a[0:31], v2, v4, a[32:63]", '8', 32, 4, 2},
    {Isa::kGfx9, "v_mfma_i32_16x16x4_4b_i8 a[0:15], v2, v4, a[32:47]", '8', 16, 4, 4},
    {Isa::kGfx9, "v_mfma_i32_4x4x4_16b_i8 a[0:3], v2, v4, a[32:35]", '8', 4, 4, 16},
    {Isa::kGfx9, "v_mfma_i32_32x32x16_i8 a[0:15], v[2:3], v[4:5], a[32:47]", '8', 32, 16, 1},
    {Isa::kGfx9, "v_mfma_i32_16x16x32_i8 a[0:3], v[2:3], v[4:5], a[32:35]", '8', 16, 32, 1},
    {Isa::kGfx9, "v_mfma_f32_32x32x1_2b_f32 a[0:31], v2, v4, a[32:63]", 'f', 32, 1, 2},
    {Isa::kGfx9, "v_mfma_f32_16x16x1_4b_f32 a[0:15], v2, v4, a[32:47]", 'f', 16, 1, 4},
    {Isa::kGfx9, "v_mfma_f32_4x4x1_16b_f32 a[0:3], v2, v4, a[32:35]", 'f', 4, 1, 16},
    {Isa::kGfx9, "v_mfma_f32_32x32x2_f32 a[0:15], v2, v4, a[32:47]", 'f', 32, 2, 1},
    {Isa::kGfx9, "v_mfma_f32_16x16x4_f32 a[0:3], v2, v4, a[32:35]", 'f', 16, 4, 1},
    {Isa::kGfx9, "v_mfma_f64_16x16x4_f64 a[0:7], v[2:3], v[4:5], a[32:39]", 'd', 16, 4, 1},
    {Isa::kGfx9, "v_mfma_f64_4x4x4_4b_f64 a[0:1], v[2:3], v[4:5], a[32:33]", 'd', 4, 4, 4},
};
constexpr uint32_t kAcc = kAccVgpr - kVgpr;

/// Where an element is: `at` counts elements in a lane. As AMD's Matrix Instruction Calculator
/// says.
struct Cell {
  uint32_t lane, at;
};
Cell input(const Mfma& m, uint32_t line, uint32_t k, uint32_t block) {
  const uint32_t parts = kLanes / (m.side * m.blocks), each = m.depth / parts;
  return {line + m.side * (block + m.blocks * (k / each)), k % each};
}
Cell result(const Mfma& m, uint32_t row, uint32_t column, uint32_t block) {
  if (m.in == 'd' && m.side == 16) return {column + 16 * (row % 4), row / 4};
  if (m.in == 'd') return {column + 4 * block + 16 * row, 0};
  if (m.side == 4) return {column + 4 * block, row};
  if (m.side == 16) return {column + 16 * (row / 4), row % 4 + 4 * block};
  return {column + 32 * (row / 4 % 2), row % 4 + 4 * (row / 8) + 16 * block};
}

uint64_t encode(char kind, int v) {
  const auto f = static_cast<float>(v);
  switch (kind) {
    case 'h': return f32_to_f16(f);
    case 'b': return f32_to_bf16(f);
    case '8': return static_cast<uint8_t>(v);
    case 'f': return std::bit_cast<uint32_t>(f);
    default: return std::bit_cast<uint64_t>(static_cast<double>(v));
  }
}
uint32_t bits_of(char kind) { return kind == 'd' ? 64 : kind == 'f' ? 32 : kind == '8' ? 8 : 16; }
/// Sets bits of element `at` of the registers from `reg` on.
void put(OneWave& o, uint32_t reg, Cell cell, uint32_t bits, uint64_t value) {
  const uint32_t first = cell.at * bits;
  o.v(reg + first / 32, cell.lane) |= static_cast<uint32_t>(value << (first % 32));
  if (bits == 64) o.v(reg + first / 32 + 1, cell.lane) |= static_cast<uint32_t>(value >> 32);
}

TEST(Cdna, EveryMfmaIsAProductOfMatrices) {
  std::mt19937 random(11);
  const auto number = [&] { return static_cast<int>(random() % 9) - 4; };
  for (const Mfma& m : kMfmas) {
    SCOPED_TRACE(m.text);
    OneWave o(m.isa);
    o.wave.s[kExecLo] = 5;  // EXEC is not asked
    o.wave.s[kExecLo + 1] = 0;
    const uint32_t sum_bits = m.in == 'd' ? 64 : 32;
    const auto of_sum = [&](int v) {
      return m.in == '8' ? static_cast<uint32_t>(v) : encode(m.in == 'd' ? 'd' : 'f', v);
    };
    std::vector<int> a(m.blocks * m.side * m.depth), b(a.size()), sum;
    for (uint32_t block = 0; block < m.blocks; ++block)
      for (uint32_t line = 0; line < m.side; ++line)
        for (uint32_t k = 0; k < m.depth; ++k) {
          const uint32_t i = (block * m.side + line) * m.depth + k;
          put(o, 2, input(m, line, k, block), bits_of(m.in), encode(m.in, a[i] = number()));
          put(o, 4, input(m, line, k, block), bits_of(m.in), encode(m.in, b[i] = number()));
        }
    for (uint32_t block = 0; block < m.blocks; ++block)
      for (uint32_t row = 0; row < m.side; ++row)
        for (uint32_t column = 0; column < m.side; ++column) {
          int v = number();
          put(o, kAcc + 32, result(m, row, column, block), sum_bits, of_sum(v));
          for (uint32_t k = 0; k < m.depth; ++k)
            v += a[(block * m.side + row) * m.depth + k] *
                 b[(block * m.side + column) * m.depth + k];
          sum.push_back(v);
        }
    ASSERT_TRUE(o.step(words_of(m.isa, m.text)));
    ASSERT_FALSE(o.wave.failed);
    size_t i = 0;
    for (uint32_t block = 0; block < m.blocks; ++block)
      for (uint32_t row = 0; row < m.side; ++row)
        for (uint32_t column = 0; column < m.side; ++column) {
          const Cell at = result(m, row, column, block);
          const uint64_t got =
              m.in == 'd' ? o.get(kAcc + 2 * at.at, at.lane) : o.v(kAcc + at.at, at.lane);
          ASSERT_EQ(got, of_sum(sum[i++])) << block << ", " << row << ", " << column;
        }
    covers(name_of(m.text));
  }
}

TEST(Cdna, BroadcastOfMatrixOperandsIsRefused) {
  for (const char* text : {Mfma{Isa::kGfx9,
                                "v_mfma_f32_4x4x4_16b_f16 v[8:11], v[2:3], v[4:5], v[16:19] cbsz:1",
                                {},
                                {},
                                {},
                                {}}
                               .text,
                           Mfma{Isa::kGfx9,
                                "v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[4:5], v[16:19] blgp:1",
                                {},
                                {},
                                {},
                                {}}
                               .text}) {
    OneWave o(Isa::kGfx9);
    ASSERT_TRUE(o.step(words_of(Isa::kGfx9, text)));
    EXPECT_TRUE(o.wave.failed) << text;
    EXPECT_EQ(o.wave.fault.kind, Fault::Kind::kIllegalOpcode);
  }
}

TEST(Cdna, SignsOfDoubleProducts) {
  OneWave o(Isa::kGfx9);
  for (uint32_t l = 0; l < kLanes; ++l) {
    o.put(2, l, encode('d', 2));
    o.put(4, l, encode('d', 3));
    o.put(6, l, encode('d', 5));
  }
  ASSERT_TRUE(o.step(
      words_of(Isa::kGfx9, "v_mfma_f64_4x4x4_4b_f64 v[8:9], v[2:3], v[4:5], v[6:7] neg:[1,0,1]")));
  ASSERT_FALSE(o.wave.failed);
  EXPECT_EQ(o.get(8, 17), encode('d', -4 * 6 - 5));
}

// ---- one instruction, v8 of every lane ----
struct Single {
  Isa isa;
  const char* text;
  std::function<uint32_t(uint32_t)> expected;
  std::function<uint32_t(uint32_t)> next = {};  ///< v9
};
uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
float a(uint32_t l) { return static_cast<float>(l) + 0.5f; }
float b(uint32_t l) { return 3 - static_cast<float>(l); }

TEST(Cdna, PairsOfFloats) {
  const Single kCases[] = {
      {Isa::kGfx9, "v_pk_add_f32 v[8:9], v[2:3], v[4:5]",
       [](uint32_t l) { return bits(a(l) + b(l)); },
       [](uint32_t l) { return bits(a(l + 100) + b(l + 100)); }},
      {Isa::kGfx9, "v_pk_mul_f32 v[8:9], v[2:3], v[4:5] op_sel:[1,0] op_sel_hi:[0,1]",
       [](uint32_t l) { return bits(a(l + 100) * b(l)); },
       [](uint32_t l) { return bits(a(l) * b(l + 100)); }},
      {Isa::kGfx9, "v_pk_fma_f32 v[8:9], v[2:3], v[4:5], v[2:3] neg_lo:[0,0,1] neg_hi:[1,0,0]",
       [](uint32_t l) { return bits(std::fma(a(l), b(l), -a(l))); },
       [](uint32_t l) { return bits(std::fma(-a(l + 100), b(l + 100), a(l + 100))); }},
      {Isa::kGfx9, "v_pk_mul_f32 v[8:9], v[2:3], 2.0 op_sel_hi:[1,0]",
       [](uint32_t l) { return bits(a(l) * 2); }, [](uint32_t l) { return bits(a(l + 100) * 2); }},
      {Isa::kGfx9, "v_pk_mul_f32 v[8:9], v[2:3], s[8:9] op_sel_hi:[1,0]",
       [](uint32_t l) { return bits(a(l) * 7); }, [](uint32_t l) { return bits(a(l + 100) * 7); }},
      {Isa::kGfx9, "v_pk_mov_b32 v[8:9], v[2:3], v[4:5] op_sel:[0,1]",
       [](uint32_t l) { return bits(a(l)); }, [](uint32_t l) { return bits(b(l + 100)); }},
      {Isa::kGfx9, "v_pk_mov_b32 v[8:9], v[2:3], v[4:5] op_sel:[1,0]",
       [](uint32_t l) { return bits(a(l + 100)); }, [](uint32_t l) { return bits(b(l)); }},
  };
  for (const Single& c : kCases) {
    SCOPED_TRACE(c.text);
    OneWave o(c.isa);
    o.wave.s[8] = bits(7), o.wave.s[9] = bits(11);
    for (uint32_t l = 0; l < kLanes; ++l) {
      o.v(2, l) = bits(a(l)), o.v(3, l) = bits(a(l + 100));
      o.v(4, l) = bits(b(l)), o.v(5, l) = bits(b(l + 100));
    }
    ASSERT_TRUE(o.step(words_of(c.isa, c.text)));
    ASSERT_FALSE(o.wave.failed);
    for (uint32_t l = 0; l < kLanes; ++l) {
      EXPECT_EQ(o.v(8, l), c.expected(l)) << "lane " << l;
      EXPECT_EQ(o.v(9, l), c.next(l)) << "lane " << l;
    }
    covers(name_of(c.text));
  }
}

TEST(Cdna, LanesMeetOverTheWholeWave) {
  const auto at = [](uint32_t l) { return 100 + l; };
  const Single kCases[] = {
      {Isa::kGfx9, "v_mov_b32_dpp v8, v2 wave_shl:1 row_mask:0xf bank_mask:0xf",
       [&](uint32_t l) { return l == 63 ? 1000 + l : at(l + 1); }},
      {Isa::kGfx9, "v_mov_b32_dpp v8, v2 wave_rol:1 row_mask:0xf bank_mask:0xf",
       [&](uint32_t l) { return at((l + 1) % 64); }},
      {Isa::kGfx9, "v_mov_b32_dpp v8, v2 wave_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0",
       [&](uint32_t l) { return l == 0 ? 0 : at(l - 1); }},
      {Isa::kGfx9, "v_mov_b32_dpp v8, v2 wave_ror:1 row_mask:0xf bank_mask:0xf",
       [&](uint32_t l) { return at((l + 63) % 64); }},
      {Isa::kGfx9, "v_mov_b32_dpp v8, v2 row_bcast:15 row_mask:0xa bank_mask:0xf",
       [&](uint32_t l) { return l / 16 % 2 ? at(l / 16 * 16 - 1) : 1000 + l; }},
      {Isa::kGfx9, "v_mov_b32_dpp v8, v2 row_bcast:31 row_mask:0xc bank_mask:0xf",
       [&](uint32_t l) { return l < 32 ? 1000 + l : at(31); }},
      {Isa::kGfx9, "v_mov_b32_dpp v8, v2 row_newbcast:3 row_mask:0xf bank_mask:0xf",
       [&](uint32_t l) { return at(l / 16 * 16 + 3); }},
      {Isa::kGfx9, "v_mov_b32_dpp v8, v2 row_shr:1 row_mask:0xf bank_mask:0xf",
       [&](uint32_t l) { return l % 16 ? at(l - 1) : 1000 + l; }},
      {Isa::kGfx9, "ds_bpermute_b32 v8, v4, v2", [&](uint32_t l) { return at((l + 33) % 64); }},
      {Isa::kGfx9, "ds_permute_b32 v8, v4, v2", [&](uint32_t l) { return at((l + 31) % 64); }},
      {Isa::kGfx9, "v_mbcnt_hi_u32_b32 v8, -1, v6",
       [&](uint32_t l) { return l < 32 ? 0 : l - 32; }},
  };
  for (const Single& c : kCases) {
    SCOPED_TRACE(c.text);
    OneWave o(c.isa);
    for (uint32_t l = 0; l < kLanes; ++l)
      o.v(2, l) = at(l), o.v(4, l) = 4 * ((l + 33) % 64), o.v(8, l) = 1000 + l;
    ASSERT_TRUE(o.step(words_of(c.isa, c.text)));
    ASSERT_FALSE(o.wave.failed);
    for (uint32_t l = 0; l < kLanes; ++l) EXPECT_EQ(o.v(8, l), c.expected(l)) << "lane " << l;
  }
}

// Source: LLVM 19, GCNSubtarget::zeroesHigh16BitsOfDest.
TEST(Cdna, HalvesZeroTheUpperHalfOfTheirRegister) {
  const Single kCases[] = {
      {Isa::kGfx9, "v_add_f16_e32 v8, v2, v2", [](uint32_t) { return 0x4000u; }},
      {Isa::kGfx9, "v_cvt_f16_f32_e32 v8, v4", [](uint32_t) { return 0x3c00u; }},
      {Isa::kGfx9, "v_add_u16_e32 v8, v2, v2", [](uint32_t) { return 0x7800u; }},
      {Isa::kGfx9, "v_fma_f16 v8, v2, v2, v2 op_sel:[0,0,0,1]",
       [](uint32_t) { return 0x40005678u; }},
      {Isa::kGfx9, "v_fma_mixlo_f16 v8, v4, v4, v4", [](uint32_t) { return 0x12344000u; }},
      {Isa::kGfx9,
       "v_add_f16_sdwa v8, v2, v2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0 "
       "src1_sel:WORD_0",
       [](uint32_t) { return 0x40005678u; }},
  };
  for (const Single& c : kCases) {
    SCOPED_TRACE(c.text);
    OneWave o(c.isa);
    for (uint32_t l = 0; l < kLanes; ++l)
      o.v(2, l) = 0xabcd3c00, o.v(4, l) = bits(1), o.v(8, l) = 0x12345678;
    ASSERT_TRUE(o.step(words_of(c.isa, c.text)));
    ASSERT_FALSE(o.wave.failed);
    for (uint32_t l = 0; l < kLanes; ++l) EXPECT_EQ(o.v(8, l), c.expected(l)) << "lane " << l;
  }
}

TEST(Cdna, ComparesToExecWriteTheirMaskToo) {
  const char* const text = Single{Isa::kGfx9, "v_cmpx_eq_u32_e64 s[24:25], v2, v4", {}}.text;
  OneWave o(Isa::kGfx9);
  for (uint32_t l = 0; l < kLanes; ++l) o.v(2, l) = l % 3, o.v(4, l) = 0;
  ASSERT_TRUE(o.step(words_of(Isa::kGfx9, text)));
  EXPECT_EQ(o.wave.exec(), 0x9249249249249249u);
  EXPECT_EQ(o.wave.read64(24, 0, false), 0x9249249249249249u);
}

TEST(Cdna, AccumulationRegistersMoveAndLoad) {
  OneWave o(Isa::kGfx9);
  const uint64_t place = o.memory.allocate(1024);
  for (uint32_t l = 0; l < kLanes; ++l) {
    o.v(2, l) = 7 * l;
    o.put(4, l, place + 4 * l);
  }
  for (const char* text :
       {Single{Isa::kGfx9, "v_accvgpr_write_b32 a5, v2", {}}.text,
        Single{Isa::kGfx9, "v_accvgpr_mov_b32 a6, a5", {}}.text,
        Single{Isa::kGfx9, "v_accvgpr_read_b32 v8, a6", {}}.text,
        Single{Isa::kGfx9, "global_store_dword v[4:5], a6, off", {}}.text,
        Single{Isa::kGfx9, "global_load_dword a9, v[4:5], off sc0 sc1", {}}.text}) {
    ASSERT_TRUE(o.step(words_of(Isa::kGfx9, text))) << text;
    ASSERT_FALSE(o.wave.failed) << text;
    covers(name_of(text));
  }
  for (uint32_t l = 0; l < kLanes; ++l) {
    EXPECT_EQ(o.v(8, l), 7 * l);
    EXPECT_EQ(o.v(kAcc + 9, l), 7 * l);
    EXPECT_EQ(o.v(9, l), 0u);
  }
}

TEST(Cdna, CachesAreWrittenBackWithoutEffectOnResults) {
  for (const char* text :
       {Single{Isa::kGfx9, "buffer_wbl2 sc1", {}}.text,
        Single{Isa::kGfx9, "buffer_inv sc1", {}}.text, Single{Isa::kGfx9, "s_dcache_wb", {}}.text,
        Single{Isa::kGfx9, "s_dcache_inv_vol", {}}.text,
        Single{Isa::kGfx9, "s_dcache_wb_vol", {}}.text}) {
    OneWave o(Isa::kGfx9);
    ASSERT_TRUE(o.step(words_of(Isa::kGfx9, text))) << text;
    EXPECT_FALSE(o.wave.failed) << text;
    covers(name_of(text));
  }
}

}  // namespace
}  // namespace bm::sim::amd::test
