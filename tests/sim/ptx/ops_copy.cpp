// cp.async and its groups, fence.proxy.async.
#include <algorithm>

#include "tests/sim/ptx/beside.h"
#include "tests/sim/ptx/builder.h"
#include "tests/sim/ptx/memory_access.h"
#include "tests/sim/ptx/memory_suffixes.h"

namespace bm::sim::ptx {
namespace {

/// op[0] shared address, op[1] global address, op[2] bytes to read of Inst::count; the rest becomes
/// zero. A thread that reads none may name any address.
void copy_async(Exec& x, const Inst& in) {
  Inst to = in, from = in;
  to.space = Space::kShared;
  to.is_wide = in.flag;
  to.imm = in.imm >> 32;
  from.imm = in.imm & 0xffffffff;
  from.space = Space::kGlobal;
  const uint32_t size = in.count;
  if (!resolve(x, to, in.op[0], size, Access::kWrite)) return;
  count_banks(x, size);
  const std::array<std::byte*, kMaxBlock> targets = x.pointers;
  const uint32_t* take = x.reg<uint32_t>(in.op[2]);
  std::vector<uint16_t> readers;
  each_thread(x, [&](uint32_t i) {
    if (take[i] != 0) readers.push_back(static_cast<uint16_t>(i));
  });
  Exec some = x;
  some.active = readers.data();
  some.count = static_cast<uint32_t>(readers.size());
  if (some.count != 0 && !resolve(some, from, in.op[1], size, Access::kRead)) {
    x.has_faulted = true;
    x.fault = some.fault;
    return;
  }
  count_sectors(some, from, in.op[1], size, Access::kRead);
  x.traffic = some.traffic;
  each_thread(x, [&](uint32_t i) {
    const auto at = static_cast<uint32_t>(targets[i] - x.shared);
    const uint32_t n = std::min(take[i], size);
    if (n != 0) x.traffic.global_load_bytes -= size - n;
    x.beside->copies[i].groups.back().push_back({n ? some.pointers[i] : nullptr, at, n, size});
    for (uint32_t b = 0; x.cells && b < size; ++b) ++x.cells->cells[at + b].copies;
  });
}

void finish(Exec& x, const Inst& in, uint32_t lane, const Beside::Copy& c) {
  for (uint32_t b = 0; x.cells && b < c.size; ++b) --x.cells->cells[c.to + b].copies;
  if (x.cells && !x.cells->touch(x, in, lane, c.to, c.size, Access::kWrite)) return;
  std::byte* to = x.shared + c.to;
  std::fill_n(std::copy_n(c.from, c.take, to), c.size - c.take, std::byte{0});
}

void commit(Exec& x, const Inst&) {
  each_thread(x, [&](uint32_t i) { x.beside->copies[i].groups.emplace_back(); });
}

/// All but the last Inst::imm groups; Inst::flag: the open one as well.
void wait(Exec& x, const Inst& in) {
  each_thread(x, [&](uint32_t i) {
    auto& groups = x.beside->copies[i].groups;
    if (in.flag) groups.emplace_back();
    while (groups.size() > in.imm + 1) {
      for (const Beside::Copy& c : groups.front()) finish(x, in, i, c);
      groups.pop_front();
    }
  });
}

Status lower_wait(Builder& b, bool is_all) {
  BM_TRY(b.expect_operands(is_all ? 0 : 1, is_all ? 0 : 1));
  Inst& in = b.emit(&wait);
  if (!is_all) in.imm = b.operand(0).bits;
  in.flag = is_all;
  return {};
}

Status lower_cp(Builder& b) {
  if (!b.has(".async")) return b.unknown_form();
  if (b.has(".commit_group")) {
    b.emit(&commit);
    return {};
  }
  if (b.has(".wait_group")) return lower_wait(b, false);
  if (b.has(".wait_all")) return lower_wait(b, true);
  if (b.has(".bulk")) return b.unknown_form();
  const bool is_whole = b.has(".cg");
  b.has(".ca");
  if (!b.has(".shared") && !b.has(".shared::cta") && !b.has(".shared::cluster"))
    return b.unknown_form();
  if (!b.has(".global")) return b.unknown_form();
  while (b.peek_suffix().starts_with(".L2::")) b.next_suffix();
  BM_TRY(b.expect_operands(3, 5));
  const Operand& size = b.operand(2);
  if (size.kind != Operand::Kind::kInteger || (size.bits != 4 && size.bits != 8 && size.bits != 16))
    return b.error("size is not 4, 8 or 16");
  if (is_whole && size.bits != 16) return b.error("cp.async.cg copies 16 bytes");
  const Builder::Address to = BM_TRY(b.address(b.operand(0), Space::kShared));
  const Builder::Address from = BM_TRY(b.address(b.operand(1), Space::kGlobal));
  if (!from.is_wide || (to.offset >> 32) || (from.offset >> 32))
    return b.error("address form not known here");
  const uint32_t take = operand_or(b, 3, size.bits);
  if (take == kNone) return b.error("malformed size");
  Inst& in = b.emit(&copy_async, {to.base, from.base, take});
  in.flag = to.is_wide;
  in.is_wide = true;
  in.count = static_cast<uint8_t>(size.bits);
  in.imm = (to.offset << 32) | from.offset;
  return {};
}

constexpr Operation kCopyOperations[] = {{"cp", &lower_cp}};

}  // namespace

void Beside::start(uint32_t lanes) {
  copies.assign(lanes, {});
  products.assign((lanes + kWarpgroup - 1) / kWarpgroup, {});
  tensor.start(lanes);
}

void fence_proxy(Exec& x, const Inst&) {
  if (x.cells) each_thread(x, [&](uint32_t i) { ++x.cells->fences[i]; });
}

std::span<const Operation> copy_operations() { return kCopyOperations; }

}  // namespace bm::sim::ptx
