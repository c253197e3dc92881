// ld, st, cvta, isspacep, prefetch and its kin.
#include <algorithm>

#include "tests/sim/ptx/dispatch.h"
#include "tests/sim/ptx/memory_access.h"
#include "tests/sim/ptx/memory_suffixes.h"

namespace bm::sim::ptx {
namespace {

struct Bits128 {
  uint64_t low, high;
};

/// Each element whole: host threads may run other blocks, and the host may look on.
template <class T>
T load_one(const std::byte* p) {
  if constexpr (sizeof(T) == 16) {
    const auto* q = reinterpret_cast<const uint64_t*>(p);
    return {__atomic_load_n(q, __ATOMIC_RELAXED), __atomic_load_n(q + 1, __ATOMIC_RELAXED)};
  } else {
    return __atomic_load_n(reinterpret_cast<const T*>(p), __ATOMIC_RELAXED);
  }
}
template <class T>
void store_one(std::byte* p, T v) {
  if constexpr (sizeof(T) == 16) {
    auto* q = reinterpret_cast<uint64_t*>(p);
    __atomic_store_n(q, v.low, __ATOMIC_RELAXED);
    __atomic_store_n(q + 1, v.high, __ATOMIC_RELAXED);
  } else {
    __atomic_store_n(reinterpret_cast<T*>(p), v, __ATOMIC_RELAXED);
  }
}

/// Elements of type T into registers of type R. Inst::flag: acquire or release.
template <class T, class R>
void load(Exec& x, const Inst& in) {
  const uint32_t bytes = static_cast<uint32_t>(sizeof(T)) * in.count;
  if (!resolve(x, in, in.op[kAddressOp], bytes, Access::kRead)) return;
  if (in.space == Space::kGlobal) count_sectors(x, in, in.op[kAddressOp], bytes, Access::kRead);
  if (in.space == Space::kShared) count_banks(x, bytes);
  for (uint32_t e = 0; e < in.count; ++e) {
    R* d = x.reg<R>(in.op[e]);
    each_thread(x, [&](uint32_t i) {
      if constexpr (sizeof(T) == 16)
        d[i] = load_one<T>(x.pointers[i] + e * sizeof(T));
      else
        d[i] = static_cast<R>(load_one<T>(x.pointers[i] + e * sizeof(T)));
    });
  }
  if (in.flag) std::atomic_thread_fence(std::memory_order_acquire);
}
template <class T, class R>
void store(Exec& x, const Inst& in) {
  if (in.flag) std::atomic_thread_fence(std::memory_order_release);
  const uint32_t bytes = static_cast<uint32_t>(sizeof(T)) * in.count;
  if (!resolve(x, in, in.op[kAddressOp], bytes, Access::kWrite)) return;
  if (in.space == Space::kGlobal) count_sectors(x, in, in.op[kAddressOp], bytes, Access::kWrite);
  if (in.space == Space::kShared) count_banks(x, bytes);
  for (uint32_t e = 0; e < in.count; ++e) {
    const R* a = x.reg<R>(in.op[e]);
    each_thread(x, [&](uint32_t i) {
      if constexpr (sizeof(T) == 16)
        store_one<T>(x.pointers[i] + e * sizeof(T), a[i]);
      else
        store_one<T>(x.pointers[i] + e * sizeof(T), static_cast<T>(a[i]));
    });
  }
}

template <class T, bool kLoad>
Handler pick(uint32_t reg_bytes) {
  const auto of = []<class R>(R) -> Handler {
    if constexpr (sizeof(R) < sizeof(T))
      return nullptr;
    else if constexpr (kLoad)
      return &load<T, R>;
    else
      return &store<T, R>;
  };
  switch (reg_bytes) {
    case 1: return of(uint8_t{});
    case 2: return of(uint16_t{});
    case 4: return of(uint32_t{});
    case 8: return of(uint64_t{});
    default: return nullptr;
  }
}
template <bool kLoad>
Handler pick(Type t, uint32_t reg_bytes) {
  const bool is_signed = type_class(t) == TypeClass::kSigned && kLoad;
  switch (type_bytes(t)) {
    case 1: return is_signed ? pick<int8_t, kLoad>(reg_bytes) : pick<uint8_t, kLoad>(reg_bytes);
    case 2: return is_signed ? pick<int16_t, kLoad>(reg_bytes) : pick<uint16_t, kLoad>(reg_bytes);
    case 4: return is_signed ? pick<int32_t, kLoad>(reg_bytes) : pick<uint32_t, kLoad>(reg_bytes);
    case 8: return pick<uint64_t, kLoad>(reg_bytes);
    case 16:
      if (reg_bytes != 16) return nullptr;
      if constexpr (kLoad)
        return &load<Bits128, Bits128>;
      else
        return &store<Bits128, Bits128>;
    default: return nullptr;
  }
}

/// Integers and bits may sit in wider registers; a float needs one of its size.
bool fits(Type reg, Type t) {
  if (type_bytes(reg) == type_bytes(t)) return types_agree(reg, t);
  return type_bytes(reg) > type_bytes(t) && type_class(reg) != TypeClass::kFloat &&
         type_class(t) != TypeClass::kFloat && type_class(reg) != TypeClass::kPredicate;
}

template <bool kLoad>
Status lower_access(Builder& b) {
  const MemorySuffixes m = take_memory_suffixes(b);
  const Type t = b.next_type();
  if (t == Type::kNone || t == Type::kPred) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 3));
  const Operand &value = b.operand(kLoad ? 0 : 1), &where = b.operand(kLoad ? 1 : 0);
  std::vector<const Operand*> elements;
  if (value.kind == Operand::Kind::kVector)
    for (const Operand& o : value.elements) elements.push_back(&o);
  else
    elements.push_back(&value);
  if (elements.size() != m.vector || type_bytes(t) * m.vector > 32)
    return b.error("vector does not fit the instruction");
  uint32_t op[8] = {};
  Handler run = nullptr;
  for (size_t i = 0; i < elements.size(); ++i) {
    const Builder::Register r =
        kLoad ? BM_TRY(b.out_any(*elements[i], t)) : BM_TRY(b.in_any(*elements[i], t));
    if (!fits(r.type, t))
      return b.error(fmt::format("register of type .{} for .{}", type_name(r.type), type_name(t)));
    const Handler one = pick<kLoad>(t, type_bytes(r.type));
    if (!one || (run && run != one)) return b.error("registers of different sizes");
    run = one;
    op[i] = r.place;
  }
  const Builder::Address a = BM_TRY(b.address(where, m.space));
  if (!kLoad && a.space == Space::kParam) return b.error("store to a kernel's parameter");
  Inst& in = b.emit(run);
  std::copy_n(op, elements.size(), in.op);
  in.count = static_cast<uint8_t>(m.vector);
  in.flag = m.is_ordered;
  set_address(in, a);
  return {};
}

template <class T>
void move_window(Exec& x, const Inst& in) {
  T* d = x.reg<T>(in.op[0]);
  const T* a = x.reg<T>(in.op[1]);
  const auto delta = static_cast<T>(in.imm);
  each(x, [=](uint32_t i) { d[i] = static_cast<T>(a[i] + delta); });
}
uint64_t window_of(Space space) {
  if (space == Space::kShared) return kSharedWindow;
  if (space == Space::kLocal) return kLocalWindow;
  return space == Space::kParam ? kParamWindow : 0;
}
Status lower_cvta(Builder& b) {
  const bool is_to = b.has(".to");
  const MemorySuffixes m = take_memory_suffixes(b);
  const Type t = b.next_type();
  if (t != Type::kU64 || m.space == Space::kGeneric) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 2));
  const uint32_t a = BM_TRY(b.in(1, t));
  const uint64_t window = window_of(m.space);
  b.emit(&move_window<uint64_t>, {BM_TRY(b.out(0, t)), a}).imm = is_to ? ~window + 1 : window;
  return {};
}
void is_in_space(Exec& x, const Inst& in) {
  uint8_t* d = x.reg<uint8_t>(in.op[0]);
  const uint64_t* a = x.reg<uint64_t>(in.op[1]);
  const uint64_t window = in.imm;
  each(x, [=](uint32_t i) {
    const uint64_t found = a[i] & kWindowMask;
    const bool is_window = found == kSharedWindow || found == kLocalWindow || found == kParamWindow;
    d[i] = window ? found == window : !is_window;
  });
}
Status lower_isspacep(Builder& b) {
  const bool is_const = b.has(".const");
  const MemorySuffixes m = take_memory_suffixes(b);
  BM_TRY(b.expect_operands(2, 2));
  const uint32_t a = BM_TRY(b.in(1, Type::kU64));
  // Constants live in the image, at global addresses.
  b.emit(&is_in_space, {BM_TRY(b.out(0, Type::kPred)), a}).imm =
      is_const ? kPrivateImage | 1 : window_of(m.space);
  return {};
}

/// Hints have no effect here; their operands are not even looked at.
Status lower_hint(Builder& b) {
  while (!b.next_suffix().empty()) {}
  return {};
}
template <class T>
void write_zero(Exec& x, const Inst& in) {
  T* d = x.reg<T>(in.op[0]);
  each(x, [=](uint32_t i) { d[i] = T{0}; });
}
Status lower_createpolicy(Builder& b) {
  while (!b.next_suffix().empty()) {}
  b.emit(&write_zero<uint64_t>, {BM_TRY(b.out(0, Type::kB64))});
  return {};
}

constexpr Operation kMemoryOperations[] = {
    {"ld", &lower_access<true>},    {"ldu", &lower_access<true>},
    {"st", &lower_access<false>},   {"cvta", &lower_cvta},
    {"isspacep", &lower_isspacep},  {"prefetch", &lower_hint},
    {"prefetchu", &lower_hint},     {"discard", &lower_hint},
    {"applypriority", &lower_hint}, {"createpolicy", &lower_createpolicy},
};

}  // namespace

std::span<const Operation> memory_operations() { return kMemoryOperations; }

void set_address(Inst& in, const Builder::Address& a) {
  in.op[kAddressOp] = a.base;
  in.is_wide = a.is_wide;
  in.imm = a.offset;
  in.space = a.space;
}

uint32_t operand_or(Builder& b, size_t i, uint64_t otherwise) {
  if (i >= b.operand_count()) return b.constant(otherwise, 4);
  const auto place = b.in(i, Type::kB32);
  return place ? *place : kNone;
}

MemorySuffixes take_memory_suffixes(Builder& b) {
  MemorySuffixes out;
  constexpr std::string_view kHints[] = {
      ".weak", ".volatile", ".relaxed", ".cta", ".cluster", ".gpu", ".sys", ".mmio", ".ca",
      ".cg",   ".cs",       ".lu",      ".cv",  ".wb",      ".wt",  ".nc",  ".noftz"};
  for (const std::string_view name : kHints) b.has(name);
  out.is_ordered = b.has(".acquire") || b.has(".release") || b.has(".acq_rel");
  b.has(".acquire"), b.has(".release");
  constexpr std::string_view kPrefixed[] = {".L1::evict_normal", ".L1::evict_unchanged",
                                            ".L1::evict_first",  ".L1::evict_last",
                                            ".L1::no_allocate",  ".L2::64B",
                                            ".L2::128B",         ".L2::256B",
                                            ".L2::cache_hint",   ".L2::evict_first",
                                            ".L2::evict_last",   ".L2::evict_normal"};
  for (const std::string_view name : kPrefixed) b.has(name);
  out.space = Space::kGeneric;
  if (b.has(".global") || b.has(".const")) out.space = Space::kGlobal;
  if (b.has(".shared") || b.has(".shared::cta") || b.has(".shared::cluster"))
    out.space = Space::kShared;
  if (b.has(".local")) out.space = Space::kLocal;
  if (b.has(".param") || b.has(".param::entry") || b.has(".param::func")) out.space = Space::kParam;
  if (b.has(".v2")) out.vector = 2;
  if (b.has(".v4")) out.vector = 4;
  if (b.has(".v8")) out.vector = 8;
  return out;
}

}  // namespace bm::sim::ptx
