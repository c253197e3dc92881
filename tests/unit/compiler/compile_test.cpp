#include "compiler/compile.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <thread>

#include "compiler/ir/evaluate.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

std::vector<float> ramp(size_t n, float scale) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i)
    v[i] = scale * static_cast<float>(static_cast<int>(i * 7 % 23) - 11);
  return v;
}

class EachRenderer : public ::testing::TestWithParam<const char*> {};

TEST_P(EachRenderer, MatmulAgreesWithTheReference) {
  const auto kernel = matmul_kernel(13, 37, 29, DType::kF32);
  auto program = build_kernel(kernel, native_arch(), GetParam());
  ASSERT_TRUE(program) << program.error().message;
  std::vector<float> out(13 * 37), expected(out), a = ramp(13 * 29, 0.25F), b = ramp(29 * 37, 0.5F);
  const std::array<void*, 3> buffers{out.data(), a.data(), b.data()};
  run_kernel(**program, buffers, {});
  const auto bytes = [](std::vector<float>& v) { return std::as_writable_bytes(std::span(v)); };
  const std::array<std::span<std::byte>, 3> spans{bytes(expected), bytes(a), bytes(b)};
  ASSERT_TRUE(compiler::evaluate(kernel, spans, {}));
  EXPECT_EQ(out, expected);  // exact: small multiples of 1/8
}

TEST_P(EachRenderer, SoftmaxRowsSumToOne) {
  auto program = build_kernel(softmax_kernel(5, 100), native_arch(), GetParam());
  ASSERT_TRUE(program) << program.error().message;
  std::vector<float> out(500), in = ramp(500, 0.75F);
  const std::array<void*, 2> buffers{out.data(), in.data()};
  run_kernel(**program, buffers, {});
  for (size_t i = 0; i < 5; ++i) {
    float sum = 0;
    for (size_t j = 0; j < 100; ++j) sum += out[i * 100 + j];
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EachRenderer, ::testing::Values("LLVM", "CLANG"));

TEST(Compile, ExplainShowsEveryStage) {
  auto text = compiler::explain(matmul_kernel(4, 4, 4, DType::kF32), native_arch(), "LLVM");
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_NE(text->ir.find("range"), std::string::npos);
  EXPECT_NE(text->lowered.find("store p0"), std::string::npos);
  EXPECT_NE(text->source.find("define void @matmul"), std::string::npos);
  EXPECT_NE(text->assembly.find("matmul:"), std::string::npos);
}

TEST(Compile, NullArchitectureGetsCountsAndNoImage) {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kNull;
  arch.name = "null";
  auto code =
      compiler::compile(matmul_kernel(8, 8, 8, DType::kF32), arch, "LLVM", {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  EXPECT_TRUE(code->image.empty());
  EXPECT_EQ(code->num_buffers, 3u);
}

TEST(Compile, ManyThreadsCompileAtOnce) {
  std::vector<std::thread> threads;
  std::array<bool, 4> is_ok{};
  for (size_t t = 0; t < is_ok.size(); ++t)
    threads.emplace_back([&, t] {
      is_ok[t] = true;
      for (int64_t n = 1; n < 8; ++n) {
        const auto kernel = matmul_kernel(n, 20 + static_cast<int64_t>(t), n, DType::kF32);
        is_ok[t] =
            is_ok[t] &&
            compiler::compile(kernel, native_arch(), "LLVM", {.use_cache = false}).has_value();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(is_ok, (std::array<bool, 4>{true, true, true, true}));
}

TEST(Compile, SecondCompilationComesFromTheCache) {
  const auto kernel = matmul_kernel(3, 5, 7, DType::kF64);
  auto first = compiler::compile(kernel, native_arch(), "LLVM");
  auto second = compiler::compile(kernel, native_arch(), "LLVM");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->serialize(), second->serialize());
}

TEST(Compile, HugeBodiesStayCheapToCompile) {
  // Sixty-four gathers per lane of bytes would make an enormous vector body.
  ir::KernelIr k;
  k.name = "huge";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const ir::Node* i = g.range(g.index(640));
  k.ranges = {i};
  k.params = {{.dtype = DType::kI8, .elements = 640, .is_written = true},
              {.dtype = DType::kI8, .elements = 64 * 700, .is_read = true}};
  const ir::Node* sum = g.constant(DType::kI8, 0);
  for (int64_t t = 0; t < 64; ++t) {
    const ir::Node* at = g.load(1, DType::kI8, g.add(g.mod(g.mul(i, 7 + t), 640), 700 * t / 2));
    sum = g.binary(ir::Op::kXor, g.binary(ir::Op::kMul, sum, at), at);
  }
  k.stores.push_back({.param = 0, .index = i, .value = sum});
  auto text = compiler::explain(k, native_arch(), "LLVM");
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_LT(text->source.size(), 400'000u);
}

TEST(Compile, UnknownRendererIsUnsupported) {
  auto code = compiler::compile(matmul_kernel(2, 2, 2, DType::kF32), native_arch(), "PTX",
                                {.use_cache = false});
  ASSERT_FALSE(code);
  EXPECT_EQ(code.error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace bm::test
