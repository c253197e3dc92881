// The commands of a graph with their patches, and the recordings made of them.

#include <algorithm>

#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/graph_builder.h"

namespace bm::runtime {

// ---- 3. Commands

Result<hal::GpuVa> GraphBuilder::address(const Buffer& buffer, Device& executor) {
  if (&buffer.device() == &executor) return buffer.va();
  if (!executor.hal().is_inline())
    return hal::offset(BM_TRY(buffer.storage->va_on(executor)), buffer.offset);
  // Inline devices work on host pointers.
  if (std::byte* host = buffer.host()) return hal::GpuVa{reinterpret_cast<uintptr_t>(host)};
  return fail(Code::kUnsupported, "{} cannot reach memory of {}", executor.name(),
              buffer.device().name());
}

Result<hal::GpuVa> GraphBuilder::signal_address(Device& device, uint32_t queue_index) {
  hal::Device& owner = state_->devices[state_->queues.front().device].device->hal();
  const hal::GpuVa base =
      &owner == &device.hal() ? state_->signals->va() : BM_TRY(device.hal().map(*state_->signals));
  return hal::offset(base, queue_index * kSignalStride);
}

Status GraphBuilder::emit_wait(CommandList& list, Device& device, const QueueWait& wait) {
  if (wait.queue_index != kHostQueue) {
    const uint32_t own = device_index(device), source = state_->queues[wait.queue_index - 1].device;
    std::vector<uint32_t>& sources = state_->devices[own].sources;
    if (source != own && std::ranges::find(sources, source) == sources.end())
      sources.push_back(source);
  }
  list.add(hal::Wait{BM_TRY(signal_address(device, wait.queue_index)), 0});
  list.patch(hal::PatchField::kSignalValue, state_->base_slot, wait.ordinal);
  return {};
}

Status GraphBuilder::emit_signal(CommandList& list, Device& device, uint32_t queue_index,
                                 uint32_t ordinal) {
  list.add(hal::Signal{BM_TRY(signal_address(device, queue_index)), 0});
  list.patch(hal::PatchField::kSignalValue, state_->base_slot, ordinal);
  return {};
}

/// After everything earlier on the devices whose memory the queue uses.
Status GraphBuilder::emit_prologue(CommandList& list, uint32_t queue_index) {
  const uint32_t own = state_->queues[queue_index - 1].device;
  Device& device = *state_->devices[own].device;
  for (const uint32_t d : touched_[queue_index]) {
    GraphDevice& touched = state_->devices[d];
    if (touched.previous_slot == kNoSlot) touched.previous_slot = new_slot();
    if (d != own &&
        std::find(touched.waiters.begin(), touched.waiters.end(), own) == touched.waiters.end())
      touched.waiters.push_back(own);
    list.add(hal::Wait{BM_TRY(touched.device->stream().signal_on(device.hal())), 0});
    list.patch(hal::PatchField::kSignalValue, touched.previous_slot);
  }
  list.add(hal::Barrier{});
  return {};
}

Status GraphBuilder::emit_end(CommandList& list, uint32_t device,
                              std::span<const QueueWait> waits) {
  GraphDevice& entry = state_->devices[device];
  for (const QueueWait& wait : waits) BM_TRY(emit_wait(list, *entry.device, wait));
  entry.done_slot = new_slot();
  list.add(hal::Signal{entry.device->stream().timeline().signal(), 0});
  list.patch(hal::PatchField::kSignalValue, entry.done_slot);
  return {};
}

Status GraphBuilder::emit_grid(CommandList& list, const KernelCall& kernel, hal::Dim3& grid) {
  using enum hal::PatchField;
  constexpr hal::PatchField kFields[] = {kGridX, kGridY, kGridZ};
  uint32_t* const dims[] = {&grid.x, &grid.y, &grid.z};
  for (size_t axis = 0; axis < 3; ++axis) {
    const hal::DimExpr& dim = kernel.program->code().grid[axis];
    if (dim.is_constant()) {
      *dims[axis] = BM_TRY(grid_dim(dim, {}));
    } else {
      // The Dispatch is added after us, so the patch names the next command.
      const auto command = static_cast<uint32_t>(list.commands.size());
      list.patches.push_back({command, kFields[axis], 0, dim_slot(dim, kernel.vars), 0});
    }
  }
  return {};
}

Status GraphBuilder::emit_kernel(CommandList& list, const Call& call, const KernelCall& kernel,
                                 Device& device) {
  hal::Dispatch dispatch{kernel.program.get(), {}, {}};
  const size_t patches_before = list.patches.size();
  BM_TRY(emit_grid(list, kernel, dispatch.grid));
  const Place block = take(device, block_bytes(kernel.program->code()));
  if (dispatch.grid.x == 0 || dispatch.grid.y == 0 || dispatch.grid.z == 0) {
    list.patches.resize(patches_before);  // an empty grid launches nothing, whatever the variables
    return {};
  }
  dispatch.kernarg = block.va;
  list.add(dispatch);
  auto* words = reinterpret_cast<uint64_t*>(block.host);
  uint32_t word = 0;
  for (const Arg& arg : call.args) {
    words[word] = hal::raw(arg.buffer.va());
    if (arg.slot >= 0) {
      const uint32_t slot =
          input_slot(static_cast<uint32_t>(arg.slot), arg.buffer.device(), device);
      list.patch(hal::PatchField::kKernarg, slot, slot_offsets_[current_call_][word], word);
    }
    ++word;
  }
  for (const uint32_t var : kernel.vars) {
    words[word] = 0;
    list.patch(hal::PatchField::kKernarg, state_->num_inputs + var, 0, word++);
  }
  for (const int64_t constant : kernel.constants) words[word++] = static_cast<uint64_t>(constant);
  return {};
}

Status GraphBuilder::emit_copy(CommandList& list, const Call& call, Device& device) {
  const Buffer &dst = call.args[0].buffer, &src = call.args[1].buffer;
  if (dst.size == 0) return {};
  list.add(hal::Copy{BM_TRY(address(dst, device)), BM_TRY(address(src, device)), dst.size});
  using enum hal::PatchField;
  constexpr hal::PatchField kFields[] = {kCopyDst, kCopySrc};
  for (size_t i = 0; i < 2; ++i) {
    const Arg& arg = call.args[i];
    if (arg.slot < 0) continue;
    const uint32_t slot = input_slot(static_cast<uint32_t>(arg.slot), arg.buffer.device(), device);
    list.patch(kFields[i], slot, slot_offsets_[current_call_][i]);
  }
  return {};
}

Status GraphBuilder::emit_command(CommandList& list, uint32_t call) {
  current_call_ = call;
  Device& device = *executors_[call];
  if (const auto* kernel = std::get_if<KernelCall>(&calls_[call].what))
    return emit_kernel(list, calls_[call], *kernel, device);
  return emit_copy(list, calls_[call], device);
}

Status GraphBuilder::emit_call(CommandList& list, uint32_t call) {
  if (!with_timestamps_) return emit_command(list, call);
  const Place timestamps = take(*executors_[call], 2 * sizeof(uint64_t));
  note_timestamps(call, timestamps);
  state_->timestamps.back().clock = BM_TRY(clock_of(*executors_[call]));
  list.add(hal::Timestamp{timestamps.va});
  BM_TRY(emit_command(list, call));
  list.add(hal::Timestamp{hal::offset(timestamps.va, sizeof(uint64_t))});
  return {};
}

void GraphBuilder::note_timestamps(uint32_t call, const Place& place) {
  const Call& c = calls_[call];
  CallTimestamps timestamps;
  timestamps.name = c.name;
  timestamps.row = executors_[call]->name();
  timestamps.host = place.host;
  if (const auto* kernel = std::get_if<KernelCall>(&c.what)) {
    timestamps.flops = kernel->flops;
    timestamps.bytes = kernel->bytes;
  } else {
    timestamps.category = "copy";
    timestamps.bytes = 2.0 * static_cast<double>(c.args[0].buffer.size);
    if (!executors_[call]->hal().is_inline()) timestamps.row += ":COPY";
  }
  timestamps.call = call;
  state_->timestamps.push_back(std::move(timestamps));
}

/// Arrows name timestamps by position; calls were emitted queue by queue, not in program order.
void GraphBuilder::link_timestamps() {
  std::map<uint32_t, uint32_t> position;
  for (const CallTimestamps& timestamps : state_->timestamps)
    position.emplace(timestamps.call, static_cast<uint32_t>(position.size()));
  for (CallTimestamps& timestamps : state_->timestamps)
    for (const uint32_t earlier : plan_.calls[timestamps.call].arrows)
      timestamps.after.push_back(position.at(earlier));
}

Result<uint32_t> GraphBuilder::clock_of(Device& device) {
  if (const auto known = clock_indices_.find(&device); known != clock_indices_.end())
    return known->second;
  state_->clocks.push_back(BM_TRY(calibrate_clock(device)));
  const auto index = static_cast<uint32_t>(state_->clocks.size() - 1);
  clock_indices_.emplace(&device, index);
  return index;
}

// ---- 4. Recordings

Status GraphBuilder::record_queues() {
  std::vector<CommandList> lists(state_->queues.size() + 1);
  for (uint32_t queue_index = 1; queue_index < lists.size(); ++queue_index)
    BM_TRY(emit_prologue(lists[queue_index], queue_index));
  for (uint32_t call = 0; call < calls_.size(); ++call) {
    const uint32_t queue_index = plan_calls_[call].queue_index;
    if (queue_index == kHostQueue) continue;
    const PlannedCall& planned = plan_.calls[call];
    for (const QueueWait& wait : planned.waits)
      BM_TRY(emit_wait(lists[queue_index], *executors_[call], wait));
    if (planned.needs_barrier) lists[queue_index].add(hal::Barrier{});
    BM_TRY(emit_call(lists[queue_index], call));
    if (planned.signal != 0)
      BM_TRY(emit_signal(lists[queue_index], *executors_[call], queue_index, planned.signal));
  }
  for (size_t i = 0; i < end_devices_.size(); ++i) {
    const uint32_t device = end_devices_[i];
    BM_TRY(emit_end(lists[state_->devices[device].end_queue], device, plan_.epilogues[i]));
  }
  for (uint32_t queue_index = 1; queue_index < lists.size(); ++queue_index) {
    RecordedQueue& entry = state_->queues[queue_index - 1];
    auto recorded = entry.queue->record(lists[queue_index].commands, lists[queue_index].patches);
    if (!recorded)
      return tl::unexpected<Error>(
          state_->devices[entry.device].device->first_cause(std::move(recorded.error())));
    entry.recording = std::move(*recorded);
  }
  return {};
}

Status GraphBuilder::close_step(HostStep& step, CommandList& list) {
  if (!list.commands.empty())
    step.recording = BM_TRY(step.queue->record(list.commands, list.patches));
  if (step.recording || !step.waits.empty() || step.signal != 0)
    state_->host_steps.push_back(std::move(step));
  step = {};
  list = {};
  return {};
}

/// Calls of inline devices, cut where the device changes, where the host must wait for a queue
/// first, and where a queue waits for the result.
Status GraphBuilder::record_host_steps() {
  HostStep step;
  CommandList list;
  for (uint32_t call = 0; call < calls_.size(); ++call) {
    if (plan_calls_[call].queue_index != kHostQueue) continue;
    const PlannedCall& planned = plan_.calls[call];
    hal::Queue* queue = &executors_[call]->hal().queue(hal::QueueKind::kCompute);
    if (step.queue != queue || !planned.waits.empty()) BM_TRY(close_step(step, list));
    step.queue = queue;
    if (!planned.waits.empty()) step.waits = planned.waits;
    BM_TRY(emit_call(list, call));
    if (planned.signal == 0) continue;
    step.signal = planned.signal;
    BM_TRY(close_step(step, list));
  }
  return close_step(step, list);
}

/// Which Points keep memory from being reused: a queue device's own, and for memory of inline
/// devices those of the queues that read or write it.
void GraphBuilder::note_uses() {
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

}  // namespace bm::runtime
