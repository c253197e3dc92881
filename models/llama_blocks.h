#pragma once
// Quantised blocks in the order kernels read them.
//
// Layout of packed matrices, for R = rows/16 and C = columns/32. Bytes of four adjacent columns
// lie together, for 16 rows interleaved: one load holds what one dot product instruction takes.
//   Q8_0   codes [R, C, 8, 16, 4] uint8, shifted by 128; scales [R, C, 16] float16
//   Q4_0   codes [R, C, 4, 16, 4]: low halves of bytes are columns 0 … 15 of a block, high halves
//          columns 16 … 31; scales as above
//   Q4_K   codes as Q4_0; scales, minima [R, C/8, 8, 16] uint8; their factors [R, C/8, 16] float16
//   Q6_K   low four bits as Q4_0; high [R, C, 2, 16, 4]: bits 2q and 2q+1 belong to column
//          8q + 4g + j; scales [R, C/8, 8, 2, 16] int8; factors [R, C/8, 16] float16
//   F16, BF16   codes [rows/32, columns, 32]: the numbers

#include <cstddef>
#include <cstdint>
#include <span>

#include "models/quant.h"

namespace bm::models {

inline constexpr int64_t kPackedRows = 16;    ///< interleaved
inline constexpr int64_t kPackedBlock = 32;   ///< columns that share a scale of the vectors
inline constexpr int64_t kPackedSuper = 256;  ///< columns of a block of Q4_K and Q6_K
inline constexpr int64_t kPackedHalves = 32;  ///< interleaved rows of F16 and BF16: a cache line

/// Where the parts of a packed matrix lie in host memory; those a format lacks are nullptr.
struct PackedParts {
  uint8_t *codes = nullptr, *high = nullptr, *scales = nullptr, *minima = nullptr;
  uint8_t *factors = nullptr, *minimum_factors = nullptr;
};

/// `data`: rows as in a GGUF file, of Q8_0, Q4_0, Q4_K, Q6_K, F16 or BF16; fills `parts`.
void pack_blocks(GgmlType type, std::span<const std::byte> data, int64_t rows, int64_t columns,
                 const PackedParts& parts);

}  // namespace bm::models
