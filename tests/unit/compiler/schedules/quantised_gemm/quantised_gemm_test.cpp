// Quantised GEMM by int8 MMA: sums are the reference's integers on the interpreters, and machine
// code has matrix instructions, no int8 dot products and no spills.
#include <gtest/gtest.h>

#include <random>

#include "compiler/compile.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"
#include "compiler/tune/knobs.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/dot_sums.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

size_t occurrences(std::string_view text, std::string_view what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; at += what.size()) ++n;
  return n;
}

hal::Arch null_arch(const char* name, uint32_t units) {
  return {.vendor = hal::Vendor::kNull,
          .name = name,
          .cpu = {},
          .features = {},
          .units = units,
          .max_block = 1024,
          .shared_memory_bytes = 48 << 10};
}

/// A prompt's product: whole bytes as Q8_0 has them, four bits, and blocks of 16 as Q6_K.
constexpr DotShape kPrompt = {.vectors = 128, .rows = 1024, .blocks = 32};
DotShape nibbles() {
  DotShape s = kPrompt;
  s.code = Bytes::kLow;
  return s;
}
DotShape sixteens() {
  DotShape s = nibbles();
  s.words = 4;
  return s;
}

TEST(QuantisedGemm, PromptsHaveTilesAndFewVectorsHaveNone) {
  for (const char* name : {"sm_75", "sm_80", "sm_90", "sm_120", "gfx1100", "gfx1201", "gfx942"}) {
    const hal::Arch arch = null_arch(name, 100);
    const compiler::TargetInfo target = compiler::target_info(arch);
    const auto planned = [&](const DotShape& s) {
      return compiler::make_schedule(dot_sum_kernel(s), target, 100).quantised() != nullptr;
    };
    EXPECT_TRUE(planned(nibbles())) << name;
    EXPECT_TRUE(planned(sixteens())) << name;
    // Eight bits without a sign: CDNA3 multiplies signed numbers alone.
    EXPECT_EQ(planned(kPrompt), std::string_view(name) != "gfx942") << name;
    DotShape few = nibbles(), odd = nibbles(), shifted = nibbles();
    few.vectors = 7;
    odd.rows = 1000;
    odd.is_packed = false;
    shifted.skipped = 2;
    for (const DotShape& s : {few, odd, shifted}) EXPECT_FALSE(planned(s)) << name;
  }
  const compiler::TargetInfo older = compiler::target_info(null_arch("sm_70", 80));
  EXPECT_EQ(compiler::make_schedule(dot_sum_kernel(nibbles()), older, 80).quantised(), nullptr);
}

/// Cards before sm_80 multiply 8 rows by K = 16 bytes.
TEST(QuantisedGemm, PtxHasMatrixInstructionsAndNoDotProducts) {
  for (const auto& [chip, shape, name] :
       {std::tuple{"sm_80", kPrompt, "m16n8k32.row.col.s32.u8.s8.s32"},
        {"sm_80", nibbles(), "m16n8k32.row.col.s32.s8.s8.s32"},
        {"sm_80", sixteens(), "m16n8k16.row.col.s32.s8.s8.s32"},
        {"sm_75", kPrompt, "m8n8k16.row.col.s32.u8.s8.s32"},
        {"sm_75", nibbles(), "m8n8k16.row.col.s32.s8.s8.s32"},
        {"sm_75", sixteens(), "m8n8k16.row.col.s32.s8.s8.s32"}}) {
    const auto text = compiler::explain(dot_sum_kernel(shape), null_arch(chip, 108), "PTX");
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_GE(occurrences(text->source, name), 2U) << text->source;
    EXPECT_EQ(occurrences(text->source, "dp4a"), 0U) << chip;
    // No card before sm_80 has the larger ones.
    EXPECT_EQ(occurrences(text->source, "m16n8") == 0, std::string_view(chip) == "sm_75");
    if (!text->resources) continue;  // no nvJitLink and no ptxas here
    EXPECT_EQ(text->resources->stack_bytes, 0U);
    EXPECT_LE(text->resources->registers, 168U);
  }
}

TEST(QuantisedGemm, AmdCodeHasMatrixInstructionsAndNoDotProducts) {
  if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  for (const auto& [chip, name] : {std::pair{"gfx1100", "v_wmma_i32_16x16x16_iu8"},
                                   {"gfx1201", "v_wmma_i32_16x16x16_iu8"},
                                   {"gfx942", "v_mfma_i32_16x16x32_i8"}}) {
    const auto text = compiler::explain(dot_sum_kernel(nibbles()), null_arch(chip, 96), "LLVM");
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_GE(occurrences(text->assembly, name), 2U) << chip;
    EXPECT_EQ(occurrences(text->assembly, "v_dot4"), 0U) << chip;
    ASSERT_TRUE(text->resources) << chip;
    EXPECT_EQ(text->resources->stack_bytes, 0U) << chip;
  }
}

/// Prompts of all sizes.
TEST(QuantisedGemm, NoRegisterIsSpilled) {
  for (const auto& [chip, renderer, units] : {std::tuple{"sm_75", "PTX", 72U},
                                              {"sm_80", "PTX", 108U},
                                              {"gfx1100", "LLVM", 96U},
                                              {"gfx1201", "LLVM", 64U},
                                              {"gfx942", "LLVM", 304U}})
    for (const auto& [vectors, rows] : {std::pair{33, 1024}, {128, 8192}, {512, 4096}}) {
      DotShape s = kPrompt;
      s.vectors = vectors;
      s.rows = rows;
      s.code = Bytes::kHigh;
      const auto text = compiler::explain(dot_sum_kernel(s), null_arch(chip, units), renderer);
      ASSERT_TRUE(text) << text.error().message;
      if (!text->resources) continue;  // no toolchain here
      EXPECT_EQ(text->resources->stack_bytes, 0U)
          << chip << ", " << vectors << " x " << rows << ": " << text->schedule;
    }
}

struct Target {
  const char* renderer;
  const char* chip = "";  ///< of NVIDIA; empty: the one that all tests run for
};

class QuantisedGemms : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(where()); !reason.empty()) GTEST_SKIP() << reason;
  }
  static Where where() { return {GetParam().renderer}; }
  static hal::Arch arch() {
    hal::Arch arch = arch_of(where());
    if (*GetParam().chip) arch.name = GetParam().chip;
    return arch;
  }

  static Status run(const hal::CodeObject& code, Buffers& buffers, uint64_t shift = 0) {
    if (arch().vendor == hal::Vendor::kAmd) {
      BM_TRY(run_on_amd(code, buffers, {}, shift));
    } else {
      BM_TRY(run_on_ptx(code, buffers, {}, shift));
    }
    return {};
  }

  static void check(const DotShape& s, uint32_t seed) {
    const ScopedSetting text("BM_NV_CODE", "ptx");
    const ir::KernelIr k = dot_sum_kernel(s);
    EXPECT_NE(compiler::make_schedule(k, compiler::target_info(arch()), arch().units).quantised(),
              nullptr)
        << s.vectors << " x " << s.rows;
    const Buffers start = dot_sum_buffers(k, seed);
    const auto code = compiler::compile(k, arch(), renderer_of(where()), {.use_cache = false});
    ASSERT_TRUE(code) << code.error().message;
    Buffers got = start;
    const Status done = run(*code, got);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(got[0], evaluated(k, start)[0])
        << s.vectors << " vectors, " << s.rows << " rows, " << s.blocks << " blocks of " << s.words
        << "x" << s.width << ", code " << static_cast<int>(s.code)
        << (s.is_packed ? ", packed" : "") << (s.is_signed ? ", signed" : "");
  }
};

/// Scales are whole numbers: every sum is one that float32 holds, whatever the order.
TEST_P(QuantisedGemms, SumsAreThoseOfTheReference) {
  std::mt19937 random(std::random_device{}());
  const auto pick = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random()) % (most - least + 1);
  };
  for (const int64_t vectors : {8, 13, 16, 40, 77}) {
    DotShape s{.vectors = vectors, .rows = 16 * pick(1, 6), .blocks = pick(1, 4)};
    s.is_packed = pick(0, 2) != 0;
    s.is_signed = pick(0, 3) == 0;
    s.has_shift = pick(0, 1) != 0;
    s.words = pick(0, 1) ? 8 : 4;
    if (!s.is_signed) s.code = static_cast<Bytes>(pick(0, 3));
    check(s, static_cast<uint32_t>(random()));
    if (HasFailure()) return;
  }
}

/// Memory of others may begin anywhere that its elements allow.
TEST_P(QuantisedGemms, ParamsBeginAtAnyAddress) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  const ir::KernelIr k =
      dot_sum_kernel({.vectors = 9, .rows = 32, .blocks = 2, .code = Bytes::kHigh});
  const auto code = compiler::compile(k, arch(), renderer_of(where()), {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  const Buffers start = dot_sum_buffers(k), want = evaluated(k, start);
  for (const uint64_t shift : {0U, 4U, 20U}) {
    Buffers got = start;
    const Status ran = run(*code, got, shift);
    ASSERT_TRUE(ran) << ran.error().message;
    EXPECT_EQ(got[0], want[0]) << shift;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, QuantisedGemms,
                         testing::Values(Target{"PTX"}, Target{"NVRTC"}, Target{"NVPTX"},
                                         Target{"PTX", "sm_75"}, Target{"NVRTC", "sm_75"},
                                         Target{"NVPTX", "sm_75"}, Target{"GFX1100"},
                                         Target{"GFX1201"}),
                         [](const auto& given) {
                           return std::string(given.param.renderer) + given.param.chip;
                         });

double instructions_of(const char* where, const hal::CodeObject& code, Buffers buffers) {
  if (arch_of({where}).vendor == hal::Vendor::kAmd) {
    const auto done = run_on_amd(code, buffers, {});
    EXPECT_TRUE(done) << done.error().message;
    return done ? 32 * static_cast<double>(done->instructions) : 0;
  }
  const auto done = run_on_ptx(code, buffers, {});
  EXPECT_TRUE(done) << done.error().message;
  return done ? static_cast<double>(done->lane_instructions) : 0;
}

/// Instructions of one work-item for each multiplication, beside those of the schedule of groups;
/// docs/hw/{nv,amd}/code.md have the numbers. PTX counts moves between registers too.
TEST(QuantisedGemm, ProductsTakeFewInstructions) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  const DotShape s{
      .vectors = 256, .rows = 256, .blocks = 8, .code = Bytes::kLow, .has_shift = false};
  const ir::KernelIr k = dot_sum_kernel(s);
  const Buffers buffers = dot_sum_buffers(k);
  const auto products = static_cast<double>(s.vectors * s.rows * s.blocks * s.block());
  compiler::Knobs plain;
  plain.values["plain"] = 1;
  for (const char* where : {"PTX", "GFX1100", "GFX1201"}) {
    if (!why_not({where}).empty()) continue;
    double each[2] = {};
    for (const bool is_plain : {false, true}) {
      const auto code = compiler::compile(
          k, arch_of({where}), renderer_of({where}),
          {.use_cache = false, .knobs = is_plain ? &plain : nullptr, .watcher = nullptr});
      ASSERT_TRUE(code) << code.error().message;
      each[is_plain] = instructions_of(where, *code, buffers) / products;
    }
    std::printf("%s: %.3f instructions per multiplication, by int8 dot products %.3f\n", where,
                each[0], each[1]);
    EXPECT_LT(each[0], 0.35) << where;
    EXPECT_LT(each[0], each[1] / 2) << where;
  }
}

}  // namespace
}  // namespace bm::test
