// setp, set, selp, slct.
#include <array>
#include <cmath>

#include "tests/sim/ptx/dispatch.h"

namespace bm::sim::ptx {
namespace {

enum class Cmp : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan
};

struct CmpRow {
  std::string_view name;
  Cmp cmp;
  bool for_float, for_integer, for_unsigned;
};
constexpr std::array kCmps{
    CmpRow{".eq", Cmp::kEq, true, true, false},    CmpRow{".ne", Cmp::kNe, true, true, false},
    CmpRow{".lt", Cmp::kLt, true, true, false},    CmpRow{".le", Cmp::kLe, true, true, false},
    CmpRow{".gt", Cmp::kGt, true, true, false},    CmpRow{".ge", Cmp::kGe, true, true, false},
    CmpRow{".lo", Cmp::kLt, false, true, true},    CmpRow{".ls", Cmp::kLe, false, true, true},
    CmpRow{".hi", Cmp::kGt, false, true, true},    CmpRow{".hs", Cmp::kGe, false, true, true},
    CmpRow{".equ", Cmp::kEqu, true, false, false}, CmpRow{".neu", Cmp::kNeu, true, false, false},
    CmpRow{".ltu", Cmp::kLtu, true, false, false}, CmpRow{".leu", Cmp::kLeu, true, false, false},
    CmpRow{".gtu", Cmp::kGtu, true, false, false}, CmpRow{".geu", Cmp::kGeu, true, false, false},
    CmpRow{".num", Cmp::kNum, true, false, false}, CmpRow{".nan", Cmp::kNan, true, false, false},
};

/// Ordered comparisons are false, unordered ones true, when either side is NaN.
template <Cmp kCmp, class T>
bool compare(T a, T b) {
  constexpr bool kFloat = std::is_floating_point_v<T>;
  switch (kCmp) {
    case Cmp::kEq: return a == b;
    case Cmp::kNe:
      if constexpr (kFloat) return a < b || a > b;
      return a != b;
    case Cmp::kLt: return a < b;
    case Cmp::kLe: return a <= b;
    case Cmp::kGt: return a > b;
    case Cmp::kGe: return a >= b;
    case Cmp::kEqu: return !(a < b || a > b);
    case Cmp::kNeu: return a != b;
    case Cmp::kLtu: return !(a >= b);
    case Cmp::kLeu: return !(a > b);
    case Cmp::kGtu: return !(a <= b);
    case Cmp::kGeu: return !(a < b);
    case Cmp::kNum: return a == a && b == b;
    case Cmp::kNan: return a != a || b != b;
  }
  return false;
}

/// Operands: result, a, b, result of the upper half of packed types.
template <Cmp kCmp, class T>
void compare_lanes(Exec& x, const Inst& in) {
  using L = Lane<T>;
  uint8_t* d = x.reg<uint8_t>(in.op[0]);
  const auto *a = x.reg<typename L::Storage>(in.op[1]), *b = x.reg<typename L::Storage>(in.op[2]);
  uint8_t* upper = L::kParts == 2 ? x.reg<uint8_t>(in.op[3]) : nullptr;
  each(x, [=](uint32_t i) {
    const auto va = a[i], vb = b[i];
    d[i] = compare<kCmp>(L::get(va, 0), L::get(vb, 0));
    if constexpr (L::kParts == 2) upper[i] = compare<kCmp>(L::get(va, 1), L::get(vb, 1));
  });
}
template <Cmp kCmp>
struct Compared {
  template <class T>
  static constexpr Handler of = &compare_lanes<kCmp, T>;
};
template <Cmp kCmp>
Handler for_type(Type t) {
  if constexpr (kCmp <= Cmp::kGe) {
    if (const Handler run = for_integer<Compared<kCmp>>(t)) return run;
    if (type_class(t) == TypeClass::kBits && kCmp <= Cmp::kNe && type_bytes(t) >= 2)
      return for_bits<Compared<kCmp>>(t);
  }
  return for_float<Compared<kCmp>>(t);
}
Handler comparison(Cmp cmp, Type t) {
  switch (cmp) {
    case Cmp::kEq: return for_type<Cmp::kEq>(t);
    case Cmp::kNe: return for_type<Cmp::kNe>(t);
    case Cmp::kLt: return for_type<Cmp::kLt>(t);
    case Cmp::kLe: return for_type<Cmp::kLe>(t);
    case Cmp::kGt: return for_type<Cmp::kGt>(t);
    case Cmp::kGe: return for_type<Cmp::kGe>(t);
    case Cmp::kEqu: return for_type<Cmp::kEqu>(t);
    case Cmp::kNeu: return for_type<Cmp::kNeu>(t);
    case Cmp::kLtu: return for_type<Cmp::kLtu>(t);
    case Cmp::kLeu: return for_type<Cmp::kLeu>(t);
    case Cmp::kGtu: return for_type<Cmp::kGtu>(t);
    case Cmp::kGeu: return for_type<Cmp::kGeu>(t);
    case Cmp::kNum: return for_type<Cmp::kNum>(t);
    case Cmp::kNan: return for_type<Cmp::kNan>(t);
  }
  return nullptr;
}

struct AndPred {
  bool operator()(bool a, bool b) const { return a && b; }
};
struct OrPred {
  bool operator()(bool a, bool b) const { return a || b; }
};
struct XorPred {
  bool operator()(bool a, bool b) const { return a != b; }
};
struct NotPred {
  bool operator()(bool a) const { return !a; }
};

struct Comparison {
  const CmpRow* row = nullptr;
  Handler combine = nullptr;
  bool flush = false;
};
Result<Comparison> take_comparison(Builder& b) {
  Comparison out;
  const std::string_view first = b.next_suffix();
  for (const CmpRow& row : kCmps)
    if (row.name == first) out.row = &row;
  if (!out.row) return b.error(fmt::format("'{}' is no comparison", first));
  if (b.has(".and")) out.combine = &map2<AndPred, Pred>;
  if (b.has(".or")) out.combine = &map2<OrPred, Pred>;
  if (b.has(".xor")) out.combine = &map2<XorPred, Pred>;
  out.flush = b.has(".ftz");
  return out;
}

bool fits(const CmpRow& row, Type t) {
  if (type_class(t) == TypeClass::kFloat) return row.for_float;
  if (!row.for_integer) return false;
  if (row.for_unsigned) return type_class(t) == TypeClass::kUnsigned;
  return true;
}

/// Emits the comparison of operands 1 and 2 into fresh predicates.
Result<std::pair<uint32_t, uint32_t>> emit_comparison(Builder& b, const Comparison& c, Type t,
                                                      uint32_t into = kNone) {
  const Handler run = fits(*c.row, t) ? comparison(c.row->cmp, t) : nullptr;
  if (!run || t == Type::kPred) return b.unknown_form();
  uint32_t op[2] = {BM_TRY(b.in(1, t)), BM_TRY(b.in(2, t))};
  for (uint32_t& place : op) {
    if (!c.flush) break;
    const uint32_t flushed = b.temporary(type_bytes(t));
    emit_flush(b, t, flushed, place);
    place = flushed;
  }
  const uint32_t low = into == kNone ? b.temporary(1) : into;
  const bool is_packed = t == Type::kF16x2 || t == Type::kBF16x2;
  const uint32_t high = is_packed ? b.temporary(1) : kNone;
  b.emit(run, {low, op[0], op[1], is_packed ? high : low});
  return std::pair(low, high);
}

Status lower_setp(Builder& b) {
  const Comparison c = BM_TRY(take_comparison(b));
  const Type t = b.next_type();
  BM_TRY(b.expect_operands(c.combine ? 4 : 3, c.combine ? 4 : 3));
  if (!c.combine && b.operand(0).second.empty()) {
    const uint32_t p = BM_TRY(b.out(0, Type::kPred));
    BM_TRY(emit_comparison(b, c, t, p));
    return {};
  }
  const auto [low, high] = BM_TRY(emit_comparison(b, c, t));
  const uint32_t other = c.combine ? BM_TRY(b.in(3, Type::kPred)) : kNone;
  const auto [p, q] = BM_TRY(b.out_pair(0, Type::kPred, Type::kPred));
  // The second result is the complement, or the other half of a packed comparison.
  uint32_t second = high;
  if (q != kNone && high == kNone) {
    second = b.temporary(1);
    b.emit(&map1<NotPred, Pred>, {second, low});
  }
  const Handler combine = c.combine ? c.combine : &map2<AndPred, Pred>;
  const uint32_t with = c.combine ? other : b.constant(1, 1);
  // q first: p may be the predicate that is combined.
  const uint32_t held = b.temporary(1);
  b.emit(combine, {held, low, with});
  if (q != kNone) b.emit(combine, {q, second, with});
  b.emit(&map2<OrPred, Pred>, {p, held, held});
  return {};
}

/// All ones, or 1.0.
template <class T>
void spread(Exec& x, const Inst& in) {
  T* d = x.reg<T>(in.op[0]);
  const uint8_t *p = x.reg<uint8_t>(in.op[1]), *q = x.reg<uint8_t>(in.op[2]);
  const T low = static_cast<T>(in.imm), high = static_cast<T>(in.imm >> 32);
  each(x, [=](uint32_t i) { d[i] = static_cast<T>((p[i] ? low : T{0}) | (q[i] ? high : T{0})); });
}
Status lower_set(Builder& b) {
  const Comparison c = BM_TRY(take_comparison(b));
  const Type d = b.next_type(), t = b.next_type();
  BM_TRY(b.expect_operands(c.combine ? 4 : 3, c.combine ? 4 : 3));
  auto [low, high] = BM_TRY(emit_comparison(b, c, t));
  if (c.combine) {
    const uint32_t other = BM_TRY(b.in(3, Type::kPred));
    b.emit(c.combine, {low, low, other});
    if (high != kNone) b.emit(c.combine, {high, high, other});
  }
  uint64_t ones = 0;
  if (d == Type::kU32 || d == Type::kS32) ones = 0xffffffff;
  if (d == Type::kU16 || d == Type::kS16) ones = 0xffff;
  if (d == Type::kF32) ones = 0x3f800000;
  if (d == Type::kF16) ones = 0x3c00;
  if (d == Type::kBF16) ones = 0x3f80;
  if (d == Type::kF16x2) ones = 0x3c00'0000'0000'3c00;
  if (d == Type::kBF16x2) ones = 0x3f80'0000'0000'3f80;
  if (high != kNone && (d == Type::kU32 || d == Type::kS32)) ones = 0xffff'0000'0000'ffff;
  if (ones == 0) return b.unknown_form();
  const uint32_t out = BM_TRY(b.out(0, d));
  b.emit(type_bytes(d) == 2 ? &spread<uint16_t> : &spread<uint32_t>,
         {out, low, high == kNone ? low : high})
      .imm = ones;
  return {};
}

struct Select {
  template <class T>
  T operator()(T a, T b, uint8_t p) const {
    return p ? a : b;
  }
};
/// b where the selector is below zero; NaN selects b too.
struct SelectBySign {
  template <class T, class C>
  T operator()(T a, T b, C c) const {
    return c >= 0 ? a : b;
  }
};
Status lower_selp(Builder& b) {
  const Type t = b.next_type();
  BM_TRY(b.expect_operands(4, 4));
  Handler run = nullptr;
  if (t == Type::kPred || type_bytes(t) == 1) return b.unknown_form();
  if (type_bytes(t) == 2) run = &mapx3<Select, uint16_t, uint16_t, uint16_t, uint8_t>;
  if (type_bytes(t) == 4) run = &mapx3<Select, uint32_t, uint32_t, uint32_t, uint8_t>;
  if (type_bytes(t) == 8) run = &mapx3<Select, uint64_t, uint64_t, uint64_t, uint8_t>;
  if (!run) return b.unknown_form();
  const uint32_t a = BM_TRY(b.in(1, t)), c = BM_TRY(b.in(2, t)), p = BM_TRY(b.in(3, Type::kPred));
  b.emit(run, {BM_TRY(b.out(0, t)), a, c, p});
  return {};
}
template <class C>
Handler select_by(Type t) {
  if (type_bytes(t) == 2) return &mapx3<SelectBySign, uint16_t, uint16_t, uint16_t, C>;
  if (type_bytes(t) == 4) return &mapx3<SelectBySign, uint32_t, uint32_t, uint32_t, C>;
  return type_bytes(t) == 8 ? &mapx3<SelectBySign, uint64_t, uint64_t, uint64_t, C> : nullptr;
}
Status lower_slct(Builder& b) {
  const bool flush = b.has(".ftz");
  const Type t = b.next_type(), s = b.next_type();
  BM_TRY(b.expect_operands(4, 4));
  const Handler run = s == Type::kS32   ? select_by<int32_t>(t)
                      : s == Type::kF32 ? select_by<float>(t)
                                        : nullptr;
  if (!run || (flush && s != Type::kF32)) return b.unknown_form();
  const uint32_t a = BM_TRY(b.in(1, t)), c = BM_TRY(b.in(2, t));
  uint32_t selector = BM_TRY(b.in(3, s));
  if (flush) {
    const uint32_t flushed = b.temporary(4);
    emit_flush(b, s, flushed, selector);
    selector = flushed;
  }
  b.emit(run, {BM_TRY(b.out(0, t)), a, c, selector});
  return {};
}

constexpr Operation kCompareOperations[] = {
    {"setp", &lower_setp}, {"set", &lower_set}, {"selp", &lower_selp}, {"slct", &lower_slct}};

}  // namespace

std::span<const Operation> compare_operations() { return kCompareOperations; }

}  // namespace bm::sim::ptx
