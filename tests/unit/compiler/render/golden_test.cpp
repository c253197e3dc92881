// Lowered programs of a few kernels as text: shows a reviewer what a change of schedule does.
// BM_UPDATE_GOLDEN=1 rewrites the files.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

void check(const char* name, const ir::KernelIr& kernel, const hal::Arch& arch = baseline_arch(),
           const char* renderer = "") {
  auto text = compiler::explain(kernel, arch, renderer);
  ASSERT_TRUE(text) << text.error().message;
  if (arch.vendor == hal::Vendor::kOpenCl) text->lowered += "\n" + text->source;
  if (arch.name.starts_with("sm_")) text->lowered = text->source;
  const std::string path = std::string("tests/golden/codegen/") + name + ".txt";
  if (std::getenv("BM_UPDATE_GOLDEN")) {
    std::ofstream(path) << text->lowered;
    return;
  }
  std::ostringstream want;
  want << std::ifstream(path).rdbuf();
  EXPECT_EQ(text->lowered, want.str()) << path;
}

TEST(Golden, TiledMatmul) { check("matmul", matmul_kernel(64, 64, 64, DType::kF32)); }
TEST(Golden, RowSumWithTail) {
  check("row_sum", reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 3, 37, false));
}
TEST(Golden, SymbolicRows) { check("symbolic_rows", symbolic_row_sums(64, 4096)); }

hal::Arch opencl_arch() {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kOpenCl;
  arch.name = "opencl_c_1.2";
  arch.units = 8;
  arch.max_block = 64;
  arch.shared_memory_bytes = 32 << 10;
  return arch;
}

/// With the OpenCL C behind it.
TEST(Golden, SharedRowMaxima) {
  check("shared_row_maxima", reduce_kernel(ir::ReduceOp::kMax, DType::kF32, 6, 1000, false),
        opencl_arch());
}

/// A fma() that a device has in software only is slower than what it takes the place of, and some
/// drivers cannot link it (rusticl on Mesa 26.2's llvmpipe, November 2026).
TEST(OpenClFma, IsCalledWhereTheDeviceHasIt) {
  hal::Arch arch = opencl_arch();
  for (const DType t : {DType::kF32, DType::kF64}) {
    arch.features = "3.1";
    const auto with = compiler::explain(matmul_kernel(33, 45, 70, t), arch, "");
    ASSERT_TRUE(with) << with.error().message;
    EXPECT_NE(with->source.find("fma("), std::string::npos);
    arch.features = "3.1 cl_khr_fp64 -fma";
    const auto without = compiler::explain(matmul_kernel(33, 45, 70, t), arch, "");
    ASSERT_TRUE(without) << without.error().message;
    EXPECT_EQ(without->source.find("fma("), std::string::npos);
  }
  arch.has_f64 = false;  // nothing to make a single rounding of
  const auto alone = compiler::explain(matmul_kernel(33, 45, 70, DType::kF32), arch, "");
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_NE(alone->source.find("fma("), std::string::npos);
}

/// NULL explains for any card without its toolkit.
hal::Arch nvidia_arch() {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kNull;
  arch.name = "sm_90";
  arch.units = 8;
  arch.max_block = 64;
  arch.shared_memory_bytes = 32 << 10;
  return arch;
}

TEST(Golden, SharedRowMaximaAsPtx) {
  check("shared_row_maxima_ptx", reduce_kernel(ir::ReduceOp::kMax, DType::kF32, 6, 1000, false),
        nvidia_arch(), "PTX");
}
TEST(Golden, SharedRowMaximaAsCuda) {
  check("shared_row_maxima_cuda", reduce_kernel(ir::ReduceOp::kMax, DType::kF32, 6, 1000, false),
        nvidia_arch(), "NVRTC");
}
TEST(Golden, MatmulAsPtx) {
  check("matmul_ptx", matmul_kernel(64, 64, 64, DType::kF16), nvidia_arch(), "PTX");
}
TEST(Golden, SymbolicRowsAsPtx) {
  check("symbolic_rows_ptx", symbolic_row_sums(64, 4096), nvidia_arch(), "PTX");
}

}  // namespace
}  // namespace bm::test
