// Random programs find bugs: each of these stands for a row of the table on the device only, and
// has to be found among the first programs and shrunk to little.
#include "tests/unit/tensor/program.h"
#include "tests/unit/tensor/program_helpers.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

struct Plant {
  const char* name;
  Row row;
  Size size = Size::kSmall;
  Mode mode = Mode::kFused;
};

void PrintTo(const Plant& plant, std::ostream* out) { *out << plant.row.text; }

#define BM_PLANT(name, text, ...)                                                     \
  Plant {                                                                             \
    name, {                                                                           \
      0, Noise::kExact, "", nullptr, text, [](Operands& o) -> Tensor {                \
        auto& [x, y, z, n] = o;                                                       \
        auto& [i, j, k, keep, t, axes, dims, pads, length] = n;                       \
        (void)x, (void)y, (void)z, (void)i, (void)j, (void)k, (void)keep, (void)axes; \
        (void)t, (void)dims, (void)pads, (void)length;                                \
        return __VA_ARGS__;                                                           \
      }                                                                               \
    }                                                                                 \
  }

bool has_equal_axes(const Tensor& x, const Axes& axes) {
  return axes.size() == 2 && x.size(axes[0]) == x.size(axes[1]) && !x.size(axes[0]).is(1);
}

/// A bug that only sizes which change show, replayed.
Plant over_lengths(Plant plant) {
  plant.size = Size::kLengths;
  plant.mode = Mode::kCaptured;
  return plant;
}

/// Heads of keys one after the other, where groups of queries share one.
Tensor in_turn(const Tensor& k, const Tensor& q) {
  std::vector<int64_t> counts(static_cast<size_t>(k.rank()), 1);
  counts[counts.size() - 3] = q.size(-3).constant() / k.size(-3).constant();
  return k.repeat(counts);
}
/// x with all of its padding at the end of each axis.
Tensor behind(const Tensor& x, const std::vector<int64_t>& padding) {
  std::vector<std::pair<SymInt, SymInt>> room{{0, 0}, {0, 0}};
  for (const int64_t n : padding) room.emplace_back(0, 2 * n);
  return x.pad(room);
}

std::vector<Plant> plants() {
  return {
      // One loop variable for two axes of equal size: the mean is that of the diagonal.
      BM_PLANT("VarianceOverEqualAxes", "x.var(axes, keep)",
               has_equal_axes(x, axes) ? (x - x.mean({axes[0]}, true)).square().mean(axes, keep)
                                       : x.var(axes, keep)),
      // Over as many as there can be, not as there are.
      over_lengths(
          BM_PLANT("MeanOfTheMost", "x.mean(axes, keep)",
                   axes.size() == 1 && !x.size(axes[0]).is_const()
                       ? x.sum(axes, keep) / Tensor(static_cast<double>(x.size(axes[0]).max()))
                       : x.mean(axes, keep))),
      // Where the capture wrote.
      over_lengths(BM_PLANT("PositionOfTheCapture",
                            "(x.slice(i, {length - 1, length, 1}).assign(y), x)",
                            (x.slice(i, {length.value() - 1, length.value(), 1}).assign(y), x))),
      over_lengths(BM_PLANT("LengthOfTheCapture", "x.slice(i, {0, length, 1})",
                            x.slice(i, {0, length.value(), 1}))),
      BM_PLANT("AnotherEpsilon", "x.layer_norm()", x.layer_norm({}, {}, 1e-3)),
      BM_PLANT("LastOfTies", "x.argmax(i, keep)",
               x.size(i).constant() - 1 - x.flip({i}).argmax(i, keep)),
      BM_PLANT("OneElementLeftOut", "x.max(axes, keep)",
               x.size(axes[0]).constant() > 2 ? x.slice(axes[0], {1, {}, 1}).max(axes, keep)
                                              : x.max(axes, keep)),
      BM_PLANT("LostUpdate", "(x.slice(i, {j, k, 1}).assign(y), x)", x),
      BM_PLANT("HalfPrecision", "x.matmul(y)",
               x.dtype() == DType::kF32
                   ? x.cast(DType::kF16).matmul(y.cast(DType::kF16)).cast(DType::kF32)
                   : x.matmul(y)),
      BM_PLANT("UnsignedAsSigned", "x >> 2",
               x.dtype() == DType::kI32 ? (x.cast(DType::kU32) >> 2).cast(DType::kI32) : x >> 2),
      BM_PLANT("HeadsInTurn", "Tensor::attention(x, y.index({0}), y.index({1}), {}, keep)",
               Tensor::attention(x, in_turn(y.index({0}), x), in_turn(y.index({1}), x), {}, keep)),
      BM_PLANT("MaskOfTheFirstQuery",
               "Tensor::attention(x, y.index({0}), y.index({1}), z, keep, 0.25)",
               Tensor::attention(x, y.index({0}), y.index({1}),
                                 z.rank() > 1 ? z.slice(-2, {0, 1, 1}) : z, keep, 0.25)),
      BM_PLANT("PaddingBehindOnly", "x.conv(y, z, axes, dims, {j}, k)",
               behind(x, dims).conv(y, z, axes, {0}, {j}, k)),
      BM_PLANT("SignedNibbles", "x.linear(unpacked(y, z))",
               x.linear(unpacked(y.cast(DType::kI8), z))),
      BM_PLANT("NeverWritten", "x.silu()", (x > -2).where(x.silu(), std::nan(""))),
  };
}

class PlantedBug : public ::testing::TestWithParam<Plant> {};
INSTANTIATE_TEST_SUITE_P(All, PlantedBug, ::testing::ValuesIn(plants()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(PlantedBug, IsFoundAndShrunk) {
  const Target target{"REF", GetParam().mode, &GetParam().row};
  for (uint64_t seed = 1; seed <= 800; ++seed) {
    const Case c = draw_case(seed, GetParam().size);
    if (difference(c, target, nullptr).empty()) continue;
    std::string why;
    const Case small = shrunk(c, target, &why);
    EXPECT_FALSE(why.empty());
    EXPECT_LE(small.program.steps.size(), 3u) << source_of(small.program, target);
    fmt::print("{}: seed {}, {} steps shrunk to {}\n", GetParam().name, seed,
               c.program.steps.size(), small.program.steps.size());
    return;
  }
  FAIL() << "not found in 800 programs";
}

/// The rounding of a mean moves both elements the same way, which no move of them does.
TEST(RandomProgramJudge, ANormOfTwoMayRoundItsMean) {
  Program p;
  p.inputs = {{DType::kF32, {1, 2}, {15.103919982910156, 14.987133979797363}}};
  const auto row = std::ranges::find(rows(), std::string_view("x.layer_norm()"), &Row::text);
  ASSERT_NE(row, rows().end());
  p.steps = {{static_cast<size_t>(row - rows().begin()), {-1}, {}}};
  p.outputs = {0};
  const auto judged = case_of(p);
  ASSERT_TRUE(judged);
  EXPECT_EQ(difference(*judged, {"REF"}, nullptr), "");
  EXPECT_LT(judged->results[0].error[0], 2e-5);
}

/// 961 terms of three values: added one after the other, each is rounded as the one before.
TEST(RandomProgramJudge, EqualTermsAreRoundedTheSameWay) {
  constexpr int64_t kSide = 31, kCount = kSide * kSide;
  std::vector<double> values(kCount, 0);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 5 == 1 ? 1 : i % 29 == 3 ? 2 : 0;
  long double sum = 0, squares = 0;  // whole numbers
  for (const double v : values) sum += v, squares += v * v;
  const long double exact = (squares - sum * sum / kCount) / (kCount - 1);

  Program p;
  p.inputs = {{DType::kF64, {kSide, kSide}, values}};
  const auto row = std::ranges::find(rows(), std::string_view("x.var(axes, keep)"), &Row::text);
  ASSERT_NE(row, rows().end());
  Step step{static_cast<size_t>(row - rows().begin()), {-1}, {}};
  step.n.axes = {0, 1};
  p.steps = {step};
  p.outputs = {0};
  const auto judged = case_of(p);
  ASSERT_TRUE(judged);
  const Judged& result = judged->results[0];
  EXPECT_LE(std::fabs(result.values[0] - static_cast<double>(exact)), result.error[0]);
  EXPECT_LT(result.error[0], 1e-12);
}

/// exp2(−714) is 0 in float32, and false; in float64 it is not.
TEST(RandomProgramJudge, WhatMayBeZeroHasNoTruth) {
  const auto row = [](std::string_view text) {
    return static_cast<size_t>(std::ranges::find(rows(), text, &Row::text) - rows().begin());
  };
  for (const double v : {714.0, 3.0}) {
    Program p;
    p.inputs = {{DType::kF32, {1}, {v}}};
    ASSERT_LT(row("(-x.abs()).exp2()"), rows().size());
    ASSERT_LT(row("x.cast(t)"), rows().size());
    p.steps = {{row("(-x.abs()).exp2()"), {-1}, {}}, {row("x.cast(t)"), {0}, {}}};
    p.steps[1].n.t = DType::kBool;
    std::vector<bool> hidden;
    std::string reason;
    const Judged input = judge_input(p.inputs[0]);
    const auto power = judge_step(p.steps[0], {&input}, &hidden, &reason);
    ASSERT_TRUE(power) << reason;
    const auto truth = judge_step(p.steps[1], {&*power}, &hidden, &reason);
    ASSERT_TRUE(truth) << reason;
    EXPECT_EQ(hidden, std::vector<bool>{v == 714.0});
  }
}

/// What a program with a length is at one value: inputs cut, the rest out of sight.
TEST(RandomProgramJudge, ALengthCutsInputs) {
  Program p;
  p.lengths = {2, 3};
  p.most = 3;
  p.inputs = {{DType::kF32, {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}, false, {0, 1}}};  // n + 1 columns
  EXPECT_EQ(at_length(p, 2).inputs[0].values, (std::vector<double>{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(at_length(p, 3).inputs[0].values, p.inputs[0].values);
  const std::vector<double> seen = poisoned(p.inputs[0].values, {2, 4}, {2, 3}, DType::kF32);
  for (size_t k = 0; k < seen.size(); ++k) EXPECT_EQ(std::isnan(seen[k]), k % 4 == 3) << k;
}

TEST(RandomProgramJudge, SameSeedsGiveTheSamePrograms) {
  const Target target{"REF"};
  EXPECT_EQ(source_of(draw_case(7).program, target), source_of(draw_case(7).program, target));
  EXPECT_NE(source_of(draw_case(7).program, target), source_of(draw_case(8).program, target));
}

}  // namespace
}  // namespace bm::test
