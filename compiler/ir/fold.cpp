// Constant folding: the one executable definition of what each operation means on scalars.
#include <cmath>
#include <cstring>

#include "compiler/ir/node.h"
#include "compiler/ir/wrap.h"
#include "runtime/base/check.h"
#include "runtime/base/half.h"
#include "runtime/base/half_f64.h"

namespace bm::ir {
namespace {

double round_to(DType t, double v) {
  switch (t) {
    case DType::kF16: return static_cast<double>(f16_to_f32(f64_to_f16(v)));
    case DType::kBF16: return static_cast<double>(bf16_to_f32(f64_to_bf16(v)));
    case DType::kF32: return static_cast<double>(static_cast<float>(v));
    default: return v;
  }
}

Scalar integer(DType t, int64_t v) { return {t, wrap_integer(t, v), 0}; }
Scalar floating(DType t, double v) { return {t, 0, round_to(t, v)}; }

double as_double(const Scalar& s) {
  if (is_float(s.dtype)) return s.f;
  if (s.dtype == DType::kU64) return static_cast<double>(static_cast<uint64_t>(s.i));
  return static_cast<double>(s.i);
}

int64_t saturate(DType t, double v) {
  if (std::isnan(v)) return 0;
  if (t == DType::kU64) {
    if (v <= 0) return 0;
    if (v >= 18446744073709551616.0) return -1;
    return static_cast<int64_t>(static_cast<uint64_t>(v));
  }
  const double lo = static_cast<double>(int_min(t)), hi = static_cast<double>(int_max(t));
  if (v <= lo) return int_min(t);
  if (v >= hi) return int_max(t);
  return static_cast<int64_t>(v);
}

Scalar fold_cast(const Scalar& a, DType to) {
  if (is_bool(to)) return integer(to, is_float(a.dtype) ? a.f != 0 : a.i != 0);
  if (!is_float(to)) return integer(to, is_float(a.dtype) ? saturate(to, a.f) : a.i);
  // Integers go through float32 for 16-bit floats exactly as generated code does.
  if (!is_float(a.dtype) && is_half_like(to))
    return floating(to, round_to(DType::kF32, as_double(a)));
  if (!is_float(a.dtype) && to == DType::kF32) {
    // One rounding from 64-bit integers, not two.
    return {to, 0,
            a.dtype == DType::kU64
                ? static_cast<double>(static_cast<float>(static_cast<uint64_t>(a.i)))
                : static_cast<double>(static_cast<float>(a.i))};
  }
  return floating(to, as_double(a));
}

uint64_t to_bits(const Scalar& a) {
  switch (a.dtype) {
    case DType::kF16: return f32_to_f16(static_cast<float>(a.f));
    case DType::kBF16: return f32_to_bf16(static_cast<float>(a.f));
    case DType::kF32: return std::bit_cast<uint32_t>(static_cast<float>(a.f));
    case DType::kF64: return std::bit_cast<uint64_t>(a.f);
    default: return static_cast<uint64_t>(a.i);
  }
}

Scalar from_bits(DType t, uint64_t bits) {
  switch (t) {
    case DType::kF16: return {t, 0, static_cast<double>(f16_to_f32(static_cast<uint16_t>(bits)))};
    case DType::kBF16: return {t, 0, static_cast<double>(bf16_to_f32(static_cast<uint16_t>(bits)))};
    case DType::kF32:
      return {t, 0, static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits)))};
    case DType::kF64: return {t, 0, std::bit_cast<double>(bits)};
    default: return integer(t, static_cast<int64_t>(bits));
  }
}

int width(DType t) { return static_cast<int>(item_size(t)) * 8; }

Scalar fold_shift(Op op, DType t, int64_t a, int64_t b) {
  const bool is_over = b < 0 || b >= width(t);
  if (op == Op::kShl)
    return integer(t, is_over ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b));
  if (is_over) return integer(t, is_signed(t) && a < 0 ? -1 : 0);
  if (t == DType::kU64) return integer(t, static_cast<int64_t>(static_cast<uint64_t>(a) >> b));
  return integer(t, a >> b);
}

Scalar fold_int_div(Op op, DType t, int64_t a, int64_t b) {
  if (b == 0) return integer(t, 0);
  if (t == DType::kU64) {
    const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
    return integer(t, static_cast<int64_t>(op == Op::kDiv ? ua / ub : ua % ub));
  }
  if (b == -1)
    return integer(t, op == Op::kDiv ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : 0);
  return integer(t, op == Op::kDiv ? a / b : a % b);
}

bool int_less(DType t, int64_t a, int64_t b) {
  return t == DType::kU64 ? static_cast<uint64_t>(a) < static_cast<uint64_t>(b) : a < b;
}

Scalar fold_int(Op op, DType t, std::span<const Scalar> s) {
  const int64_t a = s[0].i, b = s.size() > 1 ? s[1].i : 0;
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  const DType from = s[0].dtype;
  switch (op) {
    case Op::kNeg: return integer(t, static_cast<int64_t>(0 - ua));
    case Op::kNot: return integer(t, is_bool(t) ? !a : ~a);
    case Op::kTrunc: return integer(t, a);
    case Op::kAdd: return integer(t, static_cast<int64_t>(ua + ub));
    case Op::kSub: return integer(t, static_cast<int64_t>(ua - ub));
    case Op::kMul: return integer(t, static_cast<int64_t>(ua * ub));
    case Op::kDiv:
    case Op::kMod: return fold_int_div(op, t, a, b);
    case Op::kMax: return integer(t, int_less(from, a, b) ? b : a);
    case Op::kMin: return integer(t, int_less(from, b, a) ? b : a);
    case Op::kAnd: return integer(t, a & b);
    case Op::kOr: return integer(t, a | b);
    case Op::kXor: return integer(t, a ^ b);
    case Op::kShl:
    case Op::kShr: return fold_shift(op, t, a, b);
    case Op::kLt: return integer(DType::kBool, int_less(from, a, b));
    case Op::kEq: return integer(DType::kBool, a == b);
    case Op::kNe: return integer(DType::kBool, a != b);
    default: break;
  }
  BM_CHECK(false && "operation is not defined on integers");
  return {};
}

Scalar fold_float(Op op, DType t, std::span<const Scalar> s) {
  const double a = s[0].f, b = s.size() > 1 ? s[1].f : 0;
  switch (op) {
    case Op::kNeg: return floating(t, -a);
    case Op::kRecip: return floating(t, 1.0 / a);
    case Op::kSqrt: return floating(t, std::sqrt(a));
    case Op::kExp2: return floating(t, std::exp2(a));
    case Op::kLog2: return floating(t, std::log2(a));
    case Op::kSin: return floating(t, std::sin(a));
    case Op::kTrunc: return floating(t, std::trunc(a));
    case Op::kAdd: return floating(t, a + b);
    case Op::kSub: return floating(t, a - b);
    case Op::kMul: return floating(t, a * b);
    case Op::kDiv: return floating(t, a / b);
    case Op::kMod: return floating(t, std::fmod(a, b));
    case Op::kMax: return floating(t, std::isnan(a) || std::isnan(b) ? NAN : (a < b ? b : a));
    case Op::kMin: return floating(t, std::isnan(a) || std::isnan(b) ? NAN : (b < a ? b : a));
    case Op::kLt: return integer(DType::kBool, a < b);
    case Op::kEq: return integer(DType::kBool, a == b);
    case Op::kNe: return integer(DType::kBool, a != b);
    // float32: a product of two float32 is exact in double, the sum rounds once more (double
    // rounding is possible in rare ties; std::fma on float gives the exact answer).
    case Op::kFma:
      if (t == DType::kF32)
        return floating(t,
                        static_cast<double>(std::fma(static_cast<float>(a), static_cast<float>(b),
                                                     static_cast<float>(s[2].f))));
      return floating(t, std::fma(a, b, s[2].f));
    default: break;
  }
  BM_CHECK(false && "operation is not defined on floats");
  return {};
}

}  // namespace

Scalar fold(Op op, DType dtype, std::span<const Scalar> args) {
  if (op == Op::kCast) return fold_cast(args[0], dtype);
  if (op == Op::kBitcast) return from_bits(dtype, to_bits(args[0]));
  if (op == Op::kSelect) return args[0].i ? args[1] : args[2];
  return is_float(args[0].dtype) ? fold_float(op, dtype, args) : fold_int(op, dtype, args);
}

}  // namespace bm::ir
