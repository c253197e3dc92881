#include "tests/sim/amd/kfd/planted.h"

#include <algorithm>
#include <cerrno>

namespace bm::sim::amd {
namespace {

struct Row {
  std::string_view name;
  PlantEvent event;
  Effect effect;
};

constexpr Row kRows[] = {
    {"KernelReadsUnmapped", PlantEvent::kLaunch, Effect::kReadUnmapped},
    {"KernelWritesUnmapped", PlantEvent::kLaunch, Effect::kWriteUnmapped},
    {"KernelAddsToUnmapped", PlantEvent::kLaunch, Effect::kAddToUnmapped},
    {"KernelWritesPastTheEnd", PlantEvent::kLaunch, Effect::kWritePastEnd},
    {"KernelReadsAnotherGpu", PlantEvent::kLaunch, Effect::kReadOtherGpu},
    {"KernelJumpsAway", PlantEvent::kLaunch, Effect::kJump},
    {"KernelIsMisaligned", PlantEvent::kLaunch, Effect::kMisaligned},
    {"KernelLeavesLds", PlantEvent::kLaunch, Effect::kLeaveLds},
    {"KernelIsNonsense", PlantEvent::kLaunch, Effect::kIllegal},
    {"KernelTraps", PlantEvent::kLaunch, Effect::kTrap},
    {"NonsenseThatOnlyHalts", PlantEvent::kLaunch, Effect::kIllegal},
    {"TheSecondKernelFails", PlantEvent::kLaunch, Effect::kReadUnmapped},
    {"ALaterFaultChangesNothing", PlantEvent::kLaunch, Effect::kTwoFaults},
    {"CopyFromUnmapped", PlantEvent::kCopy, Effect::kCopyFromUnmapped},
    {"CopyToUnmapped", PlantEvent::kCopy, Effect::kCopyToUnmapped},
    {"CopyPastTheEnd", PlantEvent::kCopy, Effect::kCopyPastEnd},
    {"CopyBeyondAllAddresses", PlantEvent::kCopy, Effect::kCopyBeyond},
    {"KernelSpins", PlantEvent::kLaunch, Effect::kSpin},
    {"EngineHangs", PlantEvent::kLaunch, Effect::kHang},
    {"ComputeQueueStalls", PlantEvent::kLaunch, Effect::kStall},
    {"CopyEngineStalls", PlantEvent::kCopy, Effect::kStall},
    {"HandedOverCopyStalls", PlantEvent::kHandedOverCopy, Effect::kStall},
    {"SignalIsWithheld", PlantEvent::kFence, Effect::kWithhold},
    {"WaitNeverComes", PlantEvent::kWait, Effect::kUnmet},
    {"DoorbellReachesNobody", PlantEvent::kNone, Effect::kNone},
    {"QueuesNeverStart", PlantEvent::kNone, Effect::kNone},
    {"GpuFallsOffTheBus", PlantEvent::kLaunch, Effect::kLost},
    {"GpuIsReset", PlantEvent::kLaunch, Effect::kReset},
    {"GpuIsResetAndNothingIsTold", PlantEvent::kLaunch, Effect::kReset},
    // What the driver refuses of a wrong program, met by the engines instead.
    {"OtherChipInside", PlantEvent::kLaunch, Effect::kForeignCode},
    {"CutObject", PlantEvent::kLaunch, Effect::kCutCode},
    {"NoObject", PlantEvent::kLaunch, Effect::kNoCode},
    {"OtherEntry", PlantEvent::kLaunch, Effect::kEntry},
    {"TooMuchLds", PlantEvent::kLaunch, Effect::kLds},
    {"TooMuchScratch", PlantEvent::kLaunch, Effect::kScratch},
    {"TooManyThreads", PlantEvent::kLaunch, Effect::kThreads},
    {"TooManyRegisters", PlantEvent::kLaunch, Effect::kRegisters},
    {"ShortArguments", PlantEvent::kLaunch, Effect::kShortArguments},
    {"ArgumentsOutOfSight", PlantEvent::kLaunch, Effect::kNoArguments},
    {"TooLargeAGrid", PlantEvent::kLaunch, Effect::kGrid},
};

void fail_call(Options& options, const char* call, int error) {
  options.failing_name = call;
  options.failing_call = 0;
  options.failing_error = error;
  options.failing_times = 1'000'000;
}

/// Machines that are wrong from the beginning. False: none of that name.
bool set_machine(std::string_view name, Options& o) {
  if (name == "NoDriver")
    o.kfd_error = ENOENT;
  else if (name == "NoRightToKfd")
    o.kfd_error = EACCES;
  else if (name == "NoRightToTheRenderNode")
    o.render_error = EACCES;
  else if (name == "ControlGroupForbidsIt")
    o.kfd_error = EPERM;
  else if (name == "OldKernel")
    o.minor = 10;
  else if (name == "KernelOfAnotherAge")
    o.major = 2, o.minor = 0;
  else if (name == "UnknownChip")
    o.target_version = 130001;
  else if (name == "NoCardAtAll")
    o.gpus = 0;
  else if (name == "VmIsTaken")
    fail_call(o, "ACQUIRE_VM", EBUSY);
  else if (name == "QueueIsRefused")
    fail_call(o, "CREATE_QUEUE", EINVAL);
  else if (name == "EventsRunOut")
    fail_call(o, "CREATE_EVENT", ENOMEM);
  else if (name == "MemoryIsRefused")
    fail_call(o, "ALLOC_MEMORY_OF_GPU", ENOMEM);
  else if (name == "MappingIsRefused")
    fail_call(o, "MAP_MEMORY_TO_GPU", EIO);
  else if (name == "VideoMemoryEnds")
    o.vram_bytes = 4 << 20;
  else if (name == "VideoMemoryIsFull")
    o.vram_taken = o.vram_bytes - (4 << 20);
  else if (name == "LargerThanTheBar")
    o.has_large_bar = false;
  else if (name == "NoSuchCard")
    o.gpus = 2;
  else
    return false;
  return true;
}

}  // namespace

bool plant(std::string_view name, uint64_t nth, Options& options, Knobs& knobs) {
  if (set_machine(name, options)) return true;
  const auto* const row = std::ranges::find(kRows, name, &Row::name);
  if (row == std::end(kRows)) return false;
  if (name == "DoorbellReachesNobody") options.has_lost_doorbell = true;
  if (name == "QueuesNeverStart") options.is_stalled = true;
  if (name == "NonsenseThatOnlyHalts") options.resets_on_exception = false;
  if (name == "KernelReadsAnotherGpu") options.gpus = 2;
  if (name == "GpuIsResetAndNothingIsTold") options.tells_resets = false;
  if (name == "TheSecondKernelFails" && nth == 1) nth = 2;
  knobs.plant.set(row->event, row->effect, nth);
  return true;
}

}  // namespace bm::sim::amd
