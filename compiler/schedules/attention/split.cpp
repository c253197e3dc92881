#include "compiler/schedules/attention/split.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compiler/schedules/attention/attention_plan.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::ReduceOp;

/// Parts are of a multiple of so many keys: what the sub-groups of a group take at once.
constexpr int64_t kPartStep = 16;
/// Most keys, on average, that are worth a part of their own.
constexpr int64_t kLeastPart = 64;
/// Groups of work-items for a compute unit: some wait for memory while others compute.
constexpr int64_t kGroupsOfUnit = 2;
/// Queries of a head, or of heads that share keys.
constexpr int64_t kMostQueries = 64;
/// Of row max, row sum, logits and P·V.
constexpr int kDecodeReductions = 4;

bool has_attention(const ir::KernelIr& kernel) {
  if (kernel.stores.size() != 1 || kernel.params.empty() || kernel.params[0].is_read) return false;
  const Node* root = kernel.stores[0].value;
  int reductions = 0;
  bool has_exp = false;
  for (const Node* n : ir::topological({&root, 1})) {
    reductions += n->op == Op::kReduce;
    has_exp |= n->op == Op::kExp2;
  }
  return has_exp && reductions >= kDecodeReductions;
}

int64_t extent_of(const Node* range) {
  return range && range->src[0]->is_const() ? range->src[0]->imm : 0;
}

class Splitter {
 public:
  explicit Splitter(const ir::KernelIr& kernel) : kernel_(kernel) {}

  std::optional<SplitAttention> run(int64_t units) {
    auto parts = find_attention_parts(kernel_, true);
    auto merge = find_attention_parts(kernel_, true);
    if (!parts || !merge || !choose(*parts, units)) return std::nullopt;
    SplitAttention out;
    out.elements = queries_ * count_ * (columns_ + 1);
    make_parts(&*parts);
    if (!make_merge(&*merge)) return std::nullopt;
    parts->kernel->params[0] = {DType::kF32, out.elements, true, false};
    merge->kernel->params.resize(1);
    merge->kernel->params.push_back({DType::kF32, out.elements, false, true});
    parts->kernel->name += "_parts";
    merge->kernel->name += "_merge";
    out.parts = std::move(*parts->kernel);
    out.merge = std::move(*merge->kernel);
    if (!ir::verify(out.parts) || !ir::verify(out.merge)) return std::nullopt;
    return out;
  }

 private:
  bool choose(const AttentionParts& p, int64_t units) {
    if (p.pv->dtype != DType::kF32 || p.weight != DType::kF32) return false;
    rows_ = p.row ? extent_of(p.row) : 1;
    columns_ = extent_of(p.column);
    int64_t heads = 1;
    for (const Node* r : p.batch) heads *= extent_of(r);
    const int64_t most = p.key->src[0]->hi;
    if (rows_ < 1 || rows_ > kMostQueries || heads < 1 || columns_ < 1 || most < 1) return false;
    queries_ = heads * rows_;
    const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    count_ = std::clamp<int64_t>(up(kGroupsOfUnit * units, heads), 1, up(most, kLeastPart));
    return count_ > 1;
  }

  /// Index of a query among those of all heads.
  static const Node* query_index(Graph& g, const AttentionParts& p) {
    const Node* at = g.index(0);
    for (const Node* r : p.batch) at = g.add(g.mul(at, r->src[0]->imm), r);
    return p.row ? g.add(g.mul(at, p.row->src[0]->imm), p.row) : at;
  }

  const Node* result_index(Graph& g, const AttentionParts& p, const Node* part) const {
    const Node* line = g.add(g.mul(query_index(g, p), count_), part);
    return g.add(g.mul(line, columns_), p.column);
  }
  const Node* sum_index(Graph& g, const AttentionParts& p, const Node* part) const {
    const Node* line = g.add(g.mul(query_index(g, p), count_), part);
    return g.add(line, queries_ * count_ * columns_);
  }

  /// Distances as exponents of 2.
  static const Node* scaled(Graph& g, const AttentionParts& p, const Node* distance) {
    return p.scale ? g.binary(Op::kMul, distance, p.scale) : distance;
  }
  static const Node* or_zero(Graph& g, const Node* n) {
    const Node* is_none = g.binary(Op::kEq, n, g.constant_f(DType::kF32, -HUGE_VAL));
    return g.select(is_none, g.constant_f(DType::kF32, 0), n);
  }

  /// Attention over keys [part·length, (part + 1)·length), and its log-sum-exp.
  /// Keys of the last part that are not there are masked, and stand for the last one elsewhere.
  void make_parts(AttentionParts* p) const {
    Graph& g = *p->kernel->graph;
    const Node* all = p->key->src[0];
    const int64_t step = count_ * kPartStep;
    const Node* length = g.mul(g.div(g.add(all, step - 1), step), kPartStep);
    const Node* part = g.range(g.index(count_));
    const Node* key = g.range(length);
    const Node* at = g.add(g.mul(part, length), key);
    const Node* is_there = g.less(at, all);
    const Node* clamped = g.binary(Op::kMin, at, g.add(all, -1));
    const auto of_part = [&](const Node* n) {
      return g.substitute(n, std::array{p->key}, std::array{clamped});
    };
    const Node* lowest = g.constant_f(DType::kF32, -HUGE_VAL);
    const Node* logit = g.select(is_there, of_part(p->logit), lowest);
    const Node* row_max = or_zero(g, g.reduce(ReduceOp::kMax, logit, std::array{key}));
    const Node* distance = g.binary(Op::kSub, logit, row_max);
    const Node* numerator = g.unary(Op::kExp2, scaled(g, *p, distance));
    const Node* row_sum = g.reduce(ReduceOp::kSum, numerator, std::array{key});
    const Node* is_empty = g.binary(Op::kEq, row_sum, g.constant_f(DType::kF32, 0));
    const Node* divisor = g.select(is_empty, g.constant_f(DType::kF32, 1), row_sum);
    const Node* weight = g.binary(Op::kMul, numerator, g.unary(Op::kRecip, divisor));
    const Node* value =
        g.reduce(ReduceOp::kSum, g.binary(Op::kMul, weight, of_part(p->values)), std::array{key});
    const Node* logarithm = g.unary(Op::kLog2, divisor);
    if (p->scale)
      logarithm = g.binary(Op::kMul, logarithm, g.constant_f(DType::kF32, 1 / p->scale->fimm()));
    const Node* sum = g.select(is_empty, lowest, g.binary(Op::kAdd, row_max, logarithm));
    std::vector<ir::Store> stores;
    stores.push_back({0, result_index(g, *p, part), value, nullptr});
    stores.push_back({0, sum_index(g, *p, part), sum, g.less(p->column, g.index(1))});
    p->kernel->stores = std::move(stores);
    auto& ranges = p->kernel->ranges;
    ranges.insert(ranges.begin() + static_cast<ptrdiff_t>(p->batch.size()), part);
  }

  /// The kernel with reductions over parts for those over keys, by the weight that each part has in
  /// all.
  bool make_merge(AttentionParts* p) const {
    Graph& g = *p->kernel->graph;
    const auto sum_over = [&](ReduceOp op, auto&& value) {
      const Node* part = g.range(g.index(count_));
      return g.reduce(op, value(part), std::array{part});
    };
    const auto logarithm = [&](const Node* part) {
      return g.load(1, DType::kF32, sum_index(g, *p, part));
    };
    const Node* row_max = or_zero(g, sum_over(ReduceOp::kMax, logarithm));
    const auto weight = [&](const Node* part) {
      const Node* distance = g.binary(Op::kSub, logarithm(part), row_max);
      return g.unary(Op::kExp2, scaled(g, *p, distance));
    };
    const Node* pv = sum_over(ReduceOp::kSum, [&](const Node* part) {
      const Node* result = g.load(1, DType::kF32, result_index(g, *p, part));
      return g.binary(Op::kMul, weight(part), result);
    });
    const Node* row_sum = sum_over(ReduceOp::kSum, weight);
    ir::Store& s = p->kernel->stores[0];
    s.value = g.substitute(s.value, std::array{p->pv, p->row_sum}, std::array{pv, row_sum});
    // What else the kernel makes of the result would want other params.
    std::vector<const Node*> roots{s.value, s.index};
    if (s.gate) roots.push_back(s.gate);
    return std::ranges::all_of(ir::topological(roots),
                               [&](const Node* n) {
                                 return n->op != Op::kLoad ||
                                        (n->imm == 1 && n->dtype == DType::kF32);
                               }) &&
           is_apart(pv, row_sum, s.value);
  }

  /// Reductions left are those over parts.
  bool is_apart(const Node* pv, const Node* row_sum, const Node* value) const {
    int reductions = 0;
    for (const Node* n : ir::topological({&value, 1})) reductions += n->op == Op::kReduce;
    return pv != row_sum && reductions == 3;
  }

  const ir::KernelIr& kernel_;
  int64_t rows_ = 1, columns_ = 1, queries_ = 1, count_ = 1;
};

}  // namespace

std::optional<SplitAttention> split_attention(const ir::KernelIr& kernel, const TargetInfo& target,
                                              uint32_t units) {
  if (!has_attention(kernel) || !target.has_groups || !target.has_segments) return std::nullopt;
  auto split = Splitter(kernel).run(std::max<int64_t>(units, 1));
  if (!split || !make_decode_attention_schedule(split->parts, target, units)) return std::nullopt;
  return split;
}

}  // namespace bm::compiler
