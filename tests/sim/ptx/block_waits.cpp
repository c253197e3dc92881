// BlockRunner: barriers, convergence of warps, deadlock.
#include <algorithm>

#include "tests/sim/ptx/block.h"

namespace bm::sim::ptx {

/// The usual barrier: the whole block comes at once to one that nobody waits at.
bool BlockRunner::pass_together(Group& g, const Inst& in) {
  if (in.flow != Flow::kBarrier || in.op[1] != kNone || x_.count != live_) return false;
  const uint32_t* number = x_.reg<uint32_t>(in.op[0]);
  const uint32_t first = number[x_.active[0]];
  bool is_uniform = true;
  each_thread(x_, [&](uint32_t i) { is_uniform &= number[i] == first; });
  if (!is_uniform || first >= barriers_.size() || barriers_[first].arrived) return false;
  if (x_.cells) ++cells_.epoch;
  beside_.tensor.meet({x_.active, x_.count});
  ++g.pc;
  return true;
}

bool BlockRunner::arrive(Group& g, const Inst& in) {
  if (pass_together(g, in)) return true;
  Lanes arrived = new_lanes();
  arrived.assign(x_.active, x_.active + x_.count);
  const uint32_t pc = g.pc;
  if (in.flow == Flow::kArrive) {
    ++g.pc;
  } else {
    remove_active(g);
    insert(pc + 1, std::move(g.lanes));
    g.lanes.clear();
  }
  for (const uint16_t lane : arrived)
    if (!arrive_one(lane, in, pc)) return false;
  recycle(std::move(arrived));
  release_complete();
  return true;
}

bool BlockRunner::arrive_one(uint16_t lane, const Inst& in, uint32_t pc) {
  const uint32_t number = x_.reg<uint32_t>(in.op[0])[lane];
  const uint32_t count = in.op[1] == kNone ? kNone : x_.reg<uint32_t>(in.op[1])[lane];
  const auto refuse = [&](std::string_view why) {
    x_.raise(in, lane, Fault::Kind::kIllegal, number, Access::kRead, why);
    return false;
  };
  if (number >= barriers_.size()) return refuse("there are 16 barriers");
  if (count != kNone && (count == 0 || count % kWarp || count > x_.stride))
    return refuse("thread count of a barrier is no number of warps of the block");
  Barrier& b = barriers_[number];
  if (b.arrived && b.expected != count) return refuse("threads disagree about a barrier's count");
  b.expected = count;
  ++b.arrived;
  if (in.flow != Flow::kArrive) b.waiters.push_back({pc, lane});
  if (in.flow == Flow::kReduce) {
    ++b.votes;
    b.ayes += x_.reg<uint8_t>(in.op[3])[lane] != 0;
  }
  return true;
}

void BlockRunner::release_complete() {
  for (Barrier& b : barriers_) {
    if (b.arrived == 0) continue;
    // Threads that are gone count as there: a count is one of whole warps.
    const uint32_t gone = x_.stride - live_;
    const bool is_complete = b.expected == kNone       ? b.arrived >= live_
                             : b.expected == x_.stride ? b.arrived + gone >= b.expected
                                                       : b.arrived >= b.expected;
    if (is_complete) release(b);
  }
}

void BlockRunner::release(Barrier& b) {
  Barrier done;
  std::swap(done, b);
  if (x_.cells) ++cells_.epoch;
  for (const Waiter& w : done.waiters) {
    const Inst& in = kernel_.code[w.pc];
    if (in.flow == Flow::kReduce) {
      const auto kind = static_cast<ReduceKind>(in.imm);
      if (kind == ReduceKind::kPopc)
        x_.reg<uint32_t>(in.op[2])[w.lane] = done.ayes;
      else
        x_.reg<uint8_t>(in.op[2])[w.lane] =
            kind == ReduceKind::kAnd ? done.ayes == done.votes : done.ayes != 0;
    }
  }
  std::vector<uint16_t> met;
  for (const Waiter& w : done.waiters) met.push_back(w.lane);
  beside_.tensor.meet(met);
  // Lanes of one instruction together, ascending.
  std::vector<Waiter>& waiters = done.waiters;
  std::sort(waiters.begin(), waiters.end(), [](const Waiter& a, const Waiter& c) {
    return a.pc != c.pc ? a.pc < c.pc : a.lane < c.lane;
  });
  for (size_t i = 0; i < waiters.size();) {
    Lanes lanes = new_lanes();
    const uint32_t pc = waiters[i].pc;
    for (; i < waiters.size() && waiters[i].pc == pc; ++i) lanes.push_back(waiters[i].lane);
    insert(pc + 1, std::move(lanes));
  }
}

/// Runs the instruction for warps whose named lanes are all here; the others wait at it.
bool BlockRunner::converge(Group& g, const Inst& in) {
  // Who waited here before joins first.
  for (size_t i = 0; i < blocked_.size(); ++i) {
    if (blocked_[i].pc != g.pc) continue;
    insert(g.pc, std::move(blocked_[i].lanes));
    insert(g.pc, std::move(g.lanes));
    g.lanes.clear();
    blocked_.erase(blocked_.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  std::array<uint32_t, kMaxBlock / kWarp> here{}, wanted{};
  const uint32_t* mask = x_.reg<uint32_t>(in.op[in.mask_op]);
  for (uint32_t k = 0; k < x_.count; ++k) {
    const uint32_t lane = x_.active[k];
    here[lane / kWarp] |= 1u << (lane % kWarp);
    wanted[lane / kWarp] |= mask[lane];
    if (!((mask[lane] >> (lane % kWarp)) & 1)) {
      x_.raise(in, lane, Fault::Kind::kIllegal, mask[lane], Access::kRead,
               "the lane mask leaves out the thread itself");
      return false;
    }
  }
  Lanes run = new_lanes(), wait = new_lanes();
  for (uint32_t k = 0; k < x_.count; ++k) {
    const uint32_t warp = x_.active[k] / kWarp;
    const bool is_there = (wanted[warp] & live_masks_[warp] & ~here[warp]) == 0;
    (is_there ? run : wait).push_back(x_.active[k]);
  }
  const uint32_t pc = g.pc;
  if (!wait.empty()) {
    x_.active = wait.data();
    x_.count = static_cast<uint32_t>(wait.size());
    remove_active(g);
    blocked_.push_back({pc, wait});
  }
  if (!run.empty()) {
    x_.active = run.data();
    x_.count = static_cast<uint32_t>(run.size());
    x_.is_dense = x_.count == x_.lanes;
    if (x_.cells)
      for (uint32_t w = 0; w < x_.stride / kWarp; ++w) cells_.warp_epochs[w] += here[w] != 0;
    in.run(x_, in);
    ++useful_;
  }
  ++g.pc;
  recycle(std::move(run));
  recycle(std::move(wait));
  return !x_.has_faulted;
}

bool BlockRunner::warp_barrier(Group& g, const Inst& in) {
  std::array<bool, kMaxBlock / kWarp> touched{};
  for (uint32_t k = 0; k < x_.count; ++k) {
    const uint16_t lane = x_.active[k];
    warp_waiters_[lane / kWarp].push_back({g.pc, lane});
    touched[lane / kWarp] = true;
  }
  remove_active(g);
  insert(g.pc + 1, std::move(g.lanes));
  g.lanes.clear();
  (void)in;
  for (uint32_t w = 0; w < x_.stride / kWarp; ++w)
    if (touched[w]) release_warp(w);
  return true;
}

/// Lets go every waiting lane whose mask is met by the lanes that wait.
void BlockRunner::release_warp(uint32_t warp) {
  std::vector<Waiter>& waiters = warp_waiters_[warp];
  uint32_t here = 0;
  for (const Waiter& w : waiters) here |= 1u << (w.lane % kWarp);
  std::vector<Waiter> kept;
  bool has_released = false;
  for (const Waiter& w : waiters) {
    const uint32_t mask = x_.reg<uint32_t>(kernel_.code[w.pc].op[0])[w.lane];
    if (mask & live_masks_[warp] & ~here) {
      kept.push_back(w);
      continue;
    }
    Lanes one = new_lanes();
    one.push_back(w.lane);
    insert(w.pc + 1, std::move(one));
    has_released = true;
    ++useful_;
  }
  if (has_released && x_.cells) ++cells_.warp_epochs[warp];
  waiters = std::move(kept);
}

/// Nobody can run: threads that left may have been what others waited for. False if nothing changed
/// since the last time.
bool BlockRunner::unblock() {
  if (useful_ == progress_mark_) return false;
  progress_mark_ = useful_;
  std::vector<Group> again = std::move(blocked_);
  blocked_.clear();
  for (Group& g : again) insert(g.pc, std::move(g.lanes));
  for (uint32_t w = 0; w < x_.stride / kWarp; ++w)
    if (!warp_waiters_[w].empty()) release_warp(w);
  return !ready_.empty();
}

void BlockRunner::deadlock() {
  for (const Barrier& b : barriers_) {
    if (b.waiters.empty()) continue;
    const Waiter& w = b.waiters.front();
    return x_.raise(kernel_.code[w.pc], w.lane, Fault::Kind::kBarrierDeadlock, 0, Access::kRead,
                    fmt::format("{} threads wait, {} are left in the block", b.arrived, live_));
  }
  for (const Group& g : blocked_)
    return x_.raise(kernel_.code[g.pc], g.lanes.front(), Fault::Kind::kBarrierDeadlock, 0,
                    Access::kRead, "lanes of the mask never come");
  for (const auto& waiters : warp_waiters_)
    if (!waiters.empty())
      return x_.raise(kernel_.code[waiters[0].pc], waiters[0].lane, Fault::Kind::kBarrierDeadlock,
                      0, Access::kRead, "lanes of the mask never come");
}

}  // namespace bm::sim::ptx
