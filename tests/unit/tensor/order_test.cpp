// Scans, the largest few and long reductions of fresh random input, against plain loops: shapes of
// primes and ones, views, every dtype.
#include <algorithm>
#include <numeric>

#include "tensor/fusion.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Order : public OnDevice {
 protected:
  uint32_t seed = std::random_device{}();
  std::mt19937 random{seed};

  /// Small whole numbers: sums are exact in every dtype that counts to 2000.
  std::vector<double> whole(int64_t n, int most = 3, bool is_signed = true) {
    std::uniform_int_distribution<int> draw(is_signed ? -most : 0, most);
    std::vector<double> v(static_cast<size_t>(n));
    for (double& x : v) x = draw(random);
    return v;
  }
  bool is_compiled() const { return device() == "CPU"; }
};
BM_ON_DEVICES(Order);

struct Lines {
  int64_t outer, length, inner;
  int64_t count() const { return outer * length * inner; }
  Shape shape() const { return {outer, length, inner}; }
  size_t at(int64_t o, int64_t i, int64_t j) const {
    return static_cast<size_t>((o * length + i) * inner + j);
  }
};

/// f(line, index of the line's first element, distance of its elements).
template <class F>
void for_each_line(const Lines& l, F&& f) {
  for (int64_t o = 0; o < l.outer; ++o)
    for (int64_t j = 0; j < l.inner; ++j) f(o, j);
}

std::vector<Lines> some_lines(bool is_fast) {
  if (!is_fast) return {{2, 5, 3}, {1, 67, 1}};
  return {{1, 1, 1},   {1, 2, 1},  {3, 17, 1},  {2, 5, 3},   {1, 1000, 1}, {7, 67, 1}, {5, 64, 1},
          {1, 31, 33}, {2, 9, 16}, {3, 13, 97}, {1, 129, 1}, {4, 63, 2},   {1, 3, 517}};
}

using Step = double (*)(double, double);

std::vector<double> scanned(const std::vector<double>& v, const Lines& l, Step step) {
  std::vector<double> out = v;
  for_each_line(l, [&](int64_t o, int64_t j) {
    for (int64_t i = 1; i < l.length; ++i)
      out[l.at(o, i, j)] = step(out[l.at(o, i - 1, j)], out[l.at(o, i, j)]);
  });
  return out;
}

double add(double a, double b) { return a + b; }
double multiply(double a, double b) { return a * b; }
double larger(double a, double b) { return a > b ? a : b; }

TEST_P(Order, ScansAlongEveryAxis) {
  for (const Lines& l : some_lines(is_compiled())) {
    SCOPED_TRACE(fmt::format("{} x {} x {}, seed {}", l.outer, l.length, l.inner, seed));
    const std::vector<double> v = whole(l.count());
    const Tensor x = f32(v, l.shape());
    EXPECT_TRUE(has_values(x.cumsum(1), l.shape(), scanned(v, l, add)));
    EXPECT_TRUE(has_values(x.cummax(1), l.shape(), scanned(v, l, larger)));
    // The same lines last, first, and of a view that goes backwards with holes.
    const auto moved = x.transpose(1, 2).contiguous().realize();
    EXPECT_TRUE(has_values(moved.cumsum(2).transpose(1, 2), l.shape(), scanned(v, l, add)));
    EXPECT_TRUE(has_values(moved.transpose(1, 2).cumsum(1), l.shape(), scanned(v, l, add)));
    std::vector<double> signs = v;
    for (double& s : signs) s = s < 0 ? -1 : 1;
    EXPECT_TRUE(
        has_values(f32(signs, l.shape()).cumprod(1), l.shape(), scanned(signs, l, multiply)));
    const Tensor view = x.pad({{0, 0}, {1, 2}, {0, 1}}).flip({1}).contiguous().realize();
    const Tensor back = view.flip({1}).slice(1, {1, l.length + 1, 1}).slice(2, {0, l.inner, 1});
    EXPECT_TRUE(has_values(back.cumsum(1), l.shape(), scanned(v, l, add)));
  }
}

TEST_P(Order, ScansOfEveryType) {
  using enum DType;
  const Lines l{2, 101, 3};
  for (const DType t : {kI8, kU8, kI16, kU16, kI32, kU32, kI64, kU64, kF16, kBF16, kF32, kF64}) {
    // Compiling for OpenCL is slow.
    if (device() == "CL" && t != kI8 && t != kF32) continue;
    SCOPED_TRACE(fmt::format("{}, seed {}", dtype_name(t), seed));
    const std::vector<double> v = whole(l.count(), 1, !is_unsigned(t));
    const Tensor x = tensor_of(v, l.shape(), t, device());
    EXPECT_TRUE(has_values(x.cumsum(1), l.shape(), scanned(v, l, add)));
    EXPECT_TRUE(has_values(x.cummax(1), l.shape(), scanned(v, l, larger)));
    std::vector<double> ones(v.size(), 1);
    EXPECT_TRUE(has_values(tensor_of(ones, l.shape(), t, device()).cumprod(1), l.shape(), ones));
  }
}

TEST_P(Order, ScansKeepWhatIsNoNumber) {
  std::vector<double> v(77, 1), want(77);
  v[40] = kNan;
  for (size_t i = 0; i < v.size(); ++i) want[i] = i < 40 ? static_cast<double>(i + 1) : kNan;
  EXPECT_TRUE(has_values(f32(v).cumsum(0), {77}, want));
  for (size_t i = 0; i < v.size(); ++i) want[i] = i < 40 ? 1 : kNan;
  EXPECT_TRUE(has_values(f32(v).cummax(0), {77}, want));
}

TEST_P(Order, ScansOfWhatIsComputedAndOfTheirResults) {
  const Lines l{3, 50, 5};
  const std::vector<double> v = whole(l.count());
  const Tensor x = f32(v, l.shape());
  std::vector<double> twice = v;
  for (double& s : twice) s = s * 2 + 1;
  EXPECT_TRUE(has_values((x * 2 + 1).cumsum(1), l.shape(), scanned(twice, l, add)));
  const std::vector<double> once = scanned(v, l, add);
  EXPECT_TRUE(has_values(x.cumsum(1).cumsum(1), l.shape(), scanned(once, l, add)));
  std::vector<double> sum = once;
  const std::vector<double> most = scanned(v, l, larger);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += most[i] * 3;
  EXPECT_TRUE(has_values(x.cumsum(1) + x.cummax(1) * 3, l.shape(), sum));
  // Ones everywhere: nothing to load.
  const Tensor ones = Tensor::ones({3, 50}, DType::kF32, device());
  EXPECT_TRUE(has_values(ones.cumsum(1).slice(1, {49, 50, 1}), {3, 1}, {50, 50, 50}));
}

TEST_P(Order, ScansInPlace) {
  const std::vector<double> v = whole(40 * 50);
  Tensor x = f32(v, {40, 50}).contiguous().realize();
  x.assign(x.cumsum(1));
  EXPECT_TRUE(has_values(x, {40, 50}, scanned(v, {40, 50, 1}, add)));
}

TEST_P(Order, TheLargestAndSmallestInOrderWithTheirPlaces) {
  struct Case {
    Lines l;
    int64_t k;
  };
  std::vector<Case> cases{{{2, 70, 3}, 3}};
  // Long enough for sections of a row, the last of which ends early. Compiling for OpenCL is slow.
  if (device() != "CL") {
    cases.push_back({{2, 3001, 1}, 7});
    cases.push_back({{1, 3530, 1}, 40});
  }
  if (is_compiled())
    cases = {{{1, 1, 1}, 1},     {{3, 7, 1}, 7},    {{5, 70, 1}, 1},    {{2, 33, 4}, 9},
             {{1, 1000, 1}, 64}, {{6, 97, 1}, 8},   {{2, 200, 3}, 17},  {{40, 512, 1}, 8},
             {{1, 65, 1}, 65},   {{3, 128, 1}, 16}, {{1, 3001, 1}, 40}, {{3, 1000, 1}, 100},
             {{2, 700, 1}, 256}};
  for (const auto& [l, k] : cases) {
    // Few different values: equal ones must stay in order.
    const std::vector<double> v = whole(l.count(), 50);
    for (const bool is_largest : {true, false}) {
      SCOPED_TRACE(fmt::format("{} of {} x {} x {}, seed {}", k, l.outer, l.length, l.inner, seed));
      const Lines few{l.outer, k, l.inner};
      std::vector<double> values(static_cast<size_t>(few.count())), places = values;
      for_each_line(l, [&](int64_t o, int64_t j) {
        std::vector<int64_t> order(static_cast<size_t>(l.length));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
          const double x = v[l.at(o, a, j)], y = v[l.at(o, b, j)];
          return is_largest ? x > y : x < y;
        });
        for (int64_t i = 0; i < k; ++i) {
          values[few.at(o, i, j)] = v[l.at(o, order[static_cast<size_t>(i)], j)];
          places[few.at(o, i, j)] = static_cast<double>(order[static_cast<size_t>(i)]);
        }
      });
      const auto [top, at] = f32(v, l.shape()).topk(k, 1, is_largest);
      EXPECT_TRUE(has_values(top, few.shape(), values));
      EXPECT_TRUE(has_values(at, few.shape(), places));
    }
  }
}

TEST_P(Order, TheLargestOfEveryType) {
  using enum DType;
  for (const DType t :
       {kBool, kI8, kU8, kI16, kU16, kI32, kU32, kI64, kU64, kF16, kBF16, kF32, kF64}) {
    // Compiling for OpenCL is slow.
    if (device() == "CL" && t != kI8 && t != kF32) continue;
    SCOPED_TRACE(fmt::format("{}, seed {}", dtype_name(t), seed));
    const bool is_flag = t == kBool;
    const std::vector<double> v = whole(150, is_flag ? 1 : 100, !is_unsigned(t) && !is_flag);
    std::vector<double> sorted = v;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const Tensor x = tensor_of(v, {150}, t, device());
    EXPECT_TRUE(
        has_values(x.topk(9).first, {9}, std::vector<double>(sorted.begin(), sorted.begin() + 9)));
    const auto first = std::max_element(v.begin(), v.end()) - v.begin();
    const auto last = std::min_element(v.begin(), v.end()) - v.begin();
    EXPECT_TRUE(has_values(x.argmax(0), {}, {static_cast<double>(first)}));
    EXPECT_TRUE(has_values(x.argmin(0), {}, {static_cast<double>(last)}));
  }
}

TEST_P(Order, ExtremesOfOddFloats) {
  EXPECT_TRUE(has_values(f32({-0.0, 0.0, -1}).argmax(0), {}, {0}));
  EXPECT_TRUE(has_values(f32({0.0, -0.0, 1}).argmin(0), {}, {0}));
  EXPECT_TRUE(has_values(f32({1, kNan, kInf, kNan}).argmax(0), {}, {1}));
  EXPECT_TRUE(has_values(f32({-kInf, 3, kNan}).argmin(0), {}, {2}));
  EXPECT_TRUE(has_values(f32({-kInf, -kInf}).argmax(0), {}, {0}));
  EXPECT_TRUE(has_values(f32({kInf, -kInf}).topk(2).second, {2}, {0, 1}));
}

TEST_P(Order, LongReductionsToFewResults) {
  if (!is_compiled()) GTEST_SKIP() << "long input";
  const std::vector<Lines> cases{{1, 1 << 19, 1},  {3, 300'007, 1}, {1, 300'007, 3},
                                 {1, 262'144, 17}, {2, 524'288, 1}, {1, 524'287, 1}};
  for (const Lines& l : cases) {
    SCOPED_TRACE(fmt::format("{} x {} x {}, seed {}", l.outer, l.length, l.inner, seed));
    std::vector<double> v = whole(l.count(), 9);
    const Lines one{l.outer, 1, l.inner};
    std::vector<double> sum(static_cast<size_t>(one.count())), most = sum, at = sum;
    v[static_cast<size_t>(l.count() / 3)] = 77;
    for_each_line(l, [&](int64_t o, int64_t j) {
      double total = 0, best = -100;
      for (int64_t i = 0; i < l.length; ++i) {
        const double s = v[l.at(o, i, j)];
        total += s;
        if (s > best) at[one.at(o, 0, j)] = static_cast<double>(i);
        best = std::max(best, s);
      }
      sum[one.at(o, 0, j)] = total;
      most[one.at(o, 0, j)] = best;
    });
    const Tensor x = f32(v, l.shape()).realize();
    EXPECT_TRUE(has_values(x.sum({1}, true), one.shape(), sum));
    EXPECT_TRUE(has_values(x.max({1}, true), one.shape(), most));
    EXPECT_TRUE(has_values(x.argmax(1, true), one.shape(), at));
    EXPECT_TRUE(has_values(x.cast(DType::kBF16).cast(DType::kF32).sum(), {},
                           {std::accumulate(sum.begin(), sum.end(), 0.0)}));
  }
  const Tensor square = count({1024, 1024}, DType::kI64);
  EXPECT_TRUE(has_values(square.sum(), {}, {1048575.0 * 1048576 / 2}));
  EXPECT_TRUE(has_values(count({5, 1 << 18}, DType::kI64).cast(DType::kF32).max(), {}, {1310719}));
}

/// Split-K on CPUs: few results, with a rest, of 16-bit factors, in batches, with what follows.
TEST_P(Order, ContractionsOfALongKToFewResults) {
  if (!is_compiled()) GTEST_SKIP() << "long input";
  struct Case {
    int64_t batches, m, k, n;
    DType in = DType::kF32;
  };
  const std::vector<Case> cases{{1, 8, 65536, 8},
                                {1, 7, 30011, 11},
                                {1, 64, 4096, 64},
                                {3, 5, 16384, 17},
                                {1, 2, 262144, 2},
                                {1, 16, 8192, 9, DType::kF16},
                                {2, 3, 50000, 13, DType::kBF16}};
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} x {} x {} x {}, seed {}", c.batches, c.m, c.k, c.n, seed));
    const std::vector<double> a = whole(c.batches * c.m * c.k), b = whole(c.batches * c.k * c.n);
    const std::vector<double> bias = whole(c.n);
    std::vector<double> want;
    for (int64_t row = 0; row < c.batches * c.m; ++row)
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = bias[static_cast<size_t>(j)];
        for (int64_t k = 0; k < c.k; ++k)
          sum += a[static_cast<size_t>(row * c.k + k)] *
                 b[static_cast<size_t>((row / c.m * c.k + k) * c.n + j)];
        want.push_back(sum);
      }
    const Tensor left = f32(a, {c.batches, c.m, c.k}).cast(c.in).realize();
    const Tensor right = f32(b, {c.batches, c.k, c.n}).cast(c.in).realize();
    const Tensor out = left.matmul(right, DType::kF32) + f32(bias, {c.n});
    EXPECT_TRUE(has_values(out, {c.batches, c.m, c.n}, want));
  }
}

TEST(OrderKernels, AreFew) {
  const auto kernels = [](const Tensor& t) {
    const NodePtr root = t.node();
    return plan_fusion({&root, 1}).stored.size();
  };
  const Tensor x = Tensor::empty({64, 1000}, DType::kF32, "CPU");
  EXPECT_EQ(kernels(x.cumsum(1)), 1u);
  EXPECT_EQ(kernels(x.cumsum(0)), 1u);
  EXPECT_EQ(kernels((x * 2).cast(DType::kF16).cumsum(1)), 1u);
  EXPECT_EQ(kernels(x.cumsum(1).reshape({64, 20, 50})), 1u);
  const Tensor one = Tensor::empty({1, 1 << 20}, DType::kF32, "NULL:PTX::sm_90,132");
  EXPECT_EQ(kernels(one.cumsum(1)), 3u);
  // The smallest of every section, two tournaments, each a filled row, its ranks and its best: not
  // one pass for every result.
  EXPECT_LE(kernels(one.topk(8).second), 13u);
  const Tensor row = Tensor::empty({1, 128256}, DType::kF32, "NULL:PTX::sm_90,132");
  EXPECT_LE(kernels(row.topk(40).second), 8u);
  EXPECT_EQ(kernels(one.topk(40).second), kernels(one.topk(39).second));
  EXPECT_EQ(kernels(x.argmax(1)), 1u);
  EXPECT_EQ(kernels(x.topk(8).second), 2u);
  const Tensor a = Tensor::empty({8, 65536}, DType::kF32, "CPU");
  const Tensor b = Tensor::empty({65536, 8}, DType::kF32, "CPU");
  EXPECT_EQ(kernels(a.matmul(b)), 2u);
  // A short K is not worth it; what attention does with its values stays in its kernel.
  EXPECT_EQ(kernels(x.matmul(Tensor::empty({1000, 64}, DType::kF32, "CPU"))), 1u);
  const Tensor q = Tensor::empty({16, 64}, DType::kF32, "CPU");
  const Tensor keys = Tensor::empty({4096, 64}, DType::kF32, "CPU");
  EXPECT_EQ(kernels(q.matmul(keys.transpose()).softmax(1).matmul(keys)), 1u);
}

}  // namespace
}  // namespace bm::test
