#pragma once
// Quantised blocks in the order kernels read them.
//
// Layout of packed matrices, for R = rows/16 and C = columns/32. Bytes of four adjacent columns
// lie together, for 16 rows interleaved: one load holds what one dot product instruction takes.
// Codes are divided in planes of 8, 4, 2 or 1 bits (BlockFormat::low_bits, high_bits). A plane of b
// bits is [R, C, b, 16, 4] uint8: of the eight groups of four columns in a block of 32, group g
// lies in word g % b, at bit b·(g / b). Beside them, S being the groups of a block that share a
// scale (1 of 32 values or 2 of 16):
//   scales, minima   [R, C, S, 16], without the S where it is 1; as the format has them
//   factors          [R, C/8, 16] float16, of formats with blocks of 256; the minima's likewise
//   F16, BF16        codes [rows/32, columns, 32]: the numbers
// Rows are filled up to sixteen (thirty-two) with zeros.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "models/quant.h"

namespace bm::models {

inline constexpr int64_t kPackedRows = 16;    ///< interleaved
inline constexpr int64_t kPackedBlock = 32;   ///< columns that share a scale of the vectors
inline constexpr int64_t kPackedSuper = 256;  ///< columns that share a factor
inline constexpr int64_t kPackedElements =
    32;  ///< interleaved rows of F32, F16 and BF16: whole cache lines

/// Where the parts of a packed matrix lie in host memory; those a format lacks are nullptr.
struct PackedParts {
  uint8_t *codes = nullptr, *high = nullptr, *scales = nullptr, *minima = nullptr;
  uint8_t *factors = nullptr, *minimum_factors = nullptr;
};

/// `data`: rows as in a GGUF file, of F32, F16, BF16 or a format of quant_blocks.h; fills `parts`,
/// but not the rows that fill up the last sixteen. `done`: called by several threads for parts of
/// `data` that are not read again.
void pack_blocks(GgmlType type, std::span<const std::byte> data, int64_t rows, int64_t columns,
                 const PackedParts& parts,
                 const std::function<void(std::span<const std::byte>)>& done = {});

}  // namespace bm::models
