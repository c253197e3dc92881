// Rules: what a node is replaced with before it is made. All hold for every value, floats to the
// last bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "compiler/ir/linear.h"
#include "compiler/ir/node.h"

namespace bm::ir {
namespace {

/// Finds k·c·(x/c) + k·(x%c) and (x/a%b)·k·a + (x%a)·k; rewrites the pair into one term.
bool recombine_once(Graph& g, Linear& l) {
  for (size_t m = 0; m < l.terms.size(); ++m) {
    const Node* mod = l.terms[m].atom;
    if (mod->op != Op::kMod || !mod->src[1]->is_const() || mod->src[0]->lo < 0) continue;
    const int64_t c = mod->src[1]->imm, k = l.terms[m].coefficient;
    for (size_t d = 0; d < l.terms.size(); ++d) {
      if (d == m || l.terms[d].coefficient != k * c) continue;
      const Node* high = l.terms[d].atom;
      const bool is_div =
          high->op == Op::kDiv && high->src[0] == mod->src[0] && high->src[1]->is_const(c);
      const Node* inner = high->op == Op::kMod ? high->src[0] : nullptr;
      const bool is_digit = inner && high->src[1]->is_const() && inner->op == Op::kDiv &&
                            inner->src[0] == mod->src[0] && inner->src[1]->is_const(c);
      if (!is_div && !is_digit) continue;
      const Node* whole = is_div ? mod->src[0] : g.mod(mod->src[0], c * high->src[1]->imm);
      Linear rest;
      rest.constant = l.constant;
      for (size_t i = 0; i < l.terms.size(); ++i)
        if (i != m && i != d) rest.terms.push_back(l.terms[i]);
      Linear w = linear(whole);
      for (Linear::Term& t : w.terms) t.coefficient = -k * t.coefficient;
      w.constant = -k * w.constant;
      l = subtract(rest, w);
      return true;
    }
  }
  return false;
}

}  // namespace

const Node* Graph::sum_of(Linear l) {
  while (recombine_once(*this, l)) {}
  const Node* sum = nullptr;
  for (const Linear::Term& t : l.terms) {
    const Node* term = t.atom;
    if (t.coefficient != 1) {
      const Node* src[] = {t.atom, index(t.coefficient)};
      term = make(Op::kMul, DType::kI64, 0, src);
    }
    if (!sum) {
      sum = term;
      continue;
    }
    const Node* src[] = {sum, term};
    sum = make(Op::kAdd, DType::kI64, 0, src);
  }
  if (!sum) return index(l.constant);
  if (l.constant == 0) return sum;
  const Node* src[] = {sum, index(l.constant)};
  return make(Op::kAdd, DType::kI64, 0, src);
}

namespace {

/// a = c·quotient + remainder, remainder's coefficients not divisible by c, 0 <= its constant < c.
void split_by(const Linear& a, int64_t c, Linear& quotient, Linear& remainder) {
  for (const Linear::Term& t : a.terms) {
    if (t.coefficient % c == 0)
      quotient.terms.push_back({t.atom, t.coefficient / c});
    else
      remainder.terms.push_back(t);
  }
  remainder.constant = ((a.constant % c) + c) % c;
  quotient.constant = (a.constant - remainder.constant) / c;
}

/// The same with coefficients beyond c taken apart, too, when what is left lies below c: windows of
/// a padded row are (x + 59·k) % 58 with x + k < 58, which is x + k.
bool split_all_by(const Linear& a, int64_t c, Linear& quotient, Linear& remainder) {
  for (const Linear::Term& t : a.terms) {
    const int64_t rest = ((t.coefficient % c) + c) % c;
    if (rest != 0) remainder.terms.push_back({t.atom, rest});
    if (t.coefficient != rest) quotient.terms.push_back({t.atom, (t.coefficient - rest) / c});
  }
  remainder.constant = ((a.constant % c) + c) % c;
  quotient.constant = (a.constant - remainder.constant) / c;
  return remainder.lower() >= 0 && remainder.upper() < c;
}

int64_t common_divisor(const Linear& l, int64_t c) {
  for (const Linear::Term& t : l.terms) c = std::gcd(c, t.coefficient);
  return c;
}

Linear divided(const Linear& l, int64_t g) {
  Linear out = l;
  for (Linear::Term& t : out.terms) t.coefficient /= g;
  out.constant = l.constant / g;
  return out;
}

}  // namespace

/// Division of a non-negative index by a positive constant; nullptr: nothing to simplify.
const Node* Graph::simplify_div(const Node* a, int64_t c) {
  if (c == 1) return a;
  const Linear whole = linear(a);
  if (a->lo < 0 && whole.lower() < 0) return nullptr;
  if (std::min(whole.upper(), a->hi) < c) return index(0);
  if (a->op == Op::kDiv && a->src[1]->is_const() && a->src[0]->lo >= 0 && a->src[1]->imm > 0)
    return div(a->src[0], a->src[1]->imm * c);
  if (a->op == Op::kMod && a->src[1]->is_const() && a->src[1]->imm % c == 0 && a->src[0]->lo >= 0)
    return mod(div(a->src[0], c), a->src[1]->imm / c);
  Linear quotient, remainder, all_quotient, all_remainder;
  if (split_all_by(whole, c, all_quotient, all_remainder)) return sum_of(all_quotient);
  split_by(whole, c, quotient, remainder);
  if (remainder.lower() < 0) return nullptr;
  const bool has_quotient = !quotient.terms.empty() || quotient.constant != 0;
  const int64_t g = common_divisor(remainder, c);
  if (remainder.upper() < c) return sum_of(quotient);
  if (!has_quotient && g == 1) return nullptr;
  const Node* low = div(sum_of(divided(remainder, g)), c / g);
  return add(sum_of(quotient), low);
}

const Node* Graph::simplify_mod(const Node* a, int64_t c) {
  if (c == 1) return index(0);
  const Linear whole = linear(a);
  if (a->lo < 0 && whole.lower() < 0) return nullptr;
  if (std::min(whole.upper(), a->hi) < c) return a;
  if (a->op == Op::kMod && a->src[1]->is_const() && a->src[1]->imm % c == 0 && a->src[0]->lo >= 0)
    return mod(a->src[0], c);
  Linear quotient, remainder, all_quotient, all_remainder;
  if (split_all_by(whole, c, all_quotient, all_remainder)) return sum_of(all_remainder);
  split_by(whole, c, quotient, remainder);
  if (remainder.lower() < 0) return nullptr;
  if (remainder.upper() < c) return sum_of(remainder);
  const int64_t g = common_divisor(remainder, c);
  if (g > 1) {  // (g·x + r) % c = g·(x % (c/g)) + r with r < g
    Linear inner = divided(remainder, g);
    return add(mul(mod(sum_of(inner), c / g), g), remainder.constant % g);
  }
  if (quotient.terms.empty() && quotient.constant == 0) return nullptr;
  return mod(sum_of(remainder), c);
}

namespace {

/// Only rules that are exact for NaN, infinities and signed zero.
const Node* simplify_float(Op op, const Node* a, const Node* b) {
  if (op == Op::kMul && b->is_const() && b->fimm() == 1.0) return a;
  if (op == Op::kMul && a->is_const() && a->fimm() == 1.0) return b;
  if (op == Op::kDiv && b->is_const() && b->fimm() == 1.0) return a;
  if (op == Op::kSub && b->is_const() && b->fimm() == 0.0 && !std::signbit(b->fimm())) return a;
  if (op == Op::kAdd && b->is_const() && b->fimm() == 0.0 && std::signbit(b->fimm())) return a;
  return nullptr;
}

const Node* simplify_bool(Op op, const Node* a, const Node* b) {
  const Node* c = a->is_const() ? a : b->is_const() ? b : nullptr;
  const Node* other = c == a ? b : a;
  if (a == b && (op == Op::kAnd || op == Op::kOr || op == Op::kMax || op == Op::kMin)) return a;
  if (!c) return nullptr;
  if (op == Op::kAnd || op == Op::kMul || op == Op::kMin) return c->imm ? other : c;
  if (op == Op::kOr || op == Op::kMax) return c->imm ? c : other;
  return nullptr;
}

bool is_power_of_two(int64_t v) { return v > 0 && (v & (v - 1)) == 0; }

/// 0 <= a < b, whatever the iteration.
bool is_below(const Node* a, const Node* b) {
  return a->dtype == DType::kI64 && b->lo > 0 && linear(a).lower() >= 0 &&
         subtract(linear(a), linear(b)).upper() < 0;
}

}  // namespace

/// kAdd or kSub.
const Node* Graph::simplify_sum(Op op, const Node* a, const Node* b) {
  if (a->dtype == DType::kI64) {
    Linear right = linear(b);
    if (op == Op::kAdd) right = subtract(Linear{}, right);
    return sum_of(subtract(linear(a), right));
  }
  if (b->is_const(0)) return a;
  if (op == Op::kAdd && a->is_const(0)) return b;
  if (op == Op::kSub && a == b) return constant(a->dtype, 0);
  return nullptr;
}

const Node* Graph::simplify_product(const Node* a, const Node* b) {
  const DType t = a->dtype;
  const Node* c = b->is_const() ? b : a->is_const() ? a : nullptr;
  // Canonical operand order, so that i*n and n*i are one atom.
  if (!c) return a->id > b->id ? make(Op::kMul, t, 0, std::array{b, a}) : nullptr;
  const Node* other = c == b ? a : b;
  if (c->imm == 0) return constant(t, 0);
  if (c->imm == 1) return other;
  if (t != DType::kI64) return nullptr;
  const auto times = [&](int64_t v) {  // wraps
    return static_cast<int64_t>(static_cast<uint64_t>(v) * static_cast<uint64_t>(c->imm));
  };
  Linear l = linear(other);
  for (Linear::Term& term : l.terms) term.coefficient = times(term.coefficient);
  l.constant = times(l.constant);
  std::erase_if(l.terms, [](const Linear::Term& x) { return x.coefficient == 0; });
  return sum_of(l);
}

/// kLt, kEq or kNe of integers.
const Node* Graph::simplify_comparison(Op op, const Node* a, const Node* b) {
  if (a == b) return boolean(op == Op::kEq);
  if (a->dtype == DType::kU64) return nullptr;
  if (op != Op::kLt) return a->hi < b->lo || b->hi < a->lo ? boolean(op == Op::kNe) : nullptr;
  if (a->hi < b->lo) return boolean(true);
  if (a->lo >= b->hi) return boolean(false);
  if (a->dtype != DType::kI64) return nullptr;
  const Linear d = subtract(linear(a), linear(b));
  if (d.upper() < 0) return boolean(true);
  if (d.lower() >= 0) return boolean(false);
  return nullptr;
}

const Node* Graph::simplify_binary(Op op, const Node* a, const Node* b) {
  const DType t = a->dtype;
  if (is_float(t)) return simplify_float(op, a, b);
  if (is_bool(t)) return simplify_bool(op, a, b);
  switch (op) {
    case Op::kAdd:
    case Op::kSub: return simplify_sum(op, a, b);
    case Op::kMul: return simplify_product(a, b);
    case Op::kDiv:
      if (b->is_const(1)) return a;
      if (t == DType::kI64 && b->is_const() && b->imm > 0) return simplify_div(a, b->imm);
      return is_below(a, b) ? index(0) : nullptr;
    case Op::kMod:
      if (b->is_const(1)) return constant(t, 0);
      if (t == DType::kI64 && b->is_const() && b->imm > 0) return simplify_mod(a, b->imm);
      return is_below(a, b) ? a : nullptr;
    case Op::kMax:
    case Op::kMin:
      if (a == b) return a;
      if (t == DType::kU64) return nullptr;
      if (a->lo >= b->hi) return op == Op::kMax ? a : b;
      if (b->lo >= a->hi) return op == Op::kMax ? b : a;
      return nullptr;
    case Op::kAnd:
      if (a == b || b->is_const(0)) return b;
      if (a->is_const(0)) return a;
      if (t != DType::kU64 && b->is_const() && a->lo >= 0 && b->imm >= a->hi &&
          is_power_of_two(b->imm + 1))
        return a;
      return nullptr;
    case Op::kOr:
    case Op::kXor:
      if (b->is_const(0)) return a;
      if (a->is_const(0)) return b;
      return nullptr;
    case Op::kShl:
    case Op::kShr: return b->is_const(0) ? a : nullptr;
    case Op::kLt:
    case Op::kEq:
    case Op::kNe: return simplify_comparison(op, a, b);
    default: return nullptr;
  }
}

}  // namespace bm::ir
