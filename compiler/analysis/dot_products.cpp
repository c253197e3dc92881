#include "compiler/analysis/dot_products.h"

#include <algorithm>
#include <utility>

#include "compiler/analysis/affine.h"

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

/// Longest inner sum that is unrolled.
constexpr int64_t kMaxInner = 64;

const Node* without_cast(const Node* n) {
  return n->op == Op::kCast && item_size(n->src[0]->dtype) == 1 && !is_bool(n->src[0]->dtype)
             ? n->src[0]
             : nullptr;
}

/// Whether four iterations of `along` can be computed as one word: contiguous loads, bitwise
/// operations and shifts by constants on them, and single bits that fill their byte. `loads` takes
/// what is loaded.
bool is_bytewise(const Node* n, const Node* along, std::vector<const Node*>* loads) {
  switch (n->op) {
    case Op::kConst: return true;
    case Op::kLoad: {
      loads->push_back(n);
      return n->src.size() == 1 && Strides(along, 0).stride(n->src[0]) == 1;
    }
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
      return is_bytewise(n->src[0], along, loads) && is_bytewise(n->src[1], along, loads);
    case Op::kMul:
      return n->dtype == DType::kU8 && n->src[1]->is_const() && n->src[1]->imm == 255 &&
             n->src[0]->lo >= 0 && n->src[0]->hi <= 1 && is_bytewise(n->src[0], along, loads);
    case Op::kShl:
    case Op::kShr:
      return n->dtype == DType::kU8 && n->src[1]->is_const() && n->src[1]->imm >= 0 &&
             n->src[1]->imm < 8 && is_bytewise(n->src[0], along, loads);
    default: return false;
  }
}

/// Puts the factors in the order of a kind, or says that there is none.
bool choose_kind(const TargetInfo& target, DotPlan* plan) {
  if (plan->left->dtype != DType::kU8) std::swap(plan->left, plan->right);
  if (plan->right->dtype != DType::kI8) return false;
  const bool has_signed = target.has_dot(DotKind::kS8S8, 1);
  const bool is_mixed = plan->left->dtype == DType::kU8;
  // Seven bits are the same number with a sign.
  const bool fits_signed = is_mixed && plan->left->hi <= 127 && !target.has_dot(DotKind::kU8S8, 1);
  plan->kind = has_signed && (!is_mixed || fits_signed) ? DotKind::kS8S8 : DotKind::kU8S8;
  return is_mixed || has_signed;
}

}  // namespace

bool InnerDot::has_aligned_words() const {
  Strides words(plan.along, 4);
  const auto is_aligned = [&](const Node* load) { return words.align(load->src[0]) % 4 == 0; };
  return std::ranges::all_of(left_loads, is_aligned) &&
         std::ranges::all_of(right_loads, is_aligned);
}

bool InnerDot::has_contiguous(const Node* range, int64_t count) const {
  Strides near(range, count);
  const auto are_all = [&](const std::vector<const Node*>& loads, int64_t stride) {
    return std::ranges::all_of(
        loads, [&](const Node* load) { return near.stride(load->src[0]) == stride; });
  };
  return (are_all(left_loads, 4) && are_all(right_loads, 0)) ||
         (are_all(left_loads, 0) && are_all(right_loads, 4));
}

std::optional<InnerDot> find_inner_dot(const Node* reduce, const TargetInfo& target) {
  const Node* product = reduce->src[0];
  if (reduce->reduce_op() != ir::ReduceOp::kSum || reduce->dtype != DType::kI32 ||
      product->op != Op::kMul)
    return std::nullopt;
  InnerDot dot;
  dot.plan.left = without_cast(product->src[0]);
  dot.plan.right = without_cast(product->src[1]);
  if (!dot.plan.left || !dot.plan.right || !choose_kind(target, &dot.plan)) return std::nullopt;
  int64_t inner = 1;
  for (size_t i = 1; i < reduce->src.size(); ++i) {
    const Node* extent = reduce->src[i]->src[0];
    if (!extent->is_const() || extent->imm < 1 || extent->imm > kMaxInner) return std::nullopt;
    inner *= extent->imm;
  }
  if (inner > kMaxInner) return std::nullopt;
  for (size_t i = 1; i < reduce->src.size(); ++i) {
    const Node* range = reduce->src[i];
    dot.left_loads.clear();
    dot.right_loads.clear();
    if (range->src[0]->imm % 4 == 0 && is_bytewise(dot.plan.left, range, &dot.left_loads) &&
        is_bytewise(dot.plan.right, range, &dot.right_loads)) {
      dot.plan.along = range;
      return dot;
    }
  }
  return std::nullopt;
}

}  // namespace bm::compiler
