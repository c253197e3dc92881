// Scalar helper functions for the rare arguments that the vector code of math.cpp does not cover.
#include <array>
#include <cmath>
#include <numbers>

#include "compiler/program/builder.h"

namespace bm::compiler {
namespace {

/// Binary digits of 2/π after the point, first digit first (computed with Machin's formula),
/// behind 64 zero bits so that small exponents need no special case.
constexpr std::array<uint64_t, 21> kTwoOverPi = {0,
                                                 0xa2f9836e4e441529,
                                                 0xfc2757d1f534ddc0,
                                                 0xdb6295993c439041,
                                                 0xfe5163abdebbc561,
                                                 0xb7246e3a424dd2e0,
                                                 0x06492eea09d1921c,
                                                 0xfe1deb1cb129a73e,
                                                 0xe88235f52ebb4484,
                                                 0xe99c7026b45f7e41,
                                                 0x3991d639835339f4,
                                                 0x9c845f8bbdf9283b,
                                                 0x1ff897ffde05980f,
                                                 0xef2f118b5a0a6d1f,
                                                 0x6d367ecf27cb09b7,
                                                 0x4f463f669e5fea2d,
                                                 0x7527bac7ebe5f17b,
                                                 0x3d0739f78a5292ea,
                                                 0x6bfb5fb11f8d5d08,
                                                 0x56033046fc7b6bab,
                                                 0xf0cfbc209af4361d};

constexpr Type kF64{DType::kF64, 1};

}  // namespace

ValueId Builder::patch_lanes(ValueId value, ValueId mask, uint32_t function,
                             std::span<const ValueId> args) {
  BlockId block = deeper(block_of(value), block_of(mask));
  for (ValueId a : args) block = deeper(block, block_of(a));
  if (floor_ != kNone) block = deeper(block, floor_);
  const Type t = type(value);
  const uint32_t reg = add_register(t);
  assign(block, reg, value);
  const ValueId is_any = any(mask);
  const BlockId body = open_block(block);
  for (uint32_t lane = 0; lane < t.lanes; ++lane) {
    const BlockId one = open_block(body);
    const BlockId outer_floor = set_floor(one);
    std::vector<ValueId> scalars;
    const DType wide = program_.functions[function].arguments[0].dtype;
    for (ValueId a : args) scalars.push_back(convert(extract(a, lane), wide));
    const ValueId result = convert(call(one, function, scalars), t.dtype);
    assign(one, reg, t.lanes == 1 ? result : insert(read(one, reg), lane, result));
    set_floor(body);
    const ValueId condition = extract(mask, lane);
    set_floor(outer_floor);
    close_if(one, condition);
  }
  close_if(body, is_any);
  return read(block, reg);
}

/// sin of a finite argument >= 2^27 by multiplication with enough digits of 2/π (Payne and Hanek's
/// method): 192 bits from the position where whole turns have dropped out.
uint32_t Builder::large_sine_function() {
  if (large_sine_ != kNone) return large_sine_;
  const BlockId outer_root = root_, outer_floor = set_floor(kNone);
  program_.blocks.push_back({});
  root_ = static_cast<BlockId>(program_.blocks.size() - 1);
  const auto number = static_cast<uint32_t>(program_.tables.size());
  program_.tables.emplace_back(kTwoOverPi.begin(), kTwoOverPi.end());

  const auto c = [&](int64_t v) { return constant({DType::kU64, 1}, v); };
  const auto shl_by = [&](ValueId a, ValueId n) { return raw(Op::kShl, DType::kU64, {a, n}); };
  const auto shr_by = [&](ValueId a, ValueId n) { return raw(Op::kShr, DType::kU64, {a, n}); };
  const ValueId bits = bitcast(argument(kF64, 0), DType::kU64);
  const ValueId m = bit_or(bit_and(bits, c((int64_t{1} << 52) - 1)), c(int64_t{1} << 52));
  // First digit to use: exponent - 1075 - 2 + 64 zero bits in front.
  const ValueId start = sub(shr(bits, 52), c(1075 + 2 - 64));
  const ValueId word = shr(start, 6), bit = bit_and(start, c(63)), rest = sub(c(63), bit);
  const auto digits = [&](int k) {
    const auto entry = [&](int j) { return table(number, bitcast(add(word, c(j)), DType::kI64)); };
    return bit_or(shl_by(entry(k), bit), shr_by(shr(entry(k + 1), 1), rest));
  };
  const ValueId a0 = digits(0), a1 = digits(1), a2 = digits(2);
  const auto mul_high = [&](ValueId a, ValueId b) {
    const ValueId mask = c(0xffffffff);
    const ValueId al = bit_and(a, mask), ah = shr(a, 32), bl = bit_and(b, mask), bh = shr(b, 32);
    const ValueId mid = add(mul(ah, bl), shr(mul(al, bl), 32));
    const ValueId mid2 = add(mul(al, bh), bit_and(mid, mask));
    return add(add(mul(ah, bh), shr(mid, 32)), shr(mid2, 32));
  };
  // m·A modulo 2^192: top two bits are the quadrant, the rest its fraction.
  const ValueId p2 = mul(m, a2);
  const ValueId p1_low = mul(m, a1);
  const ValueId p1 = add(p1_low, mul_high(m, a2));
  const ValueId carry = convert(lt(p1, p1_low), DType::kU64);
  const ValueId p0 = add(add(mul(m, a0), mul_high(m, a1)), carry);
  const ValueId f0 = bit_or(shl(p0, 2), shr(p1, 62)), f1 = bit_or(shl(p1, 2), shr(p2, 62));
  const ValueId is_upper = ne(shr(f0, 63), c(0));
  const ValueId quadrant = add(shr(p0, 62), convert(is_upper, DType::kU64));
  // Fractions from one half on count back from the next quadrant: two's complement of 128 bits.
  const ValueId g1 = select(is_upper, sub(c(0), f1), f1);
  const ValueId inverted =
      add(raw(Op::kNot, DType::kU64, {f0}), convert(eq(f1, c(0)), DType::kU64));
  const ValueId g0 = select(is_upper, inverted, f0);
  const auto part = [&](ValueId v, double scale) {
    return mul(convert(bitcast(v, DType::kI64), DType::kF64), constant_f(kF64, scale));
  };
  const ValueId mask = c(0xffffffff);
  const ValueId d0 = part(shr(g0, 32), 0x1p-32), d1 = part(bit_and(g0, mask), 0x1p-64);
  const ValueId d2 = part(shr(g1, 32), 0x1p-96), d3 = part(bit_and(g1, mask), 0x1p-128);
  const ValueId h = add(d0, d1);
  const ValueId l = add(add(sub(d1, sub(h, d0)), d2), d3);
  const ValueId high = add(h, l), low = add(sub(h, high), l);
  const ValueId half_pi = constant_f(kF64, 0x1.921fb54442d18p+0),
                half_pi_low = constant_f(kF64, 0x1.1a62633145c07p-54);
  const ValueId r = mul(high, half_pi);
  const ValueId r_low =
      add(fma(high, half_pi, neg(r)), add(mul(high, half_pi_low), mul(low, half_pi)));
  const ValueId sum = add(r, r_low);
  const ValueId sum_low = add(sub(r, sum), r_low);
  Reduced reduced{.high = select(is_upper, neg(sum), sum),
                  .low = select(is_upper, neg(sum_low), sum_low),
                  .quadrant = bitcast(quadrant, DType::kI64)};
  const ValueId result = sine_from(reduced, false);
  large_sine_ = static_cast<uint32_t>(program_.functions.size());
  program_.functions.push_back(
      {.name = "sin_large", .arguments = {kF64}, .body = root_, .result = result});
  root_ = outer_root;
  set_floor(outer_floor);
  return large_sine_;
}

/// sin of float32 without float64: the argument times 128 digits of 2/π in integers, whatever its
/// size; below 3/4 no reduction is needed.
ValueId Builder::sine_f32(ValueId x) {
  if (two_over_pi_ == kNone) {
    two_over_pi_ = static_cast<uint32_t>(program_.tables.size());
    program_.tables.emplace_back(kTwoOverPi.begin(), kTwoOverPi.end());
  }
  const auto c = [&](int64_t v) { return constant({DType::kU64, 1}, v); };
  const ValueId bits = bitcast(x, DType::kU32);
  const ValueId sign = bit_and(bits, like_int(bits, int64_t{1} << 31));
  const ValueId magnitude = bit_xor(bits, sign);
  const ValueId ax = bitcast(magnitude, DType::kF32);
  const ValueId is_small = lt(ax, like(ax, 0.75)), is_finite = lt(ax, like(ax, HUGE_VAL));
  // Arguments that take another way are replaced by one that stays inside the table.
  const ValueId is_reduced = bit_and(is_finite, raw(Op::kNot, DType::kBool, {is_small}));
  const ValueId word_bits =
      convert(select(is_reduced, magnitude, like_int(bits, 0x3f800000)), DType::kU64);
  const ValueId m = bit_or(bit_and(word_bits, c(0x7fffff)), c(0x800000));
  // First digit to use: exponent - 150 - 2 + 64 zero bits in front.
  const ValueId start = sub(shr(word_bits, 23), c(150 + 2 - 64));
  const ValueId word = shr(start, 6), bit = bit_and(start, c(63)), rest = sub(c(63), bit);
  const auto digits = [&](int k) {
    const auto entry = [&](int j) {
      return table(two_over_pi_, bitcast(add(word, c(j)), DType::kI64));
    };
    const ValueId high = raw(Op::kShl, DType::kU64, {entry(k), bit});
    return bit_or(high, raw(Op::kShr, DType::kU64, {shr(entry(k + 1), 1), rest}));
  };
  const ValueId a0 = digits(0), a1 = digits(1);
  // m·A modulo 2^128: top two bits are the quadrant, the rest its fraction.
  const ValueId p1 = mul(m, a1);
  const ValueId above =
      shr(add(mul(m, shr(a1, 32)), shr(mul(m, bit_and(a1, c(0xffffffff))), 32)), 32);
  const ValueId p0 = add(mul(m, a0), above);
  const ValueId fraction = bit_or(shl(p0, 2), shr(p1, 62));
  const ValueId is_upper = ne(shr(fraction, 63), c(0));
  const ValueId quadrant = add(shr(p0, 62), convert(is_upper, DType::kU64));
  const ValueId distance = select(is_upper, sub(c(0), fraction), fraction);
  const ValueId h = convert(distance, DType::kF32);
  const ValueId left = bitcast(sub(distance, convert(h, DType::kU64)), DType::kI64);
  const ValueId high = mul(h, like(x, 0x1p-64));
  const ValueId low = mul(convert(left, DType::kF32), like(x, 0x1p-64));
  const ValueId half_pi = like(x, 0x1.921fb6p+0), half_pi_low = like(x, -0x1.777a5cp-25);
  const ValueId r = mul(high, half_pi);
  const ValueId r_low =
      add(fma(high, half_pi, neg(r)), add(mul(high, half_pi_low), mul(low, half_pi)));
  const ValueId sum = add(r, r_low);
  const ValueId sum_low = add(sub(r, sum), r_low);
  const ValueId zero = like(x, 0);
  const ValueId rotated = bitcast(convert(quadrant, DType::kU32), DType::kI32);
  const Reduced reduced{.high = select(is_reduced, select(is_upper, neg(sum), sum), ax),
                        .low = select(is_reduced, select(is_upper, neg(sum_low), sum_low), zero),
                        .quadrant = select(is_reduced, rotated, constant({DType::kI32, 1}, 0))};
  const ValueId result = bitcast(sine_from(reduced, true), DType::kU32);
  return select(is_finite, bitcast(bit_xor(result, sign), DType::kF32), like(x, std::nan("")));
}

/// Remainder of finite x >= y > 0 by long division of the significands, eleven bits at a time.
/// `t`: float64, or float32 where there is no float64.
uint32_t Builder::fmod_function(DType t) {
  if (fmod_ != kNone) return fmod_;
  const bool is_f32 = t == DType::kF32;
  const DType u = is_f32 ? DType::kU32 : DType::kU64, s = is_f32 ? DType::kI32 : DType::kI64;
  const int fraction_bits = is_f32 ? 23 : 52, bias = is_f32 ? 127 : 1023;
  const BlockId outer_root = root_, outer_floor = set_floor(kNone);
  program_.blocks.push_back({});
  root_ = static_cast<BlockId>(program_.blocks.size() - 1);
  const auto c = [&](int64_t v) { return constant({DType::kU64, 1}, v); };
  struct Parts {
    ValueId significand, exponent;
  };
  const auto decode = [&](int number) {
    const ValueId bits = convert(bitcast(argument({t, 1}, number), u), DType::kU64);
    const ValueId fraction = bit_and(bits, c((int64_t{1} << fraction_bits) - 1));
    const ValueId e = shr(bits, fraction_bits);
    const ValueId is_subnormal = eq(e, c(0));
    return Parts{select(is_subnormal, fraction, bit_or(fraction, c(int64_t{1} << fraction_bits))),
                 select(is_subnormal, c(1), e)};
  };
  const Parts x = decode(0), y = decode(1);
  const auto mod = [&](ValueId a) { return raw(Op::kMod, DType::kU64, {a, y.significand}); };
  const ValueId distance = sub(x.exponent, y.exponent);
  const uint32_t reg = add_register({DType::kU64, 1});
  assign(root_, reg, mod(x.significand));
  const ValueId steps = bitcast(raw(Op::kDiv, DType::kU64, {distance, c(11)}), DType::kI64);
  const ValueId rest = raw(Op::kMod, DType::kU64, {distance, c(11)});
  const Loop loop = open_loop(root_);
  assign(loop.body, reg, mod(shl(read(loop.body, reg), 11)));
  close_loop(loop, index(0), steps, 1);
  const ValueId r = mod(raw(Op::kShl, DType::kU64, {read(root_, reg), rest}));
  // r·2^(exponent - bias - fraction bits) in two exact steps.
  const ValueId power = bitcast(sub(y.exponent, c(bias + fraction_bits)), DType::kI64);
  const ValueId k0 = shr(power, 1), k1 = sub(power, k0);
  const auto scale = [&](ValueId k) {
    return bitcast(convert(shl(add(k, like_int(k, bias)), fraction_bits), s), t);
  };
  const ValueId result = mul(mul(convert(bitcast(r, DType::kI64), t), scale(k0)), scale(k1));
  fmod_ = static_cast<uint32_t>(program_.functions.size());
  program_.functions.push_back(
      {.name = "fmod_large", .arguments = {{t, 1}, {t, 1}}, .body = root_, .result = result});
  root_ = outer_root;
  set_floor(outer_floor);
  return fmod_;
}

}  // namespace bm::compiler
