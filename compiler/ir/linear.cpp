#include "compiler/ir/linear.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace bm::ir {
namespace {

int64_t saturating(Wide v) {
  if (v > INT64_MAX) return INT64_MAX;
  if (v < INT64_MIN) return INT64_MIN;
  return static_cast<int64_t>(v);
}

int64_t wrapping_mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
int64_t wrapping_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

void accumulate(const Node* n, int64_t scale, Linear& out) {
  switch (n->op) {
    case Op::kConst: out.constant = wrapping_add(out.constant, wrapping_mul(scale, n->imm)); return;
    case Op::kAdd:
      accumulate(n->src[0], scale, out);
      accumulate(n->src[1], scale, out);
      return;
    case Op::kSub:
      accumulate(n->src[0], scale, out);
      accumulate(n->src[1], wrapping_mul(scale, -1), out);
      return;
    case Op::kNeg: accumulate(n->src[0], wrapping_mul(scale, -1), out); return;
    case Op::kMul:
      if (n->src[1]->is_const())
        return accumulate(n->src[0], wrapping_mul(scale, n->src[1]->imm), out);
      if (n->src[0]->is_const())
        return accumulate(n->src[1], wrapping_mul(scale, n->src[0]->imm), out);
      break;
    default: break;
  }
  out.terms.push_back({n, scale});
}

void normalise(Linear& l) {
  std::sort(l.terms.begin(), l.terms.end(),
            [](const Linear::Term& a, const Linear::Term& b) { return a.atom->id < b.atom->id; });
  size_t kept = 0;
  for (size_t i = 0; i < l.terms.size();) {
    Linear::Term t = l.terms[i++];
    while (i < l.terms.size() && l.terms[i].atom == t.atom)
      t.coefficient = wrapping_add(t.coefficient, l.terms[i++].coefficient);
    if (t.coefficient != 0) l.terms[kept++] = t;
  }
  l.terms.resize(kept);
}

Linear without_ranges(const Linear& l, int sign);

/// The largest (sign > 0) or smallest value of a quotient by a constant, so that i / 2 with i < 2n
/// is known to be below n. Nothing where it is not linear.
std::optional<Linear> quotient_without_ranges(const Node* n, int sign) {
  if (n->op != Op::kDiv || n->dtype != DType::kI64 || !n->src[1]->is_const()) return std::nullopt;
  const int64_t divisor = n->src[1]->imm;
  // Division truncates, and sums may wrap: where neither shows.
  if (divisor <= 0 || n->src[0]->lo < 0 || n->src[0]->hi == INT64_MAX) return std::nullopt;
  Linear out = without_ranges(linear(n->src[0]), sign);
  for (Linear::Term& t : out.terms) {
    if (t.coefficient % divisor != 0) return std::nullopt;
    t.coefficient /= divisor;
  }
  const int64_t rest = out.constant % divisor;
  out.constant = out.constant / divisor - (rest < 0 ? 1 : 0);
  return out;
}

/// Replaces loop indices and quotients of them by their largest (sign > 0) or smallest contribution
/// as linear expressions.
Linear without_ranges(const Linear& l, int sign) {
  Linear out;
  out.constant = l.constant;
  for (const Linear::Term& t : l.terms) {
    const int direction = t.coefficient > 0 ? sign : -sign;
    if (const auto quotient = quotient_without_ranges(t.atom, direction)) {
      for (const Linear::Term& part : quotient->terms)
        out.terms.push_back({part.atom, wrapping_mul(t.coefficient, part.coefficient)});
      out.constant = wrapping_add(out.constant, wrapping_mul(t.coefficient, quotient->constant));
      continue;
    }
    if (t.atom->op != Op::kRange || t.atom->src[0]->is_const()) {
      out.terms.push_back(t);
      continue;
    }
    if (direction > 0) {  // takes extent - 1; otherwise takes 0
      accumulate(t.atom->src[0], t.coefficient, out);
      out.constant = wrapping_add(out.constant, wrapping_mul(t.coefficient, -1));
    }
  }
  normalise(out);
  return out;
}

int64_t bound(const Linear& l, int sign) {
  const Linear plain = without_ranges(l, sign);
  Wide sum = plain.constant;
  for (const Linear::Term& t : plain.terms) {
    const bool take_high = (t.coefficient > 0) == (sign > 0);
    const int64_t extreme = take_high ? t.atom->hi : t.atom->lo;
    if (extreme == INT64_MAX || extreme == INT64_MIN) return sign > 0 ? INT64_MAX : INT64_MIN;
    sum += static_cast<Wide>(t.coefficient) * extreme;
  }
  return saturating(sum);
}

bool depends(const Node* n, const Node* range, std::unordered_map<const Node*, bool>& memo) {
  if (n == range) return true;
  if (n->id < range->id || n->src.empty()) return false;  // sources are older than their users
  if (auto it = memo.find(n); it != memo.end()) return it->second;
  bool result = false;
  for (const Node* s : n->src)
    if (depends(s, range, memo)) {
      result = true;
      break;
    }
  memo.emplace(n, result);
  return result;
}

}  // namespace

int64_t Linear::upper() const { return bound(*this, 1); }
int64_t Linear::lower() const { return bound(*this, -1); }

Linear linear(const Node* n) {
  Linear out;
  accumulate(n, 1, out);
  normalise(out);
  return out;
}

Linear subtract(const Linear& a, const Linear& b) {
  Linear out = a;
  out.constant = wrapping_add(a.constant, wrapping_mul(b.constant, -1));
  for (const Linear::Term& t : b.terms)
    out.terms.push_back({t.atom, wrapping_mul(t.coefficient, -1)});
  normalise(out);
  return out;
}

bool depends_on(const Node* n, const Node* range) {
  std::unordered_map<const Node*, bool> memo;
  return depends(n, range, memo);
}

bool affine_stride(const Node* n, const Node* range, int64_t* stride) {
  *stride = 0;
  std::unordered_map<const Node*, bool> memo;
  for (const Linear::Term& t : linear(n).terms) {
    if (t.atom == range)
      *stride = t.coefficient;
    else if (depends(t.atom, range, memo))
      return false;
  }
  return true;
}

}  // namespace bm::ir
