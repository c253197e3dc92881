#pragma once
// Kernels around inner sums of products of 8-bit numbers, as quantised matrices have them.

#include <cstdint>

#include "compiler/ir/kernel.h"
#include "tests/unit/compiler/products.h"

namespace bm::test {

/// What is done to the bytes of the matrix before they are multiplied.
enum class Bytes { kWhole, kLow, kHigh, kMixed };

struct DotShape {
  int64_t vectors, rows, blocks;
  Bytes code = Bytes::kWhole;
  bool has_shift = true;         ///< an integer per block and vector is added to the inner sum
  bool is_packed = true;         ///< 16 rows side by side, word by word; false: one after another
  bool is_signed = false;        ///< the matrix is int8; its bytes are taken whole
  int64_t words = 8, width = 4;  ///< of a block: a loop over words around one over their numbers
  int64_t skipped = 0;           ///< numbers in front of the matrix
  int64_t padding = 0;           ///< and behind each of its rows, if they are one after another

  int64_t block() const { return words * width; }
  /// Whether words lie at multiples of four numbers.
  bool has_words() const { return width % 4 == 0 && skipped % 4 == 0 && padding % 4 == 0; }
};

/// out[v][n] = Σ_b float(Σ_{g,j} code(w) · x + shift[v][b]) · scale[n][b]
ir::KernelIr dot_sum_kernel(const DotShape& s);

/// Random bytes of every value; scales are 1 and -2: every sum is an integer that float32 holds.
Buffers dot_sum_buffers(const ir::KernelIr& k, uint32_t seed = 11);

/// What the reference makes of them.
Buffers evaluated(const ir::KernelIr& k, Buffers buffers);

}  // namespace bm::test
