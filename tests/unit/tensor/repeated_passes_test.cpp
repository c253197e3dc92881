// Expressions that go over a row more than once, and reductions over axes of equal size: what one
// pass keeps for the next, and which loop is whose. Every number is compared with float64 loops.
#include <cmath>
#include <functional>

#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

using Doubles = std::vector<double>;

class RepeatedPasses : public OnDevice {
 protected:
  std::mt19937 random{17};

  Doubles values(int64_t n, double low = -3, double high = 3) {
    std::uniform_real_distribution<float> uniform(static_cast<float>(low),
                                                  static_cast<float>(high));
    Doubles v(static_cast<size_t>(n));
    for (double& x : v) x = static_cast<double>(uniform(random));
    return v;
  }
  bool is_slow() const { return device() != "CPU:LLVM" && device() != "CPU:CLANG"; }
};
INSTANTIATE_TEST_SUITE_P(Devices, RepeatedPasses,
                         ::testing::ValuesIn(devices_and({"REF", "CPU:LLVM", "CPU:CLANG", "CL"})),
                         device_test_name);

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Doubles map(const Doubles& a, const Doubles& b, const std::function<double(double, double)>& f) {
  Doubles out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = f(a[i], b[i]);
  return out;
}

/// Every run of `length` numbers minus its mean, divided by its deviation where `is_scaled`.
Doubles centered(Doubles v, size_t length, bool is_scaled) {
  for (size_t at = 0; at < v.size(); at += length) {
    const auto n = static_cast<double>(length);
    double mean = 0, square = 0;
    for (size_t i = at; i < at + length; ++i) mean += v[i] / n;
    for (size_t i = at; i < at + length; ++i) square += (v[i] - mean) * (v[i] - mean) / n;
    for (size_t i = at; i < at + length; ++i)
      v[i] = (v[i] - mean) / (is_scaled ? std::sqrt(square + 1e-5) : 1);
  }
  return v;
}

constexpr Tolerance kNear{4e-5, 4e-5};

TEST_P(RepeatedPasses, NormsOfProducts) {
  std::vector<Shape> shapes = {{3, 33}};  // compiling for OpenCL takes long
  if (!is_slow())
    shapes.insert(shapes.end(), {{1, 64}, {1, 7}, {5, 16}, {64, 64}, {2, 3, 129}, {4, 1000}});
  for (const Shape& shape : shapes) {
    const int64_t n = max_elements(shape);
    const auto columns = static_cast<size_t>(shape.back().constant());
    const Doubles va = values(n), vb = values(n);
    const Tensor a = f32(va, shape), b = f32(vb, shape);
    const auto check = [&](const char* what, const Tensor& y,
                           const std::function<double(double, double)>& f) {
      EXPECT_TRUE(has_values(y.layer_norm(), shape, centered(map(va, vb, f), columns, true), kNear))
          << what << " " << to_string(shape);
      if (device() == "CL") return;
      EXPECT_TRUE(has_values(y - y.mean({-1}, true), shape,
                             centered(map(va, vb, f), columns, false), kNear))
          << what << " less its mean, " << to_string(shape);
    };
    check("silu(a)", a.silu(), [](double x, double) { return x * sigmoid(x); });
    check("silu(a)·b", a.silu() * b, [](double x, double y) { return x * sigmoid(x) * y; });
    check("sigmoid(a)·b", a.sigmoid() * b, [](double x, double y) { return sigmoid(x) * y; });
    check("a·sigmoid(1.702a)", a * (a * 1.702).sigmoid(),
          [](double x, double) { return x * sigmoid(1.702 * x); });
    check("sin(a)·b", a.sin() * b, [](double x, double y) { return std::sin(x) * y; });
    check("log(|a| + 1)·b", (a.abs() + 1).log() * b,
          [](double x, double y) { return std::log(std::fabs(x) + 1) * y; });
    const Tensor p = a.abs() + 0.25;
    check("p·log p", p * p.log(), [](double x, double) {
      const double q = std::fabs(x) + 0.25;
      return q * std::log(q);
    });
  }
}

TEST_P(RepeatedPasses, ProductsOfOtherTypes) {
  const Doubles va = values(3 * 40), vb = values(3 * 40);
  const auto f = [](double x, double y) { return x * sigmoid(x) * y; };
  const Doubles want = centered(map(va, vb, f), 40, true);
  const auto of = [&](DType t) {
    const Tensor a = tensor_of(va, {3, 40}, t, device()), b = tensor_of(vb, {3, 40}, t, device());
    return (a.silu() * b).layer_norm();
  };
  EXPECT_TRUE(has_values(of(DType::kF64), {3, 40}, want, {1e-7, 1e-7}));
  EXPECT_TRUE(has_values(of(DType::kF16), {3, 40}, want, {1e-2, 1e-2}));
}

TEST_P(RepeatedPasses, NormsOfGroupsAndInstances) {
  const std::vector<std::array<int64_t, 4>> shapes = {{2, 4, 6, 6}, {1, 4, 4, 4}};
  for (const auto& [n, c, h, w] : shapes) {
    const Shape shape{n, c, h, w};
    const Doubles v = values(n * c * h * w);
    const Doubles active = map(v, v, [](double x, double) { return x * sigmoid(x); });
    const Tensor y = f32(v, shape).silu();
    EXPECT_TRUE(has_values(y.group_norm(2), shape,
                           centered(active, static_cast<size_t>(c / 2 * h * w), true), kNear));
    EXPECT_TRUE(has_values(y.group_norm(c), shape,
                           centered(active, static_cast<size_t>(h * w), true), kNear));
    EXPECT_TRUE(has_values(y.layer_norm({}, {}, 1e-5, 2), shape,
                           centered(active, static_cast<size_t>(h * w), true), kNear));
  }
}

/// Elements of a tensor of `sizes` by what is left of their index without `axes`.
std::vector<Doubles> lines_of(const Doubles& v, const std::vector<int64_t>& sizes,
                              const std::vector<int64_t>& axes) {
  int64_t lines = 1;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) == axes.end())
      lines *= sizes[d];
  std::vector<Doubles> out(static_cast<size_t>(lines));
  for (size_t i = 0; i < v.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), line = 0, step = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) == axes.end()) {
        line += rest % sizes[d] * step;
        step *= sizes[d];
      }
      rest /= sizes[d];
    }
    out[static_cast<size_t>(line)].push_back(v[i]);
  }
  return out;
}

struct Case {
  std::vector<int64_t> sizes, axes;
};

TEST_P(RepeatedPasses, ReductionsOverAxesOfEqualSize) {
  std::vector<Case> cases = {{{16, 16}, {0, 1}}, {{2, 3, 4, 4}, {0, 2, 3}}, {{2, 2, 32}, {0, 1}}};
  if (!is_slow())
    cases.insert(cases.end(), {{{4, 4, 4}, {0, 1, 2}},
                               {{5, 5, 5}, {0, 2}},
                               {{3, 3, 3, 3}, {1, 3}},
                               {{3, 3, 3, 3}, {0, 1, 2, 3}},
                               {{2, 8, 8, 5}, {1, 2}},
                               {{64, 64}, {0, 1}},
                               {{4, 4, 16, 16}, {2, 3}}});
  for (const auto& [sizes, axes] : cases) {
    Shape shape;
    int64_t n = 1;
    for (const int64_t s : sizes) {
      shape.push_back(s);
      n *= s;
    }
    const Doubles v = values(n);
    const Tensor x = f32(v, shape);
    Doubles variance, deviation, logarithm;
    for (const Doubles& line : lines_of(v, sizes, axes)) {
      const auto count = static_cast<double>(line.size());
      double mean = 0, square = 0, power = 0;
      for (const double e : line) mean += e / count;
      for (const double e : line) square += (e - mean) * (e - mean);
      for (const double e : line) power += std::exp(e);
      variance.push_back(square / (count - 1));
      deviation.push_back(std::sqrt(variance.back()));
      logarithm.push_back(std::log(power));
    }
    const auto compare = [&](const char* what, const Tensor& t, const Doubles& want) {
      EXPECT_TRUE(are_close(want, numbers(t), {2e-5, 2e-5})) << what << " " << to_string(shape);
    };
    compare("var", x.var(axes), variance);
    compare("std", x.std(axes), deviation);
    compare("logsumexp", x.logsumexp(axes), logarithm);
    compare("var of a sum", x.transpose(axes[0], axes[1]).var(axes), variance);
  }
}

/// Every element less what the reduction around it makes of all: three passes with equal loops.
TEST_P(RepeatedPasses, NestedReductionsOfMatrices) {
  for (const int64_t n : {3, 8, 16}) {
    const Doubles v = values(n * n);
    const Tensor x = f32(v, {n, n});
    double most = -HUGE_VAL, sum = 0, mean = 0, weighted = 0;
    for (const double e : v) most = std::max(most, e);
    for (const double e : v) sum += std::exp(e - most);
    for (const double e : v) mean += e / static_cast<double>(n * n);
    for (const double e : v) weighted += std::exp(e - most) / sum * (e - mean);
    const Tensor power = (x - x.max({0, 1}, true)).exp();
    const Tensor share = power / power.sum({0, 1}, true);
    EXPECT_TRUE(
        has_values((share * (x - x.mean({0, 1}, true))).sum(), {}, {weighted}, {1e-5, 1e-5}))
        << n;
    Doubles rows(static_cast<size_t>(n));
    for (size_t i = 0; i < v.size(); ++i)
      rows[i / static_cast<size_t>(n)] += std::exp(v[i] - most) / sum;
    EXPECT_TRUE(has_values(share.sum({1}), {n}, rows, {1e-6, 1e-5})) << n;
  }
}

}  // namespace
}  // namespace bm::test
