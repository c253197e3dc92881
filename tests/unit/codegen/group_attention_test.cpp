// Attention by matrix instructions on NVIDIA's targets, on the PTX interpreter, against sums in
// float64 with fresh random input.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "compiler/codegen/builder.h"
#include "compiler/compile.h"
#include "compiler/opt/attention.h"
#include "compiler/render/render.h"
#include "compiler/toolchain/nvrtc.h"
#include "runtime/base/env.h"
#include "runtime/base/half.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tensor/tensor.h"
#include "tests/unit/codegen/products.h"
#include "tests/unit/codegen/ptx_runner.h"

namespace bm::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

enum class Mask : uint8_t { kNone, kBool, kFloat };

struct Case {
  DType type = DType::kF16;
  int64_t heads = 2, shared_heads = 2, queries = 128, keys = 128, depth = 64, width = 64;
  bool is_causal = false;
  Mask mask = Mask::kNone;
  int64_t key_count = 0, query_count = 0;  ///< not 0: of these many, given at launch
  const char* card = "sm_80";
  uint32_t units = 2;
  uint64_t shift = 0;  ///< bytes between multiples of 256 and every buffer
  double spread = 1;   ///< of queries
};

double value_of(DType t, const std::byte* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  if (t == DType::kF16) return static_cast<double>(f16_to_f32(bits));
  if (t == DType::kBF16) return static_cast<double>(bf16_to_f32(bits));
  float v = 0;
  std::memcpy(&v, at, 4);
  return static_cast<double>(v);
}

std::vector<double> values_of(DType t, const std::vector<std::byte>& bytes) {
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
    q_ = input({c.heads, c.queries, c.depth}, c.type);
    k_ = input({c.shared_heads, c.keys, c.depth}, c.type);
    v_ = input({c.shared_heads, c.keys, c.width}, c.type);
    if (c.mask == Mask::kBool) mask_ = input({c.queries, c.keys}, DType::kBool);
    if (c.mask == Mask::kFloat) mask_ = input({c.queries, c.keys}, DType::kF32);
    count_.set(queries());
    length_.set(keys());
    const auto rows = [&](const Tensor& t, const Var& n, bool is_symbolic) {
      return is_symbolic ? t.shrink({{0, t.size(0)}, {0, SymInt(n)}, {0, t.size(2)}}) : t;
    };
    Tensor mask = mask_;
    if (mask.is_valid() && (c.key_count || c.query_count))
      mask = mask.shrink({{0, c.query_count ? SymInt(count_) : SymInt(c.queries)},
                          {0, c.key_count ? SymInt(length_) : SymInt(c.keys)}});
    result_ = Tensor::attention(rows(q_, count_, c.query_count != 0),
                                rows(k_, length_, c.key_count != 0),
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
            const double x = at(v, (shared * c_.keys + p) * c_.width + d);
            mixed += at(w, p) * x;
            size += at(w, p) * std::fabs(x);
            small += std::fabs(x);
          }
          const double want = total == 0 ? 0 : mixed / total;
          const double room =
              total == 0 ? 0
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

  std::vector<double> powers(const std::vector<double>& q, const std::vector<double>& k,
                             const Buffers& buffers, int64_t head, int64_t shared,
                             int64_t query) const {
    std::vector<double> scores;
    double most = -kInf;
    for (int64_t p = 0; p < keys(); ++p) {
      double score = 0;
      for (int64_t d = 0; d < c_.depth; ++d)
        score += at(q, (head * c_.queries + query) * c_.depth + d) *
                 at(k, (shared * c_.keys + p) * c_.depth + d);
      score /= std::sqrt(static_cast<double>(c_.depth));
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

std::string text_of(const Case& c) {
  return fmt::format(
      "{} heads ({}), {} of {} queries, {} of {} keys, {} × {}, causal {}, mask {}, {} units, {}",
      c.heads, c.shared_heads, c.query_count, c.queries, c.key_count, c.keys, c.depth, c.width,
      c.is_causal, static_cast<int>(c.mask), c.units, c.card);
}

hal::Arch card_of(const Case& c) {
  hal::Arch arch = ptx_arch();
  arch.name = c.card;
  arch.units = c.units;
  return arch;
}

PtxRun expect_right(const Case& c, const char* renderer) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  SCOPED_TRACE(text_of(c));
  static std::mt19937_64 random(std::random_device{}());
  Problem problem(c);
  EXPECT_EQ(problem.kernels(), 1u);
  const LoweredKernel kernel = problem.kernel();
  const auto code =
      compiler::compile(kernel.ir, card_of(c), renderer, {.use_cache = false});
  EXPECT_TRUE(code) << (code ? "" : code.error().message);
  if (!code) return {};
  const char* image = reinterpret_cast<const char*>(code->image.data());
  EXPECT_NE(std::string_view(image).find("mma.sync"), std::string_view::npos);
  Buffers buffers = problem.fill(kernel, random);
  const auto done = run_on_ptx(*code, buffers, problem.vars(kernel), c.shift);
  EXPECT_TRUE(done) << (done ? "" : done.error().message);
  if (!done) return {};
  EXPECT_LE(problem.worst_excess(buffers), 0);
  EXPECT_EQ(done->traffic.shared_conflicts, 0u);
  return *done;
}

class GroupAttention : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != std::string_view("NVRTC")) return;
    if (const auto v = compiler::nvrtc_version(); !v) GTEST_SKIP() << v.error().message;
  }
};
INSTANTIATE_TEST_SUITE_P(Nv, GroupAttention, testing::Values("PTX", "NVRTC"),
                         [](const auto& given) { return std::string(given.param); });

TEST_P(GroupAttention, WholeBlocks) {
  expect_right({}, GetParam());
  expect_right({.type = DType::kBF16, .queries = 64, .depth = 128, .width = 128}, GetParam());
  expect_right({.heads = 1, .shared_heads = 1, .keys = 192, .depth = 128, .units = 1,
                .spread = 8},
               GetParam());
}

TEST_P(GroupAttention, AnyNumberOfQueriesAndKeys) {
  expect_right({.queries = 77, .keys = 101, .depth = 80, .width = 48}, GetParam());
  expect_right({.heads = 1, .shared_heads = 1, .queries = 150, .keys = 37, .depth = 16,
                .width = 112, .units = 1},
               GetParam());
}

TEST_P(GroupAttention, LaterKeysAreHidden) {
  expect_right({.queries = 200, .keys = 200, .is_causal = true}, GetParam());
  expect_right({.type = DType::kBF16, .queries = 130, .keys = 260, .is_causal = true, .units = 1},
               GetParam());
}

TEST_P(GroupAttention, Masks) {
  expect_right({.queries = 70, .keys = 90, .mask = Mask::kFloat}, GetParam());
  expect_right({.queries = 128, .keys = 128, .is_causal = true, .mask = Mask::kFloat}, GetParam());
  expect_right({.queries = 100, .keys = 128, .mask = Mask::kBool}, GetParam());
}

TEST_P(GroupAttention, HeadsShareKeys) {
  expect_right({.heads = 6, .shared_heads = 2, .queries = 40, .keys = 70}, GetParam());
}

TEST_P(GroupAttention, LengthsGivenAtLaunch) {
  for (const int64_t n : {1, 63, 64, 65, 128})
    expect_right({.heads = 1, .shared_heads = 1, .queries = 80, .keys = 128, .is_causal = true,
                  .key_count = n, .query_count = std::min<int64_t>(n, 77)},
                 GetParam());
  expect_right({.queries = 80, .keys = 150, .mask = Mask::kFloat, .key_count = 100,
                .query_count = 33},
               GetParam());
}

TEST_P(GroupAttention, ParamsStartAtAnyAddress) {
  expect_right({.queries = 64, .keys = 70, .shift = 2}, GetParam());
  expect_right({.queries = 70, .keys = 64, .depth = 48, .width = 80, .is_causal = true, .shift = 8},
               GetParam());
}

}  // namespace
}  // namespace bm::test
