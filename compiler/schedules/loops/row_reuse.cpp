// Row kernels (softmax, norms): which intermediates the row cache keeps.
#include "compiler/schedules/loops/row_reuse.h"

#include <algorithm>
#include <array>
#include <unordered_set>

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;
using NodeSet = std::unordered_set<const Node*>;

/// Shorter reductions are cheap enough to run for every element.
constexpr double kShortReduce = 8;
/// Operations from which a value is worth a store and a load.
constexpr double kExpensive = 8;

double iterations_of(const Node* reduce) {
  double trip_count = 1;
  for (size_t i = 1; i < reduce->src.size(); ++i)
    trip_count *= CostModel::trip_count(reduce->src[i]);
  return trip_count;
}

class Stages {
 public:
  Stages(const ir::KernelIr& kernel, const CostModel& model, uint64_t most_bytes)
      : kernel_(kernel), model_(model), left_(most_bytes) {}

  std::vector<RowCachePlan> run() {
    for (const Node* q : model_.reduces()) look(q, {q->src[0]});
    std::vector<const Node*> roots;
    for (const ir::Store& s : kernel_.stores) roots.push_back(s.value);
    look(nullptr, roots);
    return std::move(stages_);
  }

 private:
  /// One pass: the body of `pass`, or the output loops.
  void look(const Node* pass, std::vector<const Node*> stack) {
    const std::vector<const Node*> all = ir::topological(stack);
    const NodeSet reachable(all.begin(), all.end());
    NodeSet seen;
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      if (!seen.insert(n).second || is_staged(n)) continue;
      if (n->op == Op::kReduce) continue;  // a pass of its own
      if (const Node* producer = producer_of(n, pass, reachable)) {
        stage(n, producer);
        continue;
      }
      if (n->op != Op::kLoad && n->op != Op::kRange)
        stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
  }

  bool is_staged(const Node* n) const {
    return std::any_of(stages_.begin(), stages_.end(),
                       [&](const RowCachePlan& s) { return s.node == n; });
  }

  /// The first reduction over the same row that computes `n` and runs before `pass`.
  const Node* producer_of(const Node* n, const Node* pass, const NodeSet& reachable) {
    if (n->op == Op::kLoad || n->op == Op::kConst || n->op == Op::kRange) return nullptr;
    for (const Node* p : model_.reduces()) {
      if (p == pass || !reachable.contains(p) || !goes_over_row(p, pass)) continue;
      bool is_element = true;
      for (size_t i = 1; i < p->src.size(); ++i)
        is_element = is_element && model_.depends(n, p->src[i]);
      if (!is_element) continue;
      const std::vector<const Node*> body = model_.body(p);
      if (std::find(body.begin(), body.end(), n) == body.end()) continue;
      return cost(n, p) >= kExpensive ? p : nullptr;
    }
    return nullptr;
  }

  /// Whether all loops of `p` are loops of `pass` as well.
  bool goes_over_row(const Node* p, const Node* pass) const {
    const auto is_loop = [&](const Node* r) {
      if (!pass)
        return std::find(kernel_.ranges.begin(), kernel_.ranges.end(), r) != kernel_.ranges.end();
      return std::find(pass->src.begin() + 1, pass->src.end(), r) != pass->src.end();
    };
    return std::all_of(p->src.begin() + 1, p->src.end(), is_loop);
  }

  bool varies(const Node* n, const Node* p) const {
    for (size_t i = 1; i < p->src.size(); ++i)
      if (model_.depends(n, p->src[i])) return true;
    return false;
  }

  /// Operations for one element of a row of `p`.
  double cost(const Node* n, const Node* p) const {
    double sum = 0;
    std::vector<std::pair<const Node*, double>> stack{{n, 1}};
    NodeSet seen;
    while (!stack.empty() && sum < kExpensive) {
      const auto [m, times] = stack.back();
      stack.pop_back();
      if (!varies(m, p) || !seen.insert(m).second || m->op == Op::kRange) continue;
      if (m->op == Op::kReduce) {
        stack.emplace_back(m->src[0], times * iterations_of(m));
        continue;
      }
      sum += times * CostModel::weight(m);
      if (m->op == Op::kLoad) continue;
      for (const Node* s : m->src) stack.emplace_back(s, times);
    }
    return sum;
  }

  void stage(const Node* n, const Node* producer) {
    __extension__ typedef __int128 Wide;
    Wide bytes = item_size(n->dtype);
    for (size_t i = 1; i < producer->src.size(); ++i)
      bytes *= std::max<int64_t>(producer->src[i]->src[0]->hi, 1);
    if (bytes > static_cast<Wide>(left_)) return;
    left_ -= static_cast<uint64_t>(bytes);
    stages_.push_back({n, producer});
  }

  const ir::KernelIr& kernel_;
  const CostModel& model_;
  uint64_t left_;
  std::vector<RowCachePlan> stages_;
};

}  // namespace

RowFacts order_rows(const CostModel& model, std::vector<AxisPlan>* loops) {
  RowFacts facts;
  std::vector<const Node*> reduces;
  for (const Node* n : model.reduces())
    if (iterations_of(n) > kShortReduce) reduces.push_back(n);
  const auto users = [&](const AxisPlan& a) {
    return std::count_if(reduces.begin(), reduces.end(),
                         [&](const Node* n) { return model.depends(n, a.range); });
  };
  for (const Node* n : reduces)
    if (std::any_of(loops->begin(), loops->end(),
                    [&](const AxisPlan& a) { return !model.depends(n, a.range); }))
      facts.is_row_kernel = true;
  if (!facts.is_row_kernel) return facts;
  std::stable_sort(loops->begin(), loops->end(),
                   [&](const AxisPlan& a, const AxisPlan& b) { return users(a) > users(b); });
  const auto all = static_cast<std::ptrdiff_t>(reduces.size());
  while (facts.outer < loops->size() && users((*loops)[facts.outer]) == all) ++facts.outer;
  return facts;
}

std::vector<RowCachePlan> plan_row_caches(const ir::KernelIr& kernel, const CostModel& model,
                                          uint64_t most_bytes) {
  return Stages(kernel, model, most_bytes).run();
}

}  // namespace bm::compiler
