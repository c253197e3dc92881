// Order, words, faults. Each test runs with streams that wait for words themselves and without.

#include <cstring>
#include <utility>

#include "tests/unit/cuda/rig.h"

namespace bm::cuda {
namespace {

using namespace test;
using hal::QueueKind;

class CudaQueueTest : public testing::TestWithParam<bool> {
 protected:
  CudaQueueTest() : api(usual_api(GetParam())), device(open_on(api)) {}
  hal::Queue& queue(QueueKind kind = QueueKind::kCompute) { return device->queue(kind); }
  std::shared_ptr<Api> api;
  std::unique_ptr<hal::Device> device;
};
INSTANTIATE_TEST_SUITE_P(, CudaQueueTest, testing::Bool(), [](const auto& mode) {
  return mode.param ? "StreamsDoWords" : "HostDoesWords";
});

TEST_P(CudaQueueTest, KernelsRunInOrderWithTheirArguments) {
  const auto add = load(*device, code("add", 1, 2));
  const auto x = words(*device, {1, 2});
  const auto args = words(*device, {address(*x), 2, 10});
  EXPECT_OK(
      run(*device, {hal::Dispatch{add.get(), args->va(), {}}, hal::Copy{at(*x, 2), at(*x, 0), 8},
                    hal::Dispatch{add.get(), args->va(), {}}}));
  EXPECT_EQ(word(*x, 0), 21u);
  EXPECT_EQ(word(*x, 1), 22u);
  EXPECT_EQ(word(*x, 2), 11u) << "between the two";
}

TEST_P(CudaQueueTest, WaitHoldsTheQueueUntilTheHostSignals) {
  const auto signals = words(*device), x = words(*device, {1});
  EXPECT_OK(
      queue().submit(Commands{hal::Wait{at(*signals, 0), 1}, hal::Copy{at(*x, 1), at(*x, 0), 8},
                              hal::Signal{at(*signals, 1), 1}}));
  for (int i = 0; i < 100; ++i) EXPECT_OK(device->status());
  EXPECT_EQ(word(*signals, 1), 0u);
  word(*x, 0) = 2;  // late, but before the signal
  word(*signals, 0) = 1;
  EXPECT_OK(wait_for(*device, word(*signals, 1), 1));
  EXPECT_EQ(word(*x, 1), 2u);
}

TEST_P(CudaQueueTest, QueuesWaitForEachOther) {
  const auto signals = words(*device), x = words(*device, {5});
  EXPECT_OK(queue(QueueKind::kCopy)
                .submit(Commands{hal::Wait{at(*signals, 1), 7}, hal::Copy{at(*x, 2), at(*x, 1), 8},
                                 hal::Signal{at(*signals, 2), 1}}));
  EXPECT_OK(
      queue().submit(Commands{hal::Wait{at(*signals, 0), 1}, hal::Copy{at(*x, 1), at(*x, 0), 8},
                              hal::Signal{at(*signals, 1), 7}}));
  word(*signals, 0) = 1;
  EXPECT_OK(wait_for(*device, word(*signals, 2), 1));
  EXPECT_EQ(word(*x, 2), 5u);
}

TEST_P(CudaQueueTest, WordsOnlyTheHostSeesAreWaitedForAndSignalled) {
  // Neither registered nor allocated by CUDA: another device's signals.
  std::vector<uint64_t> theirs(4);
  const auto ours = words(*device, {3});
  EXPECT_OK(queue().submit(
      Commands{hal::Wait{va_of(&theirs[0]), 4}, hal::Copy{at(*ours, 1), at(*ours, 0), 8},
               hal::Signal{va_of(&theirs[1]), 9}, hal::Signal{at(*ours, 2), 1}}));
  for (int i = 0; i < 100; ++i) EXPECT_OK(device->status());
  EXPECT_EQ(word(*ours, 1), 0u);
  std::atomic_ref(theirs[0]).store(4);
  EXPECT_OK(wait_for(*device, word(*ours, 2), 1));
  EXPECT_EQ(theirs[1], 9u) << "signals are not overtaken";
  EXPECT_EQ(word(*ours, 1), 3u);
}

TEST_P(CudaQueueTest, HostMemoryTheGpuDoesNotReachIsCopiedInOrder) {
  std::vector<uint64_t> theirs = {1, 2, 3};
  const auto x = allocate(*device, {.size = 64, .zero = true});
  const auto add = load(*device, code("add", 1, 2));
  const auto args = words(*device, {address(*x), 3, 10});
  EXPECT_OK(run(*device, {hal::Copy{x->va(), va_of(theirs.data()), 24},
                          hal::Dispatch{add.get(), args->va(), {}},
                          hal::Copy{va_of(theirs.data()), x->va(), 24}}));
  EXPECT_EQ(theirs, (std::vector<uint64_t>{11, 12, 13}));
}

TEST_P(CudaQueueTest, WriteSetsBothHalves) {
  const auto x = words(*device);
  const auto video = allocate(*device, {.size = 8});
  constexpr uint64_t kBig = 0x0123456789abcdef;
  EXPECT_OK(run(*device, {hal::Write{at(*x, 1), kBig}, hal::Write{video->va(), kBig + 1},
                          hal::Copy{at(*x, 2), video->va(), 8}}));
  EXPECT_EQ(word(*x, 1), kBig);
  EXPECT_EQ(word(*x, 2), kBig + 1);
  EXPECT_EQ(word(*x, 0), 0u);
}

TEST_P(CudaQueueTest, TimestampsAreOnTheHostsClockAndVisibleWithTheNextSignal) {
  const auto x = words(*device);
  const auto now = [] {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
  };
  const uint64_t before = now();
  EXPECT_OK(run(*device, {hal::Timestamp{at(*x, 0)}, hal::Timestamp{at(*x, 1)}}));
  EXPECT_OK(run(*device, {hal::Timestamp{at(*x, 2)}}));
  const uint64_t after = now();
  constexpr uint64_t kSlack = 1'000'000;
  EXPECT_GE(word(*x, 0) + kSlack, before);
  EXPECT_LE(word(*x, 0), word(*x, 1));
  EXPECT_LE(word(*x, 1), word(*x, 2));
  EXPECT_LE(word(*x, 2), after + kSlack);
}

TEST_P(CudaQueueTest, ManySubmissionsBehindAHeldOneDoNotBlock) {
  const auto signals = words(*device);
  EXPECT_OK(queue().submit(Commands{hal::Wait{at(*signals, 0), 1}}));
  constexpr uint64_t kCount = 800;
  for (uint64_t i = 1; i <= kCount; ++i)
    EXPECT_OK(queue().submit(Commands{hal::Signal{at(*signals, 1), i}}));
  EXPECT_EQ(word(*signals, 1), 0u);
  word(*signals, 0) = 1;
  EXPECT_OK(wait_for(*device, word(*signals, 1), kCount));
}

TEST_P(CudaQueueTest, ATooLongQueueIsRefusedInTimeAndGoesOnAfterwards) {
  const ScopedSetting patience("BM_WAIT_TIMEOUT_MS", "200");
  device = nullptr;
  device = open_on(api);
  const auto signals = words(*device);
  const auto add = load(*device, code("add", 1, 2));
  const auto args = words(*device, {address(*signals), 0, 0});
  EXPECT_OK(queue().submit(Commands{hal::Wait{at(*signals, 0), 1}}));
  Status status;
  for (int i = 0; i < 10'000 && status; ++i)
    status = queue().submit(Commands{hal::Dispatch{add.get(), args->va(), {}}});
  EXPECT_REFUSED(Code::kTimeout, status);
  word(*signals, 0) = 1;
  const Status after = queue().submit(Commands{hal::Signal{at(*signals, 1), 1}});
  // Where the host looks at words, patience with the first one has ended, too: nothing runs any
  // more.
  if (after || GetParam()) {
    EXPECT_OK(after);
    EXPECT_OK(wait_for(*device, word(*signals, 1), 1));
  }
}

TEST_P(CudaQueueTest, AWaitForAForeignWordThatNeverComesIsTheDevicesFirstFault) {
  const ScopedSetting patience("BM_WAIT_TIMEOUT_MS", "100");
  device = nullptr;
  device = open_on(api);
  std::vector<uint64_t> theirs(1);
  const auto ours = words(*device);
  EXPECT_OK(
      queue().submit(Commands{hal::Wait{va_of(theirs.data()), 1}, hal::Signal{ours->va(), 1}}));
  const Status status = wait_for(*device, word(*ours), 1);
  EXPECT_REFUSED(Code::kTimeout, status);
  EXPECT_REFUSED(Code::kTimeout, queue().submit({}));
}

TEST_P(CudaQueueTest, AFaultIsStickyAndSaysWhatToDo) {
  auto crash = load(*device, code("crash", 0, 0));
  auto x = words(*device);
  const Status first = run(*device, {hal::Dispatch{crash.get(), {}, {}}});
  EXPECT_REFUSED(Code::kDeviceFault, first);
  EXPECT_NE(first.error().message.find("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), std::string::npos);
  EXPECT_NE(first.error().message.find("compute-sanitizer"), std::string::npos);
  fake().fault = 719;  // whatever the driver says later
  const Status later = queue().submit(Commands{hal::Signal{x->va(), 1}});
  EXPECT_REFUSED(Code::kDeviceFault, later);
  EXPECT_EQ(later.error().message, first.error().message);
  EXPECT_REFUSED(Code::kDeviceFault, device->status());
  EXPECT_REFUSED(Code::kDeviceFault, device->allocate({.size = 8}));
  crash = nullptr;
  x = nullptr;
  device = nullptr;
  EXPECT_EQ(fake().contexts, 0) << "given back, so that the GPU can be opened again";
}

TEST_P(CudaQueueTest, AGridBeyondTheLimitsIsRefusedBeforeAnythingRuns) {
  const auto add = load(*device, code("add", 1, 2));
  const auto x = words(*device, {1});
  const auto args = words(*device, {address(*x), 1, 1});
  const Status status =
      queue().submit(Commands{hal::Dispatch{add.get(), args->va(), {}},
                              hal::Dispatch{add.get(), args->va(), {1, 65536, 1}}});
  EXPECT_REFUSED(Code::kInvalidArgument, status);
  EXPECT_NE(status.error().message.find("65536 blocks along y, at most 65535"), std::string::npos);
  EXPECT_EQ(word(*x, 0), 1u);
  EXPECT_EQ(fake().count("cuLaunchKernel"), 0);
}

hal::CodeObject with_text(hal::CodeObject object, std::string_view body) {
  const std::string text = fmt::format(
      ".version 8.0\n.target sm_90\n.visible .entry add_more() {{ griddepcontrol.wait; ret; }}\n"
      ".visible .entry add() {{\n{}\nret;\n}}\n.func after() {{ griddepcontrol.wait; ret; }}\n",
      body);
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  object.image.assign(bytes, bytes + text.size());
  return object;
}

TEST_P(CudaQueueTest, KernelsThatWaitForTheGridBeforeThemStartEarly) {
  const auto x = words(*device, {1});
  const auto args = words(*device, {address(*x), 1, 1});
  const auto early_starts = [&](std::string_view body) {
    const auto program = load(*device, with_text(code("add", 1, 2), body));
    const int before = fake().count("early start"), plain = fake().count("cuLaunchKernel");
    EXPECT_OK(run(*device, {hal::Dispatch{program.get(), args->va(), {}}}));
    const int early = fake().count("early start") - before;
    EXPECT_EQ(early + fake().count("cuLaunchKernel") - plain, 1);
    return early;
  };
  EXPECT_EQ(early_starts("griddepcontrol.wait;"), 1);
  EXPECT_EQ(early_starts("/* one */ griddepcontrol.wait; // two"), 1);
  EXPECT_EQ(early_starts(""), 0) << "others' waits are not its own";
  EXPECT_EQ(early_starts("// griddepcontrol.wait;"), 0);
  EXPECT_EQ(early_starts("/* griddepcontrol.wait;\n */"), 0);
  EXPECT_EQ(early_starts("griddepcontrol.launch_dependents;"), 0);
  EXPECT_EQ(word(*x, 0), 7u);
}

TEST_P(CudaQueueTest, NoKernelStartsEarlyWhereTheDriverCannot) {
  const auto x = words(*device, {1});
  const auto args = words(*device, {address(*x), 1, 1});
  const hal::CodeObject object = with_text(code("add", 1, 2), "griddepcontrol.wait;");
  const auto runs_plainly = [&](hal::Device& on, const hal::CodeObject& made) {
    const auto program = load(on, made);
    const int before = fake().count("cuLaunchKernel");
    EXPECT_OK(run(on, {hal::Dispatch{program.get(), args->va(), {}}}));
    return fake().count("cuLaunchKernel") - before == 1;
  };
  api->cuLaunchKernelEx = nullptr;
  EXPECT_TRUE(runs_plainly(*device, object)) << "a driver from before CUDA 11.8";
  device = nullptr;
  api = usual_api(GetParam());
  fake().attributes[kCapabilityMajor] = 8;
  device = open_on(api);
  hal::CodeObject older = object;
  older.arch = "sm_80";
  const auto y = words(*device, {1});
  const auto its_args = words(*device, {address(*y), 1, 1});
  const auto program = load(*device, older);
  EXPECT_OK(run(*device, {hal::Dispatch{program.get(), its_args->va(), {}}}));
  EXPECT_EQ(fake().count("cuLaunchKernelEx"), 0) << "a GPU from before Hopper";
}

TEST_P(CudaQueueTest, MalformedCommandsAreRefused) {
  const auto x = words(*device);
  EXPECT_REFUSED(Code::kInvalidArgument, queue().submit(Commands{hal::Signal{hal::GpuVa{}, 1}}));
  EXPECT_REFUSED(Code::kInvalidArgument,
                 queue().submit(Commands{hal::Wait{hal::offset(x->va(), 4), 1}}));
  EXPECT_REFUSED(Code::kInvalidArgument,
                 queue().submit(Commands{hal::Copy{x->va(), at(*x, 60), 64}}));
  EXPECT_REFUSED(Code::kInvalidArgument, queue().submit(Commands{hal::Dispatch{nullptr, {}, {}}}));
}

TEST_P(CudaQueueTest, ADeviceThatIsStuckIsLeftAloneAtItsEnd) {
  const ScopedSetting patience("BM_WAIT_TIMEOUT_MS", "50");
  device = nullptr;
  device = open_on(api);
  const auto signals = words(*device);
  EXPECT_OK(queue().submit(Commands{hal::Wait{signals->va(), 1}, hal::Signal{at(*signals, 1), 1}}));
  const int destroyed = fake().count("cuStreamDestroy");
  device = nullptr;
  const int expected = GetParam() ? 0 : 2;
  EXPECT_EQ(fake().count("cuStreamDestroy") - destroyed, expected) << "one stream still waits";
  EXPECT_EQ(word(*signals, 1), 0u);
  word(*signals, 0) = 1;
  fake().progress();
}

/// What the progress thread sees of two signals that complete while it looks.
struct LateLook {
  static LateLook& state() {
    static LateLook look;
    return look;
  }
  std::atomic<bool> is_armed = false;
  CuResult (*query)(CuEvent) = nullptr;
};

TEST(CudaQueue, ASignalBehindAnotherQueuesIsNeverStoredBeforeIt) {
  const auto api = usual_api(false);
  LateLook::state().is_armed = false;
  LateLook::state().query = api->cuEventQuery;
  api->cuEventQuery = [](CuEvent event) -> CuResult {
    if (!LateLook::state().is_armed) return kErrorNotReady;
    const std::lock_guard lock(fake().mutex);
    // The first event asked about was not complete; then, at once, everything is.
    if (std::exchange(fake().is_lazy, false)) return kErrorNotReady;
    return LateLook::state().query(event);
  };
  const auto device = open_on(api);
  const auto signals = words(*device);
  fake().is_lazy = true;
  EXPECT_OK(device->queue(QueueKind::kCompute).submit(Commands{hal::Signal{signals->va(), 3}}));
  EXPECT_OK(device->queue(QueueKind::kCopy)
                .submit(Commands{hal::Wait{signals->va(), 3}, hal::Signal{signals->va(), 4},
                                 hal::Signal{at(*signals, 1), 1}}));
  EXPECT_EQ(fake().count("cuStreamWaitEvent"), 1);
  LateLook::state().is_armed = true;
  EXPECT_OK(wait_for(*device, word(*signals, 1), 1));
  EXPECT_EQ(word(*signals), 4u) << "3 was stored after it";
}

TEST(CudaQueue, WithoutAnAsynchronousCopyToTheHostTheCallWaits) {
  const auto api = usual_api();
  api->cuMemcpyDtoHAsync = nullptr;
  api->cuMemcpyDtoH = [](void* dst, CuDevicePtr src, size_t bytes) -> CuResult {
    std::memcpy(dst, reinterpret_cast<void*>(src), bytes);
    return kSuccess;
  };
  const auto device = open_on(api);
  const auto x = words(*device, {7}), video = allocate(*device, {.size = 8});
  EXPECT_OK(
      run(*device, {hal::Copy{video->va(), x->va(), 8}, hal::Copy{at(*x, 1), video->va(), 8}}));
  EXPECT_EQ(word(*x, 1), 7u);
}

TEST(CudaQueue, NothingOfOursIsCalledThatTheDriverHasToAllocateFor) {
  const auto api = usual_api();
  const auto device = open_on(api);
  const auto signals = words(*device);
  EXPECT_OK(device->queue(QueueKind::kCompute)
                .submit(Commands{hal::Wait{at(*signals, 0), 0}, hal::Signal{at(*signals, 0), 1}}));
  EXPECT_EQ(fake().count("cuEventRecord"), 0) << "streams write words themselves";
  EXPECT_EQ(fake().count("cuStreamWaitValue64"), 0) << "the word is there already";
  EXPECT_EQ(fake().count("cuStreamWriteValue64"), 1);
}

}  // namespace
}  // namespace bm::cuda
