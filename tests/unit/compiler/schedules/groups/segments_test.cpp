// Several results of one pass: a normalised row, the scales of its blocks, codes and sums of codes,
// as quantised matrices ask for them, on the interpreters of PTX and of AMD's instructions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "compiler/compile.h"
#include "runtime/base/env.h"
#include "tensor/fusion_segments.h"
#include "tensor/lower.h"
#include "tensor/tensor.h"
#include "tests/unit/compiler/amd_runner.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {
namespace {

constexpr int64_t kBlock = 32;
constexpr float kCodes = 127;

struct Quantised {
  Tensor x, gain, normed, scales, codes, sums, all;

  Quantised(const SymInt& m, int64_t rows, int64_t columns, bool has_norm, const char* device) {
    const int64_t blocks = columns / kBlock;
    x = Tensor::empty({rows, columns}, DType::kF32, device);
    gain = Tensor::empty({columns}, DType::kF32, device);
    const Tensor in = x.shrink({{0, m}, {0, columns}});
    normed = (has_norm ? in.rms_norm(gain, 1e-5) : in * 2.0).contiguous();
    const Tensor in_blocks = normed.reshape({m, blocks, kBlock});
    scales = (in_blocks.abs().max({2}) * (1.0 / kCodes)).contiguous();
    const Tensor scale = scales.unsqueeze(2).expand({m, blocks, kBlock});
    const Tensor inverse = (scale > 1e-37).where(scale.reciprocal(), 0.0);
    const Tensor rounded = (in_blocks * inverse + 12582912.0).bitcast(DType::kI32);
    codes = rounded.cast(DType::kI8).reshape({m, columns}).contiguous();
    const Tensor whole =
        codes.reshape({m, blocks, kBlock}).cast(DType::kI32).sum({2}, false, DType::kI32);
    sums = (whole.cast(DType::kF32) * scales).contiguous();
  }
};

float float_at(const std::vector<std::byte>& bytes, int64_t i) {
  float v = 0;
  std::memcpy(&v, &bytes[static_cast<size_t>(i) * 4], 4);
  return v;
}

struct Rows {
  int64_t rows = 1, columns = 512, used = 1;
  bool has_norm = true, is_symbolic = false;
  const char* card = "sm_80";
  const char* renderer = "PTX";
};

void expect_right(const Rows& r) {
  SCOPED_TRACE(fmt::format("{} of {} rows of {}, norm {}, {}", r.used, r.rows, r.columns,
                           r.has_norm, r.card));
  const ScopedSetting text("BM_NV_CODE", "ptx");
  const Var count("count", 1, r.rows);
  count.set(r.used);
  const std::string device = fmt::format("NULL:{}::{}", r.renderer, r.card);
  const Quantised q(r.is_symbolic ? SymInt(count) : SymInt(r.used), r.rows, r.columns, r.has_norm,
                    device.c_str());
  const NodePtr roots[] = {q.normed.node(), q.scales.node(), q.codes.node(), q.sums.node()};
  const FusionPlan plan = plan_fusion(roots);
  const auto groups = find_segment_groups(plan, nullptr);
  ASSERT_EQ(groups.size(), 1u);
  ASSERT_EQ(groups[0].nodes.size(), 4u) << "one kernel for all four";
  std::vector<const Node*> nodes;
  for (const NodePtr& n : groups[0].nodes) nodes.push_back(n.get());
  const auto kernel =
      lower_segments(nodes, *groups[0].segments, groups[0].length, [&](const Node* n) {
        return plan.stored.contains(n) && std::ranges::find(nodes, n) == nodes.end();
      });
  ASSERT_TRUE(kernel) << kernel.error().message;

  const bool is_amd = std::string_view(r.card).starts_with("gfx");
  hal::Arch arch = is_amd ? amd_arch(r.card) : ptx_arch();
  arch.name = r.card;
  arch.units = 4;
  const auto code = compiler::compile(kernel->ir, arch, r.renderer, {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  static std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<float> normal;
  Buffers buffers;
  const auto place_of = [&](const Tensor& t) {
    for (size_t i = 0; i < kernel->params.size(); ++i)
      if (kernel->params[i] == t.node().get()) return i;
    return kernel->params.size();
  };
  for (const ir::Param& p : kernel->ir.params)
    buffers.emplace_back(static_cast<size_t>(p.elements * item_size(p.dtype)));
  for (const Tensor* t : {&q.x, &q.gain}) {
    if (place_of(*t) == buffers.size()) continue;
    auto& bytes = buffers[place_of(*t)];
    for (size_t i = 0; i < bytes.size(); i += 4) {
      // A block of zeros, and one of large numbers.
      const size_t block = i / 4 / kBlock % 5;
      const float v = normal(random) * (t == &q.gain || block > 1 ? 1.0F
                                        : block == 0              ? 0.0F
                                                                  : 1e4F);
      std::memcpy(&bytes[i], &v, 4);
    }
  }
  std::vector<int64_t> vars(kernel->vars.size(), r.used);
  if (is_amd) {
    const auto done = run_on_amd(*code, buffers, vars);
    ASSERT_TRUE(done) << done.error().message;
  } else {
    const auto done = run_on_ptx(*code, buffers, vars);
    ASSERT_TRUE(done) << done.error().message;
  }
  const auto &x = buffers[place_of(q.x)], &normed = buffers[place_of(q.normed)],
             &scales = buffers[place_of(q.scales)], &codes = buffers[place_of(q.codes)],
             &sums = buffers[place_of(q.sums)];
  for (int64_t row = 0; row < r.used; ++row) {
    double square = 0;
    for (int64_t c = 0; c < r.columns; ++c)
      square += std::pow(static_cast<double>(float_at(x, row * r.columns + c)), 2);
    const double factor = 1 / std::sqrt(square / static_cast<double>(r.columns) + 1e-5);
    for (int64_t b = 0; b < r.columns / kBlock; ++b) {
      const int64_t block = row * r.columns / kBlock + b;
      double most = 0;
      int64_t sum = 0;
      const auto scale = static_cast<double>(float_at(scales, block));
      for (int64_t i = 0; i < kBlock; ++i) {
        const int64_t at = block * kBlock + i;
        double want = static_cast<double>(float_at(x, at)) * 2;
        if (r.has_norm)
          want = want / 2 * factor *
                 static_cast<double>(float_at(buffers[place_of(q.gain)], at % r.columns));
        const auto got = static_cast<double>(float_at(normed, at));
        ASSERT_NEAR(got, want, 1e-5 * std::fabs(want) + 1e-12) << at;
        most = std::max(most, std::fabs(got));
        const auto own = static_cast<int8_t>(codes[static_cast<size_t>(at)]);
        ASSERT_LE(std::fabs(own * scale - got), 0.5001 * scale) << at;
        sum += own;
      }
      ASSERT_NEAR(scale, most / static_cast<double>(kCodes), 1e-6 * most) << block;
      const double want = static_cast<double>(sum) * scale;
      ASSERT_NEAR(static_cast<double>(float_at(sums, block)), want, 1e-6 * std::fabs(want))
          << block;
    }
  }
}

TEST(Segments, OfOneRow) {
  for (const int64_t columns : {64, 512, 4096}) expect_right({.columns = columns});
  expect_right({.columns = 512, .has_norm = false});
}

TEST(Segments, OfSeveralRows) {
  expect_right({.rows = 7, .columns = 96, .used = 7});
  expect_right({.rows = 16, .columns = 512, .used = 5, .is_symbolic = true});
}

TEST(Segments, OnAmd) {
  for (const char* card : {"gfx942", "gfx1100"}) {
    expect_right({.columns = 512, .card = card, .renderer = "LLVM"});
    // A row is a wave's at least.
    expect_right({.rows = 16,
                  .columns = std::string_view(card) == "gfx942" ? 128 : 96,
                  .used = 5,
                  .is_symbolic = true,
                  .card = card,
                  .renderer = "LLVM"});
  }
}

}  // namespace
}  // namespace bm::test
