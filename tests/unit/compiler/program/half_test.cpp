// Comparisons of float16 numbers with constants, under masks: what code generators make of widened
// numbers must not change them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "compiler/ir/evaluate.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;

constexpr int64_t kColumns = 24, kRows = 33;

/// out[i] = whether, for any r, flag[r] is false and h[r][i] < bound (or bound < h[r][i]).
ir::KernelIr any_beyond(double bound, bool is_below) {
  ir::KernelIr k;
  k.name = "any_beyond";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  k.params = {{DType::kI32, kColumns, true, false},
              {DType::kF16, kRows * kColumns, false, true},
              {DType::kBool, kRows, false, true}};
  const Node *i = g.range(g.index(kColumns)), *r = g.range(g.index(kRows));
  const Node* h = g.load(1, DType::kF16, g.add(g.mul(r, kColumns), i));
  const Node* limit = g.constant_f(DType::kF16, bound);
  const Node* is_beyond = is_below ? g.less(h, limit) : g.less(limit, h);
  const Node* is_off = g.unary(Op::kNot, g.load(2, DType::kBool, r));
  const Node* any =
      g.reduce(ir::ReduceOp::kSum, g.binary(Op::kAnd, is_off, is_beyond), std::array{r});
  k.ranges = {i};
  k.stores.push_back({0, i, g.cast(any, DType::kI32), nullptr});
  return k;
}

TEST(Half, ComparisonsUnderAMaskAreThoseOfTheNumbers) {
  std::mt19937 random{std::random_device{}()};
  for (const bool is_below : {false, true}) {
    const ir::KernelIr k = any_beyond(is_below ? -4 : 4, is_below);
    std::vector<std::vector<std::byte>> start(3);
    start[0].resize(kColumns * 4);
    for (int64_t n = 0; n < kRows * kColumns; ++n) {
      const uint16_t bits =
          f32_to_f16(static_cast<float>(random() % 64) / 8 - 4 + (is_below ? -0.5F : 0.5F));
      start[1].resize(start[1].size() + 2);
      std::memcpy(&start[1][start[1].size() - 2], &bits, 2);
    }
    for (int64_t n = 0; n < kRows; ++n) start[2].push_back(std::byte{random() % 8 != 0});
    auto want = start;
    const std::vector<std::span<std::byte>> spans(want.begin(), want.end());
    ASSERT_TRUE(compiler::evaluate(k, spans, {}));
    for (const Where& where :
         {Where{"LLVM"}, Where{"CLANG"}, Where{"LLVM", true, "-avx512f"}, Where{"LLVM", false}}) {
      auto got = start;
      const Status done = run_on(where, k, got, {});
      if (!done && done.error().code == Code::kNotFound) continue;
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(got[0], want[0]) << where_name(where);
    }
  }
}

double value_of(bool is_bf16, uint16_t bits) {
  return static_cast<double>(is_bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}

/// Whether no other number is nearer to `exact`, or as near and even.
bool is_nearest(bool is_bf16, uint16_t bits, double exact) {
  const double own = std::abs(exact - value_of(is_bf16, bits));
  for (const int step : {-1, 1}) {
    // The neighbour below the smallest magnitude is the smallest of the other sign.
    const int magnitude = bits & 0x7fff;
    const auto next =
        static_cast<uint16_t>(magnitude + step < 0 ? (bits ^ 0x8000) + 1 : bits + step);
    const double value = value_of(is_bf16, next);
    if (std::isinf(value) || std::isnan(value)) continue;
    const double other = std::abs(exact - value);
    if (other < own || (other == own && bits % 2 != 0)) return false;
  }
  return true;
}

/// Why a target may add and multiply 16-bit floats in one rounding where others go by way of
/// float32: it gives the same numbers, subnormal ones too.
TEST(Half, RoundingToFloat32InBetweenChangesNothing) {
  std::mt19937_64 random{std::random_device{}()};
  for (const bool is_bf16 : {false, true})
    for (int n = 0; n < 2'000'000; ++n) {
      const uint64_t drawn = random();
      auto a = static_cast<uint16_t>(drawn), b = static_cast<uint16_t>(drawn >> 16);
      // Sums are exact in double where the exponents are near; products tend to subnormal numbers.
      const int digits = is_bf16 ? 7 : 10;
      const bool is_sum = drawn >> 32 & 1, is_small = drawn >> 33 & 1;
      if (is_bf16 && is_sum)
        b = static_cast<uint16_t>((a & 0x7c00) | (b & 0x83ff));
      else if (is_small && !is_sum && is_bf16)
        b = static_cast<uint16_t>(
            (b & 0x807f) |
            std::max(0, 118 - (a >> digits & 0xff) + static_cast<int>(drawn >> 40 & 15)) << digits);
      const double x = value_of(is_bf16, a), y = value_of(is_bf16, b);
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      const auto fx = static_cast<float>(x), fy = static_cast<float>(y);
      const float wide = is_sum ? fx + fy : fx * fy;
      const uint16_t got = is_bf16 ? f32_to_bf16(wide) : f32_to_f16(wide);
      if (!std::isfinite(value_of(is_bf16, got))) continue;
      ASSERT_TRUE(is_nearest(is_bf16, got, is_sum ? x + y : x * y))
          << is_bf16 << is_sum << " " << x << " " << y;
    }
}

}  // namespace
}  // namespace bm::test
