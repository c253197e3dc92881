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
  Planted lost = {.name = "LostBeforeOpening", .is_lost = true};
  return {
      at("KernelReadsUnmapped", kLaunch, PlantEffect::kReadUnmapped),
      at("KernelWritesUnmapped", kLaunch, PlantEffect::kWriteUnmapped),
      at("KernelAddsToUnmapped", kLaunch, PlantEffect::kAddToUnmapped),
      at("KernelIsMisaligned", kLaunch, PlantEffect::kMisaligned),
      at("KernelTraps", kLaunch, PlantEffect::kIllegal),
      at("KernelIsNonsense", kLaunch, PlantEffect::kIllegal),
      at("KernelLeavesSharedMemory", kLaunch, PlantEffect::kOutOfRange),
      at("KernelWaitsAtABarrier", kLaunch, PlantEffect::kIllegal),
      at("TheSecondKernelFails", kLaunch, PlantEffect::kReadUnmapped),
      without_details,
      at("ALaterFaultChangesNothing", kLaunch, PlantEffect::kWriteUnmapped),
      at("CopyFromUnmapped", kCopy, PlantEffect::kReadUnmapped),
      at("CopyToUnmapped", kCopy, PlantEffect::kWriteUnmapped),
      at("KernelSpins", kLaunch, PlantEffect::kHang),
      at("EngineHangs", kLaunch, PlantEffect::kHang),
      at("EngineStalls", kCopy, PlantEffect::kStall),
      at("ReleaseIsWithheld", kFence, PlantEffect::kWithhold),
      at("WaitNeverComes", kWait, PlantEffect::kStall),
      at("GpuFallsOffTheBus", kLaunch, PlantEffect::kLost),
      machine("NoDriver", [](Options& o) { o.has_nodes = false; }),
      machine("NoRights", [](Options& o) { o.is_permitted = false; }),
      machine("OldDriver", [](Options& o) { o.version = "470.256.02"; }),
      machine("GpuDoesNotStart", [](Options& o) { o.is_bootable = false; }),
      lost,
      machine("NoSuchCard", [](Options& o) { o.gpus = 2; }),
      failing("NodeOfTheCardIsMissing", "open:/dev/nvidia0", RmStatus::kOk, ENOENT),
      failing("DeviceInExclusiveMode", "RM_ALLOC:80", RmStatus::kInvalidState),
      failing("SandboxRefusesTheCall", "RM_ALLOC:90f1", RmStatus::kOk, EINVAL),
      failing("ChannelClassIsRefused", "RM_ALLOC:c86f", RmStatus::kInvalidClass),
      failing("ComputeClassIsRefused", "RM_ALLOC:cbc0", RmStatus::kInsufficientPermissions),
      failing("ChannelsRunOut", "UVM:27", RmStatus::kInsufficientResources),
      failing("ScheduleIsRefused", "RM_CONTROL:a06c0101", RmStatus::kNotSupported),
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
