// After a fault the channels are rebuilt in place: memory, programs and recordings survive, whoever
// waited is told the first cause, and the device works.

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "runtime/buffer.h"
#include "runtime/graph.h"
#include "tests/unit/nv_faults/bench.h"

namespace bm::nv::faults {
namespace {

using hal::QueueKind;
using runtime::Point;

constexpr const char* kChips[] = {"tu102", "ga100", "ga102", "ad102", "gh100", "gb202"};
constexpr uint64_t kNowhere = 0xdead'0000'0000, kWords = 512;

constexpr KernelText kReader = {"reader",
                                "  ld.global.u64 %d2, [%d1];\n  st.global.u64 [%d1], %d2;"};
/// at[0] = at[0] * 3 + 1; has a stack, so that the rebuilt channel must know local memory.
constexpr KernelText kStep = {"step",
                              "  .local .align 8 .b8 room[64];\n"
                              "  mov.u64 %d4, room;\n"
                              "  ld.global.u64 %d2, [%d1];\n"
                              "  st.local.u64 [%d4], %d2;\n"
                              "  ld.local.u64 %d3, [%d4];\n"
                              "  mad.lo.u64 %d2, %d3, 3, 1;\n"
                              "  st.global.u64 [%d1], %d2;",
                              {.x = 1}};

/// What a program has before something goes wrong.
class Survivors {
 public:
  explicit Survivors(Bench& bench) : bench_(bench) {}

  Status make() {
    video_ = BM_TRY(bench_.allocate(kWords * 8));
    seen_ = BM_TRY(bench_.allocate(kWords * 8, true));
    argument_ = BM_TRY(bench_.allocate(8, true));
    const uint64_t va = hal::raw(video_->va());
    std::memcpy(argument_->host(), &va, sizeof va);
    step_ = BM_TRY(bench_.load(kStep));
    for (uint64_t i = 0; i < kWords; ++i) {
      const uint64_t number = i * i + 7;
      std::memcpy(seen_->host() + i * 8, &number, 8);
    }
    BM_TRY(bench_.copy(QueueKind::kCopy, va, hal::raw(seen_->va()), kWords * 8));
    std::memset(seen_->host(), 0, kWords * 8);
    const hal::Command commands[] = {
        hal::Dispatch{step_, argument_->va(), {}},
        hal::Copy{hal::offset(seen_->va(), 8), hal::offset(video_->va(), 8), kWords * 8 - 8},
        hal::Dispatch{step_, argument_->va(), {}}, hal::Copy{seen_->va(), video_->va(), 8}};
    recording_ = BM_TRY(bench_.hal().queue(QueueKind::kCompute).record(commands, {}));
    return {};
  }
  /// Replays what was recorded before; `first`: what the first word holds then.
  Status check(uint64_t first) {
    BM_TRY(bench_.hal().queue(QueueKind::kCompute).replay(*recording_, {}));
    BM_TRY(bench_.run(QueueKind::kCompute, {}));
    for (uint64_t i = 0; i < kWords; ++i) {
      uint64_t number = 0;
      std::memcpy(&number, seen_->host() + i * 8, 8);
      const uint64_t wanted = i == 0 ? first : i * i + 7;
      if (number != wanted)
        return fail(Code::kInternal, "word {} is {}, not {}", i, number, wanted);
    }
    return {};
  }

 private:
  Bench& bench_;
  hal::Buffer *video_ = nullptr, *seen_ = nullptr, *argument_ = nullptr;
  const hal::Program* step_ = nullptr;
  std::unique_ptr<hal::Recording> recording_;
};

class NvRecovery : public testing::TestWithParam<Planted> {
 protected:
  const ScopedSetting text_{"BM_NV_CODE", "ptx"};
};

std::vector<Planted> recoverable() {
  std::vector<Planted> out;
  for (Planted& fault : device_faults())
    // What lies before an allocation is another one here.
    if (fault.needs_device && fault.name != std::string_view("KernelReadsBeforeTheBegin") &&
        fault.is_repairable && fault.code != Code::kInvalidArgument)
      out.push_back(std::move(fault));
  return out;
}

TEST_P(NvRecovery, TheDeviceWorksAgainWithWhatItHad) {
  // Every fault on one generation, so that each generation sees several.
  static size_t next = 0;
  Planted fault = GetParam();
  fault.machine.chip = kChips[next++ % std::size(kChips)];
  SCOPED_TRACE(fault.machine.chip);
  Bench bench(fault.machine);
  ASSERT_TRUE(bench.open());
  std::optional<Survivors> before(bench);
  const Status made = before->make();
  ASSERT_TRUE(made) << made.error().message;
  uint64_t first = 7;
  for (int round = 0; round < 3; ++round) {
    Status planted;
    {
      std::optional<ScopedSetting> wait;
      if (fault.code == Code::kTimeout) wait.emplace("BM_WAIT_TIMEOUT_MS", std::to_string(kWaitMs));
      planted = fault.plant(bench);
    }
    ASSERT_FALSE(planted) << "nothing was reported";
    EXPECT_EQ(planted.error().code, fault.code) << planted.error().message;
    bench.knobs().is_stalled = false;
    bench.knobs().is_hung = false;
    const Status recovered = bench.device().recover();
    ASSERT_TRUE(recovered) << recovered.error().message;
    EXPECT_TRUE(bench.hal().status());
    const Status works = bench.works();
    EXPECT_TRUE(works) << works.error().message;
    first = (first * 3 + 1) * 3 + 1;
    const Status same = before->check(first);
    EXPECT_TRUE(same) << same.error().message;
  }
  before.reset();
  bench.close();
  EXPECT_EQ(bench.system().kernel().report().leaks, std::vector<std::string>());
  EXPECT_EQ(bench.system().kernel().report().complaints, std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Nv, NvRecovery, testing::ValuesIn(recoverable()),
                         [](const auto& one) { return std::string(one.param.name); });

class NvRecoveryOf : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    bench_.emplace(sim::nv::Options{.chip = GetParam()});
    const Status opened = bench_->open();
    ASSERT_TRUE(opened) << opened.error().message;
  }
  runtime::Stream& stream() { return bench_->device().stream(); }
  /// Submits a kernel that reads where nothing is.
  Result<Point> submit_fault() {
    const hal::Program* const reader = BM_TRY(bench_->load(kReader));
    hal::Buffer* const argument = BM_TRY(bench_->allocate(8, true));
    std::memcpy(argument->host(), &kNowhere, sizeof kNowhere);
    const hal::Command commands[] = {hal::Dispatch{reader, argument->va(), {}}};
    return stream().submit(QueueKind::kCompute, commands);
  }
  const ScopedSetting text_{"BM_NV_CODE", "ptx"};
  std::optional<Bench> bench_;
};

TEST_P(NvRecoveryOf, EveryWaiterIsToldTheFirstCause) {
  const Point good = *stream().submit(QueueKind::kCompute, {});
  ASSERT_TRUE(stream().wait(good));
  bench_->knobs().is_stalled = true;
  std::vector<Point> points = {*submit_fault()};
  for (int i = 0; i < 4; ++i)
    points.push_back(*stream().submit(i % 2 ? QueueKind::kCopy : QueueKind::kCompute, {}));
  std::vector<Status> told(points.size());
  std::vector<std::thread> waiters;
  for (size_t i = 0; i < points.size(); ++i)
    waiters.emplace_back([&, i] { told[i] = stream().wait(points[i]); });
  bench_->knobs().is_stalled = false;
  for (std::thread& waiter : waiters) waiter.join();
  const Status cause = bench_->hal().status();
  ASSERT_FALSE(cause);
  EXPECT_NE(cause.error().message.find("in kernel 'reader'"), std::string::npos);
  const std::string first = told[0] ? "" : told[0].error().message;
  EXPECT_TRUE(first.ends_with(cause.error().message)) << first;
  for (const Status& one : told) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().message, first);
  }
  ASSERT_TRUE(bench_->device().recover());
  EXPECT_TRUE(stream().wait(good));
  for (const Point& point : points) {
    const Status later = stream().wait(point);
    ASSERT_FALSE(later) << "dropped work looks done";
    EXPECT_EQ(later.error().message, first);
  }
  const Status works = bench_->works();
  EXPECT_TRUE(works) << works.error().message;
  EXPECT_TRUE(bench_->device().synchronize());
}

TEST_P(NvRecoveryOf, WaitersThatAreStillThereGetTheCauseToo) {
  for (int round = 0; round < 20; ++round) {
    const Point point = *submit_fault();
    Status told;
    std::thread waiter([&] { told = stream().wait(point); });
    while (bench_->hal().status()) std::this_thread::yield();
    const Status recovered = bench_->device().recover();
    waiter.join();
    ASSERT_TRUE(recovered) << recovered.error().message;
    ASSERT_FALSE(told) << round;
    EXPECT_NE(told.error().message.find("in kernel 'reader'"), std::string::npos);
  }
  EXPECT_TRUE(bench_->works());
}

TEST_P(NvRecoveryOf, GraphsOfBeforeRunAgain) {
  runtime::Device& device = bench_->device();
  const std::shared_ptr<const hal::Program> step(*bench_->load(kStep), [](const auto*) {});
  auto memory = runtime::allocate(device, {.size = 8});
  ASSERT_TRUE(memory) << memory.error().message;
  uint64_t number = 5;
  const auto bytes = std::as_writable_bytes(std::span(&number, 1));
  ASSERT_TRUE(runtime::copy_in(*memory, bytes));
  std::vector<runtime::Call> calls;
  for (int i = 0; i < 3; ++i)
    calls.push_back(
        {.name = "step",
         .what =
             runtime::KernelCall{.program = step, .device = &device, .vars = {}, .constants = {}},
         .args = {{.buffer = *memory, .is_written = true}}});
  auto graph = runtime::make_graph(std::move(calls), 0, 0);
  ASSERT_TRUE(graph) << graph.error().message;
  uint64_t want = number;
  for (int round = 0; round < 4; ++round) {
    const Status replayed = (*graph)->replay({}, {});
    ASSERT_TRUE(replayed) << replayed.error().message;
    ASSERT_TRUE((*graph)->wait());
    for (int i = 0; i < 3; ++i) want = want * 3 + 1;
    ASSERT_TRUE(runtime::copy_out(bytes, *memory));
    EXPECT_EQ(number, want);
    ASSERT_FALSE(stream().wait(*submit_fault()));
    const Status refused = (*graph)->replay({}, {});
    EXPECT_FALSE(refused) << "a device with a fault took a graph";
    ASSERT_TRUE(device.recover());
  }
  graph->reset();
  memory->storage.reset();
}

TEST_P(NvRecoveryOf, AGraphThatFailedIsGivenBackWithTheDevice) {
  constexpr KernelText kTrapper = {"trapper", "  trap;"};
  runtime::Device& device = bench_->device();
  const std::shared_ptr<const hal::Program> trapper(*bench_->load(kTrapper), [](const auto*) {});
  auto memory = runtime::allocate(device, {.size = 8});
  ASSERT_TRUE(memory) << memory.error().message;
  std::vector<runtime::Call> calls;
  calls.push_back(
      {.name = "trapper",
       .what =
           runtime::KernelCall{.program = trapper, .device = &device, .vars = {}, .constants = {}},
       .args = {{.buffer = *memory, .is_written = true}}});
  auto graph = runtime::make_graph(std::move(calls), 0, 0);
  ASSERT_TRUE(graph) << graph.error().message;
  ASSERT_TRUE((*graph)->replay({}, {}));
  EXPECT_FALSE((*graph)->wait());
  graph->reset();
  memory->storage.reset();
  bench_->close();
  EXPECT_EQ(bench_->system().kernel().live_objects(), 0u);
  EXPECT_EQ(bench_->system().kernel().report().leaks, std::vector<std::string>());
  EXPECT_EQ(bench_->system().kernel().report().complaints, std::vector<std::string>());
}

TEST_P(NvRecoveryOf, AGpuThatWaitedForTheOneThatFailedIsToldAndRecoversToo) {
  const ScopedSetting wait("BM_WAIT_TIMEOUT_MS", "20000");
  bench_->close();  // sanitizers leave few places for windows of addresses
  Bench both({.chip = GetParam(), .gpus = 2});
  const Status opened = both.open();
  ASSERT_TRUE(opened) << opened.error().message;
  const auto other = both.open_unit(1);
  ASSERT_TRUE(other) << other.error().message;
  runtime::Stream& first = both.device().stream();
  runtime::Stream& second = (*other)->stream();
  const hal::Program* const reader = *both.load(kReader);
  hal::Buffer* const argument = *both.allocate(8, true);
  std::memcpy(argument->host(), &kNowhere, sizeof kNowhere);
  const hal::Command commands[] = {hal::Dispatch{reader, argument->va(), {}}};
  const Point failed[] = {*first.submit(QueueKind::kCompute, commands)};
  const auto waits = second.submit_after(QueueKind::kCompute, {}, failed);
  ASSERT_TRUE(waits) << waits.error().message;
  const Status told = second.wait(*waits);
  ASSERT_FALSE(told);
  EXPECT_NE(told.error().message.find("in kernel 'reader'"), std::string::npos)
      << told.error().message;
  for (runtime::Device* device : {&both.device(), other->get()}) {
    const Status recovered = device->recover();
    ASSERT_TRUE(recovered) << recovered.error().message;
    const auto works = device->stream().submit(QueueKind::kCompute, {});
    ASSERT_TRUE(works) << works.error().message;
    EXPECT_TRUE(device->stream().wait(*works));
  }
  EXPECT_EQ(second.wait(*waits).error().message, told.error().message) << "dropped work looks done";
}

TEST_P(NvRecoveryOf, ADeviceThatCannotBeRebuiltStaysFailedUntilItCan) {
  ASSERT_FALSE(stream().wait(*submit_fault()));
  const std::string cause = bench_->hal().status().error().message;
  bench_->system().kernel().plan(
      {.call = "UVM:27", .status = sim::nv::RmStatus::kNoMemory, .times = 100});
  EXPECT_FALSE(bench_->device().recover());
  const Status still = bench_->hal().status();
  ASSERT_FALSE(still);
  EXPECT_EQ(still.error().message, cause);
  EXPECT_FALSE(bench_->hal().queue(QueueKind::kCopy).submit({}));
  bench_->system().kernel().clear_plans();
  const Status recovered = bench_->device().recover();
  ASSERT_TRUE(recovered) << recovered.error().message;
  EXPECT_TRUE(bench_->works());
}

TEST_P(NvRecoveryOf, AHealthyDeviceIsLeftAlone) {
  ASSERT_TRUE(bench_->works());
  const uint64_t objects = bench_->system().kernel().live_objects();
  EXPECT_TRUE(bench_->device().recover());
  EXPECT_EQ(bench_->system().kernel().live_objects(), objects);
  EXPECT_TRUE(bench_->works());
}

TEST_P(NvRecoveryOf, ALostGpuIsNotRecovered) {
  ASSERT_TRUE(bench_->works());
  bench_->knobs().is_lost = true;
  while (bench_->hal().status()) static_cast<void>(stream().submit(QueueKind::kCompute, {}));
  const Status recovered = bench_->device().recover();
  ASSERT_FALSE(recovered);
  EXPECT_EQ(recovered.error().code, Code::kDeviceLost);
}

INSTANTIATE_TEST_SUITE_P(Chips, NvRecoveryOf, testing::Values("tu102", "ga102", "gh100", "gb202"),
                         [](const auto& chip) { return std::string(chip.param); });

}  // namespace
}  // namespace bm::nv::faults
