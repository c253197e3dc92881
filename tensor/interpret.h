#pragma once
// The reference device: one tensor node at a time, plain loops over host arrays. Oracle of the
// tests, so it shares nothing with the scheduler or the compiler, and is written to be read.

#include <cstddef>
#include <span>

#include "runtime/base/result.h"
#include "tensor/node.h"

namespace bm {

/// Evaluates `node` into `out`. `sources[i]` holds the value of node.src[i].
///
/// Layout: every array is row-major over its shape's largest values; only the part inside the
/// current values (Var::value at the time of the call) is read and written.
/// Numbers: floats are computed in float64 and rounded once to node.dtype, sums and products of
/// floats accumulate in float64; integers wrap; everything else as documented at ir::Op.
/// Errors: kInvalidArgument for kinds without a value of their own (kBuffer, kCopy), operations
/// that do not exist on the dtype, or a wrong number of sources.
Status interpret(const Node& node, std::span<const std::byte* const> sources, std::byte* out);

}  // namespace bm
