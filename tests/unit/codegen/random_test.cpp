// Random kernels: every renderer and target gives what the reference says, to the last bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "compiler/codegen/evaluate.h"
#include "tests/unit/codegen/random_kernel.h"
#include "tests/unit/codegen/runner.h"

namespace bm::test {
namespace {

bool is_nan(DType t, const std::byte* at) {
  const auto load = [&](auto v) {
    std::memcpy(&v, at, sizeof v);
    return v;
  };
  switch (t) {
    case DType::kF16: return (load(uint16_t{}) & 0x7fff) > 0x7c00;
    case DType::kBF16: return (load(uint16_t{}) & 0x7fff) > 0x7f80;
    case DType::kF32: return std::isnan(load(float{}));
    case DType::kF64: return std::isnan(load(double{}));
    default: return false;
  }
}

std::vector<std::vector<std::byte>> reference(const RandomKernel& k) {
  auto buffers = k.buffers;
  std::vector<std::span<std::byte>> spans(buffers.begin(), buffers.end());
  const Status done = compiler::evaluate(k.kernel, spans, k.vars);
  EXPECT_TRUE(done) << done.error().message;
  return buffers;
}

testing::AssertionResult same(const RandomKernel& k, const std::vector<std::vector<std::byte>>& got,
                              const std::vector<std::vector<std::byte>>& want) {
  for (size_t p = 0; p < want.size(); ++p) {
    const DType t = k.kernel.params[p].dtype;
    const auto size = static_cast<size_t>(item_size(t));
    for (size_t i = 0; i < want[p].size(); i += size) {
      if (std::memcmp(&got[p][i], &want[p][i], size) == 0) continue;
      if (is_nan(t, &got[p][i]) && is_nan(t, &want[p][i])) continue;
      uint64_t g = 0, w = 0;
      std::memcpy(&g, &got[p][i], size);
      std::memcpy(&w, &want[p][i], size);
      return testing::AssertionFailure()
             << fmt::format("param {} ({}) element {}: got {:#x}, want {:#x}\n", p, dtype_name(t),
                            i / size, g, w);
    }
  }
  return testing::AssertionSuccess();
}

struct Case {
  Where where;
  int count;
};

class RandomKernels : public testing::TestWithParam<Case> {};

/// BM_RANDOM_SEED starts elsewhere and BM_RANDOM_COUNT runs more.
TEST_P(RandomKernels, AgreeWithTheReference) {
  const Case c = GetParam();
  if (const std::string reason = why_not(c.where); !reason.empty()) GTEST_SKIP() << reason;
  const char* seed_text = std::getenv("BM_RANDOM_SEED");
  const char* count_text = std::getenv("BM_RANDOM_COUNT");
  const uint64_t first = seed_text ? std::strtoull(seed_text, nullptr, 10) : 1;
  const uint64_t count =
      count_text ? std::strtoull(count_text, nullptr, 10) : static_cast<uint64_t>(c.count);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const RandomKernel k = random_kernel(seed);
    // Buffers end at the end of the vector's storage: sanitizers see accesses beyond it.
    auto buffers = k.buffers;
    const Status done = run_on(c.where, k.kernel, buffers, k.vars);
    ASSERT_TRUE(done) << "seed " << seed << ": " << done.error().message;
    const auto result = same(k, buffers, reference(k));
    if (result) continue;
    auto text = compiler::explain(k.kernel, arch_of(c.where), renderer_of(c.where));
    FAIL() << "seed " << seed << ": " << result.message()
           << (text ? text->ir : text.error().message);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RandomKernels,
                         testing::Values(Case{{"LLVM", true}, 250}, Case{{"LLVM", false}, 60},
                                         Case{{"CLANG", true}, 25}, Case{{"CLANG", false}, 10},
                                         Case{{"OPENCL"}, 25}, Case{{"PTX"}, 150},
                                         Case{{"NVRTC"}, 25}, Case{{"NVPTX"}, 120}),
                         [](const auto& given) { return where_name(given.param.where); });

}  // namespace
}  // namespace bm::test
