#pragma once
// Linear view of an integer expression: constant + Σ coefficient·atom. The base of all index
// arithmetic.

#include <cstdint>
#include <vector>

#include "compiler/ir/node.h"

namespace bm::ir {

/// 128-bit arithmetic for bounds, so that they cannot overflow.
__extension__ typedef __int128 Wide;

struct Linear {
  struct Term {
    const Node* atom;     ///< not an add, sub, neg, constant or product with a constant
    int64_t coefficient;  ///< never 0
  };
  std::vector<Term> terms;  ///< sorted by atom id, each atom once
  int64_t constant = 0;

  /// Inclusive bounds over all iterations; loop indices are replaced by their (symbolic) extents
  /// first, so that `i - n` with i < n is known to be negative.
  int64_t upper() const;
  int64_t lower() const;
};

/// Exact modulo 2^64 for every int64 expression.
Linear linear(const Node* n);
Linear subtract(const Linear& a, const Linear& b);

/// Coefficient of `range` in index expression `n` when n = rest + coefficient·range with `rest`
/// independent of it; false when n depends on the range in another way (div, mod, load, …).
bool affine_stride(const Node* n, const Node* range, int64_t* stride);
/// Whether `n` depends on `range` at all.
bool depends_on(const Node* n, const Node* range);

}  // namespace bm::ir
