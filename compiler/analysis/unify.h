#pragma once
// One loop index for reductions and output loops that run over the same thing, so that what they
// have in common is one expression.

#include "compiler/ir/kernel.h"

namespace bm::compiler {

/// Gives reductions that do not depend on every output loop, and those around them, the ranges of
/// output loops or of each other where extents are equal and nothing is captured. The kernel
/// computes the same; kernels without such a reduction stay as they are.
void unify_ranges(ir::KernelIr* kernel);

}  // namespace bm::compiler
