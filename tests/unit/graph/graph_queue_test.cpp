// Graphs on queue devices: order across queues, devices and the host, compared with running the
// calls one after the other; and proof that these tests notice missing waits and barriers.

#include <cstring>
#include <optional>
#include <thread>

#include "tests/unit/graph/rig.h"
#include "runtime/profiler.h"
#include "runtime/stream.h"

namespace bm::fake {
namespace {

using hal::QueueKind;
using runtime::Buffer;
using runtime::Call;
using runtime::execute;
using runtime::make_graph;

// ---- random programs

struct Operand {
  size_t buffer = 0;
  uint64_t first_word = 0;
};
struct Op {
  bool is_copy = false;
  std::vector<Operand> operands;  ///< destination first
  uint64_t words = 0;
  std::vector<uint32_t> vars;
  bool has_symbolic_grid = false;  ///< as many words as variable 0 says
};

constexpr uint64_t kWords = 24;
constexpr uint32_t kVars = 2;

/// A random list of calls over `inputs` input and `fixeds` other buffers per device.
class Program {
 public:
  Program(uint32_t seed, size_t num_devices, size_t length) : random_(seed) {
    for (size_t d = 0; d < num_devices; ++d) {
      for (int i = 0; i < 3; ++i) owner_.push_back(d);  // the first of each device is an input
    }
    for (size_t i = 0; i < length; ++i) ops_.push_back(random_op());
  }

  size_t num_buffers() const { return owner_.size(); }
  size_t owner(size_t buffer) const { return owner_[buffer]; }
  static bool is_input(size_t buffer) { return buffer % 3 == 0; }

  std::vector<Call> calls(Rig& rig, const std::vector<Buffer>& buffers) const {
    std::vector<Call> made;
    for (const Op& op : ops_) {
      std::vector<runtime::Arg> args;
      for (const Operand& o : op.operands) {
        runtime::Arg arg;
        arg.buffer = must(buffers[o.buffer].view(o.first_word * 8, op.words * 8));
        if (is_input(o.buffer)) arg.slot = static_cast<int32_t>(o.buffer / 3);
        args.push_back(std::move(arg));
      }
      if (op.is_copy) {
        made.push_back(Rig::copy(args[0], args[1]));
      } else {
        std::optional<hal::DimExpr> grid;
        if (op.has_symbolic_grid) grid = dim_of_var(1);
        made.push_back(rig.kernel(std::move(args), op.vars, grid));
      }
    }
    return made;
  }

  /// The same on plain memory.
  void run(std::vector<std::vector<uint64_t>>& memory, const std::vector<int64_t>& vars) const {
    for (const Op& op : ops_) {
      std::vector<uint64_t*> at;
      for (const Operand& o : op.operands) at.push_back(memory[o.buffer].data() + o.first_word);
      if (op.is_copy) {
        std::memmove(at[0], at[1], op.words * 8);
        continue;
      }
      std::vector<int64_t> own;
      for (const uint32_t v : op.vars) own.push_back(vars[v]);
      mix(at, own.data(), static_cast<uint32_t>(own.size()),
          op.has_symbolic_grid ? static_cast<uint64_t>(vars[op.vars[0]]) : op.words);
    }
  }

 private:
  size_t pick(size_t below) { return random_() % below; }
  size_t buffer_on(size_t device) { return device * 3 + pick(3); }

  Op random_op() {
    const size_t num_devices = owner_.size() / 3;
    Op op;
    op.words = 8 + pick(kWords - 8 + 1);
    const auto operand = [&](size_t buffer) {
      return Operand{buffer, pick(kWords - op.words + 1)};
    };
    const size_t device = pick(num_devices);
    if (pick(3) == 0) {
      op.is_copy = true;
      const size_t dst = buffer_on(pick(num_devices));
      size_t src = buffer_on(device);
      while (src == dst) src = buffer_on(pick(num_devices));
      op.operands = {operand(dst), operand(src)};
      return op;
    }
    const size_t num = 1 + pick(3);
    for (size_t i = 0; i < num; ++i) op.operands.push_back(operand(buffer_on(device)));
    for (size_t v = pick(3); v > 0; --v) op.vars.push_back(static_cast<uint32_t>(pick(kVars)));
    op.has_symbolic_grid = !op.vars.empty() && pick(2) == 0;
    return op;
  }

  std::mt19937 random_;
  std::vector<size_t> owner_;
  std::vector<Op> ops_;
};

/// Runs a random program as a graph three times, with fresh inputs and eager work in between;
/// returns whether all memory is as sequential execution leaves it.
bool matches_sequential(const std::vector<FakeOptions>& options, uint32_t seed,
                        const Knobs& knobs = {}) {
  Rig rig(options, seed);
  const Program program(seed, options.size(), 30);
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < program.num_buffers(); ++i)
    buffers.push_back(rig.words(kWords, program.owner(i), 100 * i));
  auto graph =
      must(make_graph(program.calls(rig, buffers), static_cast<uint32_t>(options.size()), kVars));
  rig.world.set(knobs);

  bool is_equal = true;
  for (uint64_t round = 0; round < 3; ++round) {
    std::vector<Buffer> inputs;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!Program::is_input(i)) continue;
      buffers[i] = rig.words(kWords, program.owner(i), 1000 * round + i);
      inputs.push_back(buffers[i]);
    }
    std::vector<std::vector<uint64_t>> expected;
    for (const Buffer& b : buffers) expected.emplace_back(Rig::data(b), Rig::data(b) + kWords);
    const std::vector<int64_t> vars{static_cast<int64_t>(3 + round),
                                    static_cast<int64_t>(5 - round)};

    // Eager work right before and right after, without waiting: order must hold there too.
    Call eager = rig.kernel({fixed(buffers[1]), fixed(buffers[2])});
    mix({expected[1].data(), expected[2].data()}, nullptr, 0, kWords);
    must(execute(eager, {}));
    program.run(expected, vars);
    must(graph->replay(inputs, vars));
    mix({expected[1].data(), expected[2].data()}, nullptr, 0, kWords);
    must(execute(eager, {}));

    must(graph->wait());
    for (size_t d = 0; d < options.size(); ++d) must(rig.device(d).synchronize());
    // With waits ignored even the end does not wait for everything; the result is wrong by then.
    if (knobs.ignore_waits) rig.world.drain();
    for (size_t i = 0; i < buffers.size(); ++i)
      is_equal &= std::equal(expected[i].begin(), expected[i].end(), Rig::data(buffers[i]));
  }
  return is_equal;
}

const std::vector<std::vector<FakeOptions>> kSetups = {
    {kInline},
    {kQueue},
    {kOneQueue},
    {kInline, kInline},
    {kQueue, kInline},
    {kQueue, kQueue},
    {kOneQueue, kQueue},
    {kQueue, kQueue, kInline},
    {kInline, kQueue, kInline},
    {kQueue, kQueue, kQueue},
};

TEST(GraphQueue, RandomProgramsMatchSequentialExecution) {
  for (size_t setup = 0; setup < kSetups.size(); ++setup)
    for (uint32_t seed = 0; seed < 25; ++seed)
      ASSERT_TRUE(matches_sequential(kSetups[setup], seed))
          << "setup " << setup << " seed " << seed;
}

TEST(GraphQueue, RandomProgramsMatchUnderSkewedSchedules) {
  for (const Knobs& knobs : {Knobs{.prefer_copies = true}, Knobs{.prefer_compute = true}})
    for (uint32_t seed = 100; seed < 115; ++seed)
      ASSERT_TRUE(matches_sequential({kQueue, kQueue, kInline}, seed, knobs)) << "seed " << seed;
}

// The next two keep the tests above honest: without waits or barriers, they must fail.
TEST(GraphQueue, MissingWaitsWouldBeNoticed) {
  size_t noticed = 0;
  for (uint32_t seed = 0; seed < 10; ++seed)
    noticed += !matches_sequential({kQueue, kQueue}, seed, {.ignore_waits = true});
  EXPECT_GE(noticed, 8u);
}

TEST(GraphQueue, MissingBarriersWouldBeNoticed) {
  size_t noticed = 0;
  for (uint32_t seed = 0; seed < 10; ++seed)
    noticed += !matches_sequential({kOneQueue}, seed, {.ignore_barriers = true});
  EXPECT_GE(noticed, 8u);
}

// ---- shapes

TEST(GraphQueue, OneQueueNeedsOneWaitAndOneSignal) {
  Rig rig({kQueue});
  const Buffer a = rig.words(4), b = rig.words(4), c = rig.words(4), d = rig.words(4);
  auto graph =
      must(make_graph({rig.kernel({fixed(a), fixed(b)}), rig.kernel({fixed(c), fixed(d)})}, 0, 0));
  const FakeQueue& queue = rig.hals[0]->fake_queue(QueueKind::kCompute);
  EXPECT_EQ(queue.waits, 1u);
  EXPECT_EQ(queue.signals, 1u);
  EXPECT_EQ(queue.barriers, 1u);  // independent calls need none between them
  must(graph->replay({}, {}));
  must(graph->wait());
  EXPECT_EQ(queue.replays, 1u);
  EXPECT_EQ(rig.hals[0]->fake_queue(QueueKind::kCopy).replays, 0u);
}

TEST(GraphQueue, CopiesRunOnTheSourcesCopyQueue) {
  Rig rig({kQueue, kQueue});
  auto graph = must(make_graph({Rig::copy(fixed(rig.words(4, 1)), fixed(rig.words(4, 0)))}, 0, 0));
  must(graph->replay({}, {}));
  must(graph->wait());
  EXPECT_EQ(rig.hals[0]->fake_queue(QueueKind::kCopy).replays, 1u);
  EXPECT_EQ(rig.hals[0]->fake_queue(QueueKind::kCompute).replays, 0u);
  EXPECT_EQ(rig.hals[1]->fake_queue(QueueKind::kCopy).replays, 0u);
  EXPECT_EQ(rig.hals[1]->fake_queue(QueueKind::kCompute).replays, 1u);  // orders its later work
}

TEST(GraphQueue, MemoryThatCannotBeMappedIsUnsupported) {
  Rig rig({{.can_map = false}, {.can_map = false}});
  auto graph = make_graph({Rig::copy(fixed(rig.words(4, 1)), fixed(rig.words(4, 0)))}, 0, 0);
  ASSERT_FALSE(graph.has_value());
  EXPECT_EQ(graph.error().code, Code::kUnsupported);
}

/// Exits with 0 when three refusals are said in one line on stderr.
[[noreturn]] void count_warnings() {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    Rig rig({{.can_map = false}, {.can_map = false}});
    (void)make_graph({Rig::copy(fixed(rig.words(4, 1)), fixed(rig.words(4, 0)))}, 0, 0);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  const size_t first = said.find("is no graph");
  std::exit(first != said.npos && said.find("is no graph", first + 1) == said.npos ? 0 : 1);
}

TEST(GraphQueueDeathTest, ThatABatchIsNoGraphIsSaidOnce) {
  // In a process of its own, since it is once per process.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(count_warnings(), ::testing::ExitedWithCode(0), "");
}

TEST(GraphQueue, ReplayReturnsBeforeTheWorkIsDoneAndTheNextOneWaits) {
  Rig rig({kQueue});
  const Buffer a = rig.words(4);
  auto graph = must(make_graph({rig.kernel({fixed(a)})}, 0, 0));
  rig.world.set({.is_held = true});
  must(graph->replay({}, {}));
  EXPECT_FALSE(runtime::reached(a.storage->last_use()));
  std::thread release([&] { rig.world.set({}); });
  must(graph->replay({}, {}));  // the fake reports a fault if this overlaps with the first
  release.join();
  must(graph->wait());
  EXPECT_EQ(Rig::data(a)[1], 31u * 31u);
}

TEST(GraphQueue, DestroyingARunningGraphWaitsForIt) {
  Rig rig({kQueue});
  const Buffer a = rig.words(4);
  auto graph = must(make_graph({rig.kernel({fixed(a)})}, 0, 0));
  rig.world.set({.is_held = true});
  must(graph->replay({}, {}));
  std::thread release([&] { rig.world.set({}); });
  graph.reset();
  release.join();
  EXPECT_EQ(Rig::data(a)[1], 31u);
}

TEST(GraphQueue, WaitsForForeignWorkOnItsBuffers) {
  Rig rig({kQueue, kQueue});
  const Buffer a = rig.words(4), b = rig.words(4);
  auto graph = must(make_graph({rig.kernel({fixed(b), input(0, a)})}, 1, 0));
  const hal::Command command = hal::Write{must(a.storage->va_on(rig.device(1))), 1000};
  rig.world.set({.is_held = true});
  a.storage->used_until(must(rig.device(1).stream().submit(QueueKind::kCompute, {&command, 1})));
  std::thread release([&] { rig.world.set({}); });
  must(graph->replay(std::vector{a}, {}));
  release.join();
  must(graph->wait());
  EXPECT_EQ(Rig::data(b)[0], 5000u);
}

TEST(GraphQueue, RefusedQueueFailsTheReplayAndHangsNobody) {
  for (const size_t refusing : {size_t{0}, size_t{1}}) {
    Rig rig({kQueue, kQueue});
    const Buffer a = rig.words(4, 0), b = rig.words(4, 1);
    std::vector<Call> calls;
    for (int i = 0; i < 4; ++i) {
      calls.push_back(rig.kernel({fixed(a)}));
      calls.push_back(Rig::copy(fixed(b), fixed(a)));
      calls.push_back(rig.kernel({fixed(b)}));
      calls.push_back(Rig::copy(fixed(a), fixed(b)));
    }
    auto graph = must(make_graph(std::move(calls), 0, 0));
    rig.hals[refusing]->is_refusing = true;
    EXPECT_FALSE(graph->replay({}, {}).has_value());
    rig.hals[refusing]->is_refusing = false;
    // Whatever was submitted ends; a device left with work no Point covers says so instead of
    // hanging.
    for (size_t d = 0; d < 2; ++d) static_cast<void>(rig.device(d).synchronize());
  }
}

TEST(GraphQueue, FailedHostStepFailsTheReplayAndHangsNobody) {
  Rig rig({kQueue, kInline});
  const Buffer a = rig.words(4, 0), b = rig.words(4, 1);
  auto graph = must(make_graph({rig.kernel({fixed(a)}), Rig::copy(fixed(b), fixed(a)),
                                rig.kernel({fixed(b)}), Rig::copy(fixed(a), fixed(b))},
                               0, 0));
  rig.hals[1]->is_refusing = true;
  EXPECT_FALSE(graph->replay({}, {}).has_value());
  rig.hals[1]->is_refusing = false;
  must(rig.device(0).synchronize());
  must(graph->replay({}, {}));
  must(graph->wait());
}

TEST(GraphQueue, LostDeviceEndsTheWaitWithItsCause) {
  Rig rig({kQueue, kInline});
  const Buffer a = rig.words(4, 0), b = rig.words(4, 1);
  auto graph = must(make_graph(
      {rig.kernel({fixed(a)}), Rig::copy(fixed(b), fixed(a)), rig.kernel({fixed(b)})}, 0, 0));
  rig.world.set({.is_held = true});
  rig.hals[0]->is_lost = true;
  const Status replayed = graph->replay({}, {});
  ASSERT_FALSE(replayed.has_value());
  EXPECT_EQ(replayed.error().code, Code::kDeviceLost);
  rig.hals[0]->is_lost = false;
  rig.world.set({});
}

TEST(GraphQueue, ManyGraphsOnManyThreadsOverSharedDevices) {
  Rig rig({kQueue, kQueue, kInline});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&rig, t] {
      const Buffer a = rig.words(8, 0, t), b = rig.words(8, 1), c = rig.words(8, 2);
      auto graph = must(make_graph(
          {rig.kernel({fixed(a)}), Rig::copy(fixed(b), fixed(a)), rig.kernel({fixed(b)}),
           Rig::copy(fixed(c), fixed(b)), rig.kernel({fixed(c)}), Rig::copy(fixed(a), fixed(c))},
          0, 0));
      uint64_t expected = t + 1;
      for (int round = 0; round < 10; ++round) {
        must(graph->replay({}, {}));
        expected *= 31 * 31 * 31;
      }
      must(graph->wait());
      ASSERT_EQ(Rig::data(a)[1], expected);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(GraphQueue, ProfiledGraphHasARangePerCallAndArrows) {
  runtime::profiler().start("");
  Rig rig({kQueue, kInline});
  const Buffer a = rig.words(4, 0), b = rig.words(4, 1);
  auto graph = must(make_graph({rig.kernel({fixed(a)}), Rig::copy(fixed(b), fixed(a)),
                                rig.kernel({fixed(b)}), Rig::copy(fixed(a), fixed(b))},
                               0, 0));
  must(graph->replay({}, {}));
  runtime::profiler().stop();
  const std::string json = runtime::profiler().to_json();
  const auto count = [&](const std::string& text) {
    size_t found = 0;
    for (size_t at = json.find(text); at != json.npos; at = json.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("\"ph\":\"X\""), 5u) << json;
  // One per step of the chain, and the last copy overwrites what the first one read.
  EXPECT_EQ(count("\"ph\":\"s\""), 4u) << json;
  EXPECT_EQ(count("FAKE:1:COPY"), 1u) << json;
}

}  // namespace
}  // namespace bm::fake
