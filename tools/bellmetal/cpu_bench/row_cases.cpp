#include "tools/bellmetal/cpu_bench/row_cases.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tools/bellmetal/cpu_bench/world.h"

namespace bm::cli {
namespace {

using Values = std::vector<float>;
using Doubles = std::vector<double>;

constexpr double kEpsilon = 1e-5;

const float* row_of(const Values& x, int64_t n, int64_t i) { return x.data() + i * n; }
double at(const float* p, int64_t j) { return static_cast<double>(p[j]); }

Doubles chain_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  Doubles out;
  for (int64_t j = 0; j < n; ++j) {
    const double v =
        std::max(0.0, std::sqrt(std::abs(at(row_of(x, n, i), j) * 1.1 + 0.3)) * 0.7 - 0.2);
    out.push_back(v * v);
  }
  return out;
}

Doubles softmax_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  const float* row = row_of(x, n, i);
  Doubles out;
  double most = at(row, 0), sum = 0;
  for (int64_t j = 0; j < n; ++j) most = std::max(most, at(row, j));
  for (int64_t j = 0; j < n; ++j) out.push_back(std::exp(at(row, j) - most));
  for (const double v : out) sum += v;
  for (double& v : out) v /= sum;
  return out;
}

Doubles layernorm_line(const Values& x, const Values& w, const Values& b, int64_t n, int64_t i) {
  const float* row = row_of(x, n, i);
  double mean = 0, variance = 0;
  for (int64_t j = 0; j < n; ++j) mean += at(row, j) / static_cast<double>(n);
  for (int64_t j = 0; j < n; ++j)
    variance += (at(row, j) - mean) * (at(row, j) - mean) / static_cast<double>(n);
  Doubles out;
  for (int64_t j = 0; j < n; ++j)
    out.push_back((at(row, j) - mean) / std::sqrt(variance + kEpsilon) * at(w.data(), j) +
                  at(b.data(), j));
  return out;
}

Doubles rmsnorm_line(const Values& x, const Values& w, const Values&, int64_t n, int64_t i) {
  const float* row = row_of(x, n, i);
  double square = 0;
  for (int64_t j = 0; j < n; ++j) square += at(row, j) * at(row, j) / static_cast<double>(n);
  Doubles out;
  for (int64_t j = 0; j < n; ++j)
    out.push_back(at(row, j) / std::sqrt(square + kEpsilon) * at(w.data(), j));
  return out;
}

Doubles row_sum_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += at(row_of(x, n, i), j);
  return {sum};
}

Doubles column_sum_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += at(row_of(x, n, j), i);
  return {sum};
}

Doubles transpose_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  Doubles out;
  for (int64_t j = 0; j < n; ++j) out.push_back(at(row_of(x, n, j), i));
  return out;
}

Doubles cumsum_rows_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  Doubles out;
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) out.push_back(sum += at(row_of(x, n, i), j));
  return out;
}

Doubles cumsum_columns_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  Doubles out(static_cast<size_t>(n));
  for (int64_t k = 0; k <= i; ++k)
    for (int64_t j = 0; j < n; ++j) out[static_cast<size_t>(j)] += at(row_of(x, n, k), j);
  return out;
}

constexpr int64_t kTop = 8;

Doubles top_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  Doubles row(row_of(x, n, i), row_of(x, n, i + 1));
  std::sort(row.begin(), row.end(), std::greater<>());
  row.resize(static_cast<size_t>(std::min(kTop, n)));
  return row;
}

Doubles argmax_line(const Values& x, const Values&, const Values&, int64_t n, int64_t i) {
  const float* row = row_of(x, n, i);
  return {static_cast<double>(std::max_element(row, row + n) - row)};
}

/// Rows in the order of w, which is in [-1, 1).
Doubles gather_line(const Values& x, const Values& w, const Values&, int64_t n, int64_t i) {
  const float place = std::abs(w[static_cast<size_t>(i)]) * static_cast<float>(n - 1);
  const float* row = row_of(x, n, static_cast<int64_t>(place));
  return {row, row + n};
}

constexpr RowCase kCases[] = {
    {"elementwise chain of 8", "((x * 1.1 + 0.3).abs().sqrt() * 0.7 - 0.2).relu().square()",
     [](const std::vector<Tensor>& in) {
       return ((in[0] * 1.1 + 0.3).abs().sqrt() * 0.7 - 0.2).relu().square();
     },
     chain_line},
    {"softmax", "F.softmax(x, -1)", [](const std::vector<Tensor>& in) { return in[0].softmax(); },
     softmax_line},
    {"layernorm", "F.layer_norm(x, w.shape, w, b, 1e-5)",
     [](const std::vector<Tensor>& in) { return in[0].layer_norm(in[1], in[2], kEpsilon); },
     layernorm_line},
    {"rmsnorm",
     "F.rms_norm(x, w.shape, w, 1e-5) if hasattr(F, 'rms_norm') else "
     "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w",
     [](const std::vector<Tensor>& in) { return in[0].rms_norm(in[1], kEpsilon); }, rmsnorm_line},
    {"row sum", "x.sum(1)", [](const std::vector<Tensor>& in) { return in[0].sum({1}); },
     row_sum_line, true},
    {"column sum", "x.sum(0)", [](const std::vector<Tensor>& in) { return in[0].sum({0}); },
     column_sum_line, true},
    {"transpose", "x.t().contiguous()",
     [](const std::vector<Tensor>& in) { return in[0].transpose().contiguous(); }, transpose_line},
    {"cumsum of rows", "x.cumsum(1)", [](const std::vector<Tensor>& in) { return in[0].cumsum(1); },
     cumsum_rows_line, false, true},
    {"cumsum of columns", "x.cumsum(0)",
     [](const std::vector<Tensor>& in) { return in[0].cumsum(0); }, cumsum_columns_line, false,
     true},
    {"top 8 of rows", "x.topk(min(8, x.shape[1]), 1)[0]",
     [](const std::vector<Tensor>& in) {
       return in[0].topk(std::min(kTop, in[0].size(1).constant()), 1).first;
     },
     top_line, true, true},
    {"argmax of rows", "x.argmax(1).float()",
     [](const std::vector<Tensor>& in) { return in[0].argmax(1).cast(DType::kF32); }, argmax_line,
     true},
    {"gather of rows", "x[(w.abs() * (x.shape[0] - 1)).long()]",
     [](const std::vector<Tensor>& in) {
       const auto last = static_cast<double>(in[0].size(0).constant() - 1);
       return in[0].take((in[1].abs() * last).cast(DType::kI64), 0);
     },
     gather_line}};

}  // namespace

std::span<const RowCase> row_work() { return kCases; }

double line_error(const RowCase& row, const Values& got, const std::vector<Values>& in, int64_t n) {
  const int64_t width = static_cast<int64_t>(got.size()) / n;
  Values mine, want;
  for (int64_t i = 0; i < n; i += std::max<int64_t>(1, n / 16)) {
    const Doubles line = row.line(in[0], in[1], in[2], n, i);
    if (static_cast<int64_t>(line.size()) != width) return INFINITY;
    for (int64_t j = 0; j < width; ++j) {
      want.push_back(static_cast<float>(line[static_cast<size_t>(j)]));
      mine.push_back(got[static_cast<size_t>(i * width + j)]);
    }
  }
  return relative_error(mine, want);
}

}  // namespace bm::cli
