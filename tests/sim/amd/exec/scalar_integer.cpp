// SOP1, SOP2, SOPC and SOPK on integers and masks.

#include <limits>

#include "tests/sim/amd/exec/tables.h"

namespace bm::sim::amd {
namespace {

using U32 = uint32_t;
using U64 = uint64_t;
using I32 = int32_t;
using I64 = int64_t;

I32 as_signed(U32 a) { return static_cast<I32>(a); }
template <class T>
constexpr bool kIs64 = sizeof(T) == 8;

template <class T>
T source(const Wave& w, const Step& in, uint32_t i) {
  if constexpr (kIs64<T>)
    return static_cast<T>(w.in64(in, i, std::is_signed_v<T>));
  else
    return static_cast<T>(w.in32(in, i));
}
template <class T>
void result(Wave& w, const Step& in, T value) {
  if constexpr (kIs64<T>)
    w.write64(in.dst.code, static_cast<U64>(value));
  else
    w.write32(in.dst.code, static_cast<U32>(value));
}

enum class Scc : uint8_t { kKeep, kNonZero };

/// d = f(a, b)
template <auto F, class D, class A, class B, Scc S>
void binary(Wave& w, const Step& in) {
  const D d = static_cast<D>(F(source<A>(w, in, 0), source<B>(w, in, 1)));
  result<D>(w, in, d);
  if constexpr (S == Scc::kNonZero) w.scc = d != 0;
}
template <auto F, class D, class A, Scc S>
void unary(Wave& w, const Step& in) {
  const D d = static_cast<D>(F(source<A>(w, in, 0)));
  result<D>(w, in, d);
  if constexpr (S == Scc::kNonZero) w.scc = d != 0;
}

/// d, scc = f(a, b, scc)
template <auto F>
void carry(Wave& w, const Step& in) {
  bool out = w.scc;
  const U32 d = F(source<U32>(w, in, 0), source<U32>(w, in, 1), out);
  w.write32(in.dst.code, d);
  w.scc = out;
}
U32 add_carry(U32 a, U32 b, bool in, bool& out) {
  const U64 sum = U64{a} + b + in;
  out = sum >> 32 != 0;
  return static_cast<U32>(sum);
}
U32 sub_borrow(U32 a, U32 b, bool in, bool& out) {
  out = U64{a} < U64{b} + in;
  return a - b - in;
}
U32 add_signed(U32 a, U32 b, bool& overflow) {
  I32 d = 0;
  overflow = __builtin_add_overflow(as_signed(a), as_signed(b), &d);
  return static_cast<U32>(d);
}
U32 sub_signed(U32 a, U32 b, bool& overflow) {
  I32 d = 0;
  overflow = __builtin_sub_overflow(as_signed(a), as_signed(b), &d);
  return static_cast<U32>(d);
}

template <int Shift>
void shift_add(Wave& w, const Step& in) {
  const U64 sum = (U64{source<U32>(w, in, 0)} << Shift) + source<U32>(w, in, 1);
  w.write32(in.dst.code, static_cast<U32>(sum));
  w.scc = sum >> 32 != 0;
}

template <class T>
T bit_field(T value, U32 spec) {
  constexpr U32 kBits = sizeof(T) * 8;
  const U32 offset = spec & (kBits - 1), width = std::min<U32>(spec >> 16 & 0x7f, kBits);
  if (width == 0) return 0;
  using U = std::make_unsigned_t<T>;
  const U low = static_cast<U>(static_cast<U>(value) >> offset);
  if (width >= kBits)
    return std::is_signed_v<T> ? static_cast<T>(value >> offset) : static_cast<T>(low);
  // Beyond the value's end there are signs.
  const U whole = std::is_signed_v<T> ? static_cast<U>(value >> offset) : low;
  const U field = static_cast<U>(whole & ((U{1} << width) - 1));
  if constexpr (std::is_signed_v<T>) {
    const U32 up = kBits - width;
    return static_cast<T>(static_cast<T>(field << up) >> up);
  }
  return static_cast<T>(field);
}

template <class T, bool Max>
void extreme(Wave& w, const Step& in) {
  const T a = source<T>(w, in, 0), b = source<T>(w, in, 1);
  const bool first = Max ? a > b : a < b;
  result<T>(w, in, first ? a : b);
  w.scc = first;
}

template <class T>
T bit_reverse(T a) {
  T d = 0;
  for (size_t i = 0; i < sizeof(T) * 8; ++i, a = static_cast<T>(a >> 1))
    d = static_cast<T>(d << 1 | (a & 1));
  return d;
}
template <class T>
U32 leading_signs(T value) {  // places until a bit differs from the sign; -1: none does
  using U = std::make_unsigned_t<T>;
  const U folded = static_cast<U>(value ^ (value >> (sizeof(T) * 8 - 1)));
  return folded ? static_cast<U32>(std::countl_zero(folded)) : ~0u;
}
template <class T>
T quad_mask(T a) {
  T d = 0;
  for (size_t i = 0; i < sizeof(T) * 2; ++i) d |= static_cast<T>(T{(a >> (4 * i) & 0xf) != 0} << i);
  return d;
}
template <class T>
T whole_quads(T a) {
  T d = 0;
  for (size_t i = 0; i < sizeof(T) * 2; ++i)
    if (a >> (4 * i) & 0xf) d |= static_cast<T>(T{0xf} << (4 * i));
  return d;
}

U64 replicate(U32 a) {
  U64 d = 0;
  for (U32 i = 0; i < 32; ++i) d |= U64{a >> i & 1} * 3 << (2 * i);
  return d;
}

template <class T, bool Set>
void bit_set(Wave& w, const Step& in) {
  const U32 bit = source<U32>(w, in, 0) & (sizeof(T) * 8 - 1);
  const U64 old = kIs64<T> ? w.read64(in.dst.code, 0, false) : w.read32(in.dst.code, 0, '1');
  const U64 mask = U64{1} << bit;
  result<T>(w, in, static_cast<T>(Set ? old | mask : old & ~mask));
}

/// Saves EXEC and combines it with the source.
template <class T, auto F, bool WritesExecBack>
void save_exec(Wave& w, const Step& in) {
  const T a = source<T>(w, in, 0);
  const T old = static_cast<T>(w.read64(kExecLo, 0, false));
  const T next = static_cast<T>(F(a, old));
  if constexpr (WritesExecBack) {
    result<T>(w, in, next);
  } else {
    result<T>(w, in, old);
  }
  if constexpr (kIs64<T>)
    w.write64(kExecLo, next);
  else
    w.write32(kExecLo, static_cast<U32>(next));
  w.scc = next != 0;
}

template <class T, auto F>
void compare(Wave& w, const Step& in) {
  w.scc = F(source<T>(w, in, 0), source<T>(w, in, 1));
}
template <class T, bool One>
void bit_compare(Wave& w, const Step& in) {
  const U32 bit = source<U32>(w, in, 1) & (sizeof(T) * 8 - 1);
  w.scc = ((source<T>(w, in, 0) >> bit & 1) != 0) == One;
}

// ---- SOPK ----
U32 signed_imm(const Step& in) { return static_cast<U32>(I32{static_cast<int16_t>(in.imm)}); }
U32 destination(const Wave& w, const Step& in) { return w.read32(in.dst.code, 0, '1'); }

template <class T, auto F>
void compare_k(Wave& w, const Step& in) {
  const U32 imm = std::is_signed_v<T> ? signed_imm(in) : in.imm;
  w.scc = F(static_cast<T>(destination(w, in)), static_cast<T>(imm));
}

constexpr auto kIsEq = [](auto a, auto b) { return a == b; };
constexpr auto kIsNe = [](auto a, auto b) { return a != b; };
constexpr auto kIsGt = [](auto a, auto b) { return a > b; };
constexpr auto kIsGe = [](auto a, auto b) { return a >= b; };
constexpr auto kIsLt = [](auto a, auto b) { return a < b; };
constexpr auto kIsLe = [](auto a, auto b) { return a <= b; };

constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kOr = [](auto a, auto b) { return a | b; };
constexpr auto kXor = [](auto a, auto b) { return a ^ b; };
constexpr auto kNand = [](auto a, auto b) { return ~(a & b); };
constexpr auto kNor = [](auto a, auto b) { return ~(a | b); };
constexpr auto kXnor = [](auto a, auto b) { return ~(a ^ b); };
constexpr auto kAndNot1 = [](auto a, auto b) { return a & ~b; };
constexpr auto kOrNot1 = [](auto a, auto b) { return a | ~b; };
constexpr auto kAndNot0 = [](auto a, auto b) { return ~a & b; };
constexpr auto kOrNot0 = [](auto a, auto b) { return ~a | b; };

template <auto F, class T>
constexpr Handler kLogic = binary<F, T, T, T, Scc::kNonZero>;
template <auto F, class D, class A, class B>
constexpr Handler kSets = binary<F, D, A, B, Scc::kNonZero>;
template <auto F, class D, class A, class B>
constexpr Handler kKeeps = binary<F, D, A, B, Scc::kKeep>;

template <class T>
void select(Wave& w, const Step& in) {
  result<T>(w, in, source<T>(w, in, w.scc ? 0 : 1));
}
template <class T>
void move(Wave& w, const Step& in) {
  result<T>(w, in, source<T>(w, in, 0));
}
template <class T>
void conditional_move(Wave& w, const Step& in) {
  if (w.scc) move<T>(w, in);
}

void abs_i32(Wave& w, const Step& in) {
  const U32 a = source<U32>(w, in, 0);
  const U32 d = as_signed(a) < 0 ? 0 - a : a;
  w.write32(in.dst.code, d);
  w.scc = d != 0;
}

#define BM_SAVE(name, f)                                   \
  {"s_" name "_saveexec_b32", save_exec<U32, f, false>}, { \
    "s_" name "_saveexec_b64", save_exec<U64, f, false>    \
  }
#define BM_LOGIC(name, f) \
  {"s_" name "_b32", kLogic<f, U32>}, { "s_" name "_b64", kLogic<f, U64> }

constexpr Semantics kScalarIntegerOps[] = {
    {"s_add_u32", carry<[](U32 a, U32 b, bool& c) { return add_carry(a, b, false, c); }>},
    {"s_sub_u32", carry<[](U32 a, U32 b, bool& c) { return sub_borrow(a, b, false, c); }>},
    {"s_addc_u32", carry<[](U32 a, U32 b, bool& c) { return add_carry(a, b, c, c); }>},
    {"s_subb_u32", carry<[](U32 a, U32 b, bool& c) { return sub_borrow(a, b, c, c); }>},
    {"s_add_i32", carry<[](U32 a, U32 b, bool& c) { return add_signed(a, b, c); }>},
    {"s_sub_i32", carry<[](U32 a, U32 b, bool& c) { return sub_signed(a, b, c); }>},
    {"s_absdiff_i32", kSets<[](U32 a, U32 b) { return as_signed(a - b) < 0 ? b - a : a - b; }, U32, U32, U32>},
    {"s_lshl_b32", kSets<[](U32 a, U32 b) { return (a << (b & 31)); }, U32, U32, U32>},
    {"s_lshl_b64", kSets<[](U64 a, U32 b) { return (a << (b & 63)); }, U64, U64, U32>},
    {"s_lshr_b32", kSets<[](U32 a, U32 b) { return (a >> (b & 31)); }, U32, U32, U32>},
    {"s_lshr_b64", kSets<[](U64 a, U32 b) { return (a >> (b & 63)); }, U64, U64, U32>},
    {"s_ashr_i32", kSets<[](I32 a, U32 b) { return (a >> (b & 31)); }, I32, I32, U32>},
    {"s_ashr_i64", kSets<[](I64 a, U32 b) { return (a >> (b & 63)); }, I64, I64, U32>},
    {"s_lshl1_add_u32", shift_add<1>},
    {"s_lshl2_add_u32", shift_add<2>},
    {"s_lshl3_add_u32", shift_add<3>},
    {"s_lshl4_add_u32", shift_add<4>},
    {"s_min_i32", extreme<I32, false>},
    {"s_min_u32", extreme<U32, false>},
    {"s_max_i32", extreme<I32, true>},
    {"s_max_u32", extreme<U32, true>},
    BM_LOGIC("and", kAnd),
    BM_LOGIC("or", kOr),
    BM_LOGIC("xor", kXor),
    BM_LOGIC("nand", kNand),
    BM_LOGIC("nor", kNor),
    BM_LOGIC("xnor", kXnor),
    BM_LOGIC("and_not1", kAndNot1),
    BM_LOGIC("or_not1", kOrNot1),
    {"s_bfe_u32", kSets<[](U32 a, U32 b) { return bit_field(a, b); }, U32, U32, U32>},
    {"s_bfe_i32", kSets<[](I32 a, U32 b) { return bit_field(a, b); }, I32, I32, U32>},
    {"s_bfe_u64", kSets<[](U64 a, U32 b) { return bit_field(a, b); }, U64, U64, U32>},
    {"s_bfe_i64", kSets<[](I64 a, U32 b) { return bit_field(a, b); }, I64, I64, U32>},
    {"s_bfm_b32", kKeeps<[](U32 a, U32 b) { return (((1u << (a & 31)) - 1) << (b & 31)); }, U32, U32, U32>},
    {"s_bfm_b64", kKeeps<[](U32 a, U32 b) { return (((U64{1} << (a & 63)) - 1) << (b & 63)); }, U64, U32, U32>},
    {"s_mul_i32", kKeeps<[](U32 a, U32 b) { return a * b; }, U32, U32, U32>},
    {"s_mul_hi_u32", kKeeps<[](U32 a, U32 b) { return (U64{a} * b >> 32); }, U32, U32, U32>},
    {"s_mul_hi_i32", kKeeps<[](I32 a, I32 b) { return (I64{a} * b >> 32); }, I32, I32, I32>},
    {"s_cselect_b32", select<U32>},
    {"s_cselect_b64", select<U64>},
    {"s_pack_ll_b32_b16", kKeeps<[](U32 a, U32 b) { return ((a & 0xffff) | b << 16); }, U32, U32, U32>},
    {"s_pack_lh_b32_b16", kKeeps<[](U32 a, U32 b) { return (a & 0xffff) | (b & 0xffff0000); }, U32, U32, U32>},
    {"s_pack_hh_b32_b16", kKeeps<[](U32 a, U32 b) { return (a >> 16 | (b & 0xffff0000)); }, U32, U32, U32>},
    {"s_pack_hl_b32_b16", kKeeps<[](U32 a, U32 b) { return (a >> 16 | b << 16); }, U32, U32, U32>},
    {"s_add_nc_u64", kKeeps<[](U64 a, U64 b) { return a + b; }, U64, U64, U64>},
    {"s_sub_nc_u64", kKeeps<[](U64 a, U64 b) { return a - b; }, U64, U64, U64>},
    {"s_mul_u64", kKeeps<[](U64 a, U64 b) { return a * b; }, U64, U64, U64>},
    {"s_mov_b32", move<U32>},
    {"s_mov_b64", move<U64>},
    {"s_cmov_b32", conditional_move<U32>},
    {"s_cmov_b64", conditional_move<U64>},
    {"s_brev_b32", unary<[](U32 a) { return bit_reverse(a); }, U32, U32, Scc::kKeep>},
    {"s_brev_b64", unary<[](U64 a) { return bit_reverse(a); }, U64, U64, Scc::kKeep>},
    {"s_ff0_i32_b32", unary<[](U32 a) { return ~a ? std::countr_one(a) : -1; }, I32, U32, Scc::kKeep>},
    {"s_ff0_i32_b64", unary<[](U64 a) { return ~a ? std::countr_one(a) : -1; }, I32, U64, Scc::kKeep>},
    {"s_ctz_i32_b32", unary<[](U32 a) { return a ? std::countr_zero(a) : -1; }, I32, U32, Scc::kKeep>},
    {"s_ctz_i32_b64", unary<[](U64 a) { return a ? std::countr_zero(a) : -1; }, I32, U64, Scc::kKeep>},
    {"s_clz_i32_u32", unary<[](U32 a) { return a ? std::countl_zero(a) : -1; }, I32, U32, Scc::kKeep>},
    {"s_clz_i32_u64", unary<[](U64 a) { return a ? std::countl_zero(a) : -1; }, I32, U64, Scc::kKeep>},
    {"s_cls_i32", unary<[](I32 a) { return leading_signs(a); }, U32, I32, Scc::kKeep>},
    {"s_cls_i32_i64", unary<[](I64 a) { return leading_signs(a); }, U32, I64, Scc::kKeep>},
    {"s_sext_i32_i8", unary<[](U32 a) { return static_cast<int8_t>(a); }, I32, U32, Scc::kKeep>},
    {"s_sext_i32_i16", unary<[](U32 a) { return static_cast<int16_t>(a); }, I32, U32, Scc::kKeep>},
    {"s_bitset0_b32", bit_set<U32, false>},
    {"s_bitset0_b64", bit_set<U64, false>},
    {"s_bitset1_b32", bit_set<U32, true>},
    {"s_bitset1_b64", bit_set<U64, true>},
    {"s_bitreplicate_b64_b32", unary<[](U32 a) { return replicate(a); }, U64, U32, Scc::kKeep>},
    {"s_abs_i32", abs_i32},
    {"s_bcnt0_i32_b32", unary<[](U32 a) { return 32 - std::popcount(a); }, I32, U32, Scc::kNonZero>},
    {"s_bcnt0_i32_b64", unary<[](U64 a) { return 64 - std::popcount(a); }, I32, U64, Scc::kNonZero>},
    {"s_bcnt1_i32_b32", unary<[](U32 a) { return std::popcount(a); }, I32, U32, Scc::kNonZero>},
    {"s_bcnt1_i32_b64", unary<[](U64 a) { return std::popcount(a); }, I32, U64, Scc::kNonZero>},
    {"s_quadmask_b32", unary<[](U32 a) { return quad_mask(a); }, U32, U32, Scc::kNonZero>},
    {"s_quadmask_b64", unary<[](U64 a) { return quad_mask(a); }, U64, U64, Scc::kNonZero>},
    {"s_wqm_b32", unary<[](U32 a) { return whole_quads(a); }, U32, U32, Scc::kNonZero>},
    {"s_wqm_b64", unary<[](U64 a) { return whole_quads(a); }, U64, U64, Scc::kNonZero>},
    {"s_not_b32", unary<[](U32 a) { return ~a; }, U32, U32, Scc::kNonZero>},
    {"s_not_b64", unary<[](U64 a) { return ~a; }, U64, U64, Scc::kNonZero>},
    BM_SAVE("and", kAnd),
    BM_SAVE("or", kOr),
    BM_SAVE("xor", kXor),
    BM_SAVE("nand", kNand),
    BM_SAVE("nor", kNor),
    BM_SAVE("xnor", kXnor),
    BM_SAVE("and_not0", kAndNot0),
    BM_SAVE("or_not0", kOrNot0),
    BM_SAVE("and_not1", kAndNot1),
    BM_SAVE("or_not1", kOrNot1),
    {"s_and_not0_wrexec_b32", save_exec<U32, kAndNot0, true>},
    {"s_and_not0_wrexec_b64", save_exec<U64, kAndNot0, true>},
    {"s_and_not1_wrexec_b32", save_exec<U32, kAndNot1, true>},
    {"s_and_not1_wrexec_b64", save_exec<U64, kAndNot1, true>},
    {"s_cmp_eq_i32", compare<I32, kIsEq>},
    {"s_cmp_lg_i32", compare<I32, kIsNe>},
    {"s_cmp_gt_i32", compare<I32, kIsGt>},
    {"s_cmp_ge_i32", compare<I32, kIsGe>},
    {"s_cmp_lt_i32", compare<I32, kIsLt>},
    {"s_cmp_le_i32", compare<I32, kIsLe>},
    {"s_cmp_eq_u32", compare<U32, kIsEq>},
    {"s_cmp_lg_u32", compare<U32, kIsNe>},
    {"s_cmp_gt_u32", compare<U32, kIsGt>},
    {"s_cmp_ge_u32", compare<U32, kIsGe>},
    {"s_cmp_lt_u32", compare<U32, kIsLt>},
    {"s_cmp_le_u32", compare<U32, kIsLe>},
    {"s_cmp_eq_u64", compare<U64, kIsEq>},
    {"s_cmp_lg_u64", compare<U64, kIsNe>},
    {"s_bitcmp0_b32", bit_compare<U32, false>},
    {"s_bitcmp1_b32", bit_compare<U32, true>},
    {"s_bitcmp0_b64", bit_compare<U64, false>},
    {"s_bitcmp1_b64", bit_compare<U64, true>},
    {"s_movk_i32", [](Wave& w, const Step& in) { w.write32(in.dst.code, signed_imm(in)); }},
    {"s_cmovk_i32", [](Wave& w, const Step& in) { if (w.scc) w.write32(in.dst.code, signed_imm(in)); }},
    {"s_cmpk_eq_i32", compare_k<I32, kIsEq>},
    {"s_cmpk_lg_i32", compare_k<I32, kIsNe>},
    {"s_cmpk_gt_i32", compare_k<I32, kIsGt>},
    {"s_cmpk_ge_i32", compare_k<I32, kIsGe>},
    {"s_cmpk_lt_i32", compare_k<I32, kIsLt>},
    {"s_cmpk_le_i32", compare_k<I32, kIsLe>},
    {"s_cmpk_eq_u32", compare_k<U32, kIsEq>},
    {"s_cmpk_lg_u32", compare_k<U32, kIsNe>},
    {"s_cmpk_gt_u32", compare_k<U32, kIsGt>},
    {"s_cmpk_ge_u32", compare_k<U32, kIsGe>},
    {"s_cmpk_lt_u32", compare_k<U32, kIsLt>},
    {"s_cmpk_le_u32", compare_k<U32, kIsLe>},
    {"s_addk_i32", [](Wave& w, const Step& in) {
       bool overflow = false;
       const U32 d = add_signed(destination(w, in), signed_imm(in), overflow);
       w.write32(in.dst.code, d);
       w.scc = overflow;
     }},
    {"s_mulk_i32", [](Wave& w, const Step& in) {
       w.write32(in.dst.code, destination(w, in) * signed_imm(in));
     }},
};

#undef BM_SAVE
#undef BM_LOGIC

}  // namespace

std::span<const Semantics> scalar_integer_ops() { return kScalarIntegerOps; }

}  // namespace bm::sim::amd
