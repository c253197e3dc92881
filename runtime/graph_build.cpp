// From a list of calls to a sealed GraphState: queues, plan, memory and slots.

#include <algorithm>
#include <atomic>

#include "runtime/base/bits.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/graph_builder.h"

namespace bm::runtime {

uint64_t block_bytes(const hal::CodeObject& code) {
  constexpr uint64_t kBlockAlign = 16;
  return align_up((uint64_t{code.num_buffers} + code.num_vars) * sizeof(uint64_t), kBlockAlign);
}

// ---- 1. Who runs what

Status GraphBuilder::check_calls() {
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

uint32_t GraphBuilder::device_index(Device& device) {
  const auto [it, is_new] =
      device_indices_.emplace(&device, static_cast<uint32_t>(state_->devices.size()));
  if (is_new) {
    GraphDevice entry;
    entry.device = &device;
    state_->devices.push_back(std::move(entry));
  }
  return it->second;
}

/// Index of what a queue of a device will run; devices with one queue for both kinds have one.
uint32_t GraphBuilder::queue_index_of(Device& device, hal::QueueKind kind) {
  if (device.hal().is_inline()) return kHostQueue;
  hal::Queue* queue = &device.hal().queue(kind);
  for (uint32_t i = 0; i < state_->queues.size(); ++i)
    if (state_->queues[i].queue == queue) return i + 1;
  state_->queues.push_back({device_index(device), queue, nullptr});
  touched_.resize(state_->queues.size() + 1);
  return static_cast<uint32_t>(state_->queues.size());
}

const char* GraphBuilder::queues_of(uint32_t device) const {
  hal::Device& hal = state_->devices[device].device->hal();
  const auto runs_on = [&](hal::QueueKind kind) {
    return std::ranges::any_of(state_->queues, [&](const RecordedQueue& recorded) {
      return recorded.device == device && recorded.queue == &hal.queue(kind);
    });
  };
  const bool is_copying = runs_on(hal::QueueKind::kCopy);
  if (!runs_on(hal::QueueKind::kCompute)) return "copy";
  return is_copying ? "compute or copy" : "compute";
}

/// Notes that a queue uses memory of a device: it must come after that device's earlier work, and
/// the device's later work after it.
void GraphBuilder::touch(uint32_t queue_index, Device& device) {
  if (!device.hal().is_inline()) touched_[queue_index].insert(device_index(device));
}

Status GraphBuilder::assign_queues() {
  touched_.resize(1);
  for (uint32_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (const auto* kernel = std::get_if<KernelCall>(&call.what)) {
      executors_[i] = kernel->device;
      plan_calls_[i].queue_index = queue_index_of(*kernel->device, hal::QueueKind::kCompute);
    } else {
      // The source's copy engine pushes; an inline source leaves it to the destination's to pull.
      Device& dst = call.args[0].buffer.device();
      Device& src = call.args[1].buffer.device();
      executors_[i] = src.hal().is_inline() ? &dst : &src;
      plan_calls_[i].queue_index = queue_index_of(*executors_[i], hal::QueueKind::kCopy);
    }
    touch(plan_calls_[i].queue_index, *executors_[i]);
    for (const Arg& arg : call.args) touch(plan_calls_[i].queue_index, arg.buffer.device());
    collect_accesses(i);
  }
  return {};
}

/// Ranges are distinguished by device and address rather than by storage, so that two wraps of the
/// same memory are seen to overlap.
void GraphBuilder::collect_accesses(uint32_t call) {
  const bool is_copy = std::holds_alternative<CopyCall>(calls_[call].what);
  for (size_t i = 0; i < calls_[call].args.size(); ++i) {
    const Arg& arg = calls_[call].args[i];
    const uint64_t begin = hal::raw(arg.buffer.va());
    plan_calls_[call].accesses.push_back({.base = &arg.buffer.device(),
                                          .begin = begin,
                                          .end = begin + arg.buffer.size,
                                          .is_read = is_copy ? i == 1 : arg.is_read,
                                          .is_written = is_copy ? i == 0 : arg.is_written});
  }
}

bool GraphBuilder::is_touching(uint32_t call, const Device& device) const {
  if (executors_[call] == &device) return true;
  return std::any_of(calls_[call].args.begin(), calls_[call].args.end(),
                     [&](const Arg& arg) { return &arg.buffer.device() == &device; });
}

/// Every queue device ends with one signal on its timeline, after all calls that touch its memory.
std::vector<EndGroup> GraphBuilder::make_ends() {
  std::vector<EndGroup> ends;
  for (uint32_t d = 0; d < state_->devices.size(); ++d) {
    Device& device = *state_->devices[d].device;
    // Any queue of the device will do; one that exists saves a submission.
    uint32_t queue_index = 0;
    for (uint32_t i = 0; i < state_->queues.size() && queue_index == 0; ++i)
      if (state_->queues[i].device == d) queue_index = i + 1;
    if (queue_index == 0) queue_index = queue_index_of(device, hal::QueueKind::kCompute);
    touch(queue_index, device);
    state_->devices[d].end_queue = queue_index;
    EndGroup group{queue_index, {}};
    for (uint32_t call = 0; call < calls_.size(); ++call)
      if (is_touching(call, device)) group.calls.push_back(call);
    ends.push_back(std::move(group));
    end_devices_.push_back(d);
  }
  return ends;
}

// ---- 2. Memory and slots

Status GraphBuilder::allocate_arenas() {
  for (uint32_t i = 0; i < calls_.size(); ++i) {
    Arena& arena = arenas_[executors_[i]];
    if (const auto* kernel = std::get_if<KernelCall>(&calls_[i].what))
      arena.size += block_bytes(kernel->program->code());
    if (with_timestamps_) arena.size += 2 * sizeof(uint64_t);
  }
  for (auto& [device, arena] : arenas_) {
    if (arena.size == 0) continue;
    auto allocated = device->hal().allocate(
        {.size = arena.size, .host_visible = true, .uncached = !device->hal().is_inline()});
    if (!allocated) return tl::unexpected<Error>(device->first_cause(std::move(allocated.error())));
    std::unique_ptr<hal::Buffer> memory = std::move(*allocated);
    if (memory->host() == nullptr)
      return fail(Code::kUnsupported, "{}: argument memory is not visible to the host",
                  device->name());
    arena.memory = memory.get();
    state_->memory.push_back(std::move(memory));
  }
  return {};
}

Status GraphBuilder::allocate_signals() {
  for (const uint32_t count : plan_.num_signals)
    state_->most_signals = std::max(state_->most_signals, count);
  if (state_->most_signals == 0) return {};
  hal::Device& owner = state_->devices[state_->queues.front().device].device->hal();
  constexpr uint64_t kPage = 4096;
  state_->signals =
      BM_TRY(owner.allocate({.size = align_up(kSignalStride * (state_->queues.size() + 1), kPage),
                             .host_visible = true,
                             .host_memory = true,
                             .uncached = true,
                             .zero = true}));
  if (state_->signals->host() == nullptr)
    return fail(Code::kUnsupported, "signal memory is not visible to the host");
  state_->base_slot = new_slot();
  return {};
}

Place GraphBuilder::take(Device& device, uint64_t bytes) {
  Arena& arena = arenas_.at(&device);
  const uint64_t at = arena.used;
  arena.used += bytes;
  return {hal::offset(arena.memory->va(), at), arena.memory->host() + at};
}

/// Slot holding the value of a dimension; equal expressions share one.
uint32_t GraphBuilder::dim_slot(const hal::DimExpr& dim, const std::vector<uint32_t>& vars) {
  hal::DimExpr global = dim;
  for (auto& term : global.terms) term.var = vars[term.var];
  const auto same_terms = [&](const hal::DimExpr& other) {
    return std::equal(global.terms.begin(), global.terms.end(), other.terms.begin(),
                      other.terms.end(), [](const auto& a, const auto& b) {
                        return a.var == b.var && a.coefficient == b.coefficient;
                      });
  };
  for (const DimSlot& known : state_->dims) {
    if (known.dim.constant == global.constant && known.dim.divisor == global.divisor &&
        same_terms(known.dim))
      return known.slot;
  }
  state_->dims.push_back({std::move(global), new_slot()});
  return state_->dims.back().slot;
}

uint32_t GraphBuilder::input_slot(uint32_t input, const Device& owner, Device& executor) {
  if (&owner == &executor) return input;
  for (const PeerInput& peer : state_->peer_inputs)
    if (peer.input == input && peer.device == &executor) return peer.slot;
  state_->peer_inputs.push_back({input, &executor, new_slot()});
  return state_->peer_inputs.back().slot;
}

Result<std::unique_ptr<GraphState>> GraphBuilder::run(std::span<const Buffer> capture_inputs) {
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
  BM_TRY(assign_queues());
  const std::vector<EndGroup> ends = make_ends();
  plan_ = plan_graph(plan_calls_, static_cast<uint32_t>(state.queues.size() + 1), ends);
  BM_TRY(allocate_arenas());
  BM_TRY(allocate_signals());
  BM_TRY(record_queues());
  BM_TRY(record_host_steps());
  link_timestamps();
  note_uses();

  static std::atomic<uint64_t> next_number{0};  // names graphs in statistics and traces
  state.name = fmt::format("graph_{}", next_number.fetch_add(1, std::memory_order_relaxed));
  state.device_name = calls_.empty() ? "" : executors_.front()->name();
  state.num_calls = calls_.size();
  // Which of them hangs is not known: a replay signals at its end only.
  state.summary = fmt::format("{} of {} calls", state.name, calls_.size());
  constexpr size_t kMostNamed = 8;
  for (size_t i = 0; i < std::min(calls_.size(), kMostNamed); ++i)
    state.summary += (i == 0 ? ": " : ", ") + calls_[i].name;
  if (calls_.size() > kMostNamed) state.summary += " … " + calls_.back().name;
  for (uint32_t i = 0; i < state.devices.size(); ++i) state.devices[i].queues = queues_of(i);
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

Result<std::unique_ptr<GraphState>> build_graph(std::vector<Call> calls, uint32_t num_inputs,
                                                uint32_t num_vars,
                                                std::span<const Buffer> capture_inputs) {
  return GraphBuilder(std::move(calls), num_inputs, num_vars).run(capture_inputs);
}

}  // namespace bm::runtime
