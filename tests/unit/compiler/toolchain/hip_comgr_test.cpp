// DEV=AMD:HIP with AMD's own code object manager, where it is installed: what it compiles for RDNA2
// is loaded as by the driver and executed.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "compiler/toolchain/comgr.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/dot_sums.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

class Comgr : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("ROCM_PATH");
    const auto version = compiler::comgr_version();
    if (!version) GTEST_SKIP() << version.error().message;
    RecordProperty("comgr", *version);
  }
  static Status run(const ir::KernelIr& kernel, const char* chip, Buffers& buffers,
                    std::span<const int64_t> vars) {
    const auto code =
        BM_TRY(compiler::compile(kernel, amd_arch(chip), "HIP", {.use_cache = false}));
    const auto done = run_on_amd(code, buffers, vars);
    return done ? Status{} : tl::unexpected(done.error());
  }
};

TEST_F(Comgr, KernelsForRdna2GiveWhatTheReferenceGives) {
  std::vector<ir::KernelIr> kernels;
  kernels.push_back(matmul_kernel(64, 64, 64, DType::kF32));
  kernels.push_back(softmax_kernel(7, 300));
  kernels.push_back(symbolic_row_sums(300, 100));
  kernels.push_back(reduce_kernel(ir::ReduceOp::kMax, DType::kI16, 30, 100, true));
  for (const ir::Op op : {ir::Op::kExp2, ir::Op::kSin, ir::Op::kSqrt})
    for (const DType t : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16})
      kernels.push_back(map_kernel(op, t, std::array{t}, 100));
  for (const ir::KernelIr& kernel : kernels) {
    const Buffers start = small_numbers(kernel);
    Buffers got = start;
    std::vector<int64_t> vars;
    for (const ir::VarDecl& v : kernel.vars) vars.push_back(v.max / 3);
    const Status done = run(kernel, "gfx1030", got, vars);
    ASSERT_TRUE(done) << kernel.name << ": " << done.error().message;
    EXPECT_LE(worst_difference(kernel, got, start, vars), tolerance(kernel))
        << ir::to_string(kernel);
  }
}

TEST_F(Comgr, DotProductsAreInstructionsOfRdna2) {
  const auto kernel = dot_sum_kernel(
      {.vectors = 3, .rows = 32, .blocks = 4, .is_packed = false, .is_signed = true});
  const Buffers start = dot_sum_buffers(kernel);
  Buffers got = start;
  const Status done = run(kernel, "gfx1030", got, {});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(got[0], evaluated(kernel, start)[0]);
  const auto text = compiler::explain(kernel, amd_arch("gfx1030"), "HIP");
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_NE(text->assembly.find("v_dot4"), std::string::npos) << text->source;
}

/// Release 2.4 came before RDNA3: the message says so, instead of a status number.
TEST_F(Comgr, ChipsThatItDoesNotKnowAreNamed) {
  const auto made = compiler::compile(matmul_kernel(8, 8, 8, DType::kF32), amd_arch("gfx1201"),
                                      "HIP", {.use_cache = false});
  if (made) GTEST_SKIP() << "this release knows gfx1201";
  EXPECT_EQ(made.error().code, Code::kUnsupported);
  EXPECT_NE(made.error().message.find("does not know gfx1201"), std::string::npos)
      << made.error().message;
  EXPECT_NE(made.error().message.find("AMD:LLVM"), std::string::npos);
}

TEST_F(Comgr, ErrorsShowTheLineOfTheSource) {
  const auto made = compiler::comgr_compile("int f;\nnonsense here;\n",
                                            compiler::target_info(amd_arch("gfx1030")));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kCompile);
  EXPECT_NE(made.error().message.find("nonsense"), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace bm::test
