#pragma once
// Lowering: one stored node and everything fused into it → one KernelIr. Movement operations become
// index arithmetic here.

#include <functional>
#include <span>
#include <vector>

#include "compiler/ir/kernel.h"
#include "tensor/node.h"

namespace bm {

/// Kernel plus what its arguments are.
struct LoweredKernel {
  ir::KernelIr ir;
  std::vector<const Node*>
      params;  ///< node whose storage each param is; params[0] is the destination
  std::vector<Var> vars;
  bool reads_destination_elsewhere =
      false;  ///< a load of the destination's storage at another element
};

/// `is_stored(n)`: n's storage is to be read instead of computing n.
/// `target`: null, or a view (movement nodes over a realised node) the result is written through;
/// params[0] is then the realised node under it.
/// Errors: kInternal when the result does not verify.
Result<LoweredKernel> lower(const Node& root, const Node* target,
                            const std::function<bool(const Node*)>& is_stored);

/// Several results in one kernel: `roots` have as many elements as there are segments, or `length`
/// times as many, and none of them is a source that is_stored() names. Segments are numbered as the
/// elements of `segments`, one of the roots. Errors: as above; kUnsupported where shapes differ in
/// another way.
Result<LoweredKernel> lower_segments(std::span<const Node* const> roots, const Node& segments,
                                     int64_t length,
                                     const std::function<bool(const Node*)>& is_stored);

}  // namespace bm
