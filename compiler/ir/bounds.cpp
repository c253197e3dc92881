#include "compiler/ir/bounds.h"

#include <algorithm>

#include "compiler/ir/linear.h"

namespace bm::ir {
namespace {

struct WideBounds {
  Wide lo, hi;
};

WideBounds of(const Node* n) { return {n->lo, n->hi}; }

WideBounds product(WideBounds a, WideBounds b) {
  const Wide p[] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
  return {*std::min_element(p, p + 4), *std::max_element(p, p + 4)};
}

/// Bounds of an integer operation before wrapping; full range when nothing is known.
WideBounds integer_bounds(Op op, DType dtype, std::span<const Node* const> s) {
  const WideBounds full{int_min(dtype), int_max(dtype)};
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
      // Bits that a number without a sign bit lacks are cleared, whatever the other one is.
      if (a.lo >= 0 && b.lo >= 0) return {0, std::min(a.hi, b.hi)};
      if (a.lo >= 0) return {0, a.hi};
      if (b.lo >= 0) return {0, b.hi};
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

}  // namespace

Bounds bounds_of(const Node& n) {
  const bool is_const = n.op == Op::kConst;
  WideBounds b = is_const ? WideBounds{n.imm, n.imm} : integer_bounds(n.op, n.dtype, n.src);
  if (n.op == Op::kRange) b = {0, std::max<int64_t>(n.src[0]->hi - 1, 0)};
  const bool may_wrap = b.lo < int_min(n.dtype) || b.hi > int_max(n.dtype);
  if (may_wrap || (n.dtype == DType::kU64 && !is_const)) b = {int_min(n.dtype), int_max(n.dtype)};
  if (n.dtype == DType::kU64 && !is_const) b.lo = INT64_MIN;  // bits, not a number line
  return {static_cast<int64_t>(b.lo), static_cast<int64_t>(b.hi)};
}

}  // namespace bm::ir
