#pragma once
// Lane loops over typed columns. T is an arithmetic type or one of the tags below; a functor sees
// what the type computes in: itself, or float for the 16-bit formats.

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "runtime/base/half.h"
#include "tests/sim/ptx/exec.h"

namespace bm::sim::ptx {

struct Half {};
struct Brain {};
struct Half2 {};
struct Brain2 {};
struct Pred {};
template <class T>
struct Pair16 {};

template <class T>
struct Lane {
  using Storage = T;
  using Value = T;
  static constexpr int kParts = 1;
  static T get(T bits, int) { return bits; }
  static void set(T& bits, int, T value) { bits = value; }
};
template <>
struct Lane<Pred> {
  using Storage = uint8_t;
  using Value = bool;
  static constexpr int kParts = 1;
  static bool get(uint8_t bits, int) { return bits != 0; }
  static void set(uint8_t& bits, int, bool value) { bits = value; }
};
template <>
struct Lane<Half> {
  using Storage = uint16_t;
  using Value = float;
  static constexpr int kParts = 1;
  static float get(uint16_t bits, int) { return f16_to_f32(bits); }
  static void set(uint16_t& bits, int, float value) { bits = f32_to_f16(value); }
};
template <>
struct Lane<Brain> {
  using Storage = uint16_t;
  using Value = float;
  static constexpr int kParts = 1;
  static float get(uint16_t bits, int) { return bf16_to_f32(bits); }
  static void set(uint16_t& bits, int, float value) { bits = f32_to_bf16(value); }
};
template <class One>
struct PackedLane {
  using Storage = uint32_t;
  using Value = float;
  static constexpr int kParts = 2;
  static float get(uint32_t bits, int part) {
    return Lane<One>::get(static_cast<uint16_t>(bits >> (16 * part)), 0);
  }
  static void set(uint32_t& bits, int part, float value) {
    uint16_t half = 0;
    Lane<One>::set(half, 0, value);
    bits = part ? ((bits & 0xffffu) | (uint32_t{half} << 16)) : half;
  }
};
template <>
struct Lane<Half2> : PackedLane<Half> {};
template <>
struct Lane<Brain2> : PackedLane<Brain> {};

template <class T>
struct Lane<Pair16<T>> {
  using Storage = uint32_t;
  using Value = T;
  static constexpr int kParts = 2;
  static T get(uint32_t bits, int part) { return static_cast<T>(bits >> (16 * part)); }
  static void set(uint32_t& bits, int part, T value) {
    const uint32_t half = static_cast<uint16_t>(value);
    bits = part ? ((bits & 0xffffu) | (half << 16)) : half;
  }
};

/// d = f(a…), all of type T. Operands: destination, sources.
template <class F, class T>
void map1(Exec& x, const Inst& in) {
  using L = Lane<T>;
  using S = typename L::Storage;
  S* d = x.reg<S>(in.op[0]);
  const S* a = x.reg<S>(in.op[1]);
  each(x, [=](uint32_t i) {
    const S va = a[i];
    S out{};
    for (int p = 0; p < L::kParts; ++p) L::set(out, p, F{}(L::get(va, p)));
    d[i] = out;
  });
}

template <class F, class T>
void map2(Exec& x, const Inst& in) {
  using L = Lane<T>;
  using S = typename L::Storage;
  S* d = x.reg<S>(in.op[0]);
  const S* a = x.reg<S>(in.op[1]);
  const S* b = x.reg<S>(in.op[2]);
  each(x, [=](uint32_t i) {
    const S va = a[i], vb = b[i];
    S out{};
    for (int p = 0; p < L::kParts; ++p) L::set(out, p, F{}(L::get(va, p), L::get(vb, p)));
    d[i] = out;
  });
}

template <class F, class T>
void map3(Exec& x, const Inst& in) {
  using L = Lane<T>;
  using S = typename L::Storage;
  S* d = x.reg<S>(in.op[0]);
  const S* a = x.reg<S>(in.op[1]);
  const S* b = x.reg<S>(in.op[2]);
  const S* c = x.reg<S>(in.op[3]);
  each(x, [=](uint32_t i) {
    const S va = a[i], vb = b[i], vc = c[i];
    S out{};
    for (int p = 0; p < L::kParts; ++p)
      L::set(out, p, F{}(L::get(va, p), L::get(vb, p), L::get(vc, p)));
    d[i] = out;
  });
}

/// d = f(a) with plain types of their own.
template <class F, class D, class A>
void mapx1(Exec& x, const Inst& in) {
  D* d = x.reg<D>(in.op[0]);
  const A* a = x.reg<A>(in.op[1]);
  each(x, [=](uint32_t i) { d[i] = F{}(a[i]); });
}

template <class F, class D, class A, class B>
void mapx2(Exec& x, const Inst& in) {
  D* d = x.reg<D>(in.op[0]);
  const A* a = x.reg<A>(in.op[1]);
  const B* b = x.reg<B>(in.op[2]);
  each(x, [=](uint32_t i) { d[i] = F{}(a[i], b[i]); });
}

template <class F, class D, class A, class B, class C>
void mapx3(Exec& x, const Inst& in) {
  D* d = x.reg<D>(in.op[0]);
  const A* a = x.reg<A>(in.op[1]);
  const B* b = x.reg<B>(in.op[2]);
  const C* c = x.reg<C>(in.op[3]);
  each(x, [=](uint32_t i) { d[i] = F{}(a[i], b[i], c[i]); });
}

template <class F, class D, class A, class B, class C, class E>
void mapx4(Exec& x, const Inst& in) {
  D* d = x.reg<D>(in.op[0]);
  const A* a = x.reg<A>(in.op[1]);
  const B* b = x.reg<B>(in.op[2]);
  const C* c = x.reg<C>(in.op[3]);
  const E* e = x.reg<E>(in.op[4]);
  each(x, [=](uint32_t i) { d[i] = F{}(a[i], b[i], c[i], e[i]); });
}

}  // namespace bm::sim::ptx
