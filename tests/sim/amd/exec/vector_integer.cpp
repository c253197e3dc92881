// Integer and bit operations of 16, 32 and 64 bits, with carries and saturation.

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

using U32 = uint32_t;
using I32 = int32_t;
using U64 = uint64_t;
using I64 = int64_t;
using U16 = uint16_t;
using I16 = int16_t;

I32 low24s(U32 a) { return static_cast<I32>(a << 8) >> 8; }
U32 low24u(U32 a) { return a & 0xffffff; }

U32 bfe_u32(U32 a, U32 b, U32 c) {
  const U32 width = c & 31;
  return width ? (a >> (b & 31)) & ((1u << width) - 1) : 0;
}
U32 bfe_i32(U32 a, U32 b, U32 c) {
  const U32 offset = b & 31, width = c & 31;
  if (!width) return 0;
  if (offset + width >= 32) return static_cast<U32>(static_cast<I32>(a) >> offset);
  return static_cast<U32>(static_cast<I32>(a << (32 - offset - width)) >> (32 - width));
}
U32 reverse(U32 a) {
  U32 d = 0;
  for (U32 i = 0; i < 32; ++i) d |= (a >> i & 1) << (31 - i);
  return d;
}
U32 leading_signs(I32 a) {
  const U32 folded = static_cast<U32>(a ^ (a >> 31));
  return folded ? static_cast<U32>(std::countl_zero(folded)) : ~0u;
}
/// Byte `selector` of V_PERM: 0-3 of b, 4-7 of a, 8-11 signs, 12 zero, 13 and up ones.
U32 permute_byte(U32 a, U32 b, U32 selector) {
  const U64 both = U64{a} << 32 | b;
  if (selector < 8) return static_cast<U32>(both >> (8 * selector) & 0xff);
  if (selector < 12) return both >> (16 * (selector - 8) + 15) & 1 ? 0xff : 0;
  return selector == 12 ? 0 : 0xff;
}
U32 permute_bytes(U32 a, U32 b, U32 s) {
  U32 d = 0;
  for (U32 i = 0; i < 4; ++i) d |= permute_byte(a, b, s >> (8 * i) & 0xff) << (8 * i);
  return d;
}
template <class T>
T middle(T a, T b, T c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

// ---- carries ----
/// Sum or difference with a carry mask in and out; VOP2 uses VCC for both. CLAMP: what does not fit
/// becomes `Limit`, and the carry is given all the same.
template <auto F, bool ReadsCarry, U32 Limit>
void with_carry(Wave& w, const Step& in) {
  alignas(64) U32 a[kMaxLanes], b[kMaxLanes];
  const bool is_vop3 = in.format() == Format::kVop3;
  const U64 carry = !ReadsCarry ? 0 : is_vop3 ? w.read_mask(in.src[2].code) : w.read_mask(kVccLo);
  w.honored |= modifier::kClamp;
  fetch<U32>(w, in, 0, a);
  fetch<U32>(w, in, 1, b);
  U64 out = 0;
  for (U32 l = 0; l < w.lanes; ++l) {
    bool c = carry >> l & 1;
    a[l] = F(a[l], b[l], c);
    if (in.clamp && c) a[l] = Limit;
    out |= U64{c} << l;
  }
  store<U32>(w, in, a);
  w.write_mask_to(is_vop3 ? in.sdst.code : kVccLo, out & w.exec());
}
constexpr auto kAddC = [](U32 a, U32 b, bool& c) {
  const U64 sum = U64{a} + b + c;
  c = sum >> 32 != 0;
  return static_cast<U32>(sum);
};
constexpr auto kSubC = [](U32 a, U32 b, bool& c) {
  const U32 d = a - b - c;
  c = U64{a} < U64{b} + c;
  return d;
};
constexpr auto kSubRevC = [](U32 a, U32 b, bool& c) { return kSubC(b, a, c); };

/// 32 x 32 + 64 with a carry out.
template <class T, class Wide>
void mad_wide(Wave& w, const Step& in) {
  alignas(64) U32 a[kMaxLanes], b[kMaxLanes];
  alignas(64) U64 c[kMaxLanes];
  fetch<T>(w, in, 0, a);
  fetch<T>(w, in, 1, b);
  fetch<Wide>(w, in, 2, c);
  U64 out = 0;
  for (U32 l = 0; l < w.lanes; ++l) {
    const Wide product =
        static_cast<Wide>(from_raw<T>(a[l])) * static_cast<Wide>(from_raw<T>(b[l]));
    Wide sum = 0;
    const bool over = __builtin_add_overflow(product, static_cast<Wide>(c[l]), &sum);
    c[l] = static_cast<U64>(sum);
    out |= U64{over} << l;
  }
  store<Wide>(w, in, c);
  w.write_mask_to(in.sdst.code, out & w.exec());
}

/// v_cndmask: the mask is VCC in VOP2, the third source in VOP3.
template <class T>
void cndmask(Wave& w, const Step& in) {
  alignas(64) Raw<T> a[kMaxLanes], b[kMaxLanes];
  const U64 mask = in.src[2].dwords ? w.read_mask(in.src[2].code) : w.read_mask(kVccLo);
  // Modifiers act on the bits as on floats; denormals stay.
  const U32 mode = w.mode;
  w.mode |= kDenormIn32 | kDenormIn64;
  fetch<T>(w, in, 0, a);
  fetch<T>(w, in, 1, b);
  w.mode = mode;
  for (U32 l = 0; l < w.lanes; ++l) a[l] = mask >> l & 1 ? b[l] : a[l];
  store<T>(w, in, a);
}

template <auto F>
void u16_mad(Wave& w, const Step& in) {
  saturating<U16, F>(w, in);
}

/// Bytes of packed dot products: v_dot4 and v_dot8 are in vector_packed.cpp.
constexpr auto kMad = [](I64 a, I64 b, I64 c) { return a * b + c; };

// ---- sums of absolute differences ----
// Source: RDNA3 ISA guide, V_SAD_U8 … V_MQSAD_U32_U8, V_LERP_U8; CLAMP saturates the sum.
U64 byte_of(U64 a, U32 i) { return a >> (8 * i) & 0xff; }
U64 distance(U64 a, U64 b) { return a > b ? a - b : b - a; }
/// Over four bytes; masked: where the reference byte of b is 0 nothing is added.
template <bool Masked>
U64 byte_distances(U64 a, U64 b) {
  U64 sum = 0;
  for (U32 i = 0; i < 4; ++i)
    if (!Masked || byte_of(b, i)) sum += distance(byte_of(a, i), byte_of(b, i));
  return sum;
}
template <auto F>
void sum_of_distances(Wave& w, const Step& in) {
  saturating<U32, [](I64 a, I64 b, I64 c) {
    return static_cast<I64>(F(static_cast<U64>(a), static_cast<U64>(b))) + c;
  }>(w, in);
}
U64 half_distances(U64 a, U64 b) {
  return distance(a & 0xffff, b & 0xffff) + distance(a >> 16, b >> 16);
}
/// Four sums over windows of a that begin one byte after another, of `Bits` bits each: two words of
/// 16-bit sums or four of 32 bits.
template <bool Masked, U32 Bits>
void quad_distances(Wave& w, const Step& in) {
  alignas(64) U64 a[kMaxLanes];
  alignas(64) U32 b[kMaxLanes];
  constexpr U32 kWords = Bits / 8;
  constexpr U64 kMax = (U64{1} << Bits) - 1;
  w.honored |= modifier::kClamp;
  fetch<U64>(w, in, 0, a);
  fetch<U32>(w, in, 1, b);
  const Slot& addend = in.src[2];
  U32 out[kWords][kMaxLanes] = {};
  for (U32 l = 0; l < w.lanes; ++l)
    for (U32 i = 0; i < 4; ++i) {
      const U32 word = i * Bits / 32, shift = i * Bits % 32;
      const U32 old =
          addend.is_vgpr()
              ? w.reg(addend.code - kVgpr + word)[l]
              : static_cast<U32>(w.read64(addend.code, in.literal, false) >> (word == 1 ? 32 : 0));
      const U64 sum =
          byte_distances<Masked>(a[l] >> (8 * i) & 0xffffffff, b[l]) + (old >> shift & kMax);
      out[word][l] |= static_cast<U32>((in.clamp ? std::min(sum, kMax) : sum & kMax) << shift);
    }
  for (U32 word = 0; word < kWords; ++word) {
    U32* d = w.reg(in.dst.code - kVgpr + word);
    each_lane(w.active(), [&](U32 l) { d[l] = out[word][l]; });
  }
}
/// Mean of each pair of bytes, rounded up where bit 0 of c's byte is set.
U32 lerp(U32 a, U32 b, U32 c) {
  U32 d = 0;
  for (U32 i = 0; i < 4; ++i)
    d |= static_cast<U32>((byte_of(a, i) + byte_of(b, i) + (byte_of(c, i) & 1)) >> 1) << (8 * i);
  return d;
}

void swap(Wave& w, const Step& in) {
  U32* a = w.reg(in.dst.code - kVgpr);
  U32* b = w.reg(in.src[0].code - kVgpr);
  each_lane(w.exec(), [=](U32 l) { std::swap(a[l], b[l]); });
}

constexpr Semantics kVectorIntegerOps[] = {
    {"v_mov_b32", vop<[](U32 a) { return a; }>},
    {"v_mov_b64", vop<[](U64 a) { return a; }>},
    {"v_mov_b16", vop<[](U16 a) { return a; }>},
    {"v_swap_b32", swap},
    {"v_not_b32", vop<[](U32 a) { return ~a; }>},
    {"v_not_b16", vop<[](U16 a) { return static_cast<U16>(~a); }>},
    {"v_bfrev_b32", vop<[](U32 a) { return reverse(a); }>},
    {"v_clz_i32_u32", vop<[](U32 a) { return a ? std::countl_zero(a) : -1; }>},
    {"v_ctz_i32_b32", vop<[](U32 a) { return a ? std::countr_zero(a) : -1; }>},
    {"v_cls_i32", vop<[](I32 a) { return leading_signs(a); }>},
    {"v_sat_pk_u8_i16", vop<[](U32 a) {
       const auto sat = [](I32 x) { return static_cast<U32>(std::clamp(x, 0, 255)); };
       return static_cast<U16>(sat(static_cast<I16>(a)) | sat(static_cast<I32>(a) >> 16) << 8);
     }>},
    {"v_cndmask_b32", cndmask<float>},
    {"v_cndmask_b16", cndmask<Half>},
    {"v_add_co_u32", with_carry<kAddC, false, ~0u>},
    {"v_sub_co_u32", with_carry<kSubC, false, 0>},
    {"v_subrev_co_u32", with_carry<kSubRevC, false, 0>},
    {"v_add_co_ci_u32", with_carry<kAddC, true, ~0u>},
    {"v_sub_co_ci_u32", with_carry<kSubC, true, 0>},
    {"v_subrev_co_ci_u32", with_carry<kSubRevC, true, 0>},
    {"v_add_nc_u32", saturating<U32, [](I64 a, I64 b) { return a + b; }>},
    {"v_sub_nc_u32", saturating<U32, [](I64 a, I64 b) { return a - b; }>},
    {"v_subrev_nc_u32", saturating<U32, [](I64 a, I64 b) { return b - a; }>},
    {"v_add_nc_i32", saturating<I32, [](I64 a, I64 b) { return a + b; }>},
    {"v_sub_nc_i32", saturating<I32, [](I64 a, I64 b) { return a - b; }>},
    {"v_add_nc_u16", saturating<U16, [](I64 a, I64 b) { return a + b; }>},
    {"v_sub_nc_u16", saturating<U16, [](I64 a, I64 b) { return a - b; }>},
    {"v_subrev_nc_u16", saturating<U16, [](I64 a, I64 b) { return b - a; }>},
    {"v_add_nc_i16", saturating<I16, [](I64 a, I64 b) { return a + b; }>},
    {"v_sub_nc_i16", saturating<I16, [](I64 a, I64 b) { return a - b; }>},
    {"v_mul_lo_u16", vop<[](U16 a, U16 b) { return static_cast<U16>(U32{a} * b); }>},
    {"v_mad_u16", saturating<U16, kMad>},
    {"v_mad_i16", saturating<I16, kMad>},
    {"v_mad_u32_u16", vop<[](U16 a, U16 b, U32 c) { return U32{a} * b + c; }>},
    {"v_mad_i32_i16", vop<[](I16 a, I16 b, U32 c) { return static_cast<U32>(I32{a} * b) + c; }>},
    {"v_mul_i32_i24",
     vop<[](U32 a, U32 b) { return static_cast<U32>(I64{low24s(a)} * low24s(b)); }>},
    {"v_mul_hi_i32_i24",
     vop<[](U32 a, U32 b) { return static_cast<U32>((I64{low24s(a)} * low24s(b)) >> 32); }>},
    {"v_mul_u32_u24",
     vop<[](U32 a, U32 b) { return static_cast<U32>(U64{low24u(a)} * low24u(b)); }>},
    {"v_mul_hi_u32_u24",
     vop<[](U32 a, U32 b) { return static_cast<U32>((U64{low24u(a)} * low24u(b)) >> 32); }>},
    {"v_mad_i32_i24",
     vop<[](U32 a, U32 b, U32 c) { return static_cast<U32>(I64{low24s(a)} * low24s(b)) + c; }>},
    {"v_mad_u32_u24", vop<[](U32 a, U32 b, U32 c) { return low24u(a) * low24u(b) + c; }>},
    {"v_mul_lo_u32", vop<[](U32 a, U32 b) { return a * b; }>},
    {"v_mul_hi_u32", vop<[](U32 a, U32 b) { return static_cast<U32>((U64{a} * b) >> 32); }>},
    {"v_mul_hi_i32", vop<[](I32 a, I32 b) { return static_cast<U32>((I64{a} * b) >> 32); }>},
    {"v_mad_u64_u32", mad_wide<U32, U64>},
    {"v_mad_i64_i32", mad_wide<I32, I64>},
    {"v_min_i32", vop<[](I32 a, I32 b) { return std::min(a, b); }>},
    {"v_max_i32", vop<[](I32 a, I32 b) { return std::max(a, b); }>},
    {"v_min_u32", vop<[](U32 a, U32 b) { return std::min(a, b); }>},
    {"v_max_u32", vop<[](U32 a, U32 b) { return std::max(a, b); }>},
    {"v_min_i16", vop<[](I16 a, I16 b) { return std::min(a, b); }>},
    {"v_max_i16", vop<[](I16 a, I16 b) { return std::max(a, b); }>},
    {"v_min_u16", vop<[](U16 a, U16 b) { return std::min(a, b); }>},
    {"v_max_u16", vop<[](U16 a, U16 b) { return std::max(a, b); }>},
    {"v_min3_i32", vop<[](I32 a, I32 b, I32 c) { return std::min({a, b, c}); }>},
    {"v_max3_i32", vop<[](I32 a, I32 b, I32 c) { return std::max({a, b, c}); }>},
    {"v_med3_i32", vop<[](I32 a, I32 b, I32 c) { return middle(a, b, c); }>},
    {"v_min3_u32", vop<[](U32 a, U32 b, U32 c) { return std::min({a, b, c}); }>},
    {"v_max3_u32", vop<[](U32 a, U32 b, U32 c) { return std::max({a, b, c}); }>},
    {"v_med3_u32", vop<[](U32 a, U32 b, U32 c) { return middle(a, b, c); }>},
    {"v_min3_i16", vop<[](I16 a, I16 b, I16 c) { return std::min({a, b, c}); }>},
    {"v_max3_i16", vop<[](I16 a, I16 b, I16 c) { return std::max({a, b, c}); }>},
    {"v_med3_i16", vop<[](I16 a, I16 b, I16 c) { return middle(a, b, c); }>},
    {"v_min3_u16", vop<[](U16 a, U16 b, U16 c) { return std::min({a, b, c}); }>},
    {"v_max3_u16", vop<[](U16 a, U16 b, U16 c) { return std::max({a, b, c}); }>},
    {"v_med3_u16", vop<[](U16 a, U16 b, U16 c) { return middle(a, b, c); }>},
    {"v_maxmin_i32", vop<[](I32 a, I32 b, I32 c) { return std::min(std::max(a, b), c); }>},
    {"v_minmax_i32", vop<[](I32 a, I32 b, I32 c) { return std::max(std::min(a, b), c); }>},
    {"v_maxmin_u32", vop<[](U32 a, U32 b, U32 c) { return std::min(std::max(a, b), c); }>},
    {"v_minmax_u32", vop<[](U32 a, U32 b, U32 c) { return std::max(std::min(a, b), c); }>},
    {"v_lshlrev_b32", vop<[](U32 a, U32 b) { return b << (a & 31); }>},
    {"v_lshrrev_b32", vop<[](U32 a, U32 b) { return (b >> (a & 31)); }>},
    {"v_ashrrev_i32", vop<[](U32 a, I32 b) { return static_cast<U32>(b >> (a & 31)); }>},
    {"v_lshlrev_b16", vop<[](U16 a, U16 b) { return static_cast<U16>(b << (a & 15)); }>},
    {"v_lshrrev_b16", vop<[](U16 a, U16 b) { return static_cast<U16>(b >> (a & 15)); }>},
    {"v_ashrrev_i16", vop<[](U16 a, I16 b) { return static_cast<U16>(b >> (a & 15)); }>},
    {"v_lshlrev_b64", vop<[](U32 a, U64 b) { return b << (a & 63); }>},
    {"v_lshrrev_b64", vop<[](U32 a, U64 b) { return (b >> (a & 63)); }>},
    {"v_ashrrev_i64", vop<[](U32 a, I64 b) { return static_cast<U64>(b >> (a & 63)); }>},
    {"v_and_b32", vop<[](U32 a, U32 b) { return a & b; }>},
    {"v_or_b32", vop<[](U32 a, U32 b) { return a | b; }>},
    {"v_xor_b32", vop<[](U32 a, U32 b) { return a ^ b; }>},
    {"v_xnor_b32", vop<[](U32 a, U32 b) { return ~(a ^ b); }>},
    {"v_and_b16", vop<[](U16 a, U16 b) { return static_cast<U16>(a & b); }>},
    {"v_or_b16", vop<[](U16 a, U16 b) { return static_cast<U16>(a | b); }>},
    {"v_xor_b16", vop<[](U16 a, U16 b) { return static_cast<U16>(a ^ b); }>},
    {"v_bfe_u32", vop<[](U32 a, U32 b, U32 c) { return bfe_u32(a, b, c); }>},
    {"v_bfe_i32", vop<[](U32 a, U32 b, U32 c) { return bfe_i32(a, b, c); }>},
    {"v_bfi_b32", vop<[](U32 a, U32 b, U32 c) { return (a & b) | (~a & c); }>},
    {"v_bfm_b32", vop<[](U32 a, U32 b) { return ((1u << (a & 31)) - 1) << (b & 31); }>},
    {"v_bcnt_u32_b32", vop<[](U32 a, U32 b) { return static_cast<U32>(std::popcount(a)) + b; }>},
    {"v_alignbit_b32",
     vop<[](U32 a, U32 b, U32 c) { return static_cast<U32>((U64{a} << 32 | b) >> (c & 31)); }>},
    {"v_alignbyte_b32", vop<[](U32 a, U32 b, U32 c) {
       return static_cast<U32>((U64{a} << 32 | b) >> (8 * (c & 3)));
     }>},
    {"v_xor3_b32", vop<[](U32 a, U32 b, U32 c) { return a ^ b ^ c; }>},
    {"v_or3_b32", vop<[](U32 a, U32 b, U32 c) { return a | b | c; }>},
    {"v_and_or_b32", vop<[](U32 a, U32 b, U32 c) { return (a & b) | c; }>},
    {"v_xad_u32", vop<[](U32 a, U32 b, U32 c) { return (a ^ b) + c; }>},
    {"v_lshl_add_u32", vop<[](U32 a, U32 b, U32 c) { return (a << (b & 31)) + c; }>},
    {"v_lshl_add_u64", vop<[](U64 a, U32 b, U64 c) { return (a << (b & 7)) + c; }>},
    {"v_add_lshl_u32", vop<[](U32 a, U32 b, U32 c) { return (a + b) << (c & 31); }>},
    {"v_lshl_or_b32", vop<[](U32 a, U32 b, U32 c) { return (a << (b & 31)) | c; }>},
    {"v_add3_u32", vop<[](U32 a, U32 b, U32 c) { return a + b + c; }>},
    {"v_sad_u8", sum_of_distances<byte_distances<false>>},
    {"v_sad_hi_u8",
     sum_of_distances<[](U64 a, U64 b) { return byte_distances<false>(a, b) << 16; }>},
    {"v_sad_u16", sum_of_distances<half_distances>},
    {"v_sad_u32", sum_of_distances<distance>},
    {"v_msad_u8", sum_of_distances<byte_distances<true>>},
    {"v_qsad_pk_u16_u8", quad_distances<false, 16>},
    {"v_mqsad_pk_u16_u8", quad_distances<true, 16>},
    {"v_mqsad_u32_u8", quad_distances<true, 32>},
    {"v_lerp_u8", vop<[](U32 a, U32 b, U32 c) { return lerp(a, b, c); }>},
    {"v_perm_b32", vop<[](U32 a, U32 b, U32 c) { return permute_bytes(a, b, c); }>},
};

}  // namespace

std::span<const Semantics> vector_integer_ops() { return kVectorIntegerOps; }

}  // namespace bm::sim::amd
