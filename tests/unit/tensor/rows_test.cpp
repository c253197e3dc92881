// Softmax, norms and their like: one kernel each, against sums in float64 with fresh random input.
#include <functional>

#include "tensor/fusion.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

class Rows : public OnDevice {
 protected:
  std::mt19937 random{std::random_device{}()};

  std::vector<double> values(int64_t n, double special = 0) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<double> uniform;
    std::vector<double> v(static_cast<size_t>(n));
    for (double& x : v) x = uniform(random) < special ? -kInf : static_cast<double>(normal(random));
    return v;
  }
};
BM_ON_DEVICES(Rows);

size_t kernels(const Tensor& t) {
  const NodePtr root = t.node();
  return plan_fusion({&root, 1}).stored.size();
}

/// f of every line of `columns` numbers.
std::vector<double> by_line(const std::vector<double>& v, size_t columns,
                            const std::function<void(std::span<double>)>& f) {
  std::vector<double> out = v;
  for (size_t i = 0; i < out.size(); i += columns) f(std::span(out).subspan(i, columns));
  return out;
}

void softmax(std::span<double> line) {
  const double most = *std::max_element(line.begin(), line.end());
  double sum = 0;
  for (double& x : line) sum += x = std::exp(x - most);  // NaN where all are -inf
  for (double& x : line) x = x / sum;
}

void layer_norm(std::span<double> line) {
  double mean = 0, square = 0;
  const auto n = static_cast<double>(line.size());
  for (double x : line) mean += x / n;
  for (double x : line) square += (x - mean) * (x - mean) / n;
  for (double& x : line) x = (x - mean) / std::sqrt(square + 1e-5);
}

void rms_norm(std::span<double> line) {
  double square = 0;
  for (double x : line) square += x * x / static_cast<double>(line.size());
  for (double& x : line) x = x / std::sqrt(square + 1e-5);
}

using Sizes = std::vector<std::pair<int64_t, int64_t>>;
/// Compiling for OpenCL and interpreting are slow.
Sizes shapes(const std::string& device) {
  if (device != "CPU") return {{3, 7}, {17, 129}};
  return {{1, 1}, {3, 7}, {5, 16}, {64, 33}, {37, 128}, {17, 129}, {2, 1000}, {70, 517}};
}

TEST_P(Rows, SoftmaxOfLinesAndColumnsWithMaskedElements) {
  for (const auto& [rows, columns] : shapes(device()))
    for (const double masked : {0.0, 0.3, 1.0}) {
      const std::vector<double> v = values(rows * columns, masked);
      const std::vector<double> want = by_line(v, static_cast<size_t>(columns), softmax);
      const Tensor x = f32(v, {rows, columns});
      EXPECT_TRUE(has_values(x.softmax(-1), {rows, columns}, want, {1e-6, 4e-6}))
          << rows << " × " << columns;
      const Tensor turned = x.transpose().contiguous().realize();
      EXPECT_TRUE(has_values(turned.softmax(0).transpose(), {rows, columns}, want, {1e-6, 4e-6}))
          << rows << " × " << columns;
    }
}

TEST_P(Rows, LogarithmsOfSumsOfPowers) {
  for (const auto& [rows, columns] : shapes(device())) {
    const std::vector<double> v = values(rows * columns, 0.1);
    std::vector<double> sums, logs = v;
    for (size_t i = 0; i < v.size(); i += static_cast<size_t>(columns)) {
      double sum = 0;
      for (size_t j = i; j < i + static_cast<size_t>(columns); ++j) sum += std::exp(v[j]);
      sums.push_back(std::log(sum));
    }
    const Tensor x = f32(v, {rows, columns});
    EXPECT_TRUE(has_values(x.logsumexp({1}), {rows}, sums, {2e-6, 2e-6}));
    // -inf - -inf: NaN where all are.
    for (size_t i = 0; i < v.size(); ++i) logs[i] -= sums[i / static_cast<size_t>(columns)];
    EXPECT_TRUE(has_values(x.log_softmax(1), {rows, columns}, logs, {2e-6, 2e-6}));
  }
}

TEST_P(Rows, Norms) {
  for (const auto& [rows, columns] : shapes(device())) {
    const std::vector<double> v = values(rows * columns), w = values(columns), b = values(columns);
    const auto scaled = [&](std::vector<double> out, bool has_bias) {
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t c = i % static_cast<size_t>(columns);
        out[i] = out[i] * w[c] + (has_bias ? b[c] : 0);
      }
      return out;
    };
    const Tensor x = f32(v, {rows, columns}), weight = f32(w, {columns}), bias = f32(b, {columns});
    EXPECT_TRUE(has_values(x.layer_norm(weight, bias), {rows, columns},
                           scaled(by_line(v, static_cast<size_t>(columns), layer_norm), true),
                           {4e-5, 2e-5}));
    EXPECT_TRUE(has_values(x.rms_norm(weight, 1e-5), {rows, columns},
                           scaled(by_line(v, static_cast<size_t>(columns), rms_norm), false),
                           {2e-6, 4e-6}));
  }
}

TEST_P(Rows, NormsOverTwoAxesAndOf16BitFloats) {
  const std::vector<double> v = values(6 * 5 * 9);
  EXPECT_TRUE(has_values(f32(v, {6, 5, 9}).layer_norm({}, {}, 1e-5, 2), {6, 5, 9},
                         by_line(v, 45, layer_norm), {2e-5, 2e-5}));
  const Tensor half = tensor_of(v, {6, 45}, DType::kF16, device());
  EXPECT_TRUE(
      has_values(half.softmax(-1), {6, 45}, by_line(numbers(half), 45, softmax), {1e-4, 1e-3}));
}

TEST_P(Rows, SymbolicLengths) {
  Var rows("rows", 1, 40), columns("columns", 1, 300);
  const Tensor room = f32(values(40 * 300), {40, 300}).realize();
  const std::vector<double> all = numbers(room);
  for (const auto& [r, c] : Sizes{{1, 1}, {40, 300}, {7, 131}, {33, 16}}) {
    rows.set(r);
    columns.set(c);
    const Tensor x = room.shrink({{0, SymInt(rows)}, {0, SymInt(columns)}});
    std::vector<double> part;
    for (int64_t i = 0; i < r; ++i)
      for (int64_t j = 0; j < c; ++j) part.push_back(all[static_cast<size_t>(i * 300 + j)]);
    const auto check = [&](const Tensor& t, auto&& line, Tolerance tolerance) {
      const Tensor out = Tensor::zeros({40, 300}, DType::kF32, device()).contiguous().realize();
      out.shrink({{0, SymInt(rows)}, {0, SymInt(columns)}}).assign(Tensor(t));
      std::vector<double> got;
      const std::vector<double> wide = numbers(out);
      for (int64_t i = 0; i < r; ++i)
        for (int64_t j = 0; j < c; ++j) got.push_back(wide[static_cast<size_t>(i * 300 + j)]);
      EXPECT_TRUE(are_close(by_line(part, static_cast<size_t>(c), line), got, tolerance))
          << r << " × " << c;
    };
    check(x.softmax(-1), softmax, {1e-6, 4e-6});
    check(x.layer_norm({}, {}), layer_norm, {1e-4, 4e-5});
  }
}

TEST_P(Rows, InPlaceOverTheSameElements) {
  const std::vector<double> v = values(8 * 300);
  Tensor x = f32(v, {8, 300}).contiguous().realize();
  x.assign(x.softmax(-1));
  EXPECT_TRUE(has_values(x, {8, 300}, by_line(v, 300, softmax), {1e-6, 4e-6}));
}

TEST_P(Rows, ArgmaxAndDeviationOfLines) {
  const std::vector<double> v = values(9 * 333);
  std::vector<double> at;
  for (size_t i = 0; i < v.size(); i += 333)
    at.push_back(
        static_cast<double>(std::max_element(v.begin() + static_cast<std::ptrdiff_t>(i),
                                             v.begin() + static_cast<std::ptrdiff_t>(i + 333)) -
                            v.begin() - static_cast<std::ptrdiff_t>(i)));
  EXPECT_TRUE(has_values(f32(v, {9, 333}).argmax(1), {9}, at));
}

TEST(RowKernels, AreOneKernel) {
  const auto input = [](const Shape& s) { return Tensor::empty(s, DType::kF32, "CPU"); };
  const Tensor x = input({64, 1000}), w = input({1000});
  EXPECT_EQ(kernels(x.softmax(-1)), 1u);
  EXPECT_EQ(kernels(x.softmax(0)), 1u);
  EXPECT_EQ(kernels(x.log_softmax(-1)), 1u);
  EXPECT_EQ(kernels(x.logsumexp({-1})), 1u);
  EXPECT_EQ(kernels(x.layer_norm(w, w)), 1u);
  EXPECT_EQ(kernels(x.rms_norm(w)), 1u);
  EXPECT_EQ(kernels(x.var({1})), 1u);
  EXPECT_EQ(kernels(x.argmax(1)), 1u);
  EXPECT_EQ(kernels(((x + 1) * 2).softmax(-1) * 3), 1u);
}

TEST(RowKernels, AreNotMadeOfRowsThatLeaveTheCachesOrMeetOtherRows) {
  const auto input = [](const Shape& s) { return Tensor::empty(s, DType::kF32, "CPU"); };
  const Tensor huge = input({2, 1 << 26});
  EXPECT_GT(kernels(huge.softmax(-1)), 1u);
  const Tensor x = input({64, 1000});
  EXPECT_GT(kernels(x - x.mean({0}, true) - x.mean({1}, true)), 1u);
  const Tensor product = input({64, 100}).matmul(input({100, 50}));
  EXPECT_EQ(kernels(product.softmax(-1)), 2u);
}

TEST(Fusion, ALongNetworkIsCutWhereItsSumsEnd) {
  Tensor x = Tensor::zeros({1, 4, 8, 8}).contiguous();
  x.realize();
  const Tensor weight = Tensor::zeros({4, 4, 3, 3}).contiguous(), bias = Tensor::zeros({4});
  Tensor w = weight;
  w.realize();
  constexpr int kLayers = 40;
  for (int i = 0; i < kLayers; ++i) x = (x.conv(w, bias, {1}, {1}) + x).relu();
  EXPECT_EQ(kernels(x), static_cast<size_t>(kLayers)) << "no product of a sum is stored";
}

/// One kernel or several: shares of nothing are NaN where they are asked for, and attention to
/// nothing is 0.
TEST_P(Rows, QueriesThatSeeNothing) {
  constexpr int64_t kWidth = 16;
  const std::vector<int64_t> counts =
      device() == "CL" ? std::vector<int64_t>{5} : std::vector<int64_t>{1, 5, 40};
  for (const int64_t queries : counts)
    for (const int64_t keys : {int64_t{33}, int64_t{80}}) {
      if (device() == "CL" && keys > 33) continue;
      const Tensor q = f32(values(queries * kWidth), {queries, kWidth}),
                   k = f32(values(keys * kWidth), {keys, kWidth}),
                   v = f32(values(keys * kWidth), {keys, kWidth});
      // Query 0 sees nothing, others every key but the first.
      std::vector<double> seen(static_cast<size_t>(queries * keys));
      for (size_t i = 0; i < seen.size(); ++i)
        seen[i] = i >= static_cast<size_t>(keys) && i % static_cast<size_t>(keys) != 0;
      const Tensor mask = tensor_of(seen, {queries, keys}, DType::kBool, device());
      const Tensor scores = q.matmul(k.transpose()) * 0.25;
      const std::vector<double> by_hand = numbers(mask.where(scores, -kInf).softmax(-1).matmul(v));
      const std::vector<double> given = numbers(Tensor::attention(q, k, v, mask));
      for (size_t i = 0; i < by_hand.size(); ++i) {
        if (i < kWidth) {
          EXPECT_TRUE(std::isnan(by_hand[i])) << i << ": " << by_hand[i];
          EXPECT_EQ(given[i], 0) << i;
        } else {
          EXPECT_NEAR(by_hand[i], given[i], 1e-5) << i;
        }
      }
    }
}

}  // namespace
}  // namespace bm::test
