#include "runtime/allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/pool.h"
#include "tests/unit/memory/fake_device.h"

namespace bm::runtime::test {
namespace {

StoragePtr get(FakeDevice& device, const hal::BufferDesc& desc) {
  Result<StoragePtr> storage = device.allocator().allocate(desc);
  BM_CHECK(storage.has_value());
  return std::move(*storage);
}

TEST(Allocator, ReusesTheNewestBlockOfTheSameSize) {
  FakeDevice device;
  StoragePtr a = get(device, {.size = 5000}), b = get(device, {.size = 5000});
  const hal::GpuVa va_a = a->va(), va_b = b->va();
  b.reset();
  a.reset();
  EXPECT_EQ(get(device, {.size = 5000})->va(), va_a);
  const StoragePtr c = get(device, {.size = 5000}), d = get(device, {.size = 5000});
  EXPECT_EQ(c->va(), va_a);
  EXPECT_EQ(d->va(), va_b);
  EXPECT_EQ(device.allocator().stats().cache_hits, 3u);
  EXPECT_EQ(device.fake.allocations, 1) << "both live in one chunk";
}

TEST(Allocator, RoundsSizesSoThatNearEqualOnesShareAKey) {
  FakeDevice device;
  const hal::GpuVa va = get(device, {.size = 257})->va();
  EXPECT_EQ(get(device, {.size = 512})->va(), va);
  EXPECT_EQ(get(device, {.size = 512})->size(), 512u);
  EXPECT_NE(get(device, {.size = 513})->size(), 512u);
  EXPECT_EQ(get(device, {})->size(), 256u) << "size 0 is one granule";
}

TEST(Allocator, HostVisibleIsTheSameKeyWhereAllMemoryIs) {
  FakeDevice device;
  device.fake.plain_is_visible = true;
  const hal::GpuVa va = get(device, {.size = 4096, .host_visible = true})->va();
  const StoragePtr plain = get(device, {.size = 4096});
  EXPECT_EQ(plain->va(), va);
  EXPECT_NE(plain->host(), nullptr);
}

TEST(Allocator, HostVisibleIsAnotherPoolWhereItIsNot) {
  FakeDevice device;
  const StoragePtr plain = get(device, {.size = 4096});
  const StoragePtr visible = get(device, {.size = 4096, .host_visible = true});
  EXPECT_EQ(plain->host(), nullptr);
  EXPECT_NE(visible->host(), nullptr);
  EXPECT_EQ(device.allocator().stats().device_allocations, 2u);
}

TEST(Allocator, RefusesADeviceThatIgnoresHostVisible) {
  FakeDevice device;
  device.fake.can_be_visible = false;
  const auto storage = device.allocator().allocate({.size = 64, .host_visible = true});
  ASSERT_FALSE(storage);
  EXPECT_EQ(storage.error().code, Code::kUnsupported);
}

TEST(Allocator, WithoutLruFreedMemoryGoesBackAtOnce) {
  FakeDevice device({.lru = false});
  get(device, {.size = 5000});
  get(device, {.size = 40_MiB});
  get(device, {.size = 5000, .host_memory = true});
  EXPECT_EQ(device.fake.bytes, 0u);
  EXPECT_EQ(device.allocator().stats().reserved, 0u);
}

TEST(Allocator, TakesItsOptionsFromTheEnvironment) {
  const ScopedSetting lru("LRU", "0");
  const ScopedSetting cap("BM_MEMORY_CAP", "3M");
  const ScopedSetting most("MAX_BUFFER_SIZE", "1M");
  const AllocatorOptions options = AllocatorOptions::from_settings();
  EXPECT_FALSE(options.lru);
  EXPECT_EQ(options.hard_cap, 3_MiB);
  EXPECT_EQ(options.max_buffer_size, 1_MiB);
}

TEST(Allocator, SpecialMemoryIsItsOwnDeviceAllocation) {
  FakeDevice device;
  const hal::BufferDesc special[] = {{.size = 512, .zero = true},
                                     {.size = 512, .no_cache = true},
                                     {.size = 512, .uncached = true},
                                     {.size = 512, .host_memory = true}};
  for (const hal::BufferDesc& desc : special) {
    get(device, desc);
    EXPECT_EQ(device.fake.descs.back(), desc);
  }
  EXPECT_EQ(device.fake.frees, 2) << "zero and no_cache are never kept";
  const int before = device.fake.allocations;
  get(device, {.size = 512, .uncached = true});
  get(device, {.size = 512, .host_memory = true});
  EXPECT_EQ(device.fake.allocations, before) << "the others are";
  get(device, {.size = 512, .uncached = true, .zero = true});
  EXPECT_EQ(device.fake.allocations, before + 1) << "zeroed memory never comes from the cache";
}

TEST(Allocator, FreeCacheGivesIdleMemoryBackButKeepsWhatLives) {
  FakeDevice device;
  const StoragePtr live = get(device, {.size = 4096});
  get(device, {.size = 3_MiB});
  get(device, {.size = 4096, .host_memory = true});
  EXPECT_GE(device.fake.bytes, Pool::kSmallChunk + 3_MiB);
  device.allocator().free_cache();
  EXPECT_EQ(device.fake.bytes, Pool::kSmallChunk);
  EXPECT_EQ(device.allocator().stats().cached, Pool::kSmallChunk - 4096);
}

TEST(Allocator, TrimStopsAtItsTarget) {
  FakeDevice device;
  {
    const StoragePtr a = get(device, {.size = 20_MiB}), b = get(device, {.size = 20_MiB}),
                     c = get(device, {.size = 20_MiB});
  }
  EXPECT_EQ(device.allocator().trim(45_MiB), 20_MiB);
  EXPECT_EQ(device.allocator().stats().reserved, 40_MiB);
}

TEST(Allocator, CachedBlocksOfOtherSizesMergeBeforeTheDeviceIsAsked) {
  FakeDevice device;
  {
    std::vector<StoragePtr> many;
    for (int i = 0; i < 8192; ++i) many.push_back(get(device, {.size = 256}));
  }
  EXPECT_EQ(device.fake.allocations, 1);
  const StoragePtr whole = get(device, {.size = 1_MiB}), other = get(device, {.size = 1_MiB});
  EXPECT_EQ(device.fake.allocations, 1);
  EXPECT_EQ(device.allocator().stats().used, 2_MiB);
}

TEST(Allocator, ReservesLittleMoreThanIsLiveOnMixedSizes) {
  // Upstream kept twelve times the live bytes on such a program: one cached block per size ever
  // seen.
  FakeDevice device;
  std::mt19937 random(5);
  std::vector<StoragePtr> live;
  for (int i = 0; i < 3000; ++i) {
    live.push_back(get(device, {.size = 1 + random() % 4_MiB}));
    if (live.size() > 30) live.erase(live.begin() + static_cast<long>(random() % live.size()));
  }
  const AllocatorStats stats = device.allocator().stats();
  EXPECT_LT(stats.peak_reserved, 2 * stats.peak_used);
}

TEST(Allocator, DropsTheCacheAndRetriesWhenTheDeviceRefuses) {
  FakeDevice device;
  get(device, {.size = 20_MiB});
  device.fake.capacity = 30_MiB;
  const Result<StoragePtr> larger = device.allocator().allocate({.size = 25_MiB});
  ASSERT_TRUE(larger) << larger.error().message;
  EXPECT_EQ(device.fake.bytes, 25_MiB);
  EXPECT_EQ(device.allocator().stats().reclaims, 1u);
}

TEST(Allocator, OneRefusalIsNotAnError) {
  FakeDevice device;
  device.fake.fail_allocation = 1;
  EXPECT_TRUE(device.allocator().allocate({.size = 20_MiB}));
}

TEST(Allocator, FallsBackToExactChunksNearTheLimit) {
  FakeDevice device;
  device.fake.capacity = 3_MiB;
  const Result<StoragePtr> storage = device.allocator().allocate({.size = 2_MiB});
  ASSERT_TRUE(storage) << storage.error().message;
  EXPECT_EQ(device.fake.bytes, 2_MiB);
}

TEST(Allocator, OutOfMemoryNamesTheNumbers) {
  FakeDevice device({.hard_cap = 64_MiB}, "FAKE:3");
  const StoragePtr live = get(device, {.size = 40_MiB});
  const Result<StoragePtr> refused = device.allocator().allocate({.size = 30_MiB});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kOutOfMemory);
  for (const char* part :
       {"FAKE:3", "31457280 bytes requested", "41943040 used", "0 cached", "cap 67108864"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos)
        << part << " in " << refused.error().message;
  EXPECT_EQ(live->size(), 40_MiB);
}

TEST(Allocator, PassesOtherDeviceErrorsOn) {
  FakeDevice device;
  device.fake.fail_allocation = 1;
  device.fake.failure = {Code::kDeviceLost, "gone"};
  EXPECT_EQ(device.allocator().allocate({.size = 64}).error().code, Code::kDeviceLost);
}

TEST(Allocator, TheHardCapIsNeverPassed) {
  FakeDevice device({.hard_cap = 10_MiB});
  std::mt19937 random(1);
  std::vector<StoragePtr> live;
  for (int i = 0; i < 500; ++i) {
    Result<StoragePtr> storage = device.allocator().allocate({.size = 1 + random() % 3_MiB});
    if (storage)
      live.push_back(std::move(*storage));
    else
      live.clear();
    ASSERT_LE(device.fake.bytes, 10_MiB);
  }
}

TEST(Allocator, TheSoftCapGivesIdleMemoryBackOnFree) {
  FakeDevice device({.soft_cap = 50_MiB});
  StoragePtr a = get(device, {.size = 40_MiB}), b = get(device, {.size = 40_MiB});
  EXPECT_EQ(device.fake.bytes, 80_MiB) << "live memory may pass it";
  a.reset();
  EXPECT_EQ(device.fake.bytes, 40_MiB);
  b.reset();
  EXPECT_EQ(device.fake.bytes, 40_MiB) << "below the cap idle memory stays";
}

TEST(Allocator, RefusesBuffersAboveMaxBufferSize) {
  FakeDevice device({.max_buffer_size = 1000});
  EXPECT_TRUE(device.allocator().allocate({.size = 1000}));
  const auto refused = device.allocator().allocate({.size = 1001});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("MAX_BUFFER_SIZE"), std::string::npos);
}

TEST(Allocator, RefusesSizesThatCannotBeRounded) {
  FakeDevice device;
  EXPECT_EQ(device.allocator().allocate({.size = UINT64_MAX}).error().code, Code::kInvalidArgument);
  device.fake.capacity = 1_GiB;
  EXPECT_EQ(device.allocator().allocate({.size = UINT64_MAX - 4095}).error().code,
            Code::kOutOfMemory);
}

TEST(Allocator, FreeingInFlightNeitherBlocksNorReuses) {
  FakeDevice device;
  device.fake.holds = true;
  Buffer buffer = *allocate(device, {.size = 4096});
  const hal::GpuVa va = buffer.va();
  device.use(buffer);
  buffer = {};
  EXPECT_EQ(device.clock.sleeps, 0u);
  EXPECT_EQ(device.allocator().stats().pending, 4096u);
  const StoragePtr other = get(device, {.size = 4096});
  EXPECT_NE(other->va(), va) << "the device may still write the old block";
  device.fake.run();
  EXPECT_EQ(get(device, {.size = 4096})->va(), va);
  EXPECT_EQ(device.allocator().stats().pending, 0u);
}

TEST(Allocator, WaitsForEveryTimelineThatUsesABlock) {
  FakeDevice device, other;
  device.fake.holds = other.fake.holds = true;
  Buffer buffer = *allocate(device, {.size = 4096});
  const hal::GpuVa va = buffer.va();
  buffer.storage->used_until(other.use(buffer));
  device.use(buffer);
  buffer = {};
  device.fake.run();
  EXPECT_NE(get(device, {.size = 4096})->va(), va);
  other.fake.run();
  EXPECT_EQ(device.allocator().stats().pending, 4096u);
  device.allocator().collect();
  EXPECT_EQ(device.allocator().stats().pending, 0u);
}

TEST(Allocator, OnOutOfMemoryWaitsForPendingFrees) {
  FakeDevice device({.hard_cap = 64_MiB});
  device.fake.holds = true;
  Buffer buffer = *allocate(device, {.size = 40_MiB});
  device.use(buffer);
  buffer = {};
  const Result<StoragePtr> next = device.allocator().allocate({.size = 50_MiB});
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_GT(device.clock.sleeps, 0u) << "the device only ran because someone waited";
  EXPECT_EQ(device.fake.bytes, 50_MiB);
}

TEST(Allocator, OnOutOfMemoryAPoisonedTimelineGivesItsFirstCause) {
  FakeDevice device({.hard_cap = 64_MiB});
  device.fake.holds = true;
  Buffer buffer = *allocate(device, {.size = 40_MiB});
  device.use(buffer);
  buffer = {};
  device.stream().timeline().poison({Code::kDeviceFault, "page fault"});
  const Result<StoragePtr> next = device.allocator().allocate({.size = 50_MiB});
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code, Code::kDeviceFault);
  EXPECT_NE(next.error().message.find("page fault"), std::string::npos);
}

TEST(Allocator, InStreamOrderABlockIsReusedEarlyAndInheritsItsPoint) {
  FakeHal hal;
  hal.holds = true;
  FakeDevice owner;
  FakeStream stream(hal, 64, nullptr);
  Allocator allocator(hal, owner, {.in_order = &stream.timeline()});
  StoragePtr first = *allocator.allocate({.size = 4096});
  const hal::GpuVa va = first->va();
  const Point point = *stream.submit(hal::QueueKind::kCompute, {});
  first->used_until(point);
  first.reset();
  const StoragePtr second = *allocator.allocate({.size = 4096});
  EXPECT_EQ(second->va(), va);
  EXPECT_EQ(second->last_use().timeline, point.timeline);
  EXPECT_EQ(second->last_use().value, point.value) << "the host must still wait before touching it";
  // A block like that is not merged or given back while it is in flight.
  const_cast<StoragePtr&>(second).reset();
  allocator.free_cache();
  EXPECT_EQ(allocator.stats().pending, 4096u);
  hal.run();
  allocator.free_cache();
  EXPECT_EQ(allocator.stats().reserved, 0u);
}

TEST(Allocator, WrapReleasesOnceAfterTheLastUse) {
  FakeDevice device;
  device.fake.holds = true;
  std::array<std::byte, 100> memory{};
  int released = 0;
  Buffer buffer = *wrap(device, memory.data(), memory.size(), [&] { ++released; });
  EXPECT_EQ(buffer.host(), memory.data());
  EXPECT_EQ(buffer.size, 100u);
  EXPECT_EQ(device.allocator().stats().used, 0u) << "not our memory, not counted";
  device.use(buffer);
  buffer = {};
  device.allocator().collect();
  EXPECT_EQ(released, 0);
  device.fake.run();
  device.allocator().collect();
  EXPECT_EQ(released, 1);
  EXPECT_TRUE(wrap(device, memory.data(), 10, {}));
  EXPECT_FALSE(wrap(device, nullptr, 10, {}));
}

TEST(Allocator, AReleaseHookMayUseTheAllocator) {
  FakeDevice device;
  std::array<std::byte, 16> memory{};
  bool called = false;
  Buffer buffer = *wrap(device, memory.data(), memory.size(),
                        [&] { called = device.allocator().allocate({.size = 256}).has_value(); });
  buffer = {};
  EXPECT_TRUE(called);
}

TEST(Allocator, StoragesMayOutliveIt) {
  StoragePtr survivor, wrapped;
  int released = 0;
  std::byte memory{};
  {
    FakeDevice device;
    survivor = get(device, {.size = 4096});
    survivor->used_until(*device.stream().submit(hal::QueueKind::kCompute, {}));
    wrapped = *device.allocator().wrap({.size = 1, .external = &memory}, [&] { ++released; });
  }
  EXPECT_EQ(survivor->size(), 4096u);
  survivor.reset();
  wrapped.reset();
  EXPECT_EQ(released, 1);
}

TEST(Allocator, SnapshotTilesEveryChunk) {
  FakeDevice device;
  device.fake.holds = true;
  const StoragePtr used = get(device, {.size = 1024});
  get(device, {.size = 512});
  Buffer pending = *allocate(device, {.size = 768});
  device.use(pending);
  pending = {};
  const StoragePtr dedicated = get(device, {.size = 4096, .host_memory = true});
  uint64_t bytes[4] = {};
  for (const BlockInfo& block : device.allocator().snapshot())
    bytes[static_cast<size_t>(block.state)] += block.size;
  const AllocatorStats stats = device.allocator().stats();
  EXPECT_EQ(bytes[0], 1024u + 4096u);
  EXPECT_EQ(bytes[0], stats.used);
  EXPECT_EQ(bytes[1], 768u);
  EXPECT_EQ(bytes[2], 512u);
  EXPECT_EQ(bytes[0] + bytes[1] + bytes[2] + bytes[3], stats.reserved);
  EXPECT_EQ(stats.cached, stats.reserved - 1024 - 4096 - 768);
}

TEST(Allocator, CountsUseAndPeak) {
  FakeDevice device;
  StoragePtr a = get(device, {.size = 1024});
  { const StoragePtr b = get(device, {.size = 2048}); }
  const AllocatorStats stats = device.allocator().stats();
  EXPECT_EQ(stats.used, 1024u);
  EXPECT_EQ(stats.peak_used, 3072u);
  EXPECT_EQ(stats.live, 1u);
  EXPECT_EQ(stats.allocations, 2u);
  EXPECT_EQ(stats.reserved, Pool::kSmallChunk);
  EXPECT_EQ(stats.fragmentation, 0.0);
}

TEST(Allocator, ManyThreadsNeverShareABlock) {
  FakeDevice device({.hard_cap = 256_MiB});
  device.fake.plain_is_visible = true;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&device, t] {
      std::mt19937 random(t);
      std::vector<StoragePtr> live;
      const auto mark = static_cast<std::byte>(t + 1);
      for (int i = 0; i < 2000; ++i) {
        StoragePtr storage = get(device, {.size = 1 + random() % 3000});
        if (random() % 8 == 0)
          storage->used_until(*device.stream().submit(hal::QueueKind::kCompute, {}));
        std::fill_n(storage->host(), storage->size(), mark);
        live.push_back(std::move(storage));
        if (live.size() < 20) continue;
        const size_t victim = random() % live.size();
        const std::span<std::byte> bytes(live[victim]->host(), live[victim]->size());
        ASSERT_TRUE(
            std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == mark; }));
        live.erase(live.begin() + static_cast<long>(victim));
        if (i % 500 == 0) device.allocator().free_cache();
      }
    });
  for (std::thread& thread : threads) thread.join();
  device.allocator().collect();
  EXPECT_EQ(device.allocator().stats().used, 0u);
  EXPECT_EQ(device.allocator().stats().pending, 0u);
}

TEST(Allocator, ReservesAtMostHalfMoreThanIsLive) {
  using Sizes = std::function<uint64_t(std::mt19937&)>;
  const std::vector<std::pair<const char*, Sizes>> kinds = {
      {"1.1 MiB", [](std::mt19937&) { return 1_MiB + 102'400; }},
      {"3 MiB", [](std::mt19937&) { return 3_MiB; }},
      {"11 MiB", [](std::mt19937&) { return 11_MiB; }},
      {"17 MiB", [](std::mt19937&) { return 17_MiB; }},
      {"33 MiB", [](std::mt19937&) { return 33_MiB; }},
      {"0.7 MiB", [](std::mt19937&) { return uint64_t{716'800}; }},
      {"up to 16 MiB", [](std::mt19937& r) { return 1 + r() % 16_MiB; }},
      {"up to 4 MiB", [](std::mt19937& r) { return 1 + r() % 4_MiB; }},
      {"powers of two", [](std::mt19937& r) { return uint64_t{4096} << (r() % 13); }}};
  for (const auto& [name, size] : kinds)
    for (uint32_t seed = 0; seed < 4; ++seed) {
      FakeDevice device;
      std::mt19937 random(seed);
      std::vector<StoragePtr> live;
      const auto ratio = [&] {
        const AllocatorStats stats = device.allocator().stats();
        return static_cast<double>(stats.reserved) / static_cast<double>(stats.used);
      };
      const auto grow_to = [&](uint64_t bytes) {
        while (device.allocator().stats().used < bytes)
          live.push_back(get(device, {.size = size(random)}));
      };
      grow_to(64_MiB);
      EXPECT_LE(ratio(), 1.5) << name << ", seed " << seed;
      // Sizes that change from step to step must not pile up idle chunks.
      for (int step = 0; step < 20; ++step) {
        std::shuffle(live.begin(), live.end(), random);
        live.resize(live.size() / 2);
        grow_to(64_MiB);
      }
      EXPECT_LE(ratio(), 2.0) << name << ", seed " << seed << ", after churn";
    }
}

TEST(Allocator, SizesThatAlternateDoNotAskTheDeviceEachTime) {
  FakeDevice device;
  const auto step = [&] {
    get(device, {.size = 5_MiB});
    get(device, {.size = 7_MiB});
  };
  for (int i = 0; i < 3; ++i) step();
  const int before = device.fake.allocations;
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(device.fake.allocations, before);
}

TEST(Pool, RejectsBlocksThatAreNotLive) {
  FakeHal hal;
  Pool pool, other;
  const Block block = pool.take_from(*hal.allocate({.size = Pool::kSmallChunk}), 512);
  const Block foreign = other.take_from(*hal.allocate({.size = Pool::kSmallChunk}), 512);
  EXPECT_EQ(pool.give_back(foreign).error().code, Code::kInvalidArgument);
  ASSERT_TRUE(pool.give_back(block));
  EXPECT_EQ(pool.give_back(block).error().code, Code::kInvalidArgument);
}

TEST(Pool, KeepsSmallBlocksOutOfLargeChunks) {
  FakeHal hal;
  Pool pool;
  const Block large = pool.take_from(*hal.allocate({.size = Pool::kLargeChunk}), 2_MiB);
  EXPECT_FALSE(pool.take(4096)) << "one small block must not pin 32 MiB";
  EXPECT_TRUE(pool.take(3_MiB));
  EXPECT_EQ(large.chunk->ranges->stats().allocations, 2u);
}

}  // namespace
}  // namespace bm::runtime::test
