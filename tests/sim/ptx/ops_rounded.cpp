// Arithmetic with a rounding direction, and the functions with .approx and .rn forms.
//
// Approximate functions are computed in double and rounded once: closer than hardware, whose error
// bounds the PTX manual gives; callers compare with those tolerances.
#include <cfenv>
#include <cmath>

#include "tests/sim/ptx/dispatch.h"

namespace bm::sim::ptx {
namespace {

int fenv_mode(Rounding mode) {
  switch (mode) {
    case Rounding::kNearest: return FE_TONEAREST;
    case Rounding::kZero: return FE_TOWARDZERO;
    case Rounding::kDown: return FE_DOWNWARD;
    case Rounding::kUp: return FE_UPWARD;
  }
  return FE_TONEAREST;
}

class RoundingScope {
 public:
  explicit RoundingScope(Rounding mode) : before_(std::fegetround()) {
    std::fesetround(fenv_mode(mode));
  }
  ~RoundingScope() { std::fesetround(before_); }
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  int before_;
};

/// The compiler must neither move the operation over a change of mode nor fold it.
template <class T>
T opaque(T v) {
  asm volatile("" : "+x"(v));
  return v;
}

template <Rounded kOp, class T>
T compute(T a, T b, T c) {
  a = opaque(a);
  b = opaque(b);
  T out{};
  switch (kOp) {
    case Rounded::kAdd: out = a + b; break;
    case Rounded::kSub: out = a - b; break;
    case Rounded::kMul: out = a * b; break;
    case Rounded::kFma: out = std::fma(a, b, opaque(c)); break;
    case Rounded::kDiv: out = a / b; break;
    case Rounded::kSqrt: out = std::sqrt(a); break;
    case Rounded::kReciprocal: out = T{1} / a; break;
  }
  return opaque(out);
}

template <Rounded kOp, class T, Rounding kMode>
void directed(Exec& x, const Inst& in) {
  const RoundingScope scope(kMode);
  T* d = x.reg<T>(in.op[0]);
  const T *a = x.reg<T>(in.op[1]), *b = x.reg<T>(in.op[2]), *c = x.reg<T>(in.op[3]);
  constexpr bool kUnary = kOp == Rounded::kSqrt || kOp == Rounded::kReciprocal;
  each_thread(x, [&](uint32_t i) {
    d[i] = compute<kOp, T>(a[i], kUnary ? T{} : b[i], kOp == Rounded::kFma ? c[i] : T{});
  });
}

template <Rounded kOp, class T>
Handler pick(Rounding mode) {
  switch (mode) {
    case Rounding::kNearest: return &directed<kOp, T, Rounding::kNearest>;
    case Rounding::kZero: return &directed<kOp, T, Rounding::kZero>;
    case Rounding::kDown: return &directed<kOp, T, Rounding::kDown>;
    case Rounding::kUp: return &directed<kOp, T, Rounding::kUp>;
  }
  return nullptr;
}
template <class T>
Handler pick(Rounded op, Rounding mode) {
  switch (op) {
    case Rounded::kAdd: return pick<Rounded::kAdd, T>(mode);
    case Rounded::kSub: return pick<Rounded::kSub, T>(mode);
    case Rounded::kMul: return pick<Rounded::kMul, T>(mode);
    case Rounded::kFma: return pick<Rounded::kFma, T>(mode);
    case Rounded::kDiv: return pick<Rounded::kDiv, T>(mode);
    case Rounded::kSqrt: return pick<Rounded::kSqrt, T>(mode);
    case Rounded::kReciprocal: return pick<Rounded::kReciprocal, T>(mode);
  }
  return nullptr;
}

template <double (*kFunction)(double)>
struct InDouble {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(kFunction(static_cast<double>(a)));
  }
};
double rsqrt_of(double v) { return v == 0 ? std::copysign(HUGE_VAL, v) : 1.0 / std::sqrt(v); }
double exp2_of(double v) { return std::exp2(v); }
double log2_of(double v) { return std::log2(v); }
double sin_of(double v) { return std::sin(v); }
double cos_of(double v) { return std::cos(v); }
double tanh_of(double v) { return std::tanh(v); }

template <double (*kFunction)(double), bool kHalves, bool kF64>
Status lower_approximate(Builder& b) {
  const FloatModifiers m = take_float_modifiers(b);
  if (!b.has(".approx")) return b.error("'.approx' expected");
  const Type t = b.next_type();
  // f64 forms that ptxas refuses are emitted by tensor compilers and executed by their emulators.
  if (t == Type::kF64 ? !kF64 : t != Type::kF32 && !kHalves) return b.unknown_form();
  return emit_float(b, for_float<Unary<InDouble<kFunction>>>(t), t, 1, m);
}

template <Rounded kOp>
Status lower_root(Builder& b) {
  const FloatModifiers m = take_float_modifiers(b);
  Rounding mode = Rounding::kNearest;
  const bool has_mode = take_rounding(b, mode);
  const bool is_approximate = b.has(".approx");
  const Type t = b.next_type();
  if (t != Type::kF32 && t != Type::kF64) return b.unknown_form();
  if (has_mode == is_approximate) return b.error("rounding or '.approx' expected");
  const Handler run = rounded(kOp, t, mode);
  if (t == Type::kF64 && m.flush) {
    // rcp.approx.ftz.f64: the flush is of the approximation's own making.
    FloatModifiers none;
    return emit_float(b, run, t, 1, none);
  }
  return emit_float(b, run, t, 1, m);
}

Status lower_rsqrt(Builder& b) {
  FloatModifiers m = take_float_modifiers(b);
  if (!b.has(".approx")) return b.error("'.approx' expected");
  const Type t = b.next_type();
  if (t != Type::kF32 && t != Type::kF64) return b.unknown_form();
  if (t == Type::kF64) m.flush = false;
  return emit_float(b, for_float<Unary<InDouble<&rsqrt_of>>>(t), t, 1, m);
}

constexpr Operation kRoundedOperations[] = {
    {"ex2", &lower_approximate<&exp2_of, true, true>},
    {"lg2", &lower_approximate<&log2_of, false, true>},
    {"sin", &lower_approximate<&sin_of, false, true>},
    {"cos", &lower_approximate<&cos_of, false, true>},
    {"tanh", &lower_approximate<&tanh_of, true, false>},
    {"rcp", &lower_root<Rounded::kReciprocal>},
    {"sqrt", &lower_root<Rounded::kSqrt>},
    {"rsqrt", &lower_rsqrt},
};

}  // namespace

std::span<const Operation> rounding_operations() { return kRoundedOperations; }

bool take_rounding(Builder& b, Rounding& out) {
  if (b.has(".rn")) return out = Rounding::kNearest, true;
  if (b.has(".rz")) return out = Rounding::kZero, true;
  if (b.has(".rm")) return out = Rounding::kDown, true;
  if (b.has(".rp")) return out = Rounding::kUp, true;
  return false;
}

Handler rounded(Rounded op, Type t, Rounding mode) {
  if (t == Type::kF32) return pick<float>(op, mode);
  return t == Type::kF64 ? pick<double>(op, mode) : nullptr;
}

}  // namespace bm::sim::ptx
