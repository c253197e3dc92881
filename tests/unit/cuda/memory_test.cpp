// Kinds of memory and what may be done with each.

#include <algorithm>

#include "tests/unit/cuda/rig.h"

namespace bm::cuda {
namespace {

using namespace test;
using hal::ExternalKind;

constexpr uint64_t kCount = 512, kBytes = kCount * 8;

struct CudaMemory : testing::Test {
  std::shared_ptr<Api> api = usual_api();
  std::unique_ptr<hal::Device> device = open_on(api);
};

/// One place to copy from or to; `memory` where nobody registered it.
struct Spot {
  const char* name;
  std::unique_ptr<hal::Buffer> buffer;
  std::vector<uint64_t> memory;
  hal::GpuVa va() const { return buffer ? buffer->va() : va_of(memory.data()); }
};

std::vector<Spot> spots(hal::Device& device) {
  std::vector<Spot> all(4);
  all[0] = {"video", allocate(device, {.size = kBytes}), {}};
  all[1] = {"visible", allocate(device, {.size = kBytes, .host_visible = true}), {}};
  all[2] = {"wrapped", nullptr, std::vector<uint64_t>(kCount)};
  all[2].buffer = allocate(device, {.size = kBytes, .external = all[2].memory.data()});
  all[3] = {"foreign", nullptr, std::vector<uint64_t>(kCount)};
  return all;
}

TEST_F(CudaMemory, CopiesBetweenAllKinds) {
  const auto sources = spots(*device), targets = spots(*device);
  const auto in = allocate(*device, {.size = kBytes, .host_visible = true}),
             out = allocate(*device, {.size = kBytes, .host_visible = true});
  uint64_t first = 1000;
  for (const Spot& source : sources) {
    for (const Spot& target : targets) {
      first += kCount;
      for (uint64_t i = 0; i < kCount; ++i) word(*in, i) = first + i;
      EXPECT_OK(run(*device, {hal::Copy{source.va(), in->va(), kBytes},
                              hal::Copy{hal::offset(target.va(), 8), source.va(), kBytes - 8},
                              hal::Copy{out->va(), target.va(), kBytes}}));
      bool is_right = true;
      for (uint64_t i = 1; i < kCount; ++i) is_right &= word(*out, i) == first + i - 1;
      EXPECT_TRUE(is_right) << source.name << " to " << target.name;
    }
  }
}

TEST_F(CudaMemory, SmallBuffersShareAllocationsOfTheDriver) {
  std::vector<std::unique_ptr<hal::Buffer>> buffers;
  for (int i = 0; i < 1000; ++i) buffers.push_back(allocate(*device, {.size = 1000}));
  EXPECT_EQ(fake().count("cuMemAlloc"), 1);
  std::vector<uint64_t> addresses;
  for (const auto& buffer : buffers) {
    EXPECT_EQ(address(*buffer) % 256, 0u);
    addresses.push_back(address(*buffer));
  }
  std::sort(addresses.begin(), addresses.end());
  for (size_t i = 1; i < addresses.size(); ++i) EXPECT_GE(addresses[i] - addresses[i - 1], 1000u);
  EXPECT_EQ(device->memory().used, 1'000'000u);
  buffers.clear();
  EXPECT_EQ(device->memory().used, 0u);
  const int frees = fake().count("cuMemFree");
  EXPECT_EQ(frees, 0) << "freeing makes the GPU pause, so one empty slab stays";
}

TEST_F(CudaMemory, OutOfMemoryIsTypedHasTheNumbersAndHurtsNobody) {
  fake().memory_limit = 64 << 20;
  device = nullptr;
  device = open_on(api);
  const auto small = allocate(*device, {.size = 1000});  // takes a slab of 32 MiB
  const auto refused = device->allocate({.size = 40 << 20});
  EXPECT_REFUSED(Code::kOutOfMemory, refused);
  EXPECT_NE(refused.error().message.find("41943040 bytes of video memory requested"),
            std::string::npos)
      << refused.error().message;
  EXPECT_OK(device->status());
  EXPECT_REFUSED(Code::kOutOfMemory, device->allocate({.size = 65 << 20}));
  EXPECT_REFUSED(Code::kOutOfMemory,
                 device->allocate({.size = uint64_t{1} << 60, .host_visible = true}));
  EXPECT_TRUE(device->allocate({.size = 20 << 20}));
}

TEST_F(CudaMemory, EmptySlabsMakeRoomForBigBuffers) {
  fake().memory_limit = 64 << 20;
  device = nullptr;
  device = open_on(api);
  allocate(*device, {.size = 1000});
  EXPECT_TRUE(device->allocate({.size = 40 << 20}));
}

TEST_F(CudaMemory, WithoutRoomForASlabTheDriverIsAskedForExactlyWhatIsNeeded) {
  fake().memory_limit = 16 << 20;
  device = nullptr;
  device = open_on(api);
  EXPECT_TRUE(device->allocate({.size = 1 << 20}));
}

TEST_F(CudaMemory, ZeroMeansZeroAlsoInUsedMemory) {
  const auto out = allocate(*device, {.size = 4096, .host_visible = true});
  for (int round = 0; round < 2; ++round) {
    const auto video = allocate(*device, {.size = 4096, .zero = true});
    EXPECT_OK(run(*device, {hal::Copy{out->va(), video->va(), 4096}}));
    EXPECT_TRUE(std::all_of(out->host(), out->host() + 4096,
                            [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(out->host(), 4096, std::byte{0xee});
    EXPECT_OK(run(*device, {hal::Copy{video->va(), out->va(), 4096}}));
    api->cuMemsetD8Async = nullptr;  // the second round does without
  }
}

TEST_F(CudaMemory, HostMemoryIsRegisteredOnceAndGivenBackWithItsLastBuffer) {
  std::vector<uint64_t> mine(kCount, 7);
  auto whole = allocate(*device, {.size = kBytes, .external = mine.data()});
  auto part = allocate(*device, {.size = 64, .external = &mine[8]});
  EXPECT_EQ(fake().count("cuMemHostRegister"), 1);
  whole = nullptr;
  EXPECT_EQ(fake().count("cuMemHostUnregister"), 0) << "the part still needs it";
  part = nullptr;
  EXPECT_EQ(fake().count("cuMemHostUnregister"), 1);
  EXPECT_EQ(mine[0], 7u);
}

TEST_F(CudaMemory, MemorySomebodyElseRegisteredStaysTheirs) {
  std::vector<uint64_t> mine(kCount, 7);
  EXPECT_EQ(api->cuMemHostRegister(mine.data(), kBytes, 0), kSuccess);
  allocate(*device, {.size = kBytes, .external = mine.data()});
  EXPECT_EQ(fake().count("cuMemHostUnregister"), 0);
}

/// Memory of another framework in the same process.
struct Theirs {
  Theirs(const Api& the_api, size_t bytes) : api(the_api) { api.cuMemAlloc(&va, bytes); }
  ~Theirs() { api.cuMemFree(va); }
  void* pointer() const { return reinterpret_cast<void*>(va); }
  FakeMemory& facts() const { return fake().memory.at(va); }
  const Api& api;
  CuDevicePtr va = 0;
};

TEST_F(CudaMemory, AnotherFrameworksPointerIsUsedInPlaceAndNeverFreed) {
  const Theirs theirs(*api, kBytes);
  const auto add = load(*device, code("add", 1, 2));
  const auto in = words(*device, {1, 2, 3});
  const int allocations = fake().count("cuMemAlloc");
  {
    const auto wrapped = allocate(*device, {.size = 24,
                                            .external = reinterpret_cast<void*>(theirs.va + 8),
                                            .external_kind = ExternalKind::kCudaPointer});
    ASSERT_TRUE(wrapped);
    EXPECT_EQ(address(*wrapped), theirs.va + 8) << "no copy";
    EXPECT_EQ(wrapped->host(), nullptr);
    const auto args = words(*device, {address(*wrapped), 3, 40});
    EXPECT_OK(run(*device, {hal::Copy{wrapped->va(), in->va(), 24},
                            hal::Dispatch{add.get(), args->va(), {}}}));
  }
  EXPECT_EQ(fake().count("cuMemFree"), 0);
  EXPECT_EQ(fake().count("cuMemAlloc"), allocations);
  const auto* values = reinterpret_cast<uint64_t*>(theirs.va);
  EXPECT_EQ(values[1], 41u);
  EXPECT_EQ(values[3], 43u);
}

TEST_F(CudaMemory, PointersThatAreNotWhatTheyAreSaidToBeAreRefused) {
  Theirs theirs(*api, kBytes);
  std::vector<uint64_t> host(4);
  const auto pinned = words(*device);
  const auto wrap = [&](void* pointer, uint64_t bytes, ExternalKind kind) {
    return device->allocate({.size = bytes, .external = pointer, .external_kind = kind});
  };
  const auto cuda = ExternalKind::kCudaPointer;
  EXPECT_REFUSED(Code::kInvalidArgument, wrap(host.data(), 8, cuda));
  EXPECT_REFUSED(Code::kInvalidArgument, wrap(pinned->host(), 8, cuda));
  EXPECT_REFUSED(Code::kInvalidArgument, wrap(theirs.pointer(), kBytes + 1, cuda));
  const auto as_host = wrap(theirs.pointer(), 8, ExternalKind::kHostPointer);
  EXPECT_REFUSED(Code::kInvalidArgument, as_host);
  EXPECT_NE(as_host.error().message.find("kCudaPointer"), std::string::npos);
  EXPECT_REFUSED(Code::kUnsupported, wrap(theirs.pointer(), 8, ExternalKind::kClMem));
  EXPECT_TRUE(wrap(theirs.pointer(), kBytes, cuda));
  theirs.facts().context = 77;
  const auto of_context = wrap(theirs.pointer(), 8, cuda);
  EXPECT_REFUSED(Code::kUnsupported, of_context);
  EXPECT_NE(of_context.error().message.find("primary context"), std::string::npos);
  theirs.facts().context = 0;
  EXPECT_TRUE(wrap(theirs.pointer(), 8, cuda)) << "of a pool";
  theirs.facts().device = 1;
  EXPECT_REFUSED(Code::kInvalidArgument, wrap(theirs.pointer(), 8, cuda));
  EXPECT_OK(device->status());
}

TEST_F(CudaMemory, PeersAreEnabledOnceAndCopiedBetween) {
  const auto other = open_on(api, 1);
  const auto theirs = allocate(*other, {.size = 64, .zero = true}),
             more = allocate(*other, {.size = 64});
  const auto mine = words(*device, {5});
  const auto va = device->map(*theirs);
  ASSERT_TRUE(va) << va.error().message;
  EXPECT_TRUE(device->map(*more));
  EXPECT_EQ(fake().count("cuCtxEnablePeerAccess"), 1);
  EXPECT_OK(run(*device, {hal::Copy{*va, mine->va(), 8}, hal::Copy{at(*mine, 1), *va, 8}}));
  EXPECT_EQ(word(*mine, 1), 5u);
}

TEST_F(CudaMemory, RefusedPeersDegradeInsteadOfFailing) {
  fake().peers_may = false;
  const auto other = open_on(api, 1);
  const auto theirs = allocate(*other, {.size = 64});
  const auto refused = device->map(*theirs);
  EXPECT_REFUSED(Code::kUnsupported, refused);
  EXPECT_OK(device->status());
  const auto signal = words(*other);
  EXPECT_TRUE(device->map(*signal)) << "pinned memory is portable";
}

TEST_F(CudaMemory, FreeingNeverWaitsForAQueueThatStands) {
  // The driver's free waits for all work, so it must not be called now.
  const auto signals = words(*device);
  auto big = allocate(*device, {.size = 48 << 20});
  auto add = load(*device, code("add", 1, 2));
  EXPECT_OK(device->queue(hal::QueueKind::kCompute).submit(Commands{hal::Wait{signals->va(), 1}}));
  big = nullptr;
  add = nullptr;
  EXPECT_EQ(fake().count("cuMemFree"), 0);
  EXPECT_EQ(fake().count("cuModuleUnload"), 0);
  EXPECT_EQ(device->memory().used, 0u);
  word(*signals) = 1;
  EXPECT_OK(run(*device, {}));
  allocate(*device, {.size = 48 << 20});  // freed at once, and the other with it
  EXPECT_EQ(fake().count("cuMemFree"), 2);
  EXPECT_EQ(fake().count("cuModuleUnload"), 1);
}

TEST_F(CudaMemory, WhatWasFreedWhileTheGpuWasBusyIsThereForTheNextBuffer) {
  fake().memory_limit = 64 << 20;
  device = nullptr;
  device = open_on(api);
  const auto signals = words(*device);
  auto big = allocate(*device, {.size = 48 << 20});
  EXPECT_OK(device->queue(hal::QueueKind::kCompute).submit(Commands{hal::Wait{signals->va(), 1}}));
  big = nullptr;
  EXPECT_REFUSED(Code::kOutOfMemory, device->allocate({.size = 48 << 20}));
  word(*signals) = 1;
  EXPECT_TRUE(device->allocate({.size = 48 << 20}));
}

TEST_F(CudaMemory, BuffersMayOutliveTheirDevice) {
  auto buffer = allocate(*device, {.size = 64});
  device = nullptr;
  EXPECT_EQ(fake().contexts, 1);
  buffer = nullptr;
  EXPECT_EQ(fake().contexts, 0);
  EXPECT_EQ(fake().allocated, 0u);
  EXPECT_TRUE(fake().streams.empty());
}

}  // namespace
}  // namespace bm::cuda
