#pragma once
// Products of matrices and buffers of small numbers, for tests of several targets.

#include <cstddef>
#include <span>
#include <vector>

#include "compiler/ir/kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {

/// What becomes of a sum before it is stored.
enum class Tail { kNone, kScale, kResidual, kSilu, kGelu };

struct Product {
  DType in = DType::kF16, sum = DType::kF32, out = DType::kF32;
  int64_t m = 64, n = 64, k = 64, batches = 1;
  bool is_left_transposed = false;  ///< [k][m] in memory
  bool is_right_deep = false;       ///< [n][k] in memory
  bool has_epilogue = false;        ///< max(sum + bias[column], 0)
  Tail tail = Tail::kNone;          ///< of the sum, or of what the line above makes of it
  bool has_symbolic_rows = false;   ///< M is the variable 0, at most `m`
};
/// out[b][i][j] = Σ_k left[b][i][k]·right[b][k][j], operands widened before they are multiplied.
ir::KernelIr product_kernel(const Product& p);
/// Kernels of many kinds, products of every dtype among them.
std::vector<ir::KernelIr> corpus();

/// Writes one number as `t`.
void put(DType t, double v, std::byte* at);
/// Outputs of zeros, inputs of small numbers: 1 … 13.
Buffers small_numbers(const ir::KernelIr& kernel);
/// Largest difference of the written params, relative to results above 1.
double difference(const ir::KernelIr& kernel, const Buffers& got, const Buffers& want);
/// From what the reference gives.
double worst_difference(const ir::KernelIr& kernel, const Buffers& got, const Buffers& start,
                        std::span<const int64_t> vars);
/// From what the CPU gives: the reference takes long for large products.
double difference_from_cpu(const ir::KernelIr& kernel, const Buffers& got, const Buffers& start);
/// What the two above may be.
double tolerance(const ir::KernelIr& kernel);

}  // namespace bm::test
