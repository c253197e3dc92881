// Graph: the arena, hash-consing and the makers of nodes. Rules are in simplify.cpp.
#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "compiler/ir/bounds.h"
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

}  // namespace

struct Graph::Impl {
  std::deque<Node> nodes;
  std::deque<std::vector<const Node*>> sources;
  std::unordered_set<const Node*, Hash, Equal> table;
  int64_t next_range = 0;
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
    const Bounds b = bounds_of(n);
    n.lo = b.lo;
    n.hi = b.hi;
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
  if (range->is_const()) return value;  // a loop of one iteration
  const Node* src[] = {value, range};
  return make(Op::kScan, value->dtype, static_cast<int64_t>(op), src);
}

const Node* Graph::top_k(const Node* value, const Node* range, const Node* number) {
  if (range->is_const()) return select(binary(Op::kEq, number, index(0)), value, index(INT64_MAX));
  const Node* src[] = {value, range, number};
  return make(Op::kTopK, DType::kI64, 0, src);
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
    return sum_of(subtract(zero, linear(a)));
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

const Node* Graph::remake(const Node& n, std::span<const Node* const> s) {
  switch (n.op) {
    case Op::kConst:
      return is_float(n.dtype) ? constant_f(n.dtype, n.fimm()) : constant(n.dtype, n.imm);
    case Op::kVar: return var(static_cast<int>(n.imm), n.lo, n.hi);
    case Op::kRange: return range_with_id(n.imm, s[0]);
    case Op::kLoad:
      return load(static_cast<int>(n.imm), n.dtype, s[0], s.size() > 1 ? s[1] : nullptr);
    case Op::kReduce: return reduce(n.reduce_op(), s[0], s.subspan(1));
    case Op::kScan: return scan(n.reduce_op(), s[0], s[1]);
    case Op::kTopK: return top_k(s[0], s[1], s[2]);
    case Op::kCast: return cast(s[0], n.dtype);
    case Op::kBitcast: return bitcast(s[0], n.dtype);
    case Op::kNeg:
    case Op::kRecip:
    case Op::kSqrt:
    case Op::kExp2:
    case Op::kLog2:
    case Op::kSin:
    case Op::kTrunc:
    case Op::kNot: return unary(n.op, s[0]);
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kDiv:
    case Op::kMod:
    case Op::kMax:
    case Op::kMin:
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
    case Op::kShl:
    case Op::kShr:
    case Op::kLt:
    case Op::kEq:
    case Op::kNe: return binary(n.op, s[0], s[1]);
    case Op::kSelect: return select(s[0], s[1], s[2]);
    case Op::kFma: return fma(s[0], s[1], s[2]);
  }
  __builtin_unreachable();
}

const Node* Graph::substitute(const Node* root, std::span<const Node* const> from,
                              std::span<const Node* const> to) {
  std::unordered_map<const Node*, const Node*> map;
  for (size_t i = 0; i < from.size(); ++i) map[from[i]] = to[i];
  std::vector<const Node*> sources;
  for (const Node* n : topological({&root, 1})) {
    if (map.count(n)) continue;
    sources.clear();
    bool is_changed = false;
    for (const Node* s : n->src) {
      sources.push_back(map.at(s));
      is_changed |= sources.back() != s;
    }
    map[n] = is_changed ? remake(*n, sources) : n;
  }
  return map.at(root);
}

}  // namespace bm::ir
