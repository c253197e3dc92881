// Operands of captured products, packed once: same bits as without, never stale.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tensor/jit.h"
#include "tensor/primitives.h"

namespace bm {
namespace {

class Packed : public ::testing::Test {
 protected:
  Tensor draw(const Shape& shape, DType dtype) {
    int64_t count = 1;
    for (const SymInt& d : shape) count *= d.constant();
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(is_float(dtype)    ? static_cast<float>(random_() % 2001) / 1000 - 1
                       : is_signed(dtype) ? static_cast<float>(random_() % 255) - 127
                                          : static_cast<float>(random_() % 256));
    return Tensor::from(values, shape).cast(dtype).contiguous().realize();
  }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  /// The same product by kernels of its own, which pack on every run.
  static std::vector<float> plain(const Tensor& x, const Tensor& w, DType sum) {
    return x.cast(sum).matmul(w.cast(sum)).cast(DType::kF32).data<float>();
  }
  static void expect_same(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  }

  std::mt19937_64 random_{std::random_device{}()};
};

TEST_F(Packed, ProductsAreTheSameBits) {
  int packed = 0;
  for (int round = 0; round < 8; ++round) {
    const int64_t m = between(5, 40), n = between(20, 150), k = between(16, 700);
    const bool is_k_major = random_() % 2 == 0, is_bytes = random_() % 3 == 0;
    const DType left = is_bytes ? DType::kU8 : DType::kF32,
                right = is_bytes ? DType::kI8 : DType::kF32,
                sum = is_bytes ? DType::kI32 : DType::kF32;
    const Tensor stored = draw(is_k_major ? Shape{n, k} : Shape{k, n}, right);
    const Tensor w = is_k_major ? stored.transpose() : stored;
    Jit product([&](const Tensor& x) { return x.cast(sum).matmul(w.cast(sum)).contiguous(); });
    for (int call = 0; call < 4; ++call) {
      const Tensor x = draw({m, k}, left);
      SCOPED_TRACE(
          fmt::format("{} x {} x {}, K-major {}, bytes {}", m, n, k, is_k_major, is_bytes));
      expect_same(product(x).cast(DType::kF32).data<float>(), plain(x, w, sum));
    }
    packed += product.core().packed_bytes() > 0;
  }
  EXPECT_GT(packed, 3);
}

/// A residual block over few pixels: one of its kernels has two products, and two operands to pack.
TEST_F(Packed, ConvolutionsOfOneKernelPackAllTheirWeights) {
  constexpr int64_t kIn = 48, kOut = 128;
  const Tensor a = draw({kOut, kIn, 3, 3}, DType::kF32), b = draw({kOut, kOut, 3, 3}, DType::kF32),
               c = draw({kOut, kIn, 1, 1}, DType::kF32), bias = draw({kOut}, DType::kF32);
  const auto block = [&](const Tensor& x) {
    const Tensor inner = x.conv(a, bias, {1, 1}, {1, 1}).relu();
    return (inner.conv(b, bias, {1, 1}, {1, 1}) + x.conv(c, bias)).relu();
  };
  Jit jit([&](const Tensor& x) { return block(x); });
  for (int call = 0; call < 4; ++call) {
    const Tensor x = draw({1, kIn, 7, 7}, DType::kF32);
    expect_same(jit(x).data<float>(), block(x).data<float>());
  }
  if (jit.core().packed_bytes() == 0) GTEST_SKIP() << "vectors of this processor fit 7 x 7 pixels";
  EXPECT_GE(jit.core().packed_bytes(),
            static_cast<uint64_t>(4 * kOut * (9 * kIn + 9 * kOut + kIn)));
}

TEST_F(Packed, FollowsAssign) {
  Tensor w = draw({96, 200}, DType::kF32);
  const Tensor bias = draw({96}, DType::kF32), x = draw({12, 200}, DType::kF32);
  Jit layer([&](const Tensor& in) { return in.linear(w, bias); });
  const auto want = [&] {
    return (x.matmul(w.transpose()).contiguous().realize() + bias).data<float>();
  };
  for (int i = 0; i < 3; ++i) expect_same(layer(x).data<float>(), want());
  ASSERT_GT(layer.core().packed_bytes(), 0U);
  w.assign(draw({96, 200}, DType::kF32));
  expect_same(layer(x).data<float>(), want());
  // A part of it, through a view.
  w.shrink({{3, 9}, {0, 200}}).assign(draw({6, 200}, DType::kF32));
  expect_same(layer(x).data<float>(), want());
}

TEST_F(Packed, FollowsAnotherCapture) {
  Tensor w = draw({64, 128}, DType::kF32);
  const Tensor x = draw({9, 128}, DType::kF32);
  Jit layer([&](const Tensor& in) { return in.matmul(w.transpose()); });
  Jit step([&](const Tensor& by) {
    w.assign(w + by);
    return by * 2;
  });
  for (int i = 0; i < 5; ++i) {
    expect_same(layer(x).data<float>(), plain(x, w.transpose(), DType::kF32));
    step(draw({64, 128}, DType::kF32));
  }
  EXPECT_GT(layer.core().packed_bytes(), 0U);
}

TEST_F(Packed, WhatTheCaptureWritesIsLeftAlone) {
  Tensor w = draw({64, 128}, DType::kF32);
  const Tensor x = draw({9, 128}, DType::kF32);
  Jit train([&](const Tensor& in) {
    Tensor y = in.matmul(w.transpose()).contiguous();
    y.realize();
    w.assign(w * 0.5F);
    return y;
  });
  for (int i = 0; i < 4; ++i) {
    const std::vector<float> want = plain(x, w.transpose(), DType::kF32);
    expect_same(train(x).data<float>(), want);
  }
  EXPECT_EQ(train.core().packed_bytes(), 0U);
}

TEST_F(Packed, InputsAndForeignMemoryAreLeftAlone) {
  const Tensor x = draw({9, 128}, DType::kF32);
  std::vector<float> memory(64 * 128, 1);
  const Tensor w = Tensor::from_blob(memory.data(), {64, 128}, DType::kF32);
  Jit layer([&](const Tensor& in, const Tensor& v) {
    return in.matmul(w.transpose()) + in.matmul(v.transpose());
  });
  for (int i = 0; i < 4; ++i) {
    memory.assign(memory.size(), static_cast<float>(i));
    const Tensor v = draw({64, 128}, DType::kF32);
    const Tensor want = x.matmul(w.transpose()) + x.matmul(v.transpose());
    expect_same(layer(x, v).data<float>(), want.data<float>());
  }
  EXPECT_EQ(layer.core().packed_bytes(), 0U);
}

TEST_F(Packed, SharedOperandsArePackedOnce) {
  const Tensor w = draw({128, 128}, DType::kF32), x = draw({8, 128}, DType::kF32);
  Jit twice([&](const Tensor& in) {
    return in.matmul(w.transpose()).contiguous().matmul(w.transpose());
  });
  for (int i = 0; i < 3; ++i) twice(x);
  EXPECT_EQ(twice.core().packed_bytes(), uint64_t{128} * 128 * 4);
}

}  // namespace
}  // namespace bm
