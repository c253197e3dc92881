// add, sub, mul, mad, fma, div, rem, min, max, abs, neg, sad, copysign, testp.
#include <cmath>
#include <cstring>

#include "tests/sim/ptx/arithmetic.h"

namespace bm::sim::ptx {
namespace {

using namespace arithmetic;

bool is_half(Type t) { return for_float<Unary<Neg>>(t) && type_bytes(t) != 8 && t != Type::kF32; }

template <class F>
Status lower_add_sub(Builder& b, Rounded op, Handler saturating) {
  if (b.has(".cc")) return lower_carry(b, op == Rounded::kSub ? Carry::kSub : Carry::kAdd, false);
  const FloatModifiers m = take_float_modifiers(b);
  Rounding mode = Rounding::kNearest;
  const bool has_mode = take_rounding(b, mode);
  const Type t = b.next_type();
  if (type_class(t) != TypeClass::kFloat) {
    if (has_mode || m.flush || m.relu || (m.saturate && t != Type::kS32)) return b.unknown_form();
    return emit_uniform(b, m.saturate ? saturating : for_integer_or_pair<Binary<F>>(t), t, 2);
  }
  const Handler run = mode == Rounding::kNearest ? for_float<Binary<F>>(t) : rounded(op, t, mode);
  return emit_float(b, run, t, 2, m);
}
Status lower_add(Builder& b) {
  return lower_add_sub<Add>(b, Rounded::kAdd, &map2<AddSat, int32_t>);
}
Status lower_sub(Builder& b) {
  return lower_add_sub<Sub>(b, Rounded::kSub, &map2<SubSat, int32_t>);
}

/// d twice as wide as a and b; c, if any, as wide as d.
template <class F2, class F3>
Handler wide(Type t, bool is_mad) {
  switch (t) {
    case Type::kU16:
      return is_mad ? &mapx3<F3, uint32_t, uint16_t, uint16_t, uint32_t>
                    : &mapx2<F2, uint32_t, uint16_t, uint16_t>;
    case Type::kS16:
      return is_mad ? &mapx3<F3, int32_t, int16_t, int16_t, int32_t>
                    : &mapx2<F2, int32_t, int16_t, int16_t>;
    case Type::kU32:
      return is_mad ? &mapx3<F3, uint64_t, uint32_t, uint32_t, uint64_t>
                    : &mapx2<F2, uint64_t, uint32_t, uint32_t>;
    case Type::kS32:
      return is_mad ? &mapx3<F3, int64_t, int32_t, int32_t, int64_t>
                    : &mapx2<F2, int64_t, int32_t, int32_t>;
    default: return nullptr;
  }
}
Type widened(Type t) {
  if (t == Type::kU16) return Type::kU32;
  if (t == Type::kS16) return Type::kS32;
  return t == Type::kU32 ? Type::kU64 : Type::kS64;
}
Status lower_wide(Builder& b, Type t, bool is_mad) {
  const Handler run = wide<MulWide, MadWide>(t, is_mad);
  if (!run) return b.unknown_form();
  BM_TRY(b.expect_operands(is_mad ? 4 : 3, is_mad ? 4 : 3));
  const uint32_t a = BM_TRY(b.in(1, t)), c = BM_TRY(b.in(2, t));
  const uint32_t addend = is_mad ? BM_TRY(b.in(3, widened(t))) : 0;
  b.emit(run, {BM_TRY(b.out(0, widened(t))), a, c, addend});
  return {};
}

Status lower_mul(Builder& b) {
  const FloatModifiers m = take_float_modifiers(b);
  Rounding mode = Rounding::kNearest;
  take_rounding(b, mode);
  const bool is_low = b.has(".lo"), is_high = b.has(".hi"), is_wide = b.has(".wide");
  const Type t = b.next_type();
  if (type_class(t) == TypeClass::kFloat) {
    const Handler run =
        mode == Rounding::kNearest ? for_float<Binary<MulLow>>(t) : rounded(Rounded::kMul, t, mode);
    return emit_float(b, run, t, 2, m);
  }
  if (is_wide) return lower_wide(b, t, false);
  if (!is_low && !is_high) return b.error("integer mul needs .lo, .hi or .wide");
  return emit_uniform(b, is_low ? for_integer<Binary<MulLow>>(t) : for_integer<Binary<MulHigh>>(t),
                      t, 2);
}

__attribute__((target("avx2,fma"))) void fma_fast(Exec& x, const Inst& in) {
  float* d = x.reg<float>(in.op[0]);
  const float *a = x.reg<float>(in.op[1]), *b = x.reg<float>(in.op[2]), *c = x.reg<float>(in.op[3]);
  if (x.is_dense) {
    BM_LANES_INDEPENDENT
    for (uint32_t i = 0; i < x.stride; ++i) d[i] = __builtin_fmaf(a[i], b[i], c[i]);
  } else {
    for (uint32_t k = 0; k < x.count; ++k) {
      const uint32_t i = x.active[k];
      d[i] = __builtin_fmaf(a[i], b[i], c[i]);
    }
  }
}
Handler fma_handler(Type t, Rounding mode) {
  if (mode != Rounding::kNearest) return rounded(Rounded::kFma, t, mode);
  if (t == Type::kF32 && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
    return &fma_fast;
  if (is_half(t)) return for_float<Ternary<FmaHalf>>(t);
  if (t == Type::kF32) return &map3<Fma, float>;
  return t == Type::kF64 ? &map3<Fma, double> : nullptr;
}
Status lower_fma(Builder& b) {
  const FloatModifiers m = take_float_modifiers(b);
  Rounding mode = Rounding::kNearest;
  take_rounding(b, mode);
  const Type t = b.next_type();
  return emit_float(b, fma_handler(t, mode), t, 3, m);
}
Status lower_mad(Builder& b) {
  const bool is_low = b.has(".lo"), is_high = b.has(".hi"), is_wide = b.has(".wide");
  if (!is_low && !is_high && !is_wide) return lower_fma(b);
  if (b.has(".cc")) return lower_carry(b, is_high ? Carry::kMadHigh : Carry::kMadLow, false);
  const bool saturate = b.has(".sat");
  const Type t = b.next_type();
  if (is_wide) return lower_wide(b, t, true);
  if (saturate)
    return emit_uniform(b, is_high && t == Type::kS32 ? &map3<MadHighSat, int32_t> : nullptr, t, 3);
  return emit_uniform(
      b, is_low ? for_integer<Ternary<MadLow>>(t) : for_integer<Ternary<MadHigh>>(t), t, 3);
}
template <bool kAdd>
Status lower_24(Builder& b) {
  const bool is_high = b.has(".hi");
  if (!is_high && !b.has(".lo")) return b.unknown_form();
  const Type t = b.next_type();
  if (type_bytes(t) != 4) return b.unknown_form();
  Handler run;
  if constexpr (kAdd)
    run = is_high ? for_integer<Ternary<Mul24<true, true>>>(t)
                  : for_integer<Ternary<Mul24<false, true>>>(t);
  else
    run = is_high ? for_integer<Binary<Mul24<true, false>>>(t)
                  : for_integer<Binary<Mul24<false, false>>>(t);
  return emit_uniform(b, run, t, kAdd ? 3 : 2);
}
Status lower_sad(Builder& b) {
  const Type t = b.next_type();
  return emit_uniform(b, for_integer<Ternary<Sad>>(t), t, 3);
}

Status lower_div(Builder& b) {
  const FloatModifiers m = take_float_modifiers(b);
  Rounding mode = Rounding::kNearest;
  const bool has_mode = take_rounding(b, mode);
  const bool is_approximate = b.has(".approx") || b.has(".full");
  const Type t = b.next_type();
  if (type_class(t) != TypeClass::kFloat) return emit_uniform(b, for_integer<Binary<Div>>(t), t, 2);
  if (t == Type::kF64 ? !has_mode : t != Type::kF32 || has_mode == is_approximate)
    return b.unknown_form();
  return emit_float(b, rounded(Rounded::kDiv, t, mode), t, 2, m);
}
Status lower_rem(Builder& b) {
  const Type t = b.next_type();
  return emit_uniform(b, for_integer<Binary<Rem>>(t), t, 2);
}

template <class F>
Status lower_extreme(Builder& b) {
  const FloatModifiers m = take_float_modifiers(b);
  const bool is_nan = b.has(".NaN"), is_xor = b.has(".xorsign") && b.has(".abs");
  const Type t = b.next_type();
  if (type_class(t) != TypeClass::kFloat) {
    if (m.flush || m.saturate || is_nan) return b.unknown_form();
    BM_TRY(emit_uniform(b, for_integer_or_pair<Binary<F>>(t), t, 2));
    if (!m.relu) return {};
    const uint32_t place = b.last().op[0];
    if (t != Type::kS32 && t != Type::kS16x2) return b.unknown_form();
    b.emit(for_integer_or_pair<Binary<Max>>(t), {place, place, b.constant(0, 4)});
    return {};
  }
  Handler run = nullptr;
  if (is_xor)
    run = is_nan ? for_float<Binary<XorSign<WithNan<F>>>>(t) : for_float<Binary<XorSign<F>>>(t);
  else
    run = is_nan ? for_float<Binary<WithNan<F>>>(t) : for_float<Binary<F>>(t);
  if (b.operand_count() == 4 && t == Type::kF32)
    return emit_float(b, is_nan ? &map3<OfThree<WithNan<F>>, float> : &map3<OfThree<F>, float>, t,
                      3, m);
  return emit_float(b, run, t, 2, m);
}

template <class F, bool kClear>
Status lower_sign(Builder& b) {
  const FloatModifiers m = take_float_modifiers(b);
  const Type t = b.next_type();
  if (t == Type::kF16 || t == Type::kBF16)
    return emit_float(b, &map1<SignBits<0x8000, kClear>, uint16_t>, t, 1, m);
  if (t == Type::kF16x2 || t == Type::kBF16x2)
    return emit_float(b, &map1<SignBits<0x80008000, kClear>, uint32_t>, t, 1, m);
  if (t == Type::kF32) return emit_float(b, &map1<F, float>, t, 1, m);
  if (t == Type::kF64) return emit_float(b, &map1<F, double>, t, 1, m);
  if (type_class(t) != TypeClass::kSigned) return b.unknown_form();
  return emit_uniform(b, for_integer<Unary<F>>(t), t, 1);
}

Status lower_copysign(Builder& b) {
  const Type t = b.next_type();
  if (t != Type::kF32 && t != Type::kF64) return b.unknown_form();
  return emit_uniform(b, for_float<Binary<CopySign>>(t), t, 2);
}

enum class Test : uint8_t { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };
template <class T>
void test_property(Exec& x, const Inst& in) {
  uint8_t* d = x.reg<uint8_t>(in.op[0]);
  const T* a = x.reg<T>(in.op[1]);
  const auto test = static_cast<Test>(in.imm);
  each(x, [=](uint32_t i) {
    const T v = a[i];
    bool is = false;
    switch (test) {
      case Test::kFinite: is = std::isfinite(v); break;
      case Test::kInfinite: is = std::isinf(v); break;
      case Test::kNumber: is = !std::isnan(v); break;
      case Test::kNotANumber: is = std::isnan(v); break;
      case Test::kNormal: is = std::isnormal(v); break;
      case Test::kSubnormal: is = std::fpclassify(v) == FP_SUBNORMAL; break;
    }
    d[i] = is;
  });
}
Status lower_testp(Builder& b) {
  constexpr std::string_view kNames[] = {".finite",     ".infinite", ".number",
                                         ".notanumber", ".normal",   ".subnormal"};
  uint64_t which = 0;
  while (which < 6 && !b.has(kNames[which])) ++which;
  const Type t = b.next_type();
  if (which == 6 || (t != Type::kF32 && t != Type::kF64)) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 2));
  const uint32_t a = BM_TRY(b.in(1, t));
  b.emit(t == Type::kF32 ? &test_property<float> : &test_property<double>,
         {BM_TRY(b.out(0, Type::kPred)), a})
      .imm = which;
  return {};
}

constexpr Operation kArithmeticOperations[] = {
    {"add", &lower_add},
    {"sub", &lower_sub},
    {"mul", &lower_mul},
    {"mad", &lower_mad},
    {"fma", &lower_fma},
    {"mul24", &lower_24<false>},
    {"mad24", &lower_24<true>},
    {"sad", &lower_sad},
    {"div", &lower_div},
    {"rem", &lower_rem},
    {"min", &lower_extreme<Min>},
    {"max", &lower_extreme<Max>},
    {"abs", &lower_sign<Abs, true>},
    {"neg", &lower_sign<Neg, false>},
    {"copysign", &lower_copysign},
    {"testp", &lower_testp},
};

}  // namespace

std::span<const Operation> arithmetic_operations() { return kArithmeticOperations; }

void emit_flush(Builder& b, Type t, uint32_t to, uint32_t from) {
  if (t == Type::kF32) b.emit(&map1<Flush, float>, {to, from});
  if (t == Type::kBF16) b.emit(&map1<Flush, Brain>, {to, from});
  if (t == Type::kBF16x2) b.emit(&map1<Flush, Brain2>, {to, from});
  if (t == Type::kF16) b.emit(&map1<FlushHalf, Half>, {to, from});
  if (t == Type::kF16x2) b.emit(&map1<FlushHalf, Half2>, {to, from});
}

void emit_saturate(Builder& b, Type t, uint32_t place) {
  if (const Handler run = for_float<Unary<Saturate>>(t)) b.emit(run, {place, place});
}

FloatModifiers take_float_modifiers(Builder& b) {
  FloatModifiers out;
  out.flush = b.has(".ftz");
  out.saturate = b.has(".sat");
  out.relu = b.has(".relu");
  return out;
}

Status emit_float(Builder& b, Handler run, Type t, size_t sources, const FloatModifiers& m) {
  if (!run) return b.unknown_form();
  if (m.flush && t == Type::kF64) return b.unknown_form();
  BM_TRY(b.expect_operands(sources + 1, sources + 1));
  uint32_t op[4] = {};
  for (size_t i = 1; i <= sources; ++i) {
    op[i] = BM_TRY(b.in(i, t));
    if (!m.flush) continue;
    const uint32_t flushed = b.temporary(type_bytes(t));
    emit_flush(b, t, flushed, op[i]);
    op[i] = flushed;
  }
  op[0] = BM_TRY(b.out(0, t));
  b.emit(run, {op[0], op[1], op[2], op[3]});
  if (m.flush) emit_flush(b, t, op[0], op[0]);
  if (m.saturate) emit_saturate(b, t, op[0]);
  if (m.relu) b.emit(for_float<Unary<Relu>>(t), {op[0], op[0]});
  return {};
}

}  // namespace bm::sim::ptx
