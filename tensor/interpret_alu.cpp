// Elementwise operations of the reference device: one function per operation, found in a table.
#include "tensor/interpret_alu.h"

#include <array>

namespace bm::reference {
namespace {

uint64_t bits_of(int64_t v) { return static_cast<uint64_t>(v); }
int64_t signed_of(uint64_t v) { return static_cast<int64_t>(v); }
int width_of(DType t) { return static_cast<int>(item_size(t)) * 8; }
bool is_less(DType t, int64_t a, int64_t b) {
  return t == DType::kU64 ? bits_of(a) < bits_of(b) : a < b;
}

// Each function gets the operands' dtype and up to three values; the caller rounds or wraps.
using Args = std::span<const Value>;

Value neg(DType, Args a) { return {signed_of(0 - bits_of(a[0].i)), -a[0].f}; }
Value recip(DType, Args a) { return {0, 1.0 / a[0].f}; }
Value sqrt_(DType, Args a) { return {0, std::sqrt(a[0].f)}; }
Value exp2_(DType, Args a) { return {0, std::exp2(a[0].f)}; }
Value log2_(DType, Args a) { return {0, std::log2(a[0].f)}; }
Value sin_(DType, Args a) { return {0, std::sin(a[0].f)}; }
Value trunc_(DType, Args a) { return {a[0].i, std::trunc(a[0].f)}; }
Value not_(DType t, Args a) { return {is_bool(t) ? 1 - a[0].i : ~a[0].i, 0}; }

Value add(DType, Args a) { return {signed_of(bits_of(a[0].i) + bits_of(a[1].i)), a[0].f + a[1].f}; }
Value sub(DType, Args a) { return {signed_of(bits_of(a[0].i) - bits_of(a[1].i)), a[0].f - a[1].f}; }
Value mul(DType, Args a) { return {signed_of(bits_of(a[0].i) * bits_of(a[1].i)), a[0].f * a[1].f}; }

Value div(DType t, Args a) {
  if (is_float(t)) return {0, a[0].f / a[1].f};
  if (a[1].i == 0) return {};
  if (t == DType::kU64) return {signed_of(bits_of(a[0].i) / bits_of(a[1].i)), 0};
  if (a[1].i == -1) return {signed_of(0 - bits_of(a[0].i)), 0};  // INT64_MIN / -1 wraps
  return {a[0].i / a[1].i, 0};
}
Value mod(DType t, Args a) {
  if (is_float(t)) return {0, std::fmod(a[0].f, a[1].f)};
  if (a[1].i == 0 || (a[1].i == -1 && t != DType::kU64)) return {};
  if (t == DType::kU64) return {signed_of(bits_of(a[0].i) % bits_of(a[1].i)), 0};
  return {a[0].i % a[1].i, 0};
}
Value max_(DType t, Args a) {
  if (!is_float(t)) return is_less(t, a[0].i, a[1].i) ? a[1] : a[0];
  if (std::isnan(a[0].f)) return a[0];
  return std::isnan(a[1].f) || a[0].f < a[1].f ? a[1] : a[0];
}
Value min_(DType t, Args a) {
  if (!is_float(t)) return is_less(t, a[1].i, a[0].i) ? a[1] : a[0];
  if (std::isnan(a[0].f)) return a[0];
  return std::isnan(a[1].f) || a[1].f < a[0].f ? a[1] : a[0];
}
Value and_(DType, Args a) { return {a[0].i & a[1].i, 0}; }
Value or_(DType, Args a) { return {a[0].i | a[1].i, 0}; }
Value xor_(DType, Args a) { return {a[0].i ^ a[1].i, 0}; }

bool is_too_far(DType t, int64_t count) { return count < 0 || count >= width_of(t); }
Value shl(DType t, Args a) {
  return {is_too_far(t, a[1].i) ? 0 : signed_of(bits_of(a[0].i) << a[1].i), 0};
}
Value shr(DType t, Args a) {
  if (is_too_far(t, a[1].i)) return {is_signed(t) && a[0].i < 0 ? -1 : 0, 0};
  return {t == DType::kU64 ? signed_of(bits_of(a[0].i) >> a[1].i) : a[0].i >> a[1].i, 0};
}
Value lt(DType t, Args a) {
  return {is_float(t) ? a[0].f < a[1].f : is_less(t, a[0].i, a[1].i), 0};
}
Value eq(DType t, Args a) { return {is_float(t) ? a[0].f == a[1].f : a[0].i == a[1].i, 0}; }
Value ne(DType t, Args a) { return {is_float(t) ? a[0].f != a[1].f : a[0].i != a[1].i, 0}; }
Value fma_(DType, Args a) { return {0, std::fma(a[0].f, a[1].f, a[2].f)}; }

struct Row {
  AluFunction function = nullptr;
  bool on_floats = false, on_ints = false;
};

constexpr std::array<Row, ir::kNumOps> make_table() {
  using enum ir::Op;
  std::array<Row, ir::kNumOps> table{};
  const auto set = [&](ir::Op op, AluFunction f, bool floats, bool ints) {
    table[static_cast<size_t>(op)] = {f, floats, ints};
  };
  set(kNeg, neg, true, true);
  set(kRecip, recip, true, false);
  set(kSqrt, sqrt_, true, false);
  set(kExp2, exp2_, true, false);
  set(kLog2, log2_, true, false);
  set(kSin, sin_, true, false);
  set(kTrunc, trunc_, true, true);
  set(kNot, not_, false, true);
  set(kAdd, add, true, true);
  set(kSub, sub, true, true);
  set(kMul, mul, true, true);
  set(kDiv, div, true, true);
  set(kMod, mod, true, true);
  set(kMax, max_, true, true);
  set(kMin, min_, true, true);
  set(kAnd, and_, false, true);
  set(kOr, or_, false, true);
  set(kXor, xor_, false, true);
  set(kShl, shl, false, true);
  set(kShr, shr, false, true);
  set(kLt, lt, true, true);
  set(kEq, eq, true, true);
  set(kNe, ne, true, true);
  set(kFma, fma_, true, false);
  return table;
}
constexpr std::array<Row, ir::kNumOps> kTable = make_table();

int64_t saturate(DType t, double v) {
  if (std::isnan(v)) return 0;
  v = std::trunc(v);
  if (t == DType::kU64) return v <= 0 ? 0 : v >= 0x1p64 ? -1 : signed_of(static_cast<uint64_t>(v));
  const double limit = std::ldexp(1.0, width_of(t) - (is_signed(t) ? 1 : 0));
  const double low = is_signed(t) ? -limit : 0;
  if (v < low) v = low;
  if (v < limit) return static_cast<int64_t>(v);
  return width_of(t) == 64 ? INT64_MAX : static_cast<int64_t>(limit - 1);
}

}  // namespace

AluFunction alu_function(ir::Op op, DType t) {
  const Row& row = kTable[static_cast<size_t>(op)];
  return (is_float(t) ? row.on_floats : row.on_ints) ? row.function : nullptr;
}

Value convert(const Value& v, DType from, DType to) {
  if (is_float(from)) {
    if (is_float(to)) return {0, v.f};
    if (is_bool(to)) return {v.f != 0 ? 1 : 0, 0};
    return {saturate(to, v.f), 0};
  }
  if (is_bool(to)) return {v.i != 0 ? 1 : 0, 0};
  if (!is_float(to)) return {wrap_integer(to, v.i), 0};
  // float32 straight from 64-bit integers: through float64 it would round twice.
  if (to == DType::kF32)
    return {0, static_cast<double>(from == DType::kU64 ? static_cast<float>(bits_of(v.i))
                                                       : static_cast<float>(v.i))};
  return {0, from == DType::kU64 ? static_cast<double>(bits_of(v.i)) : static_cast<double>(v.i)};
}

}  // namespace bm::reference
