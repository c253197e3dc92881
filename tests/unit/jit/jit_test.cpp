#include "tensor/jit.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "runtime/base/env.h"
#include "tensor/primitives.h"

namespace bm {
namespace {

Tensor of(std::vector<float> v) { return Tensor::from(v, {static_cast<int64_t>(v.size())}); }
Tensor total(const Tensor& t) { return reduce(ir::ReduceOp::kSum, t, {}); }

TEST(Jit, PlainThenCaptureThenReplay) {
  int runs = 0;
  Jit step([&](const Tensor& x) {
    ++runs;
    return x + 1;
  });
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(step(of({static_cast<float>(i)})).data<float>()[0], static_cast<float>(i + 1));
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(step.core().is_graph());
}

TEST(Jit, CaptureNeedsNoPlainCall) {
  int runs = 0;
  Jit step([&](const Tensor& x) {
    ++runs;
    return x * 2;
  });
  EXPECT_EQ(step.capture(of({3})).data<float>()[0], 6);
  EXPECT_EQ(step(of({4})).data<float>()[0], 8);
  EXPECT_EQ(runs, 1);
}

TEST(Jit, ResultsEqualPlainExecution) {
  std::mt19937 random(7);
  const auto body = [](const Tensor& a, const Tensor& b) {
    const Tensor c = (a * b + 1).contiguous();
    return std::vector<Tensor>{total(c), c - a, c.permute({1, 0}).contiguous()};
  };
  Jit step(body);
  for (int round = 0; round < 6; ++round) {
    std::vector<float> x(35), y(35);
    for (float& v : x) v = static_cast<float>(random() % 100);
    for (float& v : y) v = static_cast<float>(random() % 100);
    const Tensor a = Tensor::from(x, {5, 7}), b = Tensor::from(y, {5, 7});
    const auto& got = step(a, b);
    const auto want = body(a, b);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(got[i].data<float>(), want[i].data<float>())
          << "round " << round << " output " << i;
  }
}

TEST(Jit, OtherShapesGetTheirOwnCapture) {
  Jit step([](const Tensor& x) { return total(x); });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(step(of({1, 2})).item<float>(), 3);
    EXPECT_EQ(step(of({1, 2, 3})).item<float>(), 6);
  }
  EXPECT_EQ(step.core().num_captures(), 2u);
}

TEST(Jit, StrictModeRefusesOtherShapes) {
  Jit step([](const Tensor& x) { return total(x); }, {.is_strict = true});
  step(of({1, 2}));
  EXPECT_THROW(step(of({1, 2, 3})), Exception);
}

TEST(Jit, CapacityBoundsTheCaptures) {
  Jit step([](const Tensor& x) { return total(x); }, {.capacity = 2});
  for (size_t n = 1; n < 6; ++n)
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(step(of(std::vector<float>(n, 1.0F))).item<float>(), static_cast<float>(n));
  EXPECT_LE(step.core().num_captures(), 2u);
}

TEST(Jit, ScalarArgumentsArePartOfTheKey) {
  Jit step([](const Tensor& x, int64_t n) { return x * n; });
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(step(of({2}), int64_t{3}).data<float>()[0], 6);
    EXPECT_EQ(step(of({2}), int64_t{5}).data<float>()[0], 10);
  }
}

TEST(Jit, VariablesMayChangeBetweenReplays) {
  Var n("n", 1, 6);
  Jit step([&](const Tensor& x) { return total(x.shrink({{0, SymInt(n)}})); });
  const Tensor x = of({1, 2, 4, 8, 16, 32});
  float want = 0;
  for (int64_t i = 1; i <= 6; ++i) {
    want += static_cast<float>(1 << (i - 1));
    n.set(i);
    EXPECT_EQ(step(x).item<float>(), want);
  }
  EXPECT_EQ(step.core().num_captures(), 1u);
}

TEST(Jit, OutputsOfSymbolicShapeFollowTheVariable) {
  Var n("n", 0, 4);
  Jit step([&](const Tensor& x) { return x.shrink({{SymInt(n), SymInt(n) + 2}}) + 0; });
  const Tensor x = of({0, 1, 2, 3, 4, 5});
  for (int64_t i = 0; i <= 4; ++i) {
    n.set(i);
    EXPECT_EQ(step(x).data<float>(),
              (std::vector<float>{static_cast<float>(i), static_cast<float>(i + 1)}));
  }
}

TEST(Jit, AssignedStateAdvancesOnEveryReplay) {
  Tensor count = Tensor::zeros({3}).contiguous().realize();
  Jit step([&](const Tensor& by) {
    count.assign(count + by);
    return count * 1;
  });
  for (int i = 1; i <= 8; ++i)
    EXPECT_EQ(step(of({1, 2, 3})).data<float>()[2], static_cast<float>(3 * i));
}

TEST(Jit, AnOutputFedBackAsInputIsNotOverwrittenWhileRead) {
  const auto body = [](const Tensor& x) {
    const Tensor shifted = Tensor::from<float>({0}).expand({1}).contiguous();
    return x.shrink({{1, 1000}}).pad({{0, 1}}) + 1;
  };
  Jit step(body);
  Tensor a = Tensor::arange(1000, DType::kF32).contiguous().realize(), b = a;
  for (int i = 0; i < 6; ++i) {
    a = step(a);
    b = body(b).realize();
    EXPECT_EQ(a.data<float>(), b.data<float>()) << "call " << i;
  }
}

TEST(Jit, OverlappingInputsAreRefusedAndDisjointSlicesAreNot) {
  Jit step([](const Tensor& a, const Tensor& b) { return a + b; });
  const Tensor x = of({1, 2});
  step(x, of({1, 1}));
  EXPECT_THROW(step(x, x), Exception);
}

TEST(Jit, ReadingDataInsideACaptureIsAnError) {
  Jit step([](const Tensor& x) { return x * (x + 1).data<float>()[0]; });
  step(of({1}));
  try {
    step(of({1}));
    FAIL() << "no exception";
  } catch (const Exception& e) {
    EXPECT_NE(std::string(e.what()).find("capture"), std::string::npos);
  }
  // The failed capture leaves nothing behind.
  EXPECT_EQ((of({2}) + 1).data<float>()[0], 3);
}

TEST(Jit, CapturingNothingIsAnError) {
  const Tensor frozen = of({5});
  Jit step([&](const Tensor&) { return frozen; });
  step(of({1}));
  EXPECT_THROW(step(of({1})), Exception);
}

TEST(Jit, AnInputHandedThroughIsTheInputOfEachCall) {
  Jit step([](const Tensor& x) { return x; });
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(step(of({static_cast<float>(i)})).data<float>()[0], static_cast<float>(i));
}

TEST(Jit, ANestedJitBecomesPartOfTheOuterCapture) {
  Jit inner([](const Tensor& x) { return x + 1; });
  Jit outer([&](const Tensor& x) { return inner(x) * 2; });
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(outer(of({static_cast<float>(i)})).data<float>()[0], static_cast<float>((i + 1) * 2));
}

TEST(Jit, ResetForgetsCaptures) {
  int runs = 0;
  Jit step([&](const Tensor& x) {
    ++runs;
    return x + 1;
  });
  for (int i = 0; i < 3; ++i) step(of({1}));
  step.reset();
  for (int i = 0; i < 3; ++i) step(of({1}));
  EXPECT_EQ(runs, 4);
}

TEST(Jit, Jit0RunsPlainAndJit2ReplaysCallByCall) {
  for (const char* level : {"0", "2"}) {
    ScopedSetting jit("JIT", level);
    int runs = 0;
    Jit step([&](const Tensor& x) {
      ++runs;
      return x + 1;
    });
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(step(of({static_cast<float>(i)})).data<float>()[0], static_cast<float>(i + 1));
    EXPECT_EQ(runs, level[0] == '0' ? 4 : 2);
    EXPECT_FALSE(step.core().is_graph());
  }
}

TEST(Jit, RefDeviceReplaysCallByCall) {
  Jit step([](const Tensor& x) { return x + 1; });
  for (int i = 0; i < 4; ++i) {
    const float v[] = {static_cast<float>(i)};
    EXPECT_EQ(step(Tensor::from(std::span<const float>(v), {1}, "REF")).data<float>()[0],
              static_cast<float>(i + 1));
  }
  EXPECT_FALSE(step.core().is_graph());
}

TEST(Jit, FourThreadsReplayIndependentGraphs) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t k = 0; k < 4; ++k)
    threads.emplace_back([&, k] {
      Jit step([](const Tensor& x) {
        Tensor t = x;
        for (int i = 0; i < 20; ++i) t = (t + 1).contiguous();
        return t;
      });
      for (int i = 0; i < 200; ++i) {
        const float start = static_cast<float>(i * 4 + static_cast<int>(k));
        if (step(of(std::vector<float>(100, start))).data<float>()[99] != start + 20) ++wrong[k];
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace bm
