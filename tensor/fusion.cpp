#include "tensor/fusion.h"

#include <algorithm>
#include <queue>
#include <set>
#include <tuple>

#include "compiler/compile.h"
#include "tensor/fusion_attention.h"
#include "tensor/fusion_products.h"
#include "tensor/fusion_rows.h"
#include "tensor/lower.h"

namespace bm {
namespace {

// Costs are in rough quarters of scalar operations per element.
constexpr int kOperation = 4;
constexpr int kMaxFusedCost =
    160 * kOperation;  ///< a larger expression is cut: compile time and register pressure
/// Recomputed by several kernels rather than stored up to here.
constexpr int kMaxSharedCost = 24 * kOperation;
constexpr int kMaxRepeatedCost = 2 * kOperation;  ///< recomputed per broadcast copy up to here
constexpr int kMaxInnerSum = 64;                  ///< products of an inner sum
constexpr int kMaxBuffers = 24;                   ///< distinct storages one kernel reads

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
    return kOperation;
  if (n.kind != NodeKind::kAlu) return 0;
  switch (n.op) {
    case ir::Op::kExp2:
    case ir::Op::kLog2:
    case ir::Op::kSin: return 10 * kOperation;
    case ir::Op::kDiv:
    case ir::Op::kMod:
    case ir::Op::kSqrt:
    case ir::Op::kRecip: return 3 * kOperation;
    // Codes of quantised blocks: four go in a word, and what looks numbers up is one operation.
    default: return n.dtype == DType::kU8 ? 1 : kOperation;
  }
}

/// Short int8 dot products, as blocks of quantised matrices have: part of
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

using NodeSet = std::unordered_set<const Node*>;

struct Facts {
  size_t position = 0;  ///< in the order of the plan
  int cost = 0;         ///< of computing one element inside a kernel, sources included
  int buffers = 0;      ///< upper bound of distinct storages read
  bool reads_memory = false;
  bool has_reduce = false;  ///< a reduction is reachable through bijective nodes only
  int64_t reduced = 0;      ///< elements that the largest of those reductions goes over
  std::vector<const Node*> users;
};

using FactsMap = std::unordered_map<const Node*, Facts>;

double growth(const Node& user, const Node& source) {
  if (user.kind == NodeKind::kGather && user.src[0].get() == &source) return 1;
  if (user.kind != NodeKind::kExpand) return 1;
  const double out = static_cast<double>(max_elements(user.shape)),
               in = static_cast<double>(max_elements(source.shape));
  return in > 0 ? out / in : 1;
}

/// Users first: where reductions end, what is worth keeping. Of a whole graph, or of one kernel:
/// users that are not visited then count as ones that lead elsewhere.
class StorageRules {
 public:
  /// Adds what is worth keeping to `*stored`. `fused`: nodes that stay where they are. `earlier`:
  /// stored besides; nullptr: nothing.
  StorageRules(const FactsMap& facts, const FusedNodes& fused, NodeSet* stored,
               const NodeSet* earlier)
      : facts_(facts), fused_(fused), stored_(*stored), earlier_(earlier), rows_(make_view()) {}

  bool is_stored(const Node* n) const {
    return stored_.contains(n) || (earlier_ && earlier_->contains(n));
  }

  void visit(const Node* n) {
    Ends ends = ends_of(n);
    if (should_store(n, &ends) || is_second_product(n, ends)) {
      stored_.insert(n);
      ends = {n, n, 1};
    }
    ends_[n] = ends;
  }

 private:
  struct Ends {
    const Node* sink = nullptr;    ///< the only stored node that uses it, element for element;
                                   ///< null: none or several
    const Node* kernel = nullptr;  ///< the only stored node that uses it at all; null: several
    double evaluations = 1;        ///< how often each element is evaluated
  };

  FusionView make_view() {
    FusionView view;
    view.is_stored = [this](const Node* n) { return is_stored(n); };
    view.users = [this](const Node* n) -> const auto& { return facts_.at(n).users; };
    return view;
  }

  Ends known(const Node* n) const {
    const auto it = ends_.find(n);
    return it == ends_.end() ? Ends{} : it->second;
  }

  /// The one visited first stays; a cast of the other is stored rather than its wider reduction.
  bool is_second_product(const Node* n, const Ends& ends) {
    // The CPU's GEMM takes several contractions, with the packed operands of each.
    if (!has_work_groups(n->device->hal().arch())) return false;
    if (!ends.sink || is_stored(n) || fused_.contains(n)) return false;
    if (n->kind != NodeKind::kReduce && n->kind != NodeKind::kCast) return false;
    const Node* product =
        find_matrix_product(*n, [this](const Node* other) { return is_stored(other); });
    if (!product || (product != n && facts_.at(product).users.size() > 1)) return false;
    return products_.try_emplace(ends.sink, product).first->second != product;
  }

  /// As its users have it.
  Ends ends_of(const Node* n) const {
    if (is_stored(n)) return {n, n, 1};
    if (const auto fused = fused_.find(n); fused != fused_.end())
      return {fused->second, fused->second, 1};
    const Facts& f = facts_.at(n);
    bool is_single = !f.users.empty();
    Ends ends;
    ends.kernel = f.users.empty() ? nullptr : known(f.users[0]).kernel;
    for (const Node* u : f.users) {
      const Ends user = known(u);
      const bool keeps_rows = is_elementwise(*u) || u->kind == NodeKind::kReduce || is_stored(u);
      if (user.kernel != ends.kernel || !keeps_rows) ends.kernel = nullptr;
      const bool passes_through = is_bijective(*u) || u->kind == NodeKind::kContiguous;
      const Node* s = passes_through ? user.sink : nullptr;
      if (!s || (ends.sink && s != ends.sink)) is_single = false;
      ends.sink = s;
      ends.evaluations =
          std::max(ends.evaluations, (is_stored(u) ? 1.0 : user.evaluations) * growth(*u, *n));
    }
    if (!is_single) ends.sink = nullptr;
    return ends;
  }

  /// What is stored of a scan or top-k if no more than its type and, of scans, its shape changes on
  /// the way; else nullptr.
  const Node* rounded_end(const Node* n) const {
    const Node* at = n;
    while (facts_.at(at).users.size() == 1) {
      const Node* user = facts_.at(at).users[0];
      const bool is_shape = user->kind == NodeKind::kReshape && n->kind == NodeKind::kScan &&
                            is_static(user->shape) && is_static(at->shape);
      const bool is_cast = user->kind == NodeKind::kCast && at->kind != NodeKind::kReshape;
      if ((!is_shape && !is_cast) || fused_.contains(user)) return nullptr;
      if (is_stored(user)) return user;
      at = user;
    }
    return nullptr;
  }

  /// Corrects `*ends` where the node stays in a kernel although its users do not say so.
  bool should_store(const Node* n, Ends* ends) {
    if (is_stored(n) || fused_.contains(n)) return false;
    const Facts& f = facts_.at(n);
    if (n->kind == NodeKind::kScan || n->kind == NodeKind::kTopK) {
      // Their loops are the kernel's own: at most the rounding of what they give joins them, and
      // another shape of it.
      const Node* sink = rounded_end(n);
      if (sink != nullptr) *ends = {sink, sink, 1};
      return sink == nullptr;
    }
    // A movement node is a way of indexing: storing its source serves every view of it.
    if (!is_elementwise(*n) && n->kind != NodeKind::kReduce) return false;
    const bool is_end_of_reduction = f.has_reduce && !ends->sink;
    if (is_end_of_reduction && !wanted_.contains(n))
      if (const Node* kernel = rows_.kernel_of(n, f.reduced)) {
        ends->sink = kernel;
        ends->evaluations = 1;
        return false;
      }
    if (is_end_of_reduction && !wanted_.contains(n))
      if (const Node* source = shared_source(n)) {
        wanted_.insert(source);
        return false;
      }
    const bool is_repeated =
        wanted_.contains(n) || (ends->evaluations > 1 && f.cost > kMaxRepeatedCost &&
                                (f.reads_memory || f.cost > kMaxSharedCost));
    if (is_repeated || is_end_of_reduction)
      if (const Node* narrow = narrow_source(n)) {
        wanted_.insert(narrow);
        return false;
      }
    if (is_repeated && !is_end_of_reduction && is_padded_read(n)) return false;
    const bool is_shared =
        !ends->sink && !ends->kernel && f.users.size() > 1 && f.cost > kMaxSharedCost;
    return is_end_of_reduction || is_repeated || is_shared;
  }

  /// Of 16-bit elements that are widened, perhaps in another shape, on their way into a product:
  /// what is stored of them on devices whose matrix instructions take them as they are. Else
  /// nullptr.
  const Node* narrow_source(const Node* n) const {
    if (n->kind != NodeKind::kCast || !is_half_like(n->src[0]->dtype) || is_half_like(n->dtype) ||
        !has_work_groups(n->device->hal().arch()))
      return nullptr;
    const Node* s = moved_source(n->src[0].get());
    return is_elementwise(*s) && !s->is_realized() && !fused_.contains(s) ? s : nullptr;
  }

  /// Where others use what a reduction gives, and `n` is one cheap step behind it on the way into
  /// the next reduction (the square of a sum of residuals): what is stored in its place, for all of
  /// them. Else nullptr.
  const Node* shared_source(const Node* n) const {
    // Reductions of a CPU may round their products or not: which one is stored decides that.
    if (n->kind != NodeKind::kAlu || !has_work_groups(n->device->hal().arch())) return nullptr;
    if (facts_.at(n).users.size() != 1 || facts_.at(n).users[0]->kind != NodeKind::kReduce)
      return nullptr;
    const Node* source = n->src[0].get();
    const bool is_one = std::ranges::all_of(
        n->src, [&](const NodePtr& s) { return s.get() == source || s->kind == NodeKind::kConst; });
    if (!is_one || own_cost(*n) > kMaxRepeatedCost || source->is_realized() ||
        fused_.contains(source) || (!is_elementwise(*source) && source->kind != NodeKind::kReduce))
      return nullptr;
    const Facts& f = facts_.at(source);
    return f.has_reduce && f.users.size() > 1 ? source : nullptr;
  }

  /// What is moved, padding included.
  const Node* moved_source(const Node* s) const {
    while (((is_bijective(*s) && !is_elementwise(*s)) || s->kind == NodeKind::kPad) &&
           !s->is_realized() && !is_stored(s))
      s = s->src[0].get();
    return s;
  }

  /// Numbers of 8 or 16 bits from memory, padded and widened: matrix instructions take them as they
  /// are, and zeros around them cost nothing on the way to shared memory. Stored they would be
  /// wider than before.
  bool is_padded_read(const Node* n) const {
    if (n->kind != NodeKind::kCast || !has_work_groups(n->device->hal().arch())) return false;
    const Node* s = moved_source(n->src[0].get());
    return item_size(s->dtype) <= 2 && item_size(s->dtype) < item_size(n->dtype) &&
           (s->is_realized() || is_stored(s));
  }

  const FactsMap& facts_;
  const FusedNodes& fused_;
  NodeSet wanted_;  ///< sources of what would have been stored, to be stored in its place
  NodeSet& stored_;
  const NodeSet* earlier_;
  RowRules rows_;
  std::unordered_map<const Node*, Ends> ends_;
  std::unordered_map<const Node*, const Node*> products_;  ///< by the kernel's stored node
};

class Planner {
 public:
  explicit Planner(std::span<const NodePtr> roots) : roots_(roots) {}

  FusionPlan run() {
    collect();
    for (const NodePtr& r : roots_)
      if (!r->is_realized()) store(r.get());
    for (const NodePtr& n : plan_.order) visit_bottom_up(n.get());
    const FusedNodes fused = find_fused();
    for (const auto& [node, result] : fused) store(result);
    StorageRules rules(facts_, fused, &plan_.stored, nullptr);
    for (auto it = plan_.order.rbegin(); it != plan_.order.rend(); ++it) rules.visit(it->get());
    return std::move(plan_);
  }

 private:
  std::span<const NodePtr> roots_;
  FusionPlan plan_;
  FactsMap facts_;

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
    for (size_t i = 0; i < plan_.order.size(); ++i) {
      const Node* n = plan_.order[i].get();
      facts_[n].position = i;
      for (const NodePtr& s : n->src)
        if (!s->is_realized()) {
          auto& users = facts_[s.get()].users;
          if (users.empty() || users.back() != n) users.push_back(n);
        }
    }
  }

  /// Nodes that stay in the kernel of a result of attention. One after the other, sources first:
  /// what an earlier one leaves stored, a later one reads.
  FusedNodes find_fused() {
    FusionView view;
    view.is_stored = [this](const Node* n) { return is_stored(n); };
    view.users = [this](const Node* n) -> const auto& { return facts_[n].users; };
    NodeSet results;
    return find_attention(
        plan_.order, view, [this](const Node* n) { return facts_[n].has_reduce; },
        [&](std::vector<const Node*>* nodes, const Node* result) {
          const std::vector<const Node*> all = with_operands(*nodes, result, false),
                                         codes = with_operands(*nodes, result, true);
          if (all.size() > nodes->size() && has_kernel(all, result, results, true))
            *nodes = all;
          else if (codes.size() > nodes->size() && has_kernel(codes, result, results, false))
            *nodes = codes;
          else if (!has_kernel(*nodes, result, results, false))
            return false;
          results.insert(result);
          return true;
        });
  }

  /// `nodes`, and what is computed for them alone without a reduction. Decoding reads every key and
  /// value once, and queries of few heads: a rotation or a look-up in a page table on the way is
  /// cheaper than what it gives in memory. `is_of_codes`: only what int8 codes become on their way
  /// into a product, and what that alone takes.
  std::vector<const Node*> with_operands(std::span<const Node* const> nodes, const Node* result,
                                         bool is_of_codes) {
    std::vector<const Node*> all(nodes.begin(), nodes.end());
    NodeSet codes, operands;
    if (is_of_codes) codes = made_of_codes(result);
    if (is_of_codes && codes.empty()) return all;
    NodeSet inside(nodes.begin(), nodes.end());
    inside.insert(result);
    bool has_product = false;  // of queries and keys; no other reduction is computed there
    for (size_t i = facts_[result].position; i-- > 0;) {
      const Node* n = plan_.order[i].get();
      const Facts& f = facts_[n];
      const bool is_inside =
          std::ranges::all_of(f.users, [&](const Node* user) { return inside.contains(user); });
      const bool is_computed = is_bijective(*n) || n->kind == NodeKind::kExpand ||
                               n->kind == NodeKind::kShrink || n->kind == NodeKind::kPad ||
                               n->kind == NodeKind::kGather || n->kind == NodeKind::kIota ||
                               n->kind == NodeKind::kConst || n->kind == NodeKind::kVarValue;
      const bool is_product = n->kind == NodeKind::kReduce && !has_product;
      if (f.users.empty() || !is_inside || is_stored(n) || inside.contains(n) ||
          (!is_product && (!is_computed || (f.has_reduce && has_product))))
        continue;
      has_product |= is_product;
      inside.insert(n);
      const auto is_reduced = [](const Node* user) { return user->kind == NodeKind::kReduce; };
      const auto is_operand = [&](const Node* user) { return operands.contains(user); };
      const bool is_wanted = !is_of_codes || std::ranges::all_of(f.users, is_operand) ||
                             (codes.contains(n) && std::ranges::none_of(f.users, is_reduced));
      if (!is_wanted) continue;
      operands.insert(n);
      all.push_back(n);
    }
    return all;
  }

  /// Sources of `result` that are int8, or computed of such without a reduction.
  NodeSet made_of_codes(const Node* result) const {
    NodeSet codes;
    for (size_t i = 0; i < facts_.at(result).position; ++i) {
      const Node* n = plan_.order[i].get();
      const auto is_code = [&](const NodePtr& s) {
        return s->dtype == DType::kI8 || codes.contains(s.get());
      };
      if (n->kind != NodeKind::kReduce && !is_stored(n) && std::ranges::any_of(n->src, is_code))
        codes.insert(n);
    }
    return codes;
  }

  /// Whether the device's compiler makes one kernel of `result` with `nodes` inside. What that
  /// kernel reads is known without the rest of the plan: factors of products are repeated, by this
  /// kernel alone often enough to be stored or cheap enough not to be. Only an operand of as many
  /// elements as there are scores may be stored for another user's sake later, and is then read
  /// where it would have been computed. `results`: of attention, stored too.
  /// `is_decoding`: only as decode attention, which reads operands where they are.
  bool has_kernel(std::span<const Node* const> nodes, const Node* result, const NodeSet& results,
                  bool is_decoding) {
    FusedNodes fused;
    for (const Node* n : nodes) fused[n] = result;
    NodeSet stored = results;
    stored.insert(result);
    StorageRules rules(facts_, fused, &stored, &plan_.stored);
    // The last of the order first: users before sources.
    std::priority_queue<size_t> next;
    next.push(facts_[result].position);
    while (!next.empty()) {
      const Node* n = plan_.order[next.top()].get();
      while (!next.empty() && plan_.order[next.top()].get() == n) next.pop();
      rules.visit(n);
      if (n != result && rules.is_stored(n)) continue;
      for (const NodePtr& s : n->src)
        if (!s->is_realized()) next.push(facts_[s.get()].position);
    }
    const auto kernel = lower(*result, nullptr, [&](const Node* n) { return rules.is_stored(n); });
    const hal::Arch& arch = result->device->hal().arch();
    const std::string_view renderer = result->device->renderer();
    return kernel && ((!is_decoding && compiler::would_fuse(kernel->ir, arch, renderer)) ||
                      compiler::split_attention(kernel->ir, arch, renderer));
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
    NodeSet read;  // through however many views
    int cost = 0;
    const auto buffers = [&] { return static_cast<int>(read.size()); };
    while (!stack.empty() && cost <= kMaxFusedCost && buffers() <= kMaxBuffers) {
      const auto [n, view] = stack.back();
      stack.pop_back();
      if (!seen.emplace(n, view).second) continue;
      if (n != root && (n->is_realized() || is_stored(n))) {
        cost += kOperation;
        read.insert(n);
        continue;
      }
      cost += own_cost(*n);
      const uint64_t inner = is_elementwise(*n)
                                 ? view
                                 : (view + reinterpret_cast<uintptr_t>(n)) * 0x9e3779b97f4a7c15ULL;
      for (const NodePtr& s : n->src) {
        const auto facts = facts_.find(s.get());
        if (facts != facts_.end() && is_fusion_barrier(*n, facts->second)) {
          cost += kOperation;
          read.insert(s.get());
        } else {
          stack.push_back({s.get(), inner});
        }
      }
    }
    return {cost, buffers()};
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
        f.cost += kOperation;
        f.buffers += 1;
        f.reads_memory = true;
        continue;
      }
      const Facts& sf = facts_[s.get()];
      if (is_fusion_barrier(*n, sf)) {
        f.cost += kOperation;
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
    // The costs above count shared parts once per use: only a hint. Look closely before cutting.
    const auto is_too_big = [&] { return f.cost > kMaxFusedCost || f.buffers > kMaxBuffers; };
    // Lookups of codes use everything twice at each level, and would seem worth storing.
    const bool is_lookup = n->dtype == DType::kU8 && f.cost > kMaxSharedCost;
    if (is_elementwise(*n) && (is_too_big() || is_lookup))
      std::tie(f.cost, f.buffers) = shared_cost(n);
    if (is_elementwise(*n) && is_too_big()) store(n);
    if (is_stored(n)) f = Facts{.position = f.position, .users = std::move(f.users)};
    facts_[n] = std::move(f);
  }
};

}  // namespace

FusionPlan plan_fusion(std::span<const NodePtr> roots) { return Planner(roots).run(); }

}  // namespace bm
