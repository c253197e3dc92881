// AMD's targets: every chip's code, exact arithmetic, what the instructions cost.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "compiler/compile.h"
#include "compiler/targets/target.h"
#include "compiler/ir/number.h"
#include "compiler/toolchain/toolchain.h"
#include "drivers/amd/program/code_object.h"
#include "tests/unit/amd_opcodes/report.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

constexpr std::array kChips = {"gfx942",  "gfx950",  "gfx1030", "gfx1031", "gfx1032", "gfx1033",
                               "gfx1034", "gfx1035", "gfx1036", "gfx1100", "gfx1101", "gfx1102",
                               "gfx1103", "gfx1150", "gfx1151", "gfx1200", "gfx1201"};

class Amd : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not({"GFX1100"}); !reason.empty()) GTEST_SKIP() << reason;
  }
  /// Not to be tried: this LLVM is too old for the chip, and says so.
  static bool is_unknown(const char* chip) {
    const auto made = compiler::llvm_compile("", compiler::target_info(amd_arch(chip)));
    if (made) return false;
    EXPECT_EQ(made.error().code, Code::kNotFound);
    EXPECT_NE(made.error().message.find(chip), std::string::npos) << made.error().message;
    return true;
  }
};

TEST_F(Amd, EveryChipHasCodeThatItsLoaderTakes) {
  std::vector<ir::KernelIr> kernels = corpus();
  kernels.push_back(reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 1, 100'000, false));
  for (size_t c = 0; c < kChips.size(); ++c) {
    const char* const chip = kChips[c];
    if (is_unknown(chip)) continue;
    for (size_t i = c % 3; i < kernels.size(); i += 3) {
      const auto code = compiler::compile(kernels[i], amd_arch(chip), "", {.use_cache = false});
      ASSERT_TRUE(code) << chip << ": " << code.error().message;
      const auto image = amd::load_code_object(code->image, code->entry, *amd::find_chip(chip));
      ASSERT_TRUE(image) << image.error().message;
      const amd::KernelFacts& facts = image->kernel();
      EXPECT_EQ(facts.is_wave32, !std::string_view(chip).starts_with("gfx9"));
      EXPECT_EQ(facts.private_bytes, 0u) << chip << ' ' << ir::to_string(kernels[i]);
      EXPECT_EQ(facts.kernarg_bytes, 8 * (code->num_buffers + code->num_vars));
      EXPECT_FALSE(facts.takes_dispatch_packet || facts.takes_queue || facts.takes_dispatch_id);
    }
  }
}

/// Chips that no driver opens yet: LLVM assembles all of it, in waves of 64, without a stack.
TEST_F(Amd, OlderChipsOfGfx9HaveCode) {
  std::vector<ir::KernelIr> kernels = corpus();
  kernels.push_back(reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 1, 100'000, false));
  for (uint64_t seed = 1; seed <= 20; ++seed) kernels.push_back(random_kernel(seed).kernel);
  for (const char* chip : {"gfx906", "gfx908", "gfx90a"}) {
    EXPECT_EQ(amd::find_chip(chip), nullptr) << "move it to the list above";
    for (const ir::KernelIr& kernel : kernels) {
      const auto code = compiler::compile(kernel, amd_arch(chip), "", {.use_cache = false});
      ASSERT_TRUE(code) << chip << ": " << code.error().message;
      const std::string text = compiler::disassemble(*code, amd_arch(chip)).value_or("?");
      EXPECT_NE(text.find("s_endpgm"), std::string::npos) << chip << ' ' << ir::to_string(kernel);
      // Flat scratch is not set up by the hardware there.
      for (const char* stack : {"scratch_load", "scratch_store", "offen"})
        EXPECT_EQ(text.find(stack), std::string::npos) << chip << ' ' << ir::to_string(kernel);
      const std::string image(reinterpret_cast<const char*>(code->image.data()),
                              code->image.size());
      EXPECT_NE(image.find(std::string("amdgcn-amd-amdhsa--") + chip), std::string::npos);
    }
  }
}

TEST_F(Amd, DisassemblyNamesTheKernelAndItsInstructions) {
  for (const char* chip : {"gfx942", "gfx1030", "gfx1100", "gfx1201"}) {
    const auto kernel = matmul_kernel(64, 64, 64, DType::kF32);
    const auto text = compiler::explain(kernel, amd_arch(chip), "");
    ASSERT_TRUE(text) << text.error().message;
    for (const std::string& wanted : {kernel.name + ":", std::string("s_endpgm")})
      EXPECT_NE(text->assembly.find(wanted), std::string::npos) << chip;
    const auto code = compiler::compile(kernel, amd_arch(chip), "", {.use_cache = false});
    ASSERT_TRUE(code);
    EXPECT_EQ(compiler::disassemble(*code, amd_arch(chip)).value_or("?"), text->assembly);
  }
}

TEST_F(Amd, UnknownChipsAndRenderersAreNamed) {
  const auto kernel = matmul_kernel(8, 8, 8, DType::kF32);
  const auto chip = compiler::compile(kernel, amd_arch("gfx803"), "");
  ASSERT_FALSE(chip);
  EXPECT_NE(chip.error().message.find("gfx1201"), std::string::npos) << chip.error().message;
  const auto renderer = compiler::compile(kernel, amd_arch("gfx1100"), "CLANG");
  ASSERT_FALSE(renderer);
  EXPECT_NE(renderer.error().message.find("LLVM and HIP"), std::string::npos)
      << renderer.error().message;
}

/// Every opcode that is emitted is decoded as LLVM decodes it, and executed.
TEST_F(Amd, NothingIsEmittedThatIsNotVerified) {
  OpcodeReport report;
  const auto look = [&](const ir::KernelIr& kernel, const char* chip) {
    const auto code = compiler::compile(kernel, amd_arch(chip), "", {.use_cache = false});
    ASSERT_TRUE(code) << code.error().message;
    const Status done = look_at(code->image, chip, report);
    ASSERT_TRUE(done) << done.error().message;
  };
  for (const char* chip : {"gfx942", "gfx1030", "gfx1100", "gfx1150", "gfx1201"}) {
    for (const ir::KernelIr& kernel : corpus()) look(kernel, chip);
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      look(random_kernel(seed).kernel, chip);
      // Work-groups share no running results.
      if (pattern_name(seed) != "running" && pattern_name(seed) != "least")
        look(random_pattern(seed).kernel, chip);
    }
  }
  std::printf("%s", to_string(report).c_str());
  EXPECT_TRUE(report.unverified.empty());
  EXPECT_GT(report.opcodes.size(), 150u);
}

/// Divisions are sequences of steps that scale and correct: results of every size, down to
/// subnormal ones.
TEST_F(Amd, QuotientsOfAnySizeAreTheCpus) {
  constexpr int64_t kCount = 6000;
  std::mt19937_64 random(7);
  for (const DType t : {DType::kF32, DType::kF64}) {
    const auto kernel = map_kernel(ir::Op::kDiv, t, std::array{t, t}, kCount);
    const auto size = static_cast<size_t>(item_size(t));
    Buffers start{std::vector<std::byte>(kCount * size), std::vector<std::byte>(kCount * size),
                  std::vector<std::byte>(kCount * size)};
    const int most = t == DType::kF32 ? 149 : 1074;
    for (size_t p = 1; p < 3; ++p)
      for (size_t i = 0; i < kCount; ++i) {
        const int exponent = static_cast<int>(random() % static_cast<uint64_t>(2 * most)) - most;
        const double digits = 1 + static_cast<double>(random() >> 12) * 0x1p-52;
        put(t, std::ldexp(random() % 2 ? digits : -digits, std::min(exponent, most - 52)),
            &start[p][i * size]);
      }
    Buffers want = start;
    ASSERT_TRUE(run_on({"LLVM"}, kernel, want, {}));
    for (const char* where : {"GFX942", "GFX1030", "GFX1100", "GFX1201"}) {
      Buffers got = start;
      const Status done = run_on({where}, kernel, got, {});
      ASSERT_TRUE(done) << done.error().message;
      for (size_t i = 0; i < kCount; ++i)
        ASSERT_EQ(std::memcmp(&got[0][i * size], &want[0][i * size], size), 0)
            << where << ' ' << dtype_name(t) << ": " << number_at(t, &start[1][i * size]) << " / "
            << number_at(t, &start[2][i * size]) << " = " << number_at(t, &got[0][i * size])
            << ", CPU " << number_at(t, &want[0][i * size]);
    }
  }
}

TEST_F(Amd, MatrixInstructionsAreUsedWhereTheyExist) {
  struct Row {
    DType in;
    const char *wmma, *mfma;
  };
  const Row rows[] = {{DType::kF16, "v_wmma_f32_16x16x16_f16", "v_mfma_f32_16x16x16_f16"},
                      {DType::kBF16, "v_wmma_f32_16x16x16_bf16", "v_mfma_f32_16x16x16_bf16"},
                      {DType::kI8, "v_wmma_i32_16x16x16_iu8", "v_mfma_i32_16x16x32_i8"},
                      {DType::kF32, "v_", "v_"}};
  for (const char* chip : kChips) {
    if (is_unknown(chip)) continue;
    const bool is_gfx9 = std::string_view(chip).starts_with("gfx9");
    const bool has_matrix = !std::string_view(chip).starts_with("gfx10");
    for (const Row& row : rows) {
      const DType sum = is_float(row.in) ? DType::kF32 : DType::kI32;
      const auto kernel = product_kernel({.in = row.in,
                                          .sum = sum,
                                          .out = sum,
                                          .m = 128,
                                          .n = 128,
                                          .k = 128,
                                          .is_right_deep = true});
      const auto text = compiler::explain(kernel, amd_arch(chip), "");
      ASSERT_TRUE(text) << text.error().message;
      const bool is_matrix = text->assembly.find("_16x16x") != std::string::npos;
      EXPECT_EQ(is_matrix, has_matrix && row.in != DType::kF32) << chip;
      if (is_matrix) {
        EXPECT_NE(text->assembly.find(is_gfx9 ? row.mfma : row.wmma), std::string::npos)
            << chip << ' ' << dtype_name(row.in);
      }
      EXPECT_EQ(text->assembly.find("scratch_"), std::string::npos) << chip << ": spills";
    }
  }
}

/// Whole numbers at random: every product has its place, and sums are exact in any order.
TEST_F(Amd, MatrixInstructionsGiveTheSumsOfTheCpu) {
  std::mt19937 random(11);
  for (const DType in : {DType::kF16, DType::kBF16, DType::kI8, DType::kU8})
    for (const bool is_right_deep : {true, false}) {
      const DType sum = is_float(in) ? DType::kF32 : DType::kI32;
      if (!is_float(in) && !is_right_deep) continue;
      const Product p{.in = in,
                      .sum = sum,
                      .out = sum,
                      .m = 64,
                      .n = 128,
                      .k = 96,
                      .is_left_transposed = is_float(in) && random() % 2 == 0,
                      .is_right_deep = is_right_deep};
      const auto kernel = product_kernel(p);
      Buffers start = small_numbers(kernel);
      const auto size = static_cast<size_t>(item_size(in));
      for (size_t b = 1; b < 3; ++b)
        for (size_t i = 0; i < start[b].size(); i += size)
          put(in, static_cast<double>(random() % 17) - (in == DType::kU8 ? 0 : 8), &start[b][i]);
      for (const char* where : {"GFX942", "GFX1100", "GFX1201"}) {
        const bool is_mfma = where == std::string_view("GFX942");
        const auto text = compiler::explain(kernel, arch_of({where}), "");
        ASSERT_TRUE(text) << text.error().message;
        // MFMA has no unsigned elements.
        EXPECT_EQ(text->assembly.find(is_mfma ? "v_mfma" : "v_wmma") != std::string::npos,
                  !is_mfma || in != DType::kU8)
            << where << dtype_name(in);
        Buffers got = start;
        const Status done = run_on({where}, kernel, got, {});
        ASSERT_TRUE(done) << done.error().message;
        EXPECT_EQ(difference_from_cpu(kernel, got, start), 0) << where << ' ' << dtype_name(in);
      }
    }
}

/// Instructions of all lanes for each multiplication; docs/hw/amd/compiler.md has the numbers.
TEST_F(Amd, ProductsTakeFewInstructions) {
  struct Row {
    Product product;
    double most;
  };
  const Row rows[] = {{{.in = DType::kF32, .m = 256, .n = 256, .k = 128}, 1},
                      {{.m = 256, .n = 256, .k = 128, .is_right_deep = true}, 0.2},
                      {{.m = 256, .n = 256, .k = 128}, 0.3},
                      {{.in = DType::kI8,
                        .sum = DType::kI32,
                        .out = DType::kI32,
                        .m = 256,
                        .n = 256,
                        .k = 128,
                        .is_right_deep = true},
                       0.2}};
  for (const char* chip : {"gfx1100", "gfx1201"})
    for (const Row& row : rows) {
      const Product& p = row.product;
      const auto kernel = product_kernel(p);
      const auto code = compiler::compile(kernel, amd_arch(chip), "", {.use_cache = false});
      ASSERT_TRUE(code) << code.error().message;
      Buffers buffers = small_numbers(kernel);
      const auto done = run_on_amd(*code, buffers, {});
      ASSERT_TRUE(done) << done.error().message;
      const double each =
          32 * static_cast<double>(done->instructions) / static_cast<double>(p.m * p.n * p.k);
      std::printf("%s %s %ldx%ldx%ld%s: %.3f instructions per multiplication\n", chip,
                  std::string(dtype_name(p.in)).c_str(), static_cast<long>(p.m),
                  static_cast<long>(p.n), static_cast<long>(p.k), p.is_right_deep ? " deep" : "",
                  each);
      EXPECT_LT(each, row.most);
    }
}

/// What the static roofline counts as one instruction is one: two multiply-adds of float32 whose
/// operands LLVM gave registers of different banks.
TEST_F(Amd, ProductsOfFloat32TakeTwoAtOnce) {
  const auto kernel = matmul_kernel(512, 512, 512, DType::kF32);
  for (const char* chip : {"gfx1100", "gfx1201", "gfx1030"}) {
    const auto text = compiler::explain(kernel, amd_arch(chip), "");
    ASSERT_TRUE(text) << text.error().message;
    size_t together = 0, single = 0;
    for (const auto& [name, n] :
         {std::pair{"v_dual_fmac_f32", &together}, {"v_fmac_f32", &single}, {"v_fma_f32", &single}})
      for (size_t at = 0; (at = text->assembly.find(name, at)) != std::string::npos; ++at) ++*n;
    const bool has_dual = compiler::target_info(amd_arch(chip)).has_dual_fma;
    EXPECT_EQ(has_dual, std::string_view(chip) != "gfx1030");
    EXPECT_GE(together + single, 256u) << chip;
    if (has_dual)
      EXPECT_GE(together, 9 * single) << chip;
    else
      EXPECT_EQ(together, 0u) << chip;
  }
}

}  // namespace
}  // namespace bm::test
