// Matches attention: softmax of masked logits Q·Kᵀ, times V.
// Takes a kernel apart into the parts of attention. What counts is which loops each factor varies
// along and that numerator and denominator are exponentials of the same distance from the same row
// max.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>

#include "compiler/ir/linear.h"
#include "compiler/schedules/attention/attention_plan.h"

namespace bm::compiler {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::ReduceOp;
using Nodes = std::vector<const Node*>;

bool contains(const Nodes& list, const Node* n) {
  return std::find(list.begin(), list.end(), n) != list.end();
}

bool is_float_const(const Node* n, double value) {
  return n->is_const() && is_float(n->dtype) && n->fimm() == value;
}

/// The other operand where one of two is the constant.
const Node* other_than(const Node* n, double value) {
  if (is_float_const(n->src[1], value)) return n->src[0];
  return is_float_const(n->src[0], value) ? n->src[1] : nullptr;
}

/// Reductions reachable from `root` without entering one.
Nodes outer_reduces(const Node* root) {
  Nodes stack{root}, seen, out;
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (contains(seen, n)) continue;
    seen.push_back(n);
    if (n->op == Op::kReduce) {
      out.push_back(n);
    } else {
      stack.insert(stack.end(), n->src.begin(), n->src.end());
    }
  }
  return out;
}

/// Whether two expressions differ in the names of loops only.
class Renaming {
 public:
  /// `a` stands for `b` from now on.
  bool bind(const Node* a, const Node* b) {
    if (a->src[0] != b->src[0]) return false;
    known_.clear();
    std::erase_if(names_, [&](const auto& p) { return p.first == a || p.second == b; });
    names_.emplace_back(a, b);
    return true;
  }

  bool equal(const Node* a, const Node* b) {
    const bool is_sum = a->op == Op::kAdd || b->op == Op::kAdd;
    if (a->dtype == DType::kI64 && b->dtype == DType::kI64 && is_sum)
      return equal_linear(ir::linear(a), ir::linear(b));
    if (a->op != b->op || a->dtype != b->dtype || a->src.size() != b->src.size()) return false;
    if (a->op == Op::kRange) {
      for (const auto& [from, to] : names_)
        if (from == a || to == b) return from == a && to == b;
      return a == b;
    }
    if (a->imm != b->imm) return false;
    if (a->op == Op::kReduce) return reduce(a, b);
    const auto [it, is_new] = known_.emplace(std::pair(a, b), true);
    if (!is_new) return it->second;
    bool result = true;
    for (size_t i = 0; result && i < a->src.size(); ++i) result = equal(a->src[i], b->src[i]);
    return known_[{a, b}] = result;
  }

 private:
  /// Terms are in the order of their loops' numbers.
  bool equal_linear(const ir::Linear& a, ir::Linear b) {
    if (a.constant != b.constant || a.terms.size() != b.terms.size()) return false;
    for (const ir::Linear::Term& t : a.terms) {
      const auto it = std::find_if(b.terms.begin(), b.terms.end(), [&](const auto& other) {
        return other.coefficient == t.coefficient && equal(t.atom, other.atom);
      });
      if (it == b.terms.end()) return false;
      b.terms.erase(it);
    }
    return true;
  }

  bool reduce(const Node* a, const Node* b) {
    Renaming inside;
    inside.names_ = names_;
    for (size_t i = 1; i < a->src.size(); ++i)
      if (!inside.bind(a->src[i], b->src[i])) return false;
    return inside.equal(a->src[0], b->src[0]);
  }

  std::vector<std::pair<const Node*, const Node*>> names_;
  std::map<std::pair<const Node*, const Node*>, bool> known_;
};

class Finder {
 public:
  explicit Finder(bool may_lack_rows) : may_lack_rows_(may_lack_rows) {}

  std::optional<AttentionParts> run(const ir::KernelIr& kernel) {
    const bool is_wanted = may_lack_rows_ ? !kernel.stores.empty() : kernel.stores.size() == 1;
    if (!is_wanted || !copy(kernel)) return std::nullopt;
    if (!find_pv() || !find_numerator() || !find_row_sum() || !find_product()) return std::nullopt;
    if (!find_loops()) return std::nullopt;
    find_causal_bound();
    rebuild();
    return std::move(p_);
  }

 private:
  bool copy(const ir::KernelIr& kernel) {
    auto copied = ir::deserialize(ir::serialize(kernel));
    if (!copied) return false;
    p_.kernel = std::make_shared<ir::KernelIr>(std::move(*copied));
    p_.kernel->name = kernel.name;
    p_.kernel->vars = kernel.vars;
    return true;
  }

  Graph& g() { return *p_.kernel->graph; }

  // --- which loops a node varies along -------------------------------------------------------

  const Nodes& free_of(const Node* n) {
    for (const Node* m : ir::topological({&n, 1})) {
      if (free_.contains(m)) continue;
      Nodes set;
      if (m->op == Op::kRange) set.push_back(m);
      const size_t count = m->op == Op::kReduce ? 1 : m->src.size();
      for (size_t i = 0; i < count; ++i)
        for (const Node* r : free_.at(m->src[i]))
          if (!contains(set, r)) set.push_back(r);
      if (m->op == Op::kReduce)
        std::erase_if(set, [&](const Node* r) {
          return std::find(m->src.begin() + 1, m->src.end(), r) != m->src.end();
        });
      free_[m] = std::move(set);
    }
    return free_.at(n);
  }
  bool varies(const Node* n, const Node* range) { return contains(free_of(n), range); }

  // --- the formula -----------------------------------------------------------------------------

  /// The one sum that the result is made of.
  bool find_pv() {
    const Nodes tops = outer_reduces(p_.kernel->stores[0].value);
    if (tops.size() != 1) return false;
    old_pv_ = tops[0];
    const DType t = old_pv_->dtype;
    const bool is_sum = old_pv_->reduce_op() == ReduceOp::kSum && old_pv_->src.size() == 2;
    if (!is_sum || (t != DType::kF32 && t != DType::kF64)) return false;
    p_.key = old_pv_->src[1];
    p_.weight = t;
    return take_apart(old_pv_->src[0], false);
  }

  /// Factors of the products that `pv` adds up: the numerator, values, and what is one per row.
  bool take_apart(const Node* n, bool is_below) {
    if (n->op == Op::kMul && n->dtype == old_pv_->dtype && !is_below)
      return take_apart(n->src[0], false) && take_apart(n->src[1], false);
    if (n->op == Op::kDiv && n->dtype == old_pv_->dtype && !is_below && !varies(n->src[1], p_.key))
      return take_apart(n->src[0], false) && take_apart(n->src[1], true);
    if (is_below) {
      below_.push_back(n);
      return true;
    }
    if (!varies(n, p_.key)) {
      per_row_.push_back(n);
      return true;
    }
    // Weights of 16-bit values are rounded like these; here they stay as they are.
    if (n->op == Op::kCast && n->src[0]->op == Op::kCast && is_half_like(n->src[0]->dtype) &&
        n->src[0]->src[0]->dtype == n->dtype && !outer_reduces(n).empty()) {
      p_.weight = n->src[0]->dtype;
      return take_apart(n->src[0]->src[0], false);
    }
    if (outer_reduces(n).empty()) {
      p_.values = p_.values ? g().binary(Op::kMul, p_.values, n) : n;
      return true;
    }
    if (n->op != Op::kExp2 || numerator_) return false;
    numerator_ = n;
    return true;
  }

  bool find_numerator() {
    if (!numerator_ || !p_.values) return false;
    const Node* distance = numerator_->src[0];
    if (distance->op == Op::kMul) {
      const bool is_last = distance->src[1]->is_const();
      p_.scale = distance->src[is_last ? 1 : 0];
      distance = distance->src[is_last ? 0 : 1];
      if (!p_.scale->is_const() || p_.scale->fimm() <= 0) return false;
    }
    if (distance->op != Op::kSub) return false;
    p_.logit = distance->src[0];
    const Node* row_max = distance->src[1];
    // A row of nothing but -inf counts from 0.
    if (row_max->op == Op::kSelect && row_max->src[0]->op == Op::kEq) {
      const Node* asked = other_than(row_max->src[0], -HUGE_VAL);
      if (!asked || asked != row_max->src[2] || !is_float_const(row_max->src[1], 0)) return false;
      row_max = asked;
      is_safe_ = true;
    }
    p_.row_max = row_max;
    return row_max->op == Op::kReduce && row_max->reduce_op() == ReduceOp::kMax &&
           goes_over_keys(row_max, p_.logit) && p_.logit->dtype == old_pv_->dtype;
  }

  /// Whether `reduce` is one of `value` over all keys.
  bool goes_over_keys(const Node* reduce, const Node* value) const {
    Renaming names;
    return reduce->src.size() == 2 && names.bind(reduce->src[1], p_.key) &&
           names.equal(reduce->src[0], value);
  }

  /// The sum of the numerators, or 1 where that is 0.
  const Node* total_of(const Node* n) const {
    if (n->op == Op::kSelect && n->src[0]->op == Op::kEq && is_safe_) {
      const Node* asked = other_than(n->src[0], 0);
      if (!asked || asked != n->src[2] || !is_float_const(n->src[1], 1)) return nullptr;
      n = asked;
    }
    const bool is_total =
        n->op == Op::kReduce && n->reduce_op() == ReduceOp::kSum && goes_over_keys(n, numerator_);
    return is_total ? n : nullptr;
  }

  /// Weights must be shares of the row_sum: with anything else, rows of nothing but -inf would
  /// have to be told apart.
  bool find_row_sum() {
    Nodes divisors = below_;
    for (const Node* n : per_row_)
      if (n->op == Op::kRecip) divisors.push_back(n->src[0]);
    for (const Node* n : divisors)
      if (const Node* row_sum = total_of(n)) p_.row_sum = row_sum;
    if (!p_.row_sum) return false;
    Nodes all = below_;
    all.insert(all.end(), per_row_.begin(), per_row_.end());
    for (const Node* n : all)
      for (const Node* r : outer_reduces(n))
        if (r != p_.row_sum) return false;
    return true;
  }

  bool find_product() {
    const Nodes reduces = outer_reduces(p_.logit);
    if (reduces.size() != 1) return false;
    p_.product = reduces[0];
    const Node* body = p_.product->src[0];
    if (p_.product->reduce_op() != ReduceOp::kSum || p_.product->src.size() != 2 ||
        p_.product->dtype != old_pv_->dtype || body->op != Op::kMul || !outer_reduces(body).empty())
      return false;
    p_.head_dim = p_.product->src[1];
    if (!p_.head_dim->src[0]->is_const() || p_.head_dim->src[0]->imm < 1) return false;
    const bool is_first = varies(body->src[0], p_.key);
    p_.keys = body->src[is_first ? 0 : 1];
    p_.query = body->src[is_first ? 1 : 0];
    return varies(p_.keys, p_.key) && !varies(p_.query, p_.key);
  }

  // --- the loops -------------------------------------------------------------------------------

  bool find_loops() {
    for (const Node* r : p_.kernel->ranges) {
      const bool in_values = varies(p_.values, r), in_keys = varies(p_.keys, r);
      if (in_values && !varies(numerator_, r)) {
        if (p_.column) return false;
        p_.column = r;
      } else if (!in_values && !in_keys && varies(numerator_, r)) {
        rows_.push_back(r);
      } else {
        p_.batch.push_back(r);
      }
    }
    if (!p_.column || (rows_.empty() && !may_lack_rows_) || !p_.column->src[0]->is_const())
      return false;
    // Only the outermost of merged loops may have a symbolic extent.
    const auto is_symbolic = [](const Node* r) { return !r->src[0]->is_const(); };
    std::stable_partition(rows_.begin(), rows_.end(), is_symbolic);
    std::stable_partition(p_.batch.begin(), p_.batch.end(), is_symbolic);
    return std::count_if(rows_.begin(), rows_.end(), is_symbolic) <= 1 &&
           std::count_if(p_.batch.begin(), p_.batch.end(), is_symbolic) <= 1;
  }

  // --- keys that are masked whole ----------------------------------------------------------------

  /// Conditions without which the logit is -inf.
  void collect_conditions(const Node* n, std::vector<std::pair<const Node*, bool>>* out) {
    if (n->op == Op::kSelect) {
      for (const int which : {1, 2})
        if (is_float_const(n->src[static_cast<size_t>(which)], -HUGE_VAL)) {
          out->emplace_back(n->src[0], which == 2);
          return collect_conditions(n->src[static_cast<size_t>(3 - which)], out);
        }
    } else if (n->op == Op::kAdd ||
               (n->op == Op::kMul && n->src[1]->is_const() && n->src[1]->fimm() > 0)) {
      for (const Node* s : n->src) collect_conditions(s, out);
    }
  }

  void find_causal_bound() {
    std::vector<std::pair<const Node*, bool>> conditions;
    collect_conditions(p_.logit, &conditions);
    while (!conditions.empty() && !p_.causal_bound) {
      auto [n, is_wanted] = conditions.back();
      conditions.pop_back();
      if (n->op == Op::kNot) {
        conditions.emplace_back(n->src[0], !is_wanted);
      } else if (n->op == (is_wanted ? Op::kAnd : Op::kOr)) {
        for (const Node* s : n->src) conditions.emplace_back(s, is_wanted);
      } else if (n->op == Op::kLt && n->src[0]->dtype == DType::kI64) {
        // a < b, or b <= a: the key alone on the smaller side leaves the first one masked.
        const Node* first =
            is_wanted ? g().sub(n->src[1], n->src[0]) : g().add(g().sub(n->src[0], n->src[1]), 1);
        first = g().add(first, p_.key);
        if (varies(first, p_.key) || !grows_with_queries(first)) continue;
        p_.causal_bound = first;
        p_.unmasked_logit =
            g().substitute(p_.logit, std::array{n}, std::array{g().boolean(is_wanted)});
      }
    }
  }

  /// Whether later queries see more keys. The loop that says so becomes the outermost one of the
  /// queries: heads that share keys lie inside, and groups of queries see few keys or many.
  bool grows_with_queries(const Node* n) {
    const Node* by = nullptr;
    for (const ir::Linear::Term& t : ir::linear(n).terms)
      for (const Node* r : rows_) {
        if (!varies(t.atom, r)) continue;
        if (t.atom != r || t.coefficient < 0 || (by && by != r)) return false;
        by = r;
      }
    const auto at = std::ranges::find(rows_, by);
    if (!by || at == rows_.begin()) return true;
    if (!rows_[0]->src[0]->is_const()) return false;
    std::rotate(rows_.begin(), at, at + 1);
    return true;
  }

  // --- the kernel with one loop for all queries ----------------------------------------------

  void rebuild() {
    Nodes digits(rows_.size());
    const Node* extent = g().index(1);
    for (const Node* r : rows_) extent = g().mul(extent, r->src[0]);
    if (!rows_.empty()) p_.row = rows_.size() == 1 ? rows_[0] : g().range(extent);
    int64_t inner = 1;
    for (size_t i = rows_.size(); i-- > 0;) {
      const Node* digit = g().div(p_.row, inner);
      digits[i] = i == 0 ? digit : g().mod(digit, rows_[i]->src[0]->imm);
      if (i > 0) inner *= rows_[i]->src[0]->imm;
    }
    const auto merged = [&](const Node* n) { return n ? g().substitute(n, rows_, digits) : n; };
    const Node* result =
        g().reduce(ReduceOp::kSum, g().binary(Op::kMul, numerator_, p_.values), std::array{p_.key});
    p_.pv = merged(result);
    for (const Node* n : per_row_) result = g().binary(Op::kMul, result, n);
    for (const Node* n : below_) result = g().binary(Op::kDiv, result, n);
    // A sum over no keys is 0, whatever it would have been divided by.
    const Node* keys = p_.key->src[0];
    if (!keys->is_const())
      result = g().select(g().binary(Op::kLt, g().index(0), keys), result,
                          g().constant(result->dtype, 0));
    ir::Store& s = p_.kernel->stores[0];
    s.value = g().substitute(s.value, std::array{old_pv_}, std::array{result});
    for (ir::Store& each : p_.kernel->stores) {
      each.value = merged(each.value);
      each.index = merged(each.index);
      each.gate = merged(each.gate);
    }
    for (const Node** part : {&p_.query, &p_.keys, &p_.values, &p_.product, &p_.logit,
                              &p_.unmasked_logit, &p_.row_max, &p_.row_sum, &p_.causal_bound})
      *part = merged(*part);
    p_.kernel->ranges = p_.batch;
    if (p_.row) p_.kernel->ranges.push_back(p_.row);
    p_.kernel->ranges.push_back(p_.column);
  }

  AttentionParts p_;
  Nodes rows_, per_row_, below_;
  const Node *old_pv_ = nullptr, *numerator_ = nullptr;
  bool is_safe_ = false;
  bool may_lack_rows_ = false;
  std::unordered_map<const Node*, Nodes> free_;
};

}  // namespace

std::optional<AttentionParts> find_attention_parts(const ir::KernelIr& kernel, bool may_lack_rows) {
  return Finder(may_lack_rows).run(kernel);
}

}  // namespace bm::compiler
