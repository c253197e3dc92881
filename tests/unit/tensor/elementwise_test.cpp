// Known answers of operators, rounding, division rules and functions.
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Elementwise : public OnDevice {
 protected:
  /// Function values against libm over a grid.
  void expect_like(Tensor (Tensor::*op)() const, double (*libm)(double),
                   const std::vector<double>& at, double factor = 4) {
    for (DType t : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      const Tensor x = tensor_of(at, {static_cast<int64_t>(at.size())}, t, device());
      std::vector<double> expected;
      for (double v : numbers(x)) expected.push_back(libm(v));
      Tolerance tolerance = tolerance_of(t, is_half_like(t) ? 1 : factor);
      tolerance.absolute *=
          is_half_like(t) ? 0x1p-5 : 0x1p-10;  // results near zero are accurate too
      EXPECT_TRUE(are_close(expected, numbers((x.*op)()), tolerance)) << dtype_name(t);
    }
  }
};
BM_ON_DEVICES(Elementwise);

const std::vector<double> kGrid = {
    -7.5, -3, -1.25, -1, -0.5, -0.1, -0.0009765625, 0, 0.0009765625, 0.1, 0.5,
    0.75, 1,  1.25,  2,  3,    7.5};
const std::vector<double> kPositive = {0.0009765625, 0.1, 0.5, 0.75, 1, 1.25, 2, 3, 7.5, 100, 1000};
const std::vector<double> kUnit = {
    -1, -0.96875, -0.75, -0.5, -0.25, -0.0009765625, 0, 0.0009765625, 0.25, 0.5, 0.75, 0.96875, 1};

TEST_P(Elementwise, OperatorsPromoteAndBroadcast) {
  EXPECT_TRUE(has_values(count({2, 1}) + count({3}), {2, 3}, {0, 1, 2, 1, 2, 3}));
  EXPECT_TRUE(has_values(f32({5, 6}) - f32({1, 8}), {2}, {4, -2}));
  EXPECT_TRUE(has_values(i32({5, 6}) * 2, {2}, {10, 12}));
  EXPECT_EQ((i32({5}) * 2).dtype(), DType::kI32);
  EXPECT_EQ((i32({5}) * 0.5).dtype(), DType::kF32);
  EXPECT_TRUE(has_values(i32({5, 6}) / i32({2, 4}), {2}, {2.5, 1.5}));
  EXPECT_TRUE(has_values(2 - f32({0.5, 3}), {2}, {1.5, -1}));
  EXPECT_TRUE(has_values(-i32({5, -6}), {2}, {-5, 6}));
}

TEST_P(Elementwise, BoolArithmeticIsLogic) {
  const Tensor a = flags({0, 0, 1, 1}), b = flags({0, 1, 0, 1});
  EXPECT_TRUE(has_values(a + b, {4}, {0, 1, 1, 1}));
  EXPECT_TRUE(has_values(a * b, {4}, {0, 0, 0, 1}));
  EXPECT_TRUE(has_values(a ^ b, {4}, {0, 1, 1, 0}));
  EXPECT_TRUE(has_values(a.maximum(b), {4}, {0, 1, 1, 1}));
  EXPECT_TRUE(has_values(!a, {4}, {1, 1, 0, 0}));
  EXPECT_TRUE(has_values(!f32({0, 2, kNan}), {3}, {1, 0, 0}));
  EXPECT_TRUE(has_values(~i32({0, 5}), {2}, {-1, -6}));
}

TEST_P(Elementwise, ShiftsAndBits) {
  EXPECT_TRUE(has_values(i32({1, -8, 3}) << i32({4, 1, 40}), {3}, {16, -16, 0}));
  EXPECT_TRUE(has_values(i32({16, -8, -1}) >> i32({4, 1, 40}), {3}, {1, -4, -1}));
  EXPECT_TRUE(has_values(i32({12, 10}) & 6, {2}, {4, 2}));
  EXPECT_TRUE(has_values(i32({12, 10}) | 1, {2}, {13, 11}));
}

TEST_P(Elementwise, ComparisonsTreatNanAsUnordered) {
  const Tensor a = f32({1, 2, 3, kNan}), b = f32({2, 2, 2, kNan});
  EXPECT_TRUE(has_values(a < b, {4}, {1, 0, 0, 0}));
  EXPECT_TRUE(has_values(a > b, {4}, {0, 0, 1, 0}));
  EXPECT_TRUE(has_values(a <= b, {4}, {1, 1, 0, 0}));
  EXPECT_TRUE(has_values(a >= b, {4}, {0, 1, 1, 0}));
  EXPECT_TRUE(has_values(a == b, {4}, {0, 1, 0, 0}));
  EXPECT_TRUE(has_values(a != b, {4}, {1, 0, 1, 1}));
  EXPECT_TRUE(has_values(i32({1, 2}) <= i32({1, 1}), {2}, {1, 0}));
}

TEST_P(Elementwise, MaximumAndMinimumPropagateNan) {
  EXPECT_TRUE(has_values(f32({1, kNan, 3}).maximum(f32({2, 0, kNan})), {3}, {2, kNan, kNan}));
  EXPECT_TRUE(has_values(f32({1, kNan, 3}).minimum(f32({2, 0, kNan})), {3}, {1, kNan, kNan}));
  EXPECT_TRUE(has_values(i32({-5, 1, 9}).clip(0, 4), {3}, {0, 1, 4}));
  EXPECT_EQ(i32({1}).clip(0, 4).dtype(), DType::kI32);
  EXPECT_TRUE(has_values(f32({-5, 1, 9}).clip(std::nullopt, 4), {3}, {-5, 1, 4}));
}

TEST_P(Elementwise, IntegerDivisionRules) {
  const Tensor a = i32({7, -7, 7, -7, 6, 5}), b = i32({2, 2, -2, -2, 3, 0});
  EXPECT_TRUE(has_values(a.floor_div(b), {6}, {3, -4, -4, 3, 2, 0}));
  EXPECT_TRUE(has_values(a.mod(b), {6}, {1, 1, -1, -1, 0, 0}));
  EXPECT_TRUE(has_values(a.trunc_div(b), {6}, {3, -3, -3, 3, 2, 0}));
  EXPECT_TRUE(has_values(a.fmod(b), {6}, {1, -1, 1, -1, 0, 0}));
}

TEST_P(Elementwise, FloatDivisionRules) {
  const Tensor a = f32({7.5, -7.5, 7.5, -7.5, 1, 6}), b = f32({2, 2, -2, -2, 0.1, 3});
  EXPECT_TRUE(has_values(a.floor_div(b), {6}, {3, -4, -4, 3, 9, 2}));
  EXPECT_TRUE(has_values(a.mod(b), {6}, {1.5, 0.5, -0.5, -1.5, 0.1, 0}, {1e-6, 0}));
  EXPECT_TRUE(has_values(a.trunc_div(b), {6}, {3, -3, -3, 3, 10, 2}));
  EXPECT_TRUE(has_values(a.fmod(b), {6}, {1.5, -1.5, 1.5, -1.5, 0.1, 0}, {1e-6, 0}));
  EXPECT_TRUE(has_values(f32({1, -1, 0}).floor_div(f32({0, 0, 0})), {3}, {kInf, -kInf, kNan}));
}

TEST_P(Elementwise, RoundingAndSigns) {
  const Tensor x =
      f32({-2.5, -1.5, -0.5, -0.2, 0.5, 0.49999997, 1.5, 2.5, 3.7, 8388609, kInf, kNan});
  EXPECT_TRUE(has_values(x.round(), {12}, {-2, -2, 0, 0, 0, 0, 2, 2, 4, 8388609, kInf, kNan}));
  EXPECT_TRUE(has_values(x.floor(), {12}, {-3, -2, -1, -1, 0, 0, 1, 2, 3, 8388609, kInf, kNan}));
  EXPECT_TRUE(has_values(x.ceil(), {12}, {-2, -1, 0, 0, 1, 1, 2, 3, 4, 8388609, kInf, kNan}));
  EXPECT_TRUE(has_values(x.trunc(), {12}, {-2, -1, 0, 0, 0, 0, 1, 2, 3, 8388609, kInf, kNan}));
  EXPECT_TRUE(has_values(x.sign(), {12}, {-1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1, kNan}));
  EXPECT_TRUE(has_values(f32({-2, -0.0, 3, -kInf}).abs(), {4}, {2, 0, 3, kInf}));
  EXPECT_FALSE(std::signbit(numbers(f32({-0.0}).abs())[0]));
  EXPECT_TRUE(has_values(i32({-4, 0, 9}).abs(), {3}, {4, 0, 9}));
  EXPECT_TRUE(has_values(i32({-4, 0, 9}).sign(), {3}, {-1, 0, 1}));
}

TEST_P(Elementwise, ClassifiesNumbers) {
  const Tensor x = f32({1, kNan, kInf, -kInf, 0});
  EXPECT_TRUE(has_values(x.isnan(), {5}, {0, 1, 0, 0, 0}));
  EXPECT_TRUE(has_values(x.isinf(), {5}, {0, 0, 1, 1, 0}));
  EXPECT_TRUE(has_values(x.isfinite(), {5}, {1, 0, 0, 0, 1}));
  EXPECT_TRUE(has_values(i32({1, 2}).isfinite(), {2}, {1, 1}));
}

TEST_P(Elementwise, WhereAndLerp) {
  EXPECT_TRUE(has_values(flags({1, 0}).where(f32({1, 2}), 9), {2}, {1, 9}));
  EXPECT_TRUE(has_values(flags({1, 0}).where(f32({1}, {1, 1}), i32({7, 8})), {1, 2}, {1, 8}));
  EXPECT_TRUE(has_values(f32({0, 10}).lerp(f32({4, 20}), 0.25), {2}, {1, 12.5}));
}

TEST_P(Elementwise, FunctionsAgreeWithLibm) {
  expect_like(&Tensor::exp, std::exp, kGrid);
  expect_like(&Tensor::exp2, std::exp2, kGrid);
  expect_like(&Tensor::expm1, std::expm1, kGrid, 6);
  expect_like(&Tensor::log, std::log, kPositive);
  expect_like(&Tensor::log2, std::log2, kPositive);
  expect_like(&Tensor::log10, std::log10, kPositive);
  expect_like(&Tensor::log1p, std::log1p,
              {-0.5, -0.1, -0.0009765625, 0, 0.0009765625, 0.1, 0.5, 1, 7.5, 100}, 6);
  expect_like(&Tensor::sin, std::sin, kGrid);
  expect_like(&Tensor::sinh, std::sinh, kGrid, 8);
  expect_like(&Tensor::cosh, std::cosh, kGrid, 8);
  expect_like(&Tensor::tanh, std::tanh, kGrid, 8);
  expect_like(&Tensor::atan, std::atan, kGrid, 6);
  expect_like(&Tensor::asin, std::asin, kUnit, 8);
  expect_like(&Tensor::sqrt, std::sqrt, kPositive);
  expect_like(&Tensor::erf, std::erf, kGrid, 6);
}

TEST_P(Elementwise, CosineAndItsKinAreAccurateInAbsoluteTerms) {
  const std::vector<double> at = {-7.5, -3.14159274, -1.25, 0, 0.1, 1.57079637, 2, 1000};
  const std::vector<double> x = numbers(f32(at));
  std::vector<double> cosine, arc;
  for (double v : x) cosine.push_back(std::cos(v));
  EXPECT_TRUE(are_close(cosine, numbers(f32(at).cos()), {4 * 0x1p-23, 0}));
  for (double v : kUnit) arc.push_back(std::acos(v));
  EXPECT_TRUE(are_close(arc, numbers(f32(kUnit).acos()), {4 * 0x1p-23, 0}));
  EXPECT_TRUE(are_close({std::tan(0.5), std::tan(-1.0)}, numbers(f32({0.5, -1}).tan()), {1e-6, 0}));
}

TEST_P(Elementwise, ExponentialsReachTheEndsOfTheRange) {
  const Tensor x = f32({-kInf, -104, -88, 88.7, 89, kInf, kNan});
  std::vector<double> expected;
  for (double v : numbers(x))
    expected.push_back(static_cast<double>(static_cast<float>(std::exp(v))));
  EXPECT_TRUE(are_close(expected, numbers(x.exp()), {1e-44, 4e-7}));
  EXPECT_TRUE(has_values(f32({-kInf, kInf, kNan}).expm1(), {3}, {-1, kInf, kNan}));
  EXPECT_TRUE(has_values(f32({-1, kInf, -2, 0}).log1p(), {4}, {-kInf, kInf, kNan, 0}));
  EXPECT_TRUE(has_values(f32({0, -1, kInf}).log(), {3}, {-kInf, kNan, kInf}));
  EXPECT_TRUE(has_values(f32({-kInf, kInf, kNan, 50}).tanh(), {4}, {-1, 1, kNan, 1}));
  EXPECT_TRUE(has_values(f32({-kInf, kInf}).sinh(), {2}, {-kInf, kInf}));
  EXPECT_TRUE(has_values(f32({-kInf, kInf}).cosh(), {2}, {kInf, kInf}));
  EXPECT_TRUE(has_values(f32({-kInf, kInf}).atan(), {2}, {-M_PI_2, M_PI_2}, {1e-6, 0}));
  EXPECT_TRUE(has_values(f32({-kInf, kInf, 5}).erf(), {3}, {-1, 1, 1}));
  EXPECT_TRUE(has_values(f32({2, -2}).asin(), {2}, {kNan, kNan}));
}

// Beyond the largest result as before it, and down to where results are zero.
TEST_P(Elementwise, ExponentialsOverflowToInfinityAndNothingElse) {
  const auto check = [&](DType t, double begin, double end, double step) {
    std::vector<double> at;
    for (double v = begin; v < end; v += step) at.push_back(v);
    const Tensor x = tensor_of(at, {static_cast<int64_t>(at.size())}, t, device());
    const std::vector<double> given = numbers(x);
    for (const bool is_minus_one : {false, true}) {
      std::vector<double> expected;
      for (const double v : given) {
        const double e = is_minus_one ? std::expm1(v) : std::exp(v);
        expected.push_back(t == DType::kF32 ? static_cast<double>(static_cast<float>(e)) : e);
      }
      const Tolerance close = t == DType::kF64 ? Tolerance{0, 4e-15} : Tolerance{1e-38, 1e-6};
      EXPECT_TRUE(are_close(expected, numbers(is_minus_one ? x.expm1() : x.exp()), close))
          << dtype_name(t) << " from " << begin;
    }
  };
  check(DType::kF32, 87, 145, 0.0625);
  check(DType::kF32, -145, -87, 0.0625);
  if (runtime::open_device(device()).value()->hal().arch().has_f64) {
    check(DType::kF64, 700, 770, 0.0625);
    check(DType::kF64, -700, -600, 0.0625);
  }
}

TEST_P(Elementwise, NumbersThatADtypeDoesNotHaveAreComparedAsTheyAre) {
  const Tensor u = Tensor::from({uint8_t{0}, uint8_t{44}, uint8_t{255}}, device());
  EXPECT_TRUE(has_values(u < 300, {3}, {1, 1, 1}));
  EXPECT_TRUE(has_values(u >= 300, {3}, {0, 0, 0}));
  EXPECT_TRUE(has_values(u == 300, {3}, {0, 0, 0}));
  EXPECT_TRUE(has_values(u != 300, {3}, {1, 1, 1}));
  EXPECT_TRUE(has_values(u > -1, {3}, {1, 1, 1}));
  EXPECT_TRUE(has_values(-1 <= u, {3}, {1, 1, 1}));
  EXPECT_TRUE(has_values(300 <= u, {3}, {0, 0, 0}));
  EXPECT_TRUE(has_values(u < 44, {3}, {1, 0, 0}));
  const Tensor i = Tensor::from({int8_t{-1}, int8_t{127}}, device());
  EXPECT_TRUE(has_values(i == 255, {2}, {0, 0}));
  EXPECT_TRUE(has_values(i > -129, {2}, {1, 1}));
  EXPECT_TRUE(has_values(i32({-5, 7}) < (int64_t{1} << 40), {2}, {1, 1}));
  EXPECT_TRUE(
      has_values(Tensor::from({uint64_t{0}, UINT64_MAX}, device()) == UINT64_MAX, {2}, {0, 1}));
}

TEST_P(Elementwise, ActivationsAreStable) {
  const Tensor x = f32({-1000, -2, 0, 2, 1000});
  EXPECT_TRUE(
      has_values(x.sigmoid(), {5}, {0, 0.11920292202, 0.5, 0.88079707798, 1}, {1e-7, 1e-6}));
  EXPECT_TRUE(has_values(x.silu(), {5}, {0, -0.23840584404, 0, 1.76159415596, 1000}, {1e-7, 1e-6}));
  EXPECT_TRUE(has_values(x.softplus(), {5}, {0, 0.12692801104, 0.69314718056, 2.12692801104, 1000},
                         {1e-7, 1e-6}));
  EXPECT_TRUE(has_values(x.relu(), {5}, {0, 0, 0, 2, 1000}));
  EXPECT_TRUE(has_values(x.leaky_relu(0.1), {5}, {-100, -0.2, 0, 2, 1000}, {0, 1e-6}));
  EXPECT_TRUE(has_values(x.elu(2), {5}, {-2, -1.72932943353, 0, 2, 1000}, {0, 1e-6}));
  EXPECT_TRUE(has_values(x.gelu(), {5}, {0, -0.04540230591, 0, 1.95459769409, 1000}, {1e-6, 1e-6}));
  EXPECT_TRUE(
      has_values(x.gelu(false), {5}, {0, -0.04550026390, 0, 1.95449973610, 1000}, {1e-6, 1e-6}));
  EXPECT_TRUE(has_values(x.mish(), {5}, {0, -0.25250148270, 0, 1.94395895953, 1000}, {1e-6, 1e-6}));
  EXPECT_TRUE(
      has_values(x.hardsigmoid(), {5}, {0, 0.16666666667, 0.5, 0.83333333333, 1}, {1e-7, 0}));
  EXPECT_TRUE(
      has_values(x.hardswish(), {5}, {0, -0.33333333333, 0, 1.66666666667, 1000}, {1e-6, 0}));
}

TEST_P(Elementwise, PowOfIntegersIsExact) {
  EXPECT_TRUE(has_values(i64({3, -2, 10, 7}).pow(i64({4, 3, 18, 0})), {4}, {81, -8, 1e18, 1}));
  EXPECT_TRUE(
      has_values(i64({2, 1, -1, -1, 0}).pow(i64({-1, -5, -3, -2, 0})), {5}, {0, 1, -1, 1, 1}));
  EXPECT_TRUE(has_values(i64({5, -3}).pow(3), {2}, {125, -27}));
  EXPECT_EQ(Tensor::from({uint8_t{3}}, device())
                .pow(Tensor::from({uint8_t{6}}, device()))
                .item<uint8_t>(),
            217);  // 729 mod 256
}

TEST_P(Elementwise, PowOfFloatsFollowsC) {
  const std::vector<double> base = {2, -2, -2, 0, 0, -8, 1, kNan, kInf, -kInf, 0.5, -1, 4};
  const std::vector<double> exponent = {0.5, 3, 0.5, 2, -1, 0, kNan, 0, -1, 3, kInf, kInf, -1.5};
  std::vector<double> expected;
  for (size_t i = 0; i < base.size(); ++i) expected.push_back(std::pow(base[i], exponent[i]));
  EXPECT_TRUE(are_close(expected, numbers(f32(base).pow(f32(exponent))), {0, 1e-6}));
  EXPECT_TRUE(has_values(f32({-3, 2}).pow(2), {2}, {9, 4}));
  EXPECT_TRUE(has_values(f32({-2, 4}).pow(-3), {2}, {-0.125, 0.015625}));
  EXPECT_TRUE(has_values(f32({16}).pow(0.5), {1}, {4}));
  EXPECT_TRUE(has_values(Tensor(2.0).pow(f32({3})), {1}, {8}, {0, 1e-6}));
}

TEST_P(Elementwise, IntegersDividedByZeroAreZero) {
  const Tensor a = i32({7, -7, 0}), zero = i32({0, 0, 0});
  for (const Tensor& t : {a.floor_div(zero), a.mod(zero), a.trunc_div(zero), a.fmod(zero)})
    EXPECT_TRUE(has_values(t, {3}, {0, 0, 0}));
}

TEST_P(Elementwise, CastsSaturateAndTruncate) {
  EXPECT_TRUE(has_values(f32({-1.9, 1.9, 300, -300, kNan, kInf}).cast(DType::kI8), {6},
                         {-1, 1, 127, -128, 0, 127}));
  EXPECT_TRUE(has_values(f32({-1.9, 300, 1e20}).cast(DType::kU8), {3}, {0, 255, 255}));
  EXPECT_TRUE(has_values(i32({300, -1}).cast(DType::kU8), {2}, {44, 255}));
  EXPECT_TRUE(has_values(f32({0, 0.5, kNan}).cast(DType::kBool), {3}, {0, 1, 1}));
  EXPECT_TRUE(
      has_values(f32({1.0009765625, 65520, 1e-8}).cast(DType::kF16), {3}, {1.0009765625, kInf, 0}));
}

TEST_P(Elementwise, ErrorsNameOperationShapesAndTypes) {
  const std::string broadcast = message_of([&] { count({2, 3}) + count({4}); });
  EXPECT_THAT(broadcast, ::testing::HasSubstr("add"));
  EXPECT_THAT(broadcast, ::testing::HasSubstr("[2, 3]"));
  EXPECT_THAT(broadcast, ::testing::HasSubstr("[4]"));
  const std::string bits = message_of([&] { f32({1}) & i32({1}); });
  EXPECT_THAT(bits, ::testing::HasSubstr("float32 [1]"));
  EXPECT_THAT(bits, ::testing::HasSubstr("int32 [1]"));
  EXPECT_THAT(message_of([&] { flags({1}) - flags({1}); }),
              ::testing::HasSubstr("subtract is not defined on bool"));
  EXPECT_THAT(message_of([&] { -flags({1}); }), ::testing::HasSubstr("bool"));
  EXPECT_THAT(message_of([&] { ~f32({1}); }), ::testing::HasSubstr("float32"));
  EXPECT_THAT(message_of([&] { flags({1}).mod(flags({1})); }),
              ::testing::HasSubstr("mod is not defined on bool"));
}

}  // namespace
}  // namespace bm::test
