#include "drivers/cuda/steps.h"

#include "drivers/vendor/steps.h"
#include "runtime/hal/patch_table.h"

namespace bm::cuda {
namespace {

using hal::raw;

Status add_launch(const hal::Dispatch& dispatch, const Memory& memory, Step& step) {
  // The one checked downcast: programs of other devices have no function here.
  const auto* program = dynamic_cast<const CudaProgram*>(dispatch.program);
  if (program == nullptr || &program->context() != &memory.context())
    return fail(Code::kInvalidArgument, "Dispatch of kernel '{}', which this device did not load",
                dispatch.program == nullptr ? "" : dispatch.program->code().entry);
  BM_TRY(program->check_grid(dispatch.grid));
  step.kind = StepKind::kLaunch;
  step.program = program;
  step.grid = dispatch.grid;
  const uint64_t bytes = program->argument_words() * sizeof(uint64_t);
  if (bytes == 0) return {};
  if (raw(dispatch.kernarg) % sizeof(uint64_t) != 0)
    return fail(Code::kInvalidArgument, "argument block at {:#x}: not aligned to 8 bytes",
                raw(dispatch.kernarg));
  const Place place = BM_TRY(memory.resolve(dispatch.kernarg, bytes));
  if (place.host == nullptr)
    return fail(Code::kInvalidArgument, "argument block at {:#x}: the host does not see it",
                raw(dispatch.kernarg));
  step.arguments = place.host;
  return {};
}

/// A 64-bit word that the host can use, or a stream where streams can.
Status resolve_word(Step& step, const Memory& memory, const char* command) {
  if (step.words[0] == 0 || step.words[0] % sizeof(uint64_t) != 0)
    return fail(Code::kInvalidArgument, "{} at {:#x}: not the address of an aligned 64-bit word",
                command, step.words[0]);
  step.dst = BM_TRY(memory.resolve(hal::GpuVa{step.words[0]}, sizeof(uint64_t)));
  const bool is_timestamp = step.kind == StepKind::kTimestamp;
  if (step.dst.host != nullptr || (memory.context().info.has_mem_ops && !is_timestamp)) return {};
  return fail(Code::kUnsupported, "{} at {:#x}: the host does not see this memory", command,
              step.words[0]);
}

}  // namespace

Status translate(std::span<const hal::Command> commands, const Memory& memory,
                 std::vector<Step>& steps) {
  steps.clear();
  steps.reserve(commands.size());
  for (const hal::Command& command : commands) {
    Step& step = steps.emplace_back();
    const auto words = [&](StepKind kind, std::array<uint64_t, 3> given) {
      step.kind = kind;
      step.words = given;
      return resolve(step, memory);
    };
    // Streams are in order and make memory consistent between commands: barriers are nothing.
    BM_TRY(hal::take_apart<StepKind>(
        command, words, [&](const hal::Dispatch& c) { return add_launch(c, memory, step); }));
  }
  return {};
}

Status resolve(Step& step, const Memory& memory) {
  switch (step.kind) {
    case StepKind::kCopy: return vendor::resolve_copy(step, memory);
    case StepKind::kWrite: return vendor::resolve_write(step, memory);
    case StepKind::kWait: return resolve_word(step, memory, "Wait");
    case StepKind::kSignal: return resolve_word(step, memory, "Signal");
    case StepKind::kTimestamp: return resolve_word(step, memory, "Timestamp");
    case StepKind::kLaunch:
    case StepKind::kGraph:
    case StepKind::kNothing: return {};
  }
  __builtin_unreachable();
}

}  // namespace bm::cuda
