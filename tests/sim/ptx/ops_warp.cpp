// shfl, vote, activemask, match, redux, elect, ldmatrix, stmatrix, movmatrix.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/sim/ptx/dispatch.h"
#include "tests/sim/ptx/memory_access.h"
#include "tests/sim/ptx/memory_suffixes.h"
#include "tests/sim/ptx/warps.h"

namespace bm::sim::ptx {
namespace {

enum class Shuffle : uint8_t { kUp, kDown, kButterfly, kIndex };

/// op: d, a, b, c, mask, p.
template <Shuffle kMode>
void shuffle(Exec& x, const Inst& in) {
  uint32_t* d = x.reg<uint32_t>(in.op[0]);
  const uint32_t *a = x.reg<uint32_t>(in.op[1]), *b = x.reg<uint32_t>(in.op[2]),
                 *c = x.reg<uint32_t>(in.op[3]);
  uint8_t* p = in.op[5] == kNone ? nullptr : x.reg<uint8_t>(in.op[5]);
  each_warp(x, [&](uint32_t first, std::span<const uint16_t> lanes) {
    std::array<uint32_t, kWarp> before;
    std::copy_n(a + first, kWarp, before.begin());
    for (const uint16_t i : lanes) {
      const int32_t lane = i - static_cast<int32_t>(first);
      const auto segment = static_cast<int32_t>((c[i] >> 8) & 31);
      const auto clamp = static_cast<int32_t>(c[i] & 31), by = static_cast<int32_t>(b[i] & 31);
      const int32_t most = (lane & segment) | (clamp & ~segment), least = lane & segment;
      int32_t from = 0;
      switch (kMode) {
        case Shuffle::kUp: from = lane - by; break;
        case Shuffle::kDown: from = lane + by; break;
        case Shuffle::kButterfly: from = lane ^ by; break;
        case Shuffle::kIndex: from = least | (by & ~segment); break;
      }
      const bool is_inside = kMode == Shuffle::kUp ? from >= most : from <= most;
      d[i] = before[static_cast<size_t>(is_inside ? from : lane)];
      if (p) p[i] = is_inside;
    }
  });
}
Status lower_shfl(Builder& b) {
  const bool is_sync = b.has(".sync");
  Handler run = nullptr;
  if (b.has(".up")) run = &shuffle<Shuffle::kUp>;
  if (b.has(".down")) run = &shuffle<Shuffle::kDown>;
  if (b.has(".bfly")) run = &shuffle<Shuffle::kButterfly>;
  if (b.has(".idx")) run = &shuffle<Shuffle::kIndex>;
  if (!is_sync || !run || b.next_type() != Type::kB32) return b.unknown_form();
  BM_TRY(b.expect_operands(5, 5));
  uint32_t op[5] = {};
  for (size_t i = 1; i < 5; ++i) op[i] = BM_TRY(b.in(i, Type::kB32));
  const auto [d, p] = BM_TRY(b.out_pair(0, Type::kB32, Type::kPred));
  b.emit(run, {d, op[1], op[2], op[3], op[4], p}, Flow::kWarpPlain).mask_op = 4;
  return {};
}

enum class Vote : uint8_t { kAll, kAny, kUniform, kBallot };
/// op: d, predicate, mask.
template <Vote kVote>
void vote(Exec& x, const Inst& in) {
  const uint8_t* p = x.reg<uint8_t>(in.op[1]);
  each_warp(x, [&](uint32_t first, std::span<const uint16_t> lanes) {
    uint32_t ayes = 0;
    for (const uint16_t i : lanes) ayes |= uint32_t{p[i] != 0} << (i - first);
    const auto count = static_cast<size_t>(std::popcount(ayes));
    for (const uint16_t i : lanes) {
      if (kVote == Vote::kBallot)
        x.reg<uint32_t>(in.op[0])[i] = ayes;
      else
        x.reg<uint8_t>(in.op[0])[i] = kVote == Vote::kAll   ? count == lanes.size()
                                      : kVote == Vote::kAny ? count != 0
                                                            : count == 0 || count == lanes.size();
    }
  });
}
Status lower_vote(Builder& b) {
  if (!b.has(".sync")) return b.unknown_form();
  Handler run = nullptr;
  if (b.has(".all")) run = &vote<Vote::kAll>;
  if (b.has(".any")) run = &vote<Vote::kAny>;
  if (b.has(".uni")) run = &vote<Vote::kUniform>;
  const bool is_ballot = b.has(".ballot");
  if (is_ballot) run = &vote<Vote::kBallot>;
  const Type t = b.next_type();
  if (!run || t != (is_ballot ? Type::kB32 : Type::kPred)) return b.unknown_form();
  BM_TRY(b.expect_operands(3, 3));
  const uint32_t p = BM_TRY(b.in(1, Type::kPred)), mask = BM_TRY(b.in(2, Type::kB32));
  b.emit(run, {BM_TRY(b.out(0, t)), p, mask}, Flow::kWarpPlain).mask_op = 2;
  return {};
}

void active_mask(Exec& x, const Inst& in) {
  uint32_t* d = x.reg<uint32_t>(in.op[0]);
  each_warp(x, [&](uint32_t first, std::span<const uint16_t> lanes) {
    uint32_t mask = 0;
    for (const uint16_t i : lanes) mask |= 1u << (i - first);
    for (const uint16_t i : lanes) d[i] = mask;
  });
}
Status lower_activemask(Builder& b) {
  if (b.next_type() != Type::kB32) return b.unknown_form();
  BM_TRY(b.expect_operands(1, 1));
  b.emit(&active_mask, {BM_TRY(b.out(0, Type::kB32))});
  return {};
}

/// op: d, a, mask, p.
template <class T, bool kAll>
void match(Exec& x, const Inst& in) {
  uint32_t* d = x.reg<uint32_t>(in.op[0]);
  const T* a = x.reg<T>(in.op[1]);
  each_warp(x, [&](uint32_t first, std::span<const uint16_t> lanes) {
    std::array<uint32_t, kWarp> found{};
    for (const uint16_t i : lanes)
      for (const uint16_t j : lanes)
        if (a[i] == a[j]) found[i - first] |= 1u << (j - first);
    for (const uint16_t i : lanes) {
      const bool is_all = static_cast<size_t>(std::popcount(found[i - first])) == lanes.size();
      d[i] = !kAll || is_all ? found[i - first] : 0;
      if (kAll && in.op[3] != kNone) x.reg<uint8_t>(in.op[3])[i] = is_all;
    }
  });
}
Status lower_match(Builder& b) {
  const bool all = b.has(".all"), any = b.has(".any"), is_sync = b.has(".sync");
  const Type t = b.next_type();
  if (all == any || !is_sync || (t != Type::kB32 && t != Type::kB64)) return b.unknown_form();
  BM_TRY(b.expect_operands(3, 3));
  const uint32_t a = BM_TRY(b.in(1, t)), mask = BM_TRY(b.in(2, Type::kB32));
  const auto [d, p] = BM_TRY(b.out_pair(0, Type::kB32, Type::kPred));
  const Handler run = t == Type::kB32 ? (all ? &match<uint32_t, true> : &match<uint32_t, false>)
                                      : (all ? &match<uint64_t, true> : &match<uint64_t, false>);
  b.emit(run, {d, a, mask, p}, Flow::kWarpPlain).mask_op = 2;
  return {};
}

enum class Reduce : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor };
template <Reduce kOp, class T>
void reduce(Exec& x, const Inst& in) {
  T* d = x.reg<T>(in.op[0]);
  const T* a = x.reg<T>(in.op[1]);
  each_warp(x, [&](uint32_t, std::span<const uint16_t> lanes) {
    T sum = a[lanes.front()];
    for (const uint16_t i : lanes.subspan(1)) {
      if (kOp == Reduce::kAdd)
        sum = static_cast<T>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(a[i]));
      if (kOp == Reduce::kMin) sum = std::min(sum, a[i]);
      if (kOp == Reduce::kMax) sum = std::max(sum, a[i]);
      if (kOp == Reduce::kAnd) sum = sum & a[i];
      if (kOp == Reduce::kOr) sum = sum | a[i];
      if (kOp == Reduce::kXor) sum = sum ^ a[i];
    }
    for (const uint16_t i : lanes) d[i] = sum;
  });
}
Status lower_redux(Builder& b) {
  if (!b.has(".sync")) return b.unknown_form();
  const std::string_view op = b.next_suffix();
  const Type t = b.next_type();
  Handler run = nullptr;
  const auto numeric = [&](Handler u, Handler s) {
    run = t == Type::kU32 ? u : t == Type::kS32 ? s : nullptr;
  };
  if (op == ".add") numeric(&reduce<Reduce::kAdd, uint32_t>, &reduce<Reduce::kAdd, int32_t>);
  if (op == ".min") numeric(&reduce<Reduce::kMin, uint32_t>, &reduce<Reduce::kMin, int32_t>);
  if (op == ".max") numeric(&reduce<Reduce::kMax, uint32_t>, &reduce<Reduce::kMax, int32_t>);
  if (t == Type::kB32) {
    if (op == ".and") run = &reduce<Reduce::kAnd, uint32_t>;
    if (op == ".or") run = &reduce<Reduce::kOr, uint32_t>;
    if (op == ".xor") run = &reduce<Reduce::kXor, uint32_t>;
  }
  if (!run) return b.unknown_form();
  BM_TRY(b.expect_operands(3, 3));
  const uint32_t a = BM_TRY(b.in(1, t)), mask = BM_TRY(b.in(2, Type::kB32));
  b.emit(run, {BM_TRY(b.out(0, t)), a, mask}, Flow::kWarpPlain).mask_op = 2;
  return {};
}

/// The lowest lane leads.
void elect(Exec& x, const Inst& in) {
  each_warp(x, [&](uint32_t first, std::span<const uint16_t> lanes) {
    for (const uint16_t i : lanes) {
      x.reg<uint32_t>(in.op[0])[i] = lanes.front() - first;
      if (in.op[2] != kNone) x.reg<uint8_t>(in.op[2])[i] = i == lanes.front();
    }
  });
}
Status lower_elect(Builder& b) {
  if (!b.has(".sync")) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 2));
  const uint32_t mask = BM_TRY(b.in(1, Type::kB32));
  const auto [d, p] = BM_TRY(b.out_pair(0, Type::kB32, Type::kPred));
  b.emit(&elect, {d, mask, p}, Flow::kWarpPlain).mask_op = 1;
  return {};
}

/// 8x8 matrices of 16 bits: lane 8m+r gives the address of row r of matrix m and holds elements
/// (lane / 4, lane % 4 * 2 + {0, 1}) of each matrix, or their mirror image.
template <bool kLoad>
void move_matrix(Exec& x, const Inst& in) {
  const uint32_t matrices = in.count;
  if (!need_whole_warps(x, in)) return;
  // Only the first lanes' addresses mean anything.
  std::array<uint16_t, kMaxBlock> some;
  uint32_t n = 0;
  for (uint32_t k = 0; k < x.count; ++k)
    if (x.active[k] % kWarp < 8 * matrices) some[n++] = x.active[k];
  Exec rows = x;
  rows.active = some.data();
  rows.count = n;
  if (!resolve(rows, in, in.op[kAddressOp], 16, kLoad ? Access::kRead : Access::kWrite)) {
    x.has_faulted = true;
    x.fault = rows.fault;
    return;
  }
  if (in.space == Space::kShared) count_banks(rows, 16);
  x.traffic = rows.traffic;
  each_warp(x, [&](uint32_t first, std::span<const uint16_t> lanes) {
    for (uint32_t m = 0; m < matrices; ++m)
      for (const uint16_t i : lanes) {
        const uint32_t lane = i - first;
        uint32_t& reg = x.reg<uint32_t>(in.op[m])[i];
        for (uint32_t e = 0; e < 2; ++e) {
          uint32_t row = lane / 4, column = lane % 4 * 2 + e;
          if (in.flag) std::swap(row, column);
          auto* p = reinterpret_cast<uint16_t*>(rows.pointers[first + 8 * m + row]) + column;
          if (kLoad)
            reg = e ? (reg & 0xffffu) | (uint32_t{*p} << 16) : *p;
          else
            *p = static_cast<uint16_t>(reg >> (16 * e));
        }
      }
  });
}
template <bool kLoad>
Status lower_matrix_move(Builder& b) {
  const bool is_plain = b.has(".sync") && b.has(".aligned") && b.has(".m8n8");
  uint32_t matrices = 0;
  if (b.has(".x1")) matrices = 1;
  if (b.has(".x2")) matrices = 2;
  if (b.has(".x4")) matrices = 4;
  const bool is_mirrored = b.has(".trans");
  const MemorySuffixes m = take_memory_suffixes(b);
  if (!is_plain || !matrices || b.next_type() != Type::kB16) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 2));
  const Operand& regs = b.operand(kLoad ? 0 : 1);
  const std::vector<Operand> one{regs};
  const auto& list = regs.kind == Operand::Kind::kVector ? regs.elements : one;
  if (list.size() != matrices) return b.error("vector does not fit the instruction");
  uint32_t op[4] = {};
  for (size_t i = 0; i < matrices; ++i)
    op[i] = kLoad ? BM_TRY(b.out(list[i], Type::kB32)) : BM_TRY(b.in(list[i], Type::kB32));
  const Builder::Address a = BM_TRY(b.address(b.operand(kLoad ? 1 : 0), m.space));
  Inst& in = b.emit(&move_matrix<kLoad>, {op[0], op[1], op[2], op[3], b.constant(~0u, 4)},
                    Flow::kWarpPlain);
  set_address(in, a);
  in.mask_op = 4;
  in.count = static_cast<uint8_t>(matrices);
  in.flag = is_mirrored;
  return {};
}
void mirror_matrix(Exec& x, const Inst& in) {
  if (!need_whole_warps(x, in)) return;
  uint32_t* d = x.reg<uint32_t>(in.op[0]);
  const uint32_t* a = x.reg<uint32_t>(in.op[1]);
  each_warp(x, [&](uint32_t first, std::span<const uint16_t>) {
    std::array<uint32_t, kWarp> before;
    std::copy_n(a + first, kWarp, before.begin());
    const auto element = [&](uint32_t row, uint32_t column) {
      return (before[row * 4 + column / 2] >> (16 * (column % 2))) & 0xffff;
    };
    for (uint32_t i = 0; i < kWarp; ++i)
      d[first + i] = element(i % 4 * 2, i / 4) | (element(i % 4 * 2 + 1, i / 4) << 16);
  });
}
Status lower_movmatrix(Builder& b) {
  const bool is_known = b.has(".sync") && b.has(".aligned") && b.has(".m8n8") && b.has(".trans");
  if (!is_known || b.next_type() != Type::kB16) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 2));
  const uint32_t a = BM_TRY(b.in(1, Type::kB32));
  b.emit(&mirror_matrix, {BM_TRY(b.out(0, Type::kB32)), a, b.constant(~0u, 4)}, Flow::kWarpPlain)
      .mask_op = 2;
  return {};
}

constexpr Operation kWarpOperations[] = {
    {"shfl", &lower_shfl},
    {"vote", &lower_vote},
    {"activemask", &lower_activemask},
    {"match", &lower_match},
    {"redux", &lower_redux},
    {"elect", &lower_elect},
    {"ldmatrix", &lower_matrix_move<true>},
    {"stmatrix", &lower_matrix_move<false>},
    {"movmatrix", &lower_movmatrix},
};

}  // namespace

std::span<const Operation> warp_operations() { return kWarpOperations; }

}  // namespace bm::sim::ptx
