// Attention in tiles of queries and keys, against the reference interpreter: any heads, masks,
// groups, lengths and types.
#include "compiler/schedules/attention/attention_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "compiler/ir/evaluate.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

using test::RandomKernel;

double at(const std::vector<std::byte>& bytes, DType t, size_t i) {
  if (t == DType::kF64) {
    double v = 0;
    std::memcpy(&v, &bytes[i * 8], 8);
    return v;
  }
  float v = 0;
  std::memcpy(&v, &bytes[i * 4], 4);
  return static_cast<double>(v);
}

void replace_nan(DType t, double value, std::vector<std::byte>* bytes) {
  const auto size = static_cast<size_t>(item_size(t));
  for (size_t i = 0; i < bytes->size() / size; ++i) {
    if (!std::isnan(at(*bytes, t, i))) continue;
    const auto narrow = static_cast<float>(value);
    const bool is_double = t == DType::kF64;
    std::memcpy(&(*bytes)[i * size], is_double ? static_cast<const void*>(&value) : &narrow, size);
  }
}

testing::AssertionResult is_near(const RandomKernel& c, const std::vector<std::byte>& got,
                                 const std::vector<std::byte>& want) {
  const DType t = c.kernel.params[0].dtype;
  for (size_t i = 0; i < want.size() / static_cast<size_t>(item_size(t)); ++i) {
    const double g = at(got, t, i), w = at(want, t, i);
    if ((std::isnan(g) && std::isnan(w)) || std::fabs(g - w) <= c.tolerance * (1 + std::fabs(w)))
      continue;
    return testing::AssertionFailure() << "element " << i << ": got " << g << ", want " << w;
  }
  return testing::AssertionSuccess();
}

std::vector<std::byte> run(const RandomKernel& c, const hal::Arch& arch, const char* renderer) {
  auto buffers = c.buffers;
  const Status done = test::run_on_cpu(arch, renderer, c.kernel, buffers, c.vars);
  EXPECT_TRUE(done) << c.text << (done ? "" : done.error().message);
  return buffers[0];
}

int64_t attention_cases(uint64_t first, uint64_t count, const hal::Arch& arch,
                        const char* renderer) {
  int64_t found = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const RandomKernel c = test::random_attention(seed);
    const Status verified = ir::verify(c.kernel);
    EXPECT_TRUE(verified) << seed << c.text << (verified ? "" : verified.error().message);
    if (!verified || !make_attention_schedule(c.kernel, target_info(arch), 2, {})) continue;
    ++found;
    std::vector<std::vector<std::byte>> want = c.buffers;
    std::vector<std::span<std::byte>> spans(want.begin(), want.end());
    const Status evaluated = evaluate(c.kernel, spans, c.vars);
    EXPECT_TRUE(evaluated) << seed << c.text;
    EXPECT_TRUE(is_near(c, run(c, arch, renderer), want[0])) << "seed " << seed << c.text;
  }
  return found;
}

TEST(AttentionTiles, RandomKernelsEqualTheReference) {
  EXPECT_GT(attention_cases(1, 30, test::native_arch(), "LLVM"), 20);
}

TEST(AttentionTiles, SmallCachesMakeManyBlocks) {
  hal::Arch arch = test::native_arch();
  arch.l2_bytes = 8192;
  arch.l1_bytes = 2048;
  EXPECT_GT(attention_cases(1000, 20, arch, "LLVM"), 12);
}

TEST(AttentionTiles, WithoutExtensions) {
  EXPECT_GT(attention_cases(2000, 16, test::baseline_arch(), "LLVM"), 9);
}

std::vector<std::byte> formula(const RandomKernel& c, double in_place_of_nan) {
  std::vector<std::vector<std::byte>> buffers = c.buffers;
  replace_nan(c.kernel.params.back().dtype, in_place_of_nan, &buffers.back());
  std::vector<std::span<std::byte>> spans(buffers.begin(), buffers.end());
  EXPECT_TRUE(evaluate(c.kernel, spans, c.vars));
  return buffers[0];
}

/// 0·NaN is NaN in the formula; a kernel may leave out keys that no query of a block sees. What a
/// query sees makes its result NaN, and nothing else does.
TEST(AttentionTiles, NanAmongValuesReachesTheQueriesThatSeeIt) {
  std::mt19937_64 random(std::random_device{}());
  int64_t seen = 0, skipped = 0;
  for (int tries = 0; tries < 200 && (seen == 0 || skipped == 0 || tries < 12); ++tries) {
    const uint64_t seed = random();
    RandomKernel c = test::random_attention(seed);
    const DType t = c.kernel.params[0].dtype, in = c.kernel.params.back().dtype;
    const auto schedule =
        make_attention_schedule(c.kernel, target_info(test::native_arch()), 2, {});
    if (!schedule || is_half_like(in)) continue;
    auto& values = c.buffers.back();
    const auto size = static_cast<size_t>(item_size(in));
    for (size_t i = 0; i < values.size(); i += size)
      if (random() % 8 == 0) std::memset(&values[i], 0xff, size);
    const auto got = run(c, test::native_arch(), "LLVM");
    const auto want = formula(c, NAN), zero = formula(c, 0), one = formula(c, 1);
    for (size_t i = 0; i < got.size() / static_cast<size_t>(item_size(t)); ++i) {
      const double g = at(got, t, i), z = at(zero, t, i);
      const bool is_seen = std::fabs(z - at(one, t, i)) > 100 * c.tolerance;
      EXPECT_TRUE(!is_seen || std::isnan(g)) << "seed " << seed << c.text << " element " << i;
      const bool is_right = std::isnan(g) ? std::isnan(at(want, t, i))
                                          : std::fabs(g - z) <= c.tolerance * (10 + std::fabs(z));
      EXPECT_TRUE(is_right) << "seed " << seed << c.text << " element " << i << ": " << g;
      seen += is_seen;
      skipped += !std::isnan(g) && std::isnan(at(want, t, i));
    }
  }
  EXPECT_GT(seen, 0);
  EXPECT_GT(skipped, 0);
}

TEST(AttentionTiles, BothRenderersGiveTheSameBits) {
  int64_t found = 0;
  for (uint64_t seed = 3000; seed < 3006; ++seed) {
    const RandomKernel c = test::random_attention(seed);
    const hal::Arch arch = test::native_arch();
    if (!make_attention_schedule(c.kernel, target_info(arch), 2, {})) continue;
    ++found;
    EXPECT_EQ(run(c, arch, "LLVM"), run(c, arch, "CLANG")) << "seed " << seed << c.text;
  }
  EXPECT_GT(found, 2);
}

}  // namespace
}  // namespace bm::compiler
