#include "compiler/analysis/affine.h"

#include <numeric>

namespace bm::compiler {
namespace {

using ir::Node;
using ir::Op;

bool fits(int64_t v) { return v > -(int64_t{1} << 40) && v < (int64_t{1} << 40); }

int64_t gcd(int64_t a, int64_t b) { return std::gcd(a, b); }

}  // namespace

const Strides::Facts& Strides::look(const Node* n) {
  if (const auto it = facts_.find(n); it != facts_.end()) return it->second;
  return facts_[n] = compute(n);
}

Strides::Facts Strides::compute(const Node* n) {
  if (n == range_) return {1, chunk_ == 0 ? 1 : chunk_};
  if (n->dtype != DType::kI64) return {};
  switch (n->op) {
    case Op::kConst: return {0, fits(n->imm) ? std::abs(n->imm) : 1};
    case Op::kVar:
    case Op::kRange: return {0, 1};
    case Op::kAdd:
    case Op::kSub: {
      const Facts a = look(n->src[0]), b = look(n->src[1]);
      if (!a.stride || !b.stride) return {};
      const int64_t s = n->op == Op::kAdd ? *a.stride + *b.stride : *a.stride - *b.stride;
      if (!fits(s)) return {};
      return {s, gcd(a.align, b.align)};
    }
    case Op::kNeg: {
      const Facts a = look(n->src[0]);
      if (!a.stride) return {};
      return {-*a.stride, a.align};
    }
    case Op::kMul: {
      const Facts a = look(n->src[0]), b = look(n->src[1]);
      if (!a.stride || !b.stride) return {};
      if (*a.stride == 0 && *b.stride == 0)
        return {0, fits(a.align * b.align) ? a.align * b.align : 1};
      const Node* factor = n->src[1]->is_const() ? n->src[1] : n->src[0];
      const Facts& other = factor == n->src[1] ? a : b;
      if (!factor->is_const() || !fits(factor->imm) || !fits(other.align)) return {};
      __extension__ typedef __int128 Wide;
      const Wide s = static_cast<Wide>(*other.stride) * factor->imm,
                 g = static_cast<Wide>(other.align) * factor->imm;
      if (s != static_cast<int64_t>(s) || !fits(static_cast<int64_t>(s))) return {};
      const auto align = static_cast<int64_t>(g);
      return {static_cast<int64_t>(s),
              static_cast<Wide>(align) == g && fits(align) ? std::abs(align) : 1};
    }
    case Op::kDiv:
    case Op::kMod: return divide(n);
    default:
      if (is_uniform(n)) return {0, 1};
      return {};
  }
}

Strides::Facts Strides::divide(const Node* n) {
  const Facts a = look(n->src[0]);
  const bool is_div = n->op == Op::kDiv;
  if (a.stride && *a.stride == 0 && is_uniform(n->src[1])) {
    const Node* by = n->src[1];
    if (is_div && by->is_const() && by->imm > 0 && a.align % by->imm == 0)
      return {0, a.align / by->imm};
    if (!is_div && by->is_const() && by->imm > 0) return {0, gcd(a.align, by->imm)};
    return {0, 1};
  }
  if (!a.stride || !n->src[1]->is_const() || n->src[1]->imm <= 0 || n->src[0]->lo < 0) return {};
  const int64_t c = n->src[1]->imm, s = *a.stride;
  const int64_t g = gcd(a.align, c);
  if (s % c == 0) return is_div ? Facts{s / c, 1} : Facts{0, g};
  // The dividend starts at a multiple of g, which divides c: it stays between two multiples of c
  // if the whole chunk spans less than g.
  if (chunk_ > 0 && s > 0 && s <= INT64_MAX / chunk_ && s * (chunk_ - 1) < g)
    return is_div ? Facts{0, a.align % c == 0 ? a.align / c : 1} : Facts{s, g};
  return {};
}

bool Strides::is_uniform(const Node* n) {
  if (n == range_) return false;
  if (const auto it = uniform_.find(n); it != uniform_.end()) return it->second;
  bool result = true;
  // Inside a reduction over the range itself, the range is bound there.
  for (const Node* r : n->bound())
    if (r == range_) return uniform_[n] = true;
  for (const Node* s : n->src) result = result && is_uniform(s);
  // Only chunk-wise division can make a uniform value of sources that move.
  if (!result && chunk_ > 0 && n->dtype == DType::kI64 &&
      (n->op == Op::kDiv || n->op == Op::kMod || n->op == Op::kSub || n->op == Op::kAdd)) {
    const Facts f = look(n);
    result = f.stride && *f.stride == 0;
  }
  return uniform_[n] = result;
}

bool is_row(const ir::Linear& index, const ir::Node* direction, uint32_t count) {
  if (index.constant % count != 0) return false;
  bool is_unit = false;
  for (const ir::Linear::Term& t : index.terms) {
    if (t.atom == direction) {
      is_unit = t.coefficient == 1;
      if (!is_unit) return false;
    } else if (t.coefficient % count != 0 || ir::depends_on(t.atom, direction)) {
      return false;
    }
  }
  return is_unit;
}

}  // namespace bm::compiler
