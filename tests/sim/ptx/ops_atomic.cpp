// atom, red.
#include <algorithm>
#include <cmath>

#include "tests/sim/ptx/dispatch.h"
#include "tests/sim/ptx/memory_access.h"
#include "tests/sim/ptx/memory_suffixes.h"

namespace bm::sim::ptx {
namespace {

struct AtomicAdd {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    else
      return a + b;
  }
};
/// A NaN loses against a number.
struct AtomicMin {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct AtomicMax {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};
struct AtomicAnd {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct AtomicOr {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct AtomicXor {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};
struct AtomicExchange {
  template <class T>
  T operator()(T, T b) const {
    return b;
  }
};
struct AtomicIncrement {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a >= b ? 0 : a + 1; }
};
struct AtomicDecrement {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a == 0 || a > b ? b : a - 1; }
};

/// op[0] old value or kNone, op[1] operand. Lanes in ascending order.
template <class F, class T>
void update(Exec& x, const Inst& in) {
  using L = Lane<T>;
  using S = typename L::Storage;
  using Bits = std::conditional_t<sizeof(S) == 2, uint16_t,
                                  std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>>;
  if (!resolve(x, in, in.op[kAddressOp], sizeof(S), Access::kAtomic)) return;
  S* d = in.op[0] == kNone ? nullptr : x.reg<S>(in.op[0]);
  const S* b = x.reg<S>(in.op[1]);
  each_thread(x, [&](uint32_t i) {
    auto* p = reinterpret_cast<Bits*>(x.pointers[i]);
    Bits before = __atomic_load_n(p, __ATOMIC_RELAXED), after = 0;
    const S operand = b[i];
    do {
      const S old = std::bit_cast<S>(before);
      S made{};
      for (int part = 0; part < L::kParts; ++part)
        L::set(made, part, F{}(L::get(old, part), L::get(operand, part)));
      after = std::bit_cast<Bits>(made);
    } while (
        !__atomic_compare_exchange_n(p, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    if (d) d[i] = std::bit_cast<S>(before);
  });
}
template <class T>
void compare_and_swap(Exec& x, const Inst& in) {
  if (!resolve(x, in, in.op[kAddressOp], sizeof(T), Access::kAtomic)) return;
  T* d = x.reg<T>(in.op[0]);
  const T *wanted = x.reg<T>(in.op[1]), *made = x.reg<T>(in.op[2]);
  each_thread(x, [&](uint32_t i) {
    T before = wanted[i];
    const T value = made[i];
    __atomic_compare_exchange_n(reinterpret_cast<T*>(x.pointers[i]), &before, value, false,
                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    d[i] = before;
  });
}

template <class F>
Handler bits_update(Type t) {
  if (type_class(t) != TypeClass::kBits) return nullptr;
  if (type_bytes(t) == 4) return &update<F, uint32_t>;
  return type_bytes(t) == 8 ? &update<F, uint64_t> : nullptr;
}
template <class F>
Handler integer_update(Type t) {
  switch (t) {
    case Type::kU32: return &update<F, uint32_t>;
    case Type::kS32: return &update<F, int32_t>;
    case Type::kU64: return &update<F, uint64_t>;
    case Type::kS64: return &update<F, int64_t>;
    default: return nullptr;
  }
}
Handler float_add(Type t) {
  switch (t) {
    case Type::kF32: return &update<AtomicAdd, float>;
    case Type::kF64: return &update<AtomicAdd, double>;
    case Type::kF16: return &update<AtomicAdd, Half>;
    case Type::kBF16: return &update<AtomicAdd, Brain>;
    case Type::kF16x2: return &update<AtomicAdd, Half2>;
    case Type::kBF16x2: return &update<AtomicAdd, Brain2>;
    default: return nullptr;
  }
}
Handler pick(std::string_view op, Type t) {
  if (op == ".add")
    return type_class(t) == TypeClass::kFloat ? float_add(t) : integer_update<AtomicAdd>(t);
  if (op == ".min") return integer_update<AtomicMin>(t);
  if (op == ".max") return integer_update<AtomicMax>(t);
  if (op == ".and") return bits_update<AtomicAnd>(t);
  if (op == ".or") return bits_update<AtomicOr>(t);
  if (op == ".xor") return bits_update<AtomicXor>(t);
  if (op == ".exch") return bits_update<AtomicExchange>(t);
  if (op == ".inc" && t == Type::kU32) return &update<AtomicIncrement, uint32_t>;
  if (op == ".dec" && t == Type::kU32) return &update<AtomicDecrement, uint32_t>;
  return nullptr;
}
Handler pick_cas(Type t) {
  if (type_class(t) != TypeClass::kBits) return nullptr;
  if (type_bytes(t) == 2) return &compare_and_swap<uint16_t>;
  if (type_bytes(t) == 4) return &compare_and_swap<uint32_t>;
  return type_bytes(t) == 8 ? &compare_and_swap<uint64_t> : nullptr;
}

template <bool kReturns>
Status lower_atomic(Builder& b) {
  const MemorySuffixes m = take_memory_suffixes(b);
  const std::string_view op = b.next_suffix();
  const Type t = b.next_type();
  const bool is_cas = op == ".cas" && kReturns;
  const Handler run = is_cas ? pick_cas(t) : pick(op, t);
  const bool is_memory =
      m.space == Space::kGlobal || m.space == Space::kShared || m.space == Space::kGeneric;
  if (!run || m.vector != 1 || !is_memory) return b.unknown_form();
  const size_t first = kReturns ? 1 : 0, wanted = first + (is_cas ? 3 : 2);
  BM_TRY(b.expect_operands(wanted, wanted + 1));
  const uint32_t value = BM_TRY(b.in(first + 1, t));
  const uint32_t made = is_cas ? BM_TRY(b.in(first + 2, t)) : kNone;
  const uint32_t old = kReturns ? BM_TRY(b.out(0, t)) : kNone;
  const Builder::Address a = BM_TRY(b.address(b.operand(first), m.space));
  set_address(b.emit(run, {old, value, made}), a);
  return {};
}

constexpr Operation kAtomicOperations[] = {{"atom", &lower_atomic<true>},
                                           {"red", &lower_atomic<false>}};

}  // namespace

std::span<const Operation> atomic_operations() { return kAtomicOperations; }

}  // namespace bm::sim::ptx
