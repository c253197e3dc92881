// BM_TUNE through tensors: results stay, what was found is kept and used.
#include <gtest/gtest.h>

#include "compiler/tune/tuned.h"
#include "runtime/base/env.h"
#include "tensor/jit.h"
#include "tensor/programs.h"
#include "tensor/tensor.h"

namespace bm {
namespace {

std::vector<float> product(int64_t m, int64_t k, int64_t n) {
  const auto whole = [](int64_t rows, int64_t columns) {
    std::vector<float> v(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 7 % 5) - 2;
    return Tensor::from(v, {rows, columns}, "CPU");
  };
  return (whole(m, k).matmul(whole(k, n)) + 1).data<float>();
}

TEST(Tune, ResultsStayAndSchedulesAreKept) {
  const std::vector<float> want = product(37, 29, 53);
  const ScopedSetting tune("BM_TUNE", "2"), limit("BM_TUNE_MS", "400");
  // Another shape, so that the kernel is new to the process.
  EXPECT_EQ(product(37, 29, 53), want);
  const std::vector<float> tuned = product(41, 31, 67);
  const ScopedSetting off("BM_TUNE", "0");
  const std::vector<float> again = product(41, 31, 67);
  EXPECT_EQ(tuned, again);
  float sum = 0;
  for (int64_t i = 0; i < 31; ++i)
    sum += (static_cast<float>(i * 7 % 5) - 2) * (static_cast<float>(i * 67 * 7 % 5) - 2);
  EXPECT_EQ(tuned[0], sum + 1);
  const std::string path = testing::TempDir() + "tune_test.txt";
  const auto count = compiler::export_tuned(path);
  ASSERT_TRUE(count) << count.error().message;
  EXPECT_GE(*count, 1u);
}

TEST(Tune, KernelsWithVariablesAreTried) {
  const ScopedSetting tune("BM_TUNE", "1"), limit("BM_TUNE_MS", "300");
  Var n("n", 1, 40);
  n.set(23);
  std::vector<float> v(40);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
  const Tensor x = Tensor::from(v, {40}, "CPU");
  const Tensor part = x.slice(0, {0, SymInt(n), 1});
  EXPECT_EQ((part * 2).sum().data<float>()[0], 23 * 22);
}

TEST(Programs, ManyThreadsCompileOneCapture) {
  const ScopedSetting threads("BM_THREADS", "4");
  const KernelRecorder recorder;
  Jit step([](const Tensor& x) {
    std::vector<Tensor> out;
    for (int64_t i = 1; i <= 12; ++i)
      out.push_back((x * static_cast<double>(i)).slice(0, {0, 20 + i, 1}).contiguous());
    return out;
  });
  std::vector<float> v(64, 1);
  const auto& out = step.capture(Tensor::from(v, {64}, "CPU"));
  for (size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(out[i].data<float>(), std::vector<float>(21 + i, static_cast<float>(i + 1)));
  EXPECT_EQ(recorder.kernels().size(), 12u);
}

}  // namespace
}  // namespace bm
