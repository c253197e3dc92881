// Kernels that differ in constants only are compiled once, and give what they gave.
#include "tensor/shared_kernel.h"

#include <gtest/gtest.h>

#include "compiler/compile.h"
#include "tensor/programs.h"
#include "tensor/tensor.h"

namespace bm {
namespace {

std::vector<float> ramp(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i) * 0.25F - 7;
  return v;
}

/// How many kernels `work` asks for.
template <class F>
size_t count_kernels(F&& work) {
  const KernelRecorder recorder;
  work();
  return recorder.kernels().size();
}

TEST(SharedKernels, OtherScalesAndOffsetsNeedNoOtherKernel) {
  const std::vector<float> v = ramp(300);
  const Tensor x = Tensor::from(v, {300}, "CPU");
  const auto check = [&](double scale, double bias) {
    const std::vector<float> got = (x * scale + bias).data<float>();
    for (size_t i = 0; i < v.size(); ++i)
      ASSERT_EQ(got[i], v[i] * static_cast<float>(scale) + static_cast<float>(bias)) << i;
  };
  EXPECT_EQ(count_kernels([&] {
              check(0.3, 2.5);
              check(1e-30, -7);
              check(-1234.5, 0.001);
            }),
            1u);
}

// The schedule of attention needs to see that its scale is positive.
TEST(SharedKernels, ScalesOfAttentionStayInTheKernel) {
  const Tensor x = Tensor::from(ramp(320), {10, 32}, "CPU");
  const KernelRecorder recorder;
  ((x.matmul(x.transpose()) * 0.3).softmax(-1).matmul(x)).data<float>();
  ASSERT_FALSE(recorder.kernels().empty());
  for (const KernelPtr& kernel : recorder.kernels())
    EXPECT_TRUE(kernel->vars.empty()) << ir::to_string(*kernel);
}

TEST(SharedKernels, LayersOfOneTensorShareTheirKernel) {
  const int64_t layers = 6, rows = 16, columns = 64;
  const std::vector<float> v = ramp(layers * rows * columns);
  const Tensor stacked = Tensor::from(v, {layers, rows, columns}, "CPU");
  EXPECT_EQ(count_kernels([&] {
              for (int64_t layer = 0; layer < layers; ++layer) {
                const std::vector<float> got =
                    (stacked.slice(0, {layer, layer + 1, 1}) * 3.0).data<float>();
                for (size_t i = 0; i < got.size(); ++i)
                  ASSERT_EQ(got[i], v[static_cast<size_t>(layer * rows * columns) + i] * 3);
              }
            }),
            1u);
}

TEST(SharedKernels, OffsetsBetweenStepsStayInTheKernel) {
  const std::vector<float> v = ramp(1000);
  const Tensor x = Tensor::from(v, {1000}, "CPU");
  for (const int64_t begin : {1, 63, 64, 65, 100, 128, 500})
    EXPECT_EQ((x.slice(0, {begin, begin + 200, 1}) * 2.0).data<float>()[199],
              2 * v[static_cast<size_t>(begin) + 199])
        << begin;
}

TEST(SharedKernels, NumbersWithAMeaningStay) {
  const std::vector<float> v = ramp(64);
  const Tensor x = Tensor::from(v, {64}, "CPU");
  EXPECT_EQ((x * 0.0 + 1.0).data<float>()[5], 1.0F);
  EXPECT_EQ((x * -1.0).data<float>()[5], -v[5]);
  const std::vector<float> relu = x.relu().data<float>();
  EXPECT_EQ(relu[0], 0.0F);
  EXPECT_EQ(relu[63], v[63]);
}

TEST(SharedKernels, LanesAreThoseOfTheNumbersComputed) {
  const KernelRecorder recorder;
  const Tensor x = Tensor::from(ramp(4096), {4096}, "CPU");
  (void)(x * 0.7).data<float>();
  ASSERT_EQ(recorder.kernels().size(), 1u);
  const auto text = compiler::explain(*recorder.kernels()[0], x.device().hal().arch(), "LLVM");
  ASSERT_TRUE(text) << text.error().message;
  const uint32_t lanes = x.device().hal().arch().vector_bits / 32;
  EXPECT_NE(text->schedule.find(fmt::format(", {} lanes", lanes)), std::string::npos)
      << text->schedule;
}

TEST(SharedKernels, ComparedConstantsAndGatedLoadsStay) {
  ir::KernelIr k;
  k.name = "example";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const ir::Node* i = g.range(g.index(32));
  const ir::Node* number = g.constant_f(DType::kF32, 1.5);
  const ir::Node* a = g.load(1, DType::kF32, g.add(i, 130));
  const ir::Node* gated = g.load(2, DType::kF32, g.add(i, 128), g.less(i, g.index(7)));
  const ir::Node* scaled = g.binary(ir::Op::kMul, a, number);
  const ir::Node* value = g.select(g.binary(ir::Op::kLt, gated, number), scaled, gated);
  k.ranges = {i};
  k.params = {{.dtype = DType::kF32, .elements = 32, .is_written = true},
              {.dtype = DType::kF32, .elements = 500, .is_read = true},
              {.dtype = DType::kF32, .elements = 500, .is_read = true}};
  k.stores = {{0, i, value, nullptr}};
  const KernelConstants c = share_kernel(k, true);
  const Status sound = ir::verify(k);
  ASSERT_TRUE(sound) << sound.error().message;
  EXPECT_EQ(c.values, std::vector<int64_t>{std::bit_cast<int32_t>(1.5F)});
  EXPECT_EQ(c.first, (std::vector<int64_t>{0, 128, 0}));
  EXPECT_EQ(k.params[1].elements, 34) << "the last one read, from the first one";
  EXPECT_EQ(k.params[2].elements, 500);
  EXPECT_NE(ir::to_string(k).find(" 1.5\n"), std::string::npos) << "still compared with";
}

}  // namespace
}  // namespace bm
