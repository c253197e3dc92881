#include "tests/sim/ptx/block.h"

#include <algorithm>
#include <cstring>

namespace bm::sim::ptx {
namespace {

/// Jumps back that a group may take while others wait their turn: a thread may spin for another.
constexpr uint32_t kSlice = 4096;
/// Steps between looks at the limit and the cancel flag.
constexpr uint64_t kAccount = 4096;
/// Shared and local memory before anyone wrote: a value that shows.
constexpr auto kFresh = std::byte{0xcb};

Dim3 thread_of(uint32_t lane, const Dim3& block) {
  return {lane % block.x, lane / block.x % block.y, lane / block.x / block.y};
}

template <class T>
void fill(Exec& x, uint32_t place, T value) {
  std::fill_n(x.reg<T>(place), x.stride, value);
}

}  // namespace

void Exec::raise(const Inst& in, uint32_t lane, Fault::Kind kind, uint64_t address, Access access,
                 std::string_view detail) {
  if (has_faulted) return;
  has_faulted = true;
  std::string text;
  for (const char c : in.text.substr(0, 160)) text += c == '\n' || c == '\t' ? ' ' : c;
  fault.kind = kind;
  fault.address = address;
  fault.access = access;
  fault.block = block;
  fault.thread = thread_of(lane, launch->block);
  fault.where = fmt::format("kernel '{}', line {}: {}{}{}", kernel->info.name, in.line, text,
                            detail.empty() ? "" : "; ", detail);
}

void Progress::report(const Fault& f) {
  const std::lock_guard lock(mutex);
  if (!has_fault) fault = f;
  has_fault = true;
  stop = true;
}

BlockRunner::BlockRunner(const Kernel& kernel, const Launch& launch, uint64_t image, Memory& memory,
                         Progress& progress)
    : kernel_(kernel), launch_(launch), progress_(progress) {
  x_.lanes = static_cast<uint32_t>(launch.block.volume());
  x_.stride = (x_.lanes + kWarp - 1) / kWarp * kWarp;
  x_.kernel = &kernel;
  x_.launch = &launch;
  x_.memory = &memory;
  x_.params = launch.params.first(kernel.info.param_bytes);
  // The file starts aligned for its widest register.
  file_.resize(size_t{kernel.file_bytes + 1} * x_.stride + 64);
  const auto misfit = reinterpret_cast<uintptr_t>(file_.data()) % 64;
  x_.file = file_.data() + (misfit ? 64 - misfit : 0);
  local_.resize(size_t{kernel.info.local_bytes} * x_.lanes + 16);
  x_.local = local_.data();
  const uint32_t dynamic_at = (kernel.info.shared_bytes + 15) / 16 * 16;
  x_.shared_bytes =
      launch.dynamic_shared ? dynamic_at + launch.dynamic_shared : kernel.info.shared_bytes;
  shared_.resize(x_.shared_bytes + 32);
  x_.shared = shared_.data();
  if (launch.checks.shared_races || launch.checks.uninitialised_shared) x_.cells = &cells_;
  x_.beside = &beside_;
  fill_constants(image);
}

void BlockRunner::fill_constants(uint64_t image) {
  for (const Constant& c : kernel_.constants) {
    uint64_t value = c.value;
    if (c.kind == Constant::Kind::kImage) value += image;
    if (c.kind == Constant::Kind::kDynamicShared)
      value += (kernel_.info.shared_bytes + 15) / 16 * 16;
    if (c.kind == Constant::Kind::kSpecial) {
      fill_special(c);
    } else {
      if (c.width == 1) fill(x_, c.place, static_cast<uint8_t>(value));
      if (c.width == 2) fill(x_, c.place, static_cast<uint16_t>(value));
      if (c.width == 4) fill(x_, c.place, static_cast<uint32_t>(value));
      if (c.width == 8) fill(x_, c.place, value);
    }
  }
}

void BlockRunner::fill_special(const Constant& c) {
  const auto set = [&](auto value_of) {
    for (uint32_t i = 0; i < x_.stride; ++i) {
      const uint32_t v = value_of(i);
      if (c.width == 8)
        x_.reg<uint64_t>(c.place)[i] = v;
      else
        x_.reg<uint32_t>(c.place)[i] = v;
    }
  };
  const auto all = [&](uint32_t value) { set([=](uint32_t) { return value; }); };
  const Dim3 &block = launch_.block, &grid = launch_.grid;
  switch (static_cast<Special>(c.value)) {
    case Special::kTidX: return set([&](uint32_t i) { return thread_of(i, block).x; });
    case Special::kTidY: return set([&](uint32_t i) { return thread_of(i, block).y; });
    case Special::kTidZ: return set([&](uint32_t i) { return thread_of(i, block).z; });
    case Special::kNtidX: return all(block.x);
    case Special::kNtidY: return all(block.y);
    case Special::kNtidZ: return all(block.z);
    case Special::kCtaidX: return all(x_.block.x);
    case Special::kCtaidY: return all(x_.block.y);
    case Special::kCtaidZ: return all(x_.block.z);
    case Special::kNctaidX: return all(grid.x);
    case Special::kNctaidY: return all(grid.y);
    case Special::kNctaidZ: return all(grid.z);
    case Special::kLane: return set([](uint32_t i) { return i % kWarp; });
    case Special::kWarpId: return set([](uint32_t i) { return i / kWarp; });
    case Special::kWarpCount: return all(x_.stride / kWarp);
    case Special::kSm: return all(0);
    case Special::kSmCount: return all(1);
    case Special::kGridId: return all(0);
    case Special::kMaskEq: return set([](uint32_t i) { return 1u << (i % kWarp); });
    case Special::kMaskLe: return set([](uint32_t i) { return ~0u >> (31 - i % kWarp); });
    case Special::kMaskLt: return set([](uint32_t i) { return (1u << (i % kWarp)) - 1; });
    case Special::kMaskGe: return set([](uint32_t i) { return ~0u << (i % kWarp); });
    case Special::kMaskGt: return set([](uint32_t i) { return ~1u << (i % kWarp); });
    case Special::kDynamicShared: return all(launch_.dynamic_shared);
    case Special::kTotalShared: return all(x_.shared_bytes);
    case Special::kZero: return all(0);
    case Special::kOne: return all(1);
  }
}

void BlockRunner::fill_block() {
  for (const Constant& c : kernel_.constants) {
    if (c.kind != Constant::Kind::kSpecial) continue;
    const auto which = static_cast<Special>(c.value);
    if (which >= Special::kCtaidX && which <= Special::kCtaidZ) fill_special(c);
  }
}

BlockRunner::Lanes BlockRunner::new_lanes() {
  if (spare_.empty()) return {};
  Lanes out = std::move(spare_.back());
  spare_.pop_back();
  out.clear();
  return out;
}

void BlockRunner::recycle(Lanes lanes) {
  if (spare_.size() < 64) spare_.push_back(std::move(lanes));
}

void BlockRunner::start(Dim3 block) {
  x_.block = block;
  x_.clock = 0;
  fill_block();
  std::fill(shared_.begin(), shared_.end(), kFresh);
  if (x_.cells) cells_.start(x_.shared_bytes, launch_.checks);
  beside_.start(x_.stride);
  for (Barrier& b : barriers_) b = {};
  for (auto& waiters : warp_waiters_) waiters.clear();
  ready_.clear();
  blocked_.clear();
  live_ = x_.lanes;
  Lanes all = new_lanes();
  for (uint32_t i = 0; i < x_.lanes; ++i) all.push_back(static_cast<uint16_t>(i));
  for (uint32_t w = 0; w < x_.stride / kWarp; ++w) {
    const uint32_t rest = x_.lanes - w * kWarp;
    live_masks_[w] = rest >= kWarp ? ~0u : (1u << rest) - 1;
  }
  useful_ = 0;
  progress_mark_ = ~uint64_t{0};
  insert(kernel_.entry, std::move(all));
}

bool BlockRunner::run(Dim3 block) {
  start(block);
  size_t turn = 0;
  while (!ready_.empty() || unblock()) {
    if (turn >= ready_.size()) turn = 0;
    Group g = std::move(ready_[turn]);
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(turn));
    backward_ = 0;
    if (!run_group(g)) break;
    // A spinning group lets the next one above it run, then the order starts anew.
    turn = backward_ >= kSlice ? turn + 1 : 0;
    recycle(std::move(g.lanes));
  }
  if (!x_.has_faulted && live_ != 0 && !progress_.stop) deadlock();
  if (live_ == 0 && beside_.tensor.columns != 0)
    x_.raise(kernel_.code.back(), 0, Fault::Kind::kIllegal, beside_.tensor.first, Access::kRead,
             "columns of tensor memory were not freed");
  progress_.steps += pending_steps_;
  progress_.lane_instructions += pending_lanes_;
  pending_steps_ = pending_lanes_ = 0;
  {
    const std::lock_guard lock(progress_.mutex);
    progress_.traffic.add(x_.traffic);
    x_.traffic = {};
  }
  if (x_.has_faulted) progress_.report(x_.fault);
  if (!progress_.stop) ++progress_.blocks;
  return !progress_.stop;
}

/// Adds the lanes to the group at pc, or makes one.
void BlockRunner::insert(uint32_t pc, Lanes lanes) {
  if (lanes.empty()) return recycle(std::move(lanes));
  const auto at = std::lower_bound(ready_.begin(), ready_.end(), pc,
                                   [](const Group& g, uint32_t v) { return g.pc < v; });
  if (at == ready_.end() || at->pc != pc) {
    ready_.insert(at, Group{pc, std::move(lanes)});
    return;
  }
  Lanes both = new_lanes();
  both.resize(at->lanes.size() + lanes.size());
  std::merge(at->lanes.begin(), at->lanes.end(), lanes.begin(), lanes.end(), both.begin());
  std::swap(at->lanes, both);
  recycle(std::move(both));
  recycle(std::move(lanes));
}

uint32_t BlockRunner::limit_after(uint32_t pc) const {
  for (const Group& g : ready_)
    if (g.pc >= pc) return g.pc;
  return kNone;
}

/// Threads whose predicate holds; all of them or none is the usual case.
void BlockRunner::select_guarded(const Group& g, const Inst& in) {
  const uint8_t* p = x_.reg<uint8_t>(in.guard);
  const bool negated = in.guard_negated;
  uint32_t holds = 0;
  if (x_.count == x_.lanes)
    for (uint32_t i = 0; i < x_.lanes; ++i) holds += (p[i] != 0) != negated;
  else
    for (const uint16_t lane : g.lanes) holds += (p[lane] != 0) != negated;
  if (holds == x_.count) return;
  subset_.resize(g.lanes.size());
  uint32_t n = 0;
  for (const uint16_t lane : g.lanes) {
    subset_[n] = lane;
    n += (p[lane] != 0) != negated;
  }
  x_.active = subset_.data();
  x_.count = holds;
}

/// Which threads of the group the instruction is for.
void BlockRunner::select(const Group& g, const Inst& in) {
  x_.active = g.lanes.data();
  x_.count = static_cast<uint32_t>(g.lanes.size());
  if (in.guard != kNone) select_guarded(g, in);
  x_.is_dense = x_.count == x_.lanes;
}

bool BlockRunner::account(uint32_t pc) {
  const uint64_t steps = progress_.steps += pending_steps_;
  progress_.lane_instructions += pending_lanes_;
  pending_steps_ = pending_lanes_ = 0;
  if (progress_.stop) return false;
  const Inst& in = kernel_.code[pc];
  if (launch_.cancel && *launch_.cancel)
    x_.raise(in, 0, Fault::Kind::kCancelled, 0, Access::kRead);
  else if (launch_.max_instructions && steps > launch_.max_instructions)
    x_.raise(in, 0, Fault::Kind::kInstructionLimit, 0, Access::kRead,
             fmt::format("more than {} steps", launch_.max_instructions));
  return !x_.has_faulted;
}

/// Runs until the group catches up with the next one, ends, waits, or has spun long enough.
bool BlockRunner::run_group(Group& g) {
  uint32_t limit = limit_after(g.pc);
  while (!g.lanes.empty()) {
    if (g.pc >= limit || (backward_ >= kSlice && !ready_.empty())) {
      insert(g.pc, std::move(g.lanes));
      g.lanes.clear();
      return true;
    }
    const Inst& in = kernel_.code[g.pc];
    ++x_.clock;
    ++pending_steps_;
    if (pending_steps_ >= kAccount && !account(g.pc)) return false;
    select(g, in);
    pending_lanes_ += x_.count;
    if (in.flow == Flow::kPlain) {
      if (x_.count) in.run(x_, in);
      ++g.pc;
      ++useful_;
      if (x_.has_faulted) return false;
      continue;
    }
    if (x_.count == 0) {
      ++g.pc;
      continue;
    }
    const uint32_t before = g.pc;
    if (!step_flow(g, in)) return false;
    // A jump forward over waiting groups must not leave them behind.
    limit = limit_after(std::min(before, g.pc));
  }
  return true;
}

bool BlockRunner::step_flow(Group& g, const Inst& in) {
  const bool is_waiting = in.flow == Flow::kWarpPlain || in.flow == Flow::kWarpBarrier;
  if (!is_waiting) ++useful_;
  switch (in.flow) {
    case Flow::kPlain: return true;
    case Flow::kBranch: branch(g, in); return true;
    case Flow::kCall: {
      uint32_t* back = x_.reg<uint32_t>(in.op[0]);
      for (uint32_t k = 0; k < x_.count; ++k) back[x_.active[k]] = g.pc + 1;
      branch(g, in);
      return true;
    }
    case Flow::kTable:
    case Flow::kReturn: return scatter(g, in);
    case Flow::kExit: return leave(g, in);
    case Flow::kTrap:
      x_.raise(in, x_.active[0], Fault::Kind::kIllegal, 0, Access::kRead, "trap");
      return false;
    case Flow::kBarrier:
    case Flow::kArrive:
    case Flow::kReduce: return arrive(g, in);
    case Flow::kWarpPlain: return converge(g, in);
    case Flow::kWarpBarrier: return warp_barrier(g, in);
  }
  return false;
}

/// Takes the active lanes out of the group.
void BlockRunner::remove_active(Group& g) {
  if (x_.count == g.lanes.size()) return g.lanes.clear();
  Lanes rest = new_lanes();
  std::set_difference(g.lanes.begin(), g.lanes.end(), x_.active, x_.active + x_.count,
                      std::back_inserter(rest));
  std::swap(g.lanes, rest);
  recycle(std::move(rest));
}

void BlockRunner::branch(Group& g, const Inst& in) {
  if (in.target <= g.pc) ++backward_;
  if (x_.count == g.lanes.size()) {
    g.pc = in.target;
    return;
  }
  Lanes taken = new_lanes();
  taken.assign(x_.active, x_.active + x_.count);
  remove_active(g);
  ++g.pc;
  insert(in.target, std::move(taken));
}

/// Every thread to a place of its own.
bool BlockRunner::scatter(Group& g, const Inst& in) {
  const uint32_t* value = x_.reg<uint32_t>(in.op[0]);
  Lanes moved = new_lanes();
  moved.assign(x_.active, x_.active + x_.count);
  remove_active(g);
  insert(g.pc + 1, std::move(g.lanes));
  g.lanes.clear();
  for (const uint16_t lane : moved) {
    uint32_t target = value[lane];
    if (in.flow == Flow::kTable) {
      const std::vector<uint32_t>& table = kernel_.tables[in.target];
      if (target >= table.size()) {
        x_.raise(in, lane, Fault::Kind::kIllegal, target, Access::kRead, "index beyond the table");
        return false;
      }
      target = table[target];
    }
    Lanes one = new_lanes();
    one.push_back(lane);
    insert(target, std::move(one));
  }
  recycle(std::move(moved));
  return true;
}

bool BlockRunner::leave(Group& g, const Inst&) {
  live_ -= x_.count;
  for (uint32_t k = 0; k < x_.count; ++k)
    live_masks_[x_.active[k] / kWarp] &= ~(1u << (x_.active[k] % kWarp));
  remove_active(g);
  ++g.pc;
  release_complete();
  return true;
}

}  // namespace bm::sim::ptx
