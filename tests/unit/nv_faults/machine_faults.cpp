// Machines, drivers, allocations and programs that must be refused, each with the reason.

#include <cerrno>
#include <cstring>

#include "runtime/base/env.h"
#include "tests/unit/nv_faults/bench.h"

namespace bm::nv::faults {
namespace {

using sim::nv::Failure;
using sim::nv::RmStatus;

constexpr KernelText kNothing = {"nothing", ""};

/// Opens with one call of the kernel driver failing, every time.
template <const char* kCall, RmStatus kStatus, int kError = 0>
Status opens_without(Bench& bench) {
  bench.system().kernel().plan(
      {.call = kCall, .status = kStatus, .error = kError, .times = 100'000});
  return bench.open();
}

constexpr char kDevice[] = "RM_ALLOC:80", kVaSpace[] = "RM_ALLOC:90f1",
               kChannel[] = "RM_ALLOC:c86f", kCompute[] = "RM_ALLOC:cbc0",
               kRegisterChannel[] = "UVM:27", kSchedule[] = "RM_CONTROL:a06c0101", kMap[] = "mmap",
               kNode[] = "open:/dev/nvidia0";

Status opens_lost_card(Bench& bench) {
  bench.knobs().is_lost = true;
  return bench.open();
}

Status allocation_fails(Bench& bench) {
  bench.system().kernel().plan(
      {.call = "RM_ALLOC:40", .nth = 3, .status = RmStatus::kNoMemory, .times = 2});
  for (int i = 0; i < 4; ++i) BM_TRY(bench.allocate(40 << 20));
  return {};
}

Status pinning_fails(Bench& bench) {
  bench.system().kernel().plan({.call = "RM_ALLOC_MEMORY", .status = RmStatus::kOperatingSystem});
  std::vector<std::byte> mine(1 << 16);
  BM_TRY(bench.hal().allocate({.size = mine.size(), .external = mine.data()}));
  return {};
}

Status load_block(Bench& bench, hal::Dim3 block, uint32_t shared_bytes = 0) {
  KernelText kernel = kNothing;
  kernel.block = block;
  kernel.shared_bytes = shared_bytes;
  BM_TRY(bench.load(kernel));
  return {};
}

Status too_many_threads(Bench& bench) { return load_block(bench, {.x = 1025}); }
Status too_deep_block(Bench& bench) { return load_block(bench, {.x = 1, .y = 1, .z = 65}); }
Status too_much_shared(Bench& bench) { return load_block(bench, {.x = 32}, (48 << 10) + 1); }
Status too_wide_grid(Bench& bench) { return bench.launch(kNothing, 0, {.x = 1, .y = 65536}); }

Status load_changed(Bench& bench, void (*change)(hal::CodeObject&)) {
  return planted::load_changed(bench, bench.code(kNothing), change);
}

Status other_architecture(Bench& bench) {
  return load_changed(bench, [](hal::CodeObject& code) { code.arch = "sm_75"; });
}
Status cut_text(Bench& bench) {
  return load_changed(bench,
                      [](hal::CodeObject& code) { code.image.resize(code.image.size() / 2); });
}
Status other_entry(Bench& bench) {
  return load_changed(bench, [](hal::CodeObject& code) { code.entry = "something"; });
}
Status damaged_cubin(Bench& bench) {
  return load_changed(bench, [](hal::CodeObject& code) {
    std::memcpy(code.image.data(),
                "\x7f"
                "ELF\2\1\1",
                7);
  });
}

Status text_without_permission(Bench& bench) {
  const ScopedSetting text("BM_NV_CODE", "");
  BM_TRY(bench.open());
  BM_TRY(bench.load(kNothing));
  return {};
}

}  // namespace

std::vector<Planted> machine_faults() {
  constexpr Planted::Plant opens = planted::opens<Bench>;
  return {
      Planted::opening("NoDriver", opens, Code::kNotFound,
                       {"stage 1 (open)", "/dev/nvidiactl", "modprobe nvidia"},
                       {.has_nodes = false}, false),
      Planted::opening("NoRights", opens, Code::kPermission,
                       {"stage 1 (open)", "/dev/nvidiactl", "group"}, {.is_permitted = false},
                       false),
      Planted::opening("OldDriver", opens, Code::kUnsupported, {"470.256.02", "535"},
                       {.version = "470.256.02"}, false),
      Planted::opening(
          "GpuDoesNotStart", opens, Code::kIo,
          {"stage 9 (device file)", "/dev/nvidia0", "could not start the GPU", "dmesg"},
          {.is_bootable = false}, false),
      Planted::opening("LostBeforeOpening", opens_lost_card, Code::kIo,
                       {"stage 9 (device file)", "/dev/nvidia0", "could not start the GPU"}, {},
                       false),
      Planted::opening("NoSuchCard", planted::opens_third_card<Bench>, Code::kNotFound, {"lists 2"},
                       {.gpus = 2}),
      Planted::opening("NodeOfTheCardIsMissing", opens_without<kNode, RmStatus::kOk, ENOENT>,
                       Code::kNotFound, {"/dev/nvidia0", "the node is missing", "nvidia-modprobe"}),
      Planted::opening(
          "DeviceInExclusiveMode", opens_without<kDevice, RmStatus::kInvalidState>,
          Code::kUnsupported,
          {"stage 11 (device)", "NV_ERR_INVALID_STATE (0x40)", "exclusive compute mode"}),
      Planted::opening("SandboxRefusesTheCall", opens_without<kVaSpace, RmStatus::kOk, EINVAL>,
                       Code::kIo, {"stage 18 (address space)", "90f1", "sandbox"}),
      Planted::opening("ChannelClassIsRefused", opens_without<kChannel, RmStatus::kInvalidClass>,
                       Code::kUnsupported,
                       {"stage 26 (channel)", "class c86f", "NV_ERR_INVALID_CLASS (0x22)"}),
      Planted::opening("ComputeClassIsRefused",
                       opens_without<kCompute, RmStatus::kInsufficientPermissions>,
                       Code::kPermission,
                       {"stage 27 (engine)", "class cbc0", "NV_ERR_INSUFFICIENT_PERMISSIONS (0x1b)",
                        "containers"}),
      Planted::opening("ChannelsRunOut",
                       opens_without<kRegisterChannel, RmStatus::kInsufficientResources>,
                       Code::kOutOfMemory,
                       {"stage 30 (register channel)", "NV_ERR_INSUFFICIENT_RESOURCES (0x1a)",
                        "close other programs"}),
      Planted::opening("ScheduleIsRefused", opens_without<kSchedule, RmStatus::kNotSupported>,
                       Code::kUnsupported, {"stage 31 (schedule)", "GPFIFO_SCHEDULE", "0x56"}),
      Planted::opening("MappingFails", opens_without<kMap, RmStatus::kOk, ENOMEM>,
                       Code::kOutOfMemory, {"stage ", "map"}),
      Planted::refused("VideoMemoryEnds", planted::video_memory_ends<Bench>, Code::kOutOfMemory,
                       {"video memory"}),
      Planted::refused("TheThirdAllocationFails", allocation_fails, Code::kOutOfMemory,
                       {"stage 24 (memory)", "NV_ERR_NO_MEMORY (0x51)", "not enough memory"}),
      Planted::refused("PinningFails", pinning_fails, Code::kOutOfMemory,
                       {"stage 24 (memory)", "NV_ERR_OPERATING_SYSTEM (0x59)", "could not pin"}),
      Planted::refused("PeersAreRefused", planted::peers_are_refused<Bench>, Code::kUnsupported,
                       {"GPU-", "no access to each other's memory"},
                       {.gpus = 2, .has_peers = false}),
      Planted::refused("TooManyThreads", too_many_threads, Code::kInvalidArgument,
                       {"kernel 'nothing'", "1025 x 1 x 1", "1024"}),
      Planted::refused("TooDeepABlock", too_deep_block, Code::kInvalidArgument,
                       {"kernel 'nothing'", "1 x 1 x 65", "64 in z"}),
      Planted::refused("TooMuchSharedMemory", too_much_shared, Code::kUnsupported,
                       {"kernel 'nothing'", "49153 bytes of shared memory", "49152"}),
      Planted::refused("TooWideAGrid", too_wide_grid, Code::kInvalidArgument,
                       {"kernel 'nothing'", "1 x 65536 x 1", "65535 in y and z"}),
      Planted::refused("OtherArchitecture", other_architecture, Code::kInvalidArgument,
                       {"kernel 'nothing'", "sm_75", "sm_90"}),
      Planted::refused("CutText", cut_text, Code::kInvalidArgument,
                       {"'nothing'", "does not end in NUL"}),
      Planted::refused("OtherEntry", other_entry, Code::kNotFound, {".entry 'something'"}),
      Planted::refused("DamagedCubin", damaged_cubin, Code::kCorrupt, {"ELF"}),
      Planted::opening("TextWhereCubinsAreRun", text_without_permission, Code::kUnsupported,
                       {"PTX text", "nvJitLink or ptxas", "BM_NV_CODE"})};
}

}  // namespace bm::nv::faults
