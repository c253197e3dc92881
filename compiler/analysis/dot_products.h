#pragma once
// Int8 dot products (dp4a, VNNI): which inner reductions of int8 elements can be done by them.

#include <optional>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/node.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

struct InnerDot {
  DotPlan plan;
  std::vector<const ir::Node*> left_loads, right_loads;

  /// Whether every word begins at a multiple of four elements of its param.
  bool has_aligned_words() const;
  /// Whether `count` consecutive iterations of an output loop, from a multiple of it on, have
  /// contiguous words of one factor and share those of the other.
  bool has_contiguous(const ir::Node* range, int64_t count) const;
};

/// Int8 dot product: a short sum over products of uint8 and int8 elements, or of int8 where
/// `target` has an instruction for them, whose factors are the same bytewise function of four
/// contiguous elements.
std::optional<InnerDot> find_inner_dot(const ir::Node* reduce, const TargetInfo& target);

}  // namespace bm::compiler
