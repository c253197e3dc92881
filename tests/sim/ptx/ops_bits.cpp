// and, or, xor, not, cnot, lop3, shl, shr, shf, clz, popc, brev, bfind, fns, bfe, bfi, prmt, bmsk,
// szext, dp4a, dp2a.
#include <bit>

#include "tests/sim/ptx/dispatch.h"

namespace bm::sim::ptx {
namespace {

struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_same_v<T, bool>)
      return !a;
    else
      return static_cast<T>(~a);
  }
};
struct CNot {
  template <class T>
  T operator()(T a) const {
    return a == 0;
  }
};
/// Amounts above the width clamp: zeros, or copies of the sign.
struct Shl {
  template <class T>
  T operator()(T a, uint32_t n) const {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<uint64_t>(a) << n);
  }
};
struct Shr {
  template <class T>
  T operator()(T a, uint32_t n) const {
    if (n >= 8 * sizeof(T)) return std::is_signed_v<T> && a < 0 ? static_cast<T>(-1) : T{0};
    return static_cast<T>(a >> n);
  }
};
template <bool kLeft, bool kWrap>
struct Funnel {
  uint32_t operator()(uint32_t low, uint32_t high, uint32_t n) const {
    n = kWrap ? n & 31 : (n > 32 ? 32 : n);
    const uint64_t both = (uint64_t{high} << 32) | low;
    return static_cast<uint32_t>(kLeft ? (both << n) >> 32 : both >> n);
  }
};
struct Clz {
  template <class T>
  uint32_t operator()(T a) const {
    return static_cast<uint32_t>(std::countl_zero(a));
  }
};
struct Popc {
  template <class T>
  uint32_t operator()(T a) const {
    return static_cast<uint32_t>(std::popcount(a));
  }
};
struct Brev {
  template <class T>
  T operator()(T a) const {
    T out = 0;
    for (uint32_t i = 0; i < 8 * sizeof(T); ++i, a = static_cast<T>(a >> 1))
      out = static_cast<T>((out << 1) | (a & 1));
    return out;
  }
};
/// Highest bit that differs from the sign; kShift: the shift that brings it to the top.
template <bool kShift>
struct Find {
  template <class T>
  uint32_t operator()(T a) const {
    using U = std::make_unsigned_t<T>;
    const U u = static_cast<U>(a < 0 ? ~a : a);
    if (u == 0) return ~0u;
    const auto zeros = static_cast<uint32_t>(std::countl_zero(u));
    return kShift ? zeros : static_cast<uint32_t>(8 * sizeof(T) - 1) - zeros;
  }
};
struct Fns {
  uint32_t operator()(uint32_t mask, uint32_t base, uint32_t offset) const {
    if (base > 31) return ~0u;
    const auto n = static_cast<int32_t>(offset);
    if (n == 0) return (mask >> base) & 1 ? base : ~0u;
    int32_t left = n < 0 ? -n : n;
    for (int32_t i = static_cast<int32_t>(base); i >= 0 && i < 32; i += n < 0 ? -1 : 1)
      if (((mask >> i) & 1) && --left == 0) return static_cast<uint32_t>(i);
    return ~0u;
  }
};
struct Bfe {
  template <class T>
  T operator()(T a, uint32_t pos, uint32_t len) const {
    constexpr uint32_t kTop = 8 * sizeof(T) - 1;
    pos &= 0xff;
    len &= 0xff;
    const uint32_t last = std::min(pos + len - 1, kTop);
    const bool sign = std::is_signed_v<T> && len != 0 && ((a >> last) & 1);
    T out = 0;
    for (uint32_t i = 0; i <= kTop; ++i) {
      const bool bit = i < len && pos + i <= kTop ? (a >> (pos + i)) & 1 : sign;
      out = static_cast<T>(out | static_cast<T>(static_cast<std::make_unsigned_t<T>>(bit) << i));
    }
    return out;
  }
};
struct Bfi {
  template <class T>
  T operator()(T a, T b, uint32_t pos, uint32_t len) const {
    constexpr uint32_t kBits = 8 * sizeof(T);
    pos &= 0xff;
    len &= 0xff;
    for (uint32_t i = 0; i < len && pos + i < kBits; ++i) {
      const T bit = static_cast<T>(T{1} << (pos + i));
      b = static_cast<T>(((a >> i) & 1) ? (b | bit) : (b & ~bit));
    }
    return b;
  }
};
template <bool kClamp>
struct Bmsk {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    if (!kClamp) a &= 31, b &= 31;
    if (a > 31 || b == 0) return 0;
    const uint32_t ones = b > 31 ? ~0u : (1u << b) - 1;
    return ones << a;
  }
};
template <bool kClamp, bool kSigned>
struct SzExt {
  uint32_t operator()(uint32_t a, uint32_t n) const {
    if (!kClamp) n &= 31;
    if (n == 0) return 0;
    if (n > 31) return a;
    const uint32_t kept = a & ((1u << n) - 1);
    return kSigned && (kept >> (n - 1)) ? kept | (~0u << n) : kept;
  }
};

enum class Prmt : uint8_t { kIndex, kF4e, kB4e, kRc8, kEcl, kEcr, kRc16 };
uint32_t permute(uint32_t a, uint32_t b, uint32_t c, Prmt mode) {
  const uint64_t both = (uint64_t{b} << 32) | a;
  const uint32_t s = c & 3;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t pick = 0;
    switch (mode) {
      case Prmt::kIndex: pick = (c >> (4 * i)) & 0xf; break;
      case Prmt::kF4e: pick = s + i; break;
      case Prmt::kB4e: pick = (s - i) & 7; break;
      case Prmt::kRc8: pick = s; break;
      case Prmt::kEcl: pick = std::max(s, i); break;
      case Prmt::kEcr: pick = std::min(s, i); break;
      case Prmt::kRc16: pick = 2 * (s & 1) + (i & 1); break;
    }
    auto byte = static_cast<uint32_t>((both >> (8 * (pick & 7))) & 0xff);
    if (mode == Prmt::kIndex && (pick & 8)) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << (8 * i);
  }
  return out;
}
void prmt(Exec& x, const Inst& in) {
  uint32_t* d = x.reg<uint32_t>(in.op[0]);
  const uint32_t *a = x.reg<uint32_t>(in.op[1]), *b = x.reg<uint32_t>(in.op[2]),
                 *c = x.reg<uint32_t>(in.op[3]);
  const auto mode = static_cast<Prmt>(in.imm);
  each(x, [=](uint32_t i) { d[i] = permute(a[i], b[i], c[i], mode); });
}
void lop3(Exec& x, const Inst& in) {
  uint32_t* d = x.reg<uint32_t>(in.op[0]);
  const uint32_t *a = x.reg<uint32_t>(in.op[1]), *b = x.reg<uint32_t>(in.op[2]),
                 *c = x.reg<uint32_t>(in.op[3]);
  const auto table = static_cast<uint32_t>(in.imm);
  each(x, [=](uint32_t i) {
    uint32_t out = 0;
    for (uint32_t row = 0; row < 8; ++row) {
      if (!((table >> row) & 1)) continue;
      out |= (row & 4 ? a[i] : ~a[i]) & (row & 2 ? b[i] : ~b[i]) & (row & 1 ? c[i] : ~c[i]);
    }
    d[i] = out;
  });
}
/// Sum of products of bytes (dp4a) or of two 16-bit parts with two bytes (dp2a).
void dot(Exec& x, const Inst& in) {
  uint32_t* d = x.reg<uint32_t>(in.op[0]);
  const uint32_t *a = x.reg<uint32_t>(in.op[1]), *b = x.reg<uint32_t>(in.op[2]),
                 *c = x.reg<uint32_t>(in.op[3]);
  const bool a_signed = in.imm & 1, b_signed = in.imm & 2, is_pairs = in.imm & 4;
  const uint32_t first = in.imm & 8 ? 2 : 0;
  const auto byte = [](uint32_t v, uint32_t i, bool is_signed) {
    const auto u = static_cast<uint8_t>(v >> (8 * i));
    return is_signed ? int32_t{static_cast<int8_t>(u)} : int32_t{u};
  };
  each(x, [=](uint32_t i) {
    uint32_t sum = c[i];
    for (uint32_t k = 0; k < (is_pairs ? 2u : 4u); ++k) {
      const auto part = static_cast<uint16_t>(a[i] >> (16 * (k & 1)));
      const int32_t va = !is_pairs  ? byte(a[i], k, a_signed)
                         : a_signed ? int32_t{static_cast<int16_t>(part)}
                                    : int32_t{part};
      sum += static_cast<uint32_t>(va * byte(b[i], is_pairs ? first + k : k, b_signed));
    }
    d[i] = sum;
  });
}

template <class F, size_t kSources>
Status lower_logic(Builder& b) {
  const Type t = b.next_type();
  if (type_class(t) != TypeClass::kBits && t != Type::kPred) return b.unknown_form();
  if constexpr (kSources == 1)
    return emit_uniform(b, for_bits<Unary<F>>(t), t, 1);
  else
    return emit_uniform(b, for_bits<Binary<F>>(t), t, 2);
}
Status lower_cnot(Builder& b) {
  const Type t = b.next_type();
  if (type_class(t) != TypeClass::kBits) return b.unknown_form();
  return emit_uniform(b, for_bits<Unary<CNot>>(t), t, 1);
}

template <class F>
struct Shift {
  template <class T>
  static constexpr Handler of = &mapx2<F, T, T, uint32_t>;
};
template <class F, bool kLeft>
Status lower_shift(Builder& b) {
  const Type t = b.next_type();
  if (kLeft && type_class(t) != TypeClass::kBits) return b.unknown_form();
  BM_TRY(b.expect_operands(3, 3));
  Handler run = for_integer<Shift<F>>(t);
  if (!run && t == Type::kB16) run = Shift<F>::template of<uint16_t>;
  if (!run && t == Type::kB32) run = Shift<F>::template of<uint32_t>;
  if (!run && t == Type::kB64) run = Shift<F>::template of<uint64_t>;
  if (!run) return b.unknown_form();
  const uint32_t a = BM_TRY(b.in(1, t)), n = BM_TRY(b.in(2, Type::kB32));
  b.emit(run, {BM_TRY(b.out(0, t)), a, n});
  return {};
}

Status lower_shf(Builder& b) {
  const bool left = b.has(".l"), right = b.has(".r");
  const bool wrap = b.has(".wrap"), clamp = b.has(".clamp");
  if (left == right || wrap == clamp || b.next_type() != Type::kB32) return b.unknown_form();
  const Handler run =
      left ? (wrap ? &map3<Funnel<true, true>, uint32_t> : &map3<Funnel<true, false>, uint32_t>)
           : (wrap ? &map3<Funnel<false, true>, uint32_t> : &map3<Funnel<false, false>, uint32_t>);
  return emit_uniform(b, run, Type::kB32, 3);
}

/// Result of 32 bits whatever the source.
template <class F>
Status lower_count(Builder& b) {
  const Type t = b.next_type();
  Handler run = nullptr;
  if (t == Type::kB32) run = &mapx1<F, uint32_t, uint32_t>;
  if (t == Type::kB64) run = &mapx1<F, uint32_t, uint64_t>;
  if (!run) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 2));
  const uint32_t a = BM_TRY(b.in(1, t));
  b.emit(run, {BM_TRY(b.out(0, Type::kB32)), a});
  return {};
}
template <bool kShift>
Handler find_handler(Type t) {
  if (t == Type::kU32) return &mapx1<Find<kShift>, uint32_t, uint32_t>;
  if (t == Type::kS32) return &mapx1<Find<kShift>, uint32_t, int32_t>;
  if (t == Type::kU64) return &mapx1<Find<kShift>, uint32_t, uint64_t>;
  return t == Type::kS64 ? &mapx1<Find<kShift>, uint32_t, int64_t> : nullptr;
}
Status lower_bfind(Builder& b) {
  const bool is_shift = b.has(".shiftamt");
  const Type t = b.next_type();
  const Handler run = is_shift ? find_handler<true>(t) : find_handler<false>(t);
  if (!run) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 2));
  const uint32_t a = BM_TRY(b.in(1, t));
  b.emit(run, {BM_TRY(b.out(0, Type::kU32)), a});
  return {};
}
Status lower_brev(Builder& b) {
  const Type t = b.next_type();
  if (t == Type::kB32) return emit_uniform(b, &map1<Brev, uint32_t>, t, 1);
  return emit_uniform(b, t == Type::kB64 ? &map1<Brev, uint64_t> : nullptr, t, 1);
}
Status lower_fns(Builder& b) {
  if (b.next_type() != Type::kB32) return b.unknown_form();
  return emit_uniform(b, &map3<Fns, uint32_t>, Type::kB32, 3);
}
Status lower_bfe(Builder& b) {
  const Type t = b.next_type();
  Handler run = nullptr;
  if (t == Type::kU32) run = &mapx3<Bfe, uint32_t, uint32_t, uint32_t, uint32_t>;
  if (t == Type::kS32) run = &mapx3<Bfe, int32_t, int32_t, uint32_t, uint32_t>;
  if (t == Type::kU64) run = &mapx3<Bfe, uint64_t, uint64_t, uint32_t, uint32_t>;
  if (t == Type::kS64) run = &mapx3<Bfe, int64_t, int64_t, uint32_t, uint32_t>;
  if (!run) return b.unknown_form();
  BM_TRY(b.expect_operands(4, 4));
  const uint32_t a = BM_TRY(b.in(1, t)), pos = BM_TRY(b.in(2, Type::kU32)),
                 len = BM_TRY(b.in(3, Type::kU32));
  b.emit(run, {BM_TRY(b.out(0, t)), a, pos, len});
  return {};
}
Status lower_bfi(Builder& b) {
  const Type t = b.next_type();
  if (t != Type::kB32 && t != Type::kB64) return b.unknown_form();
  BM_TRY(b.expect_operands(5, 5));
  const uint32_t a = BM_TRY(b.in(1, t)), base = BM_TRY(b.in(2, t)),
                 pos = BM_TRY(b.in(3, Type::kU32)), len = BM_TRY(b.in(4, Type::kU32));
  b.emit(t == Type::kB32 ? &mapx4<Bfi, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>
                         : &mapx4<Bfi, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>,
         {BM_TRY(b.out(0, t)), a, base, pos, len});
  return {};
}
Status lower_prmt(Builder& b) {
  constexpr std::string_view kModes[] = {".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"};
  auto mode = Prmt::kIndex;
  for (size_t i = 0; i < 6; ++i)
    if (b.has(kModes[i])) mode = static_cast<Prmt>(i + 1);
  if (b.next_type() != Type::kB32) return b.unknown_form();
  for (const std::string_view name : kModes)
    if (b.has(name)) return b.unknown_form();
  BM_TRY(emit_uniform(b, &prmt, Type::kB32, 3));
  b.last().imm = static_cast<uint64_t>(mode);
  return {};
}
Status lower_lop3(Builder& b) {
  if (b.next_type() != Type::kB32) return b.unknown_form();
  BM_TRY(b.expect_operands(5, 5));
  if (b.operand(4).kind != Operand::Kind::kInteger || b.operand(4).bits > 255)
    return b.error("table of lop3 is no literal below 256");
  const uint32_t a = BM_TRY(b.in(1, Type::kB32)), c = BM_TRY(b.in(2, Type::kB32)),
                 e = BM_TRY(b.in(3, Type::kB32));
  b.emit(&lop3, {BM_TRY(b.out(0, Type::kB32)), a, c, e}).imm = b.operand(4).bits;
  return {};
}
Status lower_bmsk(Builder& b) {
  const bool clamp = b.has(".clamp");
  if ((!clamp && !b.has(".wrap")) || b.next_type() != Type::kB32) return b.unknown_form();
  return emit_uniform(b, clamp ? &map2<Bmsk<true>, uint32_t> : &map2<Bmsk<false>, uint32_t>,
                      Type::kB32, 2);
}
Status lower_szext(Builder& b) {
  const bool clamp = b.has(".clamp");
  if (!clamp && !b.has(".wrap")) return b.unknown_form();
  const Type t = b.next_type();
  if (t != Type::kU32 && t != Type::kS32) return b.unknown_form();
  const bool s = t == Type::kS32;
  const Handler run =
      clamp ? (s ? &map2<SzExt<true, true>, uint32_t> : &map2<SzExt<true, false>, uint32_t>)
            : (s ? &map2<SzExt<false, true>, uint32_t> : &map2<SzExt<false, false>, uint32_t>);
  return emit_uniform(b, run, t, 2);
}
template <bool kPairs>
Status lower_dot(Builder& b) {
  const bool is_high = b.has(".hi"), is_low = b.has(".lo");
  const Type ta = b.next_type(), tb = b.next_type();
  if (type_bytes(ta) != 4 || type_bytes(tb) != 4 || kPairs != (is_high || is_low))
    return b.unknown_form();
  BM_TRY(emit_uniform(b, &dot, Type::kB32, 3));
  b.last().imm = (ta == Type::kS32 ? 1u : 0u) | (tb == Type::kS32 ? 2u : 0u) | (kPairs ? 4u : 0u) |
                 (is_high ? 8u : 0u);
  return {};
}

constexpr Operation kBitsOperations[] = {
    {"and", &lower_logic<And, 2>},
    {"or", &lower_logic<Or, 2>},
    {"xor", &lower_logic<Xor, 2>},
    {"not", &lower_logic<Not, 1>},
    {"cnot", &lower_cnot},
    {"lop3", &lower_lop3},
    {"shl", &lower_shift<Shl, true>},
    {"shr", &lower_shift<Shr, false>},
    {"shf", &lower_shf},
    {"clz", &lower_count<Clz>},
    {"popc", &lower_count<Popc>},
    {"brev", &lower_brev},
    {"bfind", &lower_bfind},
    {"fns", &lower_fns},
    {"bfe", &lower_bfe},
    {"bfi", &lower_bfi},
    {"prmt", &lower_prmt},
    {"bmsk", &lower_bmsk},
    {"szext", &lower_szext},
    {"dp4a", &lower_dot<false>},
    {"dp2a", &lower_dot<true>},
};

}  // namespace

std::span<const Operation> bit_operations() { return kBitsOperations; }

}  // namespace bm::sim::ptx
