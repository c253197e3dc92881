// cvt between all scalar types, cvt.pack, mov.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/sim/ptx/dispatch.h"
#include "tests/sim/ptx/formats.h"

namespace bm::sim::ptx {
namespace {

enum class Mode : uint8_t { kNearest, kZero, kDown, kUp, kAway };

struct Format {
  int precision;     ///< bits of the significand, the hidden one included
  int min_exponent;  ///< of the smallest normal number
  double largest;
  bool has_infinity;
};
constexpr Format kHalfFormat{11, -14, 65504.0, true};
constexpr Format kBrainFormat{8, -126, 0x1.fep127, true};
constexpr Format kFloatFormat{24, -126, 0x1.fffffep127, true};
constexpr Format kDoubleFormat{53, -1022, std::numeric_limits<double>::max(), true};
constexpr Format kTf32Format{11, -126, 0x1.ffcp127, true};
constexpr Format kE4M3Format{4, -6, 448.0, false};
constexpr Format kE5M2Format{3, -14, 57344.0, true};

long double to_integral(long double v, Mode mode) {
  switch (mode) {
    case Mode::kNearest: return std::nearbyint(v);
    case Mode::kZero: return std::trunc(v);
    case Mode::kDown: return std::floor(v);
    case Mode::kUp: return std::ceil(v);
    case Mode::kAway: return std::round(v);
  }
  return v;
}

/// The value of format `f` that `mode` makes of v. x87's 64 bits hold every source exactly.
long double round_to(long double v, const Format& f, Mode mode, bool saturate_finite) {
  if (std::isnan(v) || v == 0) return v;
  if (std::isinf(v))
    return saturate_finite ? std::copysign(static_cast<long double>(f.largest), v) : v;
  int exponent = 0;
  std::frexp(v, &exponent);
  const int quantum = std::max(exponent - f.precision, f.min_exponent - f.precision + 1);
  const long double r = std::ldexp(to_integral(std::ldexp(v, -quantum), mode), quantum);
  if (std::fabs(r) <= f.largest) return r == 0 ? std::copysign(0.0L, v) : r;
  const bool to_largest = saturate_finite || mode == Mode::kZero ||
                          (mode == Mode::kDown && v > 0) || (mode == Mode::kUp && v < 0);
  return std::copysign(to_largest ? static_cast<long double>(f.largest) : HUGE_VALL, v);
}

/// Bits of a small format with `mantissa` stored bits; v is a value of the format.
uint32_t encode_small(double v, int mantissa, int min_exponent, uint32_t nan, uint32_t infinity,
                      uint32_t sign_bit) {
  if (std::isnan(v)) return nan;
  const uint32_t sign = std::signbit(v) ? sign_bit : 0;
  v = std::fabs(v);
  if (std::isinf(v)) return sign | infinity;
  if (v == 0) return sign;
  int exponent = 0;
  std::frexp(v, &exponent);
  exponent = std::max(exponent - 1, min_exponent);
  const auto scaled = static_cast<uint32_t>(std::ldexp(v, mantissa - exponent));
  const auto biased = static_cast<uint32_t>(exponent - min_exponent + 1);
  const uint32_t hidden = 1u << mantissa;
  return sign | (scaled < hidden ? scaled : ((biased << mantissa) | (scaled - hidden)));
}
/// How a conversion was asked for, packed into Inst::imm.
struct Options {
  Mode mode = Mode::kNearest;
  bool integral = false, saturate = false, relu = false, finite = false, flush = false;
  uint64_t pack() const {
    return static_cast<uint64_t>(mode) | (integral ? 8u : 0u) | (saturate ? 16u : 0u) |
           (relu ? 32u : 0u) | (finite ? 64u : 0u) | (flush ? 128u : 0u);
  }
  static Options unpack(uint64_t bits) {
    return {static_cast<Mode>(bits & 7),
            (bits & 8) != 0,
            (bits & 16) != 0,
            (bits & 32) != 0,
            (bits & 64) != 0,
            (bits & 128) != 0};
  }
};

struct Tf32 {};
struct E4M3 {};
struct E5M2 {};

template <class T>
struct Codec {  // integers
  using Storage = T;
  static long double get(T bits) { return static_cast<long double>(bits); }
  static T put(long double v, const Options& o, bool is_double) {
    constexpr bool kWide = sizeof(T) == 8;
    if (std::isnan(v)) {
      if (!is_double && !kWide) return 0;
      return static_cast<T>(std::make_unsigned_t<T>{1} << (8 * sizeof(T) - 1));
    }
    v = to_integral(v, o.mode);
    constexpr auto kLeast = static_cast<long double>(std::numeric_limits<T>::min());
    constexpr auto kMost = static_cast<long double>(std::numeric_limits<T>::max());
    if (v <= kLeast) return std::numeric_limits<T>::min();
    if (v >= kMost) return std::numeric_limits<T>::max();
    return static_cast<T>(v);
  }
};
template <>
struct Codec<float> {
  using Storage = float;
  static long double get(float v) { return v; }
  static float put(long double v, const Options& o, bool) {
    if (std::isnan(v)) return std::bit_cast<float>(0x7fffffffu);
    return static_cast<float>(round_to(v, kFloatFormat, o.mode, false));
  }
};
template <>
struct Codec<double> {
  using Storage = double;
  static long double get(double v) { return v; }
  static double put(long double v, const Options& o, bool) {
    return static_cast<double>(round_to(v, kDoubleFormat, o.mode, false));
  }
};
template <>
struct Codec<Half> {
  using Storage = uint16_t;
  static long double get(uint16_t bits) { return f16_to_f32(bits); }
  static uint16_t put(long double v, const Options& o, bool) {
    if (std::isnan(v)) return 0x7fff;
    return f32_to_f16(static_cast<float>(round_to(v, kHalfFormat, o.mode, o.finite)));
  }
};
template <>
struct Codec<Brain> {
  using Storage = uint16_t;
  static long double get(uint16_t bits) { return bf16_to_f32(bits); }
  static uint16_t put(long double v, const Options& o, bool) {
    if (std::isnan(v)) return 0x7fff;
    return f32_to_bf16(static_cast<float>(round_to(v, kBrainFormat, o.mode, o.finite)));
  }
};
template <>
struct Codec<Tf32> {
  using Storage = uint32_t;
  static long double get(uint32_t bits) { return std::bit_cast<float>(bits); }
  static uint32_t put(long double v, const Options& o, bool) {
    if (std::isnan(v)) return 0x7fffffff;
    return std::bit_cast<uint32_t>(static_cast<float>(round_to(v, kTf32Format, o.mode, o.finite)));
  }
};
template <>
struct Codec<E4M3> {
  using Storage = uint8_t;
  static long double get(uint8_t bits) { return decode_e4m3(bits); }
  static uint8_t put(long double v, const Options& o, bool) {
    const auto r = static_cast<double>(round_to(v, kE4M3Format, o.mode, true));
    return static_cast<uint8_t>(encode_small(r, 3, -6, 0x7f, 0x7f, 0x80));
  }
};
template <>
struct Codec<E5M2> {
  using Storage = uint8_t;
  static long double get(uint8_t bits) { return decode_e5m2(bits); }
  static uint8_t put(long double v, const Options& o, bool) {
    const auto r = static_cast<double>(round_to(v, kE5M2Format, o.mode, true));
    return static_cast<uint8_t>(encode_small(r, 2, -14, 0x7f, 0x7c, 0x80));
  }
};

template <class T>
constexpr bool kIsInteger = std::is_integral_v<T>;

/// Value steps that do not depend on the target's bits.
template <class D>
long double shaped(long double v, const Options& o) {
  if constexpr (!kIsInteger<D>) {
    if (o.flush && std::fabs(v) < 0x1p-126L) v = std::copysign(0.0L, v);
    if (o.integral && std::isfinite(v)) {
      const long double r = to_integral(v, o.mode);
      v = r == 0 ? std::copysign(0.0L, v) : r;
    }
    if (o.saturate) v = v > 0 ? std::min(v, 1.0L) : 0.0L;
    if (o.relu && !std::isnan(v)) v = v > 0 ? v : 0.0L;
  }
  return v;
}

template <class D, class A>
void convert(Exec& x, const Inst& in) {
  using S = typename Codec<D>::Storage;
  S* d = x.reg<S>(in.op[0]);
  const auto* a = x.reg<typename Codec<A>::Storage>(in.op[1]);
  const Options o = Options::unpack(in.imm);
  Options put = o;
  if (!kIsInteger<D> && o.integral) put.mode = Mode::kNearest;
  each_thread(x, [=](uint32_t i) {
    const long double v = shaped<D>(Codec<A>::get(a[i]), o);
    S out = Codec<D>::put(v, put, std::is_same_v<A, double>);
    if constexpr (std::is_same_v<D, float>)
      if (o.flush && std::fpclassify(out) == FP_SUBNORMAL) out = std::copysign(0.0f, out);
    d[i] = out;
  });
}

/// d = upper a, lower b.
template <class D, class A>
void convert_pair(Exec& x, const Inst& in) {
  using S = typename Codec<D>::Storage;
  using P = std::conditional_t<sizeof(S) == 1, uint16_t, uint32_t>;
  P* d = x.reg<P>(in.op[0]);
  const auto *a = x.reg<typename Codec<A>::Storage>(in.op[1]),
             *b = x.reg<typename Codec<A>::Storage>(in.op[2]);
  const Options o = Options::unpack(in.imm);
  each_thread(x, [=](uint32_t i) {
    const S high = Codec<D>::put(shaped<D>(Codec<A>::get(a[i]), o), o, false);
    const S low = Codec<D>::put(shaped<D>(Codec<A>::get(b[i]), o), o, false);
    d[i] = static_cast<P>((static_cast<P>(high) << (8 * sizeof(S))) | low);
  });
}

/// Both halves of a packed source to both of a packed target.
template <class D, class A>
void convert_packed(Exec& x, const Inst& in) {
  using S = typename Codec<D>::Storage;
  using T = typename Codec<A>::Storage;
  using P = std::conditional_t<sizeof(S) == 1, uint16_t, uint32_t>;
  using Q = std::conditional_t<sizeof(T) == 1, uint16_t, uint32_t>;
  P* d = x.reg<P>(in.op[0]);
  const Q* a = x.reg<Q>(in.op[1]);
  const Options o = Options::unpack(in.imm);
  each_thread(x, [=](uint32_t i) {
    const Q v = a[i];
    P out = 0;
    for (int part = 1; part >= 0; --part) {
      const auto one = static_cast<T>(v >> (8 * static_cast<int>(sizeof(T)) * part));
      out = static_cast<P>((static_cast<uint64_t>(out) << (8 * sizeof(S))) |
                           Codec<D>::put(shaped<D>(Codec<A>::get(one), o), o, false));
    }
    d[i] = out;
  });
}

// Common conversions without the detour.
template <class D>
struct Cast {
  template <class A>
  D operator()(A a) const {
    return static_cast<D>(a);
  }
};
struct HalfToFloat {
  float operator()(uint16_t a) const { return f16_to_f32(a); }
};
struct BrainToFloat {
  float operator()(uint16_t a) const { return bf16_to_f32(a); }
};
struct FloatToHalf {
  uint16_t operator()(float a) const { return std::isnan(a) ? uint16_t{0x7fff} : f32_to_f16(a); }
};
struct FloatToBrain {
  uint16_t operator()(float a) const { return std::isnan(a) ? uint16_t{0x7fff} : f32_to_bf16(a); }
};

template <class D, class A>
Handler pick_exact(const Options& o) {
  if constexpr (kIsInteger<D> && kIsInteger<A>) {
    if (!o.saturate) return &mapx1<Cast<D>, D, A>;
  } else if (o.pack() == 0) {
    if constexpr (std::is_same_v<D, float> && std::is_same_v<A, Half>)
      return &mapx1<HalfToFloat, float, uint16_t>;
    else if constexpr (std::is_same_v<D, float> && std::is_same_v<A, Brain>)
      return &mapx1<BrainToFloat, float, uint16_t>;
    else if constexpr (std::is_same_v<D, Half> && std::is_same_v<A, float>)
      return &mapx1<FloatToHalf, uint16_t, float>;
    else if constexpr (std::is_same_v<D, Brain> && std::is_same_v<A, float>)
      return &mapx1<FloatToBrain, uint16_t, float>;
    else if constexpr (std::is_floating_point_v<D> && std::is_arithmetic_v<A> &&
                       !std::is_same_v<A, D>)
      return &mapx1<Cast<D>, D, A>;
  }
  return &convert<D, A>;
}
template <class D>
Handler pick_source(Type a, const Options& o) {
  switch (a) {
    case Type::kU8: return pick_exact<D, uint8_t>(o);
    case Type::kU16: return pick_exact<D, uint16_t>(o);
    case Type::kU32: return pick_exact<D, uint32_t>(o);
    case Type::kU64: return pick_exact<D, uint64_t>(o);
    case Type::kS8: return pick_exact<D, int8_t>(o);
    case Type::kS16: return pick_exact<D, int16_t>(o);
    case Type::kS32: return pick_exact<D, int32_t>(o);
    case Type::kS64: return pick_exact<D, int64_t>(o);
    case Type::kF16: return pick_exact<D, Half>(o);
    case Type::kBF16: return pick_exact<D, Brain>(o);
    case Type::kF32: return pick_exact<D, float>(o);
    case Type::kF64: return pick_exact<D, double>(o);
    default: return nullptr;
  }
}
Handler pick(Type d, Type a, const Options& o) {
  switch (d) {
    case Type::kU8: return pick_source<uint8_t>(a, o);
    case Type::kU16: return pick_source<uint16_t>(a, o);
    case Type::kU32: return pick_source<uint32_t>(a, o);
    case Type::kU64: return pick_source<uint64_t>(a, o);
    case Type::kS8: return pick_source<int8_t>(a, o);
    case Type::kS16: return pick_source<int16_t>(a, o);
    case Type::kS32: return pick_source<int32_t>(a, o);
    case Type::kS64: return pick_source<int64_t>(a, o);
    case Type::kF16: return pick_source<Half>(a, o);
    case Type::kBF16: return pick_source<Brain>(a, o);
    case Type::kF32: return pick_source<float>(a, o);
    case Type::kF64: return pick_source<double>(a, o);
    case Type::kTF32: return a == Type::kF32 ? &convert<Tf32, float> : nullptr;
    default: return nullptr;
  }
}

template <class R, class T>
void resize(Exec& x, const Inst& in) {
  R* d = x.reg<R>(in.op[0]);
  const T* a = x.reg<T>(in.op[1]);
  each(x, [=](uint32_t i) { d[i] = static_cast<R>(a[i]); });
}
template <class R>
Handler resizer(uint32_t from, bool is_signed) {
  if (from == 1) return is_signed ? &resize<R, int8_t> : &resize<R, uint8_t>;
  if (from == 2) return is_signed ? &resize<R, int16_t> : &resize<R, uint16_t>;
  if (from == 4) return is_signed ? &resize<R, int32_t> : &resize<R, uint32_t>;
  return from == 8 ? &resize<R, uint64_t> : nullptr;
}
Handler resizer(uint32_t to, uint32_t from, bool is_signed) {
  if (to == 1) return resizer<uint8_t>(from, is_signed);
  if (to == 2) return resizer<uint16_t>(from, is_signed);
  if (to == 4) return resizer<uint32_t>(from, is_signed);
  return to == 8 ? resizer<uint64_t>(from, is_signed) : nullptr;
}

bool agree_widened(Type reg, Type t) {
  if (type_bytes(reg) == type_bytes(t)) return types_agree(reg, t);
  // Wider registers hold narrow values, but none of float type do.
  return type_bytes(reg) > type_bytes(t) && type_class(reg) != TypeClass::kFloat &&
         type_class(reg) != TypeClass::kPredicate;
}

Options take_options(Builder& b, bool& has_mode) {
  Options o;
  struct Row {
    std::string_view name;
    Mode mode;
    bool integral;
  };
  constexpr Row kRows[] = {
      {".rn", Mode::kNearest, false}, {".rz", Mode::kZero, false},  {".rm", Mode::kDown, false},
      {".rp", Mode::kUp, false},      {".rna", Mode::kAway, false}, {".rni", Mode::kNearest, true},
      {".rzi", Mode::kZero, true},    {".rmi", Mode::kDown, true},  {".rpi", Mode::kUp, true}};
  for (const Row& row : kRows) {
    if (has_mode || !b.has(row.name)) continue;
    has_mode = true;
    o.mode = row.mode;
    o.integral = row.integral;
  }
  o.flush = b.has(".ftz");
  o.saturate = b.has(".sat");
  o.finite = b.has(".satfinite");
  o.relu = b.has(".relu");
  return o;
}

/// Whether the rounding suffix is there exactly where PTX wants it.
bool rounding_fits(Type d, Type a, const Options& o, bool has_mode) {
  const bool df = type_class(d) == TypeClass::kFloat, af = type_class(a) == TypeClass::kFloat;
  if (d == Type::kTF32) return has_mode && !o.integral;
  if (!df && !af) return !has_mode;
  if (!df) return has_mode && o.integral;
  if (!af) return has_mode && !o.integral;
  if (d == a) return o.integral || !has_mode;
  const bool narrows = type_bytes(d) < type_bytes(a) || (type_bytes(d) == type_bytes(a));
  return narrows ? has_mode && !o.integral : !has_mode;
}

Handler pair_handler(Type d, Type a) {
  if (a == Type::kF32) {
    if (d == Type::kF16x2) return &convert_pair<Half, float>;
    if (d == Type::kBF16x2) return &convert_pair<Brain, float>;
    if (d == Type::kE4M3x2) return &convert_pair<E4M3, float>;
    if (d == Type::kE5M2x2) return &convert_pair<E5M2, float>;
  }
  return nullptr;
}
Handler packed_handler(Type d, Type a) {
  if (a == Type::kF16x2 && d == Type::kE4M3x2) return &convert_packed<E4M3, Half>;
  if (a == Type::kF16x2 && d == Type::kE5M2x2) return &convert_packed<E5M2, Half>;
  if (d == Type::kF16x2 && a == Type::kE4M3x2) return &convert_packed<Half, E4M3>;
  if (d == Type::kF16x2 && a == Type::kE5M2x2) return &convert_packed<Half, E5M2>;
  return nullptr;
}

Status lower_scalar(Builder& b, Type d, Type a, const Options& o) {
  const Handler run = pick(d, a, o);
  if (!run) return b.unknown_form();
  const Builder::Register from = BM_TRY(b.in_any(b.operand(1), a));
  const Builder::Register to = BM_TRY(b.out_any(b.operand(0), d));
  if (!agree_widened(from.type, a) || !agree_widened(to.type, d))
    return b.error("register of another type or too narrow");
  uint32_t source = from.place, target = to.place;
  const uint32_t from_bytes = type_bytes(from.type), to_bytes = type_bytes(to.type);
  if (from_bytes != type_bytes(a)) {
    source = b.temporary(type_bytes(a));
    b.emit(resizer(type_bytes(a), from_bytes, false), {source, from.place});
  }
  if (to_bytes != type_bytes(d)) target = b.temporary(type_bytes(d));
  b.emit(run, {target, source}).imm = o.pack();
  if (to_bytes != type_bytes(d))
    b.emit(resizer(to_bytes, type_bytes(d), type_class(d) == TypeClass::kSigned),
           {to.place, target});
  return {};
}

Status lower_cvt(Builder& b) {
  bool has_mode = false;
  const Options o = take_options(b, has_mode);
  const Type d = b.next_type(), a = b.next_type();
  if (const Handler run = pair_handler(d, a)) {
    BM_TRY(b.expect_operands(3, 3));
    if (!has_mode || o.integral) return b.error("rounding expected");
    const uint32_t high = BM_TRY(b.in(1, a)), low = BM_TRY(b.in(2, a));
    b.emit(run, {BM_TRY(b.out(0, d)), high, low}).imm = o.pack();
    return {};
  }
  BM_TRY(b.expect_operands(2, 2));
  if (const Handler run = packed_handler(d, a)) {
    if (!has_mode || o.integral) return b.error("rounding expected");
    const uint32_t source = BM_TRY(b.in(1, a));
    b.emit(run, {BM_TRY(b.out(0, d)), source}).imm = o.pack();
    return {};
  }
  if (d == Type::kNone || a == Type::kNone) return b.unknown_form();
  if (!rounding_fits(d, a, o, has_mode)) return b.error("rounding missing or out of place");
  return lower_scalar(b, d, a, o);
}

template <class T>
void copy(Exec& x, const Inst& in) {
  T* d = x.reg<T>(in.op[0]);
  const T* a = x.reg<T>(in.op[1]);
  each(x, [=](uint32_t i) { d[i] = a[i]; });
}
struct Bits128 {
  uint64_t low, high;
};
Handler copier(uint32_t bytes) {
  if (bytes == 1) return &copy<uint8_t>;
  if (bytes == 2) return &copy<uint16_t>;
  if (bytes == 4) return &copy<uint32_t>;
  return bytes == 8 ? &copy<uint64_t> : &copy<Bits128>;
}
/// Part in.imm of the wide register op[0] (pack) or op[1] (unpack); one byte of width per count.
template <bool kPack>
void move_part(Exec& x, const Inst& in) {
  const uint32_t part = in.count, whole = static_cast<uint32_t>(in.imm >> 32);
  const auto index = static_cast<uint32_t>(in.imm);
  auto* d = x.reg<std::byte>(in.op[0]);
  const auto* a = x.reg<std::byte>(in.op[1]);
  each_thread(x, [=](uint32_t i) {
    if (kPack)
      std::copy_n(a + size_t{i} * part, part, d + size_t{i} * whole + index * part);
    else
      std::copy_n(a + size_t{i} * whole + index * part, part, d + size_t{i} * part);
  });
}

Type bits_of(uint32_t bytes) {
  if (bytes == 1) return Type::kB8;
  if (bytes == 2) return Type::kB16;
  if (bytes == 4) return Type::kB32;
  return bytes == 8 ? Type::kB64 : Type::kB128;
}

Status lower_pack(Builder& b, Type t) {
  const std::vector<Operand>& parts = b.operand(1).elements;
  const auto n = static_cast<uint32_t>(parts.size());
  const uint32_t whole = type_bytes(t);
  if (n < 2 || whole % n != 0 || n > 4) return b.error("vector does not fit");
  // Through a register of its own: the target may be one of the parts.
  const uint32_t held = b.temporary(whole);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t a = BM_TRY(b.in(parts[i], bits_of(whole / n)));
    Inst& in = b.emit(&move_part<true>, {held, a});
    in.count = static_cast<uint8_t>(whole / n);
    in.imm = (uint64_t{whole} << 32) | i;
  }
  b.emit(copier(whole), {BM_TRY(b.out(0, t)), held});
  return {};
}
Status lower_unpack(Builder& b, Type t) {
  const std::vector<Operand>& parts = b.operand(0).elements;
  const auto n = static_cast<uint32_t>(parts.size());
  const uint32_t whole = type_bytes(t);
  if (n < 2 || whole % n != 0 || n > 4) return b.error("vector does not fit");
  const uint32_t held = b.temporary(whole);
  b.emit(copier(whole), {held, BM_TRY(b.in(1, t))});
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t d = BM_TRY(b.out(parts[i], bits_of(whole / n)));
    Inst& in = b.emit(&move_part<false>, {d, held});
    in.count = static_cast<uint8_t>(whole / n);
    in.imm = (uint64_t{whole} << 32) | i;
  }
  return {};
}
Status lower_vector(Builder& b) {
  const bool is_v2 = b.has(".v2");
  if (!is_v2 && !b.has(".v4")) return b.unknown_form();
  const Type t = b.next_type();
  const auto &d = b.operand(0).elements, &a = b.operand(1).elements;
  if (d.size() != a.size() || d.size() != (is_v2 ? 2u : 4u)) return b.error("vector does not fit");
  uint32_t held[4] = {};
  for (size_t i = 0; i < a.size(); ++i) {
    held[i] = b.temporary(type_bytes(t));
    b.emit(copier(type_bytes(t)), {held[i], BM_TRY(b.in(a[i], t))});
  }
  for (size_t i = 0; i < a.size(); ++i)
    b.emit(copier(type_bytes(t)), {BM_TRY(b.out(d[i], t)), held[i]});
  return {};
}

Status lower_mov(Builder& b) {
  BM_TRY(b.expect_operands(2, 2));
  if (b.peek_suffix() == ".v2" || b.peek_suffix() == ".v4") return lower_vector(b);
  const Type t = b.next_type();
  if (t == Type::kNone || type_bytes(t) == 0) return b.unknown_form();
  if (b.operand(1).kind == Operand::Kind::kVector) return lower_pack(b, t);
  if (b.operand(0).kind == Operand::Kind::kVector) return lower_unpack(b, t);
  const uint32_t a = BM_TRY(b.in(1, t));
  b.emit(copier(type_bytes(t)), {BM_TRY(b.out(0, t)), a});
  return {};
}

constexpr Operation kConvertOperations[] = {{"cvt", &lower_cvt}, {"mov", &lower_mov}};

}  // namespace

std::span<const Operation> convert_operations() { return kConvertOperations; }

}  // namespace bm::sim::ptx
