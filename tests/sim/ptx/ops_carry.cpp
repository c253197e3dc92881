// add.cc, addc, sub.cc, subc, mad.cc, madc: one carry bit per thread. A borrow is a carry of one.
#include "tests/sim/ptx/dispatch.h"

namespace bm::sim::ptx {
namespace {

template <class T>
struct Wide;
template <>
struct Wide<uint32_t> {
  using type = uint64_t;
};
template <>
struct Wide<uint64_t> {
  using type = Uint128;
};

template <class T, Carry kWhat, bool kReads, bool kWrites>
void carry(Exec& x, const Inst& in) {
  using W = typename Wide<T>::type;
  T* d = x.reg<T>(in.op[0]);
  const T *a = x.reg<T>(in.op[1]), *b = x.reg<T>(in.op[2]), *c = x.reg<T>(in.op[3]);
  uint8_t* flag = x.reg<uint8_t>(in.op[4]);
  const bool is_signed = in.flag;
  each(x, [=](uint32_t i) {
    const W before = kReads ? flag[i] : 0;
    W sum = 0;
    if constexpr (kWhat == Carry::kAdd) {
      sum = static_cast<W>(a[i]) + b[i] + before;
    } else if constexpr (kWhat == Carry::kSub) {
      sum = static_cast<W>(a[i]) - b[i] - before;
    } else {
      W product = static_cast<W>(a[i]) * b[i];
      if constexpr (kWhat == Carry::kMadHigh) {
        T high = static_cast<T>(product >> (8 * sizeof(T)));
        // The high half of the signed product, from that of the unsigned one.
        if (is_signed && (a[i] >> (8 * sizeof(T) - 1))) high -= b[i];
        if (is_signed && (b[i] >> (8 * sizeof(T) - 1))) high -= a[i];
        product = high;
      }
      sum = static_cast<W>(static_cast<T>(product)) + c[i] + before;
    }
    d[i] = static_cast<T>(sum);
    if (kWrites) flag[i] = static_cast<uint8_t>((sum >> (8 * sizeof(T))) & 1);
  });
}

template <class T, Carry kWhat>
Handler pick(bool reads, bool writes) {
  if (reads) return writes ? &carry<T, kWhat, true, true> : &carry<T, kWhat, true, false>;
  return &carry<T, kWhat, false, true>;
}
template <class T>
Handler pick(Carry what, bool reads, bool writes) {
  switch (what) {
    case Carry::kAdd: return pick<T, Carry::kAdd>(reads, writes);
    case Carry::kSub: return pick<T, Carry::kSub>(reads, writes);
    case Carry::kMadLow: return pick<T, Carry::kMadLow>(reads, writes);
    case Carry::kMadHigh: return pick<T, Carry::kMadHigh>(reads, writes);
  }
  return nullptr;
}

template <Carry kWhat>
Status lower_reading(Builder& b) {
  return lower_carry(b, kWhat, true);
}

Status lower_madc(Builder& b) {
  if (b.has(".hi")) return lower_carry(b, Carry::kMadHigh, true);
  if (b.has(".lo")) return lower_carry(b, Carry::kMadLow, true);
  return b.unknown_form();
}

constexpr Operation kCarryOperations[] = {
    {"addc", &lower_reading<Carry::kAdd>},
    {"subc", &lower_reading<Carry::kSub>},
    {"madc", &lower_madc},
};

}  // namespace

std::span<const Operation> carry_operations() { return kCarryOperations; }

Status lower_carry(Builder& b, Carry what, bool reads) {
  const bool writes = b.has(".cc") || !reads;
  const Type t = b.next_type();
  const uint32_t bytes = type_bytes(t);
  const bool is_integer =
      type_class(t) == TypeClass::kUnsigned || type_class(t) == TypeClass::kSigned;
  if (!is_integer || bytes < 4) return b.unknown_form();
  const size_t sources = what == Carry::kAdd || what == Carry::kSub ? 2 : 3;
  BM_TRY(b.expect_operands(sources + 1, sources + 1));
  uint32_t op[3] = {};
  for (size_t i = 0; i < sources; ++i) op[i] = BM_TRY(b.in(i + 1, t));
  const uint32_t d = BM_TRY(b.out(0, t));
  Inst& in =
      b.emit(bytes == 4 ? pick<uint32_t>(what, reads, writes) : pick<uint64_t>(what, reads, writes),
             {d, op[0], op[1], op[2], b.carry_place()});
  in.flag = type_class(t) == TypeClass::kSigned;
  return {};
}

}  // namespace bm::sim::ptx
