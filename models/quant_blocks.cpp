// Layouts of the blocks. Source: ggml, ggml-common.h (block_*) and ggml-quants.c
// (dequantize_row_*).
#include "models/quant_blocks.h"

#include <bit>
#include <cstring>

#include "models/quant_grids.h"
#include "runtime/base/half.h"

namespace bm::models {
namespace {

uint32_t u8(const std::byte* p, size_t i) { return std::to_integer<uint32_t>(p[i]); }

uint16_t u16(const std::byte* p, size_t i = 0) {
  uint16_t v;
  std::memcpy(&v, p + 2 * i, 2);
  return v;
}

uint32_t u32(const std::byte* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

uint8_t byte(uint32_t v) { return static_cast<uint8_t>(v); }

/// `count` (a multiple of 8) bytes with two codes in each: byte j has values j and j + `count`.
void nibbles(const std::byte* q, uint8_t* codes, size_t count) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  for (size_t j = 0; j < count; j += 8) {
    uint64_t both = 0;
    std::memcpy(&both, q + j, sizeof both);
    const uint64_t low = both & kLow, high = both >> 4 & kLow;
    std::memcpy(codes + j, &low, sizeof low);
    std::memcpy(codes + j + count, &high, sizeof high);
  }
}
void nibbles(const std::byte* q, uint8_t* codes) { nibbles(q, codes, 16); }

/// Their fifth bits: bit j belongs to value j.
void fifth_bits(uint32_t high, uint8_t* codes) {
  for (size_t j = 0; j < 32; ++j) codes[j] |= byte((high >> j & 1) << 4);
}

void q8_0(const std::byte* b, DecodedBlock* out) {
  out->scales[0] = u16(b);
  for (size_t j = 0; j < 32; ++j) out->codes[j] = byte(u8(b + 2, j) ^ 0x80);
}

void q4_0(const std::byte* b, DecodedBlock* out) {
  out->scales[0] = u16(b);
  nibbles(b + 2, out->codes.data());
}

/// What is added is kept as what is taken off: the sign bit turned over.
uint16_t negated(uint16_t half) { return static_cast<uint16_t>(half ^ 0x8000); }

void q4_1(const std::byte* b, DecodedBlock* out) {
  out->scales[0] = u16(b);
  out->minima[0] = negated(u16(b + 2));
  nibbles(b + 4, out->codes.data());
}

void q5_0(const std::byte* b, DecodedBlock* out) {
  out->scales[0] = u16(b);
  nibbles(b + 6, out->codes.data());
  fifth_bits(u32(b + 2), out->codes.data());
}

void q5_1(const std::byte* b, DecodedBlock* out) {
  out->scales[0] = u16(b);
  out->minima[0] = negated(u16(b + 2));
  nibbles(b + 8, out->codes.data());
  fifth_bits(u32(b + 4), out->codes.data());
}

void mxfp4(const std::byte* b, DecodedBlock* out) {
  out->scales[0] = byte(u8(b, 0));
  nibbles(b + 1, out->codes.data());
}

/// Half of an unsigned float with four bits of exponent and three of fraction, as float16; exact.
/// Source: ggml-impl.h, ggml_ue4m3_to_fp32().
uint16_t half_of_ue4m3(uint32_t code) {
  if (code == 0 || code == 0x7f) return 0;
  const uint32_t exponent = code >> 3 & 15, fraction = code & 7;
  const float value = exponent == 0 ? static_cast<float>(fraction) / 1024.0F
                                    : std::bit_cast<float>((exponent + 119) << 23 | fraction << 20);
  return f32_to_f16(value);
}

/// 64 values, sixteen to a scale: values j and j + 8 of a sixteen share a byte.
void nvfp4(const std::byte* b, DecodedBlock* out) {
  for (size_t s = 0; s < 4; ++s) {
    out->scales[s] = half_of_ue4m3(u8(b, s));
    for (size_t j = 0; j < 8; ++j) {
      out->codes[16 * s + j] = byte(u8(b + 4, 8 * s + j) & 15);
      out->codes[16 * s + j + 8] = byte(u8(b + 4, 8 * s + j) >> 4);
    }
  }
}

void q1_0(const std::byte* b, DecodedBlock* out) {
  for (size_t s = 0; s < 4; ++s) out->scales[s] = u16(b);
  for (size_t j = 0; j < 128; ++j) out->codes[j] = byte(u8(b + 2, j / 8) >> j % 8 & 1);
}

void q2_0(const std::byte* b, DecodedBlock* out) {
  for (size_t s = 0; s < 2; ++s) out->scales[s] = u16(b);
  for (size_t j = 0; j < 64; ++j) out->codes[j] = byte(u8(b + 2, j / 4) >> j % 4 * 2 & 3);
}

/// Two bits of 256 values: of each 128, value 32·j + l in bits 2j of byte l.
void two_bits(const std::byte* q, uint8_t* codes) {
  for (size_t i = 0; i < 256; ++i)
    codes[i] = byte(u8(q, i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3);
}

void q2_k(const std::byte* b, DecodedBlock* out) {
  for (size_t s = 0; s < 16; ++s) out->scales[s] = byte(u8(b, s));
  two_bits(b + 16, out->codes.data());
  out->factor = u16(b + 80);
  out->minimum_factor = u16(b + 82);
}

void q3_k(const std::byte* b, DecodedBlock* out) {
  two_bits(b + 32, out->codes.data());
  for (size_t i = 0; i < 256; ++i) out->codes[i] |= byte((u8(b, i % 32) >> i / 32 & 1) << 2);
  const std::byte* s = b + 96;  // sixteen scales of six bits: low nibbles, then pairs of high bits
  for (size_t k = 0; k < 16; ++k) {
    const uint32_t low = u8(s, k % 8) >> k / 8 * 4 & 15, high = u8(s, 8 + k % 4) >> k / 4 * 2 & 3;
    out->scales[k] = byte((low | high << 4) - 32);
  }
  out->factor = u16(b + 108);
}

/// Eight 6-bit scales and eight 6-bit minima in twelve bytes: the first four of each lie in the low
/// six bits of bytes 0–7; the last four have their low nibbles in bytes 8–11, their top bits in
/// bytes 0–7.
void k_scales(const std::byte* s, DecodedBlock* out) {
  for (size_t j = 0; j < 4; ++j) {
    out->scales[j] = byte(u8(s, j) & 63);
    out->minima[j] = byte(u8(s, j + 4) & 63);
    out->scales[j + 4] = byte((u8(s, j + 8) & 15) | u8(s, j) >> 6 << 4);
    out->minima[j + 4] = byte(u8(s, j + 8) >> 4 | u8(s, j + 4) >> 6 << 4);
  }
}

/// Sub-blocks 2i and 2i + 1 share 32 bytes: low and high nibbles.
void k_nibbles(const std::byte* q, uint8_t* codes) {
  for (size_t i = 0; i < 4; ++i) nibbles(q + 32 * i, codes + 64 * i, 32);
}

void q4_k(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  out->minimum_factor = u16(b + 2);
  k_scales(b + 4, out);
  k_nibbles(b + 16, out->codes.data());
}

void q5_k(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  out->minimum_factor = u16(b + 2);
  k_scales(b + 4, out);
  k_nibbles(b + 48, out->codes.data());
  for (size_t i = 0; i < 256; ++i) out->codes[i] |= byte((u8(b + 16, i % 32) >> i / 32 & 1) << 4);
}

void q6_k(const std::byte* b, DecodedBlock* out) {
  const std::byte *low = b, *high = b + 128;
  for (size_t half = 0; half < 2; ++half)
    for (size_t quarter = 0; quarter < 4; ++quarter)
      for (size_t l = 0; l < 32; ++l) {
        const uint32_t pair = u8(low, half * 64 + quarter % 2 * 32 + l);
        const uint32_t top = u8(high, half * 32 + l) >> 2 * quarter & 3;
        out->codes[half * 128 + quarter * 32 + l] =
            byte((quarter < 2 ? pair & 15 : pair >> 4) | top << 4);
      }
  for (size_t s = 0; s < 16; ++s) out->scales[s] = byte(u8(b + 192, s));
  out->factor = u16(b + 208);
}

void iq4_xs(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  const uint32_t high = u16(b + 2);
  for (size_t s = 0; s < 8; ++s) {
    const uint32_t low = u8(b + 4, s / 2) >> s % 2 * 4 & 15;
    out->scales[s] = byte((low | (high >> 2 * s & 3) << 4) - 32);
    nibbles(b + 8 + 16 * s, out->codes.data() + 32 * s);
  }
}

/// Signs of eight values in seven bits: their number is even.
uint32_t even_signs(uint32_t seven) {
  return seven | (static_cast<uint32_t>(std::popcount(seven)) & 1) << 7;
}

/// Eight values: levels of two bits, and a sign above them.
void put_eight(uint8_t* codes, uint32_t levels, uint32_t signs) {
  for (size_t j = 0; j < 8; ++j) codes[j] = byte((levels >> 2 * j & 3) | (signs >> j & 1) << 2);
}

/// Likewise with two points of four values and levels of three bits.
void put_two_fours(uint8_t* codes, uint32_t first, uint32_t second, uint32_t signs) {
  for (size_t j = 0; j < 4; ++j) {
    codes[j] = byte((first >> 3 * j & 7) | (signs >> j & 1) << 3);
    codes[j + 4] = byte((second >> 3 * j & 7) | (signs >> (j + 4) & 1) << 3);
  }
}

/// Scales of IQ2 and IQ3 are odd halves: s + ½.
uint16_t odd(uint32_t s) { return byte(2 * s + 1); }

void iq2_xxs(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  for (size_t s = 0; s < 8; ++s) {
    const std::byte* q = b + 2 + 8 * s;
    const uint32_t rest = u32(q + 4);
    out->scales[s] = odd(rest >> 28);
    for (size_t l = 0; l < 4; ++l)
      put_eight(&out->codes[32 * s + 8 * l], kIq2XxsGrid[u8(q, l)],
                even_signs(rest >> 7 * l & 127));
  }
}

void iq2_xs(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  for (size_t i = 0; i < 32; ++i) {
    const uint32_t q = u16(b + 2, i);
    put_eight(&out->codes[8 * i], kIq2XsGrid[q & 511], even_signs(q >> 9));
  }
  for (size_t s = 0; s < 16; ++s) out->scales[s] = odd(u8(b + 66, s / 2) >> s % 2 * 4 & 15);
}

void iq2_s(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  for (size_t i = 0; i < 32; ++i) {
    const uint32_t top = u8(b + 66, i / 4) >> i % 4 * 2 & 3;
    put_eight(&out->codes[8 * i], kIq2SGrid[u8(b + 2, i) | top << 8], u8(b + 34, i));
  }
  for (size_t s = 0; s < 16; ++s) out->scales[s] = odd(u8(b + 74, s / 2) >> s % 2 * 4 & 15);
}

void iq3_xxs(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  for (size_t s = 0; s < 8; ++s) {
    const std::byte* q = b + 2 + 8 * s;
    const uint32_t rest = u32(b + 66 + 4 * s);
    out->scales[s] = odd(rest >> 28);
    for (size_t l = 0; l < 4; ++l)
      put_two_fours(&out->codes[32 * s + 8 * l], kIq3XxsGrid[u8(q, 2 * l)],
                    kIq3XxsGrid[u8(q, 2 * l + 1)], even_signs(rest >> 7 * l & 127));
  }
}

void iq3_s(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  for (size_t s = 0; s < 8; ++s) {
    const std::byte* q = b + 2 + 8 * s;
    const uint32_t high = u8(b + 66, s);
    out->scales[s] = odd(u8(b + 106, s / 2) >> s % 2 * 4 & 15);
    for (size_t l = 0; l < 4; ++l)
      put_two_fours(&out->codes[32 * s + 8 * l], kIq3SGrid[u8(q, 2 * l) | (high >> 2 * l & 1) << 8],
                    kIq3SGrid[u8(q, 2 * l + 1) | (high >> (2 * l + 1) & 1) << 8],
                    u8(b + 74, 4 * s + l));
  }
}

void iq1_s(const std::byte* b, DecodedBlock* out) {
  out->factor = u16(b);
  for (size_t s = 0; s < 8; ++s) {
    const uint32_t high = u16(b + 34, s);
    out->scales[s] = odd(high >> 12 & 7);
    for (size_t l = 0; l < 4; ++l)
      put_eight(&out->codes[32 * s + 8 * l],
                kIq1SGrid[u8(b + 2, 4 * s + l) | (high >> 3 * l & 7) << 8],
                high & 0x8000 ? 255 : 0);
  }
}

/// The factor lies in the top nibbles of the four words of scales.
void iq1_m(const std::byte* b, DecodedBlock* out) {
  uint32_t factor = 0;
  for (size_t i = 0; i < 4; ++i) factor |= uint32_t{u16(b + 48, i)} >> 12 << 4 * i;
  out->factor = static_cast<uint16_t>(factor);
  for (size_t s = 0; s < 16; ++s) out->scales[s] = odd(u16(b + 48, s / 4) >> s % 4 * 3 & 7);
  for (size_t i = 0; i < 32; ++i) {
    const uint32_t high = u8(b + 32, i / 2) >> i % 2 * 4;
    put_eight(&out->codes[8 * i], kIq1SGrid[u8(b, i) | (high & 7) << 8], high & 8 ? 255 : 0);
  }
}

/// Digit `n` of five of base three in a byte, which is a fraction of 256.
uint8_t trit(uint32_t packed, size_t n) {
  constexpr std::array<uint32_t, 5> kPowers = {1, 3, 9, 27, 81};
  return byte((packed * kPowers[n] & 255) * 3 >> 8);
}

void tq1_0(const std::byte* b, DecodedBlock* out) {
  uint8_t* to = out->codes.data();
  const auto run = [&](size_t from, size_t count, size_t digits) {
    for (size_t n = 0; n < digits; ++n)
      for (size_t m = 0; m < count; ++m) *to++ = trit(u8(b, from + m), n);
  };
  run(0, 32, 5);
  run(32, 16, 5);
  run(48, 4, 4);
  out->factor = u16(b + 52);
}

void tq2_0(const std::byte* b, DecodedBlock* out) {
  two_bits(b, out->codes.data());
  out->factor = u16(b + 64);
}

// Numbers of the codebooks, above `zero`. Source: ggml-common.h, kvalues_iq4nl, kvalues_mxfp4.
constexpr Codebook shifted(std::array<int, 16> values, int zero) {
  Codebook out{};
  for (size_t i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(values[i] + zero);
  return out;
}

constexpr Codebook kIq4Book =
    shifted({-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 128);
constexpr Codebook kFp4Book =  // twice the numbers of E2M1
    shifted({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 12);
constexpr Codebook kIq2Book = shifted({8, 25, 43, 0, -8, -25, -43, 0}, 43);
constexpr Codebook kIq3XxsBook =
    shifted({4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}, 62);
constexpr Codebook kIq3SBook =
    shifted({1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}, 15);
/// Eight times −1, 0 and 1, plus an eighth or minus one.
constexpr Codebook kIq1Book = shifted({-7, 1, 9, 0, -9, -1, 7, 0}, 9);
constexpr Codebook kSignBook = {0, 2};

constexpr auto kNone = ScaleKind::kNone, kF16 = ScaleKind::kF16, kU8 = ScaleKind::kU8,
               kI8 = ScaleKind::kI8;

// type, bits low and high, zero, book, group, scales, has minimum, factor; unit, decoder
constexpr BlockFormat kFormats[] = {
    {GgmlType::kQ4_0, 4, 0, 8, nullptr, 32, kF16, false, false, 1, q4_0},
    {GgmlType::kQ4_1, 4, 0, 0, nullptr, 32, kF16, true, false, 1, q4_1},
    {GgmlType::kQ5_0, 4, 1, 16, nullptr, 32, kF16, false, false, 1, q5_0},
    {GgmlType::kQ5_1, 4, 1, 0, nullptr, 32, kF16, true, false, 1, q5_1},
    {GgmlType::kQ8_0, 8, 0, 128, nullptr, 32, kF16, false, false, 1, q8_0},
    {GgmlType::kQ2_K, 2, 0, 0, nullptr, 16, ScaleKind::kNibbles, true, true, 1, q2_k},
    {GgmlType::kQ3_K, 2, 1, 4, nullptr, 16, kI8, false, true, 1, q3_k},
    {GgmlType::kQ4_K, 4, 0, 0, nullptr, 32, kU8, true, true, 1, q4_k},
    {GgmlType::kQ5_K, 4, 1, 0, nullptr, 32, kU8, true, true, 1, q5_k},
    {GgmlType::kQ6_K, 4, 2, 32, nullptr, 16, kI8, false, true, 1, q6_k},
    {GgmlType::kIQ2_XXS, 2, 1, 43, &kIq2Book, 32, kU8, false, true, 0.125F, iq2_xxs},
    {GgmlType::kIQ2_XS, 2, 1, 43, &kIq2Book, 16, kU8, false, true, 0.125F, iq2_xs},
    {GgmlType::kIQ3_XXS, 4, 0, 62, &kIq3XxsBook, 32, kU8, false, true, 0.25F, iq3_xxs},
    {GgmlType::kIQ1_S, 2, 1, 9, &kIq1Book, 32, kU8, false, true, 0.125F, iq1_s},
    {GgmlType::kIQ4_NL, 4, 0, 128, &kIq4Book, 32, kF16, false, false, 1, q4_0},
    {GgmlType::kIQ3_S, 4, 0, 15, &kIq3SBook, 32, kU8, false, true, 1, iq3_s},
    {GgmlType::kIQ2_S, 2, 1, 43, &kIq2Book, 16, kU8, false, true, 0.125F, iq2_s},
    {GgmlType::kIQ4_XS, 4, 0, 128, &kIq4Book, 32, kI8, false, true, 1, iq4_xs},
    {GgmlType::kIQ1_M, 2, 1, 9, &kIq1Book, 16, kU8, false, true, 0.125F, iq1_m},
    {GgmlType::kTQ1_0, 2, 0, 1, nullptr, 32, kNone, false, true, 1, tq1_0},
    {GgmlType::kTQ2_0, 2, 0, 1, nullptr, 32, kNone, false, true, 1, tq2_0},
    {GgmlType::kMXFP4, 4, 0, 12, &kFp4Book, 32, ScaleKind::kE8M0, false, false, 1, mxfp4},
    {GgmlType::kNVFP4, 4, 0, 12, &kFp4Book, 16, kF16, false, false, 1, nvfp4},
    {GgmlType::kQ1_0, 1, 0, 1, &kSignBook, 32, kF16, false, false, 1, q1_0},
    {GgmlType::kQ2_0, 2, 0, 1, nullptr, 32, kF16, false, false, 1, q2_0},
};

}  // namespace

const BlockFormat* find_block_format(GgmlType type) {
  for (const BlockFormat& format : kFormats)
    if (format.type == type) return &format;
  return nullptr;
}

}  // namespace bm::models
