#include "tensor/fusion.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "tensor/fusion_attention.h"
#include "tensor/fusion_rows.h"

namespace bm {
namespace {

// Costs are in rough scalar operations per element.
constexpr int kMaxFusedCost =
    160;  ///< a larger expression is cut: compile time and register pressure
constexpr int kMaxSharedCost = 24;  ///< recomputed by several kernels rather than stored up to here
constexpr int kMaxRepeatedCost = 2;  ///< recomputed per broadcast copy up to here
constexpr int kMaxInnerSum = 64;     ///< products of an inner sum
constexpr int kMaxBuffers = 24;      ///< distinct storages one kernel reads

bool is_elementwise(const Node& n) {
  return n.kind == NodeKind::kAlu || n.kind == NodeKind::kCast || n.kind == NodeKind::kBitcast;
}
/// Every element of the source is used exactly once.
bool is_bijective(const Node& n) {
  return is_elementwise(n) || n.kind == NodeKind::kReshape || n.kind == NodeKind::kPermute ||
         n.kind == NodeKind::kFlip;
}

int own_cost(const Node& n) {
  if (n.kind == NodeKind::kCast || n.kind == NodeKind::kGather || n.kind == NodeKind::kPad)
    return 1;
  if (n.kind != NodeKind::kAlu) return 0;
  switch (n.op) {
    case ir::Op::kExp2:
    case ir::Op::kLog2:
    case ir::Op::kSin: return 10;
    case ir::Op::kDiv:
    case ir::Op::kMod:
    case ir::Op::kSqrt:
    case ir::Op::kRecip: return 3;
    default: return 1;
  }
}

/// Short integer sums of products of 8-bit numbers, as blocks of quantised matrices have: part of
/// the sum around them, and nothing on their own.
bool is_inner_sum(const Node& n) {
  const Node& product = *n.src[0];
  if (n.kind != NodeKind::kReduce || n.dtype != DType::kI32 || product.kind != NodeKind::kAlu ||
      product.op != ir::Op::kMul)
    return false;
  for (const NodePtr& factor : product.src)
    if (factor->kind != NodeKind::kCast || item_size(factor->src[0]->dtype) != 1) return false;
  int64_t length = 1;
  for (const int64_t axis : n.ints) {
    const SymInt& extent = product.shape[static_cast<size_t>(axis)];
    if (!extent.is_const() || extent.constant() > kMaxInnerSum) return false;
    length *= extent.constant();
  }
  return length <= kMaxInnerSum;
}

struct Facts {
  int cost = 0;     ///< of computing one element inside a kernel, sources included
  int buffers = 0;  ///< upper bound of distinct storages read
  bool reads_memory = false;
  bool has_reduce = false;  ///< a reduction is reachable through bijective nodes only
  int64_t reduced = 0;      ///< elements that the largest of those reductions goes over
  const Node* sink =
      nullptr;  ///< the only stored node that uses it, element for element; null: none or several
  const Node* kernel = nullptr;  ///< the only stored node that uses it at all; null: several
  double copies = 1;             ///< how often each element is evaluated
  std::vector<const Node*> users;
};

class Planner {
 public:
  Planner(std::span<const NodePtr> roots, const std::unordered_set<const Node*>& refused)
      : roots_(roots), refused_(refused), view_(make_view()), rows_(view_) {}

  FusionPlan run() {
    collect();
    for (const NodePtr& r : roots_)
      if (!r->is_realized()) store(r.get());
    for (const NodePtr& n : plan_.order) visit_bottom_up(n.get());
    fused_ = find_attention(
        plan_.order, view_, [this](const Node* n) { return facts_[n].has_reduce; }, refused_);
    for (const auto& [node, result] : fused_) store(result);
    for (auto it = plan_.order.rbegin(); it != plan_.order.rend(); ++it) visit_top_down(it->get());
    return std::move(plan_);
  }

  const FusedNodes& fused() const { return fused_; }

 private:
  std::span<const NodePtr> roots_;
  const std::unordered_set<const Node*>& refused_;
  FusionPlan plan_;
  std::unordered_map<const Node*, Facts> facts_;
  FusionView view_;
  RowRules rows_;
  FusedNodes fused_;

  /// What the rules of rows and attention see of this plan.
  FusionView make_view() {
    FusionView view;
    view.is_stored = [this](const Node* n) { return is_stored(n); };
    view.users = [this](const Node* n) -> const auto& { return facts_[n].users; };
    return view;
  }

  bool is_stored(const Node* n) const { return plan_.stored.count(n) != 0; }
  void store(const Node* n) { plan_.stored.insert(n); }

  void collect() {
    std::unordered_set<const Node*> seen;
    std::vector<std::pair<NodePtr, size_t>> stack;
    for (const NodePtr& r : roots_) {
      if (r->is_realized() || !seen.insert(r.get()).second) continue;
      stack.push_back({r, 0});
      while (!stack.empty()) {
        auto& [n, next] = stack.back();
        if (next == n->src.size()) {
          plan_.order.push_back(std::move(n));
          stack.pop_back();
          continue;
        }
        const NodePtr& s = n->src[next++];
        if (!s->is_realized() && seen.insert(s.get()).second) stack.push_back({s, 0});
      }
    }
    for (const NodePtr& n : plan_.order)
      for (const NodePtr& s : n->src)
        if (!s->is_realized()) {
          auto& users = facts_[s.get()].users;
          if (users.empty() || users.back() != n.get()) users.push_back(n.get());
        }
  }

  /// Whether what a reduction gives is stored before `user` reads it, other than element for
  /// element. Without this a long network is one expression, and is cut wherever that grows too
  /// large.
  static bool is_fusion_barrier(const Node& user, const Facts& source) {
    return source.has_reduce && !is_bijective(user);
  }

  /// Cost and buffers of the expression at `root` with shared parts counted once, as lowering
  /// shares them: a node seen through the same chain of views. Stops past the limits.
  std::pair<int, int> shared_cost(const Node* root) const {
    struct Visit {
      const Node* node;
      uint64_t view;  ///< which chain of movement nodes leads here
    };
    std::set<std::pair<const Node*, uint64_t>> seen;
    std::vector<Visit> stack{{root, 0}};
    int cost = 0, buffers = 0;
    while (!stack.empty() && cost <= kMaxFusedCost && buffers <= kMaxBuffers) {
      const auto [n, view] = stack.back();
      stack.pop_back();
      if (!seen.emplace(n, view).second) continue;
      if (n != root && (n->is_realized() || is_stored(n))) {
        cost += 1;
        buffers += 1;
        continue;
      }
      cost += own_cost(*n);
      const uint64_t inner = is_elementwise(*n)
                                 ? view
                                 : (view + reinterpret_cast<uintptr_t>(n)) * 0x9e3779b97f4a7c15ULL;
      for (const NodePtr& s : n->src) {
        const auto facts = facts_.find(s.get());
        if (facts != facts_.end() && is_fusion_barrier(*n, facts->second)) {
          cost += 1;
          buffers += 1;
        } else {
          stack.push_back({s.get(), inner});
        }
      }
    }
    return {cost, buffers};
  }

  /// Sources first: costs, forced storage, cuts of oversized expressions.
  void visit_bottom_up(const Node* n) {
    Facts f = std::move(facts_[n]);
    const bool is_interpreted = n->device->hal().arch().vendor == hal::Vendor::kRef;
    if (is_interpreted || n->kind == NodeKind::kContiguous || n->kind == NodeKind::kCopy) store(n);
    f.cost = own_cost(*n);
    for (const NodePtr& s : n->src) {
      // A copy between devices moves whole storages.
      if (n->kind == NodeKind::kCopy && !s->is_realized()) store(s.get());
      if (s->is_realized() || is_stored(s.get())) {
        f.cost += 1;
        f.buffers += 1;
        f.reads_memory = true;
        continue;
      }
      const Facts& sf = facts_[s.get()];
      if (is_fusion_barrier(*n, sf)) {
        f.cost += 1;
        f.buffers += 1;
        f.reads_memory = true;
        continue;
      }
      f.cost += sf.cost;
      f.buffers += sf.buffers;
      f.reads_memory |= sf.reads_memory;
      // What another reduction reads is stored: nothing of it is left to be done here.
      const bool ends = std::any_of(sf.users.begin(), sf.users.end(),
                                    [](const Node* u) { return u->kind == NodeKind::kReduce; });
      if (!is_bijective(*n) || !sf.has_reduce || ends) continue;
      f.has_reduce = true;
      f.reduced = std::max(f.reduced, sf.reduced);
    }
    if (n->kind == NodeKind::kReduce) {
      f.has_reduce = !is_inner_sum(*n);
      f.reduced = max_elements(n->src[0]->shape);
    }
    // The sums above count shared parts once per use: only a hint. Look closely before cutting.
    const auto is_too_big = [&] { return f.cost > kMaxFusedCost || f.buffers > kMaxBuffers; };
    if (is_elementwise(*n) && is_too_big()) std::tie(f.cost, f.buffers) = shared_cost(n);
    if (is_elementwise(*n) && is_too_big()) store(n);
    if (is_stored(n)) f = Facts{.users = std::move(f.users)};
    facts_[n] = std::move(f);
  }

  /// Users first: where reductions end, what is worth keeping.
  void visit_top_down(const Node* n) {
    Facts& f = facts_[n];
    if (is_stored(n)) {
      f.sink = f.kernel = n;
      f.copies = 1;
      return;
    }
    bool is_single = !f.users.empty();
    const Node* sink = nullptr;
    double copies = 1;
    f.kernel = f.users.empty() ? nullptr : facts_[f.users[0]].kernel;
    for (const Node* u : f.users) {
      const Facts& uf = facts_[u];
      const bool keeps_rows = is_elementwise(*u) || u->kind == NodeKind::kReduce || is_stored(u);
      if (uf.kernel != f.kernel || !keeps_rows) f.kernel = nullptr;
      const bool passes_through = is_bijective(*u) || u->kind == NodeKind::kContiguous;
      const Node* s = passes_through ? uf.sink : nullptr;
      if (!s || (sink && s != sink)) is_single = false;
      sink = s;
      copies = std::max(copies, (is_stored(u) ? 1.0 : uf.copies) * growth(*u, *n));
    }
    f.sink = is_single ? sink : nullptr;
    f.copies = copies;
    if (const auto fused = fused_.find(n); fused != fused_.end()) {
      f.sink = f.kernel = fused->second;
      f.copies = 1;
      return;
    }
    if (n->kind == NodeKind::kScan || n->kind == NodeKind::kLeast) {
      // Their loops are the kernel's own: at most the rounding of what they give joins them.
      const bool is_rounded =
          f.users.size() == 1 && f.users[0]->kind == NodeKind::kCast && is_stored(f.users[0]);
      if (!is_rounded) store(n);
      f.sink = f.kernel = is_rounded ? f.users[0] : n;
      f.copies = 1;
      return;
    }
    // A movement node is a way of indexing: storing its source serves every view of it.
    if (!is_elementwise(*n) && n->kind != NodeKind::kReduce) return;
    const bool is_end_of_reduction = f.has_reduce && !f.sink;
    if (is_end_of_reduction)
      if (const Node* kernel = rows_.kernel_of(n, f.reduced)) {
        f.sink = kernel;
        f.copies = 1;
        return;
      }
    const bool is_repeated =
        copies > 1 && f.cost > kMaxRepeatedCost && (f.reads_memory || f.cost > kMaxSharedCost);
    const bool is_shared = !f.sink && !f.kernel && f.users.size() > 1 && f.cost > kMaxSharedCost;
    if (is_end_of_reduction || is_repeated || is_shared) {
      store(n);
      f.sink = f.kernel = n;
      f.copies = 1;
    }
  }

  static double growth(const Node& user, const Node& source) {
    if (user.kind == NodeKind::kGather && user.src[0].get() == &source) return 1;
    if (user.kind != NodeKind::kExpand) return 1;
    const double out = static_cast<double>(max_elements(user.shape)),
                 in = static_cast<double>(max_elements(source.shape));
    return in > 0 ? out / in : 1;
  }
};

}  // namespace

FusionPlan plan_fusion(std::span<const NodePtr> roots) {
  // Whether attention can be one kernel is known when its kernel is.
  std::unordered_set<const Node*> refused;
  for (;;) {
    Planner planner(roots, refused);
    FusionPlan plan = planner.run();
    const auto more =
        find_refused(planner.fused(), [&](const Node* n) { return plan.stored.contains(n); });
    if (more.empty()) return plan;
    refused.insert(more.begin(), more.end());
  }
}

}  // namespace bm
