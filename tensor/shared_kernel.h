#pragma once
// Constants hoisted into kernel parameters: kernels that differ in constants only become one.

#include <cstdint>
#include <vector>

#include "compiler/ir/kernel.h"

namespace bm {

/// Name of variables that hold the bits of a constant; they are the same at every launch.
inline constexpr const char* kConstantName = "constant";

/// What a launch of a shared kernel has to say.
struct KernelConstants {
  std::vector<int64_t> values;  ///< of the variables that were appended to KernelIr::vars
  std::vector<int64_t> first;   ///< by param: the element that the kernel takes for its first one
};

/// Takes float32 constants out of additions, subtractions and multiplications, the number out of
/// kernels that only store one, and, where `moves`, constant offsets (in steps of 256 bytes) out of
/// the indices of params that are only read. What the kernel computes stays the same to the last
/// bit.
///
/// Left alone: numbers that code generators do something with (0, 1, −1, infinities, NaN,
/// divisors), and offsets of params that some load gates, since those indices may lie anywhere.
KernelConstants share_kernel(ir::KernelIr& kernel, bool moves);

}  // namespace bm
