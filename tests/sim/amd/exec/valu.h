#pragma once
// Lane loops of vector operations. An operation is a stateless lambda on values; its parameter
// types say how operands are read (float, double, Half, Brain, integers of 16, 32 and 64 bits).

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "tests/sim/amd/exec/fp.h"
#include "tests/sim/amd/exec/tables.h"

namespace bm::sim::amd {

template <class T>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, Brain>;
template <class T>
inline constexpr bool kIs16 = std::is_same_v<T, Half> || std::is_same_v<T, Brain> ||
                              std::is_same_v<T, uint16_t> || std::is_same_v<T, int16_t>;

/// What a lane of a register column becomes: 64 bits for doubles and long integers.
template <class T>
using Raw = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

/// Permutes `column` (src0 as read) and narrows Wave::write_mask as DPP says.
void apply_dpp(Wave& w, const Step& in, uint32_t* column);

/// The byte or half of `raw` that SDWA names for source `i`.
inline uint32_t sdwa_part(const Sdwa& sdwa, uint32_t i, uint32_t raw) {
  const uint8_t select = sdwa.source[i];
  if (select >= Sdwa::kWhole) return raw;
  const uint32_t width = select < 4 ? 8 : 16, shift = select < 4 ? select * 8u : (select - 4) * 16u;
  const uint32_t up = 32 - width, top = raw >> shift << up;
  return sdwa.sign_extend[i] ? static_cast<uint32_t>(static_cast<int32_t>(top) >> up) : top >> up;
}

template <class T>
void fetch_whole(Wave& w, const Step& in, const Slot& slot, uint32_t i, Raw<T>* out);

/// Source `i` as lanes, without modifiers but DPP and SDWA's selection.
template <class T>
void fetch_raw(Wave& w, const Step& in, const Slot& slot, uint32_t i, Raw<T>* out) {
  fetch_whole<T>(w, in, slot, i, out);
  if constexpr (sizeof(T) < 8) {
    if (!in.sdwa.on || i > 1) return;
    w.honored |= modifier::kSdwaSource << i;
    for (uint32_t l = 0; l < w.lanes; ++l) out[l] = sdwa_part(in.sdwa, i, out[l]);
  }
}

/// Source `i` as a whole.
template <class T>
void fetch_whole(Wave& w, const Step& in, const Slot& slot, uint32_t i, Raw<T>* out) {
  if constexpr (sizeof(T) == 8) {
    if (slot.is_vgpr()) {
      const uint32_t* lo = w.reg(slot.code - kVgpr);
      const uint32_t* hi = slot.dwords > 1 ? lo + w.lanes : nullptr;
      for (uint32_t l = 0; l < w.lanes; ++l) out[l] = (hi ? uint64_t{hi[l]} << 32 : 0) | lo[l];
      if (i == 0 && in.dpp.kind != DppKind::kOff) {
        uint32_t part[2][kMaxLanes];
        for (uint32_t l = 0; l < w.lanes; ++l) {
          part[0][l] = static_cast<uint32_t>(out[l]);
          part[1][l] = static_cast<uint32_t>(out[l] >> 32);
        }
        const uint64_t mask = w.write_mask;
        apply_dpp(w, in, part[0]);
        w.write_mask = mask;
        apply_dpp(w, in, part[1]);
        for (uint32_t l = 0; l < w.lanes; ++l) out[l] = uint64_t{part[1][l]} << 32 | part[0][l];
      }
      return;
    }
    uint64_t value = 0;
    if constexpr (std::is_same_v<T, double>)  // a literal is the upper half
      value = slot.code == kLiteral ? uint64_t{in.literal} << 32
                                    : w.read64(slot.code, in.literal, false);
    else
      value = w.read64(slot.code, in.literal, std::is_signed_v<T>);
    std::fill_n(out, w.lanes, value);
  } else {
    if (slot.is_vgpr()) {
      std::copy_n(w.reg(slot.code - kVgpr), w.lanes, out);
      if (i == 0 && in.dpp.kind != DppKind::kOff) apply_dpp(w, in, out);
      return;
    }
    const char width = std::is_same_v<T, Half> ? 'h' : kIs16<T> ? 'i' : slot.width;
    uint32_t value = w.read32(slot.code, in.literal, width);
    if constexpr (std::is_same_v<T, Brain>)
      if (slot.code >= 240 && slot.code <= 248) value = constant32(slot.code) >> 16;
    std::fill_n(out, w.lanes, value);
  }
}

template <class T>
T from_raw(Raw<T> raw) {
  if constexpr (std::is_same_v<T, Half>)
    return {f16_to_f32(static_cast<uint16_t>(raw))};
  else if constexpr (std::is_same_v<T, Brain>)
    return {bf16_to_f32(static_cast<uint16_t>(raw))};
  else if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<T>(raw);
  else
    return static_cast<T>(raw);
}
template <class T>
Raw<T> to_raw(T value) {
  if constexpr (std::is_same_v<T, Half>)
    return f32_to_f16(value.value);
  else if constexpr (std::is_same_v<T, Brain>)
    return f32_to_bf16(value.value);
  else if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<Raw<T>>(value);
  else if constexpr (sizeof(T) == 2)
    return static_cast<uint16_t>(value);
  else
    return static_cast<Raw<T>>(value);
}

template <class T>
bool flushes_in(const Wave& w) {
  if constexpr (std::is_same_v<T, float>)
    return !(w.mode & kDenormIn32);
  else
    return kIsFloat<T> && !(w.mode & kDenormIn64);
}
template <class T>
bool flushes_out(const Wave& w) {
  if constexpr (std::is_same_v<T, float>)
    return !(w.mode & kDenormOut32);
  else
    return kIsFloat<T> && !(w.mode & kDenormOut64);
}

template <class T>
Raw<T> sign_bit() {
  return Raw<T>{1} << (kIs16<T> ? 15 : sizeof(T) * 8 - 1);
}

/// Source `i` with op_sel, abs, neg and denormal mode applied.
template <class T>
void fetch(Wave& w, const Step& in, uint32_t i, Raw<T>* out) {
  fetch_raw<T>(w, in, in.src[i], i, out);
  if constexpr (kIs16<T>) {
    w.honored |= modifier::kOpSel << i;
    if (in.format() != Format::kVop3P && in.op_sel >> i & 1)
      for (uint32_t l = 0; l < w.lanes; ++l) out[l] >>= 16;
  }
  if constexpr (kIsFloat<T>) {
    w.honored |= (modifier::kNeg | modifier::kAbs) << i;
    if (in.abs >> i & 1)
      for (uint32_t l = 0; l < w.lanes; ++l) out[l] &= ~sign_bit<T>();
    if (in.neg >> i & 1)
      for (uint32_t l = 0; l < w.lanes; ++l) out[l] ^= sign_bit<T>();
    if (flushes_in<T>(w)) {
      for (uint32_t l = 0; l < w.lanes; ++l) {
        if constexpr (std::is_same_v<T, Half>)
          out[l] = flush_half(static_cast<uint16_t>(out[l]));
        else if constexpr (std::is_floating_point_v<T>)
          out[l] = to_raw<T>(flush(from_raw<T>(out[l])));
      }
    }
  }
}

/// SDWA's way to write: the lower bits of the result go to the byte or half that it names.
inline void store_part(Wave& w, const Step& in, uint32_t all, const uint32_t* value, uint32_t* d) {
  w.honored |= modifier::kSdwaTarget;
  const uint8_t select = in.sdwa.target;
  const uint32_t width = select >= Sdwa::kWhole ? 32 : select < 4 ? 8 : 16;
  const uint32_t shift = width == 32 ? 0 : select < 4 ? select * 8u : (select - 4) * 16u;
  const uint32_t mask = (width == 32 ? ~0u : (1u << width) - 1) << shift;
  each_lane(w.active(), [&](uint32_t l) {
    const uint32_t part = (value[l] & all) << shift & mask;
    uint32_t rest = 0;
    if (in.sdwa.rest == 2) rest = d[l] & ~mask;
    // The sign fills what lies above; below are zeros.
    if (in.sdwa.rest == 1 && part >> (shift + width - 1) & 1) rest = ~((mask - 1) | mask);
    d[l] = part | rest;
  });
}

/// Writes the lanes that are on; a 16-bit result keeps the other half of the register, on CDNA only
/// where it is the upper one. Source: LLVM 19, GCNSubtarget::zeroesHigh16BitsOfDest.
template <class T>
void store(Wave& w, const Step& in, const Raw<T>* value) {
  const uint64_t active = w.active();
  uint32_t* d = w.reg(in.dst.code - kVgpr);
  if constexpr (sizeof(T) < 8) {
    if (in.sdwa.on) return store_part(w, in, kIs16<T> ? 0xffff : ~0u, value, d);
  }
  if constexpr (kIs16<T>) {
    w.honored |= modifier::kTarget;
    const uint32_t shift = in.format() != Format::kVop3P && in.op_sel & 8 ? 16 : 0;
    const uint32_t kept = w.isa == Isa::kGfx9 && shift == 0 ? 0 : ~(0xffffu << shift);
    each_lane(active, [=](uint32_t l) { d[l] = (d[l] & kept) | (value[l] & 0xffff) << shift; });
  } else if constexpr (sizeof(T) == 8) {
    uint32_t* hi = d + w.lanes;
    each_lane(active, [=](uint32_t l) {
      d[l] = static_cast<uint32_t>(value[l]);
      hi[l] = static_cast<uint32_t>(value[l] >> 32);
    });
  } else {
    if (active == w.all_lanes())
      std::copy_n(value, w.lanes, d);
    else
      each_lane(active, [=](uint32_t l) { d[l] = value[l]; });
  }
}

template <class T>
T clamped(T v) {
  if constexpr (std::is_same_v<T, Half>)
    return {clamped(v.value)};
  else if constexpr (std::is_same_v<T, Brain>)
    return {clamped(v.value)};
  else
    return v > T{0} ? (v < T{1} ? v : T{1}) : T{0};  // NaN and -0 become 0
}

/// Output modifiers of a float result: clamp, denormal mode, and omod where the mode has it.
/// Source: RDNA3 ISA guide, "Output modifiers".
template <class T>
void finish_float(Wave& w, const Step& in, Raw<T>* value) {
  if constexpr (kIsFloat<T>) {
    w.honored |= modifier::kClamp | modifier::kOmod;
    // Not in IEEE mode (MODE bit 9; RDNA4 has none) and not where denormals are kept.
    if (in.omod && flushes_out<T>(w) && (w.isa == Isa::kGfx12 || !(w.mode >> 9 & 1))) {
      constexpr float kFactor[] = {1, 2, 4, 0.5f};
      for (uint32_t l = 0; l < w.lanes; ++l) {
        T v = from_raw<T>(value[l]);
        if constexpr (std::is_floating_point_v<T>)
          v *= static_cast<T>(kFactor[in.omod]);
        else
          v.value *= kFactor[in.omod];
        value[l] = to_raw<T>(v);
      }
    }
    if (in.clamp)
      for (uint32_t l = 0; l < w.lanes; ++l) value[l] = to_raw<T>(clamped(from_raw<T>(value[l])));
    if (flushes_out<T>(w))
      for (uint32_t l = 0; l < w.lanes; ++l) {
        if constexpr (std::is_same_v<T, Half>)
          value[l] = flush_half(static_cast<uint16_t>(value[l]));
        else if constexpr (std::is_floating_point_v<T>)
          value[l] = to_raw<T>(flush(from_raw<T>(value[l])));
      }
  }
}

template <class F>
struct Signature;
template <class C, class R, class... A>
struct Signature<R (C::*)(A...) const> {
  using Result = R;
  using Args = std::tuple<A...>;
};
template <auto F>
using SignatureOf = Signature<decltype(&decltype(F)::operator())>;

/// d = F(src0, src1, …)
template <auto F>
void vop(Wave& w, const Step& in) {
  using S = SignatureOf<F>;
  using R = typename S::Result;
  using Args = typename S::Args;
  constexpr size_t kArgs = std::tuple_size_v<Args>;
  alignas(64) Raw<R> d[kMaxLanes];
  if constexpr (kArgs == 1) {
    using A = std::tuple_element_t<0, Args>;
    alignas(64) Raw<A> a[kMaxLanes];
    fetch<A>(w, in, 0, a);
    for (uint32_t l = 0; l < w.lanes; ++l) d[l] = to_raw<R>(F(from_raw<A>(a[l])));
  } else if constexpr (kArgs == 2) {
    using A = std::tuple_element_t<0, Args>;
    using B = std::tuple_element_t<1, Args>;
    alignas(64) Raw<A> a[kMaxLanes];
    alignas(64) Raw<B> b[kMaxLanes];
    fetch<A>(w, in, 0, a);
    fetch<B>(w, in, 1, b);
    for (uint32_t l = 0; l < w.lanes; ++l)
      d[l] = to_raw<R>(F(from_raw<A>(a[l]), from_raw<B>(b[l])));
  } else {
    using A = std::tuple_element_t<0, Args>;
    using B = std::tuple_element_t<1, Args>;
    using C = std::tuple_element_t<2, Args>;
    alignas(64) Raw<A> a[kMaxLanes];
    alignas(64) Raw<B> b[kMaxLanes];
    alignas(64) Raw<C> c[kMaxLanes];
    fetch<A>(w, in, 0, a);
    fetch<B>(w, in, 1, b);
    fetch<C>(w, in, 2, c);
    for (uint32_t l = 0; l < w.lanes; ++l)
      d[l] = to_raw<R>(F(from_raw<A>(a[l]), from_raw<B>(b[l]), from_raw<C>(c[l])));
  }
  finish_float<R>(w, in, d);
  store<R>(w, in, d);
}

/// Integer operations that saturate when `clamp` is set: F's int64_t result is exact.
template <class T, auto F>
void saturating(Wave& w, const Step& in) {
  alignas(64) uint32_t a[kMaxLanes], b[kMaxLanes], c[kMaxLanes];
  fetch<T>(w, in, 0, a);
  fetch<T>(w, in, 1, b);
  w.honored |= modifier::kClamp;
  constexpr bool kThree = std::is_invocable_v<decltype(F), int64_t, int64_t, int64_t>;
  if constexpr (kThree) fetch<T>(w, in, 2, c);
  for (uint32_t l = 0; l < w.lanes; ++l) {
    int64_t r = 0;
    if constexpr (kThree)
      r = F(int64_t{from_raw<T>(a[l])}, int64_t{from_raw<T>(b[l])}, int64_t{from_raw<T>(c[l])});
    else
      r = F(int64_t{from_raw<T>(a[l])}, int64_t{from_raw<T>(b[l])});
    if (in.clamp)
      r = std::clamp(r, int64_t{std::numeric_limits<T>::min()},
                     int64_t{std::numeric_limits<T>::max()});
    a[l] = to_raw<T>(static_cast<T>(r));
  }
  store<T>(w, in, a);
}

}  // namespace bm::sim::amd
