#pragma once
// From a PTX type to the handler made for it. `Op` has `template <class T> static constexpr Handler
// of`.

#include "tests/sim/ptx/builder.h"
#include "tests/sim/ptx/lanes.h"

namespace bm::sim::ptx {

template <class F>
struct Unary {
  template <class T>
  static constexpr Handler of = &map1<F, T>;
};
template <class F>
struct Binary {
  template <class T>
  static constexpr Handler of = &map2<F, T>;
};
template <class F>
struct Ternary {
  template <class T>
  static constexpr Handler of = &map3<F, T>;
};

/// u16 … s64, nullptr for others.
template <class Op>
Handler for_integer(Type t) {
  switch (t) {
    case Type::kU16: return Op::template of<uint16_t>;
    case Type::kU32: return Op::template of<uint32_t>;
    case Type::kU64: return Op::template of<uint64_t>;
    case Type::kS16: return Op::template of<int16_t>;
    case Type::kS32: return Op::template of<int32_t>;
    case Type::kS64: return Op::template of<int64_t>;
    default: return nullptr;
  }
}

/// The same and two 16-bit integers at once.
template <class Op>
Handler for_integer_or_pair(Type t) {
  if (t == Type::kU16x2) return Op::template of<Pair16<uint16_t>>;
  if (t == Type::kS16x2) return Op::template of<Pair16<int16_t>>;
  return for_integer<Op>(t);
}

template <class Op>
Handler for_float(Type t) {
  switch (t) {
    case Type::kF32: return Op::template of<float>;
    case Type::kF64: return Op::template of<double>;
    case Type::kF16: return Op::template of<Half>;
    case Type::kBF16: return Op::template of<Brain>;
    case Type::kF16x2: return Op::template of<Half2>;
    case Type::kBF16x2: return Op::template of<Brain2>;
    default: return nullptr;
  }
}

/// b16, b32, b64 (any type of the size) and pred.
template <class Op>
Handler for_bits(Type t) {
  if (t == Type::kPred) return Op::template of<Pred>;
  switch (type_bytes(t)) {
    case 2: return Op::template of<uint16_t>;
    case 4: return Op::template of<uint32_t>;
    case 8: return Op::template of<uint64_t>;
    default: return nullptr;
  }
}

/// Emits `run` with a destination and `sources` sources, all of type `t`.
inline Status emit_uniform(Builder& b, Handler run, Type t, size_t sources) {
  if (!run) return b.unknown_form();
  BM_TRY(b.expect_operands(sources + 1, sources + 1));
  uint32_t op[4] = {};
  for (size_t i = 0; i < sources; ++i) op[i + 1] = BM_TRY(b.in(i + 1, t));
  op[0] = BM_TRY(b.out(0, t));
  b.emit(run, {op[0], op[1], op[2], op[3]});
  return {};
}

/// Subnormals become zeros of their sign; clamping to [0, 1], NaN to 0.
void emit_flush(Builder& b, Type t, uint32_t to, uint32_t from);
void emit_saturate(Builder& b, Type t, uint32_t place);

/// The same with .ftz on all operands and .sat and .relu on the result.
struct FloatModifiers {
  bool flush = false, saturate = false, relu = false;
};
FloatModifiers take_float_modifiers(Builder& b);
Status emit_float(Builder& b, Handler run, Type t, size_t sources, const FloatModifiers& m);

enum class Rounded : uint8_t { kAdd, kSub, kMul, kFma, kDiv, kSqrt, kReciprocal };
enum class Rounding : uint8_t { kNearest, kZero, kDown, kUp };
/// Consumes .rn, .rz, .rm or .rp.
bool take_rounding(Builder& b, Rounding& out);
/// f32 and f64; exact in every direction.
Handler rounded(Rounded op, Type t, Rounding mode);

/// Extended precision: writes the carry (add.cc …), or also reads it (addc …).
enum class Carry : uint8_t { kAdd, kSub, kMadLow, kMadHigh };
Status lower_carry(Builder& b, Carry what, bool reads);

}  // namespace bm::sim::ptx
