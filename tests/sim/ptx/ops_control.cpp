// bra, brx, call, ret, exit, trap, bar, barrier, fences, nanosleep and the like.
#include "tests/sim/ptx/beside.h"
#include "tests/sim/ptx/dispatch.h"

namespace bm::sim::ptx {
namespace {

Status lower_bra(Builder& b) {
  b.has(".uni");
  BM_TRY(b.expect_operands(1, 1));
  if (b.operand(0).kind != Operand::Kind::kName) return b.error("label expected");
  return b.branch_to(b.operand(0).name);
}
Status lower_brx(Builder& b) {
  if (!b.has(".idx")) return b.unknown_form();
  b.has(".uni");
  BM_TRY(b.expect_operands(2, 2));
  const uint32_t index = BM_TRY(b.in(0, Type::kU32));
  return b.branch_table(b.operand(1).name, index);
}
/// call {(results),} name {, (arguments)} {, prototype}.
Status lower_call(Builder& b) {
  b.has(".uni");
  BM_TRY(b.expect_operands(1, 4));
  size_t at = 0;
  const Operand* results = nullptr;
  if (b.operand(0).kind == Operand::Kind::kList) results = &b.operand(at++);
  if (at >= b.operand_count() || b.operand(at).kind != Operand::Kind::kName)
    return b.error("function expected");
  const std::string_view name = b.operand(at++).name;
  const Operand* arguments = nullptr;
  if (at < b.operand_count() && b.operand(at).kind == Operand::Kind::kList)
    arguments = &b.operand(at++);
  if (at < b.operand_count()) return b.error("calls through pointers are not known here");
  return b.call(results, name, arguments);
}
Status lower_ret(Builder& b) {
  b.has(".uni");
  BM_TRY(b.expect_operands(0, 0));
  b.return_from_function();
  return {};
}
template <Flow kFlow>
Status lower_end(Builder& b) {
  BM_TRY(b.expect_operands(0, 0));
  b.emit(nullptr, {}, kFlow);
  return {};
}
Status lower_nothing(Builder& b) {
  while (!b.next_suffix().empty()) {}
  return {};
}
void fence(Exec&, const Inst&) { std::atomic_thread_fence(std::memory_order_seq_cst); }
Status lower_fence(Builder& b) {
  if (b.has(".proxy") && b.has(".async")) {
    b.emit(&fence_proxy);
    while (!b.next_suffix().empty()) {}
    return {};
  }
  const bool is_of_mbarriers = b.has(".mbarrier_init");
  while (!b.next_suffix().empty()) {}
  b.emit(is_of_mbarriers ? &fence_mbarriers : &fence);
  return {};
}

Status lower_reduction(Builder& b) {
  const bool popc = b.has(".popc"), is_and = b.has(".and"), is_or = b.has(".or");
  if (popc + is_and + is_or != 1) return b.unknown_form();
  const Type t = b.next_type();
  if (t != (popc ? Type::kU32 : Type::kPred)) return b.unknown_form();
  BM_TRY(b.expect_operands(3, 4));
  const bool has_count = b.operand_count() == 4;
  const uint32_t barrier = BM_TRY(b.in(1, Type::kU32));
  const uint32_t count = has_count ? BM_TRY(b.in(2, Type::kU32)) : kNone;
  const uint32_t p = BM_TRY(b.in(has_count ? 3 : 2, Type::kPred));
  b.emit(nullptr, {barrier, count, BM_TRY(b.out(0, t)), p}, Flow::kReduce).imm =
      static_cast<uint64_t>(popc     ? ReduceKind::kPopc
                            : is_and ? ReduceKind::kAnd
                                     : ReduceKind::kOr);
  return {};
}
/// bar and barrier{.cta}: sync, arrive, red; bar.warp.sync.
Status lower_bar(Builder& b) {
  if (b.has(".warp")) {
    if (!b.has(".sync")) return b.unknown_form();
    BM_TRY(b.expect_operands(1, 1));
    b.emit(nullptr, {BM_TRY(b.in(0, Type::kB32))}, Flow::kWarpBarrier);
    return {};
  }
  b.has(".cta"), b.has(".aligned");
  if (b.has(".cluster")) return b.unknown_form();
  if (b.has(".red")) return lower_reduction(b);
  const bool is_arrive = b.has(".arrive");
  if (!is_arrive && !b.has(".sync")) return b.unknown_form();
  BM_TRY(b.expect_operands(is_arrive ? 2 : 1, 2));
  const uint32_t barrier = BM_TRY(b.in(0, Type::kU32));
  const uint32_t count = b.operand_count() == 2 ? BM_TRY(b.in(1, Type::kU32)) : kNone;
  b.emit(nullptr, {barrier, count}, is_arrive ? Flow::kArrive : Flow::kBarrier);
  return {};
}

constexpr Operation kControlOperations[] = {
    {"bra", &lower_bra},
    {"brx", &lower_brx},
    {"call", &lower_call},
    {"ret", &lower_ret},
    {"exit", &lower_end<Flow::kExit>},
    {"trap", &lower_end<Flow::kTrap>},
    {"brkpt", &lower_nothing},
    {"bar", &lower_bar},
    {"barrier", &lower_bar},
    {"membar", &lower_fence},
    {"fence", &lower_fence},
    {"nanosleep", &lower_nothing},
    {"pmevent", &lower_nothing},
    {"griddepcontrol", &lower_nothing},
    {"setmaxnreg", &lower_nothing},
};

}  // namespace

std::span<const Operation> control_operations() { return kControlOperations; }

}  // namespace bm::sim::ptx
