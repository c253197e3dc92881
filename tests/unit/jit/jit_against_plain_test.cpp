// A captured function gives what the plain one gives: nesting, levels, exceptions, views, aliases,
// eviction. Each of these was once silently different.
#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tensor/jit.h"
#include "tensor/primitives.h"

namespace bm {
namespace {

using Floats = std::vector<float>;

Tensor of(Floats v, std::string_view device = "") {
  return Tensor::from(v, {static_cast<int64_t>(v.size())}, device);
}

class JitOn : public ::testing::TestWithParam<const char*> {
 protected:
  Tensor make(Floats v) const { return of(std::move(v), GetParam()); }
  Tensor grid(int64_t rows, int64_t columns) const {
    return Tensor::arange(rows * columns, DType::kF32, GetParam())
        .reshape({rows, columns})
        .contiguous()
        .realize();
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, JitOn, ::testing::Values("REF", "CPU"));

TEST(JitAgainstPlain, ANestedJitStillWorksOnItsOwnAfterwards) {
  Jit inner([](const Tensor& x) { return x + 1; });
  for (int i = 0; i < 3; ++i) inner(of({static_cast<float>(i)}));
  Jit outer([&](const Tensor& x) { return inner(x) * 2; });
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(outer(of({static_cast<float>(i)})).data<float>()[0], static_cast<float>(2 * i + 2));
  for (int i = 3; i < 6; ++i)
    EXPECT_EQ(inner(of({static_cast<float>(i)})).data<float>()[0], static_cast<float>(i + 1));
}

TEST(JitAgainstPlain, APlainCallUnderJit0LeavesTheCaptureAlone) {
  Jit step([](const Tensor& x) { return x + 1; });
  for (int i = 0; i < 3; ++i) step(of({static_cast<float>(i)}));
  {
    ScopedSetting jit("JIT", "0");
    EXPECT_EQ(step(of({10})).data<float>()[0], 11);
  }
  for (int i = 3; i < 6; ++i)
    EXPECT_EQ(step(of({static_cast<float>(i)})).data<float>()[0], static_cast<float>(i + 1));
}

TEST(JitAgainstPlain, TwoCallsInOneExpressionAreTwoResults) {
  ScopedSetting jit("JIT", "0");
  Jit step([](const Tensor& x) { return x * 10; });
  EXPECT_EQ((step(of({1})) + step(of({2}))).data<float>()[0], 30);
}

TEST(JitAgainstPlain, AFailedCaptureLeavesTensorsLazy) {
  const Tensor base = of({1, 2, 3});
  Tensor kept = base + 1, made;
  bool is_failing = false;
  Jit step([&](const Tensor& x) {
    made = (x * 3).contiguous();
    made.realize();
    const Tensor sum = (kept + made).contiguous();
    Tensor(sum).realize();
    if (is_failing) throw std::runtime_error("no");
    return sum;
  });
  is_failing = true;
  const Tensor x = of({10, 20, 30});
  EXPECT_THROW(step.capture(x), std::runtime_error);
  EXPECT_EQ(made.data<float>(), (Floats{30, 60, 90}));
  EXPECT_EQ(kept.data<float>(), (Floats{2, 3, 4}));
  is_failing = false;
  EXPECT_EQ(step(x).data<float>(), (Floats{32, 63, 94}));
  EXPECT_EQ(step(of({0, 0, 0})).data<float>(), (Floats{2, 3, 4}));
}

TEST(JitAgainstPlain, LazyTensorsOfTheOutsideKeepTheirValue) {
  // `kept` reads a state that every call advances: its value is that of the first use.
  Tensor state = of({1});
  Tensor kept = (state * 100).contiguous();
  Jit step([&](const Tensor& x) {
    Tensor out = (x + kept).contiguous();
    state.assign(state + 1);
    return out;
  });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step.capture(of({1})).data<float>()[0], 101) << i;
  EXPECT_EQ(kept.data<float>()[0], 100);
  EXPECT_EQ(state.data<float>()[0], 5);
}

TEST(JitAgainstPlain, ALazyTensorOfTheOutsideThatIsDetachedIsCapturedAgain) {
  Tensor state = of({1});
  const Tensor kept = state * 100;
  Jit step([&](const Tensor& x) { return x + kept; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(of({1})).data<float>()[0], 101);
  state.assign(of({7}));  // `kept` keeps the old contents
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(of({1})).data<float>()[0], 101);
}

TEST_P(JitOn, AnUpdateThroughASliceReachesTheStorage) {
  for (const bool is_row : {true, false}) {
    Tensor base = grid(6, 4), plain = grid(6, 4);
    const auto view = [&](Tensor& t, int64_t i) {
      return is_row ? t.shrink({{i, i + 1}, {0, 4}}) : t.shrink({{0, 6}, {i, i + 1}});
    };
    const auto body = [](const Tensor& v) {
      Tensor(v).assign(v * 2 + 1);
      return (v + 0).contiguous();
    };
    Jit step(body);
    for (int64_t call = 0; call < 8; ++call) {
      Tensor a = view(base, call % 4), b = view(plain, call % 4);
      const Floats got = step(a).data<float>(), want = body(b).data<float>();
      EXPECT_EQ(got, want) << "row " << is_row << " call " << call;
      EXPECT_EQ(base.data<float>(), plain.data<float>()) << "row " << is_row << " call " << call;
    }
  }
}

TEST_P(JitOn, APassedViewStaysAView) {
  Tensor base = grid(4, 4);
  Tensor column = base.shrink({{0, 4}, {1, 2}});
  Jit step([](const Tensor& v) { return v + 1; });
  for (int i = 0; i < 3; ++i) step(column);
  column.assign(Tensor::full({4, 1}, -1, DType::kF32, GetParam()));
  EXPECT_EQ(base.data<float>(), (Floats{0, -1, 2, 3, 4, -1, 6, 7, 8, -1, 10, 11, 12, -1, 14, 15}));
}

TEST_P(JitOn, ReadingThroughAViewLeavesItAView) {
  Tensor base = grid(2, 2);
  Tensor top = base.shrink({{0, 1}, {0, 2}});
  EXPECT_EQ((top + 1).data<float>(), (Floats{1, 2}));
  top.assign(Tensor::full({1, 2}, 9, DType::kF32, GetParam()));
  EXPECT_EQ(base.data<float>(), (Floats{9, 9, 2, 3}));
}

TEST_P(JitOn, AClosureTensorIsNotReplacedByLaterInputs) {
  const Tensor held = make({1, 2});
  Jit step([&](const Tensor& x) { return x + held * 10; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(held).data<float>(), (Floats{11, 22}));
  EXPECT_EQ(step(make({5, 5})).data<float>(), (Floats{15, 25}));
  EXPECT_EQ(step(held).data<float>(), (Floats{11, 22}));
}

TEST_P(JitOn, AKeptLazyTensorSeesTheStateItWasMadeFrom) {
  Tensor state = make({1});
  Jit step([&](const Tensor& by) {
    state.assign(state + by);
    return state * 2;
  });
  for (int i = 0; i < 5; ++i) {
    const float before = state.data<float>()[0];
    const Tensor kept = state * 100;
    step(make({1}));
    EXPECT_EQ(kept.data<float>()[0], before * 100) << "call " << i;
  }
}

TEST_P(JitOn, ALazyTensorMadeOfAnOutputKeepsItsValue) {
  Jit step([](const Tensor& x) { return x + 1; });
  for (int i = 0; i < 5; ++i) {
    const Tensor twice = step(make({static_cast<float>(i)})) * 2;
    step(make({100}));
    EXPECT_EQ(twice.data<float>()[0], static_cast<float>(2 * i + 2)) << "call " << i;
  }
}

TEST_P(JitOn, AValueThatHangsOnAKeptTensorIsRealisedBeforeItsStorageChanges) {
  Tensor x = make({1, 2});
  const Tensor next = (x + 1) * 2;
  x.assign(next);
  EXPECT_EQ(x.data<float>(), (Floats{4, 6}));
  EXPECT_EQ(next.data<float>(), (Floats{4, 6}));
}

TEST(JitAgainstPlain, AnotherReturnTypeAfterEvictionIsNoCrash) {
  Jit step(
      [](const auto& x) {
        if constexpr (std::is_same_v<std::decay_t<decltype(x)>, Tensor>)
          return x + 1;
        else
          return std::vector<Tensor>{x[0] + 1, x[0] * 2, x[0] - 3};
      },
      JitOptions{.capacity = 1});
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step(of({1, 2, 3})).data<float>(), (Floats{2, 3, 4}));
    for (int i = 0; i < 3; ++i) {
      const auto& list = step(std::vector<Tensor>{of({4, 5, 6})});
      ASSERT_EQ(list.size(), 3u);
      EXPECT_EQ(list[1].data<float>(), (Floats{8, 10, 12}));
    }
  }
}

TEST(JitAgainstPlain, NineShapesThroughACacheOfEightMostlyReplay) {
  int runs = 0;
  Jit step([&](const Tensor& x) {
    ++runs;
    return x.sum();
  });
  const auto round = [&] {
    for (size_t n = 1; n <= 9; ++n)
      EXPECT_EQ(step(of(Floats(n, 1.0F))).item<float>(), static_cast<float>(n));
  };
  for (int i = 0; i < 3; ++i) round();
  runs = 0;
  for (int i = 0; i < 10; ++i) round();
  EXPECT_LE(runs, 30) << "of 90 calls";
}

TEST(JitAgainstPlain, AKeySeenOnceEvictsNoCapture) {
  int runs = 0;
  Jit step(
      [&](const Tensor& x) {
        ++runs;
        return x.sum();
      },
      {.capacity = 2});
  for (int i = 0; i < 3; ++i) step(of({1})), step(of({1, 2}));
  for (size_t n = 3; n < 30; ++n) step(of(Floats(n, 1.0F)));
  runs = 0;
  step(of({1})), step(of({1, 2}));
  EXPECT_EQ(runs, 0);
}

}  // namespace
}  // namespace bm
