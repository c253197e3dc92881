#include "compiler/program/narrow.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace bm::compiler {
namespace {

constexpr int64_t kLeast32 = std::numeric_limits<int32_t>::min();
constexpr int64_t kMost32 = std::numeric_limits<int32_t>::max();

/// Values an integer may have; nothing: not known, or beyond int64.
struct Range {
  int64_t lo = 0, hi = 0;
};
struct Known {
  Known() = default;
  Known(Range r) : range(r), is_known(true) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return is_known; }
  const Range& operator*() const { return range; }
  const Range* operator->() const { return &range; }
  Range range;
  bool is_known = false;
};

bool fits(const Known& r) { return r.is_known && r->lo >= kLeast32 && r->hi <= kMost32; }

bool is_wide(DType t) { return t == DType::kI64 || t == DType::kU64; }

Known of_dtype(DType t) {
  if (is_bool(t)) return Range{0, 1};
  if (!is_int(t) || is_wide(t)) return Known();
  return Range{int_min(t), int_max(t)};
}

Known add(const Range& a, const Range& b) {
  Range r;
  if (__builtin_add_overflow(a.lo, b.lo, &r.lo) || __builtin_add_overflow(a.hi, b.hi, &r.hi))
    return Known();
  return r;
}

Known sub(const Range& a, const Range& b) {
  Range r;
  if (__builtin_sub_overflow(a.lo, b.hi, &r.lo) || __builtin_sub_overflow(a.hi, b.lo, &r.hi))
    return Known();
  return r;
}

Known mul(const Range& a, const Range& b) {
  Range r{INT64_MAX, INT64_MIN};
  for (const int64_t x : {a.lo, a.hi})
    for (const int64_t y : {b.lo, b.hi}) {
      int64_t product = 0;
      if (__builtin_mul_overflow(x, y, &product)) return Known();
      r = {std::min(r.lo, product), std::max(r.hi, product)};
    }
  return r;
}

/// Least 2^n - 1 that is not below v.
int64_t all_ones(int64_t v) {
  return static_cast<int64_t>(~uint64_t{0} >> std::min(std::countl_zero(uint64_t(v)), 63));
}

class Analysis {
 public:
  explicit Analysis(const Program& p)
      : p_(p), ranges_(p.values.size()), is_narrow_(p.values.size(), false) {}

  NarrowValues run() {
    for (const Function& f : p_.functions) block(f.body);
    block(p_.root);
    NarrowValues out{std::move(is_narrow_), std::vector<bool>(ranges_.size(), false)};
    for (size_t i = 0; i < ranges_.size(); ++i)
      out.is_natural[i] = out.fits[i] && ranges_[i] && ranges_[i]->lo >= 0;
    return out;
  }

 private:
  void block(BlockId id) {
    for (const Stmt& s : p_.blocks[id].stmts) {
      if (s.kind == StmtKind::kLet) define(s.value);
      if (s.kind == StmtKind::kLoop) index(s);
      if (s.body != kNone) block(s.body);
    }
  }

  bool is_narrow(ValueId v) const { return v == kNone || is_narrow_[v]; }

  /// `past`: largest number the index holds, in or after the loop.
  void index(const Stmt& s) {
    const Known end = s.end == kNone ? Known() : ranges_[s.end];
    if (s.loop == LoopKind::kGroup) {
      const int64_t last = std::min(p_.max_groups[s.axis], kMost32) - 1;
      ranges_[s.value] = Range{0, end ? std::clamp<int64_t>(end->hi - 1, 0, last) : last};
      is_narrow_[s.value] = is_narrow(s.end);
      return;
    }
    const Known begin = ranges_[s.begin];
    if (!begin || !is_narrow(s.begin) || !is_narrow(s.end)) return;
    const int64_t step = s.loop == LoopKind::kItem ? int64_t{p_.block} : s.step;
    Known past, last;
    if (end) {
      past = add(*end, {step, step});
      last = Range{begin->lo, end->hi - 1};
    }
    if (s.loop == LoopKind::kItem && s.trip_count > 0) {
      const Known covered = mul({s.trip_count, s.trip_count}, {step, step});
      past = covered ? add(*begin, {step, covered->hi + step}) : Known();
      if (!last && past) last = Range{begin->lo, past->hi};
    }
    last.range.hi = std::max(last->lo, last->hi);
    ranges_[s.value] = last;
    is_narrow_[s.value] = fits(past) && fits(last);
  }

  void define(ValueId id) {
    const Value& v = p_.at(id);
    if (v.type.lanes != 1) return;
    Known r = range(v);
    if (!r) r = of_dtype(v.type.dtype);
    ranges_[id] = r;
    if (!is_wide(v.type.dtype) || !fits(r) || (v.type.dtype == DType::kU64 && r->lo < 0)) return;
    is_narrow_[id] = is_exact(v);
  }

  /// Whether the operation can be done on the lower halves of the operands.
  bool is_exact(const Value& v) const {
    const auto is_small = [&](ValueId a) { return !is_wide(p_.type(a).dtype) || is_narrow_[a]; };
    switch (v.op) {
      case ValueOp::kConst:
      case ValueOp::kVar:
      case ValueOp::kItem: return true;
      case ValueOp::kConvert: return is_small(v.args[0]) && !is_float(p_.type(v.args[0]).dtype);
      case ValueOp::kAlu: break;
      default: return false;
    }
    if (!std::all_of(v.args.begin(), v.args.end(), is_small)) return false;
    switch (v.alu) {
      case Op::kBitcast:
      case Op::kDiv:
      case Op::kMod:
      case Op::kSelect: return true;
      case Op::kShl:
      case Op::kShr: {
        const Known amount = ranges_[v.args[1]];
        return amount && amount->lo >= 0 && amount->hi < 32;
      }
      default: return is_modular(v.alu);
    }
  }

  Known range(const Value& v) const {
    switch (v.op) {
      case ValueOp::kConst:
        if (!is_int(v.type.dtype)) return Known();
        if (v.type.dtype == DType::kU64 && v.imm < 0) return Known();
        return Range{v.imm, v.imm};
      case ValueOp::kVar: {
        const auto n = static_cast<size_t>(v.imm);
        if (n >= p_.var_ranges.size()) return Known();
        return Range{p_.var_ranges[n].first, p_.var_ranges[n].second};
      }
      case ValueOp::kItem: return Range{0, std::max<int64_t>(p_.block, 1) - 1};
      case ValueOp::kConvert: return moved(v);
      case ValueOp::kAlu: return alu(v);
      default: return Known();
    }
  }

  /// The number itself, if the type holds all of its values.
  Known moved(const Value& v) const {
    const Known& r = ranges_[v.args[0]];
    const DType t = v.type.dtype;
    if (!r || !is_int(t)) return Known();
    if (t == DType::kU64) return r->lo >= 0 ? r : Known();
    return r->lo >= int_min(t) && r->hi <= int_max(t) ? r : Known();
  }

  Known alu(const Value& v) const {
    if (!is_int(v.type.dtype)) return Known();
    if (v.alu == Op::kBitcast) return is_int(p_.type(v.args[0]).dtype) ? moved(v) : Known();
    if (v.alu == Op::kSelect) {
      const Known &a = ranges_[v.args[1]], &b = ranges_[v.args[2]];
      if (!a || !b) return Known();
      return Range{std::min(a->lo, b->lo), std::max(a->hi, b->hi)};
    }
    if (v.args.size() != 2) return Known();
    const Known &x = ranges_[v.args[0]], &y = ranges_[v.args[1]];
    // A mask bounds what it is applied to.
    if (v.alu == Op::kAnd && y && y->lo >= 0) return Range{0, y->hi};
    if (v.alu == Op::kAnd && x && x->lo >= 0) return Range{0, x->hi};
    if (!x || !y) return Known();
    return within(v.type.dtype, binary(v.alu, *x, *y));
  }

  /// Results that wrap are not known.
  static Known within(DType t, const Known& r) {
    if (!r) return r;
    if (t == DType::kU64) return r->lo >= 0 ? r : Known();
    return r->lo >= int_min(t) && r->hi <= int_max(t) ? r : Known();
  }

  static Known binary(Op op, const Range& x, const Range& y) {
    switch (op) {
      case Op::kAdd: return add(x, y);
      case Op::kSub: return sub(x, y);
      case Op::kMul: return mul(x, y);
      case Op::kDiv:
        if (x.lo < 0 || y.lo < 1) return Known();
        return Range{x.lo / y.hi, x.hi / y.lo};
      case Op::kMod:
        if (x.lo < 0 || y.lo < 1) return Known();
        return Range{0, std::min(x.hi, y.hi - 1)};
      case Op::kOr:
      case Op::kXor:
        if (x.lo < 0 || y.lo < 0) return Known();
        return Range{0, all_ones(std::max(x.hi, y.hi))};
      case Op::kShl:
        if (y.lo < 0 || y.hi > 62) return Known();
        return mul(x, {int64_t{1} << y.lo, int64_t{1} << y.hi});
      case Op::kShr:
        if (x.lo < 0 || y.lo < 0 || y.hi > 62) return Known();
        return Range{x.lo >> y.hi, x.hi >> y.lo};
      default: return Known();
    }
  }

  const Program& p_;
  std::vector<Known> ranges_;
  std::vector<bool> is_narrow_;
};

}  // namespace

NarrowValues narrow_and_natural_values(const Program& program) { return Analysis(program).run(); }

std::vector<bool> narrow_values(const Program& program) {
  return narrow_and_natural_values(program).fits;
}

}  // namespace bm::compiler
