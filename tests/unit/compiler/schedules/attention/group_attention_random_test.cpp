// Attention with any heads, masks, groups, lengths and layouts by matrix instructions, on the PTX
// interpreter, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "compiler/ir/evaluate.h"
#include "compiler/compile.h"
#include "compiler/schedules/attention/attention_plan.h"
#include "runtime/base/env.h"
#include "tests/unit/compiler/schedules/attention/attention_problem.h"
#include "tests/unit/compiler/random_kernel.h"

namespace bm::test {
namespace {

/// Powers are rounded where the formula rounds weights.
constexpr double kRoundings = 2;

/// Largest difference, relative to results above 1; infinite where only one of two is NaN.
double difference_of(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    const double error = std::fabs(got[i] - want[i]) / (1 + std::fabs(want[i]));
    worst = std::max(worst, std::isnan(error) ? kInf : error);
  }
  return worst;
}

TEST(GroupAttentionRandom, EqualsTheReference) {
  const ScopedSetting setting("BM_NV_CODE", "ptx");
  const uint64_t first = std::random_device{}();
  int64_t found = 0;
  for (uint64_t seed = first; seed < first + 60; ++seed) {
    const RandomKernel c = random_tiled_attention(seed);
    hal::Arch arch = ptx_arch();
    arch.units = static_cast<uint32_t>(1 + seed % 9);
    const compiler::TargetInfo target = compiler::target_info(arch);
    if (!compiler::make_group_attention_schedule(c.kernel, target, arch.units)) continue;
    ++found;
    Buffers want = c.buffers, got = c.buffers;
    std::vector<std::span<std::byte>> spans(want.begin(), want.end());
    ASSERT_TRUE(compiler::evaluate(c.kernel, spans, c.vars));
    const auto code = compiler::compile(c.kernel, arch, "PTX", {.use_cache = false});
    ASSERT_TRUE(code) << seed << c.text << code.error().message;
    const auto done = run_on_ptx(*code, got, c.vars, seed % 3 == 0 ? 4 : 0);
    ASSERT_TRUE(done) << seed << c.text << done.error().message;
    const DType t = c.kernel.params[0].dtype;
    EXPECT_LE(difference_of(values_of(t, got[0]), values_of(t, want[0])), kRoundings * c.tolerance)
        << "seed " << seed << c.text;
  }
  EXPECT_GT(found, 15);
}

}  // namespace
}  // namespace bm::test
