// DEV=AMD:HIP with a stand-in for AMD's code object manager that compiles with clang. A program of
// its own: the library is looked for once in a process.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "compiler/toolchain/comgr.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/dot_sums.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

class Hip : public testing::Test {
 protected:
  void SetUp() override {
    // The stand-in, before anybody asks.
    setenv("ROCM_PATH", BM_FAKE_ROCM, 1);
    setenv("BM_FAKE_COMGR_CLANG", BM_TEST_CLANG, 1);
    ASSERT_EQ(compiler::comgr_version().value_or("none"), "3.0");
  }
  static Status run(const ir::KernelIr& kernel, const char* chip, Buffers& buffers,
                    std::span<const int64_t> vars) {
    const auto code =
        BM_TRY(compiler::compile(kernel, amd_arch(chip), "HIP", {.use_cache = false}));
    const auto done = run_on_amd(code, buffers, vars);
    return done ? Status{} : tl::unexpected(done.error());
  }
};

TEST_F(Hip, KernelsGiveWhatTheReferenceGives) {
  std::vector<ir::KernelIr> kernels;
  kernels.push_back(matmul_kernel(64, 64, 64, DType::kF32));
  kernels.push_back(softmax_kernel(7, 300));
  kernels.push_back(symbolic_row_sums(300, 100));
  kernels.push_back(product_kernel({.n = 128, .has_epilogue = true}));
  kernels.push_back(reduce_kernel(ir::ReduceOp::kMax, DType::kI16, 30, 100, true));
  for (const ir::Op op : {ir::Op::kExp2, ir::Op::kSin, ir::Op::kSqrt})
    for (const DType t : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16})
      kernels.push_back(map_kernel(op, t, std::array{t}, 100));
  for (size_t i = 0; i < kernels.size(); ++i) {
    const ir::KernelIr& kernel = kernels[i];
    const Buffers start = small_numbers(kernel);
    Buffers got = start;
    std::vector<int64_t> vars;
    for (const ir::VarDecl& v : kernel.vars) vars.push_back(v.max / 3);
    const Status done = run(kernel, i % 2 ? "gfx1100" : "gfx1201", got, vars);
    ASSERT_TRUE(done) << kernel.name << ": " << done.error().message;
    EXPECT_LE(worst_difference(kernel, got, start, vars), tolerance(kernel))
        << ir::to_string(kernel);
  }
}

TEST_F(Hip, DotProductsAreInstructions) {
  for (const char* chip : {"gfx1100", "gfx1201"})
    for (const bool is_signed : {false, true}) {
      const auto kernel = dot_sum_kernel(
          {.vectors = 3, .rows = 32, .blocks = 4, .is_packed = false, .is_signed = is_signed});
      const Buffers start = dot_sum_buffers(kernel);
      Buffers got = start;
      const Status done = run(kernel, chip, got, {});
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(got[0], evaluated(kernel, start)[0]) << chip;
      const auto text = compiler::explain(kernel, amd_arch(chip), "HIP");
      ASSERT_TRUE(text) << text.error().message;
      EXPECT_NE(text->assembly.find("v_dot4_i32_iu8"), std::string::npos) << text->source;
    }
  const auto text = compiler::explain(dot_sum_kernel({.vectors = 3, .rows = 32, .blocks = 4}),
                                      amd_arch("gfx942"), "HIP");
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_NE(text->assembly.find("v_dot4"), std::string::npos) << text->source;
}

TEST_F(Hip, ErrorsShowTheLineOfTheSource) {
  const auto made = compiler::comgr_compile("int f;\nnonsense here;\n",
                                            compiler::target_info(amd_arch("gfx1100")));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kCompile);
  EXPECT_NE(made.error().message.find("nonsense"), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace bm::test
