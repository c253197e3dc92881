// Graphs on one inline device: replay, patches, input checks.

#include <thread>

#include "tests/unit/graph/alloc_count.h"
#include "tests/unit/graph/rig.h"
#include "runtime/base/env.h"
#include "runtime/stats.h"

namespace bm::fake {
namespace {

using runtime::Buffer;
using runtime::Call;
using runtime::make_graph;

Code code_of(const Status& status) {
  EXPECT_FALSE(status.has_value());
  return status ? Code::kInternal : status.error().code;
}

/// What mix(out, in) with variables adding up to `vars` leaves in word i.
uint64_t mixed(uint64_t out, uint64_t in, int64_t vars = 0) {
  return out * 31 + in * 5 + static_cast<uint64_t>(vars);
}

TEST(GraphInline, ReplaysWithNewInputsAndVariables) {
  Rig rig({kInline});
  const Buffer captured = rig.words(8, 0, 100), out = rig.words(8);
  auto graph = must(make_graph({rig.kernel({fixed(out), input(0, captured)}, {1})}, 1, 2));
  for (uint64_t round = 0; round < 3; ++round) {
    const Buffer in = rig.words(8, 0, 1000 * round);
    std::fill_n(Rig::data(out), 8, uint64_t{7});
    must(graph->replay(std::vector{in}, std::vector<int64_t>{-1, 50}));
    for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(Rig::data(out)[i], mixed(7, 1000 * round + i, 50));
  }
  EXPECT_EQ(graph->num_calls(), 1u);
}

TEST(GraphInline, IsOneRecordingWithoutSignals) {
  Rig rig({kInline});
  const Buffer a = rig.words(4), b = rig.words(4);
  std::vector<Call> calls;
  for (int i = 0; i < 10; ++i)
    calls.push_back(rig.kernel({fixed(i % 2 ? a : b), fixed(i % 2 ? b : a)}));
  auto graph = must(make_graph(std::move(calls), 0, 0));
  must(graph->replay({}, {}));
  const FakeQueue& queue = rig.hals[0]->fake_queue(hal::QueueKind::kCompute);
  EXPECT_EQ(queue.replays, 1u);
  EXPECT_EQ(queue.waits + queue.signals + queue.barriers, 0u);
  EXPECT_EQ(rig.hals[0]->dispatches, 10);
}

TEST(GraphInline, ReplayAllocatesNothing) {
  if (!allocations_on_this_thread()) GTEST_SKIP() << "sanitizers own operator new";
  Rig rig({kInline});
  const Buffer x = rig.words(8), y = rig.words(8), out = rig.words(8);
  std::vector<Call> calls;
  for (int i = 0; i < 20; ++i)
    calls.push_back(rig.kernel({fixed(out), input(0, x), input(1, y)}, {0}, dim_of_var(1)));
  auto graph = must(make_graph(std::move(calls), 2, 1));
  const std::vector<Buffer> first{rig.words(8), rig.words(8)}, second{rig.words(8), rig.words(8)};
  const std::vector<int64_t> vars{5};
  must(graph->replay(first, vars));
  const uint64_t before = *allocations_on_this_thread();
  {
    const auto probe = std::make_unique<std::atomic<int>>(1);
    EXPECT_EQ(*probe, 1);
  }  // the counter counts
  ASSERT_GT(*allocations_on_this_thread(), before);
  const uint64_t start = *allocations_on_this_thread();
  for (int i = 0; i < 10; ++i) {
    // Alternating inputs: patching and the alias check must not allocate either.
    const Status replayed = graph->replay(i % 2 ? first : second, vars);
    EXPECT_TRUE(replayed.has_value());
  }
  EXPECT_EQ(*allocations_on_this_thread() - start, 0u);
}

TEST(GraphInline, ViewsOfAnInputKeepTheirPlace) {
  Rig rig({kInline});
  const Buffer storage = rig.words(64), out = rig.words(4);
  const Buffer whole = must(storage.view(16 * 8, 16 * 8));  // the input starts inside its storage
  const Buffer part = must(whole.view(4 * 8, 4 * 8));
  const std::vector<Buffer> capture{whole};
  auto graph = must(make_graph({rig.kernel({fixed(out), input(0, part)})}, 1, 0, capture));
  const Buffer other = rig.words(64, 0, 500);
  must(graph->replay(std::vector{must(other.view(8 * 8, 16 * 8))}, {}));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Rig::data(out)[i], mixed(i, 500 + 8 + 4 + i));
}

TEST(GraphInline, SymbolicGridIsEvaluatedPerReplay) {
  Rig rig({kInline});
  const Buffer out = rig.words(16);
  // Kernel variable 0 is graph variable 1; grid = 2 v + 1.
  auto graph = must(make_graph({rig.kernel({fixed(out)}, {1}, dim_of_var(2, 1))}, 0, 2));
  std::fill_n(Rig::data(out), 16, uint64_t{0});
  must(graph->replay({}, std::vector<int64_t>{9, 3}));
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(Rig::data(out)[i], i < 7 ? 3u : 0u) << i;
}

TEST(GraphInline, EmptyGridLaunchesNothing) {
  Rig rig({kInline});
  const Buffer out = rig.words(4);
  hal::DimExpr none;
  none.constant = 0;
  auto graph = must(make_graph(
      {rig.kernel({fixed(out)}, {}, none), rig.kernel({fixed(out)}, {0}, dim_of_var(1))}, 0, 1));
  must(graph->replay({}, std::vector<int64_t>{0}));
  must(graph->replay({}, std::vector<int64_t>{-5}));
  EXPECT_EQ(rig.hals[0]->dispatches, 0);
  must(graph->replay({}, std::vector<int64_t>{4}));
  EXPECT_EQ(rig.hals[0]->dispatches, 1);
}

TEST(GraphInline, GridBeyond32BitsIsAnError) {
  Rig rig({kInline});
  const Buffer out = rig.words(4);
  auto graph =
      must(make_graph({rig.kernel({fixed(out)}, {0}, dim_of_var(int64_t{1} << 32))}, 0, 1));
  EXPECT_EQ(code_of(graph->replay({}, std::vector<int64_t>{1})), Code::kInvalidArgument);
  EXPECT_EQ(rig.hals[0]->dispatches, 0);
}

TEST(GraphInline, InputsThatDoNotFitAreErrors) {
  Rig rig({kInline, kInline});
  const Buffer in = rig.words(8), out = rig.words(8);
  auto graph = must(make_graph({rig.kernel({fixed(out), input(0, in)}, {0})}, 1, 1));
  const std::vector<int64_t> vars{1};
  EXPECT_EQ(code_of(graph->replay({}, vars)), Code::kInvalidArgument);
  EXPECT_EQ(code_of(graph->replay(std::vector{in, in}, vars)), Code::kInvalidArgument);
  EXPECT_EQ(code_of(graph->replay(std::vector{Buffer{}}, vars)), Code::kInvalidArgument);
  EXPECT_EQ(code_of(graph->replay(std::vector{must(in.view(0, 56))}, vars)),
            Code::kInvalidArgument);
  EXPECT_EQ(code_of(graph->replay(std::vector{rig.words(8, 1)}, vars)), Code::kInvalidArgument);
  EXPECT_EQ(code_of(graph->replay(std::vector{in}, {})), Code::kInvalidArgument);
  must(graph->replay(std::vector{in}, vars));
}

TEST(GraphInline, InputOverlappingWrittenMemoryOfTheGraphIsRefused) {
  Rig rig({kInline});
  const Buffer in = rig.words(8), arena = rig.words(32), weights = rig.words(8);
  const Buffer out = must(arena.view(0, 64));
  auto graph = must(make_graph({rig.kernel({fixed(out), input(0, in), fixed(weights)})}, 1, 0));
  EXPECT_EQ(code_of(graph->replay(std::vector{out}, {})), Code::kUnsupported);
  EXPECT_EQ(code_of(graph->replay(std::vector{must(arena.view(56, 64))}, {})), Code::kUnsupported);
  EXPECT_EQ(rig.hals[0]->dispatches, 0);
  must(graph->replay(std::vector{must(arena.view(64, 64))},
                     {}));                        // another part of the same storage
  must(graph->replay(std::vector{weights}, {}));  // only read by both
  EXPECT_EQ(code_of(graph->replay(std::vector{out}, {})),
            Code::kUnsupported);  // again after a success
}

TEST(GraphInline, AliasThatCaptureSawIsAccepted) {
  Rig rig({kInline});
  const Buffer both = rig.words(8);
  auto graph = must(make_graph({rig.kernel({fixed(both), input(0, both)})}, 1, 0));
  must(graph->replay(std::vector{both}, {}));
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(Rig::data(both)[i], mixed(i, i));
}

TEST(GraphInline, InputsMayOverlapOnlyAsAtCapture) {
  Rig rig({kInline});
  const Buffer a = rig.words(8), b = rig.words(8), pool = rig.words(64);
  const auto part = [&](uint64_t word) { return must(pool.view(word * 8, 64)); };
  auto graph = must(make_graph({rig.kernel({input(0, a), input(1, b)})}, 2, 0));
  EXPECT_EQ(code_of(graph->replay(std::vector{part(0), part(0)}, {})), Code::kUnsupported);
  EXPECT_EQ(code_of(graph->replay(std::vector{part(4), part(0)}, {})), Code::kUnsupported);
  must(graph->replay(std::vector{part(8), part(0)}, {}));

  auto same = must(make_graph({rig.kernel({input(0, a), input(1, a)})}, 2, 0));
  must(same->replay(std::vector{part(0), part(0)}, {}));
  EXPECT_EQ(code_of(same->replay(std::vector{part(1), part(0)}, {})), Code::kUnsupported);
}

TEST(GraphInline, HostFunctionsAreNotGraphed) {
  Rig rig({kInline});
  runtime::HostCall host{[](auto, auto) { return Status(); }, &rig.device(), {}};
  auto graph = make_graph({{"host", host, {fixed(rig.words(4))}}}, 0, 0);
  ASSERT_FALSE(graph.has_value());
  EXPECT_EQ(graph.error().code, Code::kUnsupported);
}

TEST(GraphInline, MalformedCallsAreErrors) {
  Rig rig({kInline, kInline});
  const Buffer a = rig.words(4), b = rig.words(4), elsewhere = rig.words(4, 1);
  Call wrong_device = rig.kernel({fixed(a), fixed(b)});
  wrong_device.args[1].buffer = elsewhere;
  Call missing = rig.kernel({fixed(a), fixed(b)});
  missing.args.pop_back();
  Call bad_var = rig.kernel({fixed(a)}, {3});
  Call bad_slot = rig.kernel({fixed(a), input(1, b)});
  Call bad_copy = Rig::copy(fixed(a), fixed(rig.words(5)));
  for (const Call& call : {wrong_device, missing, bad_var, bad_slot, bad_copy}) {
    auto graph = make_graph({call}, 1, 1);
    ASSERT_FALSE(graph.has_value());
    EXPECT_EQ(graph.error().code, Code::kInvalidArgument) << graph.error().message;
  }
}

TEST(GraphInline, TwoInlineDevicesRunInProgramOrder) {
  Rig rig({kInline, kInline});
  const Buffer a = rig.words(4, 0), b = rig.words(4, 1);
  auto graph = must(make_graph({rig.kernel({fixed(a)}), Rig::copy(fixed(b), fixed(a)),
                                rig.kernel({fixed(b)}), Rig::copy(fixed(a), fixed(b))},
                               0, 0));
  must(graph->replay({}, {}));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Rig::data(a)[i], i * 31 * 31);
}

TEST(GraphInline, DeviceErrorReachesTheCallerAndTheGraphRecovers) {
  Rig rig({kInline});
  const Buffer a = rig.words(4);
  auto graph = must(make_graph({rig.kernel({fixed(a)})}, 0, 0));
  rig.hals[0]->is_refusing = true;
  EXPECT_EQ(code_of(graph->replay({}, {})), Code::kIo);
  rig.hals[0]->is_refusing = false;
  must(graph->replay({}, {}));
}

TEST(GraphInline, KeepsFixedBuffersAlive) {
  Rig rig({kInline});
  std::unique_ptr<runtime::Graph> graph;
  {
    const Buffer a = rig.words(4), b = rig.words(4);
    graph = must(make_graph({rig.kernel({fixed(a), fixed(b)})}, 0, 0));
  }
  must(graph->replay({}, {}));
}

TEST(GraphInline, CountsEveryCallInTheStatistics) {
  Rig rig({kInline});
  const Buffer a = rig.words(4);
  Call call = rig.kernel({fixed(a)});
  std::get<runtime::KernelCall>(call.what).flops = 10;
  auto graph = must(make_graph({call, call, call}, 0, 0));
  runtime::reset_counters();
  must(graph->replay({}, {}));
  EXPECT_EQ(runtime::counters().kernels, 3u);
  EXPECT_EQ(runtime::counters().operations, 30u);
}

TEST(GraphInline, GraphsOnFourThreadsDoNotDisturbEachOther) {
  Rig rig({kInline});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&rig, t] {
      const Buffer in = rig.words(16, 0, t), out = rig.words(16);
      auto graph = must(make_graph({rig.kernel({fixed(out), input(0, in)}, {0})}, 1, 1));
      for (int64_t round = 0; round < 200; ++round) {
        std::fill_n(Rig::data(out), 16, uint64_t{1});
        must(graph->replay(std::vector{in}, std::vector{round}));
        ASSERT_EQ(Rig::data(out)[3], mixed(1, t + 3, round));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(GraphInline, OneGraphSharedByThreadsRunsOneAtATime) {
  Rig rig({kInline});
  const Buffer out = rig.words(1);
  Rig::data(out)[0] = 0;
  auto graph = must(make_graph({rig.kernel({fixed(out)}, {0})}, 0, 1));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) must(graph->replay({}, std::vector<int64_t>{1}));
    });
  }
  for (auto& thread : threads) thread.join();
  uint64_t expected = 0;
  for (int i = 0; i < 200; ++i) expected = expected * 31 + 1;
  EXPECT_EQ(Rig::data(out)[0], expected);
}

}  // namespace
}  // namespace bm::fake
