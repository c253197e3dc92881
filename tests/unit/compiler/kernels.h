#pragma once
// Small kernels used by several tests.

#include <optional>

#include "compiler/ir/kernel.h"
#include "runtime/hal/arch.h"

namespace bm::test {

/// out[i] = f(in…[i]) for i < n.
ir::KernelIr map_kernel(ir::Op op, DType out, std::span<const DType> in, int64_t n);
/// out[i][j] = Σ_k a[i][k]·b[k][j], or b[j][k] when `is_b_transposed`.
ir::KernelIr matmul_kernel(int64_t m, int64_t n, int64_t k, DType t, bool is_b_transposed = false);
/// out[i] = reduce over columns of in[rows][columns], or out[j] over rows.
ir::KernelIr reduce_kernel(ir::ReduceOp op, DType t, int64_t rows, int64_t columns,
                           bool is_over_rows);
/// Row-wise softmax of float32 [rows][columns] in one kernel (base 2 exponential).
ir::KernelIr softmax_kernel(int64_t rows, int64_t columns);

/// out[i][j] = in[j][i].
ir::KernelIr transpose_kernel(int64_t rows, int64_t columns, DType t);
/// 3×3 convolution with padding 1 over float32 [c][h][w] with weights [k][c][3][3].
ir::KernelIr convolution_kernel(int64_t k, int64_t c, int64_t h, int64_t w);
/// out[i] = Σ over j < n of in[i·max + j], i < m: both extents are variables (n, m).
ir::KernelIr symbolic_row_sums(int64_t max_n, int64_t max_m);
/// Attention of one query a head, 512 float32 keys of 64 elements or fewer, over a part of the
/// keys, as split for `arch`; nothing: it has no decode attention.
std::optional<ir::KernelIr> decode_attention_kernel(const hal::Arch& arch);

}  // namespace bm::test
