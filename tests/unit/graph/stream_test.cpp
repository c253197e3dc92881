// Streams, the argument ring and eager execution.

#include "runtime/stream.h"

#include <thread>

#include "tests/unit/graph/rig.h"
#include "runtime/base/env.h"
#include "runtime/kernarg.h"
#include "runtime/profiler.h"
#include "runtime/stats.h"

namespace bm::fake {
namespace {

using hal::QueueKind;
using runtime::Buffer;
using runtime::execute;
using runtime::KernargRing;
using runtime::Point;

hal::Command write_to(const Buffer& buffer, uint64_t value) {
  return hal::Write{buffer.va(), value};
}

TEST(Stream, InlineWorkIsDoneOnReturn) {
  Rig rig({kInline});
  const Buffer a = rig.words(1);
  const hal::Command command = write_to(a, 42);
  const Point point = must(rig.device().stream().submit(QueueKind::kCompute, {&command, 1}));
  EXPECT_EQ(*Rig::data(a), 42u);
  EXPECT_TRUE(runtime::reached(point));
}

TEST(Stream, PointIsReachedWhenTheDeviceIsDone) {
  Rig rig({kQueue});
  rig.world.set({.is_held = true});
  const Buffer a = rig.words(1);
  const hal::Command command = write_to(a, 42);
  const Point point = must(rig.device().stream().submit(QueueKind::kCompute, {&command, 1}));
  EXPECT_FALSE(runtime::reached(point));
  rig.world.set({});
  must(rig.device().stream().wait(point));
  EXPECT_EQ(*Rig::data(a), 42u);
}

TEST(Stream, ComputeAndCopyQueueOfADeviceAreOneOrder) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Rig rig({kQueue}, seed);
    const Buffer a = rig.words(4), b = rig.words(4);
    for (int i = 0; i < 10; ++i) {
      must(execute(rig.kernel({fixed(a), fixed(b)}), {}));
      must(execute(Rig::copy(fixed(b), fixed(a)), {}));
    }
    must(rig.device().synchronize());
    uint64_t x = 1, y = 1;
    for (int i = 0; i < 10; ++i) y = x = x * 31 + y * 5;
    EXPECT_EQ(Rig::data(b)[1], y);
  }
}

TEST(Stream, WaitsForPointsOfOtherDevices) {
  Rig rig({kQueue, kQueue});
  rig.world.set({.prefer_copies = true});
  const Buffer a = rig.words(1);
  const hal::Command first = write_to(a, 1);
  const hal::Command copies[] = {
      hal::Copy{must(a.storage->va_on(rig.device(1))), must(a.storage->va_on(rig.device(1))), 8}};
  rig.world.set({.is_held = true});
  const Point produced = must(rig.device(0).stream().submit(QueueKind::kCompute, {&first, 1}));
  const Point consumed =
      must(rig.device(1).stream().submit_after(QueueKind::kCopy, copies, std::vector{produced}));
  EXPECT_FALSE(runtime::reached(consumed));
  rig.world.set({.prefer_copies = true});
  must(runtime::wait(consumed));
  EXPECT_TRUE(runtime::reached(produced));
}

TEST(Stream, HostWaitsWhereTheDeviceCannotSeeTheSignal) {
  Rig rig({kQueue, {.can_map = false}});
  const Buffer a = rig.words(1), b = rig.words(1, 1);
  const hal::Command first = write_to(a, 1), second = write_to(b, 2);
  const Point produced = must(rig.device(0).stream().submit(QueueKind::kCompute, {&first, 1}));
  must(rig.device(1).stream().submit_after(QueueKind::kCompute, {&second, 1},
                                           std::vector{produced}));
  EXPECT_TRUE(runtime::reached(produced));
}

TEST(Stream, RefusedSubmissionLeavesTheStreamUsable) {
  Rig rig({kQueue});
  const Buffer a = rig.words(1);
  const hal::Command command = write_to(a, 7);
  rig.hals[0]->is_refusing = true;
  EXPECT_FALSE(rig.device().stream().submit(QueueKind::kCompute, {&command, 1}).has_value());
  rig.hals[0]->is_refusing = false;
  must(rig.device().stream().submit(QueueKind::kCompute, {&command, 1}).map([](Point) {}));
  must(rig.device().synchronize());
  EXPECT_EQ(*Rig::data(a), 7u);
}

TEST(Stream, LostDeviceWakesWaitersWithItsCause) {
  Rig rig({kQueue});
  rig.world.set({.is_held = true});
  const Buffer a = rig.words(1);
  const hal::Command command = write_to(a, 7);
  const Point point = must(rig.device().stream().submit(QueueKind::kCompute, {&command, 1}));
  rig.hals[0]->is_lost = true;
  const Status waited = rig.device().stream().wait(point);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().code, Code::kDeviceLost);
  EXPECT_FALSE(rig.device().stream().submit(QueueKind::kCompute, {&command, 1}).has_value());
}

/// What a wait says whose device stands still.
std::string timeout_of(runtime::Device& device) {
  const bm::ScopedSetting soon("BM_WAIT_TIMEOUT_MS", "30");
  const Status waited = device.synchronize();
  EXPECT_FALSE(waited.has_value());
  return waited ? "" : waited.error().message;
}

TEST(Stream, AHangNamesTheKernel) {
  Rig rig({kQueue});
  const Buffer a = rig.words(4);
  const hal::Command write = write_to(a, 1);
  must(rig.device().stream().submit(QueueKind::kCompute, {&write, 1}).map([](Point) {}));
  must(rig.device().synchronize());
  rig.world.set({.is_held = true});
  must(runtime::execute(rig.kernel({fixed(a)}), {}));
  must(rig.device().stream().submit(QueueKind::kCompute, {&write, 1}).map([](Point) {}));
  const std::string message = timeout_of(rig.device());
  EXPECT_NE(message.find("compute queue at kernel 'mix' (submission 2 of 3)"), std::string::npos)
      << message;
  EXPECT_NE(message.find("last completed: a write or a wait (submission 1)"), std::string::npos)
      << message;
}

TEST(Stream, AHangInAGraphNamesItsCalls) {
  Rig rig({kQueue});
  const Buffer a = rig.words(4), b = rig.words(4);
  auto graph =
      must(runtime::make_graph({rig.kernel({fixed(a)}), rig.kernel({fixed(b), fixed(a)})}, 0, 0));
  rig.world.set({.is_held = true});
  must(graph->replay({}, {}));
  const std::string message = timeout_of(rig.device());
  EXPECT_NE(message.find("compute queue at graph_"), std::string::npos) << message;
  EXPECT_NE(message.find("2 calls: mix, mix"), std::string::npos) << message;
  rig.world.set({});
  const Status still = graph->wait();
  ASSERT_FALSE(still) << "what was given up may have done anything";
  EXPECT_EQ(still.error().message, message);
}

TEST(Stream, AHangIsWaitedForOnceAndToldToEveryone) {
  Rig rig({kQueue, kQueue});
  const Buffer a = rig.words(4), other = rig.words(4, 1);
  rig.world.set({.is_held = true});
  must(runtime::execute(rig.kernel({fixed(a)}), {}));
  const std::string first = timeout_of(rig.device());
  // Ten minutes would be noticed.
  const bm::ScopedSetting late("BM_WAIT_TIMEOUT_MS", "600000");
  const hal::Command write = write_to(a, 1);
  const auto told = [&](const auto& result) {
    return result.has_value() ? "success" : result.error().message;
  };
  EXPECT_EQ(told(rig.device().synchronize()), first);
  EXPECT_EQ(told(rig.device().stream().submit(QueueKind::kCompute, {&write, 1})), first);
  EXPECT_EQ(told(runtime::execute(rig.kernel({fixed(a)}), {})), first);
  EXPECT_EQ(told(rig.device().lost()), first);
  EXPECT_EQ(told(rig.device().hal().status()), first);
  rig.world.set({});
  const hal::Command there = write_to(other, 5);
  must(rig.device(1).stream().submit(QueueKind::kCompute, {&there, 1}).map([](Point) {}));
  must(rig.device(1).synchronize());
  EXPECT_EQ(*Rig::data(other), 5u) << "another device";
}

TEST(Stream, TheDeviceThatOthersWaitForIsBlamed) {
  Rig rig({kQueue, kQueue});
  const Buffer a = rig.words(1);
  rig.world.set({.is_held = true});
  const hal::Command write = write_to(a, 1);
  const Point first = must(rig.device().stream().submit(QueueKind::kCompute, {&write, 1}));
  const Point waits =
      must(rig.device(1).stream().submit_after(QueueKind::kCompute, {}, std::span(&first, 1)));
  const bm::ScopedSetting soon("BM_WAIT_TIMEOUT_MS", "30");
  const Status told = rig.device(1).stream().wait(waits);
  ASSERT_FALSE(told.has_value());
  EXPECT_TRUE(told.error().message.starts_with(rig.device().name() + ": device lost, "))
      << told.error().message;
  EXPECT_FALSE(rig.device().lost().has_value());
}

TEST(KernargRing, BlocksAreDisjointAndAligned) {
  Rig rig({kQueue});
  auto ring = must(KernargRing::create(rig.device().hal(), {.segment_bytes = 256, .segments = 4}));
  std::vector<KernargRing::Block> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(must(ring->reserve(3)));
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(hal::raw(blocks[i].va()) % 16, 0u);
    for (size_t k = 0; k < i; ++k) {
      const auto a = hal::raw(blocks[i].va()), b = hal::raw(blocks[k].va());
      EXPECT_TRUE(a >= b + 24 || b >= a + 24);
    }
  }
}

TEST(KernargRing, IsNotOverwrittenBeforeTheDeviceHasReadIt) {
  Rig rig({kQueue});
  rig.world.set({.is_held = true});
  auto ring = must(KernargRing::create(rig.device().hal(), {.segment_bytes = 32, .segments = 2}));
  std::vector<Point> points;
  for (int i = 0; i < 2; ++i) {
    auto block = must(ring->reserve(4));
    points.push_back(must(rig.device().stream().submit(QueueKind::kCompute, {})));
    block.commit(points.back());
  }
  std::atomic<bool> is_through{false};
  std::thread third([&] {
    auto block = must(ring->reserve(4));  // needs the first segment again
    EXPECT_TRUE(runtime::reached(points[0]));
    is_through = true;
  });
  EXPECT_FALSE(is_through);  // nothing has run yet, so it cannot be
  rig.world.set({});
  third.join();
  EXPECT_TRUE(is_through);
}

TEST(KernargRing, AbandonedBlocksAreGivenBack) {
  Rig rig({kQueue});
  auto ring = must(KernargRing::create(rig.device().hal(), {.segment_bytes = 32, .segments = 1}));
  for (int i = 0; i < 100; ++i) must(ring->reserve(4).map([](auto&&) {}));
}

TEST(KernargRing, OversizedBlockIsAnError) {
  Rig rig({kQueue});
  auto ring = must(KernargRing::create(rig.device().hal(), {.segment_bytes = 32, .segments = 2}));
  EXPECT_FALSE(ring->reserve(5).has_value());
}

TEST(KernargRing, ManyThreadsShareASmallRing) {
  Rig rig({kQueue});
  const Buffer sums = rig.words(4);
  std::vector<std::thread> threads;
  auto ring = must(KernargRing::create(rig.device().hal(), {.segment_bytes = 64, .segments = 2}));
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 100; ++i) {
        auto block = must(ring->reserve(2));
        block.words()[0] = t * 1000 + i;
        const hal::Command copy = hal::Copy{hal::offset(sums.va(), t * 8), block.va(), 8};
        const Point point = must(rig.device().stream().submit(QueueKind::kCompute, {&copy, 1}));
        block.commit(point);
        must(runtime::wait(point));
        ASSERT_EQ(Rig::data(sums)[t], t * 1000 + i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Execute, EagerKernelsAndCopiesOnEveryKindOfDevice) {
  for (const FakeOptions options : {kInline, kQueue, kOneQueue}) {
    Rig rig({options});
    const Buffer a = rig.words(8), b = rig.words(8);
    must(execute(rig.kernel({fixed(a), fixed(b)}, {1}), std::vector<int64_t>{100, 3}));
    must(execute(Rig::copy(fixed(b), fixed(a)), {}));
    must(rig.device().synchronize());
    for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(Rig::data(b)[i], i * 36 + 3);
  }
}

TEST(Execute, EmptyGridLaunchesNothing) {
  Rig rig({kInline});
  must(execute(rig.kernel({fixed(rig.words(4))}, {0}, dim_of_var(1)), std::vector<int64_t>{0}));
  EXPECT_EQ(rig.hals[0]->dispatches, 0);
}

TEST(Execute, InlineDeviceWaitsForQueuesThatUseItsMemory) {
  Rig rig({kQueue, kInline});
  const Buffer target = rig.words(4, 1), out = rig.words(4, 1);
  const hal::GpuVa seen = must(target.storage->va_on(rig.device(0)));
  const hal::Command command = hal::Write{seen, 1000};
  rig.world.set({.is_held = true});
  target.storage->used_until(
      must(rig.device(0).stream().submit(QueueKind::kCompute, {&command, 1})));
  std::thread release([&] { rig.world.set({}); });
  must(execute(rig.kernel({fixed(out), fixed(target)}), {}));
  release.join();
  EXPECT_EQ(Rig::data(out)[0], 5000u);
}

TEST(Execute, HostFunctionSeesFinishedBuffers) {
  Rig rig({kInline});
  const Buffer a = rig.words(4);
  runtime::HostCall host;
  host.vars = {1};
  host.function = [](std::span<std::byte* const> args, std::span<const int64_t> vars) -> Status {
    *reinterpret_cast<int64_t*>(args[0]) = vars[0];
    return {};
  };
  must(execute({"host", host, {fixed(a)}}, std::vector<int64_t>{5, 6}));
  EXPECT_EQ(*Rig::data(a), 6u);
}

TEST(Execute, MeasuresWhenAskedTo) {
  const bm::ScopedSetting debug("DEBUG", "2");
  testing::internal::CaptureStderr();
  Rig rig({kInline, kQueue});
  runtime::reset_counters();
  must(execute(rig.kernel({fixed(rig.words(4, 0))}), {}));
  must(execute(rig.kernel({fixed(rig.words(4, 1))}), {}));
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("*** FAKE:1"), lines.npos) << lines;
  EXPECT_NE(lines.find("*** FAKE:2"), lines.npos) << lines;
  EXPECT_GT(runtime::counters().seconds, 0.0);
}

}  // namespace
}  // namespace bm::fake
