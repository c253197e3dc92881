// Products of matrices on NVIDIA's targets whose tiles go through shared memory, on the PTX
// interpreter.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "compiler/compile.h"
#include "runtime/base/env.h"
#include "tests/unit/codegen/kernels.h"
#include "tests/unit/codegen/products.h"
#include "tests/unit/codegen/ptx_runner.h"

namespace bm::test {
namespace {

hal::Arch card(const char* name) {
  hal::Arch arch = ptx_arch();
  arch.name = name;
  arch.units = 2;
  return arch;
}

struct Way {
  const char* card;
  const char* instruction;
};

std::string source_of(const ir::KernelIr& kernel, const char* name, const char* renderer) {
  hal::Arch arch = card(name);
  arch.vendor = hal::Vendor::kNull;
  const auto text = compiler::explain(kernel, arch, renderer);
  EXPECT_TRUE(text) << text.error().message;
  return text ? text->schedule + text->lowered + text->source : "";
}

void expect_right(const Product& p, const Way& way, const char* renderer, uint64_t shift = 0) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  const ir::KernelIr kernel = product_kernel(p);
  const std::string source = source_of(kernel, way.card, renderer);
  EXPECT_NE(source.find(way.instruction), std::string::npos) << source;
  const auto code = compiler::compile(kernel, card(way.card), renderer, {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message << source;
  const Buffers start = small_numbers(kernel);
  Buffers got = start;
  const auto done = run_on_ptx(*code, got, {}, shift);
  if (std::getenv("DUMP")) std::printf("%s\n", source.c_str());
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->traffic.shared_conflicts, 0u);
  const double products = static_cast<double>(p.m * p.n * p.k);
  std::printf(
      "%s %s: %.4f instructions, %.4f bytes loaded for each multiplication, %lu passes, %lu "
      "conflicts\n",
      way.card, way.instruction, static_cast<double>(done->lane_instructions) / products,
      static_cast<double>(done->traffic.global_load_bytes) / products,
      static_cast<unsigned long>(done->traffic.shared_passes),
      static_cast<unsigned long>(done->traffic.shared_conflicts));
  EXPECT_EQ(difference_from_cpu(kernel, got, start), 0) << source.substr(0, 3000);
}

TEST(NvPipe, First) {
  for (const Way way : {Way{"sm_80", "ldmatrix"}, Way{"sm_90", "wgmma"}})
    for (const bool is_left_transposed : {false, true})
      for (const bool is_right_deep : {false, true})
        expect_right({.in = DType::kBF16,
                      .m = 128,
                      .n = 128,
                      .k = 256,
                      .is_left_transposed = is_left_transposed,
                      .is_right_deep = is_right_deep},
                     way, "PTX");
}
TEST(NvPipe, Second) {
  for (const Way way : {Way{"sm_80", "ldmatrix"}, Way{"sm_90", "wgmma"}})
    for (const bool is_right_deep : {false, true})
      expect_right(
          {.in = DType::kBF16, .m = 128, .n = 128, .k = 256, .is_right_deep = is_right_deep}, way,
          "NVRTC");
}

TEST(NvPipe, DISABLED_Dump) {
  for (const char* name : {"sm_80", "sm_86", "sm_90"})
    for (const bool is_right_deep : {false, true})
      for (const int64_t size : {4096, 1000}) {
        const auto kernel = product_kernel({.in = DType::kBF16,
                                            .out = DType::kBF16,
                                            .m = size,
                                            .n = size,
                                            .k = size == 1000 ? 1024 : size,
                                            .is_right_deep = is_right_deep});
        hal::Arch arch = card(name);
        arch.units = 132;
        arch.vendor = hal::Vendor::kNull;
        for (const char* renderer : {"PTX", "NVRTC"}) {
          const auto text = compiler::explain(kernel, arch, renderer);
          ASSERT_TRUE(text) << text.error().message;
          std::printf("%s\n", text->schedule.c_str());
          const std::string path = fmt::format("/tmp/w/tcx/{}_{}_{}.{}", name, size, is_right_deep,
                                               renderer == std::string("PTX") ? "ptx" : "cu");
          std::FILE* f = std::fopen(path.c_str(), "w");
          std::fputs(text->source.c_str(), f);
          std::fclose(f);
          if (renderer == std::string("PTX")) {
            std::FILE* g = std::fopen((path + ".low").c_str(), "w");
            std::fputs(text->lowered.c_str(), g);
            std::fclose(g);
          }
        }
      }
}

}  // namespace
}  // namespace bm::test
