// Tensors on DEV=CUDA:PTX over the fake libcuda.so.1, which executes PTX.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "drivers/cuda/api.h"
#include "drivers/cuda/device.h"
#include "runtime/allocator.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "runtime/device.h"
#include "tensor/jit.h"
#include "tensor/exception.h"
#include "tensor/tensor.h"

namespace bm {
namespace {

constexpr const char* kDevice = "CUDA:PTX";

class CudaTensor : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = runtime::open_device(kDevice);
    ASSERT_TRUE(opened) << opened.error().message;
    device_ = *opened;
  }
  const ScopedSetting library_{"BM_CUDA_LIBRARY", BM_FAKE_CUDA};
  runtime::Device* device_ = nullptr;
};

std::vector<float> numbers(size_t count, int seed) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i)
    out[i] = static_cast<float>((static_cast<int>(i) * 37 + seed * 11) % 101) / 16.0F - 3.0F;
  return out;
}

TEST_F(CudaTensor, ComputesWhatTheCpuDoes) {
  const auto run = [](const char* device) {
    const Tensor a = Tensor::from(numbers(24 * 40, 1), {24, 40}, device),
                 b = Tensor::from(numbers(40 * 12, 2), {40, 12}, device);
    const Tensor c = a.matmul(b);
    return std::vector{c.data<float>(), (c - c.max({1}, true)).exp().sum({1}).data<float>(),
                       (a * 2 + 1).transpose(0, 1).contiguous().data<float>(),
                       a.sum({0}).data<float>()};
  };
  const auto want = run("CPU"), got = run(kDevice);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size());
    for (size_t k = 0; k < want[i].size(); ++k)
      EXPECT_NEAR(got[i][k], want[i][k], 1e-4F * (1 + std::abs(want[i][k]))) << i << ", " << k;
  }
}

/// x·Wᵀ in float64; `round`: what becomes of x.
std::vector<double> product_of(const std::vector<float>& x, const std::vector<float>& w,
                               size_t rows, size_t columns, float (*round)(float)) {
  const size_t n = w.size() / columns;
  std::vector<double> out(rows * n);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < n; ++j)
      for (size_t k = 0; k < columns; ++k)
        out[i * n + j] += double{round(x[i * columns + k])} * double{w[j * columns + k]};
  return out;
}

/// Activations are rounded once, and nothing else: sums are float32's.
TEST_F(CudaTensor, LinearLayersOf16BitWeightsRoundTheirInputs) {
  constexpr size_t kRows = 77, kColumns = 136, kOut = 101;
  std::mt19937 generator(std::random_device{}());
  std::uniform_real_distribution<float> uniform(-2, 2);
  std::vector<float> x(kRows * kColumns), w(kOut * kColumns);
  for (float& v : x) v = uniform(generator);
  for (float& v : w) v = f16_to_f32(f32_to_f16(uniform(generator)));
  x[5] = 1e6F;  // float16 ends at 65504
  const auto rounded = [](float v) {
    return f16_to_f32(f32_to_f16(std::clamp(v, -65504.0F, 65504.0F)));
  };
  const auto same = [](float v) { return v; };
  const auto worst = [&](const std::vector<float>& got, const std::vector<double>& want) {
    double most = 0;
    for (size_t i = 0; i < got.size(); ++i)
      most = std::max(most, std::abs(got[i] - want[i]) / (i < kOut ? 1e5 : 1));
    return most;
  };
  const auto got = [&] {
    const Tensor weight = Tensor::from(w, {kOut, kColumns}, kDevice).cast(DType::kF16).realize();
    return Tensor::from(x, {kRows, kColumns}, kDevice).linear(weight).data<float>();
  };
  const auto want = product_of(x, w, kRows, kColumns, rounded),
             exact = product_of(x, w, kRows, kColumns, same);
  EXPECT_LT(worst(got(), want), 1e-4);
  EXPECT_GT(worst(got(), exact), 1e-3) << "nothing was rounded";
  const ScopedSetting none("BM_ROUND_ACTIVATIONS", "0");
  EXPECT_LT(worst(got(), exact), 1e-4);
}

/// Whole numbers, whose sums float32 and float16 hold exactly: strides, dilation, groups, padding,
/// and an image that comes from a kernel.
TEST_F(CudaTensor, ConvolutionsAreTheSumsOfTheirWindows) {
  struct Case {
    int64_t batch, channels, height, width, out, stride, padding, dilation, groups;
    DType type;
  };
  std::mt19937 generator(std::random_device{}());
  for (const Case& c : {Case{2, 16, 20, 28, 40, 1, 1, 1, 1, DType::kF16},
                        {1, 24, 33, 31, 33, 2, 1, 1, 1, DType::kBF16},
                        {3, 32, 19, 18, 64, 1, 0, 2, 2, DType::kF16}}) {
    const int64_t in = c.channels / c.groups;
    std::vector<float> x(static_cast<size_t>(c.batch * c.channels * c.height * c.width)),
        w(static_cast<size_t>(c.out * in * 9));
    for (float& v : x) v = static_cast<float>(generator() % 4);
    for (float& v : w) v = static_cast<float>(generator() % 3) - 1;
    const Tensor image =
        Tensor::from(x, {c.batch, c.channels, c.height, c.width}, kDevice).cast(c.type).realize();
    const Tensor weight = Tensor::from(w, {c.out, in, 3, 3}, kDevice).cast(c.type).realize();
    const Tensor result =
        (image * 2).conv(weight, {}, {c.stride}, {c.padding}, {c.dilation}, c.groups).realize();
    const auto got = result.cast(DType::kF32).data<float>();
    const int64_t rows = result.size(2).constant(), columns = result.size(3).constant();
    size_t at = 0, wrong = 0;
    for (int64_t n = 0; n < c.batch; ++n)
      for (int64_t o = 0; o < c.out; ++o)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j, ++at) {
            double sum = 0;
            for (int64_t k = 0; k < in * 9; ++k) {
              const int64_t y = i * c.stride + k / 3 % 3 * c.dilation - c.padding;
              const int64_t z = j * c.stride + k % 3 * c.dilation - c.padding;
              if (y < 0 || z < 0 || y >= c.height || z >= c.width) continue;
              const int64_t channel = o / (c.out / c.groups) * in + k / 9;
              const int64_t from = ((n * c.channels + channel) * c.height + y) * c.width + z;
              sum += 2.0 * static_cast<double>(x[static_cast<size_t>(from)]) *
                     static_cast<double>(w[static_cast<size_t>(o * in * 9 + k)]);
            }
            const auto value = static_cast<float>(sum);
            const float want = c.type == DType::kF16 ? f16_to_f32(f32_to_f16(value))
                                                     : bf16_to_f32(f32_to_bf16(value));
            wrong += got[at] != want;
          }
    EXPECT_EQ(at, got.size());
    EXPECT_EQ(wrong, 0u) << c.channels << " channels, stride " << c.stride;
  }
}

/// In parts of K, on a device of few compute units.
TEST_F(CudaTensor, LongProductsOfFewResultsAreSummedInParts) {
  constexpr size_t kRows = 65, kColumns = 16384 + 24, kOut = 72;
  std::mt19937 generator(std::random_device{}());
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(kRows * kColumns), w(kOut * kColumns);
  for (std::vector<float>* of : {&x, &w})
    for (float& v : *of) v = f16_to_f32(f32_to_f16(uniform(generator)));
  const auto half = [](const std::vector<float>& v, size_t rows) {
    return Tensor::from(v, {static_cast<int64_t>(rows), kColumns}, kDevice)
        .cast(DType::kF16)
        .realize();
  };
  const auto got = half(x, kRows).matmul(half(w, kOut).transpose(), DType::kF32).data<float>();
  const auto want = product_of(x, w, kRows, kColumns, [](float v) { return v; });
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
  EXPECT_LT(worst,
            5e-3);  // sums of 16,408 products below 1: 25 or so, off by 2^-24 of a few hundred
}

/// Few long lines in parts, with and without a rest; across adjacent lines; rounded at the end.
TEST_F(CudaTensor, ScansOfFewLongLinesAreMadeInParts) {
  std::mt19937 generator(std::random_device{}());
  std::uniform_real_distribution<float> uniform(-1, 1);
  struct Lines {
    int64_t outer, length, inner;
    DType type;
  };
  for (const Lines& l : {Lines{1, 16384, 1, DType::kF32}, Lines{1, 10007, 1, DType::kF32},
                         Lines{1, 1030, 3, DType::kF32}, Lines{3, 700, 5, DType::kF16},
                         Lines{1, 8192, 1, DType::kF16}}) {
    std::vector<float> v(static_cast<size_t>(l.outer * l.length * l.inner));
    for (float& each : v) each = f16_to_f32(f32_to_f16(uniform(generator)));
    const Tensor x = Tensor::from(v, {l.outer, l.length, l.inner}, kDevice).cast(l.type).realize();
    const auto sums = x.cumsum(1).cast(DType::kF32).data<float>();
    const auto most = x.cummax(1).cast(DType::kF32).data<float>();
    double worst = 0;
    for (int64_t i = 0; i < l.outer; ++i)
      for (int64_t c = 0; c < l.inner; ++c) {
        double sum = 0;
        float largest = -2;
        for (int64_t j = 0; j < l.length; ++j) {
          const auto at = static_cast<size_t>((i * l.length + j) * l.inner + c);
          sum += static_cast<double>(v[at]);
          largest = std::max(largest, v[at]);
          const double unit = l.type == DType::kF16 ? 1e-3 : 1e-6;
          worst = std::max(worst, std::abs(static_cast<double>(sums[at]) - sum) /
                                      (unit * (std::abs(sum) + 100)));
          ASSERT_EQ(most[at], largest) << l.length << " " << j;
        }
      }
    EXPECT_LT(worst, 1) << l.length << "x" << l.inner;
  }
}

TEST_F(CudaTensor, GoesToOtherDevicesAndBack) {
  const auto v = numbers(1000, 3);
  const Tensor there = Tensor::from(v, {1000}, "CPU").to(kDevice);
  EXPECT_EQ((there + 1).to("CPU").data<float>()[999], v[999] + 1);
  EXPECT_EQ(there.to("CPU").data<float>(), v);
}

TEST_F(CudaTensor, ACapturedStepIsReplayedWithNewInputsAndKeepsItsState) {
  Tensor total = Tensor::zeros({64}, DType::kF32, kDevice).contiguous().realize();
  Jit step([&](const Tensor& x) {
    total.assign(total + x * 2);
    return (total + 1).contiguous();
  });
  float want = 0;
  for (int i = 0; i < 6; ++i) {
    const auto v = numbers(64, i);
    want += v[7] * 2;
    const auto out = step(Tensor::from(v, {64}, kDevice));
    EXPECT_EQ(out.data<float>()[7], want + 1) << i;
  }
}

TEST_F(CudaTensor, AnotherFrameworksPointerIsUsedInPlace) {
  const cuda::ApiPtr api = unwrap(cuda::load_api(BM_FAKE_CUDA));
  const auto context = static_cast<cuda::CuContext>(cuda::native_handles(device_->hal()).context);
  ASSERT_EQ(api->cuCtxSetCurrent(context), cuda::kSuccess);
  const auto values = numbers(64, 3);
  cuda::CuDevicePtr theirs = 0;
  ASSERT_EQ(api->cuMemAlloc(&theirs, 256), cuda::kSuccess);
  cuda::CuStream stream = nullptr;
  ASSERT_EQ(api->cuStreamCreate(&stream, 0), cuda::kSuccess);
  api->cuMemcpyHtoDAsync(theirs, values.data(), 256, stream);
  ASSERT_EQ(api->cuStreamSynchronize(stream), cuda::kSuccess);
  bool is_released = false;
  {
    Tensor t = Tensor::from_blob(
        reinterpret_cast<void*>(theirs), {8, 8}, DType::kF32, kDevice, [&] { is_released = true; },
        hal::ExternalKind::kCudaPointer);
    EXPECT_EQ((t + 1).data<float>()[63], values[63] + 1);
    t.assign(t * 2);
    EXPECT_EQ(t.data<float>()[5], values[5] * 2);
  }
  unwrap(device_->synchronize());
  device_->allocator().collect();
  EXPECT_TRUE(is_released);
  std::vector<float> seen(64);
  api->cuMemcpyDtoHAsync(seen.data(), theirs, 256, stream);
  ASSERT_EQ(api->cuStreamSynchronize(stream), cuda::kSuccess);
  EXPECT_EQ(seen[5], values[5] * 2) << "it was their memory that changed";
  EXPECT_EQ(api->cuMemFree(theirs), cuda::kSuccess) << "and it is still theirs to free";
  api->cuStreamDestroy(stream);
}

TEST_F(CudaTensor, APointerThatIsNotOneIsRefused) {
  std::vector<float> host(16);
  try {
    Tensor::from_blob(host.data(), {16}, DType::kF32, kDevice, {}, hal::ExternalKind::kCudaPointer);
    FAIL() << "accepted";
  } catch (const Exception& e) {
    EXPECT_NE(std::string(e.what()).find("no CUDA pointer"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace bm
