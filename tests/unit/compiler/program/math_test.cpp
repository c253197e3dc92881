// Accuracy of the polynomial functions against long double libm, on dense samples and special
// values.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

using ir::Op;

template <class T>
constexpr DType kType = sizeof(T) == 4 ? DType::kF32 : DType::kF64;

template <class T>
std::vector<T> run_unary(Op op, const std::vector<T>& in, const hal::Arch& arch) {
  const std::array types{kType<T>};
  const auto kernel = map_kernel(op, kType<T>, types, static_cast<int64_t>(in.size()));
  auto program = build_kernel(kernel, arch, "LLVM");
  EXPECT_TRUE(program) << program.error().message;
  std::vector<T> out(in.size()), copy = in;
  const std::array<void*, 2> buffers{out.data(), copy.data()};
  run_kernel(**program, buffers, {});
  return out;
}

/// Distance in units of the last place of the exact result; 0 when both are the same special value.
template <class T>
double ulp_error(T got, long double want) {
  const T rounded = static_cast<T>(want);
  if (std::isnan(rounded)) return std::isnan(got) ? 0 : 1e9;
  if (std::isinf(rounded) || std::isinf(got)) return got == rounded ? 0 : 1e9;
  int exponent = 0;
  std::frexp(rounded, &exponent);
  const int digits = std::numeric_limits<T>::digits;
  const long double ulp =
      std::ldexp(1.0L, std::max(exponent, std::numeric_limits<T>::min_exponent) - digits);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / ulp);
}

long double exact(Op op, long double x) {
  return op == Op::kExp2 ? std::exp2(x) : op == Op::kLog2 ? std::log2(x) : std::sin(x);
}

/// Values all over the range of T, around 1, around multiples of π/2, and small.
template <class T>
std::vector<T> samples(Op op, size_t n) {
  std::mt19937_64 random(7);
  std::vector<T> v;
  std::uniform_real_distribution<double> uniform(-1, 1);
  const double reach = op == Op::kExp2 ? (sizeof(T) == 4 ? 155 : 1080) : 1000;
  for (size_t i = 0; i < n; ++i) {
    const double u = uniform(random);
    switch (i % 5) {
      case 0: v.push_back(static_cast<T>(u * reach)); break;
      case 1:
        v.push_back(static_cast<T>(
            std::ldexp(u, static_cast<int>(random() % (sizeof(T) == 4 ? 250 : 2040)) -
                              (sizeof(T) == 4 ? 125 : 1020))));
        break;
      case 2: v.push_back(static_cast<T>(1 + u * 0.3)); break;
      case 3: v.push_back(static_cast<T>(std::nearbyint(u * 1e6) * 1.5707963267948966)); break;
      default: v.push_back(static_cast<T>(u)); break;
    }
  }
  return v;
}

template <class T>
double worst(Op op, const hal::Arch& arch, size_t n, T* where) {
  const std::vector<T> in = samples<T>(op, n), out = run_unary(op, in, arch);
  double most = 0;
  for (size_t i = 0; i < n; ++i) {
    const double e = ulp_error(out[i], exact(op, static_cast<long double>(in[i])));
    if (e > most) {
      most = e;
      *where = in[i];
    }
  }
  return most;
}

struct Limit {
  Op op;
  double f32, f64;
};

class Transcendental : public testing::TestWithParam<Limit> {};

TEST_P(Transcendental, StaysWithinItsErrorBound) {
  const Limit l = GetParam();
  for (const hal::Arch& arch : {native_arch(), baseline_arch()}) {
    float at32 = 0;
    const double e32 = worst<float>(l.op, arch, 200'003, &at32);
    EXPECT_LE(e32, l.f32) << ir::op_name(l.op) << " float32 at " << at32 << " cpu " << arch.cpu;
    double at64 = 0;
    const double e64 = worst<double>(l.op, arch, 100'003, &at64);
    EXPECT_LE(e64, l.f64) << ir::op_name(l.op) << " float64 at " << at64 << " cpu " << arch.cpu;
    RecordProperty(std::string(ir::op_name(l.op)) + arch.cpu,
                   std::to_string(e32) + " " + std::to_string(e64));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Transcendental,
                         testing::Values(Limit{Op::kExp2, 2, 4}, Limit{Op::kLog2, 2, 4},
                                         Limit{Op::kSin, 2, 4}),
                         [](const auto& given) {
                           return std::string(ir::op_name(given.param.op));
                         });

template <class T>
void check_specials(Op op, const std::vector<std::pair<T, T>>& table) {
  std::vector<T> in;
  for (const auto& [x, y] : table) in.push_back(x);
  for (const hal::Arch& arch : {native_arch(), baseline_arch()}) {
    const std::vector<T> out = run_unary(op, in, arch);
    for (size_t i = 0; i < in.size(); ++i) {
      const T want = table[i].second;
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(out[i])) << ir::op_name(op) << "(" << in[i] << ") = " << out[i];
      } else {
        EXPECT_EQ(out[i], want) << ir::op_name(op) << "(" << in[i] << ")";
        EXPECT_EQ(std::signbit(out[i]), std::signbit(want))
            << ir::op_name(op) << "(" << in[i] << ")";
      }
    }
  }
}

template <class T>
void check_all_specials() {
  constexpr T kInf = std::numeric_limits<T>::infinity(), kNan = std::numeric_limits<T>::quiet_NaN();
  constexpr T kTiny = std::numeric_limits<T>::denorm_min(), kMax = std::numeric_limits<T>::max();
  const T small =
      static_cast<T>(std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits);
  check_specials<T>(Op::kExp2, {{0, 1},
                                {-T{0}, 1},
                                {1, 2},
                                {-1, T(0.5)},
                                {10, 1024},
                                {kInf, kInf},
                                {-kInf, 0},
                                {kNan, kNan},
                                {kMax, kInf},
                                {-kMax, 0},
                                {kTiny, 1},
                                {small, kTiny},
                                {small - 2, 0},
                                {std::numeric_limits<T>::max_exponent, kInf}});
  check_specials<T>(Op::kLog2, {{1, 0},
                                {2, 1},
                                {T(0.5), -1},
                                {0, -kInf},
                                {-T{0}, -kInf},
                                {-1, kNan},
                                {kInf, kInf},
                                {-kInf, kNan},
                                {kNan, kNan},
                                {kTiny, small},
                                {1024, 10}});
  check_specials<T>(Op::kSin, {{0, 0},
                               {-T{0}, -T{0}},
                               {kInf, kNan},
                               {-kInf, kNan},
                               {kNan, kNan},
                               {kTiny, kTiny},
                               {-kTiny, -kTiny}});
}

TEST(Transcendental, SpecialValuesOfFloat32) { check_all_specials<float>(); }
TEST(Transcendental, SpecialValuesOfFloat64) { check_all_specials<double>(); }

/// Any bits, so that every special value comes up in every lane.
template <class T, class Bits>
void check_scaling() {
  std::mt19937_64 random(11);
  std::vector<T> in(1 << 16);
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = i % 2 ? std::bit_cast<T>(static_cast<Bits>(random()))
                  : static_cast<T>(static_cast<double>(random() % 2400'000) * 1e-3 - 1200);
  in[100] = std::numeric_limits<T>::infinity();
  in[101] = -in[100];
  const std::vector<T> with = run_unary(Op::kExp2, in, native_arch()),
                       without = run_unary(Op::kExp2, in, arch_of({"LLVM", true, "-avx512vl"}));
  for (size_t i = 0; i < in.size(); ++i)
    EXPECT_TRUE(with[i] == without[i] || (std::isnan(with[i]) && std::isnan(without[i])))
        << in[i] << ": " << with[i] << " and " << without[i];
}

TEST(Transcendental, PowersHaveTheSameBitsWithoutTheScalingInstruction) {
  check_scaling<float, uint32_t>();
  check_scaling<double, uint64_t>();
}

TEST(Transcendental, SineOfHugeArgumentsKeepsItsDigits) {
  std::vector<double> in = {0x1p27,
                            0x1.8p30,
                            0x1p100,
                            0x1p1000,
                            std::numeric_limits<double>::max(),
                            6381956970095103.0 * 0x1p797,
                            -0x1.5p500,
                            1e22,
                            0x1.921fb54442d18p+400};
  for (const hal::Arch& arch : {native_arch(), baseline_arch()}) {
    const std::vector<double> out = run_unary(Op::kSin, in, arch);
    for (size_t i = 0; i < in.size(); ++i)
      EXPECT_LE(ulp_error(out[i], std::sin(static_cast<long double>(in[i]))), 4) << in[i];
  }
}

}  // namespace
}  // namespace bm::test
