// Repacking, one block of one row at a time.
#include "models/llama_blocks.h"

#include <cstring>
#include <vector>

#include "runtime/base/check.h"

namespace bm::models {
namespace {

constexpr int64_t kRows = kPackedRows, kBlock = kPackedBlock;

uint8_t u8(const std::byte* p, int64_t i) { return std::to_integer<uint8_t>(p[i]); }

/// Position of columns 4g … 4g+3 of a row in a part with `groups` such groups per block.
int64_t word_at(int64_t block, int64_t groups, int64_t g, int64_t row) {
  return ((block * groups + g) * kRows + row) * 4;
}

void put_half(uint8_t* part, int64_t at, const std::byte* half) {
  std::memcpy(part + 2 * at, half, 2);
}

/// 32 codes of four bits.
void put_nibbles(uint8_t* codes, int64_t block, int64_t row, const uint8_t* values) {
  for (int64_t k = 0; k < 16; ++k)
    codes[word_at(block, 4, k / 4, row) + k % 4] =
        static_cast<uint8_t>((values[k] & 15) | (values[k + 16] & 15) << 4);
}

void pack_q8_0(const PackedParts& t, const std::byte* b, int64_t block, int64_t row) {
  put_half(t.scales, block * kRows + row, b);
  for (int64_t k = 0; k < kBlock; ++k)
    t.codes[word_at(block, 8, k / 4, row) + k % 4] = static_cast<uint8_t>(u8(b + 2, k) ^ 0x80);
}

void pack_q4_0(const PackedParts& t, const std::byte* b, int64_t block, int64_t row) {
  put_half(t.scales, block * kRows + row, b);
  for (int64_t k = 0; k < 16; ++k) t.codes[word_at(block, 4, k / 4, row) + k % 4] = u8(b + 2, k);
}

/// `block`: number of the block of 256. Source of the 6-bit fields: as in quant.cpp.
void pack_q4_k(const PackedParts& t, const std::byte* b, int64_t block, int64_t row) {
  put_half(t.factors, block * kRows + row, b);
  put_half(t.minimum_factors, block * kRows + row, b + 2);
  const std::byte *fields = b + 4, *q = b + 16;
  for (int64_t j = 0; j < 8; ++j) {
    const int64_t sub = block * 8 + j;
    uint8_t scale = u8(fields, j) & 63, minimum = u8(fields, j + 4) & 63;
    if (j >= 4) {
      scale = static_cast<uint8_t>((u8(fields, j + 4) & 15) | (u8(fields, j - 4) >> 6) << 4);
      minimum = static_cast<uint8_t>((u8(fields, j + 4) >> 4) | (u8(fields, j) >> 6) << 4);
    }
    t.scales[sub * kRows + row] = scale;
    t.minima[sub * kRows + row] = minimum;
    uint8_t values[kBlock];
    for (int64_t k = 0; k < kBlock; ++k)
      values[k] = static_cast<uint8_t>(u8(q, j / 2 * 32 + k) >> (j % 2 * 4) & 15);
    put_nibbles(t.codes, sub, row, values);
  }
}

void pack_q6_k(const PackedParts& t, const std::byte* b, int64_t block, int64_t row) {
  put_half(t.factors, block * kRows + row, b + 208);
  for (int64_t j = 0; j < 8; ++j) {  // 32 values: see q6_k_block in quant.cpp
    const int64_t sub = block * 8 + j, half = j / 4, quarter = j % 4;
    uint8_t values[kBlock];
    for (int64_t k = 0; k < kBlock; ++k) {
      const int nibbles = u8(b, half * 64 + quarter % 2 * 32 + k) >> (quarter / 2 * 4) & 15;
      const int top = u8(b + 128, half * 32 + k) >> (2 * quarter) & 3;
      values[k] = static_cast<uint8_t>(nibbles | top << 4);
    }
    put_nibbles(t.codes, sub, row, values);
    for (int64_t k = 0; k < 8; ++k) {
      int bits = 0;
      for (int64_t q = 0; q < 4; ++q) bits |= values[8 * q + k] >> 4 << (2 * q);
      t.high[word_at(sub, 2, k / 4, row) + k % 4] = static_cast<uint8_t>(bits);
    }
    for (int64_t h = 0; h < 2; ++h)
      t.scales[(sub * 2 + h) * kRows + row] = u8(b + 192, half * 8 + quarter * 2 + h);
  }
}

/// Interleaved rows: [rows/32, columns, 32].
void pack_halves(const PackedParts& t, const std::byte* data, int64_t rows, int64_t columns) {
  std::vector<uint16_t> row(static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; ++r, data += 2 * columns) {
    std::memcpy(row.data(), data, row.size() * sizeof row[0]);
    uint8_t* to = t.codes + 2 * (r / kPackedHalves * columns * kPackedHalves + r % kPackedHalves);
    for (const uint16_t half : row) {
      std::memcpy(to, &half, sizeof half);
      to += 2 * kPackedHalves;
    }
  }
}

}  // namespace

void pack_blocks(GgmlType type, std::span<const std::byte> data, int64_t rows, int64_t columns,
                 const PackedParts& parts) {
  const GgmlTypeInfo& info = ggml_type_info(type);
  const int64_t per_row = columns / info.block_values;
  BM_CHECK(data.size() == static_cast<size_t>(rows * per_row) * info.block_bytes);
  if (info.block_values == 1) return pack_halves(parts, data.data(), rows, columns);
  const std::byte* source = data.data();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t b = 0; b < per_row; ++b, source += info.block_bytes) {
      const int64_t block = row / kRows * per_row + b, lane = row % kRows;
      if (type == GgmlType::kQ8_0) pack_q8_0(parts, source, block, lane);
      if (type == GgmlType::kQ4_0) pack_q4_0(parts, source, block, lane);
      if (type == GgmlType::kQ4_K) pack_q4_k(parts, source, block, lane);
      if (type == GgmlType::kQ6_K) pack_q6_k(parts, source, block, lane);
    }
}

}  // namespace bm::models
