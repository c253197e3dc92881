#pragma once
// GEMM among the reductions of a graph: a kernel of a GPU holds one at most, since
// its tiles and matrix instructions are made for one.

#include <functional>

#include "tensor/node.h"

namespace bm {

/// The sum over products that `n` is (GEMM, convolution; of quantised blocks too), or rounds to a
/// narrower type and nobody else uses: each operand is read for many results. nullptr: none, or one
/// that memory bounds (GEMV), which is better off beside another that reads the same vector.
const Node* find_matrix_product(const Node& n, const std::function<bool(const Node*)>& is_stored);

}  // namespace bm
