// Captured programs as objects: transactions, generations, places of outputs, the cache, arenas.
#include "tensor/captured_program.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "runtime/base/env.h"
#include "runtime/device.h"
#include "runtime/stats.h"
#include "tensor/jit.h"

namespace bm {
namespace {

using Floats = std::vector<float>;

Tensor of(Floats v) { return Tensor::from(v, {static_cast<int64_t>(v.size())}); }
Tensor of(size_t n, float v) { return of(Floats(n, v)); }

// --- a capture is a transaction ------------------------------------------------------------------

/// A function with a state, an intermediate that escapes, and several kernels.
struct Stateful {
  Tensor state = of({1, 2, 3}), lazy = state * 10, escaped;
  const Tensor weight = Tensor::ones({64, 3}).contiguous().realize();
  Jit<std::function<std::vector<Tensor>(const Tensor&)>> step{[this](const Tensor& x) {
    escaped = (x + lazy).contiguous();
    escaped.realize();
    state.assign(state + escaped);
    Tensor wide = (x.reshape({1, 3}).linear(weight)).contiguous();
    wide.realize();
    return std::vector<Tensor>{(state * 2).contiguous(), wide.sum({1})};
  }};
};

TEST(CaptureTransaction, AFailureAtAnyStepLeavesEverythingAsItWas) {
  int failures = 0;
  for (size_t failing = 0;; ++failing) {
    Stateful s;
    std::string step_name;
    {
      size_t point = 0;
      const CaptureFaults faults([&](CaptureStep step, size_t index) -> Status {
        if (point++ != failing) return {};
        step_name = fmt::format("step {} index {}", static_cast<int>(step), index);
        return fail(Code::kOutOfMemory, "injected");
      });
      try {
        s.step.capture(of({1, 1, 1}));
        break;  // there is no such step any more
      } catch (const Exception& e) {
        EXPECT_EQ(e.code(), Code::kOutOfMemory) << e.what();
        ++failures;
      }
    }
    SCOPED_TRACE(step_name);
    EXPECT_EQ(s.state.data<float>(), (Floats{1, 2, 3}));
    EXPECT_EQ(s.lazy.data<float>(), (Floats{10, 20, 30}));
    if (s.escaped.is_valid()) {
      EXPECT_EQ(s.escaped.data<float>(), (Floats{11, 21, 31}));
    }
    EXPECT_EQ(s.step.core().num_captures(), 0u);
    for (int call = 1; call <= 3; ++call) {
      const auto got = s.step(of({1, 1, 1}));
      EXPECT_EQ(got[0].data<float>()[2], static_cast<float>(2 * (3 + 31 * call))) << call;
      EXPECT_EQ(got[1].item<float>(), 192) << call;
    }
  }
  EXPECT_GE(failures, 8) << "every call, packing, programs, plan, graph, first run";
}

TEST(CaptureTransaction, AFunctionThatThrowsAtAnyOfItsLinesLeavesEverythingAsItWas) {
  for (int failing = 0; failing < 4; ++failing) {
    Tensor state = of({1}), escaped;
    int line = 0;
    Jit step([&](const Tensor& x) {
      line = 0;
      const auto next_line = [&] {
        if (line++ == failing) throw std::runtime_error("no");
      };
      next_line();
      escaped = (x * 3).contiguous().realize();
      next_line();
      state.assign(state + escaped);
      next_line();
      Tensor out = (state * 2).contiguous().realize();
      next_line();
      return out;
    });
    EXPECT_THROW(step.capture(of({5})), std::runtime_error);
    EXPECT_EQ(state.data<float>()[0], 1);
    if (escaped.is_valid()) {
      EXPECT_EQ(escaped.data<float>()[0], 15);
    }
  }
}

TEST(CaptureTransaction, RunningOutOfMemoryLeavesTensorsUsable) {
  Tensor escaped;
  bool is_greedy = true;
  Jit step([&](const Tensor& x) {
    escaped = (x + 1).contiguous().realize();
    if (is_greedy) (escaped.expand({int64_t{1} << 44, 4}) + 1).contiguous().realize();
    return escaped * 2;
  });
  EXPECT_THROW(step.capture(of(4, 1)), Exception);
  EXPECT_EQ(escaped.data<float>(), Floats(4, 2));
  is_greedy = false;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(of(4, 1)).data<float>(), Floats(4, 4));
}

// --- replays of ordinary arguments

TEST(CapturedReplay, AnOutputFedBackAndOtherInputsMayTakeTurns) {
  Jit step([](const Tensor& x) { return (x.flip({0}) + 1).contiguous(); });
  const Tensor other = of({1, 2, 3});
  Tensor fed = step.capture(other);
  for (int i = 0; i < 4; ++i) {
    const Floats before = fed.data<float>();
    fed = step(fed);  // would be overwritten while it is read
    EXPECT_EQ(fed.data<float>(), (Floats{before[2] + 1, before[1] + 1, before[0] + 1}));
    if (i % 2 == 0) continue;
    fed = step(other);
    EXPECT_EQ(fed.data<float>(), (Floats{4, 3, 2}));
  }
}

TEST(CapturedReplay, AnInputThatSharesMemoryWithAStateIsSeenAfterOneThatDoesNot) {
  Tensor state = of({1, 2, 3, 4});
  Jit step([&](const Tensor& x) {
    state.assign(state + 1);
    return (x * state.sum()).contiguous();
  });
  const Tensor other = of({1, 1, 1, 1});
  step.capture(other);
  step(other);
  EXPECT_THROW(step(state), Exception);
  EXPECT_EQ(step(other).data<float>()[0], 10 + 3 * 4);
  EXPECT_THROW(step(state), Exception);
}

TEST(CapturedReplay, ADonatedOrLazyArgumentAfterOrdinaryOnesIsNoticed) {
  Jit step([](const Tensor& x) { return (x + 1).contiguous(); }, {.outputs = Outputs::kDonate});
  const Tensor given = of({1, 2});
  step.capture(of({5, 6}));
  EXPECT_EQ(step(given).data<float>(), (Floats{2, 3}));
  EXPECT_THROW(step(given), Exception);
  const Tensor lazy = of({3, 4}) * 2;
  EXPECT_EQ(step(lazy).data<float>(), (Floats{7, 9}));
  EXPECT_EQ(step.core().num_captures(), 1U);
}

TEST(CapturedReplay, CountersKeepReplaysThroughResetsAndBeyondTheProgram) {
  const Tensor x = of({1, 2});
  {
    Jit step([](const Tensor& t) { return ((t + 1).contiguous() * 2).contiguous(); });
    step.capture(x);
    const runtime::Counters before = runtime::counters();
    for (int i = 0; i < 3; ++i) step(x);
    const runtime::Counters after = runtime::counters();
    EXPECT_EQ(after.kernels - before.kernels, 3 * step.core().num_calls());
    EXPECT_GT(after.operations, before.operations);
    EXPECT_GT(after.bytes, before.bytes);
    runtime::reset_counters();
    EXPECT_EQ(runtime::counters().kernels, 0U);
    step(x);
    EXPECT_EQ(runtime::counters().kernels, step.core().num_calls());
  }
  EXPECT_EQ(runtime::counters().kernels, 2U);
}

// New nodes of a graph are moved to where they stay: a copy takes shares of all sources.
static_assert(std::is_nothrow_move_constructible_v<Node>);

// --- outputs

TEST(CapturedOutputs, AStaleOneIsAnErrorWhenChecked) {
  Jit step([](const Tensor& x) { return x + 1; }, {.is_checked = true});
  step(of({1}));
  const Tensor first = step(of({2}));
  EXPECT_EQ(first.data<float>()[0], 3);
  const Tensor second = step(of({3}));
  EXPECT_EQ(second.data<float>()[0], 4);
  try {
    (void)first.data<float>();
    FAIL() << "no exception";
  } catch (const Exception& e) {
    EXPECT_NE(std::string(e.what()).find("earlier run"), std::string::npos) << e.what();
  }
  EXPECT_THROW((first + 1).realize(), Exception);
  EXPECT_THROW(step(first), Exception);
  EXPECT_EQ(step.core().generation(), 2u);
}

TEST(CapturedOutputs, AStaleOneIsAnErrorUnderTheEnvironmentsCheck) {
  const ScopedSetting checked("BM_CHECKED", "1");
  Jit step([](const Tensor& x) { return x + 1; });
  const Tensor first = step.capture(of({2}));
  step(of({3}));
  EXPECT_THROW((void)first.data<float>(), Exception);
}

TEST(CapturedOutputs, FreshOnesStayWhatTheyAre) {
  for (const char* level : {"1", "2"}) {
    const ScopedSetting jit("JIT", level);
    Jit step(
        [](const Tensor& x) {
          const Tensor y = (x * 2).contiguous();
          return std::vector<Tensor>{y, y + 1, y};
        },
        {.outputs = Outputs::kFresh});
    std::vector<std::vector<Tensor>> all;
    for (int i = 0; i < 6; ++i) all.push_back(step(of(100, static_cast<float>(i))));
    for (int i = 0; i < 6; ++i) {
      const auto& out = all[static_cast<size_t>(i)];
      EXPECT_EQ(out[0].data<float>()[99], static_cast<float>(2 * i)) << i;
      EXPECT_EQ(out[1].data<float>()[99], static_cast<float>(2 * i + 1)) << i;
      EXPECT_EQ(out[2].data<float>()[99], static_cast<float>(2 * i)) << i;
    }
  }
}

TEST(CapturedOutputs, DonatedArgumentsGiveTheirMemory) {
  Jit step([](const Tensor& x) { return x.flip({0}) + 1; }, {.outputs = Outputs::kDonate});
  Tensor x = Tensor::arange(1000, DType::kF32).contiguous().realize();
  x = step(x);
  std::set<const runtime::Storage*> storages;
  for (int i = 0; i < 10; ++i) {
    const Tensor old = x;
    x = step(x);
    storages.insert(x.buffer().storage.get());
    if (i == 0) continue;  // the capture
    EXPECT_THROW((void)old.data<float>(), Exception) << i;
  }
  EXPECT_LE(storages.size(), 3u);
  Floats want(1000);
  for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<float>(999 - i + 11);
  EXPECT_EQ(x.data<float>(), want);
}

TEST(CapturedOutputs, ALazyReaderOfADonatedArgumentKeepsItsValue) {
  Jit step([](const Tensor& x) { return x + 1; }, {.outputs = Outputs::kDonate});
  for (int i = 0; i < 4; ++i) {
    const Tensor x = of({static_cast<float>(i)});
    const Tensor twice = x * 2;
    EXPECT_EQ(step(x).data<float>()[0], static_cast<float>(i + 1));
    EXPECT_EQ(twice.data<float>()[0], static_cast<float>(2 * i));
  }
}

// --- the cache

TEST(JitCache, CountsWhatHappens) {
  Jit step([](const Tensor& x) { return x + 1; }, {.capacity = 1});
  for (int i = 0; i < 5; ++i) step(of(1, 0));
  EXPECT_EQ(step.core().counters().plain, 1u);
  EXPECT_EQ(step.core().counters().captures, 1u);
  EXPECT_EQ(step.core().counters().hits, 3u);
  for (int i = 0; i < 2; ++i) step(of(2, 0));
  EXPECT_EQ(step.core().counters().evictions, 1u);
}

TEST(JitCache, TheLeastRecentlyUsedCaptureGoes) {
  int runs = 0;
  Jit step(
      [&](const Tensor& x) {
        ++runs;
        return x + 1;
      },
      {.capacity = 2});
  for (int i = 0; i < 2; ++i) step(of(1, 0));
  for (int i = 0; i < 2; ++i) step(of(2, 0));
  step(of(1, 0));
  for (int i = 0; i < 2; ++i) step(of(3, 0));  // evicts 2
  runs = 0;
  step(of(1, 0));
  step(of(3, 0));
  EXPECT_EQ(runs, 0);
  step(of(2, 0));
  EXPECT_EQ(runs, 1);
}

TEST(JitCache, WarnsOfCapacityAtTheThirdRecapture) {
  Jit step([](const Tensor& x) { return x + 1; }, {.capacity = 1});
  std::vector<std::string> texts;
  for (int round = 0; round < 6; ++round) {
    testing::internal::CaptureStderr();
    for (size_t n = 1; n <= 2; ++n)
      for (int i = 0; i < 2; ++i) step(of(n, 0));
    texts.push_back(testing::internal::GetCapturedStderr());
  }
  for (size_t round = 0; round < texts.size(); ++round)
    EXPECT_EQ(texts[round].find("JitOptions::capacity") != std::string::npos, round == 3)
        << round << ": " << texts[round];
}

TEST(JitCache, ArgumentTypesArePartOfTheKey) {
  Jit step([](const auto&... x) { return (x + ...); });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(step(of({1}), int64_t{2}).template data<float>()[0], 3);
    EXPECT_EQ(step(of({1}), of({5})).template data<float>()[0], 6);
    EXPECT_EQ(step(of({1}), std::bit_cast<double>(int64_t{2})).template data<float>()[0], 1);
  }
}

// --- arguments

TEST(CapturedArguments, RowsOfOneTensorShareACapture) {
  int runs = 0;
  Jit step([&](const Tensor& x) {
    ++runs;
    return x + 1;
  });
  const Tensor rows =
      Tensor::arange(64 * 128, DType::kF32).reshape({64, 128}).contiguous().realize();
  for (int64_t i = 0; i < 64; ++i)
    EXPECT_EQ(step(rows.shrink({{i, i + 1}, {0, 128}})).data<float>()[0],
              static_cast<float>(128 * i + 1));
  EXPECT_EQ(runs, 2);
}

TEST(CapturedArguments, OffsetsOfOtherViewsArePartOfTheKey) {
  Jit step([&](const Tensor& x) { return x + 1; });
  const Tensor grid = Tensor::arange(16, DType::kF32).reshape({4, 4}).contiguous().realize();
  for (int round = 0; round < 3; ++round)
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(step(grid.shrink({{0, 4}, {i, i + 1}})).data<float>(),
                (Floats{static_cast<float>(i + 1), static_cast<float>(i + 5),
                        static_cast<float>(i + 9), static_cast<float>(i + 13)}));
  EXPECT_EQ(step.core().num_captures(), 4u);
}

TEST(CapturedArguments, AStateThatIsAlsoTheArgumentWorksOrIsRefused) {
  Tensor state = of({1});
  Jit before([&](const Tensor& x) {
    const Tensor out = (x + 0).contiguous().clone();
    Tensor(out).realize();
    state.assign(state + 1);
    return out + 0;
  });
  for (int i = 1; i < 5; ++i) EXPECT_EQ(before(state).data<float>()[0], static_cast<float>(i));
  Jit after([&](const Tensor& x) {
    state.assign(state + 1);
    return x + 0;
  });
  const Floats now = state.data<float>();
  after(state);  // plain
  EXPECT_THROW(after(state), Exception);
  EXPECT_EQ(state.data<float>()[0], now[0] + 1) << "the refused call changed nothing";
}

// --- arenas

Tensor long_chain(const Tensor& x, int64_t columns) {
  Tensor t = x;
  for (int i = 0; i < 6; ++i) {
    t = (t + 1).contiguous();
    t = (t.reshape({-1, columns}).flip({0}) * 2).contiguous().reshape({-1});
  }
  return t;
}

TEST(CaptureArenas, CapturesOfOneJitShareTheirIntermediates) {
  Jit step([](const Tensor& x) { return long_chain(x, 8); });
  const auto want = [](float v) {
    for (int i = 0; i < 6; ++i) v = (v + 1) * 2;
    return v;
  };
  uint64_t largest = 0;
  for (const size_t n : {4096u, 1024u, 2048u, 512u}) {
    step.capture(of(n, 1));
    largest = std::max(largest, step.core().arenas().bytes());
  }
  EXPECT_EQ(step.core().arenas().bytes(), largest);
  ASSERT_GT(largest, 0u);
  // Interleaved, with all outputs alive.
  for (int round = 0; round < 3; ++round) {
    std::vector<Tensor> alive;
    for (const size_t n : {4096u, 1024u, 2048u, 512u})
      alive.push_back(step(of(n, static_cast<float>(round + static_cast<int>(n)))));
    size_t i = 0;
    for (const size_t n : {4096u, 1024u, 2048u, 512u}) {
      const Floats got = alive[i++].data<float>();
      EXPECT_EQ(got, Floats(n, want(static_cast<float>(round + static_cast<int>(n)))));
    }
  }
}

TEST(CaptureArenas, ThreadsThatShareOneTakeTurns) {
  const auto arenas = std::make_shared<ArenaPool>();
  std::vector<std::thread> threads;
  std::vector<int> wrong(3);
  for (size_t k = 0; k < wrong.size(); ++k)
    threads.emplace_back([&, k] {
      Jit step([](const Tensor& x) { return long_chain(x, 4); }, {.arenas = arenas});
      for (int i = 0; i < 100; ++i) {
        float want = static_cast<float>(k * 7 + static_cast<size_t>(i));
        const Tensor x = of(256, want);
        for (int r = 0; r < 6; ++r) want = (want + 1) * 2;
        if (step(x).data<float>() != Floats(256, want)) ++wrong[k];
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, std::vector<int>(3));
}

}  // namespace
}  // namespace bm
