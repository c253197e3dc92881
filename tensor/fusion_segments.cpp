#include "tensor/fusion_segments.h"

#include <algorithm>
#include <unordered_map>

#include "compiler/compile.h"
#include "tensor/fusion_rows.h"
#include "tensor/lower.h"
#include "tensor/reshape.h"

namespace bm {
namespace {

/// Elements of a segment: lanes of a sub-group on any GPU.
constexpr int64_t kLength = 32;
/// Stored nodes that are looked at behind the first of a group.
constexpr size_t kMostApart = 8;
/// Nodes between a stored one and its reduction.
constexpr int kMostSteps = 16;

bool is_elementwise(const Node& n) {
  return n.kind == NodeKind::kAlu || n.kind == NodeKind::kCast || n.kind == NodeKind::kBitcast ||
         n.kind == NodeKind::kContiguous;
}

class SegmentSearch {
 public:
  SegmentSearch(const FusionPlan& plan, const Node* assigned) : plan_(plan), assigned_(assigned) {
    for (const NodePtr& n : plan.order)
      if (is_stored(n.get())) stored_.push_back(n);
    for (size_t i = 0; i < stored_.size(); ++i) number_[stored_[i].get()] = i;
  }

  std::vector<SegmentGroup> run() {
    std::vector<SegmentGroup> out;
    for (size_t i = 0; i < stored_.size(); ++i) {
      const Node* n = stored_[i].get();
      if (taken_.contains(n) || !may_join(*n) || !is_of_segments(*n)) continue;
      if (auto group = group_at(i)) {
        for (const NodePtr& member : group->nodes) taken_.insert(member.get());
        out.push_back(std::move(*group));
      }
    }
    return out;
  }

 private:
  using NodeSet = std::unordered_set<const Node*>;

  bool is_stored(const Node* n) const { return plan_.stored.contains(n); }

  bool may_join(const Node& n) const {
    return &n != assigned_ && n.kind != NodeKind::kCopy && max_elements(n.shape) > 0 &&
           n.device->hal().arch().vendor != hal::Vendor::kRef &&
           has_work_groups(n.device->hal().arch());
  }

  /// Whether elements of `n` are made of one reduction each, along a last axis of a segment.
  bool is_of_segments(const Node& n) const {
    std::vector<const Node*> stack{&n};
    for (int steps = 0; !stack.empty() && steps < kMostSteps; ++steps) {
      const Node* at = stack.back();
      stack.pop_back();
      if (at->is_realized() || (at != &n && is_stored(at))) continue;
      if (at->kind == NodeKind::kReduce) {
        const Shape& from = at->src[0]->shape;
        const bool is_last = at->ints == std::vector{static_cast<int64_t>(from.size()) - 1};
        if (is_last && from.back().is(kLength) && max_elements(at->shape) == max_elements(n.shape))
          return true;
      }
      if (is_elementwise(*at) || at->kind == NodeKind::kReshape)
        for (const NodePtr& s : at->src) stack.push_back(s.get());
    }
    return false;
  }

  /// Stored nodes that the kernel of `n` reads.
  const NodeSet& reads(const Node* n) {
    const auto [it, is_new] = reads_.try_emplace(n);
    if (!is_new) return it->second;
    NodeSet seen, found;
    std::vector<const Node*> stack{n};
    while (!stack.empty()) {
      const Node* at = stack.back();
      stack.pop_back();
      if (!seen.insert(at).second || at->is_realized()) continue;
      if (at != n && is_stored(at)) {
        found.insert(at);
        continue;
      }
      for (const NodePtr& s : at->src) stack.push_back(s.get());
    }
    return reads_[n] = std::move(found);
  }

  bool reads_any(const Node* n, const std::vector<NodePtr>& nodes) {
    return std::ranges::any_of(nodes, [&](const NodePtr& m) { return reads(n).contains(m.get()); });
  }

  /// Adjacent elements for segments of the same numbers, or segments.
  static bool has_extent(const Node& n, const Node& segments) {
    Shape all = segments.shape;
    all.emplace_back(kLength);
    return reshape_groups(n.shape, segments.shape) || reshape_groups(n.shape, all);
  }

  /// What the segments number `first` are of, where nobody else reads it before them.
  NodePtr source_of(size_t first) {
    const Node& segments = *stored_[first];
    for (const Node* s : reads(&segments)) {
      const size_t from = number_.at(s);
      Shape all = segments.shape;
      all.emplace_back(kLength);
      if (taken_.contains(s) || !may_join(*s) || s->device != segments.device ||
          !reshape_groups(s->shape, all) || first - from > kMostApart)
        continue;
      bool is_read = false;
      for (size_t i = from + 1; i < first; ++i) is_read |= reads(stored_[i].get()).contains(s);
      if (!is_read) return stored_[from];
    }
    return nullptr;
  }

  std::optional<SegmentGroup> group_at(size_t first) {
    const NodePtr& segments = stored_[first];
    SegmentGroup group{.nodes = {}, .segments = segments.get(), .length = kLength};
    if (const NodePtr source = source_of(first)) group.nodes.push_back(source);
    group.nodes.push_back(segments);
    if (group.nodes.size() > 1 && !is_one_kernel(group)) {
      group.nodes.clear();
      group.nodes.push_back(segments);
    }
    const size_t end = std::min(stored_.size(), first + kMostApart);
    for (size_t i = first + 1; i < end; ++i) {
      const NodePtr& n = stored_[i];
      if (!reads_any(n.get(), group.nodes)) continue;
      const bool fits = may_join(*n) && !taken_.contains(n.get()) &&
                        n->device == segments->device && has_extent(*n, *segments);
      if (!fits) break;
      group.nodes.push_back(n);
      if (is_one_kernel(group)) continue;
      group.nodes.pop_back();
      break;
    }
    return group.nodes.size() > 1 ? std::optional(std::move(group)) : std::nullopt;
  }

  bool is_one_kernel(const SegmentGroup& group) const {
    std::vector<const Node*> roots;
    for (const NodePtr& n : group.nodes) roots.push_back(n.get());
    const auto kernel = lower_segments(roots, *group.segments, group.length, [&](const Node* n) {
      return is_stored(n) && std::ranges::find(roots, n) == roots.end();
    });
    const Node& n = *group.segments;
    return kernel &&
           compiler::would_share_segments(kernel->ir, n.device->hal().arch(), n.device->renderer());
  }

  const FusionPlan& plan_;
  const Node* assigned_;
  std::vector<NodePtr> stored_;  ///< in the order of the plan
  std::unordered_map<const Node*, size_t> number_;
  std::unordered_map<const Node*, NodeSet> reads_;
  NodeSet taken_;
};

}  // namespace

std::vector<SegmentGroup> find_segment_groups(const FusionPlan& plan, const Node* assigned) {
  if (plan.stored.size() < 2) return {};
  return SegmentSearch(plan, assigned).run();
}

}  // namespace bm
