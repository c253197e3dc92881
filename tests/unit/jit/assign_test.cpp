// assign: storage changes, computed values do not.
#include <gtest/gtest.h>

#include <cmath>

#include "tensor/primitives.h"
#include "tensor/tensor.h"

namespace bm {
namespace {

class Assign : public ::testing::TestWithParam<const char*> {
 protected:
  Tensor of(std::vector<float> v) const {
    return Tensor::from(v, {static_cast<int64_t>(v.size())}, GetParam());
  }
  Tensor grid() const {
    return Tensor::arange(12, DType::kF32, GetParam()).reshape({3, 4}).contiguous().realize();
  }
};
using Floats = std::vector<float>;

TEST_P(Assign, WritesIntoTheSameStorage) {
  Tensor x = of({1, 2, 3});
  const auto storage = x.buffer().storage;
  x.assign(x * 2 + 1);
  EXPECT_EQ(x.data<float>(), (Floats{3, 5, 7}));
  EXPECT_EQ(x.buffer().storage, storage);
}

TEST_P(Assign, ACopyOfTheHandleSeesTheNewContents) {
  Tensor x = of({1, 2});
  const Tensor same = x;
  x.assign(of({5, 6}));
  EXPECT_EQ(same.data<float>(), (Floats{5, 6}));
}

TEST_P(Assign, LazyValuesKeepTheOldContents) {
  Tensor x = of({1, 2, 3});
  const Tensor doubled = x * 2;
  const Tensor view = x.shrink({{1, 3}});
  const Tensor later = view + 100;
  x.assign(of({7, 8, 9}));
  EXPECT_EQ(doubled.data<float>(), (Floats{2, 4, 6}));
  EXPECT_EQ(later.data<float>(), (Floats{102, 103}));
}

TEST_P(Assign, AValueTheCallerKeepsStaysWhatItWas) {
  Tensor x = of({1, 2, 3});
  const Tensor next = x + 1;
  x.assign(next);
  EXPECT_EQ(x.data<float>(), (Floats{2, 3, 4}));
  EXPECT_EQ(next.data<float>(), (Floats{2, 3, 4}));
}

TEST_P(Assign, ValuesOnTheWayThatTheCallerKeepsStayWhatTheyWere) {
  Tensor x = of({1, 2, 3});
  const Tensor root = (x * x + 8).sqrt();  // what reads x is held by `root` alone
  x.assign(root);
  EXPECT_EQ(root.data<float>(), (Floats{3, std::sqrt(12.0F), std::sqrt(17.0F)}));
  Tensor y = of({3, 1, 2});
  const Tensor sorted = y.sort(0).first, doubled = sorted * 2, sum = doubled + 1;
  y.shrink({{0, 3}}).assign(sum);
  EXPECT_EQ(y.data<float>(), (Floats{3, 5, 7}));
  EXPECT_EQ(sorted.data<float>(), (Floats{1, 2, 3}));
  EXPECT_EQ(doubled.data<float>(), (Floats{2, 4, 6}));
}

TEST_P(Assign, ThroughAViewLeavesNeighboursAlone) {
  Tensor x = grid();
  x.shrink({{1, 2}, {1, 3}}).assign(Tensor::full({1, 2}, -1, DType::kF32, GetParam()));
  EXPECT_EQ(x.data<float>(), (Floats{0, 1, 2, 3, 4, -1, -1, 7, 8, 9, 10, 11}));
}

TEST_P(Assign, ThroughPermutedFlippedAndReshapedViews) {
  Tensor x = grid();
  x.permute({1, 0}).flip({0}).assign(Tensor::arange(12, DType::kF32, GetParam()).reshape({4, 3}));
  EXPECT_EQ(x.data<float>(), (Floats{9, 6, 3, 0, 10, 7, 4, 1, 11, 8, 5, 2}));
  x.reshape({12}).shrink({{3, 5}}).assign(of({50, 60}));
  EXPECT_EQ(x.data<float>(), (Floats{9, 6, 3, 50, 60, 7, 4, 1, 11, 8, 5, 2}));
}

TEST_P(Assign, OverlappingReadsSeeTheOldContents) {
  Tensor x = of({1, 2, 3, 4, 5});
  x.shrink({{1, 5}}).assign(x.shrink({{0, 4}}));
  EXPECT_EQ(x.data<float>(), (Floats{1, 1, 2, 3, 4}));
  x.assign(x.flip({0}));
  EXPECT_EQ(x.data<float>(), (Floats{4, 3, 2, 1, 1}));
}

TEST_P(Assign, BroadcastsAndConverts) {
  Tensor x = grid();
  x.assign(7);
  EXPECT_EQ(x.data<float>(), Floats(12, 7.0F));
  x.assign(Tensor::from<int64_t>({1, 2, 3, 4}, GetParam()));
  EXPECT_EQ(x.data<float>(), (Floats{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
}

TEST_P(Assign, SymbolicRows) {
  Tensor x = grid();
  Var row("row", 0, 2);
  for (int64_t r = 0; r < 3; ++r) {
    row.set(r);
    x.shrink({{SymInt(row), SymInt(row) + 1}, {0, 4}})
        .assign(Tensor::value_of(row, GetParam()).cast(DType::kF32) * 10);
  }
  EXPECT_EQ(x.data<float>(), (Floats{0, 0, 0, 0, 10, 10, 10, 10, 20, 20, 20, 20}));
}

TEST_P(Assign, RefusesTargetsWithoutStorageOfTheirOwn) {
  Tensor x = of({1, 2});
  Tensor lazy = x + 1;
  EXPECT_THROW(lazy.assign(of({1, 2})), Exception);
  Tensor wide = of({1}).reshape({1, 1}).expand({2, 2});
  EXPECT_THROW(wide.assign(Tensor::full({2, 2}, 1, DType::kF32, GetParam())), Exception);
}

TEST_P(Assign, NamesBothShapesWhenTheyDoNotFit) {
  Tensor x = of({1, 2});
  try {
    x.assign(of({1, 2, 3}));
    FAIL() << "no exception";
  } catch (const Exception& e) {
    EXPECT_NE(std::string(e.what()).find("[3]"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("[2]"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Assign, ::testing::Values("REF", "CPU"));

}  // namespace
}  // namespace bm
