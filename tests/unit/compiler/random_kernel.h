#pragma once
// Random kernels whose results are exactly defined: no transcendental functions, and float sums
// only over small whole numbers, where every order of additions gives the same answer.

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/kernel.h"

namespace bm::test {

struct RandomKernel {
  ir::KernelIr kernel;
  std::vector<std::vector<std::byte>> buffers;  ///< initial contents, by param
  std::vector<int64_t> vars;
  /// Most a float may differ, relative to the largest value of its buffer; 0: to the last bit.
  double tolerance = 0;
  std::string text;  ///< what was drawn, for people
};

/// The same seed gives the same kernel.
RandomKernel random_kernel(uint64_t seed);

/// What is multiplied: floats of any width, pairs of bfloat16, bytes of either sign.
enum class Factors : uint8_t { kAny, kBF16, kBytes };
/// Sums of products of at most about `most_work` multiplications.
RandomKernel random_panels(uint64_t seed, Factors factors, int64_t most_work = 250'000);
RandomKernel random_attention(uint64_t seed);
/// The same of 16-bit floats in sizes that matrix instructions take, more often than not.
RandomKernel random_tiled_attention(uint64_t seed);

/// Kernels of the shapes that have schedules of their own, sizes and layouts drawn: products of
/// matrices with prologues and epilogues, convolutions, row kernels (softmax, norms), attention,
/// sums along columns, transpositions, gathers, scans, quantised products.
RandomKernel random_pattern(uint64_t seed);
/// Name of the pattern `seed` draws: "matmul", "convolution", …
std::string_view pattern_name(uint64_t seed);

}  // namespace bm::test
