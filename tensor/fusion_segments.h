#pragma once
// Several results of one pass over adjacent elements: what is quantised in blocks gives codes, a
// scale and a sum of each block, which one kernel of a GPU makes, with what is normalised before.

#include <vector>

#include "tensor/fusion.h"

namespace bm {

/// Stored nodes that one kernel computes, sources before users, where the last of them would be.
struct SegmentGroup {
  std::vector<NodePtr> nodes;
  const Node* segments = nullptr;  ///< one of them: an element for every segment
  int64_t length = 0;              ///< of a segment
};

/// Groups of at least two stored nodes, none of which is `assigned` (nullptr: none is written
/// elsewhere than to its own storage). A group asks for nothing that is stored after its last node,
/// and nobody else asks for its nodes before.
std::vector<SegmentGroup> find_segment_groups(const FusionPlan& plan, const Node* assigned);

}  // namespace bm
