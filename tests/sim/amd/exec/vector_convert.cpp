// Conversions among formats.

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

using F = float;
using D = double;
using U32 = uint32_t;
using I32 = int32_t;

U32 pack(uint16_t low, uint16_t high) { return U32{high} << 16 | low; }
template <class I>
I normalized(float x) {  // to [-1, 1] or [0, 1] of the integer
  constexpr float kMax = static_cast<float>(std::numeric_limits<I>::max());
  return to_integer<I>(std::nearbyint(
      std::clamp(std::isnan(x) ? 0.0f : x, std::is_signed_v<I> ? -1.0f : 0.0f, 1.0f) * kMax));
}
template <class I, class X>
U32 saturated(X value) {
  return static_cast<uint16_t>(static_cast<I>(
      std::clamp<X>(value, std::numeric_limits<I>::min(), std::numeric_limits<I>::max())));
}
template <int Byte>
float unsigned_byte(U32 a) {
  return static_cast<float>((a >> (8 * Byte)) & 0xff);
}

/// v_cvt_pk_u8_f32: byte `b` of `c` becomes a.
U32 insert_byte(float a, U32 b, U32 c) {
  const U32 shift = 8 * (b & 3);
  return (c & ~(0xffu << shift)) | U32{to_integer<uint8_t>(std::nearbyint(a))} << shift;
}

/// Byte the op_sel bits of an fp8 source choose: bit 0 of op_sel is the upper of the index.
template <float (*Decode)(uint8_t)>
void from_fp8(Wave& w, const Step& in) {
  alignas(64) U32 a[kMaxLanes];
  fetch_raw<U32>(w, in, in.src[0], 0, a);
  w.honored |= modifier::kOpSel * 3;
  const U32 byte = (in.op_sel & 1u) << 1 | (in.op_sel >> 1 & 1u);
  for (U32 l = 0; l < w.lanes; ++l)
    a[l] = to_raw<F>(Decode(static_cast<uint8_t>(a[l] >> (8 * byte))));
  finish_float<F>(w, in, a);
  store<F>(w, in, a);
}
template <float (*Decode)(uint8_t)>
void from_fp8_pair(Wave& w, const Step& in) {
  alignas(64) U32 a[kMaxLanes];
  alignas(64) uint64_t d[kMaxLanes];
  fetch_raw<U32>(w, in, in.src[0], 0, a);
  w.honored |= modifier::kOpSel;
  const U32 shift = in.op_sel & 1 ? 16 : 0;
  for (U32 l = 0; l < w.lanes; ++l) {
    const U32 pair = a[l] >> shift;
    d[l] = uint64_t{to_raw<F>(Decode(static_cast<uint8_t>(pair >> 8)))} << 32 |
           to_raw<F>(Decode(static_cast<uint8_t>(pair)));
  }
  store<uint64_t>(w, in, d);
}
/// Two floats to two bytes of the half op_sel[3] names.
template <uint8_t (*Encode)(float)>
void to_fp8_pair(Wave& w, const Step& in) {
  alignas(64) U32 a[kMaxLanes], b[kMaxLanes];
  fetch<F>(w, in, 0, a);
  fetch<F>(w, in, 1, b);
  for (U32 l = 0; l < w.lanes; ++l)
    a[l] = U32{Encode(from_raw<F>(b[l]))} << 8 | Encode(from_raw<F>(a[l]));
  store<uint16_t>(w, in, a);
}
/// One float to the byte op_sel[3:2] names, rounded by the second source.
template <uint8_t (*Encode)(float, uint32_t)>
void to_fp8_stochastic(Wave& w, const Step& in) {
  alignas(64) U32 a[kMaxLanes], b[kMaxLanes];
  fetch<F>(w, in, 0, a);
  fetch_raw<U32>(w, in, in.src[1], 1, b);
  w.honored |= modifier::kOpSel * 12;
  const U32 shift = 8 * (in.op_sel >> 2 & 3u);
  const U32* old = w.reg(in.dst.code - kVgpr);
  for (U32 l = 0; l < w.lanes; ++l)
    a[l] = (old[l] & ~(0xffu << shift)) | U32{Encode(from_raw<F>(a[l]), b[l])} << shift;
  store<U32>(w, in, a);
}

constexpr Semantics kVectorConvertOps[] = {
    {"v_cvt_i32_f64", vop<[](D a) { return to_integer<I32>(a); }>},
    {"v_cvt_u32_f64", vop<[](D a) { return to_integer<U32>(a); }>},
    {"v_cvt_f64_i32", vop<[](I32 a) { return static_cast<D>(a); }>},
    {"v_cvt_f64_u32", vop<[](U32 a) { return static_cast<D>(a); }>},
    {"v_cvt_f32_i32", vop<[](I32 a) { return static_cast<F>(a); }>},
    {"v_cvt_f32_u32", vop<[](U32 a) { return static_cast<F>(a); }>},
    {"v_cvt_u32_f32", vop<[](F a) { return to_integer<U32>(a); }>},
    {"v_cvt_i32_f32", vop<[](F a) { return to_integer<I32>(a); }>},
    {"v_cvt_nearest_i32_f32",
     vop<[](F a) { return to_integer<I32>(std::floor(double{a} + 0.5)); }>},
    {"v_cvt_floor_i32_f32", vop<[](F a) { return to_integer<I32>(std::floor(a)); }>},
    {"v_cvt_off_f32_i4",
     vop<[](U32 a) { return static_cast<F>(static_cast<I32>(a << 28) >> 28) * 0.0625f; }>},
    {"v_cvt_f16_f32", vop<[](F a) { return Half{a}; }>},
    {"v_cvt_f32_f16", vop<[](Half a) { return a.value; }>},
    {"v_cvt_f32_f64", vop<[](D a) { return static_cast<F>(a); }>},
    {"v_cvt_f64_f32", vop<[](F a) { return static_cast<D>(a); }>},
    {"v_cvt_f32_ubyte0", vop<[](U32 a) { return unsigned_byte<0>(a); }>},
    {"v_cvt_f32_ubyte1", vop<[](U32 a) { return unsigned_byte<1>(a); }>},
    {"v_cvt_f32_ubyte2", vop<[](U32 a) { return unsigned_byte<2>(a); }>},
    {"v_cvt_f32_ubyte3", vop<[](U32 a) { return unsigned_byte<3>(a); }>},
    {"v_cvt_f16_u16", vop<[](uint16_t a) { return Half{static_cast<F>(a)}; }>},
    {"v_cvt_f16_i16", vop<[](int16_t a) { return Half{static_cast<F>(a)}; }>},
    {"v_cvt_u16_f16", vop<[](Half a) { return to_integer<uint16_t>(a.value); }>},
    {"v_cvt_i16_f16", vop<[](Half a) { return to_integer<int16_t>(a.value); }>},
    {"v_cvt_i32_i16", vop<[](int16_t a) { return I32{a}; }>},
    {"v_cvt_u32_u16", vop<[](uint16_t a) { return U32{a}; }>},
    {"v_cvt_norm_i16_f16", vop<[](Half a) { return normalized<int16_t>(a.value); }>},
    {"v_cvt_norm_u16_f16", vop<[](Half a) { return normalized<uint16_t>(a.value); }>},
    {"v_cvt_pk_rtz_f16_f32",
     vop<[](F a, F b) { return pack(f32_to_f16_rtz(a), f32_to_f16_rtz(b)); }>},
    {"v_cvt_pk_u8_f32", vop<[](F a, U32 b, U32 c) { return insert_byte(a, b, c); }>},
    {"v_cvt_pk_i16_f32", vop<[](F a, F b) {
       return pack(static_cast<uint16_t>(to_integer<int16_t>(a)),
                   static_cast<uint16_t>(to_integer<int16_t>(b)));
     }>},
    {"v_cvt_pk_u16_f32",
     vop<[](F a, F b) { return pack(to_integer<uint16_t>(a), to_integer<uint16_t>(b)); }>},
    {"v_cvt_pk_norm_i16_f32", vop<[](F a, F b) {
       return pack(static_cast<uint16_t>(normalized<int16_t>(a)),
                   static_cast<uint16_t>(normalized<int16_t>(b)));
     }>},
    {"v_cvt_pk_norm_u16_f32",
     vop<[](F a, F b) { return pack(normalized<uint16_t>(a), normalized<uint16_t>(b)); }>},
    {"v_cvt_pk_norm_i16_f16", vop<[](Half a, Half b) {
       return pack(static_cast<uint16_t>(normalized<int16_t>(a.value)),
                   static_cast<uint16_t>(normalized<int16_t>(b.value)));
     }>},
    {"v_cvt_pk_norm_u16_f16", vop<[](Half a, Half b) {
       return pack(normalized<uint16_t>(a.value), normalized<uint16_t>(b.value));
     }>},
    {"v_cvt_pk_u16_u32",
     vop<[](U32 a, U32 b) { return saturated<uint16_t>(a) | saturated<uint16_t>(b) << 16; }>},
    {"v_cvt_pk_i16_i32",
     vop<[](I32 a, I32 b) { return saturated<int16_t>(a) | saturated<int16_t>(b) << 16; }>},
    {"v_pack_b32_f16",
     vop<[](Half a, Half b) { return pack(f32_to_f16(a.value), f32_to_f16(b.value)); }>},
    {"v_cvt_f32_fp8", from_fp8<fp8_to_f32>},
    {"v_cvt_f32_bf8", from_fp8<bf8_to_f32>},
    {"v_cvt_pk_f32_fp8", from_fp8_pair<fp8_to_f32>},
    {"v_cvt_pk_f32_bf8", from_fp8_pair<bf8_to_f32>},
    {"v_cvt_pk_fp8_f32", to_fp8_pair<f32_to_fp8>},
    {"v_cvt_pk_bf8_f32", to_fp8_pair<f32_to_bf8>},
    {"v_cvt_sr_fp8_f32", to_fp8_stochastic<f32_to_fp8_stochastic>},
    {"v_cvt_sr_bf8_f32", to_fp8_stochastic<f32_to_bf8_stochastic>},
};

}  // namespace

std::span<const Semantics> vector_convert_ops() { return kVectorConvertOps; }

}  // namespace bm::sim::amd
