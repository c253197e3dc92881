// WMMA: D = A·B + C on 16 x 16 tiles. Sums are formed in binary64 from exact products and rounded
// once; hardware's order of additions is not published.
//
// Register layouts, RDNA3 (wave32): A and B hold a row (a column) of 16 values in lane % 16, both
// halves of the wave the same; element i of C and D is row 2 i + lane / 16, column lane % 16.
// RDNA4: nothing is held twice; lane / 16 chooses the half of K in A and B and rows 8 … 15 of C and
// D. wave64 on RDNA3 spreads rows over four groups: 4 i + lane / 16. Sources: RDNA3 and RDNA4 ISA
// guides, chapter on WMMA.

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

using U32 = uint32_t;

enum class Kind : uint8_t { kF16, kBF16, kI8, kI4, kFp8, kBf8 };
constexpr uint32_t bits_of(Kind k) {
  return k == Kind::kF16 || k == Kind::kBF16 ? 16 : k == Kind::kI4 ? 4 : 8;
}

double decode(Kind kind, U32 raw, bool is_signed) {
  switch (kind) {
    case Kind::kF16: return f16_to_f32(static_cast<uint16_t>(raw));
    case Kind::kBF16: return bf16_to_f32(static_cast<uint16_t>(raw));
    case Kind::kI8: return is_signed ? static_cast<int8_t>(raw) : static_cast<int>(raw);
    case Kind::kI4: return is_signed ? static_cast<int>(raw << 28) >> 28 : static_cast<int>(raw);
    case Kind::kFp8: return fp8_to_f32(static_cast<uint8_t>(raw));
    case Kind::kBf8: return bf8_to_f32(static_cast<uint8_t>(raw));
  }
  return 0;
}

/// matrix[line][k]: rows of A or columns of B.
template <Kind K, uint32_t Depth>
void load_lines(Wave& w, const Step& in, uint32_t source, double (*matrix)[Depth]) {
  constexpr uint32_t kBits = bits_of(K), kPerDword = 32 / kBits;
  const bool split = w.isa == Isa::kGfx12;
  const uint32_t groups = split ? w.lanes / 16 : 1, each = Depth / groups;
  const Slot& slot = in.src[source];
  const bool is_signed = in.neg >> source & 1;
  const bool is_float = K == Kind::kF16 || K == Kind::kBF16;
  for (uint32_t lane = 0; lane < 16 * groups; ++lane)
    for (uint32_t e = 0; e < each; ++e) {
      const U32 dword = slot.is_vgpr() ? w.reg(slot.code - kVgpr + e / kPerDword)[lane] : 0;
      const U32 raw = dword >> (kBits * (e % kPerDword)) & ((uint64_t{1} << kBits) - 1);
      double v = decode(K, raw, is_signed);
      // neg and neg_hi negate the lower and upper of each pair of halves.
      if (is_float && (e & 1 ? in.neg_hi : in.neg) >> source & 1) v = -v;
      matrix[lane & 15][(lane / 16) * each + e] = v;
    }
}

/// Row of element `i` of C and D in `lane`.
uint32_t row_of(const Wave& w, uint32_t i, uint32_t lane) {
  if (w.isa == Isa::kGfx12) return w.lanes == 64 ? i + 4 * (lane / 16) : i + 8 * (lane / 16);
  return i * (w.lanes / 16) + lane / 16;
}

enum class Sum : uint8_t { kF32, kF16, kBF16, kI32 };

/// 16-bit results: RDNA3 keeps one a register, in the half op_sel[2] names; RDNA4 packs two.
struct Place16 {
  uint32_t reg, shift;
};
Place16 place16(const Wave& w, const Step& in, uint32_t i) {
  if (w.isa == Isa::kGfx12) return {i / 2, 16 * (i & 1)};
  return {i, in.op_sel & 4 ? 16u : 0u};
}

template <Sum S>
double addend(Wave& w, const Step& in, uint32_t i, uint32_t lane) {
  const Slot& c = in.src[2];
  constexpr bool k16 = S == Sum::kF16 || S == Sum::kBF16;
  U32 bits = 0;
  if (c.is_vgpr()) {
    const Place16 p = k16 ? place16(w, in, i) : Place16{i, 0};
    bits = w.reg(c.code - kVgpr + p.reg)[lane] >> p.shift;
  } else {
    bits = w.read32(c.code, in.literal, S == Sum::kF16 ? 'h' : '1');
    if (S == Sum::kBF16 && c.code >= 240 && c.code <= 248) bits >>= 16;
  }
  if constexpr (S == Sum::kI32) return static_cast<int32_t>(bits);
  double v = S == Sum::kF32   ? double{std::bit_cast<float>(bits)}
             : S == Sum::kF16 ? double{f16_to_f32(static_cast<uint16_t>(bits))}
                              : double{bf16_to_f32(static_cast<uint16_t>(bits))};
  if (in.neg_hi & 4) v = std::fabs(v);
  if (in.neg & 4) v = -v;
  return v;
}

template <Kind A, Kind B, Sum S, uint32_t Depth>
void wmma(Wave& w, const Step& in) {
  if (w.exec() != w.all_lanes()) {
    // All lanes must be on; what hardware does otherwise is undefined.
    return w.fail(Fault::Kind::kIllegalOpcode);
  }
  w.honored |= S == Sum::kI32 ? modifier::kNeg * 3 : (modifier::kNeg | modifier::kNegHi) * 7;
  if (S == Sum::kI32) w.honored |= modifier::kClamp;
  if (w.isa != Isa::kGfx12 && (S == Sum::kF16 || S == Sum::kBF16))
    w.honored |= modifier::kOpSel * 4;
  double a[16][Depth], b[16][Depth];
  load_lines<A, Depth>(w, in, 0, a);
  load_lines<B, Depth>(w, in, 1, b);
  const uint32_t elements = 256 / w.lanes;
  U32 out[16][kMaxLanes];
  for (uint32_t lane = 0; lane < w.lanes; ++lane)
    for (uint32_t i = 0; i < elements; ++i) {
      const double* row = a[row_of(w, i, lane)];
      const double* column = b[lane & 15];
      double sum = addend<S>(w, in, i, lane);
      for (uint32_t k = 0; k < Depth; ++k) sum += row[k] * column[k];
      if constexpr (S == Sum::kI32) {
        auto value = static_cast<int64_t>(sum);
        if (in.clamp) value = std::clamp<int64_t>(value, INT32_MIN, INT32_MAX);
        out[i][lane] = static_cast<U32>(value);
      } else if constexpr (S == Sum::kF32) {
        out[i][lane] = std::bit_cast<U32>(static_cast<float>(sum));
      } else if constexpr (S == Sum::kF16) {
        out[i][lane] = f64_to_f16(sum);
      } else {
        out[i][lane] = f32_to_bf16(static_cast<float>(sum));
      }
    }
  constexpr bool k16 = S == Sum::kF16 || S == Sum::kBF16;
  for (uint32_t i = 0; i < elements; ++i) {
    const Place16 p = k16 ? place16(w, in, i) : Place16{i, 0};
    U32* d = w.reg(in.dst.code - kVgpr + p.reg);
    for (uint32_t lane = 0; lane < w.lanes; ++lane)
      d[lane] = k16 ? (d[lane] & ~(0xffffu << p.shift)) | out[i][lane] << p.shift : out[i][lane];
  }
}

constexpr Semantics kMatrixOps[] = {
    {"v_wmma_f32_16x16x16_f16", wmma<Kind::kF16, Kind::kF16, Sum::kF32, 16>},
    {"v_wmma_f32_16x16x16_bf16", wmma<Kind::kBF16, Kind::kBF16, Sum::kF32, 16>},
    {"v_wmma_f16_16x16x16_f16", wmma<Kind::kF16, Kind::kF16, Sum::kF16, 16>},
    {"v_wmma_bf16_16x16x16_bf16", wmma<Kind::kBF16, Kind::kBF16, Sum::kBF16, 16>},
    {"v_wmma_i32_16x16x16_iu8", wmma<Kind::kI8, Kind::kI8, Sum::kI32, 16>},
    {"v_wmma_i32_16x16x16_iu4", wmma<Kind::kI4, Kind::kI4, Sum::kI32, 16>},
    {"v_wmma_i32_16x16x32_iu4", wmma<Kind::kI4, Kind::kI4, Sum::kI32, 32>},
    {"v_wmma_f32_16x16x16_fp8_fp8", wmma<Kind::kFp8, Kind::kFp8, Sum::kF32, 16>},
    {"v_wmma_f32_16x16x16_fp8_bf8", wmma<Kind::kFp8, Kind::kBf8, Sum::kF32, 16>},
    {"v_wmma_f32_16x16x16_bf8_fp8", wmma<Kind::kBf8, Kind::kFp8, Sum::kF32, 16>},
    {"v_wmma_f32_16x16x16_bf8_bf8", wmma<Kind::kBf8, Kind::kBf8, Sum::kF32, 16>},
};

}  // namespace

std::span<const Semantics> matrix_ops() { return kMatrixOps; }

}  // namespace bm::sim::amd
