// Known answers of products, convolutions, pooling and normalisations.
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Linear : public OnDevice {};
BM_ON_DEVICES(Linear);

TEST_P(Linear, MatmulOfEveryRank) {
  const Tensor a = count({2, 3}), b = count({3, 2});
  EXPECT_TRUE(has_values(a.matmul(b), {2, 2}, {10, 13, 28, 40}));
  EXPECT_TRUE(has_values(count({3}).matmul(b), {2}, {10, 13}));
  EXPECT_TRUE(has_values(a.matmul(count({3})), {2}, {5, 14}));
  EXPECT_TRUE(has_values(count({3}).dot(count({3})), {}, {5}));
  EXPECT_TRUE(has_values(count({2, 1, 2}).matmul(count({2, 1})), {2, 1, 1}, {1, 3}));
  EXPECT_EQ(count({4, 1, 2, 3}).matmul(count({5, 3, 2})).shape(), (Shape{4, 5, 2, 2}));
  EXPECT_TRUE(has_values(Tensor::zeros({2, 0}, DType::kF32, device())
                             .matmul(Tensor::zeros({0, 2}, DType::kF32, device())),
                         {2, 2}, {0, 0, 0, 0}));
}

TEST_P(Linear, MatmulTypes) {
  const Tensor bytes = Tensor::full_int({1, 4}, 100, DType::kI8, device());
  EXPECT_EQ(bytes.matmul(bytes.transpose(), DType::kI32).item<int32_t>(), 40000);
  EXPECT_EQ(bytes.matmul(bytes.transpose()).dtype(), DType::kI8);
  const Tensor half = Tensor::ones({1, 4096}, DType::kBF16, device());
  EXPECT_TRUE(has_values(half.matmul(half.transpose()), {1, 1}, {4096}));
}

TEST_P(Linear, LinearAddsItsBias) {
  EXPECT_TRUE(has_values(count({1, 2}).linear(count({3, 2}), count({3})), {1, 3}, {1, 4, 7}));
  const std::string message = message_of([&] { count({1, 3}).linear(count({3, 2})); });
  EXPECT_THAT(message, ::testing::HasSubstr("[1, 3]"));
  EXPECT_THAT(message, ::testing::HasSubstr("[3, 2]"));
}

TEST_P(Linear, EinsumFormulas) {
  const Tensor a = count({2, 3}), b = count({3, 2}), s = count({3, 3});
  const auto einsum = [](std::string_view f, std::vector<Tensor> t) {
    return Tensor::einsum(f, t);
  };
  EXPECT_TRUE(has_values(einsum("ij,jk->ik", {a, b}), {2, 2}, {10, 13, 28, 40}));
  EXPECT_TRUE(has_values(einsum("ij,jk", {a, b}), {2, 2}, {10, 13, 28, 40}));
  EXPECT_TRUE(has_values(einsum("ij->ji", {a}), {3, 2}, {0, 3, 1, 4, 2, 5}));
  EXPECT_TRUE(has_values(einsum("ba", {a}), {3, 2}, {0, 3, 1, 4, 2, 5}));
  EXPECT_TRUE(has_values(einsum("ii->i", {s}), {3}, {0, 4, 8}));
  EXPECT_TRUE(has_values(einsum("ii", {s}), {}, {12}));
  EXPECT_TRUE(has_values(einsum("iji->j", {count({2, 3, 2})}), {3}, {7, 11, 15}));
  EXPECT_TRUE(has_values(einsum("i,j->ij", {count({2}), count({3})}), {2, 3}, {0, 0, 0, 0, 1, 2}));
  EXPECT_TRUE(has_values(einsum("ij,jk,kl->il", {a, b, count({2, 1})}), {2, 1}, {13, 40}));
  EXPECT_TRUE(has_values(einsum("...ij,...jk->...ik", {count({2, 1, 2}), count({2, 1})}), {2, 1, 1},
                         {1, 3}));
  EXPECT_TRUE(has_values(einsum("i...->...", {a}), {3}, {3, 5, 7}));
  EXPECT_TRUE(has_values(einsum("ij,ij->", {a, a}), {}, {55}));
  EXPECT_THAT(message_of([&] { einsum("ij,jk->ik", {a, a}); }), ::testing::HasSubstr("[2, 3]"));
  EXPECT_THAT(message_of([&] { einsum("ij->ix", {a}); }),
              ::testing::HasSubstr("letter of the result"));
  EXPECT_THAT(message_of([&] { einsum("ijk", {a}); }),
              ::testing::HasSubstr("does not name the axes"));
  EXPECT_THAT(message_of([&] { einsum("i,j", {a}); }), ::testing::HasSubstr("2 operands, 1 given"));
}

TEST_P(Linear, ConvOfOneAndTwoAxes) {
  EXPECT_TRUE(
      has_values(count({1, 1, 5}).conv(f32({1, 10}, {1, 1, 2})), {1, 1, 4}, {10, 21, 32, 43}));
  EXPECT_TRUE(has_values(count({1, 1, 5}).conv(f32({1, 10}, {1, 1, 2}), f32({100}), {2}, {1}),
                         {1, 1, 3}, {100, 121, 143}));
  EXPECT_TRUE(has_values(count({1, 1, 5}).conv(f32({1, 10}, {1, 1, 2}), {}, {1}, {0}, {3}),
                         {1, 1, 2}, {30, 41}));
  const Tensor x = count({1, 1, 3, 3}), w = f32({1, 0, 0, 1}, {1, 1, 2, 2});
  EXPECT_TRUE(has_values(x.conv(w), {1, 1, 2, 2}, {4, 6, 10, 12}));
  EXPECT_TRUE(has_values(x.conv(w, {}, {2}, {1}), {1, 1, 2, 2}, {0, 2, 6, 12}));
  EXPECT_TRUE(has_values(count({1, 4, 2}).conv(f32({1, 2, 3, 4}, {2, 2, 1}), {}, {1}, {0}, {1}, 2),
                         {1, 2, 2}, {4, 7, 36, 43}));
  EXPECT_TRUE(has_values(count({2, 3}).conv(count({1, 3})), {2, 1}, {5, 14}));
}

TEST_P(Linear, ConvTransposeIsTheAdjoint) {
  const Tensor x = f32({1, 2, 3}, {1, 1, 3}), w = f32({1, 10}, {1, 1, 2});
  EXPECT_TRUE(has_values(x.conv_transpose(w), {1, 1, 4}, {1, 12, 23, 30}));
  EXPECT_TRUE(has_values(x.conv_transpose(w, {}, {2}), {1, 1, 6}, {1, 10, 2, 20, 3, 30}));
  EXPECT_TRUE(has_values(x.conv_transpose(w, {}, {2}, {1}, {1}), {1, 1, 5}, {10, 2, 20, 3, 30}));
  EXPECT_TRUE(
      has_values(x.conv_transpose(w, f32({5}), {1}, {0}, {0}, {2}), {1, 1, 5}, {6, 7, 18, 25, 35}));
  EXPECT_EQ(
      count({1, 4, 3, 3}).conv_transpose(count({4, 2, 3, 3}), {}, {2}, {1}, {1}, {1}, 2).shape(),
      (Shape{1, 4, 6, 6}));
}

TEST_P(Linear, Pooling) {
  const Tensor x = count({1, 1, 4, 4});
  EXPECT_TRUE(has_values(x.max_pool({2, 2}), {1, 1, 2, 2}, {5, 7, 13, 15}));
  EXPECT_TRUE(has_values(x.max_pool({3, 3}, {1}), {1, 1, 2, 2}, {10, 11, 14, 15}));
  EXPECT_TRUE(has_values((x * -1).max_pool({2, 2}, {2}, {1}), {1, 1, 3, 3},
                         {0, -1, -3, -4, -5, -7, -12, -13, -15}));
  EXPECT_TRUE(has_values(x.avg_pool({2, 2}), {1, 1, 2, 2}, {2.5, 4.5, 10.5, 12.5}));
  EXPECT_TRUE(has_values(count({1, 3}).avg_pool({2}, {2}, {1}), {1, 2}, {0, 1.5}));
  EXPECT_TRUE(has_values(count({1, 4}).avg_pool({2}, {2}, {1}), {1, 3}, {0, 1.5, 1.5}));
  EXPECT_TRUE(has_values(count({1, 4}).avg_pool({2}, {2}, {1}, false), {1, 3}, {0, 1.5, 3}));
  EXPECT_TRUE(
      has_values(i64({-3, -1, -2}, {1, 3}).max_pool({2}, {1}, {1}), {1, 4}, {-3, -1, -1, -2}));
  EXPECT_THAT(message_of([&] { x.max_pool({5, 5}); }), ::testing::HasSubstr("does not fit"));
  EXPECT_THAT(message_of([&] { x.max_pool({2, 2}, {2}, {2}); }), ::testing::HasSubstr("padding 2"));
}

TEST_P(Linear, ConvErrorsNameBothShapes) {
  const std::string message = message_of([&] { count({1, 3, 4, 4}).conv(count({2, 2, 3, 3})); });
  EXPECT_THAT(message, ::testing::HasSubstr("[1, 3, 4, 4]"));
  EXPECT_THAT(message, ::testing::HasSubstr("[2, 2, 3, 3]"));
  EXPECT_THAT(message_of([&] { count({1, 2, 4}).conv(count({3, 1, 3}), {}, {1}, {0}, {1}, 2); }),
              ::testing::HasSubstr("groups"));
  const std::string product = message_of([&] { count({2, 3}).matmul(count({4, 2})); });
  EXPECT_THAT(product, ::testing::HasSubstr("float32 [2, 3] and float32 [4, 2]"));
  EXPECT_THAT(product, ::testing::HasSubstr("inner sizes 3 and 4"));
}

TEST_P(Linear, Normalisations) {
  const Tensor x = f32({1, 2, 3, 4}, {1, 4});
  const double r = 1 / std::sqrt(1.25);
  EXPECT_TRUE(has_values(x.layer_norm({}, {}, 0), {1, 4}, {-1.5 * r, -0.5 * r, 0.5 * r, 1.5 * r},
                         {1e-6, 0}));
  EXPECT_TRUE(has_values(x.layer_norm(f32({1, 2, 1, 2}), f32({1, 1, 1, 1}), 0), {1, 4},
                         {1 - 1.5 * r, 1 - r, 1 + 0.5 * r, 1 + 3 * r}, {1e-6, 0}));
  const double m = 1 / std::sqrt(7.5);
  EXPECT_TRUE(has_values(x.rms_norm({}, 0), {1, 4}, {m, 2 * m, 3 * m, 4 * m}, {1e-6, 0}));
  EXPECT_TRUE(has_values(x.group_norm(2, {}, {}, 0), {1, 4}, {-1, 1, -1, 1}, {1e-6, 0}));
  EXPECT_TRUE(has_values(
      f32({1, 2}, {1, 2}).batch_norm(f32({2, 3}), f32({0, 1}), f32({0, 1}), f32({1, 4}), 0), {1, 2},
      {2, 2.5}, {1e-6, 0}));
  EXPECT_THAT(message_of([&] { x.layer_norm(f32({1, 2, 3})); }), ::testing::HasSubstr("[1, 4]"));
  EXPECT_EQ(x.cast(DType::kF16).layer_norm().dtype(), DType::kF16);
}

TEST_P(Linear, AttentionAveragesValues) {
  const Tensor q = Tensor::zeros({1, 2, 2}, DType::kF32, device()),
               v = f32({1, 2, 3, 4, 5, 6}, {1, 3, 2});
  EXPECT_TRUE(has_values(Tensor::attention(q, v, v), {1, 2, 2}, {3, 4, 3, 4}, {1e-6, 0}));
  EXPECT_TRUE(has_values(Tensor::attention(q, v, v, {}, true), {1, 2, 2}, {1, 2, 2, 3}, {1e-6, 0}));
  EXPECT_TRUE(
      has_values(Tensor::attention(q, v, v, flags({0, 0, 1})), {1, 2, 2}, {5, 6, 5, 6}, {1e-6, 0}));
  EXPECT_TRUE(has_values(Tensor::attention(q, v, v, flags({0, 0, 0})), {1, 2, 2}, {0, 0, 0, 0}));
  EXPECT_TRUE(has_values(Tensor::attention(q, v, v, f32({-kInf, 0, -kInf})), {1, 2, 2},
                         {3, 4, 3, 4}, {1e-6, 0}));
  const Tensor grouped = Tensor::attention(Tensor::zeros({4, 1, 2}, DType::kF32, device()),
                                           count({2, 1, 2}), count({2, 1, 2}));
  EXPECT_TRUE(has_values(grouped, {4, 1, 2}, {0, 1, 0, 1, 2, 3, 2, 3}, {1e-6, 0}));
  EXPECT_THAT(message_of([&] { Tensor::attention(q, count({1, 3, 4}), v); }),
              ::testing::HasSubstr("[1, 3, 4]"));
}

}  // namespace
}  // namespace bm::test
