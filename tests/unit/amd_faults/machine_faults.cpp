// Machines, drivers, allocations and programs that must be refused, each with the reason.

#include <array>
#include <cerrno>
#include <cstring>

#include "drivers/amd/kfd/gpu.h"
#include "tests/unit/amd_faults/bench.h"

namespace bm::amd::faults {
namespace {

/// Each is less than there is, all of them are not.
Status video_memory_is_full(Bench& bench) {
  const uint64_t all = bench.hal().memory().total;
  for (int i = 0; i < 4; ++i) BM_TRY(bench.allocate(all / 3));
  return {};
}

/// Of video memory that the CPU sees there is only as much as the BAR shows.
Status larger_than_the_bar(Bench& bench) {
  BM_TRY(bench.works());  // nothing needs the BAR
  bench.close();
  auto kernel = BM_TRY(kfd::open_gpu(bench.system(), {}));
  BM_TRY(kernel->allocate({.size = 8 << 20, .domain = MemoryDomain::kVideoMapped}));
  return {};
}

Status registers_nothing(Bench& bench) {
  BM_TRY(bench.hal().allocate({.size = 4096, .external = reinterpret_cast<void*>(-4096)}));
  return {};
}

template <class Change>
Status load_changed(Bench& bench, std::string_view kernel, const Change& change) {
  return planted::load_changed(bench, bench.code(kernel), change);
}

/// The word of every descriptor in the file at `offset`, where it is `was`.
void set_in_descriptors(hal::CodeObject& code, size_t offset, uint32_t was, uint32_t value) {
  constexpr size_t kDescriptor = 64, kArguments = 8;
  for (size_t at = 0; at + kDescriptor <= code.image.size(); at += kDescriptor) {
    std::array<uint32_t, kDescriptor / 4> words{};
    std::memcpy(words.data(), code.image.data() + at, kDescriptor);
    // One argument of 8 bytes; reserved words 3 and 6 … 10 are zero, register words are not.
    const bool is_descriptor = words[2] == kArguments && words[3] == 0 && words[7] == 0 &&
                               words[8] == 0 && words[9] == 0 && words[12] != 0 && words[13] != 0;
    if (is_descriptor && words[offset / 4] == was)
      std::memcpy(code.image.data() + at + offset, &value, sizeof value);
  }
}

Status other_architecture(Bench& bench) {
  return load_changed(bench, "numbers", [](hal::CodeObject& code) { code.arch = "gfx1201"; });
}
/// The label is right, the contents are another chip's.
Status other_chip_inside(Bench& bench) {
  sim::amd::Options other{.chip = "gfx1201"};
  Bench elsewhere(other, PacketMode::kPm4);
  hal::CodeObject code = elsewhere.code("numbers");
  code.arch = bench.hal().arch().name;
  BM_TRY(bench.hal().load(code));
  return {};
}
Status cut_object(Bench& bench) {
  return load_changed(bench, "numbers",
                      [](hal::CodeObject& code) { code.image.resize(code.image.size() / 2); });
}
Status no_object(Bench& bench) {
  return load_changed(bench, "numbers",
                      [](hal::CodeObject& code) { code.image.assign(100, std::byte{1}); });
}
Status other_entry(Bench& bench) {
  return load_changed(bench, "something", [](auto&) {});
}
Status too_much_lds(Bench& bench) {
  return load_changed(bench, "numbers",
                      [](hal::CodeObject& code) { code.shared_memory_bytes = (64 << 10) + 1; });
}
Status too_much_lds_inside(Bench& bench) {
  return load_changed(bench, "sharer",
                      [](hal::CodeObject& code) { set_in_descriptors(code, 0, 128, 70'000); });
}
Status too_much_scratch(Bench& bench) {
  return load_changed(bench, "numbers",
                      [](hal::CodeObject& code) { set_in_descriptors(code, 4, 0, 64 << 20); });
}
Status too_many_threads(Bench& bench) {
  return load_changed(bench, "numbers", [](hal::CodeObject& code) { code.block = {.x = 1025}; });
}
Status too_many_registers(Bench& bench) {
  return load_changed(bench, "numbers", [](hal::CodeObject& code) {
    code.block = {.x = 1024};
    // Granules of 8 registers: 256 for each of 1,024 threads.
    for (size_t at = 0; at + 64 <= code.image.size(); at += 64) {
      uint32_t arguments = 0, rsrc1 = 0;
      std::memcpy(&arguments, code.image.data() + at + 8, 4);
      std::memcpy(&rsrc1, code.image.data() + at + 48, 4);
      if (arguments != 8 || rsrc1 == 0) continue;
      rsrc1 |= 0x1f;
      std::memcpy(code.image.data() + at + 48, &rsrc1, 4);
    }
  });
}
Status short_arguments(Bench& bench) {
  return load_changed(bench, "numbers", [](hal::CodeObject& code) { code.num_vars = 3; });
}
/// The block the kernel would read ends before its last argument does.
Status short_argument_block(Bench& bench) {
  const hal::Program* const numbers = BM_TRY(bench.load("numbers"));
  hal::Buffer* const unseen = BM_TRY(bench.allocate(64));
  return bench.run(hal::QueueKind::kCompute, {hal::Dispatch{numbers, unseen->va(), {}}});
}
Status too_large_grid(Bench& bench) { return bench.launch("numbers", 0, {.x = UINT32_MAX}); }

}  // namespace

std::vector<Planted> machine_faults() {
  using Options = sim::amd::Options;
  const auto opening = [](const char* name, Code code, std::vector<std::string> says,
                          Options machine, Planted::Plant plant = planted::opens<Bench>) {
    return Planted::opening(name, plant, code, std::move(says), std::move(machine), false);
  };
  const auto failing = [](const char* call, int error) {
    return Options{.failing_call = 0,
                   .failing_error = error,
                   .failing_times = 1'000'000,
                   .failing_name = call};
  };
  return {
      opening("NoDriver", Code::kNotFound, {"/dev/kfd", "modprobe amdgpu", "--device=/dev/kfd"},
              {.kfd_error = ENOENT}),
      opening("NoRightToKfd", Code::kPermission,
              {"/dev/kfd", "usermod -aG render,video", "KERNEL==\"kfd\"", "GROUP=\"render\""},
              {.kfd_error = EACCES}),
      opening("NoRightToTheRenderNode", Code::kPermission,
              {"/dev/dri/renderD128", "usermod -aG render,video", "KERNEL==\"renderD*\""},
              {.render_error = EACCES}),
      opening("ControlGroupForbidsIt", Code::kPermission, {"/dev/kfd", "control group"},
              {.kfd_error = EPERM}),
      opening("OldKernel", Code::kUnsupported, {"1.10", "1.11", "Linux 6.1"}, {.minor = 10}),
      opening("KernelOfAnotherAge", Code::kUnsupported, {"2.0", "of major 1"},
              {.major = 2, .minor = 0}),
      opening("UnknownChip", Code::kUnsupported, {"130001", "gfx1201"}, {.target_version = 130001}),
      opening("NoSuchCard", Code::kNotFound, {"GPU 2 of 2"}, {.gpus = 2},
              planted::opens_third_card<Bench>),
      opening("NoCardAtAll", Code::kNotFound, {"GPU 0 of 0", "shows none"}, {.gpus = 0}),
      opening("VmIsTaken", Code::kIo, {"ACQUIRE_VM", "another render node"},
              failing("ACQUIRE_VM", EBUSY)),
      opening("QueueIsRefused", Code::kIo, {"CREATE_QUEUE", "save area"},
              failing("CREATE_QUEUE", EINVAL)),
      opening("EventsRunOut", Code::kOutOfMemory, {"CREATE_EVENT"},
              failing("CREATE_EVENT", ENOMEM)),
      opening("MemoryIsRefused", Code::kOutOfMemory, {"ALLOC_MEMORY_OF_GPU", "event page"},
              failing("ALLOC_MEMORY_OF_GPU", ENOMEM)),
      opening("MappingIsRefused", Code::kDeviceLost, {"MAP_MEMORY_TO_GPU"},
              failing("MAP_MEMORY_TO_GPU", EIO)),
      Planted::refused("VideoMemoryEnds", planted::video_memory_ends<Bench>, Code::kOutOfMemory,
                       {"video memory"}),
      Planted::refused("VideoMemoryIsFull", video_memory_is_full, Code::kOutOfMemory,
                       {"bytes wanted", "bytes of video memory are free"}),
      Planted::refused("LargerThanTheBar", larger_than_the_bar, Code::kUnsupported,
                       {"Resizable BAR"}, {.has_large_bar = false}),
      Planted::refused("RegisteringWhatIsNoMemory", registers_nothing, Code::kInvalidArgument,
                       {"pass the end of memory"}),
      Planted::refused("PeersAreRefused", planted::peers_are_refused<Bench>, Code::kUnsupported,
                       {"MAP_MEMORY_TO_GPU", "may have no access to each other"},
                       {.gpus = 2, .has_peers = false}),
      Planted::refused("OtherArchitecture", other_architecture, Code::kInvalidArgument,
                       {"kernel 'numbers'", "gfx1201", "gfx1100"}),
      Planted::refused("OtherChipInside", other_chip_inside, Code::kInvalidArgument,
                       {"compiled for gfx1201", "this GPU is gfx1100"}),
      Planted::refused("CutObject", cut_object, Code::kCorrupt, {"section"}),
      Planted::refused("NoObject", no_object, Code::kCorrupt, {"ELF"}),
      Planted::refused("OtherEntry", other_entry, Code::kInvalidArgument,
                       {"no kernel 'something'", "numbers", "step"}),
      Planted::refused("TooMuchLds", too_much_lds, Code::kUnsupported,
                       {"kernel 'numbers'", "65537 bytes of LDS", "65536"}),
      Planted::refused("TooMuchLdsInside", too_much_lds_inside, Code::kUnsupported,
                       {"kernel 'sharer'", "70000 bytes of LDS"}),
      Planted::refused("TooMuchScratch", too_much_scratch, Code::kUnsupported,
                       {"kernel 'numbers'", "bytes of scratch per thread", "stack"}),
      Planted::refused("TooManyThreads", too_many_threads, Code::kInvalidArgument,
                       {"kernel 'numbers'", "1025 x 1 x 1", "1024"}),
      Planted::refused("TooManyRegisters", too_many_registers, Code::kInvalidArgument,
                       {"kernel 'numbers'", "vector registers", "smaller blocks"}),
      Planted::refused("ShortArguments", short_arguments, Code::kInvalidArgument,
                       {"kernel 'numbers' takes 8 bytes", "32 bytes"}),
      Planted::refused("ArgumentsOutOfSight", short_argument_block, Code::kInvalidArgument,
                       {"kernel 'numbers'", "no argument block of 8 bytes"}),
      Planted::refused("TooLargeAGrid", too_large_grid, Code::kInvalidArgument,
                       {"kernel 'numbers'", "threads in one dimension"})};
}

}  // namespace bm::amd::faults
