// Inner sums of products of 8-bit numbers: exact however they are written down, laid out and tiled,
// and done by dot products where the layout has words side by side.
#include <gtest/gtest.h>

#include "compiler/targets/target.h"
#include "tests/unit/compiler/dot_sums.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

void check(const DotShape& s) {
  const ir::KernelIr k = dot_sum_kernel(s);
  const Buffers want = evaluated(k, dot_sum_buffers(k));
  for (const Where where : {Where{"LLVM"}, Where{"LLVM", false}, Where{"CLANG"}}) {
    Buffers got = dot_sum_buffers(k);
    const Status done = run_on(where, k, got, {});
    if (!done && done.error().code == Code::kNotFound) continue;
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(got[0], want[0]) << where_name(where) << " " << s.vectors << " " << s.rows << " "
                               << s.blocks << " code " << static_cast<int>(s.code);
  }
}

TEST(DotSum, IsExactForEveryCode) {
  for (const Bytes code : {Bytes::kWhole, Bytes::kLow, Bytes::kHigh, Bytes::kMixed})
    check({3, 48, 5, code});
}

TEST(DotSum, IsExactForOddShapes) {
  check({1, 16, 1, Bytes::kWhole});
  check({1, 160, 7, Bytes::kLow, false});
  check({13, 96, 3, Bytes::kWhole});
  check({29, 608, 2, Bytes::kHigh});
  check({5, 32, 4, Bytes::kWhole, true, false});
  check({2, 15, 3, Bytes::kLow, true, false});
}

TEST(DotSum, PackedMatricesAreMultipliedByInstructions) {
  const auto arch = native_arch();
  if (compiler::target_info(arch).dots.empty() ||
      compiler::target_info(arch).dots[0].kind != compiler::DotKind::kU8S8)
    GTEST_SKIP() << "this machine has no dot products of 8-bit numbers";
  for (const int64_t vectors : {1, 40}) {
    const auto text =
        compiler::explain(dot_sum_kernel({vectors, 64, 9, Bytes::kLow}), arch, "LLVM");
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_NE(text->lowered.find("= dot"), std::string::npos) << text->lowered;
    EXPECT_NE(text->assembly.find("vpdpbusd"), std::string::npos);
  }
}

}  // namespace
}  // namespace bm::test
