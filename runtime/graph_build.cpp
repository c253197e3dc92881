// From a list of calls to a sealed GraphState: lanes, plan, memory, commands with patches, recordings.

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "runtime/base/bits.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/graph_state.h"

namespace bm::runtime {
namespace {

constexpr uint64_t kBlockAlign = 16;
constexpr uint64_t kSignalStride = 64;  // one cache line per lane: lanes poll each other's words

/// Commands of one recording under construction.
struct Script {
  std::vector<hal::Command> commands;
  std::vector<hal::Patch> patches;

  void add(hal::Command command) { commands.push_back(std::move(command)); }
  /// Patches a field of the command added last.
  void patch(hal::PatchField field, uint32_t slot, uint64_t addend = 0, uint32_t word = 0) {
    patches.push_back({static_cast<uint32_t>(commands.size() - 1), field, word, slot, addend});
  }
};

/// Host-visible memory of one device, given out front to back.
struct Arena {
  uint64_t size = 0, used = 0;
  hal::Buffer* memory = nullptr;
};

struct Place {
  hal::GpuVa va{};
  std::byte* host = nullptr;
};

uint64_t block_bytes(const hal::CodeObject& code) {
  return align_up((uint64_t{code.num_buffers} + code.num_vars) * sizeof(uint64_t), kBlockAlign);
}

class Builder {
 public:
  Builder(std::vector<Call> calls, uint32_t num_inputs, uint32_t num_vars)
      : calls_(std::move(calls)), state_(std::make_unique<GraphState>()), plan_calls_(calls_.size()),
        executors_(calls_.size()), with_stamps_(profiler().is_on()) {
    state_->num_inputs = num_inputs;
    state_->num_vars = num_vars;
    next_slot_ = num_inputs + num_vars;
  }

  Result<std::unique_ptr<GraphState>> run(std::span<const Buffer> capture_inputs);

 private:
  // 1. Who runs what.
  Status check_calls();
  Status assign_lanes();
  uint32_t lane_of(Device& device, hal::QueueKind kind);
  uint32_t device_index(Device& device);
  void touch(uint32_t lane, Device& device);
  void collect_accesses(uint32_t call);
  std::vector<EndGroup> make_ends();
  bool is_touching(uint32_t call, const Device& device) const;
  // 2. Memory and slots.
  Status allocate_arenas();
  Status allocate_signals();
  Place take(Device& device, uint64_t bytes);
  uint32_t new_slot() { return next_slot_++; }
  uint32_t dim_slot(const hal::DimExpr& dim, const std::vector<uint32_t>& vars);
  uint32_t input_slot(uint32_t input, const Device& owner, Device& executor);
  // 3. Commands.
  Status emit_prologue(Script& script, uint32_t lane);
  Status emit_call(Script& script, uint32_t call);
  Status emit_command(Script& script, uint32_t call);
  Status emit_kernel(Script& script, const Call& call, const KernelCall& kernel, Device& device);
  Status emit_copy(Script& script, const Call& call, Device& device);
  Status emit_grid(Script& script, const KernelCall& kernel, hal::Dim3& grid);
  Status emit_wait(Script& script, Device& device, const LaneWait& wait);
  Status emit_signal(Script& script, Device& device, uint32_t lane, uint32_t ordinal);
  Status emit_end(Script& script, uint32_t device, std::span<const LaneWait> waits);
  Result<hal::GpuVa> signal_address(Device& device, uint32_t lane);
  Result<hal::GpuVa> address(const Buffer& buffer, Device& executor);
  // 4. Recordings.
  Status record_lanes();
  Status record_host_steps();
  Status close_step(HostStep& step, Script& script);
  void note_uses();
  void note_stamp(uint32_t call, const Place& place);
  void link_stamps();
  Result<uint32_t> clock_of(Device& device);

  std::vector<Call> calls_;
  std::unique_ptr<GraphState> state_;
  std::vector<PlanCall> plan_calls_;
  std::vector<Device*> executors_;            ///< per call
  std::vector<std::vector<uint64_t>> slot_offsets_;  ///< per call and argument: offset in its input
  std::map<Device*, Arena> arenas_;
  std::vector<std::set<uint32_t>> touched_;   ///< per lane: queue devices whose memory it uses;
                                              ///< the host lane never does, queues copy for it
  std::map<Device*, uint32_t> device_indices_;
  GraphPlan plan_;
  std::vector<uint32_t> end_devices_;         ///< device of each epilogue of the plan
  std::map<Device*, uint32_t> clock_indices_;
  const bool with_stamps_;
  uint32_t next_slot_ = 0;
  uint32_t current_call_ = 0;
};

// ---- 1. Who runs what -----------------------------------------------------------------------------

Status Builder::check_calls() {
  for (const Call& call : calls_) {
    if (const auto* kernel = std::get_if<KernelCall>(&call.what)) {
      BM_TRY(check_kernel_call(call, *kernel, state_->num_vars));
    } else if (std::holds_alternative<CopyCall>(call.what)) {
      BM_TRY(check_copy_call(call));
    } else {
      return fail(Code::kUnsupported, "{}: a host function cannot be part of a graph", call.name);
    }
  }
  return {};
}

uint32_t Builder::device_index(Device& device) {
  const auto [it, is_new] = device_indices_.emplace(&device, static_cast<uint32_t>(state_->devices.size()));
  if (is_new) {
    GraphDevice entry;
    entry.device = &device;
    state_->devices.push_back(std::move(entry));
  }
  return it->second;
}

/// Lane of a device's queue; devices with one queue for both kinds have one lane.
uint32_t Builder::lane_of(Device& device, hal::QueueKind kind) {
  if (device.hal().is_inline()) return kHostLane;
  hal::Queue* queue = &device.hal().queue(kind);
  for (uint32_t i = 0; i < state_->lanes.size(); ++i)
    if (state_->lanes[i].queue == queue) return i + 1;
  state_->lanes.push_back({device_index(device), queue, nullptr});
  touched_.resize(state_->lanes.size() + 1);
  return static_cast<uint32_t>(state_->lanes.size());
}

/// Notes that a lane uses memory of a device: it must come after that device's earlier work, and
/// the device's later work after it.
void Builder::touch(uint32_t lane, Device& device) {
  if (!device.hal().is_inline()) touched_[lane].insert(device_index(device));
}

Status Builder::assign_lanes() {
  touched_.resize(1);
  for (uint32_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (const auto* kernel = std::get_if<KernelCall>(&call.what)) {
      executors_[i] = kernel->device;
      plan_calls_[i].lane = lane_of(*kernel->device, hal::QueueKind::kCompute);
    } else {
      // The source's copy engine pushes; an inline source leaves it to the destination's to pull.
      Device& dst = call.args[0].buffer.device();
      Device& src = call.args[1].buffer.device();
      executors_[i] = src.hal().is_inline() ? &dst : &src;
      plan_calls_[i].lane = lane_of(*executors_[i], hal::QueueKind::kCopy);
    }
    touch(plan_calls_[i].lane, *executors_[i]);
    for (const Arg& arg : call.args) touch(plan_calls_[i].lane, arg.buffer.device());
    collect_accesses(i);
  }
  return {};
}

/// Ranges are told apart by device and address rather than by storage, so that two wraps of the
/// same memory are seen to overlap.
void Builder::collect_accesses(uint32_t call) {
  const bool is_copy = std::holds_alternative<CopyCall>(calls_[call].what);
  for (size_t i = 0; i < calls_[call].args.size(); ++i) {
    const Arg& arg = calls_[call].args[i];
    const uint64_t begin = hal::raw(arg.buffer.va());
    plan_calls_[call].accesses.push_back({.base = &arg.buffer.device(), .begin = begin,
                                          .end = begin + arg.buffer.size,
                                          .is_read = is_copy ? i == 1 : arg.is_read,
                                          .is_written = is_copy ? i == 0 : arg.is_written});
  }
}

bool Builder::is_touching(uint32_t call, const Device& device) const {
  if (executors_[call] == &device) return true;
  return std::any_of(calls_[call].args.begin(), calls_[call].args.end(),
                     [&](const Arg& arg) { return &arg.buffer.device() == &device; });
}

/// Every queue device ends with one signal on its timeline, after all calls that touch its memory.
std::vector<EndGroup> Builder::make_ends() {
  std::vector<EndGroup> ends;
  for (uint32_t d = 0; d < state_->devices.size(); ++d) {
    Device& device = *state_->devices[d].device;
    // Any lane of the device will do; one that exists saves a submission.
    uint32_t lane = 0;
    for (uint32_t i = 0; i < state_->lanes.size() && lane == 0; ++i)
      if (state_->lanes[i].device == d) lane = i + 1;
    if (lane == 0) lane = lane_of(device, hal::QueueKind::kCompute);
    touch(lane, device);
    state_->devices[d].end_lane = lane;
    EndGroup group{lane, {}};
    for (uint32_t call = 0; call < calls_.size(); ++call)
      if (is_touching(call, device)) group.calls.push_back(call);
    ends.push_back(std::move(group));
    end_devices_.push_back(d);
  }
  return ends;
}

// ---- 2. Memory and slots --------------------------------------------------------------------------

Status Builder::allocate_arenas() {
  for (uint32_t i = 0; i < calls_.size(); ++i) {
    Arena& arena = arenas_[executors_[i]];
    if (const auto* kernel = std::get_if<KernelCall>(&calls_[i].what))
      arena.size += block_bytes(kernel->program->code());
    if (with_stamps_) arena.size += 2 * sizeof(uint64_t);
  }
  for (auto& [device, arena] : arenas_) {
    if (arena.size == 0) continue;
    auto memory = BM_TRY(device->hal().allocate(
        {.size = arena.size, .host_visible = true, .uncached = !device->hal().is_inline()}));
    if (memory->host() == nullptr)
      return fail(Code::kUnsupported, "{}: argument memory is not visible to the host", device->name());
    arena.memory = memory.get();
    state_->memory.push_back(std::move(memory));
  }
  return {};
}

Status Builder::allocate_signals() {
  for (const uint32_t count : plan_.num_signals) state_->most_signals = std::max(state_->most_signals, count);
  if (state_->most_signals == 0) return {};
  hal::Device& owner = state_->devices[state_->lanes.front().device].device->hal();
  constexpr uint64_t kPage = 4096;
  state_->signals = BM_TRY(owner.allocate({.size = align_up(kSignalStride * (state_->lanes.size() + 1), kPage),
                                           .host_visible = true, .host_memory = true, .uncached = true,
                                           .zero = true}));
  if (state_->signals->host() == nullptr)
    return fail(Code::kUnsupported, "signal memory is not visible to the host");
  state_->base_slot = new_slot();
  return {};
}

Place Builder::take(Device& device, uint64_t bytes) {
  Arena& arena = arenas_.at(&device);
  const uint64_t at = arena.used;
  arena.used += bytes;
  return {hal::offset(arena.memory->va(), at), arena.memory->host() + at};
}

/// Slot holding the value of a dimension; equal expressions share one.
uint32_t Builder::dim_slot(const hal::DimExpr& dim, const std::vector<uint32_t>& vars) {
  hal::DimExpr global = dim;
  for (auto& term : global.terms) term.var = vars[term.var];
  const auto same_terms = [&](const hal::DimExpr& other) {
    return std::equal(global.terms.begin(), global.terms.end(), other.terms.begin(), other.terms.end(),
                      [](const auto& a, const auto& b) { return a.var == b.var && a.coefficient == b.coefficient; });
  };
  for (const DimSlot& known : state_->dims) {
    if (known.dim.constant == global.constant && known.dim.divisor == global.divisor && same_terms(known.dim))
      return known.slot;
  }
  state_->dims.push_back({std::move(global), new_slot()});
  return state_->dims.back().slot;
}

uint32_t Builder::input_slot(uint32_t input, const Device& owner, Device& executor) {
  if (&owner == &executor) return input;
  for (const PeerInput& peer : state_->peer_inputs)
    if (peer.input == input && peer.device == &executor) return peer.slot;
  state_->peer_inputs.push_back({input, &executor, new_slot()});
  return state_->peer_inputs.back().slot;
}

// ---- 3. Commands ----------------------------------------------------------------------------------

Result<hal::GpuVa> Builder::address(const Buffer& buffer, Device& executor) {
  if (&buffer.device() == &executor) return buffer.va();
  if (!executor.hal().is_inline()) return hal::offset(BM_TRY(buffer.storage->va_on(executor)), buffer.offset);
  // Inline devices work on host pointers.
  if (std::byte* host = buffer.host()) return hal::GpuVa{reinterpret_cast<uintptr_t>(host)};
  return fail(Code::kUnsupported, "{} cannot reach memory of {}", executor.name(), buffer.device().name());
}

Result<hal::GpuVa> Builder::signal_address(Device& device, uint32_t lane) {
  hal::Device& owner = state_->devices[state_->lanes.front().device].device->hal();
  const hal::GpuVa base = &owner == &device.hal() ? state_->signals->va() : BM_TRY(device.hal().map(*state_->signals));
  return hal::offset(base, lane * kSignalStride);
}

Status Builder::emit_wait(Script& script, Device& device, const LaneWait& wait) {
  script.add(hal::Wait{BM_TRY(signal_address(device, wait.lane)), 0});
  script.patch(hal::PatchField::kSignalValue, state_->base_slot, wait.ordinal);
  return {};
}

Status Builder::emit_signal(Script& script, Device& device, uint32_t lane, uint32_t ordinal) {
  script.add(hal::Signal{BM_TRY(signal_address(device, lane)), 0});
  script.patch(hal::PatchField::kSignalValue, state_->base_slot, ordinal);
  return {};
}

/// After everything earlier on the devices whose memory the lane uses.
Status Builder::emit_prologue(Script& script, uint32_t lane) {
  const uint32_t own = state_->lanes[lane - 1].device;
  Device& device = *state_->devices[own].device;
  for (const uint32_t d : touched_[lane]) {
    GraphDevice& touched = state_->devices[d];
    if (touched.previous_slot == kNoSlot) touched.previous_slot = new_slot();
    if (d != own && std::find(touched.waiters.begin(), touched.waiters.end(), own) == touched.waiters.end())
      touched.waiters.push_back(own);
    script.add(hal::Wait{BM_TRY(touched.device->stream().signal_on(device.hal())), 0});
    script.patch(hal::PatchField::kSignalValue, touched.previous_slot);
  }
  script.add(hal::Barrier{});
  return {};
}

Status Builder::emit_end(Script& script, uint32_t device, std::span<const LaneWait> waits) {
  GraphDevice& entry = state_->devices[device];
  for (const LaneWait& wait : waits) BM_TRY(emit_wait(script, *entry.device, wait));
  entry.done_slot = new_slot();
  script.add(hal::Signal{entry.device->stream().timeline().signal(), 0});
  script.patch(hal::PatchField::kSignalValue, entry.done_slot);
  return {};
}

Status Builder::emit_grid(Script& script, const KernelCall& kernel, hal::Dim3& grid) {
  using enum hal::PatchField;
  constexpr hal::PatchField kFields[] = {kGridX, kGridY, kGridZ};
  uint32_t* const dims[] = {&grid.x, &grid.y, &grid.z};
  for (size_t axis = 0; axis < 3; ++axis) {
    const hal::DimExpr& dim = kernel.program->code().grid[axis];
    if (dim.is_constant()) {
      *dims[axis] = BM_TRY(grid_dim(dim, {}));
    } else {
      // The Dispatch is added after us, so the patch names the next command.
      const auto command = static_cast<uint32_t>(script.commands.size());
      script.patches.push_back({command, kFields[axis], 0, dim_slot(dim, kernel.vars), 0});
    }
  }
  return {};
}

Status Builder::emit_kernel(Script& script, const Call& call, const KernelCall& kernel, Device& device) {
  hal::Dispatch dispatch{kernel.program.get(), {}, {}};
  const size_t patches_before = script.patches.size();
  BM_TRY(emit_grid(script, kernel, dispatch.grid));
  const Place block = take(device, block_bytes(kernel.program->code()));
  if (dispatch.grid.x == 0 || dispatch.grid.y == 0 || dispatch.grid.z == 0) {
    script.patches.resize(patches_before);  // an empty grid launches nothing, whatever the variables
    return {};
  }
  dispatch.kernarg = block.va;
  script.add(dispatch);
  auto* words = reinterpret_cast<uint64_t*>(block.host);
  uint32_t word = 0;
  for (const Arg& arg : call.args) {
    words[word] = hal::raw(arg.buffer.va());
    if (arg.slot >= 0) {
      const uint32_t slot = input_slot(static_cast<uint32_t>(arg.slot), arg.buffer.device(), device);
      script.patch(hal::PatchField::kKernarg, slot, slot_offsets_[current_call_][word], word);
    }
    ++word;
  }
  for (const uint32_t var : kernel.vars) {
    words[word] = 0;
    script.patch(hal::PatchField::kKernarg, state_->num_inputs + var, 0, word++);
  }
  return {};
}

Status Builder::emit_copy(Script& script, const Call& call, Device& device) {
  const Buffer &dst = call.args[0].buffer, &src = call.args[1].buffer;
  if (dst.size == 0) return {};
  script.add(hal::Copy{BM_TRY(address(dst, device)), BM_TRY(address(src, device)), dst.size});
  using enum hal::PatchField;
  constexpr hal::PatchField kFields[] = {kCopyDst, kCopySrc};
  for (size_t i = 0; i < 2; ++i) {
    const Arg& arg = call.args[i];
    if (arg.slot < 0) continue;
    const uint32_t slot = input_slot(static_cast<uint32_t>(arg.slot), arg.buffer.device(), device);
    script.patch(kFields[i], slot, slot_offsets_[current_call_][i]);
  }
  return {};
}

Status Builder::emit_command(Script& script, uint32_t call) {
  current_call_ = call;
  Device& device = *executors_[call];
  if (const auto* kernel = std::get_if<KernelCall>(&calls_[call].what))
    return emit_kernel(script, calls_[call], *kernel, device);
  return emit_copy(script, calls_[call], device);
}

Status Builder::emit_call(Script& script, uint32_t call) {
  if (!with_stamps_) return emit_command(script, call);
  const Place stamps = take(*executors_[call], 2 * sizeof(uint64_t));
  note_stamp(call, stamps);
  state_->stamps.back().clock = BM_TRY(clock_of(*executors_[call]));
  script.add(hal::Timestamp{stamps.va});
  BM_TRY(emit_command(script, call));
  script.add(hal::Timestamp{hal::offset(stamps.va, sizeof(uint64_t))});
  return {};
}

void Builder::note_stamp(uint32_t call, const Place& place) {
  const Call& c = calls_[call];
  CallStamp stamp;
  stamp.name = c.name;
  stamp.row = executors_[call]->name();
  stamp.host = place.host;
  if (const auto* kernel = std::get_if<KernelCall>(&c.what)) {
    stamp.flops = kernel->flops;
    stamp.bytes = kernel->bytes;
  } else {
    stamp.category = "copy";
    stamp.bytes = 2.0 * static_cast<double>(c.args[0].buffer.size);
    if (!executors_[call]->hal().is_inline()) stamp.row += ":COPY";
  }
  stamp.call = call;
  state_->stamps.push_back(std::move(stamp));
}

/// Arrows name stamps by position; calls were emitted lane by lane, not in program order.
void Builder::link_stamps() {
  std::map<uint32_t, uint32_t> position;
  for (const CallStamp& stamp : state_->stamps)
    position.emplace(stamp.call, static_cast<uint32_t>(position.size()));
  for (CallStamp& stamp : state_->stamps)
    for (const uint32_t earlier : plan_.calls[stamp.call].arrows) stamp.after.push_back(position.at(earlier));
}

Result<uint32_t> Builder::clock_of(Device& device) {
  if (const auto known = clock_indices_.find(&device); known != clock_indices_.end()) return known->second;
  state_->clocks.push_back(BM_TRY(calibrate_clock(device)));
  const auto index = static_cast<uint32_t>(state_->clocks.size() - 1);
  clock_indices_.emplace(&device, index);
  return index;
}

// ---- 4. Recordings --------------------------------------------------------------------------------

Status Builder::record_lanes() {
  std::vector<Script> scripts(state_->lanes.size() + 1);
  for (uint32_t lane = 1; lane < scripts.size(); ++lane) BM_TRY(emit_prologue(scripts[lane], lane));
  for (uint32_t call = 0; call < calls_.size(); ++call) {
    const uint32_t lane = plan_calls_[call].lane;
    if (lane == kHostLane) continue;
    const PlannedCall& planned = plan_.calls[call];
    for (const LaneWait& wait : planned.waits) BM_TRY(emit_wait(scripts[lane], *executors_[call], wait));
    if (planned.needs_barrier) scripts[lane].add(hal::Barrier{});
    BM_TRY(emit_call(scripts[lane], call));
    if (planned.signal != 0) BM_TRY(emit_signal(scripts[lane], *executors_[call], lane, planned.signal));
  }
  for (size_t i = 0; i < end_devices_.size(); ++i) {
    const uint32_t device = end_devices_[i];
    BM_TRY(emit_end(scripts[state_->devices[device].end_lane], device, plan_.epilogues[i]));
  }
  for (uint32_t lane = 1; lane < scripts.size(); ++lane) {
    GraphLane& entry = state_->lanes[lane - 1];
    entry.recording = BM_TRY(entry.queue->record(scripts[lane].commands, scripts[lane].patches));
  }
  return {};
}

Status Builder::close_step(HostStep& step, Script& script) {
  if (!script.commands.empty()) step.recording = BM_TRY(step.queue->record(script.commands, script.patches));
  if (step.recording || !step.waits.empty() || step.signal != 0) state_->host_steps.push_back(std::move(step));
  step = {};
  script = {};
  return {};
}

/// Calls of inline devices, cut where the device changes, where the host must wait for a queue
/// first, and where a queue waits for the result.
Status Builder::record_host_steps() {
  HostStep step;
  Script script;
  for (uint32_t call = 0; call < calls_.size(); ++call) {
    if (plan_calls_[call].lane != kHostLane) continue;
    const PlannedCall& planned = plan_.calls[call];
    hal::Queue* queue = &executors_[call]->hal().queue(hal::QueueKind::kCompute);
    if (step.queue != queue || !planned.waits.empty()) BM_TRY(close_step(step, script));
    step.queue = queue;
    if (!planned.waits.empty()) step.waits = planned.waits;
    BM_TRY(emit_call(script, call));
    if (planned.signal == 0) continue;
    step.signal = planned.signal;
    BM_TRY(close_step(step, script));
  }
  return close_step(step, script);
}

/// Which Points keep memory from being reused: a queue device's own, and for memory of inline
/// devices those of the queues that read or write it.
void Builder::note_uses() {
  std::set<std::pair<Storage*, uint32_t>> fixed;
  std::set<std::pair<uint32_t, uint32_t>> inputs;
  std::set<Storage*> kept;
  for (uint32_t call = 0; call < calls_.size(); ++call) {
    for (const Arg& arg : calls_[call].args) {
      Device& owner = arg.buffer.device();
      if (arg.slot < 0 && kept.insert(arg.buffer.storage.get()).second)
        state_->storages.push_back(arg.buffer.storage);
      Device& user = owner.hal().is_inline() ? *executors_[call] : owner;
      if (user.hal().is_inline()) continue;
      const uint32_t device = device_index(user);
      if (arg.slot < 0) {
        fixed.emplace(arg.buffer.storage.get(), device);
      } else {
        inputs.emplace(static_cast<uint32_t>(arg.slot), device);
      }
    }
  }
  for (const auto& [storage, device] : fixed) state_->storage_uses.push_back({storage, device});
  for (const auto& [input, device] : inputs) state_->input_uses.push_back({input, device});
}

Result<std::unique_ptr<GraphState>> Builder::run(std::span<const Buffer> capture_inputs) {
  BM_TRY(check_calls());
  GraphState& state = *state_;
  state.inputs = BM_TRY(InputTable::create(state.num_inputs, capture_inputs));
  for (const Call& call : calls_) {
    auto& offsets = slot_offsets_.emplace_back();
    const bool is_copy = std::holds_alternative<CopyCall>(call.what);
    for (size_t i = 0; i < call.args.size(); ++i) {
      Arg arg = call.args[i];
      if (is_copy) arg.is_written = i == 0;
      offsets.push_back(BM_TRY(state.inputs.add(arg)));
    }
  }
  state.inputs.seal();
  BM_TRY(assign_lanes());
  const std::vector<EndGroup> ends = make_ends();
  plan_ = plan_graph(plan_calls_, static_cast<uint32_t>(state.lanes.size() + 1), ends);
  BM_TRY(allocate_arenas());
  BM_TRY(allocate_signals());
  BM_TRY(record_lanes());
  BM_TRY(record_host_steps());
  link_stamps();
  note_uses();

  static std::atomic<uint64_t> next_number{0};  // names graphs in statistics and traces
  state.name = fmt::format("graph_{}", next_number.fetch_add(1, std::memory_order_relaxed));
  state.device_name = calls_.empty() ? "" : executors_.front()->name();
  state.num_calls = calls_.size();
  for (const Call& call : calls_) {
    state.num_args += call.args.size();
    if (const auto* kernel = std::get_if<KernelCall>(&call.what)) {
      state.programs.push_back(kernel->program);
      state.flops += kernel->flops;
      state.bytes += kernel->bytes;
    } else {
      state.bytes += 2.0 * static_cast<double>(call.args[0].buffer.size);
    }
  }
  state.values.assign(next_slot_, 0);
  return std::move(state_);
}

}  // namespace

Result<std::unique_ptr<GraphState>> build_graph(std::vector<Call> calls, uint32_t num_inputs,
                                                uint32_t num_vars, std::span<const Buffer> capture_inputs) {
  return Builder(std::move(calls), num_inputs, num_vars).run(capture_inputs);
}

}  // namespace bm::runtime
