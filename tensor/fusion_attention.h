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

/// Looks for softmax(f(q·k))·v in `order` (sources first). `is_expensive(n)`: n is made by a
/// reduction in the same kernel. Only for devices whose kernels keep rows in working memory or
/// scores in registers: elsewhere scores would be computed once per element of the result.
/// `refused`: results that are none of attention's.
FusedNodes find_attention(std::span<const NodePtr> order, const FusionView& view,
                          const std::function<bool(const Node*)>& is_expensive,
                          const std::unordered_set<const Node*>& refused);

/// Results among `fused` whose kernels, `is_stored` given, their device's compiler does not do in
/// tiles: those must be made in other ways.
std::vector<const Node*> find_refused(const FusedNodes& fused,
                                      const std::function<bool(const Node*)>& is_stored);

}  // namespace bm
