// NVIDIA's targets: what is generated is accepted by the toolkit that is found, for every card.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "compiler/toolchain/nvjitlink.h"
#include "compiler/toolchain/nvrtc.h"
#include "runtime/base/env.h"
#include "tests/unit/codegen/kernels.h"
#include "tests/unit/codegen/random_kernel.h"
#include "tests/unit/codegen/runner.h"

namespace bm::test {
namespace {

constexpr std::array kTargets = {"sm_75",  "sm_80",  "sm_86",  "sm_87",  "sm_88",  "sm_89", "sm_90",
                                 "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"};

hal::Arch nv_arch(const char* name) {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kNv;
  arch.name = name;
  arch.units = 132;
  arch.max_block = 1024;
  arch.local_memory_bytes = 48 << 10;
  return arch;
}

std::vector<ir::KernelIr> corpus() {
  std::vector<ir::KernelIr> out;
  for (const DType t :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI32, DType::kI8, DType::kU64})
    out.push_back(matmul_kernel(64, 64, 64, t));
  out.push_back(matmul_kernel(1024, 1024, 512, DType::kF32));
  for (const ir::ReduceOp op : {ir::ReduceOp::kSum, ir::ReduceOp::kMax}) {
    out.push_back(reduce_kernel(op, DType::kF32, 3, 100'000, false));
    out.push_back(reduce_kernel(op, DType::kI16, 300, 1000, true));
  }
  out.push_back(softmax_kernel(7, 3000));
  out.push_back(transpose_kernel(300, 200, DType::kI8));
  out.push_back(convolution_kernel(8, 4, 16, 16));
  out.push_back(symbolic_row_sums(300, 5000));
  for (const ir::Op op : {ir::Op::kExp2, ir::Op::kLog2, ir::Op::kSin, ir::Op::kSqrt})
    for (const DType t : {DType::kF32, DType::kF64, DType::kF16})
      out.push_back(map_kernel(op, t, std::array{t}, 1000));
  return out;
}

std::string text_of(const std::vector<std::byte>& image) {
  return {reinterpret_cast<const char*>(image.data()), image.size()};
}

void expect_cubin(const ir::KernelIr& kernel, const char* target, const char* renderer) {
  const auto code = compiler::compile(kernel, nv_arch(target), renderer, {.use_cache = false});
  if (code) {
    EXPECT_EQ(text_of(code->image).substr(1, 3), "ELF") << target;
    return;
  }
  const auto text = compiler::explain(kernel, nv_arch(target), renderer);
  FAIL() << target << ": " << code.error().message << (text ? text->source : "");
}

/// out[a][b][c] = in[c][b][a], every extent a variable up to 2^17.
ir::KernelIr long_axes() {
  ir::KernelIr k;
  k.name = "axes";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  constexpr int64_t kMax = 1 << 17;
  for (int v = 0; v < 3; ++v) {
    k.vars.push_back({.name = std::string(1, static_cast<char>('a' + v)), .min = 1, .max = kMax});
    k.ranges.push_back(g.range(g.var(v, 1, kMax)));
  }
  const auto at = [&](int x, int y, int z) {
    const auto r = [&](int i) { return k.ranges[static_cast<size_t>(i)]; };
    return g.add(g.mul(g.add(g.mul(r(x), kMax), r(y)), kMax), r(z));
  };
  k.params = {{.dtype = DType::kI8, .elements = kMax * kMax * kMax, .is_written = true},
              {.dtype = DType::kI8, .elements = kMax * kMax * kMax, .is_read = true}};
  k.stores.push_back(
      {.param = 0, .index = at(0, 1, 2), .value = g.load(1, DType::kI8, at(2, 1, 0))});
  return k;
}

/// CUDA C++ Programming Guide 13.0, "Compute Capabilities": 2^31 - 1 blocks along x, 65535 along y
/// and z.
TEST(Nv, GridsStayWithinTheLimitsOfTheirAxes) {
  std::vector<ir::KernelIr> kernels = corpus();
  kernels.push_back(long_axes());
  // Two long axes still fit without being merged.
  kernels.push_back(symbolic_row_sums(1 << 20, 1 << 20));
  for (const ir::KernelIr& kernel : kernels) {
    auto arch = nv_arch("sm_90");
    arch.vendor = hal::Vendor::kNull;
    const auto code = compiler::compile(kernel, arch, "");
    ASSERT_TRUE(code) << code.error().message;
    std::vector<int64_t> most;
    for (const ir::VarDecl& v : kernel.vars) most.push_back(v.max);
    EXPECT_LE(code->grid[0].evaluate(most), INT32_MAX) << kernel.name;
    EXPECT_LE(code->grid[1].evaluate(most), 65535) << kernel.name;
    EXPECT_LE(code->grid[2].evaluate(most), 65535) << kernel.name;
  }
}

TEST(Nv, PtxIsAssembledForEveryCard) {
  if (const auto v = compiler::nvjitlink_version(); !v) GTEST_SKIP() << v.error().message;
  const std::vector<ir::KernelIr> kernels = corpus();
  for (size_t t = 0; t < kTargets.size(); ++t)
    for (size_t i = t % 3; i < kernels.size(); i += 3) {
      expect_cubin(kernels[i], kTargets[t], "PTX");
      if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(Nv, RandomKernelsAreAssembled) {
  if (const auto v = compiler::nvjitlink_version(); !v) GTEST_SKIP() << v.error().message;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    expect_cubin(random_kernel(seed).kernel, kTargets[seed % kTargets.size()], "PTX");
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Nv, CudaIsCompiledForEveryCard) {
  if (const auto v = compiler::nvrtc_version(); !v) GTEST_SKIP() << v.error().message;
  const std::vector<ir::KernelIr> kernels = corpus();
  for (size_t i = 0; i < kernels.size(); ++i) {
    expect_cubin(kernels[i], kTargets[i % kTargets.size()], "NVRTC");
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace bm::test
