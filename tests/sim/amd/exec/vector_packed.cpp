// VOP3P: two 16-bit operations at once, mixed precision, dot products.

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

using U32 = uint32_t;
using I32 = int32_t;
using I64 = int64_t;

/// Source `i` as 32 bits; the float constants of packed halves are halves in the lower half.
void fetch_pair(Wave& w, const Step& in, uint32_t i, bool is_half, bool is_brain, U32* out) {
  const Slot& slot = in.src[i];
  if (slot.code >= 240 && slot.code <= 248 && (is_half || is_brain)) {
    std::fill_n(out, w.lanes, is_half ? constant16(slot.code) : constant32(slot.code) >> 16);
    return;
  }
  fetch_raw<U32>(w, in, slot, i, out);
}

/// The half of `bits` that op_sel (low result) or op_sel_hi (high result) names.
uint16_t half_of(U32 bits, uint32_t select) {
  return static_cast<uint16_t>(select & 1 ? bits >> 16 : bits);
}
U32 pick(const Step& in, uint32_t i, bool high, U32 bits) {
  return half_of(bits, (high ? in.op_sel_hi : in.op_sel) >> i);
}

template <class T, auto F>
void packed(Wave& w, const Step& in) {
  constexpr size_t kArgs = std::tuple_size_v<typename SignatureOf<F>::Args>;
  alignas(64) U32 s[3][kMaxLanes];
  w.honored |= (modifier::kOpSel | modifier::kOpSelHi) * 7 | modifier::kClamp;
  if constexpr (kIsFloat<T>) w.honored |= (modifier::kNeg | modifier::kNegHi) * 7;
  for (uint32_t i = 0; i < kArgs; ++i)
    fetch_pair(w, in, i, std::is_same_v<T, Half>, std::is_same_v<T, Brain>, s[i]);
  const bool flush_in = flushes_in<T>(w), flush_out = flushes_out<T>(w);
  for (uint32_t l = 0; l < w.lanes; ++l) {
    U32 both = 0;
    for (uint32_t part = 0; part < 2; ++part) {
      const auto arg = [&](uint32_t i) {
        U32 bits = pick(in, i, part != 0, s[i][l]);
        if constexpr (kIsFloat<T>) {
          if ((part ? in.neg_hi : in.neg) >> i & 1) bits ^= 0x8000;
          if (std::is_same_v<T, Half> && flush_in) bits = flush_half(static_cast<uint16_t>(bits));
        }
        return from_raw<T>(bits);
      };
      using R = typename SignatureOf<F>::Result;
      R r{};
      if constexpr (kArgs == 2)
        r = F(arg(0), arg(1));
      else
        r = F(arg(0), arg(1), arg(2));
      U32 bits = 0;
      if constexpr (kIsFloat<T>) {
        if (in.clamp) r = clamped(r);
        bits = to_raw<T>(r);
        if (std::is_same_v<T, Half> && flush_out) bits = flush_half(static_cast<uint16_t>(bits));
      } else {
        if (in.clamp)
          r = std::clamp<R>(r, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
        bits = static_cast<uint16_t>(r);
      }
      both |= bits << (16 * part);
    }
    s[0][l] = both;
  }
  store<U32>(w, in, s[0]);
}

template <float (*G)(float, float)>
constexpr auto kHalf2 = [](Half a, Half b) { return Half{G(a.value, b.value)}; };
float add(float a, float b) { return a + b; }
float mul(float a, float b) { return a * b; }

// Integer results are exact in 64 bits; `packed` wraps or saturates them.
template <class T>
constexpr auto kAdd = [](T a, T b) { return I64{a} + b; };
template <class T>
constexpr auto kSub = [](T a, T b) { return I64{a} - b; };
template <class T>
constexpr auto kMad = [](T a, T b, T c) { return I64{a} * b + c; };

/// v_fma_mix: sources are floats, or halves where op_sel_hi says so; abs in neg_hi.
void mix_sources(Wave& w, const Step& in, float (*out)[kMaxLanes]) {
  alignas(64) U32 raw[kMaxLanes];
  for (uint32_t i = 0; i < 3; ++i) {
    const bool is_half = in.op_sel_hi >> i & 1;
    fetch_pair(w, in, i, is_half, false, raw);
    for (uint32_t l = 0; l < w.lanes; ++l) {
      float v =
          is_half ? f16_to_f32(half_of(raw[l], in.op_sel >> i)) : std::bit_cast<float>(raw[l]);
      if (in.neg_hi >> i & 1) v = std::fabs(v);
      if (in.neg >> i & 1) v = -v;
      out[i][l] = v;
    }
  }
}
enum class MixTo : uint8_t { kFloat, kLow, kHigh };
template <MixTo To>
void mix(Wave& w, const Step& in) {
  alignas(64) float s[3][kMaxLanes];
  alignas(64) U32 d[kMaxLanes];
  using namespace modifier;
  w.honored |= (kOpSel | kOpSelHi | kNeg | kNegHi) * 7 | kClamp;
  mix_sources(w, in, s);
  const U32* old = w.reg(in.dst.code - kVgpr);
  for (uint32_t l = 0; l < w.lanes; ++l) {
    float r = std::fma(s[0][l], s[1][l], s[2][l]);
    if (in.clamp) r = clamped(r);
    if constexpr (To == MixTo::kFloat)
      d[l] = std::bit_cast<U32>(r);
    else if constexpr (To == MixTo::kLow)
      d[l] = (old[l] & 0xffff0000) | f32_to_f16(r);
    else
      d[l] = (old[l] & 0xffff) | U32{f32_to_f16(r)} << 16;
  }
  store<U32>(w, in, d);
}

/// Two products of 16-bit floats and an addend, summed in binary64 and rounded once.
template <class T, class Addend>
void dot2(Wave& w, const Step& in) {
  alignas(64) U32 s[3][kMaxLanes];
  for (uint32_t i = 0; i < 2; ++i)
    fetch_pair(w, in, i, std::is_same_v<T, Half>, std::is_same_v<T, Brain>, s[i]);
  const bool is_vop3p = in.format() == Format::kVop3P;
  using namespace modifier;
  w.honored |= kNeg * 7;
  w.honored |= is_vop3p ? (kOpSel | kOpSelHi | kNegHi) * 3 : kAbs * 7;
  if (kIs16<Addend>) w.honored |= kOpSel * 4;
  if (in.src[2].dwords)
    fetch_raw<Addend>(w, in, in.src[2], 2, s[2]);
  else
    std::copy_n(w.reg(in.dst.code - kVgpr), w.lanes, s[2]);  // v_dot2acc
  for (uint32_t l = 0; l < w.lanes; ++l) {
    double sum = 0;
    const auto value = [&](uint32_t i, uint32_t part) {
      U32 bits = is_vop3p ? pick(in, i, part != 0, s[i][l]) : half_of(s[i][l], part);
      if (!is_vop3p && in.abs >> i & 1) bits &= 0x7fff;
      if ((part && is_vop3p ? in.neg_hi : in.neg) >> i & 1) bits ^= 0x8000;
      if constexpr (std::is_same_v<T, Half>)
        return double{f16_to_f32(static_cast<uint16_t>(bits))};
      else
        return double{bf16_to_f32(static_cast<uint16_t>(bits))};
    };
    for (uint32_t part = 0; part < 2; ++part) sum += value(0, part) * value(1, part);
    U32 c = s[2][l];
    if (kIs16<Addend> && in.op_sel & 4) c >>= 16;
    if (in.abs >> 2 & 1) c &= ~sign_bit<Addend>();
    if (in.neg >> 2 & 1) c ^= sign_bit<Addend>();
    if constexpr (std::is_same_v<Addend, float>) {
      s[0][l] = to_raw<float>(static_cast<float>(sum + double{from_raw<float>(c)}));
    } else {
      const float r = static_cast<float>(sum + double{from_raw<Addend>(c).value});
      s[0][l] = to_raw<Addend>(Addend{r});
    }
  }
  finish_float<Addend>(w, in, s[0]);
  store<Addend>(w, in, s[0]);
}

/// Element `i` of `bits`, `Width` bits wide.
template <uint32_t Width>
I64 element(U32 bits, uint32_t i, bool is_signed) {
  const U32 raw = bits >> (Width * i) & ((1u << Width) - 1);
  return is_signed ? I64{static_cast<I32>(raw << (32 - Width)) >> (32 - Width)} : I64{raw};
}
enum class Signs : uint8_t { kNone, kAll, kBySource };
/// Integer dot product; `neg` of a source says that it is signed where the opcode leaves it open.
template <uint32_t Width, Signs S>
void dot_int(Wave& w, const Step& in) {
  alignas(64) U32 s[3][kMaxLanes];
  for (uint32_t i = 0; i < 3; ++i) fetch_raw<U32>(w, in, in.src[i], i, s[i]);
  w.honored |= modifier::kClamp | (S == Signs::kBySource ? modifier::kNeg * 3 : 0);
  constexpr bool kOpen = S == Signs::kBySource, kSigned = S != Signs::kNone;
  const bool sign_a = kOpen ? in.neg & 1 : kSigned, sign_b = kOpen ? in.neg & 2 : kSigned;
  for (uint32_t l = 0; l < w.lanes; ++l) {
    I64 sum = kSigned ? I64{static_cast<I32>(s[2][l])} : I64{s[2][l]};
    for (uint32_t i = 0; i < 32 / Width; ++i)
      sum += element<Width>(s[0][l], i, sign_a) * element<Width>(s[1][l], i, sign_b);
    if (in.clamp)
      sum = kSigned ? std::clamp<I64>(sum, std::numeric_limits<I32>::min(),
                                      std::numeric_limits<I32>::max())
                    : std::clamp<I64>(sum, 0, std::numeric_limits<U32>::max());
    s[0][l] = static_cast<U32>(sum);
  }
  store<U32>(w, in, s[0]);
}
template <float (*A)(uint8_t), float (*B)(uint8_t)>
void dot4_fp8(Wave& w, const Step& in) {
  alignas(64) U32 s[3][kMaxLanes];
  for (uint32_t i = 0; i < 3; ++i) fetch_raw<U32>(w, in, in.src[i], i, s[i]);
  for (uint32_t l = 0; l < w.lanes; ++l) {
    float c = std::bit_cast<float>(s[2][l]);
    w.honored |= (modifier::kNeg | modifier::kNegHi) * 4;
    if (in.neg_hi & 4) c = std::fabs(c);
    if (in.neg & 4) c = -c;
    double sum = c;
    for (uint32_t i = 0; i < 4; ++i)
      sum += double{A(static_cast<uint8_t>(s[0][l] >> (8 * i)))} *
             double{B(static_cast<uint8_t>(s[1][l] >> (8 * i)))};
    s[0][l] = std::bit_cast<U32>(static_cast<float>(sum));
  }
  store<U32>(w, in, s[0]);
}

/// CDNA3: two floats in a pair of registers. Of constants there is but one; both results read it.
template <auto F>
void packed_floats(Wave& w, const Step& in) {
  constexpr size_t kArgs = std::tuple_size_v<typename SignatureOf<F>::Args>;
  alignas(64) uint64_t s[3][kMaxLanes];
  w.honored |= (modifier::kOpSel | modifier::kOpSelHi | modifier::kNeg | modifier::kNegHi) * 7 |
               modifier::kClamp;
  for (uint32_t i = 0; i < kArgs; ++i) {
    const Slot& slot = in.src[i];
    if (slot.is_vgpr() || slot.code < 128) {
      fetch_raw<uint64_t>(w, in, slot, i, s[i]);
      continue;
    }
    // What a constant's upper half is, the guide does not say, and compilers do not ask.
    if ((in.op_sel | in.op_sel_hi) >> i & 1) return w.fail(Fault::Kind::kIllegalOpcode);
    std::fill_n(s[i], w.lanes, w.read32(slot.code, in.literal, '1'));
  }
  const bool flush_in = flushes_in<float>(w), flush_out = flushes_out<float>(w);
  for (uint32_t l = 0; l < w.lanes; ++l) {
    uint64_t both = 0;
    for (uint32_t part = 0; part < 2; ++part) {
      const auto arg = [&](uint32_t i) {
        auto bits =
            static_cast<U32>(s[i][l] >> ((part ? in.op_sel_hi : in.op_sel) >> i & 1 ? 32 : 0));
        if ((part ? in.neg_hi : in.neg) >> i & 1) bits ^= 0x80000000u;
        const float v = std::bit_cast<float>(bits);
        return flush_in ? flush(v) : v;
      };
      float r = 0;
      if constexpr (kArgs == 2)
        r = F(arg(0), arg(1));
      else
        r = F(arg(0), arg(1), arg(2));
      if (in.clamp) r = clamped(r);
      if (flush_out) r = flush(r);
      both |= uint64_t{std::bit_cast<U32>(r)} << (32 * part);
    }
    s[0][l] = both;
  }
  store<uint64_t>(w, in, s[0]);
}
/// Each half of the result is a half of its own source.
void packed_move(Wave& w, const Step& in) {
  alignas(64) uint64_t a[kMaxLanes], b[kMaxLanes];
  // OP_SEL chooses for both; OP_SEL_HI is not asked.
  w.honored |= modifier::kOpSel * 3 | modifier::kOpSelHi * 7;
  fetch_raw<uint64_t>(w, in, in.src[0], 0, a);
  fetch_raw<uint64_t>(w, in, in.src[1], 1, b);
  for (uint32_t l = 0; l < w.lanes; ++l)
    a[l] = (a[l] >> (in.op_sel & 1 ? 32 : 0) & 0xffffffffu) | (b[l] >> (in.op_sel & 2 ? 32 : 0))
                                                                  << 32;
  store<uint64_t>(w, in, a);
}

using U16 = uint16_t;
using I16 = int16_t;

constexpr Semantics kVectorPackedOps[] = {
    {"v_pk_mad_i16", packed<I16, kMad<I16>>},
    {"v_pk_mad_u16", packed<U16, kMad<U16>>},
    {"v_pk_mul_lo_u16", packed<U16, [](U16 a, U16 b) { return I64{a} * b; }>},
    {"v_pk_add_i16", packed<I16, kAdd<I16>>},
    {"v_pk_sub_i16", packed<I16, kSub<I16>>},
    {"v_pk_add_u16", packed<U16, kAdd<U16>>},
    {"v_pk_sub_u16", packed<U16, kSub<U16>>},
    {"v_pk_lshlrev_b16", packed<U16, [](U16 a, U16 b) { return I64{b} << (a & 15); }>},
    {"v_pk_lshrrev_b16", packed<U16, [](U16 a, U16 b) { return (I64{b} >> (a & 15)); }>},
    {"v_pk_ashrrev_i16", packed<I16, [](I16 a, I16 b) { return (I64{b} >> (a & 15)); }>},
    {"v_pk_max_i16", packed<I16, [](I16 a, I16 b) { return I64{std::max(a, b)}; }>},
    {"v_pk_min_i16", packed<I16, [](I16 a, I16 b) { return I64{std::min(a, b)}; }>},
    {"v_pk_max_u16", packed<U16, [](U16 a, U16 b) { return I64{std::max(a, b)}; }>},
    {"v_pk_min_u16", packed<U16, [](U16 a, U16 b) { return I64{std::min(a, b)}; }>},
    {"v_pk_fma_f16",
     packed<Half, [](Half a, Half b, Half c) { return fma_half(a.value, b.value, c.value); }>},
    {"v_pk_add_f16", packed<Half, kHalf2<add>>},
    {"v_pk_mul_f16", packed<Half, kHalf2<mul>>},
    {"v_pk_min_f16", packed<Half, kHalf2<min_num<float>>>},
    {"v_pk_max_f16", packed<Half, kHalf2<max_num<float>>>},
    {"v_pk_minimum_f16", packed<Half, kHalf2<minimum<float>>>},
    {"v_pk_maximum_f16", packed<Half, kHalf2<maximum<float>>>},
    {"v_pk_fmac_f16",
     packed<Half, [](Half a, Half b, Half c) { return fma_half(a.value, b.value, c.value); }>},
    {"v_pk_fma_f32", packed_floats<[](float a, float b, float c) { return std::fma(a, b, c); }>},
    {"v_pk_mul_f32", packed_floats<[](float a, float b) { return a * b; }>},
    {"v_pk_add_f32", packed_floats<[](float a, float b) { return a + b; }>},
    {"v_pk_mov_b32", packed_move},
    {"v_fma_mix_f32", mix<MixTo::kFloat>},
    {"v_fma_mixlo_f16", mix<MixTo::kLow>},
    {"v_fma_mixhi_f16", mix<MixTo::kHigh>},
    {"v_dot2_f32_f16", dot2<Half, float>},
    {"v_dot2_f32_bf16", dot2<Brain, float>},
    {"v_dot2acc_f32_f16", dot2<Half, float>},
    {"v_dot2_f16_f16", dot2<Half, Half>},
    {"v_dot2_bf16_bf16", dot2<Brain, Brain>},
    {"v_dot4_i32_iu8", dot_int<8, Signs::kBySource>},
    {"v_dot4_u32_u8", dot_int<8, Signs::kNone>},
    {"v_dot2_i32_i16", dot_int<16, Signs::kAll>},
    {"v_dot2_u32_u16", dot_int<16, Signs::kNone>},
    {"v_dot4_i32_i8", dot_int<8, Signs::kAll>},
    {"v_dot4c_i32_i8", dot_int<8, Signs::kAll>},
    {"v_dot8_i32_i4", dot_int<4, Signs::kAll>},
    {"v_dot8_i32_iu4", dot_int<4, Signs::kBySource>},
    {"v_dot8_u32_u4", dot_int<4, Signs::kNone>},
    {"v_dot4_f32_fp8_bf8", dot4_fp8<fp8_to_f32, bf8_to_f32>},
    {"v_dot4_f32_bf8_fp8", dot4_fp8<bf8_to_f32, fp8_to_f32>},
    {"v_dot4_f32_fp8_fp8", dot4_fp8<fp8_to_f32, fp8_to_f32>},
    {"v_dot4_f32_bf8_bf8", dot4_fp8<bf8_to_f32, bf8_to_f32>},
};

}  // namespace

std::span<const Semantics> vector_packed_ops() { return kVectorPackedOps; }

}  // namespace bm::sim::amd
