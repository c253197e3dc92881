// Work on a matrix that reads or writes every number once: chains, norms, sums, transposition.
#include <algorithm>
#include <cmath>
#include <functional>

#include "tools/bellmetal/cpu_bench/cases.h"

namespace bm::cli {
namespace {

using Values = std::vector<float>;
using Doubles = std::vector<double>;

struct RowCase {
  const char* name;
  const char* expression;  ///< the same in Python, over x, w and b
  Tensor (*work)(const std::vector<Tensor>&);
  /// Line `i` of the result from the n × n matrix x and the vectors w and b, in float64.
  Doubles (*line)(const Values& x, const Values& w, const Values& b, int64_t n, int64_t i);
  bool is_read_only = false;  ///< what is written does not count
};

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
     cumsum_rows_line},
    {"cumsum of columns", "x.cumsum(0)",
     [](const std::vector<Tensor>& in) { return in[0].cumsum(0); }, cumsum_columns_line},
    {"top 8 of rows", "x.topk(min(8, x.shape[1]), 1)[0]",
     [](const std::vector<Tensor>& in) {
       return in[0].topk(std::min(kTop, in[0].size(1).constant()), 1).first;
     },
     top_line, true},
    {"argmax of rows", "x.argmax(1).float()",
     [](const std::vector<Tensor>& in) { return in[0].argmax(1).cast(DType::kF32); }, argmax_line,
     true},
    {"gather of rows", "x[(w.abs() * (x.shape[0] - 1)).long()]",
     [](const std::vector<Tensor>& in) {
       const auto last = static_cast<double>(in[0].size(0).constant() - 1);
       return in[0].take((in[1].abs() * last).cast(DType::kI64), 0);
     },
     gather_line}};

/// Error on at most 16 lines of the result.
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

Result<Contest> make_row(World& w, const RowCase& row) {
  const int64_t n = w.size(4096);
  const std::vector<Tensor> in{w.random({n, n}, 1), w.random({n}, 2), w.random({n}, 3)};
  auto replay = make_replay(row.work, in);
  const auto bytes = static_cast<size_t>(n * n) * 4;
  Contest c;
  c.unit = Unit::kGbytes;
  c.amount = static_cast<double>(bytes) * (row.is_read_only ? 1 : 2);
  c.ours = contender("ours", [replay] { replay->run(); });
  if (auto* peer = w.python()) {
    BM_TRY(peer->clear());
    for (size_t i = 0; i < in.size(); ++i) BM_TRY(w.share(std::string(1, "xwb"[i]), in[i]));
    c.peers = BM_TRY(peer->contenders(row.name, row.expression));
  }
  if (row.is_read_only) {
    c.bounds.push_back(read_limit(w.team(), bytes));
  } else {
    c.bounds.push_back(copy_limit(w.team(), bytes, false));
    c.bounds.push_back(copy_limit(w.team(), bytes, true));
  }
  c.check = [replay, in, n, &row]() -> Result<double> {
    return line_error(row, replay->values(),
                      {in[0].data<float>(), in[1].data<float>(), in[2].data<float>()}, n);
  };
  c.tolerance = 1e-5;
  c.goal = {.of_peer = 1.0, .of_bound = 0.85, .at_most = 0};
  return c;
}

Contest limit(Contender limit, Unit unit, double amount) {
  Contest c;
  c.unit = unit;
  c.amount = amount;
  c.ours = std::move(limit);
  return c;
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> out;
  for (const RowCase& row : kCases)
    out.push_back(
        {fmt::format("{} 4096 x 4096", row.name), [&row](World& w) { return make_row(w, row); }});
  return out;
}

std::vector<Case> limit_cases() {
  std::vector<Case> out;
  out.push_back({"limit: FMA of float32", [](World& w) -> Result<Contest> {
                   double flops = 0;
                   Contender fma = fma_limit(w.team(), &flops);
                   return limit(std::move(fma), Unit::kGflops, flops);
                 }});
  struct Size {
    const char* name;
    size_t bytes;
  };
  constexpr Size kSizes[] = {
      {"16 KiB", 16 << 10}, {"512 KiB", 512 << 10}, {"8 MiB", 8 << 20}, {"512 MiB", 512 << 20}};
  for (const Size& s : kSizes)
    out.push_back(
        {fmt::format("limit: read {} per thread", s.name), [s](World& w) -> Result<Contest> {
           const size_t bytes = (w.is_tiny() ? 4096 : s.bytes) * w.threads();
           // Often enough for the hand-over to the threads not to count.
           const int times = std::max(1, static_cast<int>((16 << 20) / s.bytes));
           return limit(read_limit(w.team(), bytes, times), Unit::kGbytes,
                        static_cast<double>(bytes) * times);
         }});
  for (const bool is_streaming : {false, true})
    out.push_back({fmt::format("limit: copy 256 MiB{}", is_streaming ? ", non-temporal" : ""),
                   [is_streaming](World& w) -> Result<Contest> {
                     const size_t bytes = w.is_tiny() ? 4096 : size_t{256} << 20;
                     return limit(copy_limit(w.team(), bytes, is_streaming), Unit::kGbytes,
                                  2.0 * static_cast<double>(bytes));
                   }});
  return out;
}

}  // namespace bm::cli
