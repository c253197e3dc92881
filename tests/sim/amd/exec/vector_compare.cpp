// V_CMP, V_CMPX and their classes. The name says all: v_cmp[x]_<relation>_<type>.

#include "tests/sim/amd/exec/valu.h"

namespace bm::sim::amd {
namespace {

enum class Relation : uint8_t {
  kF,
  kLt,
  kEq,
  kLe,
  kGt,
  kLg,
  kGe,
  kO,
  kU,
  kNge,
  kNlg,
  kNgt,
  kNle,
  kNeq,
  kNlt,
  kT
};

template <Relation R, class T>
bool holds(T a, T b) {
  if constexpr (std::is_same_v<T, Half>)
    return holds<R, float>(a.value, b.value);
  else {
    const bool ordered = a == a && b == b;
    switch (R) {
      case Relation::kF: return false;
      case Relation::kLt: return a < b;
      case Relation::kEq: return a == b;
      case Relation::kLe: return a <= b;
      case Relation::kGt: return a > b;
      case Relation::kLg: return a < b || a > b;
      case Relation::kGe: return a >= b;
      case Relation::kO: return ordered;
      case Relation::kU: return !ordered;
      case Relation::kNge: return !(a >= b);
      case Relation::kNlg: return !(a < b || a > b);
      case Relation::kNgt: return !(a > b);
      case Relation::kNle: return !(a <= b);
      case Relation::kNeq: return !(a == b);
      case Relation::kNlt: return !(a < b);
      case Relation::kT: return true;
    }
    return false;
  }
}

/// Lanes that are off become 0; with X the mask replaces EXEC.
void write_result(Wave& w, const Step& in, uint64_t mask, bool to_exec) {
  mask &= w.active();
  if (to_exec) w.write_mask_to(kExecLo, mask);
  // CDNA's v_cmpx writes both.
  if (to_exec && w.isa != Isa::kGfx9) return;
  w.write_mask_to(in.dst.dwords ? in.dst.code : kVccLo, mask);
}

template <Relation R, class T, bool X>
void compare(Wave& w, const Step& in) {
  alignas(64) Raw<T> a[kMaxLanes], b[kMaxLanes];
  alignas(64) uint8_t hit[kMaxLanes];
  fetch<T>(w, in, 0, a);
  fetch<T>(w, in, 1, b);
  for (uint32_t l = 0; l < w.lanes; ++l) hit[l] = holds<R, T>(from_raw<T>(a[l]), from_raw<T>(b[l]));
  uint64_t mask = 0;
  for (uint32_t l = 0; l < w.lanes; ++l) mask |= uint64_t{hit[l]} << l;
  write_result(w, in, mask, X);
}

template <class T>
struct Bits;
template <>
struct Bits<float> {
  static constexpr uint64_t kQuiet = 1u << 22, kExponent = 0x7f800000u;
};
template <>
struct Bits<double> {
  static constexpr uint64_t kQuiet = uint64_t{1} << 51, kExponent = 0x7ff0000000000000u;
};
template <>
struct Bits<Half> {
  static constexpr uint64_t kQuiet = 1u << 9, kExponent = 0x7c00u;
};

template <class T, bool X>
void classify(Wave& w, const Step& in) {
  alignas(64) Raw<T> a[kMaxLanes];
  alignas(64) uint32_t b[kMaxLanes];
  const uint32_t mode = w.mode;
  w.mode |= kDenormIn32 | kDenormIn64;  // denormals are told apart in every mode
  fetch<T>(w, in, 0, a);
  w.mode = mode;
  fetch<uint32_t>(w, in, 1, b);
  uint64_t mask = 0;
  for (uint32_t l = 0; l < w.lanes; ++l) {
    const bool quiet_nan = a[l] & Bits<T>::kQuiet, denormal = !(a[l] & Bits<T>::kExponent);
    const T value = from_raw<T>(a[l]);
    bool hit = false;
    if constexpr (std::is_same_v<T, Half>)
      hit = in_class(value.value, quiet_nan, denormal, b[l]);
    else
      hit = in_class(value, quiet_nan, denormal, b[l]);
    mask |= uint64_t{hit} << l;
  }
  write_result(w, in, mask, X);
}

constexpr std::string_view kRelations[] = {"f", "lt",  "eq",  "le",  "gt",  "lg",  "ge",  "o",
                                           "u", "nge", "nlg", "ngt", "nle", "neq", "nlt", "t"};

template <class T, bool X, size_t... I>
Handler pick(size_t relation, std::index_sequence<I...>) {
  Handler found = nullptr;
  ((I == relation ? (found = compare<static_cast<Relation>(I), T, X>, 0) : 0), ...);
  return found;
}
template <class T, bool X>
Handler of_relation(std::string_view name) {
  if (name == "class") {
    if constexpr (kIsFloat<T>) return classify<T, X>;
    return nullptr;
  }
  // Integers say "ne" for "lg".
  if (name == "ne") name = "lg";
  for (size_t i = 0; i < std::size(kRelations); ++i)
    if (kRelations[i] == name)
      return pick<T, X>(i, std::make_index_sequence<std::size(kRelations)>());
  return nullptr;
}
template <bool X>
Handler of_type(std::string_view relation, std::string_view type) {
  if (type == "f16") return of_relation<Half, X>(relation);
  if (type == "f32") return of_relation<float, X>(relation);
  if (type == "f64") return of_relation<double, X>(relation);
  if (type == "i16") return of_relation<int16_t, X>(relation);
  if (type == "u16") return of_relation<uint16_t, X>(relation);
  if (type == "i32") return of_relation<int32_t, X>(relation);
  if (type == "u32") return of_relation<uint32_t, X>(relation);
  if (type == "i64") return of_relation<int64_t, X>(relation);
  if (type == "u64") return of_relation<uint64_t, X>(relation);
  return nullptr;
}

}  // namespace

Handler compare_handler(std::string_view name) {
  const bool x = name.starts_with("v_cmpx_");
  if (!x && !name.starts_with("v_cmp_")) return nullptr;
  name.remove_prefix(x ? 7 : 6);
  const size_t split = name.rfind('_');
  if (split == std::string_view::npos) return nullptr;
  const std::string_view relation = name.substr(0, split), type = name.substr(split + 1);
  return x ? of_type<true>(relation, type) : of_type<false>(relation, type);
}

}  // namespace bm::sim::amd
