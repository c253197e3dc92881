#pragma once
// Attention of 16-bit floats as a kernel for NVIDIA's targets, its input and what its result may
// be.

#include <cmath>
#include <cstring>
#include <random>

#include "runtime/base/half.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tensor/tensor.h"
#include "tests/unit/compiler/products.h"
#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {

inline constexpr double kInf = HUGE_VAL;

/// Of Case::key_count: none.
inline constexpr int64_t kNoKeys = -1;

enum class Mask : uint8_t { kNone, kBool, kFloat };

struct Case {
  DType type = DType::kF16;
  int64_t heads = 2, shared_heads = 2, queries = 128, keys = 128, head_dim = 64, width = 64;
  bool is_causal = false;
  Mask mask = Mask::kNone;
  int64_t key_count = 0, query_count = 0;  ///< not 0: of these many, given at launch
  const char* card = "sm_80";
  uint32_t units = 2;
  uint64_t shift = 0;        ///< bytes between multiples of 256 and every buffer
  double spread = 1;         ///< of queries
  bool is_by_token = false;  ///< heads of a query, key or value side by side in memory
};

inline double value_of(DType t, const std::byte* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  if (t == DType::kF16) return static_cast<double>(f16_to_f32(bits));
  if (t == DType::kBF16) return static_cast<double>(bf16_to_f32(bits));
  float v = 0;
  std::memcpy(&v, at, 4);
  return static_cast<double>(v);
}

inline std::vector<double> values_of(DType t, const std::vector<std::byte>& bytes) {
  std::vector<double> out;
  const auto size = static_cast<size_t>(item_size(t));
  for (size_t i = 0; i < bytes.size(); i += size) out.push_back(value_of(t, &bytes[i]));
  return out;
}

/// What a kernel of attention is given, as it is after rounding.
class Problem {
 public:
  explicit Problem(const Case& c)
      : c_(c),
        count_("count", 1, std::max<int64_t>(c.queries, 1)),
        length_("length", 0, std::max<int64_t>(c.keys, 1)) {
    const std::string device = "NULL::" + std::string(c.card);
    const auto input = [&](const Shape& shape, DType t) { return Tensor::empty(shape, t, device); };
    const auto lines = [&](int64_t heads, int64_t count, int64_t width) {
      return c.is_by_token ? input({count, heads, width}, c.type)
                           : input({heads, count, width}, c.type);
    };
    q_ = lines(c.heads, c.queries, c.head_dim);
    k_ = lines(c.shared_heads, c.keys, c.head_dim);
    v_ = lines(c.shared_heads, c.keys, c.width);
    if (c.mask == Mask::kBool) mask_ = input({c.queries, c.keys}, DType::kBool);
    if (c.mask == Mask::kFloat) mask_ = input({c.queries, c.keys}, DType::kF32);
    count_.set(queries());
    length_.set(keys());
    const auto rows = [&](const Tensor& of, const Var& n, bool is_symbolic) {
      const Tensor t = c.is_by_token ? of.permute({1, 0, 2}) : of;
      return is_symbolic ? t.shrink({{0, t.size(0)}, {0, SymInt(n)}, {0, t.size(2)}}) : t;
    };
    Tensor mask = mask_;
    if (mask.is_valid() && (c.key_count || c.query_count))
      mask = mask.shrink({{0, c.query_count ? SymInt(count_) : SymInt(c.queries)},
                          {0, c.key_count ? SymInt(length_) : SymInt(c.keys)}});
    result_ =
        Tensor::attention(rows(q_, count_, c.query_count != 0), rows(k_, length_, c.key_count != 0),
                          rows(v_, length_, c.key_count != 0), mask, c.is_causal);
  }

  int64_t queries() const { return c_.query_count ? c_.query_count : c_.queries; }
  int64_t keys() const { return c_.key_count ? std::max<int64_t>(c_.key_count, 0) : c_.keys; }
  const Tensor& result() const { return result_; }

  size_t kernels() const {
    const NodePtr root = result_.node();
    return plan_fusion({&root, 1}).stored.size();
  }

  LoweredKernel kernel() const {
    const NodePtr root = result_.node();
    const FusionPlan plan = plan_fusion({&root, 1});
    return *lower(*root, nullptr, [&](const Node* n) { return plan.stored.contains(n); });
  }

  LoweredKernel kernel_of_all() const {
    const NodePtr root = result_.node();
    return *lower(*root, nullptr, [&](const Node* n) { return n == root.get(); });
  }

  /// Buffers by param; queries, keys, values and mask of fresh numbers.
  Buffers fill(const LoweredKernel& kernel, std::mt19937_64& random) {
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    Buffers out;
    for (size_t i = 0; i < kernel.params.size(); ++i) {
      const DType t = kernel.ir.params[i].dtype;
      const auto size = static_cast<size_t>(item_size(t));
      std::vector<std::byte> bytes(static_cast<size_t>(kernel.ir.params[i].elements) * size);
      const bool is_mask = mask_.is_valid() && kernel.params[i] == mask_.node().get();
      const double spread = kernel.params[i] == q_.node().get() ? c_.spread : 1;
      for (size_t j = 0; i > 0 && j < bytes.size(); j += size) {
        const auto row = static_cast<int64_t>(j / size) / std::max<int64_t>(c_.keys, 1);
        const bool is_hidden = is_mask && (uniform(random) < 0.3 || row == 5);
        if (t == DType::kBool)
          bytes[j] = is_hidden ? std::byte{0} : std::byte{1};
        else
          put(t, is_hidden ? -kInf : normal(random) * spread, &bytes[j]);
      }
      out.push_back(std::move(bytes));
      if (kernel.params[i] == q_.node().get()) query_ = i;
      if (kernel.params[i] == k_.node().get()) key_ = i;
      if (kernel.params[i] == v_.node().get()) value_ = i;
      if (is_mask) mask_at_ = i;
    }
    return out;
  }

  std::vector<int64_t> vars(const LoweredKernel& kernel) const {
    std::vector<int64_t> out;
    for (const Var& v : kernel.vars) out.push_back(v.value());
    return out;
  }

  /// What the result may differ by: powers and results are rounded to the type, powers below its
  /// normal numbers (of float16) by a fixed amount; the rest is float32.
  double worst_excess(const Buffers& buffers) const {
    const auto q = values_of(c_.type, buffers[query_]), k = values_of(c_.type, buffers[key_]),
               v = values_of(c_.type, buffers[value_]), got = values_of(c_.type, buffers[0]);
    const double unit = c_.type == DType::kF16 ? 0x1p-11 : 0x1p-8;
    double worst = -kInf;
    for (int64_t h = 0; h < c_.heads; ++h)
      for (int64_t i = 0; i < queries(); ++i) {
        const int64_t shared = h * c_.shared_heads / c_.heads;
        const std::vector<double> w = powers(q, k, buffers, h, shared, i);
        double total = 0;
        for (const double x : w) total += x;
        for (int64_t d = 0; d < c_.width; ++d) {
          double mixed = 0, size = 0, small = 0;
          for (int64_t p = 0; p < keys(); ++p) {
            const double x = at(v, line(shared, c_.shared_heads, p, c_.keys) * c_.width + d);
            mixed += at(w, p) * x;
            size += at(w, p) * std::fabs(x);
            small += std::fabs(x);
          }
          const double want = total == 0 ? 0 : mixed / total;
          const double room = total == 0
                                  ? 0
                                  : (unit + 0x1p-16) * size / total + unit * std::fabs(want) +
                                        0x1p-25 * small / total + 1e-6;
          const double error = std::fabs(at(got, (h * c_.queries + i) * c_.width + d) - want);
          worst = std::max(worst, std::isnan(error) ? kInf : error - room);
        }
      }
    return worst;
  }

 private:
  static double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }
  int64_t line(int64_t head, int64_t heads, int64_t i, int64_t count) const {
    return c_.is_by_token ? i * heads + head : head * count + i;
  }

  std::vector<double> powers(const std::vector<double>& q, const std::vector<double>& k,
                             const Buffers& buffers, int64_t head, int64_t shared,
                             int64_t query) const {
    std::vector<double> scores;
    double most = -kInf;
    for (int64_t p = 0; p < keys(); ++p) {
      double score = 0;
      for (int64_t d = 0; d < c_.head_dim; ++d)
        score += at(q, line(head, c_.heads, query, c_.queries) * c_.head_dim + d) *
                 at(k, line(shared, c_.shared_heads, p, c_.keys) * c_.head_dim + d);
      score /= std::sqrt(static_cast<double>(c_.head_dim));
      const auto place = static_cast<size_t>(query * c_.keys + p);
      if (c_.mask == Mask::kFloat) score += value_of(DType::kF32, &buffers[mask_at_][place * 4]);
      if (c_.mask == Mask::kBool && buffers[mask_at_][place] == std::byte{0}) score = -kInf;
      if (c_.is_causal && p > query) score = -kInf;
      scores.push_back(score);
      most = std::max(most, score);
    }
    for (double& s : scores) s = most == -kInf ? 0 : std::exp(s - most);
    return scores;
  }

  Case c_;
  Var count_, length_;
  Tensor q_, k_, v_, mask_, result_;
  size_t query_ = 0, key_ = 0, value_ = 0, mask_at_ = 0;
};

inline std::string text_of(const Case& c) {
  return fmt::format(
      "{} heads ({}), {} of {} queries, {} of {} keys, {} × {}, causal {}, mask {}, {} units, {}",
      c.heads, c.shared_heads, c.query_count, c.queries, c.key_count, c.keys, c.head_dim, c.width,
      c.is_causal, static_cast<int>(c.mask), c.units, c.card);
}

inline hal::Arch card_of(const Case& c) {
  hal::Arch arch = ptx_arch();
  arch.name = c.card;
  arch.units = c.units;
  return arch;
}

}  // namespace bm::test
