// Graph: the arena, hash-consing, value bounds and simplification rules.
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "compiler/ir/linear.h"
#include "compiler/ir/node.h"
#include "runtime/base/check.h"

namespace bm::ir {
namespace {

struct Key {
  Op op;
  DType dtype;
  int64_t imm;
  std::span<const Node* const> src;
};

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ULL + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccdULL;
}

struct Hash {
  using is_transparent = void;
  size_t operator()(const Key& k) const {
    uint64_t h = mix(static_cast<uint64_t>(k.op) << 8 | static_cast<uint64_t>(k.dtype),
                     static_cast<uint64_t>(k.imm));
    for (const Node* s : k.src) h = mix(h, s->id);
    return h;
  }
  size_t operator()(const Node* n) const { return (*this)(Key{n->op, n->dtype, n->imm, n->src}); }
};

struct Equal {
  using is_transparent = void;
  static bool same(const Key& a, const Key& b) {
    return a.op == b.op && a.dtype == b.dtype && a.imm == b.imm &&
           std::equal(a.src.begin(), a.src.end(), b.src.begin(), b.src.end());
  }
  static Key key(const Node* n) { return {n->op, n->dtype, n->imm, n->src}; }
  bool operator()(const Node* a, const Node* b) const { return a == b; }
  bool operator()(const Key& a, const Node* b) const { return same(a, key(b)); }
  bool operator()(const Node* a, const Key& b) const { return same(key(a), b); }
};

struct Bounds {
  Wide lo, hi;
};

Bounds of(const Node* n) { return {n->lo, n->hi}; }

Bounds product(Bounds a, Bounds b) {
  const Wide p[] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
  return {*std::min_element(p, p + 4), *std::max_element(p, p + 4)};
}

/// Bounds of an integer operation before wrapping; full range when nothing is known.
Bounds integer_bounds(Op op, DType dtype, std::span<const Node* const> s) {
  const Bounds full{int_min(dtype), int_max(dtype)};
  const auto a = s.empty() ? full : of(s[0]);
  const auto b = s.size() > 1 ? of(s[1]) : full;
  switch (op) {
    case Op::kAdd: return {a.lo + b.lo, a.hi + b.hi};
    case Op::kSub: return {a.lo - b.hi, a.hi - b.lo};
    case Op::kMul: return product(a, b);
    case Op::kNeg: return {-a.hi, -a.lo};
    case Op::kDiv:
      if (b.lo > 0 && a.lo >= 0) return {a.lo / b.hi, a.hi / b.lo};
      return full;
    case Op::kMod:
      if (b.lo > 0 && a.lo >= 0) return {0, std::min(a.hi, b.hi - 1)};
      return full;
    case Op::kMax: return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Op::kMin: return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case Op::kAnd:
      if (a.lo >= 0 && b.lo >= 0) return {0, std::min(a.hi, b.hi)};
      return full;
    case Op::kShr:
      if (a.lo >= 0) return {0, a.hi};
      return full;
    case Op::kSelect: {
      const auto c = of(s[2]);
      return {std::min(b.lo, c.lo), std::max(b.hi, c.hi)};
    }
    case Op::kCast:
      if (is_float(s[0]->dtype)) return full;
      return a;
    default: return full;
  }
}

bool is_power_of_two(int64_t v) { return v > 0 && (v & (v - 1)) == 0; }

}  // namespace

struct Graph::Impl {
  std::deque<Node> nodes;
  std::deque<std::vector<const Node*>> sources;
  std::unordered_set<const Node*, Hash, Equal> table;
  int64_t next_range = 0;

  /// Sum of terms and constant in canonical order (atoms by age, constant last).
  const Node* rebuild(Graph& g, Linear l);
};

Graph::Graph() : impl_(std::make_unique<Impl>()) {}
Graph::~Graph() = default;
size_t Graph::size() const { return impl_->nodes.size(); }

const Node* Graph::make(Op op, DType dtype, int64_t imm, std::span<const Node* const> src) {
  const Key key{op, dtype, imm, src};
  if (auto it = impl_->table.find(key); it != impl_->table.end()) return *it;
  impl_->sources.emplace_back(src.begin(), src.end());
  Node& n = impl_->nodes.emplace_back();
  n.op = op;
  n.dtype = dtype;
  n.id = static_cast<uint32_t>(impl_->nodes.size() - 1);
  n.imm = imm;
  n.src = impl_->sources.back();
  if (!is_float(dtype)) {
    Bounds b = integer_bounds(op, dtype, src);
    if (op == Op::kConst) b = {imm, imm};
    if (op == Op::kRange) b = {0, std::max<int64_t>(src[0]->hi - 1, 0)};
    // A result that may wrap, or an unsigned 64-bit one, has no useful bounds.
    const bool may_wrap = b.lo < int_min(dtype) || b.hi > int_max(dtype);
    if (may_wrap || (dtype == DType::kU64 && op != Op::kConst))
      b = {int_min(dtype), int_max(dtype)};
    if (dtype == DType::kU64 && op != Op::kConst) b.lo = INT64_MIN;  // bits, not a number line
    n.lo = static_cast<int64_t>(b.lo);
    n.hi = static_cast<int64_t>(b.hi);
  }
  impl_->table.insert(&n);
  return &n;
}

const Node* Graph::constant(DType dtype, int64_t value) {
  const Scalar in{DType::kI64, value, 0};
  const Scalar out = fold(Op::kCast, dtype, {&in, 1});
  if (is_float(dtype)) return make(Op::kConst, dtype, std::bit_cast<int64_t>(out.f), {});
  // A cast to bool of 2 is 1, a cast to uint8 of 256 is 0: fold() has wrapped it.
  return make(Op::kConst, dtype, out.i, {});
}

const Node* Graph::constant_f(DType dtype, double value) {
  const Scalar in{DType::kF64, 0, value};
  const Scalar out = fold(Op::kCast, dtype, {&in, 1});
  return make(Op::kConst, dtype, is_float(dtype) ? std::bit_cast<int64_t>(out.f) : out.i, {});
}

const Node* Graph::var(int index, int64_t min, int64_t max) {
  const Node* n = make(Op::kVar, DType::kI64, index, {});
  // Declared bounds are part of the kernel's signature; the first declaration fixes them.
  auto* mutable_node = &impl_->nodes[n->id];
  if (mutable_node->lo == INT64_MIN) {
    mutable_node->lo = min;
    mutable_node->hi = max;
  }
  BM_CHECK(n->lo == min && n->hi == max);
  return n;
}

const Node* Graph::range(const Node* extent) { return range_with_id(impl_->next_range, extent); }

const Node* Graph::range_with_id(int64_t id, const Node* extent) {
  impl_->next_range = std::max(impl_->next_range, id + 1);
  const Node* src[] = {extent};
  return make(Op::kRange, DType::kI64, id, src);
}

const Node* Graph::load(int param, DType dtype, const Node* index, const Node* gate) {
  if (gate && gate->is_const()) {
    if (gate->imm == 0) return constant(dtype, 0);
    gate = nullptr;
  }
  const Node* src[] = {index, gate};
  return make(Op::kLoad, dtype, param, {src, gate ? size_t{2} : size_t{1}});
}

const Node* Graph::reduce(ReduceOp op, const Node* value, std::span<const Node* const> ranges) {
  if (ranges.empty()) return value;
  std::vector<const Node*> src{value};
  src.insert(src.end(), ranges.begin(), ranges.end());
  return make(Op::kReduce, value->dtype, static_cast<int64_t>(op), src);
}

const Node* Graph::scan(ReduceOp op, const Node* value, const Node* range) {
  if (range->is_const()) return value;  // a loop of one trip
  const Node* src[] = {value, range};
  return make(Op::kScan, value->dtype, static_cast<int64_t>(op), src);
}

const Node* Graph::least(const Node* value, const Node* range, const Node* number) {
  if (range->is_const()) return select(binary(Op::kEq, number, index(0)), value, index(INT64_MAX));
  const Node* src[] = {value, range, number};
  return make(Op::kLeast, DType::kI64, 0, src);
}

const Node* Graph::both(const Node* a, const Node* b) {
  if (!a) return b;
  if (!b) return a;
  return binary(Op::kAnd, a, b);
}

namespace {

Scalar scalar_of(const Node* n) {
  return is_float(n->dtype) ? Scalar{n->dtype, 0, n->fimm()} : Scalar{n->dtype, n->imm, 0};
}

/// NaN payloads and transcendental results must not depend on the host's libm.
bool is_foldable(Op op, DType operand) {
  if (op == Op::kExp2 || op == Op::kLog2 || op == Op::kSin) return false;
  return !(op == Op::kMod && is_float(operand));
}

}  // namespace

const Node* Graph::unary(Op op, const Node* a) {
  if (a->is_const() && is_foldable(op, a->dtype)) {
    const Scalar in = scalar_of(a);
    const Scalar out = fold(op, a->dtype, {&in, 1});
    return is_float(a->dtype) ? constant_f(a->dtype, out.f) : constant(a->dtype, out.i);
  }
  if ((op == Op::kNeg || op == Op::kNot) && a->op == op) return a->src[0];
  if (op == Op::kTrunc && !is_float(a->dtype)) return a;
  if (op == Op::kNeg && a->dtype == DType::kI64) {
    Linear zero;
    return impl_->rebuild(*this, subtract(zero, linear(a)));
  }
  const Node* src[] = {a};
  return make(op, a->dtype, 0, src);
}

const Node* Graph::cast(const Node* a, DType dtype) {
  if (a->dtype == dtype) return a;
  if (a->is_const()) {
    const Scalar in = scalar_of(a);
    const Scalar out = fold(Op::kCast, dtype, {&in, 1});
    return is_float(dtype) ? constant_f(dtype, out.f) : constant(dtype, out.i);
  }
  const Node* src[] = {a};
  return make(Op::kCast, dtype, 0, src);
}

const Node* Graph::bitcast(const Node* a, DType dtype) {
  if (a->dtype == dtype) return a;
  BM_CHECK(item_size(a->dtype) == item_size(dtype));
  if (a->op == Op::kBitcast) return bitcast(a->src[0], dtype);
  const Node* src[] = {a};
  return make(Op::kBitcast, dtype, 0, src);
}

const Node* Graph::select(const Node* condition, const Node* if_true, const Node* if_false) {
  if (condition->is_const()) return condition->imm ? if_true : if_false;
  if (if_true == if_false) return if_true;
  const Node* src[] = {condition, if_true, if_false};
  return make(Op::kSelect, if_true->dtype, 0, src);
}

const Node* Graph::fma(const Node* a, const Node* b, const Node* c) {
  const Node* src[] = {a, b, c};
  return make(Op::kFma, a->dtype, 0, src);
}

const Node* Graph::binary(Op op, const Node* a, const Node* b) {
  BM_CHECK(a->dtype == b->dtype || op == Op::kShl || op == Op::kShr);
  if (a->is_const() && b->is_const() && is_foldable(op, a->dtype)) {
    const Scalar in[] = {scalar_of(a), scalar_of(b)};
    const DType result = is_comparison(op) ? DType::kBool : a->dtype;
    const Scalar out = fold(op, a->dtype, in);
    return is_float(result) ? constant_f(result, out.f) : constant(result, out.i);
  }
  if (const Node* simpler = simplify_binary(op, a, b)) return simpler;
  const Node* src[] = {a, b};
  return make(op, is_comparison(op) ? DType::kBool : a->dtype, 0, src);
}

// --- rules -----------------------------------------------------------------------------------

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

const Node* Graph::Impl::rebuild(Graph& g, Linear l) {
  while (recombine_once(g, l)) {}
  const Node* sum = nullptr;
  for (const Linear::Term& t : l.terms) {
    const Node* term = t.atom;
    if (t.coefficient != 1) {
      const Node* src[] = {t.atom, g.index(t.coefficient)};
      term = g.make(Op::kMul, DType::kI64, 0, src);
    }
    if (!sum) {
      sum = term;
      continue;
    }
    const Node* src[] = {sum, term};
    sum = g.make(Op::kAdd, DType::kI64, 0, src);
  }
  if (!sum) return g.index(l.constant);
  if (l.constant == 0) return sum;
  const Node* src[] = {sum, g.index(l.constant)};
  return g.make(Op::kAdd, DType::kI64, 0, src);
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
  if (split_all_by(whole, c, all_quotient, all_remainder))
    return impl_->rebuild(*this, all_quotient);
  split_by(whole, c, quotient, remainder);
  if (remainder.lower() < 0) return nullptr;
  const bool has_quotient = !quotient.terms.empty() || quotient.constant != 0;
  const int64_t g = common_divisor(remainder, c);
  if (remainder.upper() < c) return impl_->rebuild(*this, quotient);
  if (!has_quotient && g == 1) return nullptr;
  const Node* low = div(impl_->rebuild(*this, divided(remainder, g)), c / g);
  return add(impl_->rebuild(*this, quotient), low);
}

const Node* Graph::simplify_mod(const Node* a, int64_t c) {
  if (c == 1) return index(0);
  const Linear whole = linear(a);
  if (a->lo < 0 && whole.lower() < 0) return nullptr;
  if (std::min(whole.upper(), a->hi) < c) return a;
  if (a->op == Op::kMod && a->src[1]->is_const() && a->src[1]->imm % c == 0 && a->src[0]->lo >= 0)
    return mod(a->src[0], c);
  Linear quotient, remainder, all_quotient, all_remainder;
  if (split_all_by(whole, c, all_quotient, all_remainder))
    return impl_->rebuild(*this, all_remainder);
  split_by(whole, c, quotient, remainder);
  if (remainder.lower() < 0) return nullptr;
  if (remainder.upper() < c) return impl_->rebuild(*this, remainder);
  const int64_t g = common_divisor(remainder, c);
  if (g > 1) {  // (g·x + r) % c = g·(x % (c/g)) + r with r < g
    Linear inner = divided(remainder, g);
    return add(mul(mod(impl_->rebuild(*this, inner), c / g), g), remainder.constant % g);
  }
  if (quotient.terms.empty() && quotient.constant == 0) return nullptr;
  return mod(impl_->rebuild(*this, remainder), c);
}

const Node* Graph::simplify_binary(Op op, const Node* a, const Node* b) {
  const DType t = a->dtype;
  if (is_float(t)) {  // only rules that are exact for NaN, infinities and signed zero
    if (op == Op::kMul && b->is_const() && b->fimm() == 1.0) return a;
    if (op == Op::kMul && a->is_const() && a->fimm() == 1.0) return b;
    if (op == Op::kDiv && b->is_const() && b->fimm() == 1.0) return a;
    if (op == Op::kSub && b->is_const() && b->fimm() == 0.0 && !std::signbit(b->fimm())) return a;
    if (op == Op::kAdd && b->is_const() && b->fimm() == 0.0 && std::signbit(b->fimm())) return a;
    return nullptr;
  }
  if (is_bool(t)) {
    const Node* c = a->is_const() ? a : b->is_const() ? b : nullptr;
    const Node* other = c == a ? b : a;
    if (a == b && (op == Op::kAnd || op == Op::kOr || op == Op::kMax || op == Op::kMin)) return a;
    if (!c) return nullptr;
    if (op == Op::kAnd || op == Op::kMul || op == Op::kMin) return c->imm ? other : c;
    if (op == Op::kOr || op == Op::kMax) return c->imm ? c : other;
    return nullptr;
  }
  switch (op) {
    case Op::kAdd:
    case Op::kSub:
      if (t == DType::kI64) {
        Linear right = linear(b);
        if (op == Op::kAdd) {
          Linear zero;
          right = subtract(zero, right);
        }
        return impl_->rebuild(*this, subtract(linear(a), right));
      }
      if (b->is_const(0)) return a;
      if (op == Op::kAdd && a->is_const(0)) return b;
      if (op == Op::kSub && a == b) return constant(t, 0);
      return nullptr;
    case Op::kMul: {
      const Node* c = b->is_const() ? b : a->is_const() ? a : nullptr;
      if (!c) {
        // Canonical operand order, so that i*n and n*i are one atom.
        return a->id > b->id ? make(op, t, 0, std::array{b, a}) : nullptr;
      }
      const Node* other = c == b ? a : b;
      if (c->imm == 0) return constant(t, 0);
      if (c->imm == 1) return other;
      if (t != DType::kI64) return nullptr;
      Linear l = linear(other);
      for (Linear::Term& term : l.terms)
        term.coefficient = static_cast<int64_t>(static_cast<uint64_t>(term.coefficient) *
                                                static_cast<uint64_t>(c->imm));
      l.constant =
          static_cast<int64_t>(static_cast<uint64_t>(l.constant) * static_cast<uint64_t>(c->imm));
      std::erase_if(l.terms, [](const Linear::Term& x) { return x.coefficient == 0; });
      return impl_->rebuild(*this, l);
    }
    case Op::kDiv:
      if (b->is_const(1)) return a;
      if (t == DType::kI64 && b->is_const() && b->imm > 0) return simplify_div(a, b->imm);
      if (t == DType::kI64 && b->lo > 0 && linear(a).lower() >= 0 &&
          subtract(linear(a), linear(b)).upper() < 0)
        return index(0);
      return nullptr;
    case Op::kMod:
      if (b->is_const(1)) return constant(t, 0);
      if (t == DType::kI64 && b->is_const() && b->imm > 0) return simplify_mod(a, b->imm);
      if (t == DType::kI64 && b->lo > 0 && linear(a).lower() >= 0 &&
          subtract(linear(a), linear(b)).upper() < 0)
        return a;
      return nullptr;
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
    case Op::kLt: {
      if (t == DType::kU64) return nullptr;
      if (a == b) return boolean(false);
      if (a->hi < b->lo) return boolean(true);
      if (a->lo >= b->hi) return boolean(false);
      if (t != DType::kI64) return nullptr;
      const Linear d = subtract(linear(a), linear(b));
      if (d.upper() < 0) return boolean(true);
      if (d.lower() >= 0) return boolean(false);
      return nullptr;
    }
    case Op::kEq:
    case Op::kNe:
      if (a == b) return boolean(op == Op::kEq);
      if (t == DType::kU64) return nullptr;
      if (a->hi < b->lo || b->hi < a->lo) return boolean(op == Op::kNe);
      return nullptr;
    default: return nullptr;
  }
}

const Node* Graph::substitute(const Node* root, std::span<const Node* const> from,
                              std::span<const Node* const> to) {
  std::unordered_map<const Node*, const Node*> map;
  for (size_t i = 0; i < from.size(); ++i) map[from[i]] = to[i];
  for (const Node* n : topological({&root, 1})) {
    if (map.count(n)) continue;
    std::vector<const Node*> s;
    bool is_changed = false;
    for (const Node* x : n->src) {
      s.push_back(map.at(x));
      is_changed |= s.back() != x;
    }
    const Node* out = n;
    if (is_changed) {
      if (n->op == Op::kLoad)
        out = load(static_cast<int>(n->imm), n->dtype, s[0], s.size() > 1 ? s[1] : nullptr);
      else if (n->op == Op::kReduce)
        out = reduce(n->reduce_op(), s[0], std::span(s).subspan(1));
      else if (n->op == Op::kScan)
        out = scan(n->reduce_op(), s[0], s[1]);
      else if (n->op == Op::kLeast)
        out = least(s[0], s[1], s[2]);
      else if (n->op == Op::kRange)
        out = range_with_id(n->imm, s[0]);
      else if (n->op == Op::kCast)
        out = cast(s[0], n->dtype);
      else if (n->op == Op::kBitcast)
        out = bitcast(s[0], n->dtype);
      else if (is_unary(n->op))
        out = unary(n->op, s[0]);
      else if (is_binary(n->op))
        out = binary(n->op, s[0], s[1]);
      else if (n->op == Op::kSelect)
        out = select(s[0], s[1], s[2]);
      else
        out = fma(s[0], s[1], s[2]);
    }
    map[n] = out;
  }
  return map.at(root);
}

}  // namespace bm::ir
