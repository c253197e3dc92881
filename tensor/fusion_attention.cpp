#include "tensor/fusion_attention.h"

#include <algorithm>
#include <optional>

namespace bm {
namespace {

constexpr size_t kMaxSteps = 128;
/// Two rows of logits for a few queries at once stay within L2.
constexpr uint64_t kCacheShare = 32;

bool is_elementwise(const Node& n) {
  return n.kind == NodeKind::kAlu || n.kind == NodeKind::kCast || n.kind == NodeKind::kBitcast;
}

/// What one value of a node stands for, from the logits on.
enum class Level : uint8_t {
  kScore,   ///< one query and one position
  kRow,     ///< one query
  kWeight,  ///< one query, position and element of the result
  kResult,  ///< one query and element of the result
};

struct State {
  const Node* node;
  Level level;
  int64_t axis;  ///< of positions
};

/// Axis that `axis` becomes where a reshape only adds or drops axes of size 1; -1 for one of these.
std::optional<int64_t> moved_axis(const Shape& from, const Shape& to, int64_t axis) {
  std::vector<int64_t> a, b;
  for (size_t i = 0; i < from.size(); ++i)
    if (!from[i].is(1)) a.push_back(static_cast<int64_t>(i));
  for (size_t i = 0; i < to.size(); ++i)
    if (!to[i].is(1)) b.push_back(static_cast<int64_t>(i));
  if (a.size() != b.size()) return std::nullopt;
  int64_t out = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(from[static_cast<size_t>(a[i])] == to[static_cast<size_t>(b[i])])) return std::nullopt;
    if (a[i] == axis) out = b[i];
  }
  return out;
}

class Search {
 public:
  Search(const FusionView& view, const Node* logits, int64_t axis)
      : view_(view), logits_(logits), axis_(axis) {}

  /// Nodes from the logits to the result, without it; empty: no attention.
  std::vector<const Node*> run() {
    std::vector<State> stack{{logits_, Level::kScore, axis_}};
    std::vector<const Node*> kept;
    std::unordered_map<const Node*, Level> seen;
    while (!stack.empty()) {
      const State from = stack.back();
      stack.pop_back();
      const auto [known, is_new] = seen.emplace(from.node, from.level);
      if (!is_new) {
        if (known->second != from.level) return {};
        continue;
      }
      if (kept.size() > kMaxSteps || view_.is_stored(from.node)) return {};
      kept.push_back(from.node);
      if (view_.users(from.node).empty()) return {};
      for (const Node* user : view_.users(from.node)) {
        const std::optional<State> to = step(user, from);
        if (!to) return {};
        if (to->level != Level::kResult) {
          stack.push_back(*to);
        } else if (result_ && result_ != user) {
          return {};
        } else {
          result_ = user;
        }
      }
    }
    if (!result_) return {};
    extend(&kept);
    return kept;
  }

  const Node* result() const { return result_; }

 private:
  /// What is only another form of the result belongs to the same kernel.
  void extend(std::vector<const Node*>* kept) {
    std::vector<const Node*> passed;
    for (const Node* n = result_; !view_.is_stored(n) && view_.users(n).size() == 1;) {
      const Node* user = view_.users(n)[0];
      const bool is_value = is_elementwise(*user) || user->kind == NodeKind::kContiguous;
      if (!is_value && (user->kind != NodeKind::kReshape || !moved_axis(n->shape, user->shape, 0)))
        return;
      passed.push_back(n);
      n = user;
      if (!is_value && !view_.is_stored(user)) continue;
      result_ = user;
      kept->insert(kept->end(), passed.begin(), passed.end());
      passed.clear();
    }
  }

  std::optional<State> step(const Node* user, const State& from) const {
    if (is_elementwise(*user)) return State{user, from.level, from.axis};
    const Node& n = *from.node;
    if (user->kind == NodeKind::kReshape && from.level != Level::kRow) {
      const auto axis = moved_axis(n.shape, user->shape, from.axis);
      if (!axis || *axis < 0) return std::nullopt;
      return State{user, from.level, *axis};
    }
    if (user->kind == NodeKind::kReduce) {
      if (user->ints != std::vector<int64_t>{from.axis}) return std::nullopt;
      if (from.level == Level::kScore) return State{user, Level::kRow, from.axis};
      const bool is_sum = user->reduce_op == ir::ReduceOp::kSum;
      if (from.level != Level::kWeight || !is_sum) return std::nullopt;
      return State{user, Level::kResult, from.axis};
    }
    if (user->kind != NodeKind::kExpand) return std::nullopt;
    std::vector<int64_t> grown;
    for (size_t i = 0; i < n.shape.size(); ++i)
      if (!(n.shape[i] == user->shape[i])) grown.push_back(static_cast<int64_t>(i));
    const bool is_back = grown == std::vector<int64_t>{from.axis};
    if (from.level == Level::kRow && is_back) return State{user, Level::kScore, from.axis};
    if (from.level == Level::kScore && !is_back) return State{user, Level::kWeight, from.axis};
    return std::nullopt;
  }

  const FusionView& view_;
  const Node* logits_;
  int64_t axis_;
  const Node* result_ = nullptr;
};

/// Queries of one head that have their logits in working memory, row by row; more of them are done
/// in tiles of queries and keys, which take rows of any length.
constexpr int64_t kFewQueries = 8;

bool is_cpu(const hal::Arch& arch) {
  return arch.vendor == hal::Vendor::kCpu ||
         (arch.vendor == hal::Vendor::kNull && arch.max_block == 1);
}

bool is_worth(const Node& max) {
  const hal::Arch& arch = max.device->hal().arch();
  if (max.reduce_op != ir::ReduceOp::kMax || max.ints.size() != 1) return false;
  const Shape& shape = max.src[0]->shape;
  const auto axis = static_cast<size_t>(max.ints[0]);
  const SymInt& positions = shape[axis];
  if (!is_cpu(arch)) return axis > 0 && max.dtype == DType::kF32;
  if (axis > 0 && shape[axis - 1].max() > kFewQueries)
    return max.dtype == DType::kF32 || max.dtype == DType::kF64;
  const auto bytes = static_cast<uint64_t>(positions.max() * item_size(max.dtype));
  return !positions.is(1) && bytes * kCacheShare <= arch.l2_bytes;
}

}  // namespace

FusedNodes find_attention(std::span<const NodePtr> order, const FusionView& view,
                          const std::function<bool(const Node*)>& is_expensive,
                          const KernelQuestion& is_one_kernel) {
  FusedNodes fused;
  for (const NodePtr& n : order) {
    if (n->kind != NodeKind::kReduce || view.is_stored(n.get()) || !is_worth(*n)) continue;
    const Node* logits = n->src[0].get();
    if (logits->is_realized() || view.is_stored(logits) || fused.contains(logits) ||
        !is_expensive(logits))
      continue;
    Search search(view, logits, n->ints[0]);
    std::vector<const Node*> found = search.run();
    if (found.empty()) continue;
    const bool keeps_rows = is_cpu(n->device->hal().arch());
    if (!keeps_rows && !is_one_kernel(&found, search.result())) continue;
    for (const Node* k : found) fused[k] = search.result();
  }
  return fused;
}

}  // namespace bm
