// Attention by WMMA, MFMA and the mma.sync of the first cards with tensor cores, and of long heads:
// what online softmax gives against binary64, executed on the interpreters.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "compiler/compile.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/runner.h"
#include "tests/unit/compiler/schedules/attention/attention_problem.h"

namespace bm::test {
namespace {

/// A wave or a warp that executes it.
void expect_right_on(const Case& c) {
  SCOPED_TRACE(text_of(c));
  static std::mt19937_64 random(std::random_device{}());
  const bool is_amd = std::string_view(c.card).starts_with("gfx");
  const ScopedSetting text("BM_NV_CODE", "ptx");
  Problem problem(c);
  EXPECT_EQ(problem.kernels(), 1u);
  const LoweredKernel kernel = problem.kernel();
  hal::Arch arch = is_amd ? amd_arch(c.card) : card_of(c);
  arch.units = c.units;
  const auto code = compiler::compile(kernel.ir, arch, is_amd ? "" : "PTX", {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  Buffers buffers = problem.fill(kernel, random);
  const std::vector<int64_t> vars = problem.vars(kernel);
  if (is_amd) {
    const auto done = run_on_amd(*code, buffers, vars, c.shift);
    ASSERT_TRUE(done) << done.error().message;
    const std::string product =
        std::string(std::string_view(c.card) == "gfx942" ? "v_mfma" : "v_wmma") + "_f32_16x16x16_" +
        (c.type == DType::kF16 ? "f16" : "bf16");
    EXPECT_EQ(done->opcodes.contains(product), c.key_count != kNoKeys);
    if (c.head_dim % 64 == 0 && c.width % 64 == 0) {
      EXPECT_EQ(done->lds_conflicts, 0u);
    }
  } else {
    const auto done = run_on_ptx(*code, buffers, vars, c.shift);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(done->traffic.shared_conflicts, 0u);
  }
  EXPECT_LE(problem.worst_excess(buffers), 0);
}

class WaveAttention : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  }
  void expect(Case c) {
    c.card = GetParam();
    expect_right_on(c);
  }
};
INSTANTIATE_TEST_SUITE_P(Amd, WaveAttention, testing::Values("gfx942", "gfx1100", "gfx1201"),
                         [](const auto& given) { return std::string(given.param); });

TEST_P(WaveAttention, WholeBlocks) {
  expect({});
  expect({.type = DType::kBF16, .queries = 64, .keys = 96, .head_dim = 128, .width = 128});
  expect({.heads = 1, .shared_heads = 1, .keys = 192, .head_dim = 128, .units = 1, .spread = 8});
}

TEST_P(WaveAttention, AnyNumberOfQueriesAndKeys) {
  // MFMA takes 32 elements of a head at a time.
  const bool is_mfma = std::string_view(GetParam()) == "gfx942";
  expect({.queries = 77, .keys = 101, .head_dim = is_mfma ? 96 : 80, .width = 48});
  expect({.heads = 1,
          .shared_heads = 1,
          .queries = 150,
          .keys = 37,
          .head_dim = is_mfma ? 32 : 16,
          .width = 112,
          .units = 1});
}

TEST_P(WaveAttention, LongHeads) {
  expect({.heads = 1, .shared_heads = 1, .queries = 40, .keys = 70, .head_dim = 256, .width = 256});
  expect({.type = DType::kBF16,
          .heads = 1,
          .shared_heads = 1,
          .queries = 64,
          .keys = 64,
          .head_dim = 192,
          .width = 128,
          .is_causal = true});
}

TEST_P(WaveAttention, MasksAndCausalBounds) {
  expect({.queries = 130, .keys = 130, .is_causal = true, .units = 1});
  expect({.queries = 70, .keys = 90, .mask = Mask::kFloat});
  expect({.queries = 50, .keys = 64, .mask = Mask::kBool});
  expect({.heads = 4,
          .shared_heads = 2,
          .queries = 66,
          .keys = 70,
          .is_causal = true,
          .is_by_token = true});
}

TEST_P(WaveAttention, LengthsGivenAtLaunch) {
  for (const int64_t n : {1, 31, 65})
    expect({.heads = 1,
            .shared_heads = 1,
            .queries = 80,
            .keys = 128,
            .is_causal = true,
            .key_count = n,
            .query_count = n});
  expect({.queries = 80, .keys = 64, .key_count = kNoKeys});
}

TEST_P(WaveAttention, ParamsStartAtAnyAddress) { expect({.queries = 64, .keys = 70, .shift = 2}); }

/// Fragments of eight steps of K, and tiles without asynchronous copies.
TEST(FirstTensorCores, Attention) {
  expect_right_on({.queries = 77, .keys = 101, .head_dim = 80, .width = 48, .card = "sm_75"});
  expect_right_on({.queries = 70,
                   .keys = 130,
                   .head_dim = 128,
                   .width = 128,
                   .is_causal = true,
                   .card = "sm_75"});
  expect_right_on({.queries = 40, .keys = 70, .mask = Mask::kFloat, .card = "sm_75", .shift = 4});
}

TEST(LongHeads, OnTensorCores) {
  for (const char* card : {"sm_75", "sm_80", "sm_120"}) {
    expect_right_on({.heads = 1,
                     .shared_heads = 1,
                     .queries = 80,
                     .keys = 70,
                     .head_dim = 256,
                     .width = 256,
                     .is_causal = true,
                     .card = card});
    expect_right_on({.heads = 1,
                     .shared_heads = 1,
                     .queries = 130,
                     .keys = 100,
                     .head_dim = 192,
                     .width = 128,
                     .card = card,
                     .units = 1});
  }
}

// --- machine code -------------------------------------------------------------------------------

size_t count_in(const std::string& text, std::string_view what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// docs/hw/amd/code.md has the numbers.
TEST(WaveAttentionCode, IsOneKernelWithoutSpills) {
  if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  for (const char* chip : {"gfx1100", "gfx1201", "gfx942"})
    for (const int64_t width : {64, 128, 256}) {
      Problem problem({.heads = 32,
                       .shared_heads = 8,
                       .queries = 2048,
                       .keys = 2048,
                       .head_dim = width,
                       .width = width,
                       .is_causal = true,
                       .card = chip});
      EXPECT_EQ(problem.kernels(), 1u) << chip << width;
      hal::Arch arch = amd_arch(chip);
      arch.units = 96;
      const auto text = compiler::explain(problem.kernel().ir, arch, "");
      ASSERT_TRUE(text) << text.error().message;
      const std::string& code = text->assembly;
      const bool is_cdna = std::string_view(chip) == "gfx942";
      std::printf("%s, %ld: %zu products, %zu loads of 16 bytes of shared memory, %zu lines\n",
                  chip, static_cast<long>(width), count_in(code, is_cdna ? "v_mfma" : "v_wmma"),
                  count_in(code, is_cdna ? "ds_read_b128" : "ds_load_b128"), count_in(code, "\n"));
      EXPECT_GT(count_in(code, is_cdna ? "v_mfma_f32_16x16x16" : "v_wmma_f32_16x16x16"), 0u);
      EXPECT_EQ(code.find("scratch_"), std::string::npos) << chip << width << ": spills";
    }
}

}  // namespace
}  // namespace bm::test
