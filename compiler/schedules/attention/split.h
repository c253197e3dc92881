#pragma once
// Decode attention split over keys (flash-decoding): one kernel for parts of the keys, each with a
// result of its own and its log-sum-exp, and one that joins them.

#include <cstdint>
#include <optional>

#include "compiler/ir/kernel.h"
#include "compiler/targets/target.h"

namespace bm::compiler {

/// Param 0 of `parts` is a workspace of `elements` float32, its others are those of the kernel.
/// `merge` has the kernel's param 0 and, as param 1, the workspace. Variables are the kernel's.
struct SplitAttention {
  ir::KernelIr parts, merge;
  int64_t elements = 0;
};

/// For attention of few queries with keys of any number, known at launch or before, where a
/// schedule of the device takes the parts (attention.decode). How many parts there are depends on
/// the device and on extents that are known here alone, so that what is computed for a sequence
/// does not depend on others.
std::optional<SplitAttention> split_attention(const ir::KernelIr& kernel, const TargetInfo& target,
                                              uint32_t units);

}  // namespace bm::compiler
