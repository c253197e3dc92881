#include "tests/sim/amd/exec/access_kind.h"

#include <algorithm>

#include "tests/sim/amd/exec/fp.h"

namespace bm::sim::amd {
namespace {

constexpr AccessKind kAccesses[] = {
    {"u8", 1},
    {"i8", 1, true},
    {"b8", 1},
    {"u16", 2},
    {"i16", 2, true},
    {"b16", 2},
    {"b32", 4},
    {"b64", 8},
    {"b96", 12},
    {"b128", 16},
    {"d16_u8", 1, false, true},
    {"d16_i8", 1, true, true},
    {"d16_b16", 2, false, true},
    {"d16_hi_u8", 1, false, true, true},
    {"d16_hi_i8", 1, true, true, true},
    {"d16_hi_b16", 2, false, true, true},
    {"d16_hi_b8", 1, false, true, true},
    {"u8_d16", 1, false, true},
    {"u8_d16_hi", 1, false, true, true},
    {"i8_d16", 1, true, true},
    {"i8_d16_hi", 1, true, true, true},
    {"u16_d16", 2, false, true},
    {"u16_d16_hi", 2, false, true, true},
    {"b8_d16_hi", 1, false, true, true},
    {"b16_d16_hi", 2, false, true, true},
};

using U64 = uint64_t;
using U32 = uint32_t;

template <class T>
T as(U64 bits) {
  if constexpr (sizeof(T) == 8)
    return std::bit_cast<T>(bits);
  else
    return std::bit_cast<T>(static_cast<U32>(bits));
}
template <class T>
U64 back(T value) {
  if constexpr (sizeof(T) == 8)
    return std::bit_cast<U64>(value);
  else
    return std::bit_cast<U32>(value);
}
template <class T, T (*F)(T, T)>
U64 with(U64 old, U64 data, U64) {
  return back<T>(F(as<T>(old), as<T>(data)));
}

template <class T>
T add(T a, T b) {
  return a + b;
}
template <class T>
T sub(T a, T b) {
  return a - b;
}
template <class T>
T reverse_sub(T a, T b) {
  return b - a;
}
template <class T>
T low(T a, T b) {
  return std::min(a, b);
}
template <class T>
T high(T a, T b) {
  return std::max(a, b);
}
template <class T>
T both(T a, T b) {
  return a & b;
}
template <class T>
T either(T a, T b) {
  return a | b;
}
template <class T>
T differ(T a, T b) {
  return a ^ b;
}
template <class T>
T second(T, T b) {
  return b;
}
/// Counts up to b and starts again.
template <class T>
T wrap_up(T a, T b) {
  return a >= b ? 0 : a + 1;
}
template <class T>
T wrap_down(T a, T b) {
  return a == 0 || a > b ? b : a - 1;
}
U32 sub_clamp(U32 a, U32 b) { return a < b ? 0 : a - b; }
U32 conditional_sub(U32 a, U32 b) { return a >= b ? a - b : a; }

U64 swap_if_equal(U64 old, U64 data, U64 compare) { return old == compare ? data : old; }
template <class T>
U64 swap_if_equal_float(U64 old, U64 data, U64 compare) {
  return as<T>(old) == as<T>(compare) ? data : old;
}
template <float (*Decode)(uint16_t), uint16_t (*Encode)(float)>
U64 add_pair(U64 old, U64 data, U64) {
  U32 sum = 0;
  for (int shift = 0; shift < 32; shift += 16)
    sum |= U32{Encode(Decode(static_cast<uint16_t>(old >> shift)) +
                      Decode(static_cast<uint16_t>(data >> shift)))}
           << shift;
  return sum;
}
float half(uint16_t a) { return f16_to_f32(a); }
uint16_t half_bits(float a) { return f32_to_f16(a); }
float brain(uint16_t a) { return bf16_to_f32(a); }
uint16_t brain_bits(float a) { return f32_to_bf16(a); }

constexpr AtomicKind kAtomics[] = {
    {"swap_b32", 4, false, with<U32, second>},
    {"swap_b64", 8, false, with<U64, second>},
    {"cmpswap_b32", 4, true, swap_if_equal},
    {"cmpswap_b64", 8, true, swap_if_equal},
    {"cmpswap_f32", 4, true, swap_if_equal_float<float>},
    {"cmpswap_f64", 8, true, swap_if_equal_float<double>},
    {"add_u32", 4, false, with<U32, add>},
    {"add_u64", 8, false, with<U64, add>},
    {"sub_u32", 4, false, with<U32, sub>},
    {"sub_u64", 8, false, with<U64, sub>},
    {"rsub_u32", 4, false, with<U32, reverse_sub>},
    {"rsub_u64", 8, false, with<U64, reverse_sub>},
    {"csub_u32", 4, false, with<U32, sub_clamp>},
    {"sub_clamp_u32", 4, false, with<U32, sub_clamp>},
    {"cond_sub_u32", 4, false, with<U32, conditional_sub>},
    {"min_i32", 4, false, with<int32_t, low>},
    {"min_i64", 8, false, with<int64_t, low>},
    {"min_u32", 4, false, with<U32, low>},
    {"min_u64", 8, false, with<U64, low>},
    {"max_i32", 4, false, with<int32_t, high>},
    {"max_i64", 8, false, with<int64_t, high>},
    {"max_u32", 4, false, with<U32, high>},
    {"max_u64", 8, false, with<U64, high>},
    {"and_b32", 4, false, with<U32, both>},
    {"and_b64", 8, false, with<U64, both>},
    {"or_b32", 4, false, with<U32, either>},
    {"or_b64", 8, false, with<U64, either>},
    {"xor_b32", 4, false, with<U32, differ>},
    {"xor_b64", 8, false, with<U64, differ>},
    {"inc_u32", 4, false, with<U32, wrap_up>},
    {"inc_u64", 8, false, with<U64, wrap_up>},
    {"dec_u32", 4, false, with<U32, wrap_down>},
    {"dec_u64", 8, false, with<U64, wrap_down>},
    {"add_f32", 4, false, with<float, add>},
    {"add_f64", 8, false, with<double, add>},
    {"min_f32", 4, false, with<float, min_num>},
    {"max_f32", 4, false, with<float, max_num>},
    {"min_f64", 8, false, with<double, min_num>},
    {"max_f64", 8, false, with<double, max_num>},
    {"pk_add_f16", 4, false, add_pair<half, half_bits>},
    {"pk_add_bf16", 4, false, add_pair<brain, brain_bits>},
};

struct Alias {
  std::string_view from, to;
};
constexpr Alias kAliases[] = {
    {"min_num_f32", "min_f32"},      {"max_num_f32", "max_f32"},
    {"min_num_f64", "min_f64"},      {"max_num_f64", "max_f64"},
    {"storexchg_b32", "swap_b32"},   {"storexchg_b64", "swap_b64"},
    {"cmpstore_b32", "cmpswap_b32"}, {"cmpstore_b64", "cmpswap_b64"},
    {"cmpstore_f32", "cmpswap_f32"}, {"cmpstore_f64", "cmpswap_f64"},
};

}  // namespace

const AccessKind* find_access(std::string_view name) {
  for (const AccessKind& kind : kAccesses)
    if (kind.name == name) return &kind;
  return nullptr;
}
const AtomicKind* find_atomic(std::string_view name) {
  for (const Alias& alias : kAliases)
    if (alias.from == name) name = alias.to;
  for (const AtomicKind& kind : kAtomics)
    if (kind.name == name) return &kind;
  return nullptr;
}

}  // namespace bm::sim::amd
