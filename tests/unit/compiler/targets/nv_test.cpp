// NVIDIA's targets: what is generated is accepted by the toolkit that is found, for every card.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "compiler/ir/evaluate.h"
#include "compiler/targets/target.h"
#include "compiler/ir/number.h"
#include "compiler/toolchain/cuda_disassembler.h"
#include "compiler/toolchain/cuda_library.h"
#include "compiler/toolchain/nvjitlink.h"
#include "compiler/toolchain/nvrtc.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

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
  arch.shared_memory_bytes = 48 << 10;
  return arch;
}

bool uses_matrices(const ir::KernelIr& kernel, const char* target) {
  auto arch = nv_arch(target);
  arch.vendor = hal::Vendor::kNull;
  const auto text = compiler::explain(kernel, arch, "PTX");
  EXPECT_TRUE(text) << text.error().message;
  return text && (text->source.find("mma.sync") != std::string::npos ||
                  text->source.find("wgmma") != std::string::npos);
}

bool uses_amd_matrices(const ir::KernelIr& kernel, const char* where) {
  const auto text = compiler::explain(kernel, arch_of({where}), "LLVM");
  EXPECT_TRUE(text) << text.error().message;
  return text && (text->assembly.find("v_wmma") != std::string::npos ||
                  text->assembly.find("v_mfma") != std::string::npos);
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

/// LLVM knows fewer cards than the toolkit: what it makes for the last one before is assembled.
TEST(Nv, PtxOfLlvmIsAssembledForEveryCard) {
  if (const auto v = compiler::nvjitlink_version(); !v) GTEST_SKIP() << v.error().message;
  if (const std::string reason = why_not({"NVPTX"}); !reason.empty()) GTEST_SKIP() << reason;
  const std::vector<ir::KernelIr> kernels = corpus();
  for (size_t i = 0; i < kernels.size(); ++i) {
    expect_cubin(kernels[i], kTargets[i % kTargets.size()], "LLVM");
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Nv, MatrixInstructionsAreUsedWhereTheyExist) {
  EXPECT_TRUE(uses_matrices(product_kernel({}), "sm_75"));
  EXPECT_TRUE(uses_matrices(product_kernel({.in = DType::kBF16}), "sm_80"));
  EXPECT_FALSE(uses_matrices(product_kernel({.in = DType::kBF16}), "sm_75"));
  EXPECT_TRUE(uses_matrices(product_kernel({.k = 36}), "sm_90")) << "odd depth";
  for (const bool is_left_transposed : {false, true}) {
    const Product large{.m = 4096,
                        .n = 4096,
                        .k = 4096,
                        .is_left_transposed = is_left_transposed,
                        .has_epilogue = true};
    EXPECT_TRUE(uses_matrices(product_kernel(large), "sm_90"));
  }
  EXPECT_FALSE(uses_matrices(product_kernel({.in = DType::kF32}), "sm_90")) << "not allowed";
  const ScopedSetting tf32("ALLOW_TF32", "1");
  EXPECT_TRUE(uses_matrices(product_kernel({.in = DType::kF32}), "sm_90"));
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

/// Machine code by default; text that ends in NUL where it is asked for.
TEST(Nv, PtxTextIsHandedOutOnRequest) {
  const auto kernel = matmul_kernel(8, 8, 8, DType::kF32);
  for (const char* name : {"PTX", "NVRTC", "NVPTX"}) {
    if (!why_not({name}).empty()) continue;
    const char* renderer = renderer_of({name});
    const ScopedSetting code("BM_NV_CODE", "ptx");
    const auto made = compiler::compile(kernel, nv_arch("sm_90"), renderer, {.use_cache = false});
    ASSERT_TRUE(made) << made.error().message;
    const std::string text = text_of(made->image);
    EXPECT_EQ(text.find('\0'), text.size() - 1) << renderer;
    EXPECT_NE(text.find(".visible .entry matmul("), std::string::npos) << text;
    EXPECT_EQ(made->arch, "sm_90");
    EXPECT_EQ(made->entry, "matmul");
    EXPECT_EQ(made->num_buffers, 3u);
  }
}

/// The first compile of a kernel must not decide what later settings get.
TEST(Nv, CacheKeepsTextAndMachineCodeApart) {
  if (const auto v = compiler::nvjitlink_version(); !v) GTEST_SKIP() << v.error().message;
  const auto kernel = matmul_kernel(8, 8, 24, DType::kF32);
  for (int round = 0; round < 2; ++round) {
    const auto cubin = compiler::compile(kernel, nv_arch("sm_90"), "PTX");
    ASSERT_TRUE(cubin) << cubin.error().message;
    EXPECT_EQ(text_of(cubin->image).substr(1, 3), "ELF");
    const ScopedSetting code("BM_NV_CODE", "ptx");
    const auto text = compiler::compile(kernel, nv_arch("sm_90"), "PTX");
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_EQ(text_of(text->image).substr(0, 8), ".version");
  }
}

TEST(Nv, UnknownRenderersAreNamed) {
  const auto code =
      compiler::compile(matmul_kernel(8, 8, 8, DType::kF32), nv_arch("sm_90"), "CLANG");
  ASSERT_FALSE(code);
  EXPECT_NE(code.error().message.find("NVRTC, PTX and LLVM"), std::string::npos);
}

// --- on the interpreter -------------------------------------------------------------------------

class OnInterpreter : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not({GetParam()}); !reason.empty()) GTEST_SKIP() << reason;
  }
  static bool is_amd() { return std::string_view(GetParam()).starts_with("GFX"); }
};

TEST_P(OnInterpreter, KernelsGiveWhatTheReferenceGives) {
  std::vector<ir::KernelIr> kernels = corpus();
  std::erase_if(kernels, [](const ir::KernelIr& k) { return k.params[0].elements > 500'000; });
  kernels.push_back(reduce_kernel(ir::ReduceOp::kSum, DType::kF32, 1, 31, false));
  kernels.push_back(reduce_kernel(ir::ReduceOp::kSum, DType::kI64, 2, 10'001, false));
  for (const ir::KernelIr& kernel : kernels) {
    const Buffers start = small_numbers(kernel);
    Buffers got = start;
    std::vector<int64_t> vars;
    for (const ir::VarDecl& v : kernel.vars) vars.push_back(v.max / 3);
    const Status done = run_on({GetParam()}, kernel, got, vars);
    ASSERT_TRUE(done) << kernel.name << ": " << done.error().message;
    EXPECT_LE(worst_difference(kernel, got, start, vars), tolerance(kernel))
        << ir::to_string(kernel);
  }
}

/// The program fixes every rounding, so machines that have the same instructions agree bit by bit.
TEST_P(OnInterpreter, FunctionsGiveTheBitsOfTheCpu) {
  const auto native = compiler::target_info(native_arch());
  if (!native.has_fma || !native.has_f16c) GTEST_SKIP() << "this machine has no FMA or F16C";
  std::vector<double> in{0.0, -0.0, 1.0, 0.5, -3.0, 1e-40, 1e30, 3e38, 1e9, INFINITY, -INFINITY};
  for (int i = 0; i < 2000; ++i) in.push_back(std::ldexp(1 + i * 0.618, i % 60 - 30) * (i % 3 - 1));
  for (const ir::Op op : {ir::Op::kExp2, ir::Op::kLog2, ir::Op::kSin, ir::Op::kSqrt, ir::Op::kRecip,
                          ir::Op::kTrunc, ir::Op::kMod})
    for (const DType t : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      std::vector<DType> types(op == ir::Op::kMod ? 2 : 1, t);
      const auto kernel = map_kernel(op, t, types, static_cast<int64_t>(in.size()));
      const auto size = static_cast<size_t>(item_size(t));
      Buffers got{std::vector<std::byte>(in.size() * size)};
      for (size_t c = 0; c < types.size(); ++c) {
        got.emplace_back(in.size() * size);
        for (size_t i = 0; i < in.size(); ++i)
          put(t, in[(i + 57 * c) % in.size()], &got.back()[i * size]);
      }
      Buffers want = got;
      const Status done = run_on({GetParam()}, kernel, got, {});
      ASSERT_TRUE(done) << done.error().message;
      ASSERT_TRUE(run_on({"LLVM"}, kernel, want, {}));
      for (size_t i = 0; i < in.size(); ++i) {
        const double a = number_at(t, &got[0][i * size]), b = number_at(t, &want[0][i * size]);
        EXPECT_TRUE((std::isnan(a) && std::isnan(b)) ||
                    std::memcmp(&got[0][i * size], &want[0][i * size], size) == 0)
            << ir::op_name(op) << " of " << dtype_name(t) << " " << in[i] << ": " << a << ", CPU "
            << b;
      }
    }
}

TEST_P(OnInterpreter, MatrixProductsGiveWhatTheReferenceGives) {
  const ScopedSetting tf32("ALLOW_TF32", "1");
  std::vector<Product> products;
  for (const auto& [in, sum] : {std::pair{DType::kF16, DType::kF32},
                                {DType::kBF16, DType::kF32},
                                {DType::kF32, DType::kF32},
                                {DType::kI8, DType::kI32}})
    for (const bool is_left_transposed : {false, true})
      for (const bool is_right_deep : {false, true})
        products.push_back({.in = in,
                            .sum = sum,
                            .out = sum,
                            .is_left_transposed = is_left_transposed,
                            .is_right_deep = is_right_deep});
  products.push_back({.m = 16, .n = 8, .k = 32, .is_right_deep = true});
  products.push_back({.out = DType::kF16, .m = 128, .n = 192, .k = 96, .has_epilogue = true});
  products.push_back({.m = 32, .n = 24, .k = 160, .batches = 3, .is_right_deep = true});
  products.push_back({.in = DType::kBF16,
                      .out = DType::kBF16,
                      .m = 256,
                      .n = 256,
                      .k = 64,
                      .is_right_deep = true});
  // NVRTC takes its time.
  const size_t step = GetParam() == std::string_view("NVRTC") ? 5 : 1;
  for (size_t i = 0; i < products.size(); i += step) {
    const Product& p = products[i];
    const ir::KernelIr kernel = product_kernel(p);
    ASSERT_TRUE(ir::verify(kernel)) << ir::verify(kernel).error().message;
    if (is_amd())
      EXPECT_EQ(uses_amd_matrices(kernel, GetParam()), p.in != DType::kF32 && p.n >= 16)
          << ir::to_string(kernel);
    else
      EXPECT_TRUE(uses_matrices(kernel, "sm_90")) << ir::to_string(kernel);
    const Buffers start = small_numbers(kernel);
    Buffers got = start;
    const Status done = run_on({GetParam()}, kernel, got, {});
    ASSERT_TRUE(done) << done.error().message << ir::to_string(kernel);
    EXPECT_EQ(difference_from_cpu(kernel, got, start), 0) << ir::to_string(kernel);
  }
}

/// Of integers AMD's tiles are worth it from another size on.
std::vector<Product> staged_products(bool is_amd) {
  std::vector<Product> products;
  for (const bool is_left_transposed : {false, true})
    for (const bool is_right_deep : {false, true})
      products.push_back({.in = DType::kF32,
                          .m = 256,
                          .n = 256,
                          .is_left_transposed = is_left_transposed,
                          .is_right_deep = is_right_deep});
  products.push_back({.in = DType::kF32, .m = 128, .n = 384, .k = 24, .has_epilogue = true});
  products.push_back({.in = DType::kF32, .m = 96, .n = 160, .k = 32, .batches = 5});
  products.push_back(
      {.in = DType::kF64, .sum = DType::kF64, .out = DType::kF64, .m = 128, .n = 256, .k = 32});
  products.push_back({.in = DType::kI32,
                      .sum = DType::kI32,
                      .out = DType::kI32,
                      .m = is_amd ? 512 : 256,
                      .n = is_amd ? 512 : 128,
                      .k = 16});
  // A depth that matrix instructions on registers do not take.
  products.push_back({.out = DType::kF16, .m = 128, .n = 256, .k = 24});
  return products;
}

TEST_P(OnInterpreter, GemmGoesThroughSharedMemory) {
  const std::vector<Product> products = staged_products(is_amd());
  const size_t step = GetParam() == std::string_view("NVRTC") ? 4 : 1;
  for (size_t i = 0; i < products.size(); i += step) {
    const ir::KernelIr kernel = product_kernel(products[i]);
    ASSERT_TRUE(ir::verify(kernel)) << ir::verify(kernel).error().message;
    const auto text = compiler::explain(kernel, arch_of({GetParam()}), renderer_of({GetParam()}));
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_NE(text->lowered.find("barrier"), std::string::npos) << i;
    const Buffers start = small_numbers(kernel);
    Buffers got = start;
    const Status done = run_on({GetParam()}, kernel, got, {});
    ASSERT_TRUE(done) << done.error().message << ir::to_string(kernel);
    EXPECT_EQ(difference_from_cpu(kernel, got, start), 0) << ir::to_string(kernel);
  }
}

/// Instructions of all threads for each multiplication; docs/hw/nvidia/compiler.md has the numbers.
TEST(Nv, ProductsTakeFewInstructions) {
  struct Row {
    Product product;
    double most;
  };
  const Row rows[] = {
      {{.in = DType::kF32, .m = 256, .n = 256, .k = 256}, 1.9},
      {{.in = DType::kF32, .m = 512, .n = 512, .k = 128}, 1.6},
      {{.in = DType::kF32, .m = 512, .n = 512, .k = 128, .is_right_deep = true}, 1.6},
      {{.m = 256, .n = 256, .k = 256}, 0.2},
      {{.in = DType::kI8,
        .sum = DType::kI32,
        .out = DType::kI32,
        .m = 256,
        .n = 256,
        .k = 256,
        .is_right_deep = true},
       0.2}};
  const ScopedSetting text("BM_NV_CODE", "ptx");
  for (const Row& row : rows) {
    const Product& p = row.product;
    const auto kernel = product_kernel(p);
    const auto code = compiler::compile(kernel, ptx_arch(), "PTX", {.use_cache = false});
    ASSERT_TRUE(code) << code.error().message;
    Buffers buffers = small_numbers(kernel);
    const auto done = run_on_ptx(*code, buffers, {});
    ASSERT_TRUE(done) << done.error().message;
    const double each =
        static_cast<double>(done->lane_instructions) / static_cast<double>(p.m * p.n * p.k);
    std::printf("%s %ldx%ldx%ld%s: %.3f instructions per multiplication\n",
                std::string(dtype_name(p.in)).c_str(), static_cast<long>(p.m),
                static_cast<long>(p.n), static_cast<long>(p.k), p.is_right_deep ? " deep" : "",
                each);
    EXPECT_LT(each, row.most);
  }
}

/// Memory of others may start anywhere.
TEST_P(OnInterpreter, MatrixProductsTakeParamsAtAnyAddress) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  for (const bool is_right_deep : {false, true}) {
    const auto kernel = product_kernel({.out = DType::kF16, .is_right_deep = is_right_deep});
    const auto code = compiler::compile(kernel, arch_of({GetParam()}), renderer_of({GetParam()}),
                                        {.use_cache = false});
    ASSERT_TRUE(code) << code.error().message;
    const Buffers start = small_numbers(kernel);
    for (const uint64_t shift : {0u, 1u, 4u}) {
      Buffers got = start;
      if (is_amd()) {
        const auto done = run_on_amd(*code, got, {}, shift * 2);
        ASSERT_TRUE(done) << done.error().message;
      } else {
        const auto done = run_on_ptx(*code, got, {}, shift * 2);
        ASSERT_TRUE(done) << done.error().message;
      }
      EXPECT_EQ(difference_from_cpu(kernel, got, start), 0) << shift;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, OnInterpreter,
                         testing::Values("PTX", "NVRTC", "NVPTX", "GFX1100", "GFX1201", "GFX942"),
                         [](const auto& given) { return std::string(given.param); });

TEST(CudaToolchain, MissingLibrariesAreLookedForWhereToolkitsAre) {
  const ScopedSetting path("CUDA_PATH", "/nowhere/cuda");
  const auto places = compiler::cuda_library_candidates("nvrtc");
  ASSERT_FALSE(places.empty());
  EXPECT_EQ(places[0], "/nowhere/cuda/lib64/libnvrtc.so.13");
  for (const char* wanted : {"/usr/local/cuda/lib64/libnvrtc.so.12", "libnvrtc.so.13"})
    EXPECT_NE(std::find(places.begin(), places.end(), wanted), places.end()) << wanted;
  const auto library = compiler::open_cuda_library("nosuchthing");
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code, Code::kNotFound);
  for (const char* wanted : {"libnosuchthing", "CUDA_PATH", "/nowhere/cuda/lib64", "install"})
    EXPECT_NE(library.error().message.find(wanted), std::string::npos) << library.error().message;
}

TEST(CudaToolchain, ErrorsShowTheLineOfTheSource) {
  if (const auto v = compiler::nvrtc_version(); !v) GTEST_SKIP() << v.error().message;
  const auto code = compiler::nvrtc_compile(
      "extern \"C\" __global__ void f(int* p) {\n  p[0] = ;\n}\n", "sm_90", false);
  ASSERT_FALSE(code);
  EXPECT_EQ(code.error().code, Code::kCompile);
  EXPECT_NE(code.error().message.find("source line 2:   p[0] = ;"), std::string::npos)
      << code.error().message;
  const auto unknown = compiler::nvrtc_compile("", "sm_20", false);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kUnsupported) << unknown.error().message;
}

TEST(CudaToolchain, AssemblerErrorsShowTheLineOfThePtx) {
  if (const auto v = compiler::nvjitlink_version(); !v) GTEST_SKIP() << v.error().message;
  const auto code = compiler::nvjitlink_assemble(
      ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry f()\n{\n\tnonsense;\n}\n",
      "sm_90");
  ASSERT_FALSE(code);
  EXPECT_EQ(code.error().code, Code::kCompile) << code.error().message;
  EXPECT_NE(code.error().message.find("nonsense"), std::string::npos) << code.error().message;
}

TEST(CudaToolchain, DisassemblesWithTheToolkitsProgram) {
  const auto text = std::as_bytes(std::span(".version 7.8\n", 14));
  EXPECT_EQ(compiler::cuda_disassemble(text).value_or("?"), ".version 7.8\n");
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "fake_cuda";
  std::filesystem::create_directories(root / "bin");
  std::ofstream(root / "bin/nvdisasm") << "#!/bin/sh\necho \"$1\"; cat \"$2\" | wc -c\n";
  std::filesystem::permissions(root / "bin/nvdisasm", std::filesystem::perms::owner_all);
  const ScopedSetting path("CUDA_PATH", root.string());
  const auto elf = std::as_bytes(std::span("\177ELFabc", 8));
  EXPECT_EQ(compiler::cuda_disassemble(elf).value_or("?"), "-c\n8\n");
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace bm::test
