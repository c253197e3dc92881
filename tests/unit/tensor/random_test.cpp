// Random numbers: the published test vectors, reproducibility, distribution.
#include "tensor/jit.h"
#include "tensor/ops_internal.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Random : public OnDevice {};
BM_ON_DEVICES(Random);

// Random123 1.14, tests/kat_vectors, threefry2x32 with 20 rounds.
TEST_P(Random, ThreefryMatchesItsPublishedVectors) {
  const Tensor key =
      Tensor::from({uint64_t{0}, ~uint64_t{0}, uint64_t{0x0370734413198a2e}}, device());
  const Tensor counter =
      Tensor::from({uint64_t{0}, ~uint64_t{0}, uint64_t{0x85a308d3243f6a88}}, device());
  const auto [x0, x1] = ops::threefry(key, counter);
  EXPECT_EQ(x0.data<uint32_t>(), (std::vector<uint32_t>{0x6b200159, 0x1cb996fc, 0xc4923a9c}));
  EXPECT_EQ(x1.data<uint32_t>(), (std::vector<uint32_t>{0x99ba4efe, 0xbb002be7, 0x483df7a0}));
}

TEST_P(Random, SeedRepeatsTheSequence) {
  Tensor::manual_seed(7);
  const auto first = Tensor::rand({5}, DType::kF32, device()).data<float>();
  const auto second = Tensor::rand({5}, DType::kF32, device()).data<float>();
  EXPECT_NE(first, second);
  Tensor::manual_seed(7);
  EXPECT_EQ(Tensor::rand({5}, DType::kF32, device()).data<float>(), first);
  EXPECT_EQ(Tensor::rand({5}, DType::kF32, device()).data<float>(), second);
  Tensor::manual_seed(8);
  EXPECT_NE(Tensor::rand({5}, DType::kF32, device()).data<float>(), first);
}

TEST_P(Random, LaziesDrawnTogetherDiffer) {
  Tensor::manual_seed(1);
  const Tensor a = Tensor::rand({4}, DType::kF32, device()),
               b = Tensor::rand({4}, DType::kF32, device());
  const auto later = b.data<float>();
  EXPECT_NE(a.data<float>(), later);
  Tensor::manual_seed(1);
  EXPECT_EQ(Tensor::rand({4}, DType::kF32, device()).data<float>(), a.data<float>());
}

TEST_P(Random, UniformNumbersFillTheirRange) {
  Tensor::manual_seed(3);
  for (DType t : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    const auto v = numbers(Tensor::uniform({2000}, -2, 3, t, device()));
    double sum = 0;
    for (double x : v) {
      EXPECT_GE(x, -2);
      EXPECT_LE(x, 3);  // 16-bit results may round up to the end
      sum += x;
    }
    EXPECT_NEAR(sum / 2000, 0.5, 0.15) << dtype_name(t);
  }
  for (double x : numbers(Tensor::rand({2000}, DType::kBF16, device()))) EXPECT_LT(x, 1);
}

TEST_P(Random, NormalNumbersHaveUnitVariance) {
  Tensor::manual_seed(4);
  for (DType t : {DType::kF32, DType::kF64, DType::kF16}) {
    const auto v = numbers(Tensor::randn({3000}, t, device()));
    double sum = 0, squares = 0;
    for (double x : v) {
      ASSERT_TRUE(std::isfinite(x));
      sum += x;
      squares += x * x;
    }
    EXPECT_NEAR(sum / 3000, 0, 0.08) << dtype_name(t);
    EXPECT_NEAR(squares / 3000, 1, 0.12) << dtype_name(t);
  }
}

TEST_P(Random, IntegersStayInRange) {
  Tensor::manual_seed(5);
  std::vector<int> seen(7);
  for (int64_t x : Tensor::randint({700}, -3, 4, DType::kI64, device()).data<int64_t>()) {
    ASSERT_GE(x, -3);
    ASSERT_LT(x, 4);
    ++seen[static_cast<size_t>(x + 3)];
  }
  for (int n : seen) EXPECT_NEAR(n, 100, 45);
  EXPECT_EQ(Tensor::randint({3}, 5, 6, DType::kU8, device()).dtype(), DType::kU8);
  EXPECT_THAT(message_of([&] { Tensor::randint({1}, 5, 5, DType::kI64, device()); }),
              ::testing::HasSubstr("[5, 5)"));
  EXPECT_THAT(message_of([&] { Tensor::rand({1}, DType::kI32, device()); }),
              ::testing::HasSubstr("int32"));
}

TEST_P(Random, ReplaysOfACapturedDrawAdvanceAndObeyTheSeed) {
  Tensor::manual_seed(9);
  std::vector<std::vector<float>> plain, captured;
  for (int i = 0; i < 5; ++i)
    plain.push_back((Tensor::rand({3}, DType::kF32, device()) + 1).data<float>());
  Jit step([&](const Tensor& x) { return Tensor::rand({3}, DType::kF32, device()) + x; });
  Tensor::manual_seed(9);
  for (int i = 0; i < 5; ++i) captured.push_back(step(f32({1, 1, 1})).data<float>());
  EXPECT_EQ(captured, plain);
  Tensor::manual_seed(9);
  EXPECT_EQ(step(f32({1, 1, 1})).data<float>(), plain[0]);
}

TEST(RandomAcrossDevices, EveryDeviceDrawsTheSameNumbers) {
  if (!why_not("REF").empty() || !why_not("CPU").empty()) GTEST_SKIP() << "needs REF and CPU";
  Tensor::manual_seed(11);
  const auto a = Tensor::rand({9}, DType::kF32, "REF").data<float>();
  EXPECT_EQ(Tensor::rand({9}, DType::kF32, "CPU").data<float>(), a);
}

}  // namespace
}  // namespace bm::test
