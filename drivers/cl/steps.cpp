#include "drivers/cl/steps.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <variant>

namespace bm::cl {
namespace {

using hal::raw;

uint32_t num_arguments(const Launch& launch) {
  return launch.program->code().num_buffers + launch.program->code().num_vars;
}

/// Next unused launch of the list.
Launch& new_launch(StepList& list) {
  if (list.num_launches == list.launches.size()) list.launches.emplace_back();
  return list.launches[list.num_launches++];
}

/// Errors: kInvalidArgument beyond 2^63 threads: drivers differ in what they make of it, from a
/// refusal to years of work.
Status check_grid(const Launch& launch) {
  const hal::CodeObject& code = launch.program->code();
  uint64_t threads = uint64_t{code.block.x} * code.block.y * code.block.z;
  bool is_over = false;
  for (const uint64_t blocks : launch.grid)
    is_over = __builtin_mul_overflow(threads, blocks, &threads) || is_over;
  const bool is_empty = launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0;
  if (is_empty || (!is_over && threads <= uint64_t{std::numeric_limits<int64_t>::max()})) return {};
  return fail(Code::kInvalidArgument, "kernel '{}': grid of {} x {} x {} blocks", code.entry,
              launch.grid[0], launch.grid[1], launch.grid[2]);
}

Status add_launch(const hal::Dispatch& dispatch, Memory& memory, StepList& list, Step& step) {
  // The one checked downcast: programs of other devices have no kernel here.
  const auto* program = dynamic_cast<const ClProgram*>(dispatch.program);
  if (program == nullptr || &program->context() != &memory.context())
    return fail(Code::kInvalidArgument, "Dispatch of kernel '{}', which this device did not load",
                dispatch.program == nullptr ? "" : dispatch.program->code().entry);
  step.launch = static_cast<uint32_t>(list.num_launches);
  Launch& launch = new_launch(list);
  launch.program = program;
  launch.grid = {dispatch.grid.x, dispatch.grid.y, dispatch.grid.z};
  BM_TRY(check_grid(launch));
  launch.views.assign(program->code().num_buffers, nullptr);
  launch.has_views = false;
  launch.arguments = nullptr;
  if (num_arguments(launch) != 0)
    launch.arguments = BM_TRY(memory.host_word(dispatch.kernarg, "argument block"));
  return {};
}

/// Steps whose end the host observes give their event; others need none.
void find_observed(std::span<Step> steps) {
  Step* previous = nullptr;
  for (Step& step : steps) {
    if (step.kind == StepKind::kNothing) continue;
    const bool observes = step.kind == StepKind::kSignal || step.kind == StepKind::kTimestamp;
    if (observes && previous != nullptr) previous->is_observed = true;
    previous = &step;
  }
}

}  // namespace

Status translate(std::span<const hal::Command> commands, Memory& memory, StepList& list) {
  list.clear();
  list.steps.reserve(commands.size());
  struct Visitor {
    Step& step;
    Memory& memory;
    StepList& list;
    Status words(StepKind kind, std::array<uint64_t, 3> words) const {
      step.kind = kind;
      step.words = words;
      return resolve(step, memory);
    }
    Status operator()(const hal::Wait& c) const {
      return words(StepKind::kWait, {raw(c.signal), c.value});
    }
    Status operator()(const hal::Signal& c) const {
      return words(StepKind::kSignal, {raw(c.signal), c.value});
    }
    Status operator()(const hal::Timestamp& c) const {
      return words(StepKind::kTimestamp, {raw(c.dst)});
    }
    /// Queues are in order, and OpenCL makes memory consistent between commands.
    Status operator()(const hal::Barrier&) const { return {}; }
    Status operator()(const hal::Copy& c) const {
      return words(StepKind::kCopy, {raw(c.dst), raw(c.src), c.bytes});
    }
    Status operator()(const hal::Dispatch& c) const {
      step.kind = StepKind::kDispatch;
      return add_launch(c, memory, list, step);
    }
    Status operator()(const hal::Write& c) const {
      return words(StepKind::kWrite, {raw(c.dst), c.value});
    }
  };
  for (const hal::Command& command : commands) {
    Step& step = list.steps.emplace_back();
    BM_TRY(std::visit(Visitor{step, memory, list}, command));
  }
  find_observed(list.steps);
  return {};
}

Status resolve(Step& step, Memory& memory) {
  step.is_stale = false;
  const hal::GpuVa first{step.words[0]};
  switch (step.kind) {
    case StepKind::kCopy:
      if (step.words[2] == 0) return {};
      step.dst = BM_TRY(memory.resolve(first, step.words[2]));
      step.src = BM_TRY(memory.resolve(hal::GpuVa{step.words[1]}, step.words[2]));
      return {};
    case StepKind::kWrite:
      if (step.words[0] % sizeof(uint64_t) != 0)
        return fail(Code::kInvalidArgument, "Write at {:#x}: not aligned to 8 bytes",
                    step.words[0]);
      step.dst = BM_TRY(memory.resolve(first, sizeof(uint64_t)));
      return {};
    case StepKind::kWait: step.host = BM_TRY(memory.host_word(first, "Wait")); return {};
    case StepKind::kSignal: step.host = BM_TRY(memory.host_word(first, "Signal")); return {};
    case StepKind::kTimestamp: step.host = BM_TRY(memory.host_word(first, "Timestamp")); return {};
    case StepKind::kDispatch:
    case StepKind::kNothing: return {};
  }
  __builtin_unreachable();
}

Status bind_argument(Launch& launch, uint32_t index, uint64_t word, Memory& memory) {
  if (index >= launch.program->code().num_buffers)
    return check(memory.context().api.clSetKernelArg(launch.kernel(), index, sizeof word, &word),
                 "clSetKernelArg");
  Region* view = BM_TRY(memory.bind(launch.kernel(), index, hal::GpuVa{word}));
  launch.views[index] = view;
  launch.has_views = launch.has_views || view != nullptr;
  return {};
}

Status bind_arguments(Launch& launch, Memory& memory) {
  const uint32_t count = num_arguments(launch);
  for (uint32_t i = 0; i < count; ++i)
    BM_TRY(bind_argument(launch, i, launch.arguments[i], memory));
  return {};
}

// ---- Recording
// ------------------------------------------------------------------------------------

Result<std::unique_ptr<ClRecording>> ClRecording::build(std::span<const hal::Command> commands,
                                                        std::span<const hal::Patch> patches,
                                                        Memory& memory) {
  auto recording = std::make_unique<ClRecording>();
  StepList& list = recording->list_;
  recording->generation_ = memory.generation();
  BM_TRY(translate(commands, memory, list));
  for (Launch& launch : list.launches) {
    launch.own_kernel = BM_TRY(launch.program->new_kernel());
    BM_TRY(bind_arguments(launch, memory));
  }
  for (const hal::Patch& patch : patches) BM_TRY(recording->check_patch(commands, patch));
  BM_TRY(recording->sort_patches(patches));
  return recording;
}

Status ClRecording::check_patch(std::span<const hal::Command> commands,
                                const hal::Patch& patch) const {
  using hal::PatchField;
  if (patch.command >= commands.size() || patch.slot == std::numeric_limits<uint32_t>::max())
    return fail(Code::kInvalidArgument, "patch of command {} of {}, slot {}", patch.command,
                commands.size(), patch.slot);
  const Step& step = list_.steps[patch.command];
  const bool has_value = step.kind == StepKind::kWait || step.kind == StepKind::kSignal ||
                         step.kind == StepKind::kWrite;
  bool exists = false;
  switch (patch.field) {
    case PatchField::kKernarg:
      exists = step.kind == StepKind::kDispatch &&
               patch.word < num_arguments(list_.launches[step.launch]);
      break;
    case PatchField::kGridX:
    case PatchField::kGridY:
    case PatchField::kGridZ: exists = step.kind == StepKind::kDispatch; break;
    case PatchField::kCopyDst:
    case PatchField::kCopySrc:
    case PatchField::kCopyBytes: exists = step.kind == StepKind::kCopy; break;
    case PatchField::kSignalAddress: exists = has_value || step.kind == StepKind::kTimestamp; break;
    case PatchField::kSignalValue: exists = has_value; break;
  }
  if (exists) return {};
  return fail(
      Code::kInvalidArgument, "patch field {} (word {}) does not exist in command {} (kind {})",
      static_cast<int>(patch.field), patch.word, patch.command, commands[patch.command].index());
}

Status ClRecording::sort_patches(std::span<const hal::Patch> patches) {
  patches_.assign(patches.begin(), patches.end());
  const auto place = [](const hal::Patch& p) {
    return std::tuple(p.command, p.field, p.field == hal::PatchField::kKernarg ? p.word : 0);
  };
  std::sort(patches_.begin(), patches_.end(),
            [&](const hal::Patch& a, const hal::Patch& b) { return place(a) < place(b); });
  for (size_t i = 1; i < patches_.size(); ++i)
    // Only changed slots are applied, so the later of two would not always win.
    if (place(patches_[i - 1]) == place(patches_[i]))
      return fail(Code::kInvalidArgument, "slots {} and {} both patch command {}",
                  patches_[i - 1].slot, patches_[i].slot, patches_[i].command);
  std::sort(patches_.begin(), patches_.end(), [&](const hal::Patch& a, const hal::Patch& b) {
    return a.slot != b.slot ? a.slot < b.slot : place(a) < place(b);
  });
  const uint32_t slots = patches_.empty() ? 0 : patches_.back().slot + 1;
  last_.resize(slots);
  first_patch_.assign(slots + 1, 0);
  for (const hal::Patch& patch : patches_) ++first_patch_[patch.slot + 1];
  for (size_t i = 1; i < first_patch_.size(); ++i) first_patch_[i] += first_patch_[i - 1];
  return {};
}

Status ClRecording::patch(std::span<const uint64_t> values, Memory& memory) {
  if (values.size() < last_.size())
    return fail(Code::kInvalidArgument, "replay with {} values, {} wanted", values.size(),
                last_.size());
  // A buffer went since: an address that looks unchanged may be another buffer's now.
  const uint64_t generation = memory.generation();
  const bool all = must_apply_all_ || generation != generation_;
  bool is_changed = false;
  for (size_t slot = 0; slot < last_.size(); ++slot) {
    if (values[slot] == last_[slot] && !all) continue;
    must_apply_all_ = true;  // until everything is applied
    is_changed = true;
    last_[slot] = values[slot];
    for (uint32_t i = first_patch_[slot]; i < first_patch_[slot + 1]; ++i)
      BM_TRY(apply(patches_[i], values[slot] + patches_[i].addend, memory));
  }
  if (is_changed) BM_TRY(resolve_stale(memory));
  if (has_new_grid_)
    for (const Launch& launch : list_.launches) BM_TRY(check_grid(launch));
  has_new_grid_ = false;
  generation_ = generation;
  must_apply_all_ = false;
  return {};
}

Status ClRecording::apply(const hal::Patch& patch, uint64_t value, Memory& memory) {
  using hal::PatchField;
  Step& step = list_.steps[patch.command];
  const auto set_word = [&step, value](size_t word, bool is_address) {
    step.words[word] = value;
    step.is_stale = step.is_stale || is_address;
    return Status{};
  };
  const auto set_grid = [&](size_t axis) -> Status {
    if (value > std::numeric_limits<uint32_t>::max())
      return fail(Code::kInvalidArgument, "launch dimension {} of command {} exceeds 32 bits",
                  value, patch.command);
    list_.launches[step.launch].grid[axis] = value;
    has_new_grid_ = true;
    return {};
  };
  switch (patch.field) {
    case PatchField::kKernarg:
      return bind_argument(list_.launches[step.launch], patch.word, value, memory);
    case PatchField::kGridX: return set_grid(0);
    case PatchField::kGridY: return set_grid(1);
    case PatchField::kGridZ: return set_grid(2);
    case PatchField::kCopyDst: return set_word(0, true);
    case PatchField::kCopySrc: return set_word(1, true);
    case PatchField::kCopyBytes: return set_word(2, true);
    case PatchField::kSignalAddress: return set_word(0, true);
    case PatchField::kSignalValue: return set_word(1, false);
  }
  __builtin_unreachable();
}

Status ClRecording::resolve_stale(Memory& memory) {
  for (Step& step : list_.steps)
    if (step.is_stale) BM_TRY(resolve(step, memory));
  return {};
}

}  // namespace bm::cl
