// Int8 dot products: the target's instructions (dp4a, VNNI), and arithmetic where it has none.
#include "compiler/program/dot.h"

#include "compiler/program/builder.h"

namespace bm::compiler {

ValueId Builder::dot(DotKind kind, ValueId acc, ValueId a, ValueId b) {
  const Type t = type(acc);
  if (!target_.has_dot(kind, t.lanes)) return plain_dot(kind, acc, a, b);
  return intern({.op = ValueOp::kDot,
                 .alu = Op::kConst,
                 .type = t,
                 .imm = static_cast<int64_t>(kind),
                 .args = {acc, a, b}});
}

ValueId Builder::plain_dot(DotKind kind, ValueId acc, ValueId a, ValueId b) {
  // Number `i` of `bits` in signed or unsigned words, as int32.
  const auto field = [&](ValueId v, uint32_t i, uint32_t bits, bool is_signed) {
    const uint32_t up = 32 - bits * (i + 1), down = 32 - bits;
    const ValueId top = up ? shl(v, up) : v;
    if (!is_signed) return bitcast(shr(top, down), DType::kI32);
    return shr(bitcast(top, DType::kI32), down);
  };
  switch (kind) {
    case DotKind::kU8S8: {
      const uint32_t lanes = type(acc).lanes;
      if (target_.has_dot(DotKind::kS8S8, lanes)) {
        // u = (u - 128) + 128, and u - 128 has the bits of u with the highest one turned over.
        const ValueId least = constant({DType::kU32, lanes}, 0x80808080);
        const ValueId excess = dot(DotKind::kS8S8, like_int(acc, 0), least, b);
        return sub(dot(DotKind::kS8S8, acc, bit_xor(a, least), b), excess);
      }
      // Even and odd bytes as int16: two products of pairs, where there is an instruction for them.
      if (!target_.has_dot(DotKind::kS16S16, lanes)) {
        for (uint32_t i = 0; i < 4; ++i)
          acc = add(acc, mul(field(a, i, 8, false), field(b, i, 8, true)));
        return acc;
      }
      // Two bytes in 16 bits each get their signs; no half borrows from the other.
      const auto sign_halves = [&](ValueId v) {
        const ValueId low = bit_and(v, like_int(v, 0x00ff00ff));
        const ValueId moved = sub(bit_xor(low, like_int(v, 0x80808080)), like_int(v, 0x00800080));
        return bit_xor(moved, like_int(v, 0x80008000));
      };
      const ValueId even_a = bit_and(a, like_int(a, 0x00ff00ff));
      const ValueId odd_a = bit_and(shr(a, 8), like_int(a, 0x00ff00ff));
      const ValueId even_b = sign_halves(b), odd_b = sign_halves(shr(b, 8));
      return dot(DotKind::kS16S16, dot(DotKind::kS16S16, acc, even_a, even_b), odd_a, odd_b);
    }
    case DotKind::kS8S8:
      for (uint32_t i = 0; i < 4; ++i)
        acc = add(acc, mul(field(a, i, 8, true), field(b, i, 8, true)));
      return acc;
    case DotKind::kS16S16:
      for (uint32_t i = 0; i < 2; ++i)
        acc = add(acc, mul(field(a, i, 16, true), field(b, i, 16, true)));
      return acc;
    case DotKind::kBF16BF16: {
      const auto upper = [&](ValueId v) {
        return bitcast(bit_and(v, like_int(v, 0xffff0000)), DType::kF32);
      };
      const auto lower = [&](ValueId v) { return bitcast(shl(v, 16), DType::kF32); };
      const ValueId high_a = upper(a), high_b = upper(b);
      const ValueId first = mad(high_a, high_b, acc);
      const ValueId low_a = lower(a), low_b = lower(b);
      return mad(low_a, low_b, first);
    }
  }
  __builtin_unreachable();
}

}  // namespace bm::compiler
