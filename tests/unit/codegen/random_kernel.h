#pragma once
// Random kernels whose results are exactly defined: no transcendental functions, and float sums
// only over small whole numbers, where every order of additions gives the same answer.

#include <cstdint>
#include <random>
#include <vector>

#include "compiler/ir/kernel.h"

namespace bm::test {

struct RandomKernel {
  ir::KernelIr kernel;
  std::vector<std::vector<std::byte>> buffers;  ///< initial contents, by param
  std::vector<int64_t> vars;
};

/// `size` scales extents and depth; the same seed gives the same kernel.
RandomKernel random_kernel(uint64_t seed);

}  // namespace bm::test
