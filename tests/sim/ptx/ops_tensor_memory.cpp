// tcgen05 of one block (cta_group::1) and mbarrier as it needs them.
//
// Instruction descriptor: bits 4-5 type of the sums (1: float32), 7-9 and 10-12 of A and B (0:
// float16, 1: bfloat16, 2: tf32), 15 and 16 whether they are turned, 17-22 columns / 8, 24-28 rows
// / 16; all others are 0 here. Source: PTX ISA 9.0, table "Instruction descriptor format".
//
// Descriptors of tiles: as of wgmma, but bits 46-48 are 1 and 61-63 the swizzle: 2: 128 bytes, 4:
// 64, 6: 32. Source: documentation of Modular's MMASmemDescriptor, which has PTX ISA's table.
//
// The compiler has both from CUTLASS's headers.
//
// Of 16 lanes and 8 columns (tcgen05.ld.16x256b) thread l has, in register r, lane l / 4 + 8·(r / 2
// % 2) and column 2·(l % 4) + r % 2; the next four registers are the next 8 columns. Source:
// documentation of TVM's tcgen05.ld.
#include <algorithm>
#include <bit>

#include "tests/sim/ptx/beside.h"
#include "tests/sim/ptx/dispatch.h"
#include "tests/sim/ptx/memory_access.h"
#include "tests/sim/ptx/tile.h"
#include "tests/sim/ptx/warps.h"

namespace bm::sim::ptx {
namespace {

constexpr uint32_t kMostPolls = 1 << 20;
constexpr uint32_t kMbarrierBytes = 8;
/// What registers hold while they are loaded.
constexpr uint32_t kLoading = 0x7e95beef;

bool refuse(Exec& x, const Inst& in, uint32_t lane, uint64_t what, std::string_view why) {
  x.raise(in, lane, Fault::Kind::kIllegal, what, Access::kRead, why);
  return false;
}

struct TensorForm {
  Type operand = Type::kF16;
  uint32_t columns = 0;
  bool turned[2] = {};
};

bool take_form(Exec& x, const Inst& in, uint32_t lane, uint32_t bits, TensorForm& out) {
  const auto field = [bits](int first, int count) { return (bits >> first) & ((1u << count) - 1); };
  constexpr uint32_t kKnown = 3u << 4 | 7u << 7 | 7u << 10 | 3u << 15 | 63u << 17 | 31u << 24;
  if (bits & ~kKnown) return refuse(x, in, lane, bits, "instruction descriptor not known here");
  if (field(4, 2) != 1) return refuse(x, in, lane, bits, "sums are no float32");
  const uint32_t type = field(7, 3);
  const bool is_tf32 = in.flag;
  if (type != field(10, 3) || (is_tf32 ? type != 2 : type > 1))
    return refuse(x, in, lane, bits, "types of the operands do not fit the kind");
  out.operand = type == 0 ? Type::kF16 : type == 1 ? Type::kBF16 : Type::kTF32;
  out.turned[0] = field(15, 1) != 0;
  out.turned[1] = field(16, 1) != 0;
  if (is_tf32 && (out.turned[0] || out.turned[1]))
    return refuse(x, in, lane, bits, "turned tiles of tf32 are not known here");
  out.columns = field(17, 6) * 8;
  if (field(24, 5) * 16 != TensorMemory::kLanes)
    return refuse(x, in, lane, bits, "numbers of rows other than 128 are not known here");
  if (out.columns == 0 || out.columns % 16 || out.columns > 256)
    return refuse(x, in, lane, bits, "no such number of columns");
  return true;
}

bool take_tensor_tile(Exec& x, const Inst& in, uint32_t lane, uint64_t bits, bool is_turned,
                      Tile& out) {
  constexpr uint64_t kOffset = 0x3fff;
  if (((bits >> 46) & 7) != 1) return refuse(x, in, lane, bits, "no descriptor of tcgen05");
  if (((bits >> 14) & 3) || ((bits >> 30) & 3) || ((bits >> 53) & 255))
    return refuse(x, in, lane, bits, "bits of the descriptor that are always 0");
  if ((bits >> 49) & 15) return refuse(x, in, lane, bits, "base offsets are not known here");
  const uint64_t swizzle = bits >> 61;
  if (swizzle != 2 && swizzle != 4 && swizzle != 6)
    return refuse(x, in, lane, bits, "a swizzle that is not known here");
  out = {.start = (bits & kOffset) << 4,
         .leading = ((bits >> 16) & kOffset) << 4,
         .stride = ((bits >> 32) & kOffset) << 4,
         .width = 256u >> (swizzle / 2),
         .is_transposed = is_turned};
  return true;
}

bool need_one_thread(Exec& x, const Inst& in) {
  return x.count == 1 || refuse(x, in, x.active[0], x.count, "one thread does this");
}

bool need_fence(Exec& x, const Inst& in, uint32_t lane) {
  return !x.beside->tensor.threads[lane].needs_fence ||
         refuse(x, in, lane, 0, "no tcgen05.fence::after_thread_sync since the thread waited");
}

/// Whether `count` columns from that of an address on are allocated.
bool need_columns(Exec& x, const Inst& in, uint32_t lane, uint32_t address, uint32_t count) {
  const TensorMemory& t = x.beside->tensor;
  const uint32_t column = address & 0xffff;
  return (column >= t.first && column + count <= t.first + t.columns) ||
         refuse(x, in, lane, address,
                fmt::format("{} of {} columns are allocated, from {} on", t.columns,
                            TensorMemory::kColumns, t.first));
}

// --- allocation ----------------------------------------------------------------------------------

/// op[0] shared address, op[1] columns.
void allocate(Exec& x, const Inst& in) {
  if (!need_whole_warps(x, in)) return;
  TensorMemory& t = x.beside->tensor;
  const uint32_t lane = x.active[0], columns = x.reg<uint32_t>(in.op[1])[lane];
  if (x.count != kWarp) return void(refuse(x, in, lane, x.count, "one warp does this"));
  if (!std::has_single_bit(columns) || columns < TensorMemory::kLeastColumns ||
      columns > TensorMemory::kColumns)
    return void(refuse(x, in, lane, columns, "no such number of columns"));
  if (!t.may_allocate || t.columns != 0)
    return void(refuse(x, in, lane, columns, "allocates after it gave up to do so, or twice"));
  Exec one = x;
  one.count = 1;
  if (!resolve(one, in, in.op[0], 4, Access::kWrite)) {
    x.has_faulted = true;
    x.fault = one.fault;
    return;
  }
  t.columns = columns;
  t.first = TensorMemory::kColumns - columns;
  for (uint32_t b = 0; b < 4; ++b) one.pointers[lane][b] = std::byte(t.first >> (8 * b));
}

void keep(Exec& x, const Inst& in) {
  if (need_whole_warps(x, in)) x.beside->tensor.may_allocate = false;
}

/// op[0] address, op[1] columns.
void deallocate(Exec& x, const Inst& in) {
  if (!need_whole_warps(x, in)) return;
  TensorMemory& t = x.beside->tensor;
  const uint32_t lane = x.active[0];
  if (x.count != kWarp) return void(refuse(x, in, lane, x.count, "one warp does this"));
  if (!need_fence(x, in, lane)) return;
  if (t.columns == 0 || x.reg<uint32_t>(in.op[0])[lane] != t.first ||
      x.reg<uint32_t>(in.op[1])[lane] != t.columns)
    return void(refuse(x, in, lane, t.first, "these columns are not allocated"));
  if (!t.open.empty() || t.threads[lane].known_commit != t.committed)
    return void(refuse(x, in, lane, t.first, "products in them were not waited for"));
  for (uint32_t i = 0; i < x.lanes; ++i)
    if (t.threads[i].loads != TensorMemory::Loads::kNone && i / kWarp != lane / kWarp)
      return void(refuse(x, in, lane, i,
                         fmt::format("thread {} loaded from them, with no "
                                     "tcgen05.fence::before_thread_sync and "
                                     "barrier since",
                                     i)));
  if (!t.loads[lane / kWarp].empty())
    return void(refuse(x, in, lane, t.first, "this warp still loads from them"));
  t.columns = 0;
}

// --- products ------------------------------------------------------------------------------------

/// op[0] tensor memory, op[1] and op[2] tiles, op[3] instruction descriptor, op[4] whether sums are
/// added to.
void issue_tensor(Exec& x, const Inst& in) {
  if (!need_one_thread(x, in)) return;
  TensorMemory& t = x.beside->tensor;
  const uint32_t lane = x.active[0];
  if (!need_fence(x, in, lane)) return;
  if (t.issuer == TensorMemory::kNobody) t.issuer = static_cast<uint16_t>(lane);
  if (t.issuer != lane)
    return void(refuse(x, in, lane, t.issuer, "another thread issued products before"));
  TensorMemory::Product p{.in = &in,
                          .left = x.reg<uint64_t>(in.op[1])[lane],
                          .right = x.reg<uint64_t>(in.op[2])[lane],
                          .form = x.reg<uint32_t>(in.op[3])[lane],
                          .column = x.reg<uint32_t>(in.op[0])[lane],
                          .is_added = x.reg<uint8_t>(in.op[4])[lane] != 0,
                          .lane = static_cast<uint16_t>(lane)};
  TensorForm form;
  Tile tiles[2];
  if (!take_form(x, in, lane, p.form, form) ||
      !take_tensor_tile(x, in, lane, p.left, form.turned[0], tiles[0]) ||
      !take_tensor_tile(x, in, lane, p.right, form.turned[1], tiles[1]) ||
      !need_columns(x, in, lane, p.column, form.columns))
    return;
  if (p.column >> 16) return void(refuse(x, in, lane, p.column, "128 rows start at lane 0"));
  const uint64_t number = t.committed + 1;
  for (uint32_t c = p.column; c < p.column + form.columns; ++c) {
    if (p.is_added && t.writers[c] == 0)
      return void(refuse(x, in, lane, c, "adds to a column that nobody wrote"));
    t.writers[c] = number;
  }
  const auto read = [&](uint64_t at) {
    if (at + 16 > x.shared_bytes) {
      x.raise(in, lane, Fault::Kind::kSharedOutOfRange, at, Access::kRead);
      return false;
    }
    return !x.cells || x.cells->read_beside(x, in, lane, at, 16, number);
  };
  if (each_piece(tiles[0], TensorMemory::kLanes, read) && each_piece(tiles[1], form.columns, read))
    t.open.push_back(p);
}

void multiply_tensor(Exec& x, const TensorMemory::Product& p) {
  TensorMemory& t = x.beside->tensor;
  TensorForm form;
  Tile tiles[2];
  if (!take_form(x, *p.in, p.lane, p.form, form) ||
      !take_tensor_tile(x, *p.in, p.lane, p.left, form.turned[0], tiles[0]) ||
      !take_tensor_tile(x, *p.in, p.lane, p.right, form.turned[1], tiles[1]))
    return;
  const auto a = numbers(x, tiles[0], TensorMemory::kLanes, form.operand, false);
  const auto b = numbers(x, tiles[1], form.columns, form.operand, false);
  const size_t depth = kStepBytes / type_bytes(form.operand);
  for (size_t row = 0; row < TensorMemory::kLanes; ++row)
    for (size_t column = 0; column < form.columns; ++column) {
      uint32_t& bits = t.cells[row * TensorMemory::kColumns + p.column + column];
      float sum = p.is_added ? std::bit_cast<float>(bits) : 0;
      for (size_t k = 0; k < depth; ++k)
        sum += static_cast<float>(a[row * depth + k]) * static_cast<float>(b[column * depth + k]);
      bits = std::bit_cast<uint32_t>(sum);
    }
  x.traffic.group_products += uint64_t{TensorMemory::kLanes} * form.columns * depth;
  if (!x.cells) return;
  const auto end = [&](uint64_t at) {
    x.cells->end_read(at, 16);
    return true;
  };
  each_piece(tiles[0], TensorMemory::kLanes, end);
  each_piece(tiles[1], form.columns, end);
}

// --- mbarriers -----------------------------------------------------------------------------------

/// The mbarrier of the only active thread; nullptr after raising that there is none.
TensorMemory::Mbarrier* mbarrier_at(Exec& x, const Inst& in, uint32_t lane, Access access,
                                    uint32_t& address) {
  Exec one = x;
  const auto active = static_cast<uint16_t>(lane);
  one.active = &active;
  one.count = 1;
  if (!resolve(one, in, in.op[0], kMbarrierBytes, access)) {
    x.has_faulted = true;
    x.fault = one.fault;
    return nullptr;
  }
  address = static_cast<uint32_t>(one.pointers[lane] - x.shared);
  auto& all = x.beside->tensor.mbarriers;
  if (access == Access::kWrite) return &all[address];
  const auto at = all.find(address);
  if (at != all.end()) return &at->second;
  refuse(x, in, lane, address, "there is no mbarrier");
  return nullptr;
}

/// op[0] address, op[1] count.
void start_mbarrier(Exec& x, const Inst& in) {
  for (uint32_t k = 0; k < x.count; ++k) {
    uint32_t address = 0;
    const uint32_t lane = x.active[k], count = x.reg<uint32_t>(in.op[1])[lane];
    TensorMemory::Mbarrier* m = mbarrier_at(x, in, lane, Access::kWrite, address);
    if (!m) return;
    *m = {.count = count,
          .pending = count,
          .starter = static_cast<uint16_t>(lane),
          .fences = x.beside->tensor.threads[lane].fences};
  }
}

/// op[0] address.
void commit_tensor(Exec& x, const Inst& in) {
  if (!need_one_thread(x, in)) return;
  TensorMemory& t = x.beside->tensor;
  const uint32_t lane = x.active[0];
  uint32_t address = 0;
  const TensorMemory::Mbarrier* m = mbarrier_at(x, in, lane, Access::kAtomic, address);
  if (!m) return;
  if (t.threads[m->starter].fences == m->fences)
    return void(refuse(x, in, lane, address, "no fence.mbarrier_init since the mbarrier started"));
  if (t.issuer != lane) return void(refuse(x, in, lane, address, "this thread issued no products"));
  t.commits.push_back(
      {.mbarrier = address, .number = ++t.committed, .products = std::move(t.open)});
  t.open.clear();
  t.polls = 0;
}

void complete_first(Exec& x) {
  TensorMemory& t = x.beside->tensor;
  const TensorMemory::Commit c = std::move(t.commits.front());
  t.commits.pop_front();
  for (const TensorMemory::Product& p : c.products) multiply_tensor(x, p);
  TensorMemory::Mbarrier& m = t.mbarriers[c.mbarrier];
  if (--m.pending != 0) return;
  m.pending = m.count;
  m.last_commit = c.number;
  ++m.phases;
}

/// op[0] address, op[1] result, op[2] parity.
void test_mbarrier(Exec& x, const Inst& in) {
  TensorMemory& t = x.beside->tensor;
  for (uint32_t k = 0; k < x.count; ++k) {
    const uint32_t lane = x.active[k], parity = x.reg<uint32_t>(in.op[2])[lane];
    uint32_t address = 0;
    const TensorMemory::Mbarrier* m = mbarrier_at(x, in, lane, Access::kAtomic, address);
    if (!m) return;
    if (parity > 1) return void(refuse(x, in, lane, parity, "a parity is 0 or 1"));
    const auto is_complete = [&] { return (m->phases & 1) != parity; };
    const auto is_its = [&](const TensorMemory::Commit& c) { return c.mbarrier == address; };
    const auto own = std::find_if(t.commits.begin(), t.commits.end(), is_its);
    const bool is_pending = !is_complete() && own != t.commits.end();
    if (is_pending && own->asked_at == 0) own->asked_at = x.clock;
    if (is_pending && own->asked_at != x.clock) {
      const uint64_t number = own->number;
      while (!t.commits.empty() && t.commits.front().number <= number) complete_first(x);
    }
    x.reg<uint8_t>(in.op[1])[lane] = is_complete();
    if (!is_complete()) {
      if (++t.polls < kMostPolls) continue;
      x.raise(in, lane, Fault::Kind::kBarrierDeadlock, address, Access::kRead,
              "the phase never completes");
      return;
    }
    TensorMemory::Thread& thread = t.threads[lane];
    thread.known_commit = std::max(thread.known_commit, m->last_commit);
    thread.needs_fence = true;
  }
}

// --- loads and fences ----------------------------------------------------------------------------

/// op[0] address; Inst::target: list of registers; Inst::flag: 16 lanes at a time.
void load_tensor(Exec& x, const Inst& in) {
  if (!need_whole_warps(x, in)) return;
  TensorMemory& t = x.beside->tensor;
  const std::vector<uint32_t>& places = x.kernel->lists[in.target];
  const auto registers = static_cast<uint32_t>(places.size());
  each_warp(x, [&](uint32_t first, std::span<const uint16_t> lanes) {
    const uint32_t* addresses = x.reg<uint32_t>(in.op[0]);
    const uint32_t address = addresses[first] + static_cast<uint32_t>(in.imm);
    const uint32_t own = first / kWarp % 4 * TensorMemory::kQuarter, row = address >> 16;
    const uint32_t columns = in.flag ? registers * 2 : registers;
    for (const uint16_t i : lanes) {
      if (addresses[i] != addresses[first])
        return void(refuse(x, in, i, address, "threads of the warp disagree about the address"));
      if (!need_fence(x, in, i) || !need_columns(x, in, i, address, columns)) return;
      if (row != own && !(in.flag && row == own + 16))
        return void(refuse(x, in, i, row, "a warp reaches its own quarter of the lanes"));
      for (uint32_t c = address & 0xffff; c < (address & 0xffff) + columns; ++c)
        if (t.writers[c] == 0 || t.writers[c] > t.threads[i].known_commit)
          return void(refuse(x, in, i, c, "a column that no product wrote that was waited for"));
      for (uint32_t r = 0; r < registers; ++r) {
        const uint32_t l = i % kWarp;
        const uint32_t lane = row + (in.flag ? l / 4 + r / 2 % 2 * 8 : l);
        const uint32_t column = (address & 0xffff) + (in.flag ? l % 4 * 2 + r % 2 + r / 4 * 8 : r);
        t.loads[first / kWarp].push_back(
            {places[r], t.cells[lane * TensorMemory::kColumns + column], i});
        x.reg<uint32_t>(places[r])[i] = kLoading;
      }
      t.threads[i].loads = TensorMemory::Loads::kDone;
    }
  });
}

void wait_for_loads(Exec& x, const Inst& in) {
  if (!need_whole_warps(x, in)) return;
  each_warp(x, [&](uint32_t first, std::span<const uint16_t>) {
    for (const TensorMemory::Load& l : x.beside->tensor.loads[first / kWarp]) {
      uint32_t& value = x.reg<uint32_t>(l.place)[l.lane];
      if (value != kLoading)
        return void(refuse(x, in, l.lane, l.place, "a register was written while it was loaded"));
      value = l.value;
    }
    x.beside->tensor.loads[first / kWarp].clear();
  });
}

void fence_before(Exec& x, const Inst&) {
  TensorMemory& t = x.beside->tensor;
  each_thread(x, [&](uint32_t i) {
    TensorMemory::Loads& loads = t.threads[i].loads;
    if (loads == TensorMemory::Loads::kDone && t.loads[i / kWarp].empty())
      loads = TensorMemory::Loads::kFenced;
  });
}

void fence_after(Exec& x, const Inst&) {
  each_thread(x, [&](uint32_t i) { x.beside->tensor.threads[i].needs_fence = false; });
}

// --- text ----------------------------------------------------------------------------------------

Status lower_address(Builder& b, Inst& in, const Builder::Address& a) {
  if (a.offset >> 32) return b.error("address form not known here");
  in.space = Space::kShared;
  in.is_wide = a.is_wide;
  in.imm = a.offset;
  return {};
}

Status lower_tensor_mma(Builder& b) {
  const bool is_half = b.has(".kind::f16"), is_tf32 = b.has(".kind::tf32");
  if (!is_half && !is_tf32) return b.unknown_form();
  BM_TRY(b.expect_operands(5, 5));
  const Builder::Address to = BM_TRY(b.address(b.operand(0), Space::kGlobal));
  if (to.is_wide || to.offset != 0) return b.error("address form not known here");
  const uint32_t left = BM_TRY(b.in(1, Type::kB64)), right = BM_TRY(b.in(2, Type::kB64));
  const uint32_t form = BM_TRY(b.in(3, Type::kB32)), added = BM_TRY(b.in(4, Type::kPred));
  b.emit(&issue_tensor, {to.base, left, right, form, added}).flag = is_tf32;
  return {};
}

Status lower_tensor_load(Builder& b) {
  if (!b.has(".sync") || !b.has(".aligned")) return b.unknown_form();
  const bool is_half = b.has(".16x256b");
  if (!is_half && !b.has(".32x32b")) return b.unknown_form();
  const std::string_view times = b.next_suffix();
  size_t count = 0;
  for (const size_t n : {1U, 2U, 4U, 8U, 16U, 32U, 64U, 128U})
    if (times == fmt::format(".x{}", n)) count = is_half ? 4 * n : n;
  if (count == 0 || count > 128 || !b.has(".b32")) return b.unknown_form();
  BM_TRY(b.expect_operands(2, 2));
  const Operand& list = b.operand(0);
  if (list.kind != Operand::Kind::kVector || list.elements.size() != count)
    return b.error(fmt::format("{} registers belong here", count));
  std::vector<uint32_t> places;
  for (const Operand& r : list.elements) places.push_back(BM_TRY(b.out(r, Type::kB32)));
  const Builder::Address from = BM_TRY(b.address(b.operand(1), Space::kGlobal));
  if (from.is_wide) return b.error("address form not known here");
  const uint32_t number = b.add_list(places), all = b.constant(~0u, 4);
  Inst& in = b.emit(&load_tensor, {from.base, all}, Flow::kWarpPlain);
  in.mask_op = 1;
  in.target = number;
  in.imm = from.offset;
  in.flag = is_half;
  return {};
}

/// Of whole warps, with operands `ops`.
Inst& emit_warp(Builder& b, Handler run, std::vector<uint32_t> ops) {
  ops.push_back(b.constant(~0u, 4));
  Inst& in = b.emit(run, {}, Flow::kWarpPlain);
  std::copy(ops.begin(), ops.end(), in.op);
  in.mask_op = static_cast<uint8_t>(ops.size() - 1);
  return in;
}

/// Fences, loads and what waits for them: they say nothing of a group of blocks.
Status lower_tensor(Builder& b) {
  if (b.has(".fence::before_thread_sync")) return b.emit(&fence_before), Status{};
  if (b.has(".fence::after_thread_sync")) return b.emit(&fence_after), Status{};
  if (b.has(".ld")) return lower_tensor_load(b);
  if (b.has(".wait::ld")) {
    if (!b.has(".sync") || !b.has(".aligned")) return b.unknown_form();
    return emit_warp(b, &wait_for_loads, {}), Status{};
  }
  return b.unknown_form();
}

Status lower_tcgen05(Builder& b) {
  const bool is_mma = b.has(".mma"), is_commit = b.has(".commit"), is_alloc = b.has(".alloc"),
             is_dealloc = b.has(".dealloc"), is_keep = b.has(".relinquish_alloc_permit");
  if (!is_mma && !is_commit && !is_alloc && !is_dealloc && !is_keep) return lower_tensor(b);
  if (!b.has(".cta_group::1")) return b.unknown_form();
  if (is_mma) return lower_tensor_mma(b);
  if (is_commit) {
    if (!b.has(".mbarrier::arrive::one") || !b.has(".shared::cluster") || !b.has(".b64"))
      return b.unknown_form();
    BM_TRY(b.expect_operands(1, 1));
    const Builder::Address at = BM_TRY(b.address(b.operand(0), Space::kShared));
    return lower_address(b, b.emit(&commit_tensor, {at.base}), at);
  }
  if (!b.has(".sync") || !b.has(".aligned")) return b.unknown_form();
  if (is_keep) return emit_warp(b, &keep, {}), Status{};
  BM_TRY(b.expect_operands(2, 2));
  if (is_alloc && !b.has(".shared::cta")) return b.unknown_form();
  if (!b.has(".b32")) return b.unknown_form();
  const uint32_t columns = BM_TRY(b.in(1, Type::kB32));
  if (is_dealloc)
    return emit_warp(b, &deallocate, {BM_TRY(b.in(0, Type::kB32)), columns}), Status{};
  const Builder::Address at = BM_TRY(b.address(b.operand(0), Space::kShared));
  return lower_address(b, emit_warp(b, &allocate, {at.base, columns}), at);
}

Status lower_mbarrier(Builder& b) {
  const bool is_start = b.has(".init"), is_test = b.has(".try_wait") && b.has(".parity");
  if ((!is_start && !is_test) || !(b.has(".shared::cta") || b.has(".shared")) || !b.has(".b64"))
    return b.unknown_form();
  const size_t operands = is_start ? 2 : 3;
  BM_TRY(b.expect_operands(operands, operands));
  if (is_start) {
    const Builder::Address at = BM_TRY(b.address(b.operand(0), Space::kShared));
    const uint32_t count = BM_TRY(b.in(1, Type::kB32));
    return lower_address(b, b.emit(&start_mbarrier, {at.base, count}), at);
  }
  const uint32_t result = BM_TRY(b.out(0, Type::kPred));
  const Builder::Address at = BM_TRY(b.address(b.operand(1), Space::kShared));
  const uint32_t parity = BM_TRY(b.in(2, Type::kB32));
  return lower_address(b, b.emit(&test_mbarrier, {at.base, result, parity}), at);
}

constexpr Operation kTensorMemoryOperations[] = {{"tcgen05", &lower_tcgen05},
                                                 {"mbarrier", &lower_mbarrier}};

}  // namespace

void TensorMemory::start(uint32_t lanes) {
  *this = {};
  threads.resize(lanes);
  loads.resize((lanes + kWarp - 1) / kWarp);
  cells.assign(size_t{kLanes} * kColumns, 0x7fc0dead);
}

void TensorMemory::meet(std::span<const uint16_t> lanes) {
  uint64_t known = 0;
  for (const uint16_t i : lanes) known = std::max(known, threads[i].known_commit);
  for (const uint16_t i : lanes) {
    threads[i].known_commit = known;
    threads[i].needs_fence = true;
    if (threads[i].loads == Loads::kFenced) threads[i].loads = Loads::kNone;
  }
}

void fence_mbarriers(Exec& x, const Inst&) {
  each_thread(x, [&](uint32_t i) { ++x.beside->tensor.threads[i].fences; });
}

std::span<const Operation> tensor_memory_operations() { return kTensorMemoryOperations; }

}  // namespace bm::sim::ptx
