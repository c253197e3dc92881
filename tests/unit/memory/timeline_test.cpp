#include "runtime/timeline.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "runtime/base/env.h"
#include "runtime/signal_pool.h"
#include "tests/unit/memory/fake_device.h"

namespace bm::runtime::test {
namespace {

using namespace std::chrono_literals;

/// A signal without a device behind it.
struct Word {
  alignas(16) std::array<std::byte, 16> bytes{};
  std::atomic_ref<uint64_t> value() {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(bytes.data()));
  }
  hal::GpuVa va() { return hal::GpuVa{reinterpret_cast<uint64_t>(bytes.data())}; }
};

struct Fixture {
  explicit Fixture(uint32_t bits = 64)
      : timeline(word.va(), word.bytes.data(),
                 {.compare_bits = bits, .on_idle = {}, .clock = &clock}) {}
  Word word;
  FakeClock clock;
  Timeline timeline;
};

TEST(Timeline, ReachesValuesAsTheSignalGrows) {
  Fixture f;
  EXPECT_TRUE(f.timeline.reached(0));
  EXPECT_EQ(*f.timeline.next(), 1u);
  EXPECT_EQ(*f.timeline.next(), 2u);
  EXPECT_FALSE(f.timeline.reached(1));
  f.word.value() = 1;
  EXPECT_TRUE(f.timeline.reached(1));
  EXPECT_FALSE(f.timeline.reached(2));
  EXPECT_TRUE(f.timeline.wait(1));
  EXPECT_TRUE(reached(Point{}));
  EXPECT_FALSE(reached(f.timeline.last_point()));
}

TEST(Timeline, WaitSleepsUntilTheDeviceSignals) {
  Fixture f;
  ASSERT_TRUE(f.timeline.next());
  f.clock.on_sleep = [&] {
    if (f.clock.sleeps == 3) f.word.value() = 1;
  };
  EXPECT_TRUE(f.timeline.wait(1, 1000ms));
  EXPECT_EQ(f.clock.sleeps, 3u);
}

TEST(Timeline, TimeoutNamesWantedAndReached) {
  Fixture f;
  ASSERT_TRUE(f.timeline.next());
  ASSERT_TRUE(f.timeline.next());
  f.word.value() = 1;
  const Status status = f.timeline.wait(2, 40ms);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kTimeout);
  EXPECT_NE(status.error().message.find("value 2, reached 1"), std::string::npos)
      << status.error().message;
  EXPECT_FALSE(f.timeline.is_poisoned());
}

TEST(Timeline, ProgressRestartsTheTimeout) {
  Fixture f;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(f.timeline.next());
  // One step per 20 sleeps of at most 1 ms: 100 values take far longer than the 60 ms allowed
  // without progress.
  f.clock.on_sleep = [&] {
    if (f.clock.sleeps % 20 == 0) f.word.value() += 1;
  };
  const auto before = f.clock.now();
  EXPECT_TRUE(f.timeline.wait(100, 60ms));
  EXPECT_GT(f.clock.now() - before, 600ms);
}

TEST(Timeline, LooksOnceMoreAfterTheDeadline) {
  Fixture f;
  ASSERT_TRUE(f.timeline.next());
  struct LateClock final : WaitClock {
    Word* word = nullptr;
    int calls = 0;
    std::chrono::nanoseconds now() override {
      // Long past the spinning phase the thread is away for an hour; meanwhile the device finishes.
      if (++calls == 1000) word->value() = 1;
      return calls < 1000 ? 0ns : std::chrono::nanoseconds(3600s);
    }
    void sleep(std::chrono::nanoseconds) override {}
  } clock;
  clock.word = &f.word;
  Timeline timeline(f.word.va(), f.word.bytes.data(),
                    {.compare_bits = 64, .on_idle = {}, .clock = &clock});
  ASSERT_TRUE(timeline.next());
  EXPECT_TRUE(timeline.wait(1, 10ms));
}

TEST(Timeline, TheDefaultTimeoutComesFromTheEnvironment) {
  const ScopedSetting scope("BM_WAIT_TIMEOUT_MS", "7");
  Fixture f;
  ASSERT_TRUE(f.timeline.next());
  const Status status = f.timeline.wait(1);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("for 7 ms"), std::string::npos) << status.error().message;
}

TEST(Timeline, EveryWaiterGetsTheFirstError) {
  Fixture f;
  ASSERT_TRUE(f.timeline.next());
  ASSERT_TRUE(f.timeline.next());
  f.word.value() = 1;
  f.timeline.poison({Code::kDeviceFault, "page fault at 0x1000"});
  f.timeline.poison({Code::kTimeout, "later"});
  for (int i = 0; i < 2; ++i) {
    const Status status = f.timeline.wait(2);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "page fault at 0x1000");
  }
  EXPECT_TRUE(f.timeline.wait(1)) << "work that finished before the fault stays finished";
  EXPECT_EQ(f.timeline.next().error().code, Code::kDeviceFault);
}

TEST(Timeline, ARevivedTimelineGoesOnAndRemembersWhatWasDropped) {
  Fixture f;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(f.timeline.next());
  f.word.value() = 1;
  f.timeline.poison({Code::kDeviceFault, "page fault"});
  f.timeline.recover({Code::kTimeout, "not this"});
  EXPECT_TRUE(f.timeline.status());
  EXPECT_TRUE(f.timeline.wait(1));
  for (const uint64_t value : {2u, 3u}) {
    EXPECT_TRUE(f.timeline.reached(value)) << "its memory is free";
    EXPECT_TRUE(f.timeline.settle(value));
    const Status status = f.timeline.wait(value);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "page fault");
  }
  EXPECT_EQ(*f.timeline.next(), 4u);
  EXPECT_FALSE(f.timeline.reached(4));
  EXPECT_EQ(f.timeline.hardware_value(3), f.word.value().load());
  // Without a poison the given cause is told; with nothing in flight nothing is.
  f.timeline.recover({Code::kTimeout, "it hung"});
  EXPECT_EQ(f.timeline.wait(4).error().message, "it hung");
  EXPECT_EQ(f.timeline.wait(3).error().message, "page fault");
  EXPECT_EQ(*f.timeline.next(), 5u);
  f.word.value() = f.timeline.hardware_value(5);
  EXPECT_TRUE(f.timeline.wait(5));
  f.timeline.recover({Code::kTimeout, "nothing was dropped"});
  EXPECT_TRUE(f.timeline.wait(5));
}

TEST(Timeline, AFaultFoundWhileWaitingPoisons) {
  Word word;
  FakeClock clock;
  int asked = 0;
  Timeline timeline(word.va(), word.bytes.data(),
                    {.compare_bits = 64,
                     .on_idle = [&](std::chrono::nanoseconds idle) -> Status {
                       EXPECT_GT(idle.count(), 0);
                       if (++asked < 3) return {};
                       return fail(Code::kDeviceFault, "MMU fault");
                     },
                     .clock = &clock});
  ASSERT_TRUE(timeline.next());
  EXPECT_EQ(timeline.wait(1).error().message, "MMU fault");
  EXPECT_TRUE(timeline.is_poisoned());
}

TEST(Timeline, ASignalOfALostDeviceIsNotProgress) {
  Fixture f;
  ASSERT_TRUE(f.timeline.next());
  f.word.value() = UINT64_MAX;
  EXPECT_FALSE(f.timeline.reached(1));
}

TEST(Timeline, CancelTakesTheLastValueBack) {
  Fixture f;
  const uint64_t value = *f.timeline.next();
  f.timeline.cancel(value);
  EXPECT_EQ(f.timeline.last(), value - 1);
  EXPECT_EQ(*f.timeline.next(), value);
}

TEST(Timeline, FourBitHardwareNeverSeesAWrap) {
  FakeHal hal;
  hal.compare_bits = 4;
  FakeClock clock;
  FakeStream stream(hal, 4, &clock);
  clock.runs = {&hal};
  hal.holds = true;
  // 100 submissions: the signal restarts 14 times, far beyond a second wrap.
  Point first;
  for (uint64_t i = 1; i <= 100; ++i) {
    const Result<Point> point = stream.submit(hal::QueueKind::kCompute, {});
    ASSERT_TRUE(point) << point.error().message;
    ASSERT_EQ(point->value, i);
    if (i == 1) first = *point;
    ASSERT_LE(word_of(stream.timeline().signal()).load(), 7u);
    ASSERT_LE(stream.timeline().hardware_value(i), 7u);
    ASSERT_FALSE(reached(*point));
    if (i % 5 == 0) hal.step();
  }
  ASSERT_TRUE(stream.synchronize());
  EXPECT_EQ(stream.timeline().completed(), 100u);
  EXPECT_TRUE(reached(first)) << "a Point from before many restarts stays reached";
  EXPECT_TRUE(wait(first));
}

TEST(Timeline, RestartWaitsForForeignWaiters) {
  // A waits in hardware for B; B must not restart its signal before A has looked at it.
  FakeHal a, b;
  a.compare_bits = b.compare_bits = 4;
  FakeClock clock;
  FakeStream stream_a(a, 4, &clock), stream_b(b, 4, &clock);
  a.holds = b.holds = true;
  Point b_point;
  for (int i = 0; i < 7; ++i) b_point = *stream_b.submit(hal::QueueKind::kCompute, {});
  const uint64_t value = *stream_a.timeline().next();
  const auto wait_for_b =
      stream_b.timeline().wait_command(b_point.value, {&stream_a.timeline(), value});
  ASSERT_TRUE(wait_for_b);
  const std::array<hal::Command, 2> commands{*wait_for_b,
                                             stream_a.timeline().signal_command(value)};
  ASSERT_TRUE(a.submit(commands));
  b.run();
  EXPECT_TRUE(reached(b_point));
  EXPECT_FALSE(stream_a.timeline().reached(value));
  // B's eighth value restarts the signal: only possible once A, which runs while we sleep, is
  // through.
  clock.runs = {&a};
  ASSERT_TRUE(stream_b.submit(hal::QueueKind::kCompute, {}));
  EXPECT_TRUE(stream_a.timeline().reached(value));
  EXPECT_GT(clock.sleeps, 0u);
}

/// Timelines whose devices answer with `health`.
struct Asked {
  Status health;
  Word word;
  FakeClock clock;
  Timeline timeline{word.va(),
                    word.bytes.data(),
                    {.compare_bits = 64,
                     .on_idle = [this](std::chrono::nanoseconds) { return health; },
                     .clock = &clock}};
};

TEST(Timeline, WhoeverWaitsForAFailedDeviceGetsItsError) {
  Asked first, second, third;
  for (Timeline* t : {&first.timeline, &second.timeline, &third.timeline}) ASSERT_TRUE(t->next());
  // In a circle, as work that goes round devices is.
  ASSERT_TRUE(first.timeline.wait_command(1, second.timeline.last_point()));
  third.timeline.note_source(1, second.timeline.last_point());
  first.timeline.note_source(1, third.timeline.last_point());
  first.health = fail(Code::kDeviceFault, "page fault at 0x1000");
  const Status status = third.timeline.wait(1, 1000ms);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "page fault at 0x1000");
  EXPECT_TRUE(first.timeline.is_poisoned());
  EXPECT_TRUE(third.timeline.is_poisoned());
  EXPECT_EQ(second.timeline.wait(1, 1000ms).error().message, "page fault at 0x1000");
}

TEST(Timeline, WorkThatRunsAfterTheFailedDeviceWasRevivedWasDroppedAllTheSame) {
  Asked failed, waits;
  for (Timeline* t : {&failed.timeline, &waits.timeline}) ASSERT_TRUE(t->next());
  ASSERT_TRUE(failed.timeline.wait_command(1, waits.timeline.last_point()));
  failed.health = fail(Code::kDeviceFault, "page fault at 0x1000");
  ASSERT_FALSE(waits.timeline.wait(1, 1000ms));
  failed.health = {};
  failed.timeline.recover({Code::kInternal, "no cause"});
  waits.word.value() = 1;  // its queue saw the signal of the recovered one
  EXPECT_TRUE(waits.timeline.reached(1));
  waits.timeline.recover({Code::kInternal, "no cause"});
  EXPECT_EQ(waits.timeline.wait(1).error().message, "page fault at 0x1000");
  ASSERT_TRUE(waits.timeline.next());
  waits.word.value() = 2;
  EXPECT_TRUE(waits.timeline.wait(2));
}

TEST(Timeline, WhatIsNotWaitedForAnyMoreIsNobodysFault) {
  Asked first, second;
  for (Timeline* t : {&first.timeline, &second.timeline}) ASSERT_TRUE(t->next());
  ASSERT_TRUE(first.timeline.wait_command(1, second.timeline.last_point()));
  first.word.value() = 1;
  ASSERT_TRUE(first.timeline.next());
  first.health = fail(Code::kDeviceFault, "page fault at 0x1000");
  EXPECT_EQ(second.timeline.wait(1, 40ms).error().code, Code::kTimeout) << "it came by then";
  EXPECT_FALSE(second.timeline.is_poisoned());
  second.word.value() = 1;
  ASSERT_TRUE(second.timeline.next());
  ASSERT_FALSE(first.timeline.wait(2, 40ms));
  EXPECT_EQ(second.timeline.wait(2, 40ms).error().code, Code::kTimeout) << "later work is free";
}

TEST(Timeline, AClosedDeviceLeavesItsErrorToThoseWhoWait) {
  Asked waits, waits_too;
  {
    Asked failed, idle;
    for (Timeline* t : {&waits.timeline, &waits_too.timeline, &failed.timeline, &idle.timeline})
      ASSERT_TRUE(t->next());
    ASSERT_TRUE(failed.timeline.wait_command(1, waits.timeline.last_point()));
    ASSERT_TRUE(idle.timeline.wait_command(1, waits_too.timeline.last_point()));
    EXPECT_EQ(failed.timeline.waiting().size(), 1u);
    failed.timeline.poison(Error{Code::kDeviceFault, "page fault at 0x1000"});
  }
  EXPECT_EQ(waits.timeline.wait(1, 1000ms).error().message, "page fault at 0x1000");
  EXPECT_EQ(waits_too.timeline.wait(1, 1000ms).error().code, Code::kDeviceLost);
  EXPECT_TRUE(waits.timeline.waiting().empty());
}

TEST(Timeline, WaitCommandIsEmptyForReachedValues) {
  Fixture f;
  ASSERT_TRUE(f.timeline.next());
  EXPECT_TRUE(f.timeline.wait_command(1));
  f.word.value() = 1;
  EXPECT_FALSE(f.timeline.wait_command(1));
  EXPECT_FALSE(f.timeline.wait_command(0));
}

TEST(Timeline, ManyThreadsWaitWhileTheSignalRestarts) {
  FakeHal hal;
  hal.compare_bits = 4;
  FakeStream stream(hal, 4, nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const Result<Point> point = stream.submit(hal::QueueKind::kCompute, {});
        ASSERT_TRUE(point);
        ASSERT_TRUE(wait(*point));
        // In this order: others go on between the two.
        const uint64_t completed = stream.timeline().completed();
        ASSERT_LE(completed, stream.timeline().last());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stream.timeline().completed(), 2000u);
}

TEST(SignalPool, HandsOutZeroedSlotsAndTakesThemBack) {
  FakeHal hal;
  SignalPool pool(hal, 256);
  {
    SignalPool::Signal a = *pool.allocate();
    SignalPool::Signal b = *pool.allocate();
    EXPECT_EQ(hal::raw(b.va()) - hal::raw(a.va()), 16u);
    a.set_value(9);
    word_of(a.timestamp_va()).store(5);
    EXPECT_EQ(a.value(), 9u);
    EXPECT_EQ(a.timestamp(), 5u);
    EXPECT_EQ(pool.available(), 14u);
    SignalPool::Signal moved = std::move(a);
    EXPECT_TRUE(moved.is_valid());
  }
  EXPECT_EQ(pool.available(), 16u);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(pool.allocate()->value(), 0u);
  EXPECT_EQ(hal.allocations, 1);
  EXPECT_TRUE(hal.descs[0].uncached && hal.descs[0].host_visible && hal.descs[0].zero);
}

TEST(SignalPool, GrowsByPagesWhenExhaustedAndReportsFailure) {
  FakeHal hal;
  SignalPool pool(hal, 64);
  std::vector<SignalPool::Signal> signals;
  for (int i = 0; i < 9; ++i) signals.push_back(*pool.allocate());
  EXPECT_EQ(pool.capacity(), 12u);
  for (int i = 0; i < 3; ++i) signals.push_back(*pool.allocate());
  hal.fail_allocation = 1;
  EXPECT_EQ(pool.allocate().error().code, Code::kOutOfMemory);
  signals.pop_back();
  EXPECT_TRUE(pool.allocate());
}

TEST(SignalPool, DoesNotReuseASlotTheDeviceMayStillWrite) {
  FakeHal hal;
  hal.holds = true;
  FakeStream stream(hal, 64, nullptr);
  SignalPool pool(hal, 16);
  hal::GpuVa first;
  {
    SignalPool::Signal signal = *pool.allocate();
    first = signal.va();
    signal.used_until(*stream.submit(hal::QueueKind::kCompute, {}));
  }
  EXPECT_EQ(pool.available(), 0u);
  const SignalPool::Signal other = *pool.allocate();
  EXPECT_NE(other.va(), first);
  hal.run();
  EXPECT_EQ(pool.allocate()->va(), first);
}

}  // namespace
}  // namespace bm::runtime::test
