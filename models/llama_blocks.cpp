// Repacking, one block of one row at a time.
#include "models/llama_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "models/quant_blocks.h"
#include "runtime/base/check.h"
#include "runtime/base/env.h"
#include "runtime/base/thread.h"

namespace bm::models {
namespace {

constexpr int64_t kRows = kPackedRows, kBlock = kPackedBlock;

/// Codes of a block of 32, `kBits` of each from bit `from` on.
template <int kBits>
void put_plane(uint8_t* part, int64_t block, int64_t row, const uint8_t* codes, int from) {
  constexpr uint64_t kMask = uint64_t{0x0101010101010101} * ((1U << kBits) - 1);
  constexpr size_t kBytes = 4 * kBits, kAtOnce = std::min<size_t>(kBytes, 8);
  std::array<uint8_t, kBytes> bytes{};
  for (size_t i = 0; i < kBytes; i += kAtOnce) {
    uint64_t sum = 0;
    for (size_t k = 0; k < 8 / kBits; ++k) {
      uint64_t some = 0;
      std::memcpy(&some, codes + i + k * kBytes, kAtOnce);
      sum |= (some >> from & kMask) << k * kBits;
    }
    std::memcpy(bytes.data() + i, &sum, kAtOnce);
  }
  for (int64_t word = 0; word < kBits; ++word)
    std::memcpy(part + ((block * kBits + word) * kRows + row) * 4, bytes.data() + 4 * word, 4);
}

void put_bits(uint8_t* part, uint32_t bits, int64_t block, int64_t row, const uint8_t* codes,
              int from) {
  if (bits == 1) put_plane<1>(part, block, row, codes, from);
  if (bits == 2) put_plane<2>(part, block, row, codes, from);
  if (bits == 4) put_plane<4>(part, block, row, codes, from);
  if (bits == 8) put_plane<8>(part, block, row, codes, from);
}

void put_half(uint8_t* part, int64_t at, uint16_t half) { std::memcpy(part + 2 * at, &half, 2); }

void put_scale(ScaleKind kind, uint8_t* part, int64_t at, uint16_t scale) {
  if (kind == ScaleKind::kNone || part == nullptr) return;
  if (kind == ScaleKind::kF16)
    put_half(part, at, scale);
  else
    part[at] = static_cast<uint8_t>(scale);
}

/// `first`: number of the block's first 32 columns in its row of sixteens.
void put_block(const BlockFormat& format, int64_t values, const DecodedBlock& b, int64_t first,
               int64_t row, const PackedParts& t) {
  const int64_t groups = kBlock / format.group;
  for (int64_t i = 0; i < values / kBlock; ++i) {
    const uint8_t* codes = &b.codes[static_cast<size_t>(i * kBlock)];
    const int64_t block = first + i;
    put_bits(t.codes, format.low_bits, block, row, codes, 0);
    if (t.high) put_bits(t.high, format.high_bits, block, row, codes, format.low_bits);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = (block * groups + g) * kRows + row;
      const auto from = static_cast<size_t>(i * groups + g);
      put_scale(format.scales, t.scales, at, b.scales[from]);
      put_scale(format.scales, t.minima, at, b.minima[from]);
    }
  }
  const int64_t super = first * kBlock / kPackedSuper * kRows + row;
  if (t.factors) put_half(t.factors, super, b.factor);
  if (t.minimum_factors) put_half(t.minimum_factors, super, b.minimum_factor);
}

/// Interleaved rows `first` up to `last`, whole panels: [rows/32, columns, 32]. A few columns of
/// all rows at a time, so that every line of the result is written once.
template <class Element>
void pack_elements(const PackedParts& t, const std::byte* data, int64_t first, int64_t last,
                   int64_t columns) {
  constexpr int64_t kPanel = kPackedElements, kColumns = 16;
  constexpr auto kItem = static_cast<int64_t>(sizeof(Element));
  std::array<Element, kPanel * kColumns> tile;
  for (int64_t r = first; r < last; r += kPanel)
    for (int64_t c = 0; c < columns; c += kColumns) {
      const int64_t width = std::min(kColumns, columns - c);
      for (int64_t i = 0; i < kPanel; ++i) {
        std::array<Element, kColumns> row;
        std::memcpy(row.data(), data + kItem * (columns * (r + i) + c),
                    static_cast<size_t>(kItem * width));
        for (int64_t j = 0; j < width; ++j)
          tile[static_cast<size_t>(j * kPanel + i)] = row[static_cast<size_t>(j)];
      }
      std::memcpy(t.codes + kItem * (columns * r + c * kPanel), tile.data(),
                  static_cast<size_t>(kItem * width * kPanel));
    }
}

/// Formats of a float16 scale and 32 codes whose bytes are the words of the plane already, but for
/// inverted bits.
struct WordFormat {
  int64_t words = 0;  ///< of four bytes; 0: another format
  uint32_t flip = 0;
};
WordFormat word_format(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_0:
    case GgmlType::kIQ4_NL: return {.words = 4, .flip = 0};
    case GgmlType::kQ8_0: return {.words = 8, .flip = 0x80808080};
    default: return {};
  }
}

/// Up to sixteen rows that lie together, block by block: every line of the result is written once.
template <int64_t kWords>
void pack_words(uint32_t flip, const std::byte* data, int64_t rows, int64_t blocks,
                const PackedParts& parts, int64_t first_block) {
  constexpr int64_t kBytes = 2 + 4 * kWords;
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* const codes = parts.codes + (first_block + b) * kWords * kRows * 4;
    uint8_t* const scales = parts.scales + (first_block + b) * kRows * 2;
    for (int64_t row = 0; row < rows; ++row) {
      const std::byte* const source = data + (row * blocks + b) * kBytes;
      std::memcpy(scales + 2 * row, source, 2);
      for (int64_t w = 0; w < kWords; ++w) {
        uint32_t word = 0;
        std::memcpy(&word, source + 2 + 4 * w, 4);
        word ^= flip;
        std::memcpy(codes + (w * kRows + row) * 4, &word, 4);
      }
    }
  }
}

/// Of a matrix of `columns` in blocks: rows `first` up to `last`, where sixteen begin.
void pack_rows(const GgmlTypeInfo& info, const BlockFormat& format, const std::byte* data,
               int64_t first, int64_t last, int64_t columns, const PackedParts& parts) {
  const int64_t per_row = columns / info.block_values, values = info.block_values,
                blocks = columns / kBlock;
  const WordFormat words = word_format(format.type);
  const std::byte* source = data + static_cast<size_t>(first * per_row) * info.block_bytes;
  DecodedBlock block{};
  for (int64_t row = first; row < last;) {
    if (words.words != 0) {
      const int64_t rows = std::min(kRows, last - row);
      const auto pack = words.words == 4 ? pack_words<4> : pack_words<8>;
      pack(words.flip, source, rows, blocks, parts, row / kRows * blocks);
      source += static_cast<size_t>(rows * per_row) * info.block_bytes;
      row += rows;
      continue;
    }
    for (int64_t b = 0; b < per_row; ++b, source += info.block_bytes) {
      format.decode(source, &block);
      put_block(format, values, block, row / kRows * blocks + b * values / kBlock, row % kRows,
                parts);
    }
    ++row;
  }
}

/// `part(first, last)` for runs of rows that share no word of the result, by several threads where
/// that is worth it. A thread that the system refuses leaves its run to this one.
void for_runs(int64_t rows, int64_t bytes, const std::function<void(int64_t, int64_t)>& part) {
  constexpr int64_t kBytesPerThread = 256 << 10;  // about as long as starting a thread takes, ×5
  const int64_t groups = (rows + kPackedElements - 1) / kPackedElements;
  const int64_t most = std::min(groups, bytes / kBytesPerThread);
  const int64_t threads =
      most < 2 ? 1 : std::min<int64_t>(most, worker_threads(settings().threads));
  const auto row_of = [&](int64_t i) {
    return std::min(rows, groups * i / threads * kPackedElements);
  };
  std::vector<Thread> helpers;
  for (int64_t i = 1; i < threads; ++i) {
    auto thread = Thread::start([&, i] { part(row_of(i), row_of(i + 1)); });
    if (!thread) {
      part(row_of(i), row_of(i + 1));
      continue;
    }
    helpers.push_back(std::move(*thread));
  }
  part(0, row_of(1));
}

}  // namespace

void pack_blocks(GgmlType type, std::span<const std::byte> data, int64_t rows, int64_t columns,
                 const PackedParts& parts,
                 const std::function<void(std::span<const std::byte>)>& done) {
  constexpr int64_t kSliceBytes = 1 << 20;  // packed before `done` is told
  const GgmlTypeInfo& info = ggml_type_info(type);
  const int64_t row_bytes = columns / info.block_values * static_cast<int64_t>(info.block_bytes);
  const auto size = static_cast<int64_t>(data.size());
  BM_CHECK(size == rows * row_bytes);
  const int64_t slice =
      std::max(kSliceBytes / row_bytes / kPackedElements, int64_t{1}) * kPackedElements;
  for_runs(rows, size, [&](int64_t first, int64_t last) {
    for (int64_t begin = first; begin < last; begin += slice) {
      const int64_t end = std::min(last, begin + slice);
      if (type == GgmlType::kF32)
        pack_elements<uint32_t>(parts, data.data(), begin, end, columns);
      else if (info.block_values == 1)
        pack_elements<uint16_t>(parts, data.data(), begin, end, columns);
      else
        pack_rows(info, *find_block_format(type), data.data(), begin, end, columns, parts);
      if (done)
        done(data.subspan(static_cast<size_t>(begin * row_bytes),
                          static_cast<size_t>((end - begin) * row_bytes)));
    }
  });
}

}  // namespace bm::models
