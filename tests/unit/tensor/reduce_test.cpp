// Known answers of reductions, scans, softmax, sort and topk.
#include <cmath>
#include <random>

#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Reduce : public OnDevice {};
BM_ON_DEVICES(Reduce);

TEST_P(Reduce, SumsOverAxes) {
  const Tensor x = count({2, 3});
  EXPECT_TRUE(has_values(x.sum(), {}, {15}));
  EXPECT_TRUE(has_values(x.sum({0}), {3}, {3, 5, 7}));
  EXPECT_TRUE(has_values(x.sum({-1}, true), {2, 1}, {3, 12}));
  EXPECT_TRUE(has_values(x.sum({1, 0}), {}, {15}));
  EXPECT_TRUE(has_values(count({}).sum(), {}, {0}));
  EXPECT_EQ(flags({1, 1, 0}).sum().item<int32_t>(), 2);
  EXPECT_EQ(i32({1}).sum({}, false, DType::kF64).dtype(), DType::kF64);
}

TEST_P(Reduce, SumsOf16BitFloatsAccumulateInFloat32) {
  const Tensor x = Tensor::ones({4096}, DType::kBF16, device());
  EXPECT_TRUE(has_values(x.sum(), {}, {4096}));
  EXPECT_TRUE(has_values(x.mean(), {}, {1}));
}

TEST_P(Reduce, ProductsAndExtremes) {
  const Tensor x = f32({2, -3, 4, 5, 0.5, -1}, {2, 3});
  EXPECT_TRUE(has_values(x.prod({1}), {2}, {-24, -2.5}));
  EXPECT_TRUE(has_values(x.max(), {}, {5}));
  EXPECT_TRUE(has_values(x.min({0}), {3}, {2, -3, -1}));
  EXPECT_TRUE(has_values(f32({1, kNan, 2}).max(), {}, {kNan}));
  EXPECT_TRUE(has_values(f32({1, kNan, 2}).min(), {}, {kNan}));
  EXPECT_TRUE(has_values(i32({-5, -7}).max(), {}, {-5}));
  EXPECT_TRUE(has_values(flags({0, 1}).max(), {}, {1}));
}

/// A row of a vocabulary, which cards divide among all compute units, with a rest and without.
TEST_P(Reduce, OneLongRow) {
  if (device() == "REF") GTEST_SKIP() << "long input";
  std::mt19937 random(std::random_device{}());
  for (const int64_t length : {32'769, 40'009, 65'536}) {
    std::vector<double> v(static_cast<size_t>(length));
    for (double& x : v) x = static_cast<double>(static_cast<int32_t>(random() % 19) - 9);
    const int64_t at = length - 3;
    v[static_cast<size_t>(at)] = v[static_cast<size_t>(at + 1)] = 12;
    double total = 0;
    for (const double x : v) total += std::exp(x - 12);
    const Tensor x = f32(v, {1, length}).realize();
    EXPECT_TRUE(has_values(x.max({1}), {1}, {12})) << length;
    EXPECT_TRUE(has_values(x.argmax(1), {1}, {static_cast<double>(at)})) << length;
    const std::vector<float> p = x.softmax(1).data<float>();
    for (const int64_t i : {int64_t{0}, length / 2, at, length - 1}) {
      const double want = std::exp(v[static_cast<size_t>(i)] - 12) / total;
      EXPECT_NEAR(p[static_cast<size_t>(i)], want, 1e-5 * want) << length << ", " << i;
    }
  }
}

TEST_P(Reduce, EmptyReductions) {
  const Tensor empty = Tensor::zeros({0, 3}, DType::kF32, device());
  EXPECT_TRUE(has_values(empty.sum({0}), {3}, {0, 0, 0}));
  EXPECT_TRUE(has_values(empty.prod({0}), {3}, {1, 1, 1}));
  EXPECT_TRUE(has_values(empty.sum({1}), {0}, {}));
  EXPECT_TRUE(has_values(empty.all({0}), {3}, {1, 1, 1}));
  EXPECT_TRUE(has_values(empty.any({0}), {3}, {0, 0, 0}));
  EXPECT_THAT(message_of([&] { empty.max({0}); }), ::testing::HasSubstr("no elements"));
  EXPECT_THAT(message_of([&] { empty.argmax(0); }), ::testing::HasSubstr("no elements"));
}

TEST_P(Reduce, MeanVarianceDeviation) {
  const Tensor x = f32({1, 2, 3, 6, 6, 6}, {2, 3});
  EXPECT_TRUE(has_values(x.mean({1}), {2}, {2, 6}));
  EXPECT_TRUE(has_values(x.var({1}), {2}, {1, 0}));
  EXPECT_TRUE(has_values(x.var({1}, true, 0), {2, 1}, {2.0 / 3, 0}, {1e-7, 0}));
  EXPECT_TRUE(has_values(x.std({1}), {2}, {1, 0}));
  EXPECT_TRUE(has_values(i32({1, 2}).mean(), {}, {1.5}));
  EXPECT_TRUE(has_values(f32({7}).var(), {}, {kNan}));
}

TEST_P(Reduce, AnyAndAll) {
  const Tensor x = f32({0, 2, 0, 0, kNan, 1}, {3, 2});
  EXPECT_TRUE(has_values(x.any({1}), {3}, {1, 0, 1}));
  EXPECT_TRUE(has_values(x.all({1}), {3}, {0, 0, 1}));
  EXPECT_TRUE(has_values(x.any(), {}, {1}));
}

TEST_P(Reduce, ArgmaxTakesTheFirstAndNanWins) {
  EXPECT_TRUE(has_values(f32({1, 5, 5, 2}).argmax(), {}, {1}));
  EXPECT_TRUE(has_values(f32({1, 5, kNan, kNan}).argmax(), {}, {2}));
  EXPECT_TRUE(has_values(f32({3, 1, 1, kNan}, {2, 2}).argmin(1), {2}, {1, 1}));
  EXPECT_TRUE(has_values(count({2, 3}).argmax(0, true), {1, 3}, {1, 1, 1}));
  EXPECT_TRUE(has_values(count({2, 3}).argmax(), {}, {5}));
  EXPECT_TRUE(has_values(flags({0, 1, 1}).argmax(), {}, {1}));
  EXPECT_EQ(count({2}).argmax().dtype(), DType::kI64);
}

TEST_P(Reduce, LogSumExpAndSoftmaxSurviveInfinities) {
  const Tensor x = f32({1000, 1000, -kInf, -kInf, -kInf, -kInf}, {2, 3});
  EXPECT_TRUE(has_values(x.logsumexp({1}), {2}, {1000.6931472, -kInf}, {0, 1e-6}));
  // Nothing to share out: NaN, as in PyTorch and SciPy.
  EXPECT_TRUE(has_values(x.softmax(), {2, 3}, {0.5, 0.5, 0, kNan, kNan, kNan}, {1e-7, 0}));
  EXPECT_TRUE(has_values(x.log_softmax(), {2, 3},
                         {-0.69314718, -0.69314718, -kInf, kNan, kNan, kNan}, {1e-6, 0}));
  EXPECT_TRUE(has_values(f32({1, kInf}).logsumexp(), {}, {kInf}));
  EXPECT_TRUE(
      has_values(f32({0, 1, 2}).softmax(0), {3}, {0.09003057, 0.24472847, 0.66524096}, {1e-7, 0}));
  EXPECT_TRUE(has_values(f32({0, 1}).logsumexp({}, true), {1}, {1.31326169}, {0, 1e-6}));
}

TEST_P(Reduce, CumulativeOperations) {
  const Tensor x = f32({1, 2, 3, 4, -5, 6}, {2, 3});
  EXPECT_TRUE(has_values(x.cumsum(1), {2, 3}, {1, 3, 6, 4, -1, 5}));
  EXPECT_TRUE(has_values(x.cumsum(0), {2, 3}, {1, 2, 3, 5, -3, 9}));
  EXPECT_TRUE(has_values(x.cumprod(1), {2, 3}, {1, 2, 6, 4, -20, -120}));
  EXPECT_TRUE(has_values(f32({-3, -5, 2, kNan, 1}).cummax(0), {5}, {-3, -3, 2, kNan, kNan}));
  EXPECT_TRUE(has_values(Tensor::zeros({0}, DType::kF32, device()).cumsum(0), {0}, {}));
}

TEST_P(Reduce, LongScansUseBlocks) {
  std::vector<double> expected(5000);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<double>((i + 1) * i / 2);
  EXPECT_TRUE(has_values(counting({5000}, DType::kI64, device()).cumsum(0), {5000}, expected));
  std::vector<double> peaks(300), running(300);
  double peak = -1;
  for (size_t i = 0; i < peaks.size(); ++i) {
    peaks[i] = static_cast<double>((i * 7919) % 1009);
    running[i] = peak = std::max(peak, peaks[i]);
  }
  EXPECT_TRUE(has_values(f32(peaks).cummax(0), {300}, running));
}

TEST_P(Reduce, SortIsStableAndPutsNanLast) {
  const Tensor x = f32({3, kNan, -1, 0, -0.0, kInf, -kInf, 3});
  const auto [up, up_at] = x.sort();
  EXPECT_TRUE(has_values(up, {8}, {-kInf, -1, 0, -0.0, 3, 3, kInf, kNan}));
  EXPECT_TRUE(has_values(up_at, {8}, {6, 2, 3, 4, 0, 7, 5, 1}));
  const auto [down, down_at] = x.sort(0, true);
  EXPECT_TRUE(has_values(down, {8}, {kNan, kInf, 3, 3, 0, -0.0, -1, -kInf}));
  EXPECT_TRUE(has_values(down_at, {8}, {1, 5, 0, 7, 3, 4, 2, 6}));
}

TEST_P(Reduce, SortWorksAlongAnyAxisAndType) {
  const auto [v, at] = i64({5, 1, 2, 0, 5, 9}, {3, 2}).sort(0);
  EXPECT_TRUE(has_values(v, {3, 2}, {2, 0, 5, 1, 5, 9}));
  EXPECT_TRUE(has_values(at, {3, 2}, {1, 1, 0, 0, 2, 2}));
  const Tensor wide =
      Tensor::from({uint64_t{1} << 63, uint64_t{5}, ~uint64_t{0}, uint64_t{1} << 32}, device());
  EXPECT_EQ(wide.sort().second.data<int64_t>(), (std::vector<int64_t>{1, 3, 0, 2}));
  EXPECT_EQ(
      Tensor::from({uint32_t{4000000000u}, uint32_t{7}}, device()).sort().first.data<uint32_t>(),
      (std::vector<uint32_t>{7, 4000000000u}));
  EXPECT_TRUE(has_values(flags({1, 0, 1}).sort().first, {3}, {0, 1, 1}));
}

TEST_P(Reduce, LongSortUsesTheNetwork) {
  std::vector<double> values(100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * 37) % 50);
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::pair(values[a], a) < std::pair(values[b], b); });
  std::vector<double> sorted, positions;
  for (size_t i : order) {
    sorted.push_back(values[i]);
    positions.push_back(static_cast<double>(i));
  }
  const auto [v, at] = f32(values).sort();
  EXPECT_TRUE(has_values(v, {100}, sorted));
  EXPECT_TRUE(has_values(at, {100}, positions));
}

TEST_P(Reduce, TopkOfShortAndLongLines) {
  const auto [v, at] = f32({1, 9, 3, 9, 7}).topk(3);
  EXPECT_TRUE(has_values(v, {3}, {9, 9, 7}));
  EXPECT_TRUE(has_values(at, {3}, {1, 3, 4}));
  EXPECT_TRUE(has_values(f32({1, 9, 3}).topk(2, 0, false).first, {2}, {1, 3}));
  std::vector<double> values(200);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * 77) % 199);
  const auto [top, top_at] = f32(values).topk(3);
  EXPECT_TRUE(has_values(top, {3}, {198, 197, 196}));
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(values[static_cast<size_t>(top_at.data<int64_t>()[static_cast<size_t>(i)])],
              198 - static_cast<double>(i));
  EXPECT_THAT(message_of([&] { f32({1}).topk(2); }), ::testing::HasSubstr("k = 2"));
}

TEST_P(Reduce, SymbolicLengths) {
  const Var n("n", 1, 6);
  n.set(4);
  const Tensor x = count({6}).slice(0, {0, SymInt(n), 1});
  EXPECT_TRUE(are_close({1.5}, numbers(x.mean()), {}));
  EXPECT_TRUE(are_close({3}, numbers(x.argmax()), {}));
  EXPECT_TRUE(are_close({0, 1, 3, 6}, numbers(x.cumsum(0)), {}));
  EXPECT_TRUE(are_close({3.44018970}, numbers(x.logsumexp()), {1e-6, 0}));
}

TEST_P(Reduce, ErrorsNameAxesAndShapes) {
  EXPECT_THAT(message_of([&] { count({2, 3}).sum({2}); }),
              ::testing::HasSubstr("axis 2 is out of range for shape [2, 3]"));
  EXPECT_THAT(message_of([&] { count({2, 3}).sum({0, -2}); }), ::testing::HasSubstr("named twice"));
}

// What PyTorch 2.14.1 gives for these, too; take() keeps the index's shape, as NumPy's does.
TEST_P(Reduce, AxesOfAScalarAreZeroAndMinusOne) {
  const Tensor x = f32({-1.5}, {}), at = i64({0}, {});
  for (const int64_t a : {0, -1}) {
    for (const Tensor& same :
         {x.sum({a}), x.prod({a}), x.max({a}), x.min({a}, true), x.mean({a}), x.logsumexp({a}),
          x.cumsum(a), x.cumprod(a), x.cummax(a), x.sort(a).first, x.topk(1, a).first, x.squeeze(a),
          x.flip({a}), x.transpose(a, 0), x.gather(a, at), x.take(at, a)})
      EXPECT_TRUE(has_values(same, {}, {-1.5}));
    EXPECT_TRUE(has_values(x.var({a}, false, 0), {}, {0}));
    EXPECT_TRUE(has_values(x.std({a}), {}, {kNan}));
    EXPECT_TRUE(has_values(x.any({a}), {}, {1}));
    EXPECT_TRUE(has_values(x.argmax(a), {}, {0}));
    EXPECT_TRUE(has_values(x.argmin(a, true), {}, {0}));
    EXPECT_TRUE(has_values(x.sort(a, true).second, {}, {0}));
    EXPECT_TRUE(has_values(x.topk(1, a).second, {}, {0}));
    EXPECT_TRUE(has_values(x.softmax(a), {}, {1}));
    EXPECT_TRUE(has_values(x.log_softmax(a), {}, {0}));
    EXPECT_TRUE(has_values(x.scatter(a, at, f32({3}, {}), "add"), {}, {1.5}));
    EXPECT_TRUE(has_values(x.take(i64({0}), a), {1}, {-1.5}));
  }
  for (const int64_t a : {1, -2})
    for (const std::function<void()>& work : std::initializer_list<std::function<void()>>{
             [&] { x.sum({a}); }, [&] { x.cumsum(a); }, [&] { x.sort(a); }, [&] { x.argmax(a); },
             [&] { x.softmax(a); }, [&] { x.flatten(a); }, [&] { x.topk(1, a); }})
      EXPECT_NE(message_of(work).find("out of range"), std::string::npos);
  EXPECT_NE(message_of([&] { x.sum({0, -1}); }).find("named twice"), std::string::npos);
}

// As PyTorch 2.14.1.
TEST_P(Reduce, AxesWithoutElements) {
  const double inf = HUGE_VAL;
  const Tensor x = f32({}, {3, 0});
  EXPECT_TRUE(has_values(x.logsumexp({1}), {3}, {-inf, -inf, -inf}));
  EXPECT_TRUE(has_values(x.softmax(1), {3, 0}, {}));
  EXPECT_TRUE(has_values(x.log_softmax(1), {3, 0}, {}));
  EXPECT_TRUE(has_values(x.unflatten(0, {-1, 1}), {3, 1, 0}, {}));
  for (const char* how : {"set", "add", "max"})
    EXPECT_TRUE(has_values(x.scatter(1, i64({}, {3, 0}), x, how), {3, 0}, {}));
  const Tensor y = f32({1, 2, 3, 4}, {2, 2});
  for (const char* how : {"set", "min"})
    EXPECT_TRUE(has_values(y.scatter(1, i64({}, {2, 0}), x.slice(0, {0, 2, 1}), how), {2, 2},
                           {1, 2, 3, 4}));
  EXPECT_EQ(x.chunk(2, 1).size(), 2U);
  const auto attended = [&](const Shape& q, const Shape& k, const Tensor& v) {
    return Tensor::attention(Tensor::ones(q, DType::kF32, device()),
                             Tensor::ones(k, DType::kF32, device()), v);
  };
  EXPECT_TRUE(has_values(attended({1, 1, 2}, {1, 0, 2}, f32({}, {1, 0, 2})), {1, 1, 2}, {0, 0}));
  EXPECT_TRUE(
      has_values(attended({1, 1, 0}, {1, 2, 0}, f32({1, 2, 3, 6}, {1, 2, 2})), {1, 1, 2}, {2, 4}));
}

}  // namespace
}  // namespace bm::test
