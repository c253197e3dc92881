// mma.sync: fragments as the PTX manual lays them out, products summed in k order in the type of
// the accumulator. Hardware sums in an order and with a width of its own: compare with a tolerance.
//
// One rule covers every shape used: of a 32-bit (f64: 64-bit) register r of A with E elements, lane
// 4g+t holds row g + 8 (r mod 2), columns 4E (r div 2) + E t …; of B, rows 4E r + E t …, column g.
#include <algorithm>
#include <cmath>

#include "tests/sim/ptx/dispatch.h"
#include "tests/sim/ptx/formats.h"
#include "tests/sim/ptx/warps.h"

namespace bm::sim::ptx {
namespace {

uint32_t bits_of_element(Type t) { return 8 * type_bytes(t); }

/// Element e of a register as a number; integers too: all are exact in double.
double element(uint32_t bits, uint32_t e, Type t) {
  switch (t) {
    case Type::kF16: return f16_to_f32(static_cast<uint16_t>(bits >> (16 * e)));
    case Type::kBF16: return bf16_to_f32(static_cast<uint16_t>(bits >> (16 * e)));
    // The low 13 bits are ignored by the tensor core.
    case Type::kTF32: return std::bit_cast<float>(bits & 0xffffe000u);
    case Type::kS8: return static_cast<int8_t>(bits >> (8 * e));
    case Type::kU8: return static_cast<uint8_t>(bits >> (8 * e));
    case Type::kE4M3: return decode_e4m3(static_cast<uint8_t>(bits >> (8 * e)));
    case Type::kE5M2: return decode_e5m2(static_cast<uint8_t>(bits >> (8 * e)));
    default: return 0;
  }
}

constexpr uint32_t kMaxM = 16, kMaxN = 8, kMaxK = 32;

struct Tile {
  double a[kMaxM][kMaxK];
  double b[kMaxK][kMaxN];
};

/// What Inst::imm says.
struct Layout {
  uint32_t k = 0, rows = 0;      ///< k and m of the shape
  uint32_t d = 0, a = 0, b = 0;  ///< registers of each in Inst::op, C after them
  Type ta = Type::kNone, tb = Type::kNone;
  bool saturate = false;

  uint64_t pack() const {
    return k | (rows << 8) | (d << 16) | (a << 20) | (b << 24) | (static_cast<uint64_t>(ta) << 32) |
           (static_cast<uint64_t>(tb) << 40) | (uint64_t{saturate} << 48);
  }
  static Layout unpack(uint64_t v) {
    const auto field = [v](int at, uint64_t mask) {
      return static_cast<uint32_t>((v >> at) & mask);
    };
    return {field(0, 255),
            field(8, 255),
            field(16, 15),
            field(20, 15),
            field(24, 15),
            static_cast<Type>(field(32, 255)),
            static_cast<Type>(field(40, 255)),
            field(48, 1) != 0};
  }
};

template <class Sum>
Sum multiply_add(Sum sum, double a, double b) {
  if constexpr (std::is_same_v<Sum, double>)
    return std::fma(a, b, sum);
  else if constexpr (std::is_same_v<Sum, float>)
    return sum + static_cast<float>(a) * static_cast<float>(b);
  else
    return sum + static_cast<int64_t>(a) * static_cast<int64_t>(b);
}

void load_tile(const Exec& x, const Inst& in, const Layout& l, uint32_t first, Tile& tile) {
  const bool is_f64 = l.ta == Type::kF64;
  const uint32_t each = is_f64 ? 1 : 32 / bits_of_element(l.ta);
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    const uint32_t g = lane / 4, t = lane % 4;
    const auto value = [&](uint32_t op, uint32_t e, Type type) {
      if (is_f64) return x.reg<double>(op)[first + lane];
      return element(x.reg<uint32_t>(op)[first + lane], e, type);
    };
    for (uint32_t r = 0; r < l.a; ++r)
      for (uint32_t e = 0; e < each; ++e) {
        const uint32_t row = l.rows == 8 ? g : g + 8 * (r % 2);
        const uint32_t step = l.rows == 8 ? r : r / 2;
        tile.a[row][4 * each * step + each * t + e] = value(in.op[l.d + r], e, l.ta);
      }
    for (uint32_t r = 0; r < l.b; ++r)
      for (uint32_t e = 0; e < each; ++e)
        tile.b[4 * each * r + each * t + e][g] = value(in.op[l.d + l.a + r], e, l.tb);
  }
}

/// Sum: the accumulator's arithmetic; Bits: what holds one element of it (uint16_t: two a
/// register).
template <class Sum, class Bits>
void multiply(Exec& x, const Inst& in) {
  if (!need_whole_warps(x, in)) return;
  constexpr uint32_t kPacked = sizeof(Bits) == 2 ? 2 : 1;
  const Layout l = Layout::unpack(in.imm);
  const uint32_t* c_op = in.op + l.d + l.a + l.b;
  each_warp(x, [&](uint32_t first, std::span<const uint16_t>) {
    Tile tile;
    load_tile(x, in, l, first, tile);
    for (uint32_t lane = first; lane < first + kWarp; ++lane) {
      const uint32_t g = lane % kWarp / 4, t = lane % 4, n = l.rows / 4;
      Sum sums[4] = {};
      for (uint32_t i = 0; i < n; ++i) {
        if constexpr (kPacked == 2)
          sums[i] = f16_to_f32(
              static_cast<uint16_t>(x.reg<uint32_t>(c_op[i / 2])[lane] >> (16 * (i % 2))));
        else
          sums[i] = static_cast<Sum>(x.reg<Bits>(c_op[i])[lane]);
        for (uint32_t k = 0; k < l.k; ++k)
          sums[i] = multiply_add(sums[i], tile.a[g + 8 * (i / 2)][k], tile.b[k][t * 2 + i % 2]);
      }
      for (uint32_t i = 0; i < n; i += kPacked) {
        if constexpr (kPacked == 2) {
          x.reg<uint32_t>(in.op[i / 2])[lane] =
              f32_to_f16(sums[i]) | (uint32_t{f32_to_f16(sums[i + 1])} << 16);
        } else if constexpr (std::is_integral_v<Sum>) {
          if (l.saturate) sums[i] = std::clamp<Sum>(sums[i], INT32_MIN, INT32_MAX);
          x.reg<Bits>(in.op[i])[lane] = static_cast<Bits>(static_cast<uint64_t>(sums[i]));
        } else {
          x.reg<Bits>(in.op[i])[lane] = sums[i];
        }
      }
    }
  });
}

struct ShapeRow {
  std::string_view name;
  uint32_t m, k;
};
constexpr ShapeRow kShapes[] = {{".m16n8k4", 16, 4},   {".m16n8k8", 16, 8}, {".m16n8k16", 16, 16},
                                {".m16n8k32", 16, 32}, {".m8n8k4", 8, 4},   {".m8n8k16", 8, 16}};

bool is_byte(Type t) { return t == Type::kS8 || t == Type::kU8; }
bool is_fp8(Type t) { return t == Type::kE4M3 || t == Type::kE5M2; }

/// The combinations PTX has.
bool is_known(const ShapeRow& s, Type d, Type a, Type b) {
  if (a == Type::kF64) return d == a && b == a && (s.m == 8 ? s.k == 4 : s.k <= 16);
  if (a == Type::kTF32) return d == Type::kF32 && b == a && s.m == 16 && s.k <= 8;
  if (a == Type::kBF16) return d == Type::kF32 && b == a && s.m == 16 && (s.k == 8 || s.k == 16);
  if (a == Type::kF16)
    return (d == Type::kF32 || d == Type::kF16) && b == a && s.m == 16 && (s.k == 8 || s.k == 16);
  if (is_byte(a)) return d == Type::kS32 && is_byte(b) && s.k >= 16;
  return is_fp8(a) && is_fp8(b) && s.m == 16 && s.k >= 16 && (d == Type::kF32 || d == Type::kF16);
}

Handler pick(Type d) {
  if (d == Type::kF32) return &multiply<float, float>;
  if (d == Type::kF64) return &multiply<double, double>;
  if (d == Type::kF16) return &multiply<float, uint16_t>;
  return &multiply<int64_t, int32_t>;
}

/// Types of the registers that hold a fragment.
Type register_type(Type t) {
  if (t == Type::kF64 || t == Type::kF32 || t == Type::kS32) return t;
  return Type::kB32;
}
Status take_registers(Builder& b, size_t i, Type t, size_t count, bool is_output,
                      std::vector<uint32_t>& out) {
  const Operand& o = b.operand(i);
  const std::vector<Operand> one{o};
  const auto& list = o.kind == Operand::Kind::kVector ? o.elements : one;
  if (list.size() != count)
    return b.error(fmt::format("fragment of {} registers where {} belong", list.size(), count));
  for (const Operand& r : list)
    out.push_back(is_output ? BM_TRY(b.out(r, register_type(t)))
                            : BM_TRY(b.in(r, register_type(t))));
  return {};
}

Status lower_mma(Builder& b) {
  if (!b.has(".sync") || !b.has(".aligned")) return b.unknown_form();
  const ShapeRow* shape = nullptr;
  for (const ShapeRow& row : kShapes)
    if (!shape && b.has(row.name)) shape = &row;
  if (!shape || !b.has(".row") || !b.has(".col")) return b.unknown_form();
  b.has(".kind::f8f6f4");
  Layout l;
  l.saturate = b.has(".satfinite");
  const Type d = b.next_type();
  l.ta = b.next_type();
  l.tb = b.next_type();
  if (b.next_type() != d || !is_known(*shape, d, l.ta, l.tb)) return b.unknown_form();
  BM_TRY(b.expect_operands(4, 4));
  l.k = shape->k;
  l.rows = shape->m;
  const uint32_t per_register = l.ta == Type::kF64 ? 1 : 32 / bits_of_element(l.ta);
  l.d = (l.rows / 4) / (d == Type::kF16 ? 2 : 1);
  l.b = l.k / (4 * per_register);
  l.a = l.b * (l.rows / 8);
  std::vector<uint32_t> op;
  BM_TRY(take_registers(b, 0, d, l.d, true, op));
  BM_TRY(take_registers(b, 1, l.ta, l.a, false, op));
  BM_TRY(take_registers(b, 2, l.tb, l.b, false, op));
  BM_TRY(take_registers(b, 3, d, l.d, false, op));
  op.push_back(b.constant(~0u, 4));
  Inst& in = b.emit(pick(d), {}, Flow::kWarpPlain);
  std::copy(op.begin(), op.end(), in.op);
  in.mask_op = static_cast<uint8_t>(op.size() - 1);
  in.imm = l.pack();
  return {};
}

constexpr Operation kMatrixOperations[] = {{"mma", &lower_mma}};

}  // namespace

std::span<const Operation> matrix_operations() { return kMatrixOperations; }

}  // namespace bm::sim::ptx
