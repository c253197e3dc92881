// GEMM in one form: a kernel with one loop each for M, N and K.
#include <unordered_map>

#include "compiler/ir/linear.h"
#include "compiler/analysis/affine.h"
#include "compiler/schedules/gemm_cpu/find.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

/// Calls f for every load reachable from `root` without entering reductions.
template <class F>
void for_loads(const Node* root, F&& f) {
  for (const Node* n : ir::topological({&root, 1}))
    if (n->op == Op::kLoad) f(n);
}

/// Rebuilds `root` with `gate` in front of every load that depends on `range`.
class Gater {
 public:
  Gater(Graph& graph, const Node* range, const Node* gate)
      : graph_(graph), range_(range), gate_(gate) {}

  const Node* operator()(const Node* root) {
    for (const Node* n : ir::topological({&root, 1}))
      if (!map_.count(n)) map_[n] = rebuild(n);
    return map_.at(root);
  }

 private:
  const Node* rebuild(const Node* n) {
    std::vector<const Node*> from, to;
    for (const Node* s : n->src)
      if (map_.at(s) != s && !contains(from, s)) {
        from.push_back(s);
        to.push_back(map_.at(s));
      }
    if (!from.empty()) n = graph_.substitute(n, from, to);
    if (n->op != Op::kLoad || !ir::depends_on(n, range_)) return n;
    const Node* before = n->src.size() > 1 ? n->src[1] : nullptr;
    return graph_.load(static_cast<int>(n->imm), n->dtype, n->src[0], graph_.both(before, gate_));
  }

  Graph& graph_;
  const Node *range_, *gate_;
  std::unordered_map<const Node*, const Node*> map_;
};

/// Rewrites nodes for `edge`, a loop that goes on where `range` ends: nothing is read there.
class Edge {
 public:
  Edge(Graph& graph, const Node* range, const Node* edge)
      : graph_(graph),
        range_(range),
        edge_(edge),
        inside_(graph.less(edge, range->src[0])),
        gated_(graph, edge, inside_) {}

  const Node* operator()(const Node* n) {
    const Node* from[] = {range_};
    const Node* to[] = {edge_};
    return gated_(graph_.substitute(n, from, to));
  }
  const Node* inside() const { return inside_; }

 private:
  Graph& graph_;
  const Node *range_, *edge_, *inside_;
  Gater gated_;
};

class Rebuilder {
 public:
  Rebuilder(const ir::KernelIr& kernel, const GemmMatch& sides, const TargetInfo& target)
      : original_(kernel), sides_(sides), target_(target) {}

  std::optional<PackedGemmPlan> run() {
    plan_.is_skinny = sides_.is_skinny;
    plan_.is_transposed = sides_.is_transposed;
    plan_.lanes = sides_.lanes;
    if (!rebuild()) return std::nullopt;
    plan_.kernel = kernel_;
    return std::move(plan_);
  }

 private:
  /// Digits of one loop over the product of `ranges`' extents.
  static const Node* merge(Graph& g, const std::vector<const Node*>& ranges,
                           std::vector<const Node*>* digits) {
    const Node* extent = g.index(1);
    for (const Node* r : ranges) extent = g.mul(extent, r->src[0]);
    const Node* all = ranges.size() == 1 ? ranges[0] : g.range(extent);
    int64_t inner = 1;
    digits->assign(ranges.size(), nullptr);
    for (size_t i = ranges.size(); i-- > 0;) {
      const Node* digit = g.div(all, inner);
      (*digits)[i] = i == 0 ? digit : g.mod(digit, ranges[i]->src[0]->imm);
      if (i > 0) inner *= ranges[i]->src[0]->imm;
    }
    return all;
  }

  bool rebuild() {
    auto copy = ir::deserialize(ir::serialize(original_));
    if (!copy) return false;
    kernel_ = std::make_shared<ir::KernelIr>(std::move(*copy));
    kernel_->name = original_.name;
    kernel_->vars = original_.vars;
    // The copy has the same loops in the same order.
    std::vector<const Node*> from, to;
    Graph& g = *kernel_->graph;
    const auto counterpart = [&](const Node* r) {
      for (size_t i = 0; i < original_.ranges.size(); ++i)
        if (original_.ranges[i] == r) return kernel_->ranges[i];
      return static_cast<const Node*>(nullptr);
    };
    const auto map_all = [&](std::vector<const Node*>* list) {
      for (const Node*& r : *list) r = counterpart(r);
    };
    map_all(&sides_.rows);
    map_all(&sides_.columns);
    map_all(&sides_.batch);
    std::vector<const Node*> digits;
    if (!sides_.rows.empty()) plan_.row = merge(g, sides_.rows, &digits);
    from = sides_.rows;
    to = digits;
    plan_.column = merge(g, sides_.columns, &digits);
    from.insert(from.end(), sides_.columns.begin(), sides_.columns.end());
    to.insert(to.end(), digits.begin(), digits.end());
    substitute_stores(g, from, to);
    kernel_->ranges = sides_.batch;
    if (plan_.row) kernel_->ranges.push_back(plan_.row);
    kernel_->ranges.push_back(plan_.column);
    plan_.batch = sides_.batch;
    return rebuild_products(g);
  }

  void substitute_stores(Graph& g, const std::vector<const Node*>& from,
                         const std::vector<const Node*>& to) {
    for (ir::Store& s : kernel_->stores) {
      s.index = g.substitute(s.index, from, to);
      s.value = g.substitute(s.value, from, to);
      if (s.gate) s.gate = g.substitute(s.gate, from, to);
    }
  }

  bool rebuild_products(Graph& g) {
    std::vector<const Node*> reduces;
    for (const ir::Store& s : kernel_->stores)
      for (const Node* n : ir::topological({&s.value, 1}))
        if (n->op == Op::kReduce && !contains(reduces, n)) reduces.push_back(n);
    if (reduces.size() != sides_.products.size()) return false;
    plan_.edge_column = edge_of(g, plan_.column);
    Edge columns(g, plan_.column, plan_.edge_column);
    std::optional<Edge> rows;
    if (plan_.is_transposed) {
      plan_.edge_row = edge_of(g, plan_.row);
      rows.emplace(g, plan_.row, plan_.edge_row);
    }
    Edge& results = rows ? *rows : columns;
    for (const ir::Store& s : kernel_->stores) {
      ir::Store edge = s;
      edge.index = results(s.index);
      edge.value = results(s.value);
      edge.gate = g.both(s.gate ? results(s.gate) : nullptr, results.inside());
      plan_.edge_stores.push_back(edge);
    }
    for (const Node* reduce : reduces) {
      const Node* body = reduce->src[0];
      if (body->op != Op::kMul) return false;
      PanelProduct p;
      p.reduce = reduce;
      p.edge_reduce = results(reduce);
      const bool is_first = !ir::depends_on(body->src[0], plan_.column);
      p.left = body->src[is_first ? 0 : 1];
      p.right = body->src[is_first ? 1 : 0];
      if (!sides_.is_skinny && !sides_.is_transposed)
        p.dot = dot_of(p.left, p.right, target_, sides_.lanes);
      if (p.dot) {
        p.left = p.left->src[0];
        p.right = p.right->src[0];
      } else if (is_int(reduce->dtype)) {
        return false;
      }
      if ((plan_.row && ir::depends_on(p.right, plan_.row)) ||
          ir::depends_on(p.left, plan_.column) || p.edge_reduce->op != Op::kReduce)
        return false;
      const Node* left = p.left;
      merge_k(g, &p);
      p.edge_right = columns(p.right);
      if (plan_.is_transposed && !choose_lines(g, left, &p)) return false;
      plan_.products.push_back(std::move(p));
    }
    return true;
  }

  /// A loop that ends later than `range`: by the widest tile, four vectors; how wide this one will
  /// be is not known yet.
  const Node* edge_of(Graph& g, const Node* range) const {
    return g.range(g.add(range->src[0], int64_t{4} * sides_.lanes));
  }

  /// What vectors of `left`, A with the loops of K as they were, run along.
  bool choose_lines(Graph& g, const Node* left, PanelProduct* p) {
    const std::vector<const Node*> loops(p->reduce->src.begin() + 1, p->reduce->src.end());
    p->line_k = loops;
    for (size_t i = 1; i < loops.size(); ++i) p->line_inner *= loops[i]->src[0]->imm;
    if (is_even(p->left, p->left_k)) {
      left = p->left;
      p->line_k = {p->left_k};
      p->line_inner = 1;
    }
    p->line = plan_.row;
    p->edge_line = plan_.edge_row;
    if (!has_vectors(left, plan_.row)) {
      if (sides_.rows.size() < 2) return false;
      // The rows that the innermost loop goes through, for each of the others.
      const int64_t extent = sides_.rows.back()->src[0]->imm;
      p->line = g.range(g.index(extent));
      p->edge_line = edge_of(g, p->line);
      p->line_outer = g.range(g.index(plan_.row->src[0]->imm / extent));
      const Node* from[] = {plan_.row};
      const Node* to[] = {g.add(g.mul(p->line_outer, extent), p->line)};
      left = g.substitute(left, from, to);
      if (!has_vectors(left, p->line)) return false;
    }
    p->left_line = left;
    p->edge_left_line = Edge(g, p->line, p->edge_line)(left);
    return true;
  }

  /// Whether all that `value` loads comes in vectors along `range`.
  bool has_vectors(const Node* value, const Node* range) const {
    Strides along(range, sides_.lanes);
    bool result = true;
    for_loads(value, [&](const Node* n) { result = result && is_vector(n, along); });
    return result;
  }

  /// The same of one load, `along` being strides within a vector.
  bool is_vector(const Node* load, Strides& along) const {
    const auto step = along.stride(load->src[0]);
    if (along.is_uniform(load->src[0]) || step == 0 || step == 1) return true;
    return step == 2 && target_.has_masks && item_size(load->dtype) == 4 &&
           sides_.lanes * 32 == target_.vector_bits;
  }

  void merge_k(Graph& g, PanelProduct* p) {
    const std::vector<const Node*> loops(p->reduce->src.begin() + 1, p->reduce->src.end());
    std::vector<const Node*> digits;
    p->left_k = merge(g, loops, &digits);
    p->left = g.substitute(p->left, loops, digits);
    const Node* merged = g.substitute(p->right, loops, digits);
    if (loops.size() == 1 || p->dot || is_even(merged, p->left_k)) {
      p->right = merged;
      p->right_k = {p->left_k};
    } else {
      p->right_k = loops;
      for (size_t i = 1; i < loops.size(); ++i) p->inner *= loops[i]->src[0]->imm;
    }
    Strides along(p->left_k, 0);
    bool is_contiguous = true;
    for_loads(p->left, [&](const Node* n) {
      const bool is_gated = n->src.size() > 1 && !along.is_uniform(n->src[1]);
      const auto stride = along.stride(n->src[0]);
      is_contiguous = is_contiguous && !is_gated && stride && (*stride == 0 || *stride == 1);
    });
    // A vector of what is copied.
    const auto item = static_cast<uint32_t>(item_size((p->dot ? p->left : p->reduce)->dtype));
    p->left_lanes = is_contiguous ? target_.vector_bits / 8 / item : 1;
    p->right_copy = right_copy(*p);
  }

  /// Whether every load is evenly spaced along `range`.
  static bool is_even(const Node* value, const Node* range) {
    Strides along(range, 0);
    bool result = true;
    for_loads(value, [&](const Node* n) {
      result =
          result && along.stride(n->src[0]) && (n->src.size() == 1 || along.is_uniform(n->src[1]));
    });
    return result;
  }

  PanelCopy right_copy(const PanelProduct& p) const {
    Strides along_k(p.right_k[0], 0), columns(plan_.column, sides_.lanes);
    PanelCopy worst = PanelCopy::kVectors;
    for_loads(p.right, [&](const Node* n) {
      if (is_vector(n, columns)) return;
      const auto step = columns.stride(n->src[0]);
      // Words are transposed as they lie in memory.
      const bool is_across =
          step && along_k.stride(n->src[0]) == 1 && n->src.size() == 1 && (!p.dot || n == p.right);
      worst = std::max(worst, is_across ? PanelCopy::kTransposed : PanelCopy::kSingle);
    });
    return worst;
  }

  const ir::KernelIr& original_;
  GemmMatch sides_;
  const TargetInfo& target_;
  std::shared_ptr<ir::KernelIr> kernel_;
  PackedGemmPlan plan_;
};

}  // namespace

std::optional<PackedGemmPlan> canonicalize_gemm(const ir::KernelIr& kernel, const GemmMatch& sides,
                                                const TargetInfo& target) {
  return Rebuilder(kernel, sides, target).run();
}

}  // namespace bm::compiler
