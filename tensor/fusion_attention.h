#pragma once
// Attention in one kernel: logits Q·Kᵀ, their softmax and P·V, so that no matrix of logits is
// materialised.

#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tensor/fusion_rows.h"

namespace bm {

/// Nodes that stay in the kernel of another one, which must get storage.
using FusedNodes = std::unordered_map<const Node*, const Node*>;

/// Whether the device's compiler makes one kernel of `result` in which `nodes` stay. Adds to them
/// what else stays there: operands that are computed where they are read.
using KernelQuestion = std::function<bool(std::vector<const Node*>* nodes, const Node* result)>;

/// Looks for rows of logits in `order` (sources first) all of whose uses meet in one sum along the
/// row, as those of softmax(f(q·k))·v do. Only how values move is looked at here: what is computed
/// of them is the compiler's to recognise (compiler/schedules/attention/find.cpp).
/// `is_expensive(n)`: n is made by a reduction in the same kernel. `is_one_kernel` is asked once
/// for every such row, where kernels do not keep it in working memory: without tiles of attention,
/// logits would be computed once per element of the result.
FusedNodes find_attention(std::span<const NodePtr> order, const FusionView& view,
                          const std::function<bool(const Node*)>& is_expensive,
                          const KernelQuestion& is_one_kernel);

}  // namespace bm
