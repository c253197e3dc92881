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

TEST(Nv, PtxIsAssembledForEveryCard) {
  if (const auto v = compiler::nvjitlink_version(); !v) GTEST_SKIP() << v.error().message;
  for (const char* target : kTargets)
    for (const ir::KernelIr& kernel : corpus()) {
      expect_cubin(kernel, target, "PTX");
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
