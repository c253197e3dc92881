#pragma once
// How the axes of two shapes with equal element counts correspond.

#include <vector>

#include "runtime/base/result.h"
#include "tensor/symint.h"

namespace bm {

/// Axes [src_begin, src_end) hold the same elements in the same order as [dst_begin, dst_end).
/// A symbolic axis is the outermost of its group, so that index arithmetic needs constants only.
struct ReshapeGroup {
  size_t src_begin, src_end, dst_begin, dst_end;
};

/// Errors: kInvalidArgument when element counts differ; kUnsupported when a symbolic axis would be
/// merged as an inner axis.
Result<std::vector<ReshapeGroup>> reshape_groups(const Shape& src, const Shape& dst);

/// The dimension to put at `at` (given as -1) so that the counts agree. Throws naming both shapes.
SymInt infer_dimension(const Shape& src, const Shape& wanted, size_t at);

}  // namespace bm
