// Known answers of views and of indexing by tensors.
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Movement : public OnDevice {};
BM_ON_DEVICES(Movement);

TEST_P(Movement, TransposeSwapsTwoAxes) {
  EXPECT_TRUE(has_values(count({2, 3}).transpose(), {3, 2}, {0, 3, 1, 4, 2, 5}));
  EXPECT_TRUE(has_values(count({2, 1, 3}).transpose(0, 2), {3, 1, 2}, {0, 3, 1, 4, 2, 5}));
}

TEST_P(Movement, SliceFollowsPython) {
  const Tensor x = count({7});
  EXPECT_TRUE(has_values(x.slice(0, {2, 5, 1}), {3}, {2, 3, 4}));
  EXPECT_TRUE(has_values(x.slice(0, {-3, {}, 1}), {3}, {4, 5, 6}));
  EXPECT_TRUE(has_values(x.slice(0, {{}, -5, 1}), {2}, {0, 1}));
  EXPECT_TRUE(has_values(x.slice(0, {{}, {}, 3}), {3}, {0, 3, 6}));
  EXPECT_TRUE(has_values(x.slice(0, {1, 6, 2}), {3}, {1, 3, 5}));
  EXPECT_TRUE(has_values(x.slice(0, {{}, {}, -1}), {7}, {6, 5, 4, 3, 2, 1, 0}));
  EXPECT_TRUE(has_values(x.slice(0, {5, 1, -2}), {2}, {5, 3}));
  EXPECT_TRUE(has_values(x.slice(0, {-2, -6, -3}), {2}, {5, 2}));
  EXPECT_TRUE(has_values(x.slice(0, {100, {}, -4}), {2}, {6, 2}));
  EXPECT_TRUE(has_values(x.slice(0, {-100, 100, 1}), {7}, {0, 1, 2, 3, 4, 5, 6}));
}

TEST_P(Movement, SlicesMayBeEmpty) {
  EXPECT_TRUE(has_values(count({4}).slice(0, {3, 1, 1}), {0}, {}));
  EXPECT_TRUE(has_values(count({4}).slice(0, {4, {}, 1}), {0}, {}));
  EXPECT_TRUE(has_values(count({4}).slice(0, {1, 3, -1}), {0}, {}));
  EXPECT_TRUE(has_values(count({4}).slice(0, {3, 1, 2}), {0}, {}));
}

TEST_P(Movement, SymbolicSliceFollowsTheVariable) {
  const Var p("p", 0, 4);
  const Tensor x = count({3, 6});
  const Tensor row = x.slice(1, {SymInt(p), SymInt(p) + 2, 1});
  p.set(3);
  EXPECT_TRUE(has_values(row, {3, 2}, {3, 4, 9, 10, 15, 16}));
  const Var n("n", 1, 6);
  n.set(4);
  EXPECT_EQ(numbers(x.slice(1, {0, SymInt(n), 1}).sum({1})), (std::vector<double>{6, 30, 54}));
}

TEST_P(Movement, IndexDropsAxes) {
  const Tensor x = count({2, 3, 4});
  EXPECT_TRUE(has_values(x.index({1}), {3, 4}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_TRUE(has_values(x.index({-1, Slice{}, 2}), {3}, {14, 18, 22}));
  EXPECT_TRUE(has_values(x.index({0, 2, -1}), {}, {11}));
  EXPECT_TRUE(has_values(x.index({Slice{}, Slice{1, {}, 1}, Slice{{}, {}, 3}}), {2, 2, 2},
                         {4, 7, 8, 11, 16, 19, 20, 23}));
}

TEST_P(Movement, SqueezeAndUnsqueeze) {
  EXPECT_EQ(count({1, 3, 1}).squeeze().shape(), (Shape{3}));
  EXPECT_EQ(count({1, 3, 1}).squeeze(0).shape(), (Shape{3, 1}));
  EXPECT_EQ(count({1, 3, 1}).squeeze(1).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(count({3}).unsqueeze(-1).shape(), (Shape{3, 1}));
  EXPECT_EQ(count({3}).unsqueeze(0).shape(), (Shape{1, 3}));
}

TEST_P(Movement, FlattenAndUnflatten) {
  EXPECT_EQ(count({2, 3, 4}).flatten().shape(), (Shape{24}));
  EXPECT_EQ(count({2, 3, 4}).flatten(1).shape(), (Shape{2, 12}));
  EXPECT_EQ(count({2, 3, 4}).flatten(0, 1).shape(), (Shape{6, 4}));
  EXPECT_EQ(count({}).flatten().shape(), (Shape{1}));
  EXPECT_EQ(count({2, 12}).unflatten(1, {3, -1}).shape(), (Shape{2, 3, 4}));
}

TEST_P(Movement, RepeatAndRepeatInterleave) {
  EXPECT_TRUE(has_values(count({2}).repeat({3}), {6}, {0, 1, 0, 1, 0, 1}));
  EXPECT_TRUE(has_values(count({2}).repeat({2, 2}), {2, 4}, {0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_TRUE(has_values(count({2, 2}).repeat_interleave(2, 0), {4, 2}, {0, 1, 0, 1, 2, 3, 2, 3}));
  EXPECT_TRUE(has_values(count({2, 2}).repeat_interleave(2, 1), {2, 4}, {0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_TRUE(has_values(count({2}).repeat({0}), {0}, {}));
}

TEST_P(Movement, RollWrapsAround) {
  EXPECT_TRUE(has_values(count({5}).roll(2, 0), {5}, {3, 4, 0, 1, 2}));
  EXPECT_TRUE(has_values(count({5}).roll(-6, 0), {5}, {1, 2, 3, 4, 0}));
  EXPECT_TRUE(has_values(count({2, 3}).roll(1, -1), {2, 3}, {2, 0, 1, 5, 3, 4}));
}

TEST_P(Movement, SplitAndChunk) {
  const auto pieces = count({7}).split(3);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_TRUE(has_values(pieces[2], {1}, {6}));
  const auto chunks = count({2, 7}).chunk(3, 1);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_TRUE(has_values(chunks[1], {2, 3}, {3, 4, 5, 10, 11, 12}));
  EXPECT_TRUE(has_values(chunks[2], {2, 1}, {6, 13}));
}

TEST_P(Movement, CatAndStackKeepEveryValue) {
  const Tensor a = f32({-0.0, kInf, kNan}), b = count({2});
  EXPECT_TRUE(has_values(Tensor::cat(std::array{a, b, a}), {8},
                         {-0.0, kInf, kNan, 0, 1, -0.0, kInf, kNan}));
  EXPECT_TRUE(std::signbit(numbers(Tensor::cat(std::array{b, a}))[2]));
  EXPECT_TRUE(has_values(Tensor::cat(std::array{count({2, 1}), count({2, 2})}, -1), {2, 3},
                         {0, 0, 1, 1, 2, 3}));
  EXPECT_TRUE(has_values(Tensor::stack(std::array{b, b + 5}), {2, 2}, {0, 1, 5, 6}));
  EXPECT_TRUE(has_values(Tensor::stack(std::array{b, b + 5}, -1), {2, 2}, {0, 5, 1, 6}));
  EXPECT_EQ(Tensor::cat(std::array{i64({1}), f32({0.5})}).dtype(), DType::kF32);
}

TEST_P(Movement, CatOfSymbolicLengths) {
  const Var n("n", 0, 3);
  n.set(2);
  const Tensor prefix = count({3}).slice(0, {0, SymInt(n), 1});
  EXPECT_TRUE(
      are_close({0, 1, 10, 11}, numbers(Tensor::cat(std::array{prefix, count({2}) + 10})), {}));
}

TEST_P(Movement, GatherReadsAlongAnAxis) {
  const Tensor x = count({3, 2});
  EXPECT_TRUE(has_values(x.gather(0, i64({2, 0, -1, 1}, {2, 2})), {2, 2}, {4, 1, 4, 3}));
  EXPECT_TRUE(has_values(x.gather(1, i64({1, 0, 1}, {3, 1})), {3, 1}, {1, 2, 5}));
  EXPECT_TRUE(has_values(x.gather(0, i64({3, -4}, {1, 2})), {1, 2}, {0, 0}));
}

TEST_P(Movement, TakeReadsRows) {
  const Tensor x = count({4, 2});
  EXPECT_TRUE(has_values(x.take(i64({3, 0, -2}, {3})), {3, 2}, {6, 7, 0, 1, 4, 5}));
  EXPECT_TRUE(has_values(x.take(i64({1, 0, 0, 1}, {2, 2}), 1), {4, 2, 2},
                         {1, 0, 0, 1, 3, 2, 2, 3, 5, 4, 4, 5, 7, 6, 6, 7}));
  EXPECT_TRUE(has_values(x.take(i64({2}, {})), {2}, {4, 5}));
}

TEST_P(Movement, ScatterSetsWithTheLastWriter) {
  const Tensor x = count({5}), at = i64({1, 3, 1, -1});
  EXPECT_TRUE(has_values(x.scatter(0, at, f32({10, 20, 30, 40})), {5}, {0, 30, 2, 20, 40}));
  EXPECT_TRUE(has_values(x.scatter(0, at, 7), {5}, {0, 7, 2, 7, 7}));
  EXPECT_TRUE(has_values(count({2, 3}).scatter(1, i64({2, 0}, {2, 1}), f32({-1, -2}, {2, 1})),
                         {2, 3}, {0, 1, -1, -2, 4, 5}));
  EXPECT_TRUE(has_values(count({3, 2}).scatter(0, i64({2}, {1, 1}), f32({9}, {1, 1})), {3, 2},
                         {0, 1, 2, 3, 9, 5}));
}

TEST_P(Movement, ScatterReduces) {
  const Tensor x = f32({1, 2, 3}), at = i64({0, 0, 2}), v = f32({5, -7, 2});
  EXPECT_TRUE(has_values(x.scatter(0, at, v, "add"), {3}, {-1, 2, 5}));
  EXPECT_TRUE(has_values(x.scatter(0, at, v, "prod"), {3}, {-35, 2, 6}));
  EXPECT_TRUE(has_values(x.scatter(0, at, v, "max"), {3}, {5, 2, 3}));
  EXPECT_TRUE(has_values(x.scatter(0, at, v, "min"), {3}, {-7, 2, 2}));
}

TEST_P(Movement, TrianglesAndDiagonal) {
  const Tensor x = count({2, 3}) + 1;
  EXPECT_TRUE(has_values(x.tril(), {2, 3}, {1, 0, 0, 4, 5, 0}));
  EXPECT_TRUE(has_values(x.tril(-1), {2, 3}, {0, 0, 0, 4, 0, 0}));
  EXPECT_TRUE(has_values(x.triu(1), {2, 3}, {0, 2, 3, 0, 0, 6}));
  EXPECT_TRUE(has_values(x.diagonal(), {2}, {1, 5}));
  EXPECT_TRUE(has_values(count({2, 3, 3}).diagonal(), {2, 3}, {0, 4, 8, 9, 13, 17}));
}

TEST_P(Movement, ErrorsNameWhatDoesNotFit) {
  const Tensor x = count({2, 3});
  EXPECT_THAT(message_of([&] { x.index({2}); }),
              ::testing::HasSubstr("index 2 is out of range for axis 0 of [2, 3]"));
  EXPECT_THAT(message_of([&] { x.slice(0, {{}, {}, 0}); }), ::testing::HasSubstr("step is zero"));
  const std::string cat = message_of([&] { Tensor::cat(std::array{x, count({2, 2})}); });
  EXPECT_THAT(cat, ::testing::HasSubstr("[2, 3]"));
  EXPECT_THAT(cat, ::testing::HasSubstr("[2, 2]"));
  EXPECT_THAT(message_of([&] { x.gather(0, f32({1})); }), ::testing::HasSubstr("gather"));
  EXPECT_THAT(message_of([&] { x.gather(0, f32({1, 1}, {1, 2})); }),
              ::testing::HasSubstr("integer dtype"));
  EXPECT_THAT(message_of([&] { x.scatter(0, i64({0, 0}, {1, 2}), f32({1}, {1, 1})); }),
              ::testing::HasSubstr("[1, 2]"));
  EXPECT_THAT(message_of([&] { x.scatter(0, i64({0}, {1, 1}), 1, "mean"); }),
              ::testing::HasSubstr("mean"));
  EXPECT_THAT(message_of([&] { count({3}).tril(); }), ::testing::HasSubstr("two axes"));
  EXPECT_THAT(message_of([&] { x.split(0); }), ::testing::HasSubstr("split"));
  const Var n("n", 1, 9);
  EXPECT_THAT(message_of([&] { count({5}).slice(0, {0, SymInt(n), 1}); }),
              ::testing::HasSubstr("depends on the variables"));
}

}  // namespace
}  // namespace bm::test
