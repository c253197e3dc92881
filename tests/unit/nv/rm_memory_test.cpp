// Memory, peers, events and channels of opened GPUs, and every call failing once.

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/nv/rm_ioctl/rm.h"
#include "tests/sim/nv/fake_system.h"

namespace bm::nv {
namespace {

using sim::nv::FakeNvSystem;

constexpr uint64_t kMiB = 1 << 20;

std::unique_ptr<DriverInterface> open_gpu(FakeNvSystem& system, uint32_t index = 0) {
  Result<std::unique_ptr<DriverInterface>> opened =
      open_rm(system, {.index = index, .window = 0, .version_override = {}});
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

ChannelRequest request_on(Memory& ring, Engine engine = Engine::kCompute) {
  return {.engine = engine,
          .copy_index = 0,
          .ring = &ring,
          .ring_offset = 0,
          .entries = 1024,
          .userd_offset = 8192};
}

void expect_clean(FakeNvSystem& system) {
  EXPECT_EQ(system.kernel().report().leaks, std::vector<std::string>());
  EXPECT_EQ(system.kernel().report().complaints, std::vector<std::string>());
  EXPECT_EQ(system.kernel().live_objects(), 0u);
  EXPECT_EQ(system.kernel().pinned_bytes(), 0u);
  EXPECT_EQ(system.open_files(), 0u);
}

TEST(RmMemory, AddressesAreUsedAgain) {
  const auto system = FakeNvSystem::create({});
  const auto gpu = open_gpu(*system);
  for (const MemoryDomain domain :
       {MemoryDomain::kVideo, MemoryDomain::kVideoMapped, MemoryDomain::kSystem}) {
    uint64_t first = 0;
    for (int i = 0; i < 50; ++i) {
      const auto memory = gpu->allocate({.size = 9 * kMiB, .domain = domain}).value();
      if (first == 0) first = memory->va;
      EXPECT_EQ(memory->va, first);
    }
  }
  EXPECT_EQ(system->kernel().video_memory_used(0), 0u);
  EXPECT_EQ(system->kernel().pinned_bytes(), 0u);
}

TEST(RmMemory, NothingHandedOutOverlaps) {
  const auto system = FakeNvSystem::create({});
  const auto gpu = open_gpu(*system);
  std::map<uint64_t, uint64_t> ranges;
  std::vector<std::unique_ptr<Memory>> held;
  for (uint32_t i = 0; i < 60; ++i) {
    const MemoryDomain domain = static_cast<MemoryDomain>(i % 3);
    held.push_back(gpu->allocate({.size = 4096u * (1 + i * 37), .domain = domain}).value());
    ranges[held.back()->va] = held.back()->size;
    if (i % 5 == 4) {
      const size_t gone = (i * 7) % held.size();
      ranges.erase(held[gone]->va);
      held.erase(held.begin() + static_cast<ptrdiff_t>(gone));
    }
  }
  uint64_t end = 0;
  for (const auto& [base, size] : ranges) {
    EXPECT_GE(base, end);
    end = base + size;
  }
  const auto is_in = [](uint64_t base, uint64_t size, uint64_t window) {
    return base < window + (uint64_t{1} << 32) && window < base + size;
  };
  for (const auto& [base, size] : ranges) {
    EXPECT_FALSE(is_in(base, size, gpu->shared_window()));
    EXPECT_FALSE(is_in(base, size, gpu->local_window()));
  }
}

TEST(RmMemory, ThePagesOfTheProcessCanBeRegisteredAndReleased) {
  const auto system = FakeNvSystem::create({});
  const auto gpu = open_gpu(*system);
  void* const pages =
      ::mmap(nullptr, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  {
    const MemoryRequest request = {.size = 16384, .domain = MemoryDomain::kSystem, .host = pages};
    const auto memory = gpu->allocate(request);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ((*memory)->host(), pages);
    const auto again = gpu->allocate(request);  // a second registration lies elsewhere on the GPU
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_NE((*again)->va, (*memory)->va);
    EXPECT_EQ(system->kernel().pinned_bytes(), 2 * 16384u);
  }
  EXPECT_EQ(system->kernel().pinned_bytes(), 0u);
  static_cast<char*>(pages)[0] = 1;  // still the process's own
  EXPECT_FALSE(gpu->allocate(
      {.size = 100, .domain = MemoryDomain::kSystem, .host = static_cast<char*>(pages) + 8}));
  ::munmap(pages, 16384);
}

TEST(RmMemory, RunningOutSaysSoAndLeavesNothing) {
  const auto system = FakeNvSystem::create({.video_memory = 64 * kMiB});
  const auto gpu = open_gpu(*system);
  const auto half = gpu->allocate({.size = 40 * kMiB}).value();
  const auto more = gpu->allocate({.size = 40 * kMiB});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::kOutOfMemory);
  EXPECT_TRUE(gpu->allocate({.size = 16 * kMiB}));
  EXPECT_FALSE(gpu->allocate({.size = 0}));
}

TEST(RmWindow, TheBaseIsAnOption) {
  const auto system = FakeNvSystem::create({});
  const uint64_t base = 0x2000'0000;
  auto gpu = open_rm(*system, {.index = 0, .window = base, .version_override = {}});
  ASSERT_TRUE(gpu) << gpu.error().message;
  const auto memory = (*gpu)->allocate({.size = kMiB, .domain = MemoryDomain::kSystem}).value();
  EXPECT_GE(memory->va, base);
  EXPECT_LT(memory->va, base + (uint64_t{64} << 30));
  const auto other = FakeNvSystem::create({});
  const auto taken = open_rm(*other, {.index = 0, .window = base, .version_override = {}});
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message.find("BM_NV_WINDOW"), std::string::npos);
  EXPECT_FALSE(open_rm(*other, {.index = 0, .window = 0x1001, .version_override = {}}));
}

TEST(RmPeers, ReachEachOtherWhereTheyMay) {
  const auto system = FakeNvSystem::create({.gpus = 2});
  {
    const auto first = open_gpu(*system, 0), second = open_gpu(*system, 1);
    EXPECT_NE(first->facts().uuid, second->facts().uuid);
    const auto memory = first->allocate({.size = kMiB}).value();
    const auto mapped = second->map_peer(*memory, *first);
    EXPECT_TRUE(mapped) << mapped.error().message;
    EXPECT_EQ(system->kernel().calls("UVM:29"), 1u);
    const auto more = first->allocate({.size = kMiB}).value();
    EXPECT_TRUE(second->map_peer(*more, *first));
    EXPECT_EQ(system->kernel().calls("UVM:29"), 1u);  // asked once per pair
  }
  expect_clean(*system);
}

TEST(RmPeers, DegradeWhereTheyMayNot) {
  const auto system = FakeNvSystem::create({.gpus = 2, .has_peers = false});
  {
    const auto first = open_gpu(*system, 0), second = open_gpu(*system, 1);
    const auto memory = first->allocate({.size = kMiB}).value();
    for (int i = 0; i < 2; ++i) {
      const auto mapped = second->map_peer(*memory, *first);
      ASSERT_FALSE(mapped);
      EXPECT_EQ(mapped.error().code, Code::kUnsupported);
    }
    EXPECT_EQ(system->kernel().calls("UVM:29"), 1u);
    // System memory needs no peers.
    const auto shared = first->allocate({.size = kMiB, .domain = MemoryDomain::kSystem}).value();
    const auto mapped = second->map_peer(*shared, *first);
    EXPECT_TRUE(mapped) << mapped.error().message;
  }
  expect_clean(*system);
}

TEST(RmChannel, CanBeMadeAgainOnTheSameRing) {
  const auto system = FakeNvSystem::create({});
  {
    const auto gpu = open_gpu(*system);
    const auto kept = gpu->allocate({.size = kMiB, .domain = MemoryDomain::kVideoMapped}).value();
    const auto ring = gpu->allocate({.size = 65536, .domain = MemoryDomain::kVideoMapped}).value();
    kept->host()[100] = std::byte{42};
    const auto next_address = [&] {
      return gpu->allocate({.size = 4096, .domain = MemoryDomain::kSystem}).value()->va;
    };
    const uint64_t free_before = next_address();
    for (int i = 0; i < 20; ++i) {
      const auto channel = gpu->create_channel(request_on(*ring));
      ASSERT_TRUE(channel) << channel.error().message;
    }
    EXPECT_EQ(next_address(), free_before);  // channels give their addresses back
    EXPECT_EQ(kept->host()[100], std::byte{42});
  }
  expect_clean(*system);
}

TEST(RmChannel, BadRequestsAreErrors) {
  const auto system = FakeNvSystem::create({});
  const auto gpu = open_gpu(*system);
  const auto ring = gpu->allocate({.size = 65536, .domain = MemoryDomain::kVideoMapped}).value();
  ChannelRequest request = request_on(*ring);
  request.entries = 1000;
  EXPECT_FALSE(gpu->create_channel(request));
  request = request_on(*ring);
  request.userd_offset = 8200;
  EXPECT_FALSE(gpu->create_channel(request));
  request = request_on(*ring);
  request.entries = 16384;
  EXPECT_FALSE(gpu->create_channel(request));
  request.ring = nullptr;
  EXPECT_FALSE(gpu->create_channel(request));
}

TEST(RmChannel, CopiesFallBackToTheGraphicsEngine) {
  const auto system = FakeNvSystem::create({});
  const auto gpu = open_gpu(*system);
  const auto ring = gpu->allocate({.size = 65536, .domain = MemoryDomain::kVideoMapped}).value();
  system->kernel().plan({.call = "RM_ALLOC:a06c",
                         .status = sim::nv::RmStatus::kInvalidArgument,
                         .times = gpu->facts().copy_engines});
  const auto channel = gpu->create_channel(request_on(*ring, Engine::kCopy));
  ASSERT_TRUE(channel) << channel.error().message;
}

TEST(RmEvents, AreOptional) {
  const auto system = FakeNvSystem::create({});
  {
    const auto gpu = open_gpu(*system);
    const auto ring = gpu->allocate({.size = 65536, .domain = MemoryDomain::kVideoMapped}).value();
    const auto channel = gpu->create_channel(request_on(*ring)).value();
    const Result<int> fd = gpu->event_fd(*channel);
    ASSERT_TRUE(fd) << fd.error().message;
    EXPECT_EQ(gpu->event_fd(*channel).value(), *fd);
    EXPECT_FALSE(gpu->wait_event(*channel, 0).value());

    const auto other = gpu->create_channel(request_on(*ring, Engine::kCopy)).value();
    system->kernel().plan({.call = "RM_ALLOC:79", .status = sim::nv::RmStatus::kNotSupported});
    const Result<int> refused = gpu->event_fd(*other);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kUnsupported);
  }
  expect_clean(*system);
}

/// What a device does from opening to closing.
Status use_everything(FakeNvSystem& system) {
  const auto gpu = BM_TRY(open_rm(system, {}));
  const auto video = BM_TRY(gpu->allocate({.size = 9 * kMiB}));
  const auto ring = BM_TRY(gpu->allocate({.size = 65536, .domain = MemoryDomain::kVideoMapped}));
  const auto staging = BM_TRY(gpu->allocate({.size = kMiB, .domain = MemoryDomain::kSystem}));
  const auto compute = BM_TRY(gpu->create_channel(request_on(*ring)));
  const auto copy = BM_TRY(gpu->create_channel(request_on(*ring, Engine::kCopy)));
  gpu->fault_details(*compute);
  BM_TRY(gpu->event_fd(*compute));
  return {};
}

uint64_t calls_of_one_run() {
  const auto system = FakeNvSystem::create({});
  EXPECT_TRUE(use_everything(*system));
  return system->kernel().calls("");
}

/// Every call of a life fails once: no crash, nothing left behind, and an error that names it,
/// unless the call is one that may fail.
void sweep(sim::nv::Failure failure) {
  const uint64_t count = calls_of_one_run();
  ASSERT_GT(count, 60u);
  size_t failed = 0;
  for (uint64_t nth = 1; nth <= count; ++nth) {
    SCOPED_TRACE(nth);
    const auto system = FakeNvSystem::create({});
    failure.nth = nth;
    system->kernel().plan(failure);
    const Status used = use_everything(*system);
    system->kernel().clear_plans();
    if (!used) {
      ++failed;
      EXPECT_NE(used.error().message.find("stage"), std::string::npos) << used.error().message;
    }
    EXPECT_EQ(system->open_files(), 0u);
    EXPECT_EQ(system->kernel().pinned_bytes(), 0u);
    EXPECT_EQ(system->kernel().video_memory_used(0), 0u);
    // A second life after the first one's failure.
    const Status again = use_everything(*system);
    EXPECT_TRUE(again) << again.error().message;
  }
  EXPECT_GT(failed, count / 3);
}

TEST(RmSweep, EveryCallRefusedByItsStatus) {
  sweep({.call = {}, .nth = 1, .status = sim::nv::RmStatus::kInsufficientResources, .error = EIO});
}

TEST(RmSweep, EveryCallRefusedByTheKernel) { sweep({.call = {}, .nth = 1, .error = EINVAL}); }

TEST(RmSweep, EveryCallRefusedForGood) {
  const uint64_t count = calls_of_one_run();
  for (uint64_t nth = 1; nth <= count; nth += 3) {
    SCOPED_TRACE(nth);
    const auto system = FakeNvSystem::create({});
    system->kernel().plan({.nth = nth, .error = EIO, .times = 1'000'000});
    (void)use_everything(*system);
    EXPECT_EQ(system->open_files(), 0u);
  }
}

}  // namespace
}  // namespace bm::nv
