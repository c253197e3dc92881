#include "tests/sim/nv/planted.h"

#include <cerrno>
#include <vector>

namespace bm::sim::nv {
namespace {

Planted at(std::string_view name, PlantEvent event, PlantEffect effect) {
  return {.name = name, .event = event, .effect = effect};
}
Planted machine(std::string_view name, void (*set)(Options&)) {
  return {.name = name, .machine = set};
}
Planted failing(std::string_view name, const char* call, RmStatus status, int error = 0,
                uint64_t nth = 1) {
  return {
      .name = name,
      .failure = {.call = call, .nth = nth, .status = status, .error = error, .times = 100'000}};
}

std::vector<Planted> rows() {
  using enum PlantEvent;
  Planted without_details =
      failing("FaultWithoutDetails", "RM_ALLOC:83de", RmStatus::kNotSupported);
  without_details.event = kLaunch;
  without_details.effect = PlantEffect::kReadUnmapped;
  Planted second = at("TheSecondKernelFails", kLaunch, PlantEffect::kReadUnmapped);
  second.nth = 2;
  Planted lost = {.name = "LostBeforeOpening", .is_lost = true};
  return {
      at("KernelReadsUnmapped", kLaunch, PlantEffect::kReadUnmapped),
      at("KernelWritesUnmapped", kLaunch, PlantEffect::kWriteUnmapped),
      at("KernelAddsToUnmapped", kLaunch, PlantEffect::kAddToUnmapped),
      at("KernelWritesPastTheEnd", kLaunch, PlantEffect::kWritePastEnd),
      at("KernelReadsBeforeTheBegin", kLaunch, PlantEffect::kReadBeforeBegin),
      at("KernelIsMisaligned", kLaunch, PlantEffect::kMisaligned),
      at("KernelTraps", kLaunch, PlantEffect::kTrap),
      at("KernelIsNonsense", kLaunch, PlantEffect::kNonsense),
      at("KernelLeavesSharedMemory", kLaunch, PlantEffect::kOutOfRange),
      at("KernelWaitsAtABarrier", kLaunch, PlantEffect::kBarrier),
      second,
      without_details,
      at("ALaterFaultChangesNothing", kLaunch, PlantEffect::kTwoFaults),
      at("CopyFromUnmapped", kCopy, PlantEffect::kCopyFromUnmapped),
      at("CopyToUnmapped", kCopy, PlantEffect::kCopyToUnmapped),
      at("CopyPastTheEnd", kCopy, PlantEffect::kCopyPastEnd),
      at("CopyBeyondAllAddresses", kCopy, PlantEffect::kCopyBeyond),
      at("KernelSpins", kLaunch, PlantEffect::kSpin),
      at("EngineHangs", kLaunch, PlantEffect::kHang),
      at("EngineStalls", kCopy, PlantEffect::kStall),
      at("ReleaseIsWithheld", kFence, PlantEffect::kWithhold),
      at("WaitNeverComes", kWait, PlantEffect::kUnmet),
      at("GpuFallsOffTheBus", kLaunch, PlantEffect::kLost),
      // What the driver refuses of a wrong program, met by the engines instead.
      at("TooManyThreads", kLaunch, PlantEffect::kThreads),
      at("TooDeepABlock", kLaunch, PlantEffect::kDepth),
      at("TooMuchSharedMemory", kLaunch, PlantEffect::kShared),
      at("TooWideAGrid", kLaunch, PlantEffect::kGrid),
      at("OtherArchitecture", kLaunch, PlantEffect::kVersion),
      at("OtherEntry", kLaunch, PlantEffect::kProgram),
      at("CutText", kLaunch, PlantEffect::kCutText),
      at("DamagedCubin", kLaunch, PlantEffect::kNoText),
      machine("NoDriver", [](Options& o) { o.has_nodes = false; }),
      machine("NoRights", [](Options& o) { o.is_permitted = false; }),
      machine("OldDriver", [](Options& o) { o.version = "470.256.02"; }),
      machine("GpuDoesNotStart", [](Options& o) { o.is_bootable = false; }),
      lost,
      machine("TextWhereCubinsAreRun", [](Options& o) { o.has_toolkit = false; }),
      machine("NoSuchCard", [](Options& o) { o.gpus = 2; }),
      failing("NodeOfTheCardIsMissing", "open:/dev/nvidia0", RmStatus::kOk, ENOENT),
      failing("DeviceInExclusiveMode", "RM_ALLOC:80", RmStatus::kInvalidState),
      failing("SandboxRefusesTheCall", "RM_ALLOC:90f1", RmStatus::kOk, EINVAL),
      failing("ChannelClassIsRefused", "RM_ALLOC:c86f", RmStatus::kInvalidClass),
      failing("ComputeClassIsRefused", "RM_ALLOC:cbc0", RmStatus::kInsufficientPermissions),
      failing("ChannelsRunOut", "UVM:27", RmStatus::kInsufficientResources),
      failing("ScheduleIsRefused", "RM_CONTROL:a06c0101", RmStatus::kNotSupported),
      failing("MappingFails", "RM_MAP_MEMORY", RmStatus::kInsufficientResources),
      failing("PinningFails", "RM_ALLOC_MEMORY", RmStatus::kOperatingSystem),
      machine("VideoMemoryEnds", [](Options& o) { o.video_memory = 16 << 20; }),
      failing("TheThirdAllocationFails", "RM_ALLOC:40", RmStatus::kNoMemory, 0, 2),
  };
}

}  // namespace

std::optional<Planted> find_planted(std::string_view name) {
  for (const Planted& row : rows())
    if (row.name == name) return row;
  return std::nullopt;
}

}  // namespace bm::sim::nv
