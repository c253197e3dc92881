#pragma once
// Operands of products that never change are brought into the order they are multiplied in once,
// by a kernel of their own.

#include <optional>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"

namespace bm::compiler {

/// A kernel in two. Both are ordinary kernels: any schedule of `main` gives what the kernel gave.
struct PackedKernel {
  ir::KernelIr pack;  ///< param 0: the panels, all of which it writes; param 1: the operand
  ir::KernelIr main;  ///< the kernel's params, then the panels
  int operand = 0;    ///< param of the kernel that is packed
};

/// Nothing where there is no such operand or packing it each time costs little, where panels take
/// more memory than the operand, and on targets with work-groups. `is_constant`: by param, whether
/// its contents stay the same from run to run.
std::optional<PackedKernel> pack_constants(const ir::KernelIr& kernel, const TargetInfo& target,
                                           uint32_t units, const std::vector<bool>& is_constant);

}  // namespace bm::compiler
