#include "drivers/cl/steps.h"

#include <algorithm>

#include "drivers/vendor/steps.h"
#include "runtime/hal/patch_table.h"

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
  for (const hal::Command& command : commands) {
    Step& step = list.steps.emplace_back();
    const auto words = [&](StepKind kind, std::array<uint64_t, 3> given) {
      step.kind = kind;
      step.words = given;
      return resolve(step, memory);
    };
    // Queues are in order, and OpenCL makes memory consistent between commands.
    BM_TRY(hal::take_apart<StepKind>(command, words, [&](const hal::Dispatch& c) {
      step.kind = StepKind::kDispatch;
      return add_launch(c, memory, list, step);
    }));
  }
  find_observed(list.steps);
  return {};
}

Status resolve(Step& step, Memory& memory) {
  step.is_stale = false;
  const hal::GpuVa first{step.words[0]};
  switch (step.kind) {
    case StepKind::kCopy: return vendor::resolve_copy(step, memory);
    case StepKind::kWrite: return vendor::resolve_write(step, memory);
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
  recording->patches_ = BM_TRY(hal::PatchTable::build(commands, patches));
  return recording;
}

Status ClRecording::patch(std::span<const uint64_t> values, Memory& memory) {
  // A buffer went since: an address that looks unchanged may be another buffer's now.
  const uint64_t generation = memory.generation();
  const bool is_changed = BM_TRY(patches_.update(
      values, generation != generation_,
      [&](const hal::Patch& patch, uint64_t value) { return apply(patch, value, memory); }));
  if (is_changed) BM_TRY(resolve_stale(memory));
  if (has_new_grid_)
    for (const Launch& launch : list_.launches) BM_TRY(check_grid(launch));
  has_new_grid_ = false;
  generation_ = generation;
  patches_.finish();
  return {};
}

Status ClRecording::apply(const hal::Patch& patch, uint64_t value, Memory& memory) {
  Step& step = list_.steps[patch.command];
  return vendor::apply_patch(
      patch, value,
      [&] { return bind_argument(list_.launches[step.launch], patch.word, value, memory); },
      [&](size_t axis, uint32_t blocks) {
        list_.launches[step.launch].grid[axis] = blocks;
        has_new_grid_ = true;
        return Status{};
      },
      [&](size_t word, bool is_address) {
        step.words[word] = value;
        step.is_stale = step.is_stale || is_address;
        return Status{};
      });
}

Status ClRecording::resolve_stale(Memory& memory) {
  for (Step& step : list_.steps)
    if (step.is_stale) BM_TRY(resolve(step, memory));
  return {};
}

}  // namespace bm::cl
