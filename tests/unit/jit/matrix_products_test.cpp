// Products of matrices and how many kernels they become: one each, so that each has the matrix
// instructions; products with a vector stay together.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compiler/compile.h"
#include "compiler/schedules/implicit_gemm/implicit_gemm.h"
#include "compiler/schedules/schedule.h"
#include "compiler/schedules/strategy.h"
#include "compiler/targets/target.h"
#include "runtime/base/env.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tensor/tensor.h"

namespace bm {
namespace {

using Kernels = std::vector<ir::KernelIr>;

Tensor operand(const Shape& shape, DType dtype = DType::kF16) {
  return Tensor::empty(shape, dtype, "NULL::sm_80").realize();
}

Kernels kernels_of(const Tensor& result) {
  const NodePtr root = result.node();
  const FusionPlan plan = plan_fusion({&root, 1});
  Kernels all;
  for (const NodePtr& n : plan.order) {
    if (!plan.stored.contains(n.get())) continue;
    auto kernel =
        lower(*n, nullptr, [&](const Node* other) { return plan.stored.contains(other); });
    EXPECT_TRUE(kernel) << kernel.error().message;
    if (kernel) all.push_back(std::move(kernel->ir));
  }
  return all;
}

hal::Arch gpu_arch(hal::Vendor vendor, const char* name) {
  hal::Arch arch;
  arch.vendor = vendor;
  arch.name = name;
  arch.units = 64;
  arch.max_block = 1024;
  arch.shared_memory_bytes = 48 << 10;
  return arch;
}

/// silu(x·W1ᵀ)·(x·W3ᵀ), as the feed-forward parts of language models have it.
Tensor gated_ffn(int64_t rows) {
  const Tensor x = operand({rows, 256}), gate = operand({512, 256}), up = operand({512, 256});
  return x.linear(gate).silu() * x.linear(up);
}

TEST(MatrixProducts, EachOfTwoHasTheMatrixInstructions) {
  const Kernels both = kernels_of(gated_ffn(128));
  ASSERT_EQ(both.size(), 2u);
  struct Row {
    hal::Vendor vendor;
    const char* arch;
    const char* instruction;  ///< in the code, where that is text
  };
  for (const Row& row :
       {Row{hal::Vendor::kNv, "sm_80", "mma.sync"}, Row{hal::Vendor::kNv, "sm_90", "mma."},
        Row{hal::Vendor::kAmd, "gfx1100", ""}, Row{hal::Vendor::kAmd, "gfx1201", ""}}) {
    const hal::Arch arch = gpu_arch(row.vendor, row.arch);
    for (const ir::KernelIr& kernel : both) {
      const auto schedule =
          compiler::make_schedule(kernel, compiler::target_info(arch), arch.units);
      EXPECT_TRUE(compiler::strategy_of(schedule).name.starts_with("gemm.")) << row.arch;
      if (!*row.instruction) continue;
      const ScopedSetting text("BM_NV_CODE", "ptx");
      const auto code = compiler::compile(kernel, arch, "LLVM", {.use_cache = false});
      if (!code && code.error().code == Code::kUnsupported) continue;  // built without LLVM
      ASSERT_TRUE(code) << code.error().message;
      const std::string ptx(reinterpret_cast<const char*>(code->image.data()), code->image.size());
      EXPECT_NE(ptx.find(row.instruction), std::string::npos) << row.arch;
    }
  }
}

TEST(MatrixProducts, WhatIsStoredBetweenThemIsRounded) {
  const Tensor product = gated_ffn(128);
  const NodePtr root = product.node();
  for (const Node* stored : plan_fusion({&root, 1}).stored) EXPECT_EQ(stored->dtype, DType::kF16);
}

TEST(MatrixProducts, OfOneVectorStayTogether) {
  EXPECT_EQ(kernels_of(gated_ffn(1)).size(), 1u);
  EXPECT_EQ(kernels_of(gated_ffn(4)).size(), 1u);
}

/// Whether the kernel is a GEMM by matrix instructions on every GPU of the list.
void expect_matrix_instructions(const ir::KernelIr& kernel, bool is_expected) {
  for (const auto& [vendor, name] :
       {std::pair{hal::Vendor::kNv, "sm_80"}, std::pair{hal::Vendor::kNv, "sm_90"},
        std::pair{hal::Vendor::kAmd, "gfx1100"}}) {
    const hal::Arch arch = gpu_arch(vendor, name);
    const auto schedule = compiler::make_schedule(kernel, compiler::target_info(arch), arch.units);
    EXPECT_EQ(schedule.matrix() != nullptr || schedule.implicit() != nullptr, is_expected)
        << name << ir::to_string(kernel);
  }
}
/// The same of the last kernel.
void expect_matrix_instructions(const Kernels& kernels, bool is_expected) {
  expect_matrix_instructions(kernels.back(), is_expected);
}

/// float16 and bfloat16 weights with float32 activations, as files of models have them.
TEST(MatrixProducts, ActivationsAreRoundedToTheTypeOfTheWeights) {
  const Tensor x = operand({128, 256}, DType::kF32);
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const Tensor weight = operand({512, 256}, type);
    const Tensor result = x.linear(weight);
    EXPECT_EQ(result.dtype(), DType::kF32);
    const Kernels kernels = kernels_of(result);
    ASSERT_EQ(kernels.size(), 2u) << "the rounding, the product";
    EXPECT_EQ(kernels.front().params.front().dtype, type);
    expect_matrix_instructions(kernels, true);

    const ScopedSetting exact("BM_ROUND_ACTIVATIONS", "0");
    const Kernels wide = kernels_of(x.linear(weight));
    EXPECT_EQ(wide.size(), 1u);
    expect_matrix_instructions(wide, false);
  }
}

TEST(MatrixProducts, ActivationsOfFewRowsAndOnCpusAreNotRounded) {
  const Tensor weight = operand({512, 256});
  EXPECT_EQ(kernels_of(operand({7, 256}, DType::kF32).linear(weight)).size(), 1u);
  const Tensor x = Tensor::empty({128, 256}, DType::kF32, "CPU").realize(),
               w = Tensor::empty({512, 256}, DType::kF16, "CPU").realize();
  EXPECT_EQ(kernels_of(x.linear(w)).size(), 1u);
}

/// What a norm leaves is stored as the 16-bit numbers that the product takes.
TEST(MatrixProducts, OfNormsHaveTheMatrixInstructions) {
  for (const DType in : {DType::kF16, DType::kF32}) {
    const Tensor x = operand({128, 256}, in), scale = operand({256}, in);
    const Tensor result = (x.rms_norm({}, 1e-5) * scale).linear(operand({512, 256}));
    const Kernels kernels = kernels_of(result);
    ASSERT_GE(kernels.size(), 2u);
    EXPECT_EQ(kernels[kernels.size() - 2].params.front().dtype, DType::kF16);
    expect_matrix_instructions(kernels, true);
  }
}

/// Prompts of any length.
TEST(MatrixProducts, OfAnyNumberOfRowsHaveTheMatrixInstructions) {
  const Var rows("rows", 1, 128);
  const Tensor x = operand({128, 256}, DType::kF32).shrink({{0, rows}, {0, 256}});
  const Kernels kernels = kernels_of(x.linear(operand({512, 256})));
  const hal::Arch arch = gpu_arch(hal::Vendor::kNv, "sm_90");
  const auto schedule =
      compiler::make_schedule(kernels.back(), compiler::target_info(arch), arch.units);
  EXPECT_EQ(compiler::strategy_of(schedule).name, "gemm.pipelined");
}

/// Split-K over groups: four tiles would leave most compute units without work.
TEST(MatrixProducts, OfFewTilesAndALongSumGiveEveryUnitATile) {
  const Kernels kernels = kernels_of(operand({128, 65536}).matmul(operand({65536, 128})));
  ASSERT_EQ(kernels.size(), 2u) << "products of parts, their sum";
  for (const char* name : {"sm_80", "sm_90"}) {
    const hal::Arch arch = gpu_arch(hal::Vendor::kNv, name);
    const auto schedule =
        compiler::make_schedule(kernels.front(), compiler::target_info(arch), arch.units);
    ASSERT_NE(schedule.matrix(), nullptr) << name;
    EXPECT_GE(schedule.grid[0].constant, 24) << "4 before";
  }
  EXPECT_EQ(kernels_of(operand({128, 4096}).matmul(operand({4096, 128}))).size(), 1u);
}

TEST(MatrixProducts, SumsOfThreeAreThreeKernels) {
  const Tensor x = operand({64, 256}, DType::kF32);
  Tensor total = x.linear(operand({96, 256}, DType::kF32));
  for (int i = 0; i < 2; ++i) total = total + x.linear(operand({96, 256}, DType::kF32));
  EXPECT_EQ(kernels_of(total).size(), 3u);
}

TEST(MatrixProducts, ConvolutionsToo) {
  const Tensor x = operand({1, 16, 32, 32}), a = operand({16, 16, 3, 3}),
               b = operand({16, 16, 3, 3});
  EXPECT_EQ(kernels_of(x.conv(a) + x.conv(b)).size(), 2u);
}

/// A block of a language model whose activations are float32: every product with weights of more
/// than a vector, also behind residuals and products of other layers.
TEST(MatrixProducts, OfBlocksOfModelsHaveTheMatrixInstructions) {
  const Tensor x = operand({128, 256}, DType::kF32), scale = operand({256}, DType::kF32);
  const auto weight = [](int64_t rows, int64_t columns) { return operand({rows, columns}); };
  const Tensor h = x + (x.linear(weight(256, 256)) * scale).linear(weight(256, 256));
  const Tensor n = h.rms_norm({}, 1e-5) * scale;
  const Tensor ffn = n.linear(weight(768, 256)).silu() * n.linear(weight(768, 256));
  const Kernels kernels = kernels_of(h + ffn.linear(weight(256, 768)));
  size_t products = 0;
  for (const ir::KernelIr& kernel : kernels) {
    const bool has_weights = std::ranges::any_of(kernel.params, [](const ir::Param& p) {
      return p.dtype == DType::kF16 && p.is_read && p.elements >= 256 * 256 &&
             p.elements != 128 * 768;
    });
    if (!has_weights) continue;
    ++products;
    expect_matrix_instructions(kernel, true);
  }
  EXPECT_EQ(products, 5u);
}

/// Zeros around the image are made on the way to shared memory: no padded copy, no float32.
/// Padding is no kernel, and what lies between two convolutions is float16.
TEST(MatrixProducts, PaddedConvolutionsHaveTheMatrixInstructions) {
  const auto empty = [](const Shape& shape) {
    return Tensor::empty(shape, DType::kF16, "NULL::gfx1100").realize();
  };
  const Tensor x = empty({2, 64, 28, 28}), w = empty({64, 64, 3, 3});
  const Kernels kernels = kernels_of(x.conv(w, {}, {1}, {1}));
  ASSERT_EQ(kernels.size(), 1u);
  expect_matrix_instructions(kernels, true);
  const Kernels two = kernels_of(x.conv(w, {}, {1}, {1}).relu().conv(w, {}, {1}, {1}));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two.front().params.front().dtype, DType::kF16);
  expect_matrix_instructions(two, true);
}

/// Matrix instructions of sm_80, sm_90 and sm_100 are faster than elements that are gathered one by
/// one: channels become adjacent first, in the kernel that makes them where there is one.
TEST(MatrixProducts, ConvolutionsOfPlanesLoadSixteenBytesOfChannels) {
  const auto expect_chunks = [](const ir::KernelIr& kernel) {
    for (const char* name : {"sm_80", "sm_90", "sm_100"}) {
      const hal::Arch arch = gpu_arch(hal::Vendor::kNv, name);
      const auto schedule =
          compiler::make_schedule(kernel, compiler::target_info(arch), arch.units);
      ASSERT_NE(schedule.implicit(), nullptr) << name << ir::to_string(kernel);
      for (const auto* o : {&schedule.implicit()->left, &schedule.implicit()->right}) {
        EXPECT_EQ(o->gather, compiler::Gather::kChunks) << name;
        EXPECT_FALSE(o->is_unaligned) << name;
      }
    }
  };
  const Tensor x = operand({2, 64, 28, 28}), w = operand({64, 64, 3, 3}), bias = operand({64});
  const Kernels one = kernels_of(x.conv(w, bias, {1}, {1}));
  ASSERT_EQ(one.size(), 3u) << "image, weights, products";
  expect_chunks(one.back());
  const Kernels two = kernels_of(x.conv(w, bias, {1}, {1}).relu().conv(w, {}, {2}, {1}));
  ASSERT_EQ(two.size(), 5u) << "the first one stores its channels last";
  expect_chunks(two[2]);
  expect_chunks(two.back());
  // Not worth it: few pixels, channels that are no 16 bytes, a matrix in another guise, cards that
  // multiply no faster than they gather.
  EXPECT_EQ(kernels_of(operand({1, 64, 16, 16}).conv(w)).size(), 1u);
  EXPECT_EQ(kernels_of(operand({2, 3, 28, 28}).conv(operand({64, 3, 3, 3}))).size(), 1u);
  EXPECT_EQ(kernels_of(x.conv(operand({64, 64, 1, 1}))).size(), 1u);
  const auto ada = [](const Shape& shape) {
    return Tensor::empty(shape, DType::kF16, "NULL::sm_89").realize();
  };
  EXPECT_EQ(kernels_of(ada({2, 64, 28, 28}).conv(ada({64, 64, 3, 3}))).size(), 1u);
}

TEST(MatrixProducts, OfFloat32WithALongSumAreDividedToo) {
  const Kernels kernels =
      kernels_of(operand({128, 65536}, DType::kF32).matmul(operand({65536, 128}, DType::kF32)));
  ASSERT_EQ(kernels.size(), 2u) << "products of parts, their sum";
  const hal::Arch arch = gpu_arch(hal::Vendor::kNv, "sm_80");
  const auto schedule =
      compiler::make_schedule(kernels.front(), compiler::target_info(arch), arch.units);
  EXPECT_EQ(compiler::strategy_of(schedule).name, "gemm.simt");
}

TEST(MatrixProducts, SumsThatOnlyScaleAreNone) {
  const Tensor x = operand({64, 512}, DType::kF32), y = operand({64, 512}, DType::kF32);
  const Tensor a = operand({512}, DType::kF32), b = operand({512}, DType::kF32);
  EXPECT_EQ(kernels_of((x * a).sum({1}) + (y * b).sum({1})).size(), 1u);
}

}  // namespace
}  // namespace bm
