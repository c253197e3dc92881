#pragma once
// Two-pass (split) reduction: long reductions to few results, in two kernels. Of contractions on
// CPUs: split-K GEMM.

#include <optional>

#include "tensor/primitives.h"

namespace bm {

/// reduce() over `axes` (sorted, of more than one element each) by way of results of parts that
/// are stored; nothing where one step is as good.
std::optional<Tensor> reduce_in_two_passes(ir::ReduceOp op, const Tensor& a, const Axes& axes);

}  // namespace bm
