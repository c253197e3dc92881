// MFMA: D = A·B + C on tiles of 4 x 4, 16 x 16 and 32 x 32, one or more of them (blocks), and moves
// between VGPRs and AccVGPRs. EXEC is not asked.
//
// 16-bit floats and integers: sums are formed in binary64 from exact products and rounded once.
// float32 and float64: a chain of fused operations along K. Hardware's order of additions is not
// published; whoever compares allows for it.
//
// Register layouts, lane l of 64: A has row l % M, B column l % N; then come the blocks, then parts
// of K, of which a lane holds consecutive elements. D and C have column l % N; rows come in fours,
// four to a lane, lane groups one after another (doubles: one row to a lane, then the next
// group's). Sources: AMD CDNA3 ISA guide, "Matrix Arithmetic Instructions"; AMD's Matrix
// Instruction Calculator says the same (compared element by element, 28 November 2026).

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

using U32 = uint32_t;

enum class Element : uint8_t { kF16, kBF16, kI8, kF32, kF64 };
constexpr U32 bits_of(Element e) {
  return e == Element::kF64 ? 64 : e == Element::kF32 ? 32 : e == Element::kI8 ? 8 : 16;
}

template <Element E>
double element_at(const U32* reg, U32 lanes, U32 lane, U32 e) {
  if constexpr (E == Element::kF64) {
    const uint64_t low = reg[(2 * e) * lanes + lane], high = reg[(2 * e + 1) * lanes + lane];
    return std::bit_cast<double>(high << 32 | low);
  } else {
    constexpr U32 kBits = bits_of(E), kEach = 32 / kBits;
    const U32 raw = reg[(e / kEach) * lanes + lane] >> (kBits * (e % kEach));
    if constexpr (E == Element::kF16) return f16_to_f32(static_cast<uint16_t>(raw));
    if constexpr (E == Element::kBF16) return bf16_to_f32(static_cast<uint16_t>(raw));
    if constexpr (E == Element::kI8) return static_cast<int8_t>(raw);
    if constexpr (E == Element::kF32) return std::bit_cast<float>(raw);
  }
}

/// Tiles of `Side` x `Side`, `Depth` deep, `Blocks` of them at once.
template <Element E, U32 Side, U32 Depth, U32 Blocks>
struct Mfma {
  static constexpr U32 kLanes = 64;
  static constexpr bool kIsDouble = E == Element::kF64;
  static constexpr U32 kParts = kLanes / (Side * Blocks) ? kLanes / (Side * Blocks) : 1;
  static constexpr U32 kEach = Depth / kParts;                    ///< elements of A and B in a lane
  static constexpr U32 kResults = Side * Side * Blocks / kLanes;  ///< elements of D in a lane

  struct Place {
    U32 block, row, column;
  };
  static Place place(U32 lane, U32 r) {
    const U32 column = lane % Side, group = lane / Side;
    if constexpr (kIsDouble) return {lane / Side % Blocks, 4 * r + lane / 16, column};
    if constexpr (Side == 4) return {group, r, column};
    constexpr U32 kGroups = kLanes / Side, kOfBlock = Side / kGroups;
    const U32 at = r % kOfBlock;
    return {r / kOfBlock, 4 * kGroups * (at / 4) + 4 * group + at % 4, column};
  }

  static void load(const U32* reg, double (*matrix)[Side][Depth]) {
    for (U32 lane = 0; lane < kLanes; ++lane)
      for (U32 e = 0; e < kEach; ++e)
        matrix[lane / Side % Blocks][lane % Side][lane / (Side * Blocks) * kEach + e] =
            element_at<E>(reg, kLanes, lane, e);
  }

  static void run(Wave& w, const Step& in) {
    // Product of doubles: signs of A, B and C where others choose lanes of B.
    const bool has_signs = kIsDouble && !in.cbsz && !in.abid;
    if (has_signs) w.honored |= modifier::kBroadcast;
    if (w.lanes != kLanes) return w.fail(Fault::Kind::kIllegalOpcode);
    double a[Blocks][Side][Depth], b[Blocks][Side][Depth];
    load(w.reg(in.src[0].code - kVgpr), a);
    load(w.reg(in.src[1].code - kVgpr), b);
    const Slot& c = in.src[2];
    constexpr U32 kWords = kIsDouble ? 2 : 1;
    U32 out[kResults * kWords][kLanes];
    for (U32 lane = 0; lane < kLanes; ++lane)
      for (U32 r = 0; r < kResults; ++r) {
        const Place p = place(lane, r);
        const double* row = a[p.block][p.row];
        const double* column = b[p.block][p.column];
        if constexpr (kIsDouble) {
          double sum = c.is_vgpr() ? element_at<E>(w.reg(c.code - kVgpr), kLanes, lane, r)
                                   : std::bit_cast<double>(w.read64(c.code, in.literal, false));
          if (in.blgp & 4) sum = -sum;
          const double sign = ((in.blgp & 1) != 0) != ((in.blgp & 2) != 0) ? -1.0 : 1.0;
          for (U32 k = 0; k < Depth; ++k) sum = std::fma(sign * row[k], column[k], sum);
          const auto bits = std::bit_cast<uint64_t>(sum);
          out[2 * r][lane] = static_cast<U32>(bits);
          out[2 * r + 1][lane] = static_cast<U32>(bits >> 32);
        } else {
          const U32 old =
              c.is_vgpr() ? w.reg(c.code - kVgpr + r)[lane] : w.read32(c.code, in.literal, '1');
          if constexpr (E == Element::kI8) {
            double sum = static_cast<int32_t>(old);
            for (U32 k = 0; k < Depth; ++k) sum += row[k] * column[k];
            out[r][lane] = static_cast<U32>(static_cast<int64_t>(sum));
          } else if constexpr (E == Element::kF32) {
            float sum = std::bit_cast<float>(old);
            for (U32 k = 0; k < Depth; ++k)
              sum = std::fma(static_cast<float>(row[k]), static_cast<float>(column[k]), sum);
            out[r][lane] = std::bit_cast<U32>(sum);
          } else {
            double sum = std::bit_cast<float>(old);
            for (U32 k = 0; k < Depth; ++k) sum += row[k] * column[k];
            out[r][lane] = std::bit_cast<U32>(static_cast<float>(sum));
          }
        }
      }
    for (U32 i = 0; i < kResults * kWords; ++i)
      std::copy_n(out[i], kLanes, w.reg(in.dst.code - kVgpr + i));
  }
};

void move_whole(Wave& w, const Step& in) {
  U32* d = w.reg(in.dst.code - kVgpr);
  each_lane(w.exec(), [&](U32 l) {
    d[l] = in.src[0].is_vgpr() ? w.reg(in.src[0].code - kVgpr)[l] : w.in32(in, 0);
  });
}

constexpr Semantics kMfmaOps[] = {
    {"v_mfma_f32_32x32x4_2b_f16", Mfma<Element::kF16, 32, 4, 2>::run},
    {"v_mfma_f32_16x16x4_4b_f16", Mfma<Element::kF16, 16, 4, 4>::run},
    {"v_mfma_f32_4x4x4_16b_f16", Mfma<Element::kF16, 4, 4, 16>::run},
    {"v_mfma_f32_32x32x8_f16", Mfma<Element::kF16, 32, 8, 1>::run},
    {"v_mfma_f32_16x16x16_f16", Mfma<Element::kF16, 16, 16, 1>::run},
    {"v_mfma_f32_32x32x4_2b_bf16", Mfma<Element::kBF16, 32, 4, 2>::run},
    {"v_mfma_f32_16x16x4_4b_bf16", Mfma<Element::kBF16, 16, 4, 4>::run},
    {"v_mfma_f32_4x4x4_16b_bf16", Mfma<Element::kBF16, 4, 4, 16>::run},
    {"v_mfma_f32_32x32x8_bf16", Mfma<Element::kBF16, 32, 8, 1>::run},
    {"v_mfma_f32_16x16x16_bf16", Mfma<Element::kBF16, 16, 16, 1>::run},
    {"v_mfma_i32_32x32x4_2b_i8", Mfma<Element::kI8, 32, 4, 2>::run},
    {"v_mfma_i32_16x16x4_4b_i8", Mfma<Element::kI8, 16, 4, 4>::run},
    {"v_mfma_i32_4x4x4_16b_i8", Mfma<Element::kI8, 4, 4, 16>::run},
    {"v_mfma_i32_32x32x16_i8", Mfma<Element::kI8, 32, 16, 1>::run},
    {"v_mfma_i32_16x16x32_i8", Mfma<Element::kI8, 16, 32, 1>::run},
    {"v_mfma_f32_32x32x1_2b_f32", Mfma<Element::kF32, 32, 1, 2>::run},
    {"v_mfma_f32_16x16x1_4b_f32", Mfma<Element::kF32, 16, 1, 4>::run},
    {"v_mfma_f32_4x4x1_16b_f32", Mfma<Element::kF32, 4, 1, 16>::run},
    {"v_mfma_f32_32x32x2_f32", Mfma<Element::kF32, 32, 2, 1>::run},
    {"v_mfma_f32_16x16x4_f32", Mfma<Element::kF32, 16, 4, 1>::run},
    {"v_mfma_f64_16x16x4_f64", Mfma<Element::kF64, 16, 4, 1>::run},
    {"v_mfma_f64_4x4x4_4b_f64", Mfma<Element::kF64, 4, 4, 4>::run},
    {"v_accvgpr_read_b32", move_whole},
    {"v_accvgpr_write_b32", move_whole},
    {"v_accvgpr_mov_b32", move_whole},
};

}  // namespace

std::span<const Semantics> mfma_ops() { return kMfmaOps; }

}  // namespace bm::sim::amd
