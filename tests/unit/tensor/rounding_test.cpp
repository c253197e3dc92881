// Accuracy where single operations lose digits: conversions to 16-bit floats round once, running
// sums do not drift, cosine and tangent keep their digits next to their zeros.
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/base/half.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

using Doubles = std::vector<double>;

class Rounding : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, Rounding,
                         ::testing::ValuesIn(devices_and({"REF", "CPU:LLVM", "CPU:CLANG", "CL"})),
                         device_test_name);

/// The finite magnitudes of a 16-bit format, smallest first; what comes next is infinity.
Doubles magnitudes(DType t) {
  Doubles out;
  for (uint32_t bits = 0; bits < 0x8000; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float v = t == DType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
    if (!std::isfinite(v)) break;
    out.push_back(static_cast<double>(v));
  }
  return out;
}

/// The nearest number of the format, an even one of two, found among all of them. Midpoints and
/// differences from them are exact in float64.
double nearest(const Doubles& all, double v) {
  const double magnitude = std::fabs(v);
  if (std::isnan(v)) return v;
  const auto above =
      static_cast<size_t>(std::upper_bound(all.begin(), all.end(), magnitude) - all.begin());
  const double low = all[above - 1];
  const double step = above < all.size() ? all[above] - low : low - all[above - 2];
  const double middle = low + step / 2;
  const bool is_up = magnitude > middle || (magnitude == middle && (above - 1) % 2 != 0);
  const double high = above < all.size() ? all[above] : HUGE_VAL;
  return std::copysign(is_up ? high : low, v);
}

Doubles near_midpoints(DType t, std::mt19937_64& random) {
  const Doubles all = magnitudes(t);
  Doubles out = {65519.9999999,
                 65520,
                 1 + 0x1p-11 + 0x1p-40,
                 1 + 0x1p-8 + 0x1p-40,
                 0x1p-25 * (1 + 0x1p-30),
                 0x1p-25,
                 0x1p-134 * (1 + 0x1p-30),
                 0x1p-134,
                 0,
                 HUGE_VAL,
                 std::nan(""),
                 1e300,
                 3.4e38,
                 3.3961775292304957e38,
                 5e-324};
  std::uniform_int_distribution<size_t> index(0, all.size() - 2);
  for (int i = 0; i < 6000; ++i) {
    // One half of all are subnormal or nearly so.
    const size_t at = i % 2 ? index(random) : index(random) % (t == DType::kF16 ? 3000 : 400);
    const double middle = all[at] + (all[at + 1] - all[at]) / 2;
    const double away = middle * std::ldexp(1.0, -static_cast<int>(random() % 52) - 1);
    out.insert(out.end(), {middle, middle + away, middle - away, std::nextafter(middle, HUGE_VAL),
                           std::nextafter(middle, 0)});
  }
  for (int i = 0; i < 4000; ++i) out.push_back(std::bit_cast<double>(random()));
  const size_t n = out.size();
  for (size_t i = 0; i < n; ++i) out.push_back(-out[i]);
  return out;
}

TEST_P(Rounding, Float64ToSixteenBitsRoundsOnce) {
  std::mt19937_64 random(5);
  for (const DType t : {DType::kF16, DType::kBF16}) {
    const Doubles all = magnitudes(t), in = near_midpoints(t, random);
    const Doubles got =
        numbers(tensor_of(in, {static_cast<int64_t>(in.size())}, DType::kF64, device()).cast(t));
    ASSERT_EQ(got.size(), in.size());
    int wrong = 0;
    for (size_t i = 0; i < in.size() && wrong < 5; ++i) {
      const double want = nearest(all, in[i]);
      const bool is_same = std::isnan(want)
                               ? std::isnan(got[i])
                               : want == got[i] && std::signbit(want) == std::signbit(got[i]);
      if (is_same) continue;
      ++wrong;
      ADD_FAILURE() << dtype_name(t) << " of "
                    << fmt::format("{:a}: {} instead of {}", in[i], got[i], want);
    }
  }
}

/// Constants are folded when the graph is made or the kernel is compiled.
TEST_P(Rounding, Float64ConstantsToSixteenBitsRoundOnce) {
  const Tensor one = tensor_of({1}, {1}, DType::kF64, device());
  for (const DType t : {DType::kF16, DType::kBF16}) {
    const Doubles all = magnitudes(t);
    for (const double v : {65519.9999999, 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-8 + 0x1p-40,
                           0x1p-25 * (1 + 0x1p-30), 0x1p-134 * (1 + 0x1p-30)}) {
      const Tensor full = Tensor::full({1}, v, DType::kF64, device());
      EXPECT_EQ(numbers(full.cast(t))[0], nearest(all, v)) << fmt::format("{:a}", v);
      EXPECT_EQ(numbers((one * v).cast(t))[0], nearest(all, v)) << fmt::format("{:a}", v);
    }
  }
}

TEST_P(Rounding, RunningSumsDoNotDrift) {
  const int64_t n = device() == "REF" ? 100'000 : 1'000'000;
  const Doubles tenths(static_cast<size_t>(n), static_cast<double>(0.1F));
  const auto check = [&](const Doubles& got, size_t stride) {
    for (const size_t i : {size_t{0}, size_t{99}, size_t{12'345}, static_cast<size_t>(n) - 1}) {
      const double want = static_cast<double>(i + 1) * static_cast<double>(0.1F);
      EXPECT_NEAR(got[i * stride], want, want * 0x1p-22) << i;
    }
  };
  check(numbers(f32(tenths).cumsum(0)), 1);
  if (device() == "REF") return;
  // Columns: vectors run across the sums.
  const int64_t columns = 16, rows = n / columns;
  const Doubles got = numbers(f32(tenths, {rows, columns}).cumsum(0));
  for (const int64_t r : {int64_t{0}, rows / 2, rows - 1})
    for (int64_t c = 0; c < columns; ++c) {
      const double want = static_cast<double>(r + 1) * static_cast<double>(0.1F);
      EXPECT_NEAR(got[static_cast<size_t>(r * columns + c)], want, want * 0x1p-22) << r;
    }
}

TEST_P(Rounding, RunningSumsCancelAndKeepWhatIsSmall) {
  // Devices with work-groups add float32 in blocks of blocks.
  if (!device().starts_with("CPU") && device() != "REF")
    GTEST_SKIP() << "long sums are kept in float64 on CPUs";
  // 2^24 swallows every 0.5 in float32.
  Doubles v(3000, 0.5);
  v.front() = 0x1p24;
  v.back() = -0x1p24;
  EXPECT_EQ(numbers(f32(v).cumsum(0)).back(), 0.5 * 2998);
}

/// Arguments all over, and those whose neighbours a zero or a pole lies between.
Doubles angles() {
  std::mt19937_64 random(23);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const double half_pi = std::acos(-1.0) / 2;
  // The last four lie nearest to zeros of the cosine among all float32 (by continued fractions).
  Doubles out = {0,
                 1,
                 1e-30,
                 -1e-30,
                 0x1p-149,
                 1000,
                 1e7,
                 0x1.921fb6p+0,
                 0x1.f37c8ap+95,
                 0x1.47d0fep+34,
                 0x1.f9cbe2p+7,
                 0x1.32ede2p+85};
  for (int k = 0; k < 2000; ++k) {
    const double zero = half_pi * (k < 1000 ? k : static_cast<double>(random() % 4'000'000));
    const auto at = static_cast<float>(zero);
    out.push_back(static_cast<double>(at));
    out.push_back(static_cast<double>(std::nextafterf(at, HUGE_VALF)));
    out.push_back(-static_cast<double>(std::nextafterf(at, 0)));
  }
  for (int i = 0; i < 4000; ++i)
    out.push_back(std::ldexp(uniform(random), static_cast<int>(random() % 40) - 12));
  for (double& v : out) v = static_cast<double>(static_cast<float>(v));
  return out;
}

/// Units in the last place of float32 between `got` and the exact `want`.
double ulps(double got, long double want) {
  int exponent = 0;
  std::frexp(static_cast<float>(want), &exponent);
  const int digits = std::numeric_limits<float>::digits;
  const long double ulp =
      std::ldexp(1.0L, std::max(exponent, std::numeric_limits<float>::min_exponent) - digits);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / ulp);
}

TEST_P(Rounding, CosineAndTangentKeepTheirDigitsNextToTheirZeros) {
  const Doubles in = angles();
  const Tensor x = f32(in);
  const Doubles cosine = numbers(x.cos()), tangent = numbers(x.tan());
  double worst_cosine = 0, worst_tangent = 0, at_cosine = 0, at_tangent = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const auto exact = static_cast<long double>(in[i]);
    const double c = ulps(cosine[i], std::cos(exact)), t = ulps(tangent[i], std::tan(exact));
    if (!(c <= worst_cosine)) worst_cosine = c, at_cosine = in[i];
    if (!(t <= worst_tangent)) worst_tangent = t, at_tangent = in[i];
    EXPECT_LE(std::fabs(cosine[i]), 1) << in[i];
  }
  EXPECT_LE(worst_cosine, 2) << at_cosine;
  EXPECT_LE(worst_tangent, 3) << at_tangent;
  RecordProperty("ulp", fmt::format("{} {}", worst_cosine, worst_tangent));
  // Angles of which the double is infinite have fewer digits.
  const double huge = 0x1.7p127;
  EXPECT_NEAR(numbers(f32({huge}).cos())[0], std::cos(huge), 4e-7);
  EXPECT_NEAR(numbers(f32({huge}).tan())[0], std::tan(huge), 1e-5 * std::fabs(std::tan(huge)));
  const Tensor odd = f32({kInf, -kInf, kNan});
  EXPECT_TRUE(has_values(odd.cos(), {3}, {kNan, kNan, kNan}));
  EXPECT_TRUE(has_values(odd.tan(), {3}, {kNan, kNan, kNan}));
}

TEST_P(Rounding, CosineAndTangentOfFloat64) {
  Doubles in = angles();
  const int64_t n = static_cast<int64_t>(in.size());
  const Tensor x = tensor_of(in, {n}, DType::kF64, device());
  const Doubles cosine = numbers(x.cos()), tangent = numbers(x.tan());
  for (size_t i = 0; i < in.size(); ++i) {
    const auto exact = static_cast<long double>(in[i]);
    ASSERT_NEAR(cosine[i], static_cast<double>(std::cos(exact)),
                8 * 0x1p-53 * static_cast<double>(std::fabs(std::cos(exact))))
        << in[i];
    ASSERT_NEAR(tangent[i], static_cast<double>(std::tan(exact)),
                12 * 0x1p-53 * static_cast<double>(std::fabs(std::tan(exact))))
        << in[i];
  }
}

}  // namespace
}  // namespace bm::test
