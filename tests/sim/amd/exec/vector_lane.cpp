// Movement between lanes: DPP, permutes, read and write of single lanes, lane counts.

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

constexpr uint32_t kNoLane = ~0u;

/// Controls that CDNA has and RDNA lost: over the whole wave, and the last lane of a row, or of
/// half the wave, for the rows behind it. kNoControl: none of them.
constexpr uint32_t kNoControl = ~0u - 1;
uint32_t wave_source(uint32_t c, uint32_t lane) {
  switch (c) {
    case 0x130: return lane < 63 ? lane + 1 : kNoLane;           // wave_shl
    case 0x134: return (lane + 1) & 63;                          // wave_rol
    case 0x138: return lane > 0 ? lane - 1 : kNoLane;            // wave_shr
    case 0x13c: return (lane - 1) & 63;                          // wave_ror
    case 0x142: return lane < 16 ? kNoLane : (lane & ~15u) - 1;  // row_bcast15
    case 0x143: return lane < 32 ? kNoLane : 31;                 // row_bcast31
    default: return kNoControl;
  }
}

/// Lane that `lane` reads under DPP16 control `c`; kNoLane: outside the row.
uint32_t dpp16_source(uint32_t c, uint32_t lane) {
  const uint32_t row = lane & ~15u, at = lane & 15, n = c & 15;
  if (c < 0x100) return (lane & ~3u) | (c >> (2 * (lane & 3)) & 3);
  switch (c & ~15u) {
    case 0x100: return at + n < 16 ? row + at + n : kNoLane;  // row_shl
    case 0x110: return at >= n ? row + at - n : kNoLane;      // row_shr
    case 0x120: return row + ((at - n) & 15);                 // row_ror
    case 0x140: return n == 0 ? row + (15 - at) : (lane & ~7u) + (7 - (lane & 7));
    case 0x150: return row + n;         // row_share
    case 0x160: return row + (at ^ n);  // row_xmask
    default: return kNoLane;
  }
}

}  // namespace

void apply_dpp(Wave& w, const Step& in, uint32_t* column) {
  const Dpp& d = in.dpp;
  w.honored |= modifier::kDpp;
  uint32_t from[kMaxLanes];
  std::copy_n(column, w.lanes, from);
  const uint64_t exec = w.exec();
  uint64_t enabled = w.all_lanes();
  for (uint32_t l = 0; l < w.lanes; ++l) {
    uint32_t source = 0;
    if (d.kind == DppKind::kDpp8) {
      source = (l & ~7u) | (d.control >> (3 * (l & 7)) & 7);
    } else {
      source = w.isa == Isa::kGfx9 ? wave_source(d.control, l) : kNoControl;
      if (source == kNoControl) source = dpp16_source(d.control, l);
      if (!(d.row_mask >> (l / 16 & 3) & 1) || !(d.bank_mask >> (l / 4 & 3) & 1))
        enabled &= ~(uint64_t{1} << l);
    }
    const bool valid = source != kNoLane && (d.fetch_invalid || exec >> source & 1);
    if (valid) {
      column[l] = from[source];
    } else {
      column[l] = 0;
      // Without bound_ctrl a lane whose source is out of reach keeps its destination.
      if (d.kind == DppKind::kDpp16 && !d.bound_zero) enabled &= ~(uint64_t{1} << l);
    }
  }
  w.write_mask &= enabled;
}

namespace {

using U32 = uint32_t;

U32 first_lane(const Wave& w) {
  return w.exec() ? static_cast<U32>(std::countr_zero(w.exec())) : 0;
}
void read_first_lane(Wave& w, const Step& in) {
  w.write32(in.dst.code,
            in.src[0].is_vgpr() ? w.reg(in.src[0].code - kVgpr)[first_lane(w)] : w.in32(in, 0));
}
void read_lane(Wave& w, const Step& in) {
  const U32 lane = w.in32(in, 1) & (w.lanes - 1);
  w.write32(in.dst.code, in.src[0].is_vgpr() ? w.reg(in.src[0].code - kVgpr)[lane] : w.in32(in, 0));
}
void write_lane(Wave& w, const Step& in) {
  w.reg(in.dst.code - kVgpr)[w.in32(in, 1) & (w.lanes - 1)] = w.in32(in, 0);
}

template <bool High>
void count_below(Wave& w, const Step& in) {
  alignas(64) U32 a[kMaxLanes], b[kMaxLanes];
  fetch<U32>(w, in, 0, a);
  fetch<U32>(w, in, 1, b);
  for (U32 l = 0; l < w.lanes; ++l) {
    const U32 at = High ? (l < 32 ? 0 : l - 32) : std::min<U32>(l, 32);
    const U32 below = at >= 32 ? ~0u : (1u << at) - 1;
    a[l] = static_cast<U32>(std::popcount(a[l] & below)) + b[l];
  }
  store<U32>(w, in, a);
}

/// v_permlane[x]16: within rows of 16 (X: from the other row of the pair) by 4-bit selectors.
/// op_sel[0]: read lanes that are off too; op_sel[1]: lanes without a source become 0.
template <bool Cross, bool Variable>
void permlane16(Wave& w, const Step& in) {
  alignas(64) U32 a[kMaxLanes], selector[kMaxLanes], d[kMaxLanes];
  w.honored |= modifier::kOpSel * 3;
  fetch_raw<U32>(w, in, in.src[0], 1, a);
  if constexpr (Variable) {
    fetch_raw<U32>(w, in, in.src[1], 1, selector);
  } else {
    const uint64_t s = uint64_t{w.in32(in, 2)} << 32 | w.in32(in, 1);
    for (U32 l = 0; l < w.lanes; ++l) selector[l] = static_cast<U32>(s >> (4 * (l & 15)));
  }
  const U32* old = w.reg(in.dst.code - kVgpr);
  for (U32 l = 0; l < w.lanes; ++l) {
    const U32 row = Cross ? (l & ~15u) ^ 16 : l & ~15u;
    const U32 source = row | (selector[l] & 15);
    if (in.op_sel & 1 || w.exec() >> source & 1)
      d[l] = a[source];
    else
      d[l] = in.op_sel & 2 ? 0 : old[l];
  }
  store<U32>(w, in, d);
}
/// Halves of a wave of 64 change places; with 32 lanes nothing happens at all (RDNA3 ISA guide).
void permlane64(Wave& w, const Step& in) {
  if (w.lanes != 64) return;
  const U32* a = w.reg(in.src[0].code - kVgpr);
  U32 d[kMaxLanes];
  for (U32 l = 0; l < w.lanes; ++l) d[l] = a[l ^ 32];
  store<U32>(w, in, d);
}

constexpr Semantics kVectorLaneOps[] = {
    {"v_nop", [](Wave&, const Step&) {}},
    {"v_pipeflush", [](Wave&, const Step&) {}},
    {"v_readfirstlane_b32", read_first_lane},
    {"v_readlane_b32", read_lane},
    {"v_writelane_b32", write_lane},
    {"v_mbcnt_lo_u32_b32", count_below<false>},
    {"v_mbcnt_hi_u32_b32", count_below<true>},
    {"v_permlane16_b32", permlane16<false, false>},
    {"v_permlanex16_b32", permlane16<true, false>},
    {"v_permlane16_var_b32", permlane16<false, true>},
    {"v_permlanex16_var_b32", permlane16<true, true>},
    {"v_permlane64_b32", permlane64},
};

}  // namespace

std::span<const Semantics> vector_lane_ops() { return kVectorLaneOps; }

}  // namespace bm::sim::amd
