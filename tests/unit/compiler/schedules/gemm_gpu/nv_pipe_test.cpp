// Products of matrices on NVIDIA's targets whose tiles go through shared memory, on the PTX
// interpreter and for the toolkit that is found.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "compiler/compile.h"
#include "compiler/toolchain/nvjitlink.h"
#include "compiler/toolchain/nvrtc.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {
namespace {

hal::Arch card(const char* name, uint32_t units = 2) {
  hal::Arch arch = ptx_arch();
  arch.name = name;
  arch.units = units;
  return arch;
}

/// A card and what its kernels are to be made of.
struct Way {
  const char* card;
  const char* instruction;
};
constexpr Way kFragments{"sm_80", "ldmatrix"}, kGroups{"sm_90", "wgmma"};

std::string text_of(const hal::CodeObject& code) {
  return reinterpret_cast<const char*>(code.image.data());
}

Result<hal::CodeObject> compile_text(const ir::KernelIr& kernel, const hal::Arch& arch,
                                     const char* renderer) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  return compiler::compile(kernel, arch, renderer, {.use_cache = false});
}

PtxRun expect_right(const Product& p, const Way& way, const char* renderer, uint64_t shift = 0) {
  const ir::KernelIr kernel = product_kernel(p);
  const auto code = compile_text(kernel, card(way.card), renderer);
  EXPECT_TRUE(code) << (code ? "" : code.error().message);
  if (!code) return {};
  EXPECT_NE(text_of(*code).find(way.instruction), std::string::npos) << ir::to_string(kernel);
  const Buffers start = small_numbers(kernel);
  Buffers got = start;
  const auto done = run_on_ptx(*code, got, {}, shift);
  EXPECT_TRUE(done) << (done ? "" : done.error().message) << ir::to_string(kernel);
  if (!done) return {};
  EXPECT_EQ(difference_from_cpu(kernel, got, start), 0) << ir::to_string(kernel);
  return *done;
}

std::vector<Product> whole_products() {
  std::vector<Product> products;
  for (const DType in : {DType::kBF16, DType::kF16})
    for (const bool is_left_transposed : {false, true})
      for (const bool is_right_deep : {false, true})
        products.push_back({.in = in,
                            .out = in,
                            .m = 256,
                            .n = 128,
                            .k = 192,
                            .is_left_transposed = is_left_transposed,
                            .is_right_deep = is_right_deep});
  products.push_back({.in = DType::kI8,
                      .sum = DType::kI32,
                      .out = DType::kI32,
                      .m = 128,
                      .n = 256,
                      .k = 512,
                      .is_right_deep = true});
  products.push_back({.m = 64, .n = 128, .k = 1024, .batches = 3, .has_epilogue = true});
  return products;
}

/// Tiles reach beyond rows, columns and depth.
std::vector<Product> ragged_products() {
  std::vector<Product> products;
  for (const bool is_left_transposed : {false, true})
    for (const bool is_right_deep : {false, true})
      products.push_back({.in = DType::kBF16,
                          .out = DType::kBF16,
                          .m = 136,
                          .n = 200,
                          .k = 168,
                          .is_left_transposed = is_left_transposed,
                          .is_right_deep = is_right_deep,
                          .has_epilogue = true});
  products.push_back({.m = 77, .n = 101, .k = 136, .is_right_deep = true});
  products.push_back({.m = 20, .n = 72, .k = 40, .batches = 2});
  return products;
}

class Pipe : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != std::string_view("NVRTC")) return;
    if (const auto v = compiler::nvrtc_version(); !v) GTEST_SKIP() << v.error().message;
  }
  /// NVRTC takes its time.
  static size_t step() { return GetParam() == std::string_view("NVRTC") ? 3 : 1; }
};

TEST_P(Pipe, ProductsGiveWhatTheCpuGives) {
  const std::vector<Product> products = whole_products();
  for (const Way& way : {kFragments, kGroups})
    for (size_t i = 0; i < products.size(); i += step()) {
      const PtxRun run = expect_right(products[i], way, GetParam());
      EXPECT_EQ(run.traffic.shared_conflicts, 0u);
      EXPECT_EQ(run.traffic.group_products != 0, way.instruction == kGroups.instruction);
    }
}

TEST_P(Pipe, TilesReachBeyondTheMatrices) {
  const std::vector<Product> products = ragged_products();
  for (const Way& way : {kFragments, kGroups})
    for (size_t i = 0; i < products.size(); i += step()) expect_right(products[i], way, GetParam());
}

/// Memory of others may start anywhere.
TEST_P(Pipe, ParamsStartAtAnyAddress) {
  for (const Way& way : {kFragments, kGroups})
    for (const bool is_right_deep : {false, true}) {
      const Product whole{.m = 64, .n = 128, .k = 256, .is_right_deep = is_right_deep};
      const Product ragged{.m = 72, .n = 88, .k = 200, .is_right_deep = is_right_deep};
      expect_right(whole, way, GetParam(), 4);
      expect_right(ragged, way, GetParam(), 8);
    }
}

INSTANTIATE_TEST_SUITE_P(Nv, Pipe, testing::Values("PTX", "NVRTC"),
                         [](const auto& given) { return std::string(given.param); });

TEST(NvPipe, OtherCardsHaveThemToo) {
  const ScopedSetting tf32("ALLOW_TF32", "1");
  expect_right({.m = 128, .n = 64, .k = 256}, {"sm_75", "ldmatrix"}, "PTX");
  expect_right({.in = DType::kF32, .m = 128, .n = 128, .k = 96, .is_right_deep = true}, kFragments,
               "PTX");
  const ScopedSetting none("BM_NV_WGMMA", "0");
  expect_right({.m = 128, .n = 128, .k = 256}, {"sm_90", "ldmatrix"}, "PTX");
}

/// Only this generation has wgmma, and code for it runs on no other.
TEST(NvPipe, TargetsAreOfOneGenerationOnlyWhereTheyMustBe) {
  const auto target = [](const Product& p, const char* name) {
    const auto code = compile_text(product_kernel(p), card(name), "PTX");
    return code ? text_of(*code).substr(0, 60) : code.error().message;
  };
  const Product large{.m = 128, .n = 128, .k = 256},
      small{.m = 16, .n = 16, .k = 32, .is_right_deep = true};
  EXPECT_NE(target(large, "sm_90").find(".target sm_90a"), std::string::npos);
  EXPECT_EQ(target(small, "sm_90").find("sm_90a"), std::string::npos);
  EXPECT_EQ(target(large, "sm_100").find("a"), target(small, "sm_100").find("a"));
}

// --- the same with a mistake --------------------------------------------------------------------

struct Mistake {
  Way way;
  const char *from, *to;
  int which = 0;  ///< of several places
};

std::string replaced(std::string text, const Mistake& m) {
  size_t at = text.find(m.from);
  for (int i = 0; i < m.which && at != std::string::npos; ++i) at = text.find(m.from, at + 1);
  EXPECT_NE(at, std::string::npos) << m.from;
  if (at == std::string::npos) return text;
  return text.replace(at, std::strlen(m.from), m.to);
}

/// Whether the interpreter or the result shows it.
bool is_noticed(const Mistake& m) {
  const auto kernel = product_kernel({.in = DType::kBF16, .m = 128, .n = 128, .k = 512});
  auto code = compile_text(kernel, card(m.way.card), "PTX");
  EXPECT_TRUE(code);
  const std::string text = replaced(text_of(*code), m);
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  code->image.assign(bytes.begin(), bytes.end());
  const Buffers start = small_numbers(kernel);
  Buffers got = start;
  const auto done = run_on_ptx(*code, got, {});
  return !done || difference_from_cpu(kernel, got, start) != 0 ||
         done->traffic.shared_conflicts != 0;
}

TEST(NvPipe, MistakesAreNoticed) {
  const Mistake none{kGroups, "cp.async.commit_group;", "cp.async.commit_group;"};
  ASSERT_FALSE(is_noticed(none));
  const std::vector<Mistake> mistakes = {
      // In front of the loop: one group too few; in it: waits that are not there or too short.
      {kFragments, "cp.async.commit_group;", ""},
      {kGroups, "cp.async.commit_group;", ""},
      {kFragments, "cp.async.wait_group", "//"},
      {kGroups, "cp.async.wait_group", "//"},
      {kGroups, "cp.async.wait_group 3", "cp.async.wait_group 4"},
      {kFragments, "bar.sync 0;", ""},
      {kGroups, "bar.sync 0;", ""},
      {kGroups, "fence.proxy.async.shared::cta;", ""},
      {kGroups, "wgmma.fence.sync.aligned;", ""},
      {kGroups, "wgmma.commit_group.sync.aligned;", ""},
      {kGroups, "wgmma.wait_group.sync.aligned 0;", ""},
      {kGroups, "wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"},
      {kGroups, "wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 3;"},
      // Pieces at other places, the other order of neighbours, another stage.
      {kFragments, "xor.b32", "and.b32"},
      {kGroups, "xor.b32", "or.b32"},
      {kFragments, ".trans", ""},
      {kGroups, ", 1, 1, 0, 1;", ", 1, 1, 0, 0;"},
      {kFragments, "+4096]", "+4112]"},
      {kGroups, "+4096]", "+4112]"},
      {kFragments, "rem.u32", "add.s32"},
      {kGroups, "rem.u32", "add.s32"}};
  for (const Mistake& m : mistakes)
    EXPECT_TRUE(is_noticed(m)) << m.way.card << ": " << m.from << " → " << m.to;
}

// --- numbers ------------------------------------------------------------------------------------

/// docs/hw/nv/compiler.md has them.
TEST(NvPipe, ProductsLoadEachNumberFewTimes) {
  struct Row {
    Way way;
    const char* renderer;
    double most_instructions, most_bytes;
  };
  const Row rows[] = {{{"sm_101", "mma.sync"}, "PTX", 0.1, 1},  // fragments straight from memory
                      {kFragments, "PTX", 0.08, 0.04},
                      {kFragments, "NVRTC", 0.08, 0.04},
                      {kGroups, "PTX", 0.06, 0.04},
                      {kGroups, "NVRTC", 0.06, 0.04}};
  const Product p{.in = DType::kBF16, .out = DType::kBF16, .m = 256, .n = 512, .k = 512};
  for (const Row& row : rows) {
    if (row.renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
    const PtxRun run = expect_right(p, row.way, row.renderer);
    const auto products = static_cast<double>(p.m * p.n * p.k);
    const double instructions = static_cast<double>(run.lane_instructions) / products;
    const double bytes = static_cast<double>(run.traffic.global_load_bytes) / products;
    std::printf("%s %s %s: %.4f instructions, %.4f bytes loaded for each multiplication\n",
                row.way.card, row.way.instruction, row.renderer, instructions, bytes);
    EXPECT_LT(instructions, row.most_instructions);
    EXPECT_LT(bytes, row.most_bytes);
  }
}

/// What the toolkit's assembler says of the text of a kernel for sm_90.
std::string assembler_says(const Product& p, const char* renderer) {
  const auto code = compile_text(product_kernel(p), card("sm_90", 132), renderer);
  if (!code) return code.error().message;
  const std::string path = testing::TempDir() + fmt::format("bm_nv_pipe.{}.ptx", getpid());
  std::ofstream(path) << text_of(*code);
  const std::string command = "ptxas -v -arch=sm_90a -o /dev/null " + path + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  std::array<char, 256> line;
  while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr)
    out += line.data();
  if (pipe != nullptr) pclose(pipe);
  std::filesystem::remove(path);
  return out;
}

/// Assemblers put products in a row, each waiting for the one before, where they do not see that
/// nothing touches the sums meanwhile.
TEST(NvPipe, ProductsGoOnBesideEachOther) {
  if (std::system("ptxas --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no ptxas";
  const Product large{.in = DType::kBF16, .out = DType::kBF16, .m = 4096, .n = 4096, .k = 4096};
  std::vector<Product> products = {large, large, large, large};
  products[1].is_right_deep = true;
  products[2].m = products[2].n = 4000;
  products[3].has_epilogue = true;
  for (const char* renderer : {"PTX", "NVRTC"}) {
    if (renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
    for (const Product& p : products) {
      const std::string said = assembler_says(p, renderer);
      EXPECT_NE(said.find("Used "), std::string::npos) << said;
      EXPECT_EQ(said.find("serialized"), std::string::npos) << said;
      EXPECT_NE(said.find(" 0 bytes spill stores"), std::string::npos) << said;
    }
  }
}

TEST(NvPipe, LargeProductsAreAssembled) {
  if (const auto v = compiler::nvjitlink_version(); !v) GTEST_SKIP() << v.error().message;
  for (const char* name : {"sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"})
    for (const bool is_right_deep : {false, true}) {
      const auto kernel =
          product_kernel({.m = 4096, .n = 4096, .k = 4096, .is_right_deep = is_right_deep});
      const auto code = compiler::compile(kernel, card(name, 132), "PTX", {.use_cache = false});
      ASSERT_TRUE(code) << name << ": " << code.error().message;
      EXPECT_GT(code->launch_memory_bytes, 48u << 10) << name;
      EXPECT_EQ(std::memcmp(code->image.data(),
                            "\x7f"
                            "ELF",
                            4),
                0)
          << name;
    }
  if (!compiler::nvrtc_version()) return;
  const auto kernel = product_kernel({.in = DType::kBF16, .m = 1024, .n = 1024, .k = 1024});
  for (const char* name : {"sm_80", "sm_90"}) {
    const auto code = compiler::compile(kernel, card(name, 132), "NVRTC", {.use_cache = false});
    ASSERT_TRUE(code) << name << ": " << code.error().message;
    EXPECT_EQ(code->arch, name) << "whatever its code is made for";
  }
}

}  // namespace
}  // namespace bm::test
