#include "tensor/fusion_products.h"

#include <set>
#include <vector>

namespace bm {
namespace {

/// Results that read each element of an operand. From as many vectors on a product is worth matrix
/// instructions: the M of their tiles is 8 or 16.
constexpr int64_t kLeastReuse = 8;
/// Nodes of a product that are looked at before giving up.
constexpr size_t kMostNodes = 128;

bool is_movement(const Node& n) {
  switch (n.kind) {
    case NodeKind::kReshape:
    case NodeKind::kPermute:
    case NodeKind::kExpand:
    case NodeKind::kPad:
    case NodeKind::kShrink:
    case NodeKind::kFlip: return true;
    default: return false;
  }
}

bool is_pointwise(const Node& n) {
  return n.kind == NodeKind::kAlu || n.kind == NodeKind::kCast || n.kind == NodeKind::kBitcast;
}

/// Integer contractions inside are those of the blocks of quantised matrices.
bool is_passed(const Node& n) {
  return is_pointwise(n) || is_movement(n) ||
         (n.kind == NodeKind::kReduce && n.dtype == DType::kI32 &&
          n.reduce_op == ir::ReduceOp::kSum);
}

bool is_matrix_product(const Node& sum, const std::function<bool(const Node*)>& is_stored) {
  if (sum.kind != NodeKind::kReduce || sum.reduce_op != ir::ReduceOp::kSum) return false;
  const Node* product = sum.src[0].get();
  const int64_t terms = max_elements(product->shape);
  size_t operands = 0;
  std::set<const Node*> seen;
  std::vector<const Node*> stack{product};
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (!seen.insert(n).second) continue;
    if (seen.size() > kMostNodes) return false;
    if (n->kind == NodeKind::kConst || n->kind == NodeKind::kIota || n->kind == NodeKind::kVarValue)
      continue;
    if (is_passed(*n) && !n->is_realized() && !is_stored(n)) {
      for (const NodePtr& s : n->src) stack.push_back(s.get());
      continue;
    }
    const int64_t elements = max_elements(n->shape);
    if (elements == 0 || terms / elements < kLeastReuse) return false;
    ++operands;
  }
  return operands >= 2;
}

}  // namespace

const Node* find_matrix_product(const Node& n, const std::function<bool(const Node*)>& is_stored) {
  const Node* sum = &n;
  if (n.kind == NodeKind::kCast) {
    sum = n.src[0].get();
    while (is_movement(*sum) && !sum->is_realized() && !is_stored(sum)) sum = sum->src[0].get();
    if (item_size(n.dtype) >= item_size(sum->dtype)) return nullptr;
  }
  if (sum->is_realized() || (sum != &n && is_stored(sum))) return nullptr;
  return is_matrix_product(*sum, is_stored) ? sum : nullptr;
}

}  // namespace bm
