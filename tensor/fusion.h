#pragma once
// Fusion: which nodes of a lazy graph get storage of their own; everything else is computed inside
// the kernels that use it.

#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tensor/node.h"

namespace bm {

struct FusionPlan {
  std::vector<NodePtr> order;              ///< unrealised nodes, sources before users
  std::unordered_set<const Node*> stored;  ///< nodes that get storage
};

/// `roots` always get storage. Nodes on an interpreting device (REF) all do.
FusionPlan plan_fusion(std::span<const NodePtr> roots);

}  // namespace bm
