// The kernel driver's interface against a model of it: every chip, what users get wrong, and every
// call failing once.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "drivers/amd/chips.h"
#include "drivers/amd/kfd/abi.h"
#include "drivers/amd/kfd/gpu.h"
#include "drivers/amd/kfd/smi_log.h"
#include "drivers/amd/kfd/topology.h"
#include "runtime/base/env.h"
#include "tests/sim/amd/kfd/fake_kfd.h"
#include "tests/sim/amd/kfd/sysfs.h"

namespace bm::amd::kfd {
namespace {

using sim::amd::FakeKfd;

void expect_error(const Error& error, Code code, std::initializer_list<const char*> texts) {
  EXPECT_EQ(error.code, code) << error.message;
  for (const char* text : texts)
    EXPECT_NE(error.message.find(text), std::string::npos) << error.message;
}

struct Case {
  const char* chip;
  uint32_t minor, xccs;
  bool publishes_sizes;
};

class KfdOpen : public testing::TestWithParam<Case> {};

TEST_P(KfdOpen, ReachesMemoryAndQueuesAndLeavesNothing) {
  FakeKfd system({.chip = GetParam().chip,
                  .minor = GetParam().minor,
                  .xccs = GetParam().xccs,
                  .publishes_sizes = GetParam().publishes_sizes});
  EXPECT_EQ(count_gpus(system).value(), 1u);
  {
    auto opened = open_gpu(system, {});
    ASSERT_TRUE(opened) << opened.error().message;
    DriverInterface& gpu = **opened;
    const GpuFacts& facts = gpu.facts();
    EXPECT_EQ(facts.chip, find_chip(GetParam().chip));
    EXPECT_EQ(facts.xccs, GetParam().xccs);
    EXPECT_EQ(facts.name, "navi model");
    EXPECT_EQ(facts.video_memory, uint64_t{1} << 30);
    EXPECT_EQ(facts.registers[Reg::COMPUTE_PGM_LO], 0x2e0cu);
    EXPECT_TRUE(facts.registers.has(Reg::BIF_BX_PF0_GPU_HDP_FLUSH_REQ));
    EXPECT_EQ(gpu.available_memory(), facts.video_memory);
    for (const MemoryDomain domain : {MemoryDomain::kVideo, MemoryDomain::kVideoMapped,
                                      MemoryDomain::kSystem, MemoryDomain::kSystemUncached}) {
      auto memory = gpu.allocate({.size = (3 << 20) + 5, .domain = domain});
      ASSERT_TRUE(memory) << memory.error().message;
      EXPECT_EQ((*memory)->va % (2 << 20), 0u);
      EXPECT_EQ((*memory)->size % 4096, 0u);
      if (domain == MemoryDomain::kVideo) {
        EXPECT_EQ((*memory)->host(), nullptr);
        continue;
      }
      EXPECT_EQ(reinterpret_cast<uint64_t>((*memory)->host()), (*memory)->va);
      (*memory)->host()[0] = std::byte{1};
      (*memory)->host()[(*memory)->size - 1] = std::byte{2};
    }
    auto ring = gpu.allocate({.size = 65536, .domain = MemoryDomain::kSystemUncached}).value();
    for (const QueueType type : {QueueType::kPm4, QueueType::kAql, QueueType::kSdma}) {
      auto queue = gpu.create_queue({.type = type, .ring = ring.get()});
      ASSERT_TRUE(queue) << queue.error().message;
      EXPECT_NE((*queue)->mailbox, 0u);
      EXPECT_NE((*queue)->event_id, 0u);
      EXPECT_EQ((*queue)->write_pointer.host() - (*queue)->object.host(), 56);
      EXPECT_EQ((*queue)->read_pointer.host() - (*queue)->object.host(), 128);
    }
  }
  EXPECT_EQ(system.open_files(), 0u);
  EXPECT_EQ(system.queues(), 0u);
  EXPECT_EQ(system.events(), 0u);
  EXPECT_EQ(system.memory().objects(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Chips, KfdOpen,
                         testing::Values(Case{"gfx1100", 17, 1, false},
                                         Case{"gfx1102", 11, 1, false},
                                         Case{"gfx1201", 17, 1, true}, Case{"gfx942", 17, 1, false},
                                         Case{"gfx942", 23, 8, true}),
                         [](const auto& test) {
                           return fmt::format("{}_{}_{}", test.param.chip, test.param.minor,
                                              test.param.xccs);
                         });

TEST(Kfd, MissingDriverNodesAndRightsAreExplained) {
  struct NoSysfs : System {
    int list(const std::string&, std::vector<std::string>*) override { return -ENOENT; }
  } none;
  EXPECT_EQ(count_gpus(none).value(), 0u);
  expect_error(open_gpu(none, {}).error(), Code::kNotFound, {"modprobe amdgpu"});
  FakeKfd denied({.kfd_error = EACCES});
  expect_error(open_gpu(denied, {}).error(), Code::kPermission,
               {"/dev/kfd", "usermod -aG render,video", "udev", "KERNEL==\"kfd\""});
  FakeKfd render({.render_error = EACCES});
  expect_error(open_gpu(render, {}).error(), Code::kPermission,
               {"/dev/dri/renderD128", "usermod", "renderD*"});
  FakeKfd container({.kfd_error = EPERM});
  expect_error(open_gpu(container, {}).error(), Code::kPermission, {"control group"});
  FakeKfd absent({.kfd_error = ENOENT});
  expect_error(open_gpu(absent, {}).error(), Code::kNotFound, {"--device=/dev/kfd"});
  FakeKfd one({});
  expect_error(open_gpu(one, {.index = 1}).error(), Code::kNotFound, {"GPU 1 of 1"});
}

TEST(Kfd, KernelsTooOldAndChipsUnknownAreRefused) {
  FakeKfd old({.minor = 10});
  expect_error(open_gpu(old, {}).error(), Code::kUnsupported, {"1.10", "1.11", "Linux 6.1"});
  struct Newer : FakeKfd {
    using FakeKfd::FakeKfd;
    int read_file(const std::string& path, std::string* out) override {
      const int result = FakeKfd::read_file(path, out);
      const size_t at = out->find("gfx_target_version 110000");
      if (at != std::string::npos) out->replace(at, 25, "gfx_target_version 130001");
      return result;
    }
  } newer(sim::amd::Options{});
  expect_error(open_gpu(newer, {}).error(), Code::kUnsupported, {"130001", "gfx1201"});
}

TEST(Kfd, AnEmptyOrOddTopologyIsNoCrash) {
  for (const char* text :
       {"", "x", "gfx_target_version 110000\n", "simd_count 99999999999999999999"}) {
    struct Odd : FakeKfd {
      explicit Odd(const char* what) : FakeKfd(sim::amd::Options{}), text(what) {}
      int read_file(const std::string& path, std::string* out) override {
        const int result = FakeKfd::read_file(path, out);
        if (path.ends_with("nodes/2/properties")) *out = text;
        return result;
      }
      std::string text;
    } odd(text);
    expect_error(open_gpu(odd, {}).error(), Code::kCorrupt, {"nodes/2/properties has no"});
  }
}

TEST(Kfd, VideoMemoryBehindASmallBarIsExplained) {
  FakeKfd system({.has_large_bar = false});
  auto gpu = open_gpu(system, {}).value();
  EXPECT_TRUE(gpu->allocate({.size = 4096, .domain = MemoryDomain::kVideo}));
  expect_error(gpu->allocate({.size = 4096, .domain = MemoryDomain::kVideoMapped}).error(),
               Code::kUnsupported, {"Resizable BAR"});
}

TEST(Kfd, MoreThanThereIsIsOutOfMemory) {
  FakeKfd system({.vram_bytes = 64 << 20});
  auto gpu = open_gpu(system, {}).value();
  expect_error(gpu->allocate({.size = 65 << 20}).error(), Code::kOutOfMemory,
               {"68157440 bytes wanted", "67108864 bytes of video memory are free"});
  EXPECT_TRUE(gpu->allocate({.size = 64 << 20}));
}

TEST(Kfd, MemoryOfTheProcessIsRegistered) {
  FakeKfd system({});
  auto gpu = open_gpu(system, {}).value();
  alignas(4096) static std::byte pages[8192];
  auto memory =
      gpu->allocate({.size = sizeof pages, .domain = MemoryDomain::kSystem, .host = pages});
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ((*memory)->host(), pages);
  EXPECT_EQ(system.memory().at(gpu->facts().gpu_id, (*memory)->va + 5000, 1), pages + 5000);
  EXPECT_TRUE(gpu->allocate({.size = 4096, .domain = MemoryDomain::kSystem, .host = pages}))
      << "twice";
  EXPECT_FALSE(gpu->allocate({.size = 100, .domain = MemoryDomain::kSystem, .host = pages}));
}

TEST(Kfd, GpusShareASessionAndReachEachOther) {
  FakeKfd system({.gpus = 2});
  auto first = open_gpu(system, {.index = 0}).value();
  auto second = open_gpu(system, {.index = 1}).value();
  EXPECT_NE(first->facts().gpu_id, second->facts().gpu_id);
  auto memory = first->allocate({.size = 8192}).value();
  EXPECT_EQ(system.memory().at(second->facts().gpu_id, memory->va, 8), nullptr);
  ASSERT_TRUE(second->map_peer(*memory, *first));
  ASSERT_TRUE(second->map_peer(*memory, *first)) << "twice is once";
  EXPECT_NE(system.memory().at(second->facts().gpu_id, memory->va, 8), nullptr);
  memory.reset();
  first.reset();
  // The event page outlives the GPU that allocated it.
  auto ring = second->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}).value();
  EXPECT_TRUE(second->create_queue({.type = QueueType::kSdma, .ring = ring.get()}));
}

TEST(Kfd, WritesIntoPeersOverPcieHaveAWordThatFlushesThem) {
  FakeKfd system({.gpus = 2});
  auto first = open_gpu(system, {.index = 0}).value();
  auto second = open_gpu(system, {.index = 1}).value();
  const uint32_t writer = second->facts().gpu_id, owner = first->facts().gpu_id;
  auto video = first->allocate({.size = 4096}).value();
  auto shared = first->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}).value();
  EXPECT_EQ(second->map_peer(*shared, *first).value(), nullptr) << "no host data path there";
  auto flush = second->map_peer(*video, *first);
  ASSERT_TRUE(flush) << flush.error().message;
  ASSERT_NE(*flush, nullptr);
  EXPECT_EQ(second->map_peer(*video, *first).value(), *flush) << "one a GPU";
  // As the engines do it.
  const std::byte data[4] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  sim::amd::DeviceMemory& memory = system.memory();
  EXPECT_FALSE(memory.hold_write(owner, video->va, data, sizeof data)) << "its own";
  ASSERT_TRUE(memory.hold_write(writer, video->va, data, sizeof data));
  EXPECT_NE(std::memcmp(memory.at(owner, video->va, 4), data, sizeof data), 0);
  EXPECT_FALSE(memory.flush_at(owner, (*flush)->va)) << "mapped where nobody needs it";
  EXPECT_TRUE(memory.flush_at(writer, (*flush)->va));
  EXPECT_EQ(std::memcmp(memory.at(owner, video->va, 4), data, sizeof data), 0);
  const size_t objects = memory.objects();
  flush->reset();
  EXPECT_EQ(memory.objects(), objects - 1) << "nobody needs it any more";
}

TEST(Kfd, PeersWithALinkOfTheirOwnNeedNoFlush) {
  FakeKfd system({.gpus = 3, .has_direct_links = true});
  auto first = open_gpu(system, {.index = 0}).value();
  auto third = open_gpu(system, {.index = 2}).value();
  EXPECT_EQ(first->facts().near_gpu_ids.size(), 2u);
  auto video = first->allocate({.size = 4096}).value();
  const auto flush = third->map_peer(*video, *first);
  ASSERT_TRUE(flush) << flush.error().message;
  EXPECT_EQ(*flush, nullptr);
}

TEST(Kfd, WithoutTheFlushRegistersPeersAreNotWrittenOverPcie) {
  FakeKfd system({.gpus = 2, .has_flush_page = false});
  auto first = open_gpu(system, {.index = 0}).value();
  auto second = open_gpu(system, {.index = 1}).value();
  EXPECT_TRUE(first->facts().near_gpu_ids.empty()) << "PCIe is no link of their own";
  auto video = first->allocate({.size = 4096}).value();
  const size_t objects = system.memory().objects();
  expect_error(second->map_peer(*video, *first).error(), Code::kUnsupported,
               {"flush writes over PCIe", "virtual functions"});
  EXPECT_EQ(system.memory().at(second->facts().gpu_id, video->va, 4), nullptr);
  EXPECT_EQ(system.memory().objects(), objects);
}

TEST(Kfd, TheCpuMapsNoVideoMemoryThatIsNotPublic) {
  FakeKfd system({});
  auto gpu = open_gpu(system, {}).value();
  auto memory = gpu->allocate({.size = 4096}).value();
  const auto object = system.memory().mapping_at(gpu->facts().gpu_id, memory->va);
  ASSERT_TRUE(object);
  void* at = nullptr;
  const int mapped = system.mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                                 dynamic_cast<KfdGpu&>(*gpu).render(),
                                 static_cast<off_t>(object->mmap_offset), &at);
  EXPECT_EQ(mapped, -EPERM);
  EXPECT_EQ(system.machine().bar_objects, 0u);
}

TEST(Kfd, AGpuCanBeOpenedAgainAndTwiceInOneProcess) {
#if defined(__SANITIZE_THREAD__)
  constexpr uint64_t kWindow = 0;  // it allows no fixed addresses there
#else
  constexpr uint64_t kWindow = 0x7100'0000'0000;
#endif
  FakeKfd system({.gpus = 2});
  for (int round = 0; round < 3; ++round) {
    auto first = open_gpu(system, {.index = 0, .window = kWindow});
    ASSERT_TRUE(first) << first.error().message;
    auto again = open_gpu(system, {.index = 0});
    ASSERT_TRUE(again) << again.error().message;
    auto second = open_gpu(system, {.index = 1});
    ASSERT_TRUE(second) << second.error().message;
    auto ring =
        (*second)->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}).value();
    auto queue = (*second)->create_queue({.type = QueueType::kSdma, .ring = ring.get()});
    ASSERT_TRUE(queue) << queue.error().message;
    SetEvent set{(*queue)->event_id, 0};
    const int kfd = dynamic_cast<KfdGpu&>(**second).session().kfd();
    ASSERT_EQ(system.ioctl(kfd, SetEvent::kRequest, &set), 0);
    EXPECT_TRUE((*second)->wait_event(1000).value());
  }
}

TEST(Kfd, AWindowOfAddressesIsKept) {
  FakeKfd system({});
  constexpr uint64_t kWindow = 0x7000'0000'0000;
  auto gpu = open_gpu(system, {.window = kWindow});
  ASSERT_TRUE(gpu) << gpu.error().message;
  auto memory = (*gpu)->allocate({.size = 1 << 20, .domain = MemoryDomain::kSystem}).value();
  EXPECT_GE(memory->va, kWindow);
  EXPECT_LT(memory->va, kWindow + (uint64_t{64} << 30));
  memory->host()[5] = std::byte{7};
  FakeKfd other({});
  expect_error(open_gpu(other, {.window = kWindow}).error(), Code::kUnsupported, {"BM_AMD_WINDOW"});
}

TEST(Kfd, WaitsEndWithAnInterruptAFaultOrTime) {
  FakeKfd system({});
  auto gpu = open_gpu(system, {}).value();
  auto ring = gpu->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}).value();
  auto queue = gpu->create_queue({.type = QueueType::kSdma, .ring = ring.get()}).value();
  EXPECT_FALSE(gpu->wait_event(1).value());
  EXPECT_FALSE(gpu->take_fault());
  SetEvent set{queue->event_id, 0};
  ASSERT_EQ(system.ioctl(dynamic_cast<KfdGpu&>(*gpu).session().kfd(), SetEvent::kRequest, &set), 0);
  EXPECT_TRUE(gpu->wait_event(1000).value());
  EXPECT_FALSE(gpu->wait_event(1).value()) << "the event resets itself";
  system.raise_memory_fault(0, 0x123456789, true);
  EXPECT_TRUE(gpu->wait_event(1000).value());
  system.raise_reset(0, true);
  const auto fault = gpu->take_fault();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, GpuFault::Kind::kMemory) << "the first one";
  EXPECT_EQ(fault->address, 0x123456000u);
  EXPECT_TRUE(fault->is_not_present);
  EXPECT_TRUE(fault->is_read_only);
}

TEST(Kfd, AFaultOfAnotherGpuIsNotOurs) {
  FakeKfd system({.gpus = 2});
  auto first = open_gpu(system, {.index = 0}).value();
  auto second = open_gpu(system, {.index = 1}).value();
  system.raise_memory_fault(1, 0x1000, false);
  EXPECT_FALSE(first->take_fault());
  EXPECT_TRUE(second->take_fault());
}

TEST(Kfd, AFaultOfAnotherGpuDoesNotKeepWaitsShort) {
  FakeKfd system({.gpus = 2});
  auto first = open_gpu(system, {.index = 0}).value();
  auto second = open_gpu(system, {.index = 1}).value();
  system.raise_memory_fault(1, 0x1000, false);
  system.raise_reset(1, false);
  static_cast<void>(first->wait_event(10));
  EXPECT_FALSE(first->wait_event(10).value());
  EXPECT_FALSE(first->take_fault());
  EXPECT_TRUE(second->take_fault());
  system.raise_memory_fault(0, 0x2000, false);
  EXPECT_TRUE(first->take_fault()) << "deaf afterwards";
}

TEST(Kfd, AResetOfAnyGpuEndsTheProcessOnAllOfThem) {
  FakeKfd system({.gpus = 2});
  {
    auto first = open_gpu(system, {.index = 0}).value();
    auto second = open_gpu(system, {.index = 1}).value();
    system.raise_reset(1, true);
    EXPECT_TRUE(first->wait_event(1000).value());
    const auto fault = first->take_fault();
    ASSERT_TRUE(fault);
    EXPECT_TRUE(fault->is_whole_reset);
    EXPECT_EQ(fault->reset_gpu_id, second->facts().gpu_id);
    EXPECT_EQ(second->take_fault()->reset_gpu_id, 0u);
  }
  for (uint32_t gpu = 0; gpu < 2; ++gpu)
    expect_error(open_gpu(system, {.index = gpu}).error(), Code::kDeviceLost,
                 {"stopped this process", "was reset", "start the program again"});
  EXPECT_EQ(system.open_files(), 0u);
  EXPECT_EQ(system.events(), 0u);
  const auto next = system.next_process();
  EXPECT_TRUE(open_gpu(*next, {.index = 1}));
}

TEST(Kfd, AMemoryFaultEndsTheProcessOnThatGpuAlone) {
  FakeKfd system({.gpus = 2});
  {
    auto gpu = open_gpu(system, {.index = 1}).value();
    system.raise_memory_fault(1, 0x1234000, false);
    EXPECT_TRUE(gpu->take_fault());
  }
  expect_error(open_gpu(system, {.index = 1}).error(), Code::kDeviceLost,
               {"memory fault at 0x1234000", "start the program again"});
  EXPECT_TRUE(open_gpu(system, {.index = 0}));
  EXPECT_EQ(system.events(), 0u);
  const auto next = system.next_process();
  EXPECT_TRUE(open_gpu(*next, {.index = 1}));
}

TEST(Kfd, ResetsAreNoticedWhereTheKernelTellsNothingOfThem) {
  FakeKfd system({.tells_resets = false});
  auto gpu = open_gpu(system, {}).value();
  EXPECT_FALSE(gpu->take_fault());
  system.raise_reset(0, true);
  EXPECT_TRUE(gpu->wait_event(1000).value());
  const auto fault = gpu->take_fault();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, GpuFault::Kind::kHardware);
  EXPECT_TRUE(fault->is_whole_reset);
  EXPECT_NE(fault->log.find("GPU reset 1 begins: the compute ring hung; GPU reset 1 is over"),
            std::string::npos)
      << fault->log;
}

TEST(Kfd, TheEventLogIsPutIntoWords) {
  EXPECT_EQ(log_in_words("1 1267:bellmetal\n3 2 ring gfx timeout\n4 2\n2 8:3\n5 x @1\n"),
            "VM fault of process 4711 (bellmetal); GPU reset 2 begins: ring gfx timeout; "
            "GPU reset 2 is over; the GPU is too hot or draws too much (reasons 0x8); 5 x @1");
  EXPECT_EQ(log_in_words("1\n\n3\n4 \x01z"),
            "VM fault; GPU reset 0 begins; GPU reset 0 is over: z");
  EXPECT_EQ(log_in_words(""), "");
}

/// Opens, allocates, makes queues; whatever fails, nothing may be left and nothing may crash.
Status use_everything(System& system) {
  auto gpu = BM_TRY(open_gpu(system, {}));
  auto memory = BM_TRY(gpu->allocate({.size = 1 << 20, .domain = MemoryDomain::kSystem}));
  auto ring = BM_TRY(gpu->allocate({.size = 4096, .domain = MemoryDomain::kSystemUncached}));
  auto compute = BM_TRY(gpu->create_queue({.type = QueueType::kAql, .ring = ring.get()}));
  auto copies = BM_TRY(gpu->create_queue({.type = QueueType::kSdma, .ring = ring.get()}));
  BM_TRY(gpu->wait_event(0));
  return {};
}

TEST(Kfd, EveryCallFailsOnce) {
  const ScopedSetting quiet("BM_LOG", "amd=0");
  FakeKfd count({});
  ASSERT_TRUE(use_everything(count));
  const auto calls = static_cast<int>(count.calls());
  EXPECT_GT(calls, 30);
  for (const int error : {ENOMEM, EINVAL, EIO}) {
    int failures = 0;
    for (int call = 0; call < calls; ++call) {
      FakeKfd system({.failing_call = call, .failing_error = error});
      const Status used = use_everything(system);
      if (!used) {
        ++failures;
        EXPECT_NE(used.error().message.find("KFD "), std::string::npos) << used.error().message;
      }
      EXPECT_EQ(system.open_files(), 0u) << call;
    }
    EXPECT_GT(failures, 15);
  }
}

TEST(KfdTopology, SaveAreasFollowTheKernelToTheByte) {
  for (const char* name : {"gfx942", "gfx1030", "gfx1100", "gfx1102", "gfx1201"}) {
    for (const uint32_t xccs : {1u, 8u}) {
      FakeKfd system({.chip = name, .xccs = xccs});
      const auto nodes = read_nodes(system).value();
      ASSERT_EQ(nodes.size(), 1u);
      const SaveSizes sizes = save_sizes(nodes[0], *find_chip(name));
      const sim::amd::Sizes want = sim::amd::sizes_of(sim::amd::card_of(name), xccs);
      EXPECT_EQ(sizes.control_stack, want.control_stack) << name;
      EXPECT_EQ(sizes.save, want.save) << name;
      EXPECT_EQ(sizes.debug, want.debug) << name;
    }
  }
}

/// 80 compute units of 32 waves would need eight pages; the kernel refuses queues with more than
/// seven on generation 10.
TEST(KfdTopology, ControlStacksOfGfx10AreLimitedByTheHardware) {
  Node node;
  node.properties = {{"simd_count", 160},
                     {"simd_per_cu", 2},
                     {"array_count", 8},
                     {"simd_arrays_per_engine", 2},
                     {"gfx_target_version", 100300}};
  EXPECT_EQ(save_sizes(node, *find_chip("gfx1030")).control_stack, 0x7000u);
  node.properties["simd_count"] = 64;
  EXPECT_EQ(save_sizes(node, *find_chip("gfx1032")).control_stack, 0x4000u);
}

TEST(KfdTopology, WhatTheKernelTellsWins) {
  Node node;
  node.properties = {{"simd_count", 192},
                     {"simd_per_cu", 2},
                     {"array_count", 12},
                     {"simd_arrays_per_engine", 2},
                     {"gfx_target_version", 110000},
                     {"cwsr_size", 0x123000},
                     {"ctl_stack_size", 0x9000}};
  const SaveSizes sizes = save_sizes(node, *find_chip("gfx1100"));
  EXPECT_EQ(sizes.save, 0x123000u);
  EXPECT_EQ(sizes.control_stack, 0x9000u);
  EXPECT_EQ(sizes.debug, 96u * 32 * 32);
  EXPECT_EQ(sizes.total(1) % 4096, 0u);
}

TEST(KfdTopology, NodesAreInNumericalOrderAndHiddenOnesLeftOut) {
  FakeKfd system({.gpus = 2});
  const auto nodes = read_nodes(system).value();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].number, 2u);
  EXPECT_EQ(nodes[1].number, 10u);
  struct Hidden : FakeKfd {
    using FakeKfd::FakeKfd;
    int read_file(const std::string& path, std::string* out) override {
      return path.ends_with("nodes/2/gpu_id") ? -EPERM : FakeKfd::read_file(path, out);
    }
  } hidden(sim::amd::Options{.gpus = 2});
  EXPECT_EQ(count_gpus(hidden).value(), 1u);
}

}  // namespace
}  // namespace bm::amd::kfd
