// WMMA: matrices laid into registers as the guides draw them, against a matrix product.

#include <cmath>
#include <random>

#include "runtime/base/half.h"
#include "tests/unit/sim_amd/one_wave.h"
#include "tests/unit/sim_amd/snippets.h"

namespace bm::sim::amd::test {
namespace {

struct Wmma {
  Isa isa;
  const char* text;
  char a, b;  ///< 'h' half, 'b' bfloat, '8' and '4' integers, 'e' fp8, 'f' bf8
  char d;     ///< 'f' float, 'h', 'b', 'i'
  uint32_t depth;
};
constexpr Wmma kCases[] = {
    {Isa::kGfx11, "v_wmma_f32_16x16x16_f16 v[32:39], v[8:15], v[16:23], v[24:31]", 'h', 'h', 'f',
     16},
    {Isa::kGfx11, "v_wmma_f32_16x16x16_bf16 v[32:39], v[8:15], v[16:23], v[24:31]", 'b', 'b', 'f',
     16},
    {Isa::kGfx11, "v_wmma_f16_16x16x16_f16 v[32:39], v[8:15], v[16:23], v[24:31]", 'h', 'h', 'h',
     16},
    {Isa::kGfx11, "v_wmma_bf16_16x16x16_bf16 v[32:39], v[8:15], v[16:23], v[24:31]", 'b', 'b', 'b',
     16},
    {Isa::kGfx11, "v_wmma_i32_16x16x16_iu8 v[32:39], v[8:11], v[16:19], v[24:31] neg_lo:[1,1,0]",
     '8', '8', 'i', 16},
    {Isa::kGfx11, "v_wmma_i32_16x16x16_iu4 v[32:39], v[8:9], v[16:17], v[24:31] neg_lo:[1,1,0]",
     '4', '4', 'i', 16},
    {Isa::kGfx12, "v_wmma_f32_16x16x16_f16 v[32:39], v[8:11], v[16:19], v[24:31]", 'h', 'h', 'f',
     16},
    {Isa::kGfx12, "v_wmma_f32_16x16x16_bf16 v[32:39], v[8:11], v[16:19], v[24:31]", 'b', 'b', 'f',
     16},
    {Isa::kGfx12, "v_wmma_f16_16x16x16_f16 v[32:35], v[8:11], v[16:19], v[24:27]", 'h', 'h', 'h',
     16},
    {Isa::kGfx12, "v_wmma_bf16_16x16x16_bf16 v[32:35], v[8:11], v[16:19], v[24:27]", 'b', 'b', 'b',
     16},
    {Isa::kGfx12, "v_wmma_i32_16x16x16_iu8 v[32:39], v[8:9], v[16:17], v[24:31] neg_lo:[1,1,0]",
     '8', '8', 'i', 16},
    {Isa::kGfx12, "v_wmma_i32_16x16x16_iu4 v[32:39], v8, v16, v[24:31] neg_lo:[1,1,0]", '4', '4',
     'i', 16},
    {Isa::kGfx12, "v_wmma_i32_16x16x32_iu4 v[32:39], v[8:9], v[16:17], v[24:31] neg_lo:[1,1,0]",
     '4', '4', 'i', 32},
    {Isa::kGfx12, "v_wmma_f32_16x16x16_fp8_fp8 v[32:39], v[8:9], v[16:17], v[24:31]", 'e', 'e', 'f',
     16},
    {Isa::kGfx12, "v_wmma_f32_16x16x16_fp8_bf8 v[32:39], v[8:9], v[16:17], v[24:31]", 'e', 'f', 'f',
     16},
    {Isa::kGfx12, "v_wmma_f32_16x16x16_bf8_fp8 v[32:39], v[8:9], v[16:17], v[24:31]", 'f', 'e', 'f',
     16},
    {Isa::kGfx12, "v_wmma_f32_16x16x16_bf8_bf8 v[32:39], v[8:9], v[16:17], v[24:31]", 'f', 'f', 'f',
     16},
};

uint32_t bits_of(char kind) { return kind == 'h' || kind == 'b' ? 16 : kind == '4' ? 4 : 8; }
/// Small whole numbers, exact in every format.
uint32_t encode(char kind, int v) {
  constexpr uint8_t kFp8[] = {0, 0x38, 0x40, 0x44, 0x48}, kBf8[] = {0, 0x3c, 0x40, 0x42, 0x44};
  const uint32_t sign = v < 0 ? 0x80 : 0;
  switch (kind) {
    case 'h': return f32_to_f16(static_cast<float>(v));
    case 'b': return f32_to_bf16(static_cast<float>(v));
    case '8': return static_cast<uint8_t>(v);
    case '4': return static_cast<uint32_t>(v) & 15;
    case 'e': return sign | kFp8[std::abs(v)];
    default: return sign | kBf8[std::abs(v)];
  }
}

void put_line(OneWave& o, const Wmma& c, char kind, uint32_t reg, uint32_t line, uint32_t k,
              int v) {
  const uint32_t bits = bits_of(kind), each = 32 / bits;
  const bool is12 = c.isa == Isa::kGfx12;
  const uint32_t half = c.depth / 2, at = is12 ? k % half : k;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    if (is12 && copy != k / half) continue;  // RDNA4 holds nothing twice
    o.v(reg + at / each, line + 16 * copy) |= encode(kind, v) << (bits * (at % each));
  }
}
struct Cell {
  uint32_t reg, lane, shift;
};
Cell cell(const Wmma& c, uint32_t m, uint32_t n) {
  const bool narrow = c.d == 'h' || c.d == 'b';
  if (c.isa == Isa::kGfx12) {
    const uint32_t i = m % 8;
    return narrow ? Cell{i / 2, n + 16 * (m / 8), 16 * (i & 1)} : Cell{i, n + 16 * (m / 8), 0};
  }
  return {m / 2, n + 16 * (m % 2), 0};
}

TEST(Matrix, EveryWmma) {
  std::mt19937 random(5);
  const auto number = [&] { return static_cast<int>(random() % 9) - 4; };
  for (const Wmma& c : kCases) {
    SCOPED_TRACE(c.text);
    OneWave o(c.isa);
    int a[16][32], b[16][32], sum[16][16];
    for (uint32_t i = 0; i < 16; ++i)
      for (uint32_t k = 0; k < c.depth; ++k) {
        put_line(o, c, c.a, 8, i, k, a[i][k] = number());
        put_line(o, c, c.b, 16, i, k, b[i][k] = number());
      }
    for (uint32_t m = 0; m < 16; ++m)
      for (uint32_t n = 0; n < 16; ++n) {
        const int addend = number();
        const Cell at = cell(c, m, n);
        const uint32_t bits = c.d == 'i'   ? static_cast<uint32_t>(addend)
                              : c.d == 'f' ? std::bit_cast<uint32_t>(static_cast<float>(addend))
                                           : encode(c.d, addend);
        o.v(24 + at.reg, at.lane) |= bits << at.shift;
        sum[m][n] = addend;
        for (uint32_t k = 0; k < c.depth; ++k) sum[m][n] += a[m][k] * b[n][k];
      }
    ASSERT_TRUE(o.step(words_of(c.isa, c.text)));
    ASSERT_FALSE(o.wave.failed);
    for (uint32_t m = 0; m < 16; ++m)
      for (uint32_t n = 0; n < 16; ++n) {
        const Cell at = cell(c, m, n);
        const uint32_t got = o.v(32 + at.reg, at.lane) >> at.shift;
        if (c.d == 'i') {
          EXPECT_EQ(static_cast<int>(got), sum[m][n]);
        }
        if (c.d == 'f') {
          EXPECT_EQ(std::bit_cast<float>(got), static_cast<float>(sum[m][n]));
        }
        if (c.d == 'h') {
          EXPECT_EQ(f16_to_f32(static_cast<uint16_t>(got)), static_cast<float>(sum[m][n]));
        }
        if (c.d == 'b') {
          EXPECT_EQ(got & 0xffff, f32_to_bf16(static_cast<float>(sum[m][n])));
        }
      }
    const std::string_view all = c.text;
    covers(all.substr(0, all.find(' ')));
  }
}

}  // namespace
}  // namespace bm::sim::amd::test
