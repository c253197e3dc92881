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

/// Of Case::key_count: none.
constexpr int64_t kNoKeys = -1;

enum class Mask : uint8_t { kNone, kBool, kFloat };

struct Case {
  DType type = DType::kF16;
  int64_t heads = 2, shared_heads = 2, queries = 128, keys = 128, depth = 64, width = 64;
  bool is_causal = false;
  Mask mask = Mask::kNone;
  int64_t key_count = 0, query_count = 0;  ///< not 0: of these many, given at launch
  const char* card = "sm_80";
  uint32_t units = 2;
  uint64_t shift = 0;        ///< bytes between multiples of 256 and every buffer
  double spread = 1;         ///< of queries
  bool is_by_token = false;  ///< heads of a query, key or value side by side in memory
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
    const auto lines = [&](int64_t heads, int64_t count, int64_t width) {
      return c.is_by_token ? input({count, heads, width}, c.type)
                           : input({heads, count, width}, c.type);
    };
    q_ = lines(c.heads, c.queries, c.depth);
    k_ = lines(c.shared_heads, c.keys, c.depth);
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
      for (int64_t d = 0; d < c_.depth; ++d)
        score += at(q, line(head, c_.heads, query, c_.queries) * c_.depth + d) *
                 at(k, line(shared, c_.shared_heads, p, c_.keys) * c_.depth + d);
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
  const auto code = compiler::compile(kernel.ir, card_of(c), renderer, {.use_cache = false});
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
  expect_right({.heads = 1, .shared_heads = 1, .keys = 192, .depth = 128, .units = 1, .spread = 8},
               GetParam());
}

TEST_P(GroupAttention, AnyNumberOfQueriesAndKeys) {
  expect_right({.queries = 77, .keys = 101, .depth = 80, .width = 48}, GetParam());
  expect_right({.heads = 1,
                .shared_heads = 1,
                .queries = 150,
                .keys = 37,
                .depth = 16,
                .width = 112,
                .units = 1},
               GetParam());
}

TEST_P(GroupAttention, LaterKeysAreHidden) {
  expect_right({.queries = 200, .keys = 200, .is_causal = true}, GetParam());
  // Blocks of queries in the order 3 2 0 1 and 2 1 0.
  expect_right({.queries = 200, .keys = 200, .is_causal = true, .units = 4}, GetParam());
  expect_right({.heads = 3, .shared_heads = 3, .queries = 150, .keys = 150, .is_causal = true,
                .units = 5},
               GetParam());
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
  expect_right({.heads = 4,
                .shared_heads = 2,
                .queries = 66,
                .keys = 70,
                .is_causal = true,
                .is_by_token = true},
               GetParam());
}

TEST_P(GroupAttention, LengthsGivenAtLaunch) {
  for (const int64_t n : {1, 63, 64, 65, 128})
    expect_right({.heads = 1,
                  .shared_heads = 1,
                  .queries = 80,
                  .keys = 128,
                  .is_causal = true,
                  .key_count = n,
                  .query_count = std::min<int64_t>(n, 77)},
                 GetParam());
  expect_right({.queries = 80, .keys = 128, .key_count = kNoKeys}, GetParam());
  expect_right(
      {.queries = 80, .keys = 150, .mask = Mask::kFloat, .key_count = 100, .query_count = 33},
      GetParam());
}

TEST_P(GroupAttention, ParamsStartAtAnyAddress) {
  expect_right({.queries = 64, .keys = 70, .shift = 2}, GetParam());
  expect_right({.queries = 70, .keys = 64, .depth = 48, .width = 80, .is_causal = true, .shift = 8},
               GetParam());
}

// --- where it is taken --------------------------------------------------------------------------

size_t kernels_of(const Tensor& t) {
  const NodePtr root = t.node();
  return plan_fusion({&root, 1}).stored.size();
}

struct Inputs {
  DType type = DType::kF16;
  int64_t queries = 64, keys = 64, depth = 64, width = 64;
  const char* device = "NULL::sm_90";
  Tensor q() const { return Tensor::empty({2, queries, depth}, type, device); }
  Tensor k() const { return Tensor::empty({2, keys, depth}, type, device); }
  Tensor v() const { return Tensor::empty({2, keys, width}, type, device); }
  size_t kernels() const { return kernels_of(Tensor::attention(q(), k(), v())); }
};

TEST(GroupAttentionPlans, OneKernelWhereTilesFit) {
  for (const char* device : {"NULL::sm_80", "NULL::sm_86", "NULL::sm_90", "NULL::sm_120"})
    for (const DType t : {DType::kF16, DType::kBF16})
      EXPECT_EQ((Inputs{.type = t, .device = device}.kernels()), 1u) << device;
  EXPECT_EQ((Inputs{.queries = 16, .keys = 5, .depth = 16, .width = 128}.kernels()), 1u);
}

/// Elsewhere kernels are what they would be without it.
TEST(GroupAttentionPlans, SeveralKernelsElsewhere) {
  const size_t others = Inputs{.device = "NULL::sm_75"}.kernels();
  EXPECT_GT(others, 2u);
  EXPECT_GT((Inputs{.type = DType::kF32}.kernels()), 1u);
  for (const Inputs& i : {Inputs{.depth = 72}, Inputs{.depth = 144}, Inputs{.width = 40},
                          Inputs{.width = 256}, Inputs{.queries = 15}})
    EXPECT_EQ(i.kernels(), others) << i.depth << " " << i.width << " " << i.queries;
  const Inputs i;
  // Keys that lie the other way round, values that are computed.
  const Tensor keys = Tensor::empty({2, 64, 64}, DType::kF16, i.device).transpose(-2, -1);
  EXPECT_GE(kernels_of(Tensor::attention(i.q(), keys, i.v())), others);
  EXPECT_GE(kernels_of(Tensor::attention(i.q(), i.k(), i.v() * 2.0)), others);
  // Weights that the formula does not round.
  const Tensor scores = i.q().matmul(i.k().transpose(), DType::kF32) * 0.125;
  const Tensor weights = scores.softmax(-1);
  EXPECT_GT(kernels_of(weights.matmul(i.v().cast(DType::kF32))), 1u);
  EXPECT_EQ(kernels_of(weights.cast(DType::kF16).matmul(i.v())), 1u);
}

/// As the prompt of a language model does it: queries of a group side by side, keys in a cache.
TEST(GroupAttentionPlans, PromptsAtAnyPosition) {
  const ScopedSetting text("BM_NV_CODE", "ptx");
  constexpr int64_t kMost = 40, kGroup = 2, kHeads = 2, kWidth = 32, kRoom = 2 * kMost;
  const char* device = "NULL::sm_80";
  const Tensor q = Tensor::empty({kMost, kHeads, kGroup, kWidth}, DType::kF16, device),
               k = Tensor::empty({kHeads, kRoom, kWidth}, DType::kF16, device),
               v = Tensor::empty({kHeads, kRoom, kWidth}, DType::kF16, device);
  Var count("count", 1, kMost), position("position", 0, kMost);
  const SymInt end = SymInt(position) + SymInt(count);
  const auto rows = [&](const Tensor& t) {
    return t.shrink({{0, kHeads}, {0, end}, {0, kWidth}}).unsqueeze(1);
  };
  const Tensor grouped =
      q.shrink({{0, SymInt(count)}, {0, kHeads}, {0, kGroup}, {0, kWidth}}).permute({1, 2, 0, 3});
  Tensor scores = grouped.matmul(rows(k).transpose(), DType::kF32) * 0.25;
  const Tensor at =
      (Tensor::arange(count, DType::kI64, device) + Tensor::value_of(position, device))
          .unsqueeze(1);
  scores = (Tensor::arange(end, DType::kI64, device).unsqueeze(0) <= at).where(scores, -kInf);
  const Tensor mixed = scores.softmax(-1).cast(DType::kF16).matmul(rows(v));
  ASSERT_EQ(kernels_of(mixed), 1u);
  const NodePtr root = mixed.node();
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<double> normal;
  const LoweredKernel kernel =
      *lower(*root, nullptr, [&](const Node* n) { return n == root.get(); });
  const auto code = compiler::compile(kernel.ir, card_of({}), "PTX", {.use_cache = false});
  ASSERT_TRUE(code) << code.error().message;
  for (const auto& [n, from] : {std::pair<int64_t, int64_t>{kMost, 0}, {1, 5}, {33, 31}}) {
    count.set(n);
    position.set(from);
    Buffers buffers;
    std::vector<std::vector<double>> numbers(3);
    for (size_t i = 0; i < kernel.params.size(); ++i) {
      std::vector<std::byte>& bytes =
          buffers.emplace_back(static_cast<size_t>(kernel.ir.params[i].elements) * 2);
      for (size_t j = 0; j < bytes.size(); j += 2) put(DType::kF16, normal(random), &bytes[j]);
      const std::array<const Node*, 3> inputs{q.node().get(), k.node().get(), v.node().get()};
      for (size_t which = 0; which < 3; ++which)
        if (kernel.params[i] == inputs[which]) numbers[which] = values_of(DType::kF16, bytes);
    }
    std::vector<int64_t> vars;
    for (const Var& var : kernel.vars) vars.push_back(var.value());
    const auto done = run_on_ptx(*code, buffers, vars);
    ASSERT_TRUE(done) << done.error().message;
    const std::vector<double> got = values_of(DType::kF16, buffers[0]);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t g = 0; g < kGroup; ++g)
        for (int64_t i = 0; i < n; ++i) {
          std::vector<double> sums(kWidth);
          double total = 0;
          for (int64_t p = 0; p <= i + from; ++p) {
            double score = 0;
            for (int64_t d = 0; d < kWidth; ++d)
              score +=
                  numbers[0][static_cast<size_t>(((i * kHeads + h) * kGroup + g) * kWidth + d)] *
                  numbers[1][static_cast<size_t>((h * kRoom + p) * kWidth + d)];
            const double power = std::exp(score * 0.25);
            total += power;
            for (int64_t d = 0; d < kWidth; ++d)
              sums[static_cast<size_t>(d)] +=
                  power * numbers[2][static_cast<size_t>((h * kRoom + p) * kWidth + d)];
          }
          for (int64_t d = 0; d < kWidth; ++d)
            ASSERT_NEAR(got[static_cast<size_t>(((h * kGroup + g) * kMost + i) * kWidth + d)],
                        sums[static_cast<size_t>(d)] / total, 4e-3)
                << n << " queries from " << from << ", query " << i;
        }
  }
}

/// Long rows of scores in few groups would leave most of a card without work.
TEST(GroupAttentionPlans, FewGroupsAreForShortRows) {
  const auto is_taken = [](int64_t keys, uint32_t units) {
    const Case c{.heads = 1, .shared_heads = 1, .queries = 64, .keys = keys};
    return compiler::make_group_attention_schedule(Problem(c).kernel_of_all().ir,
                                                   compiler::target_info(card_of(c)), units)
        .has_value();
  };
  EXPECT_TRUE(is_taken(1024, 132));
  EXPECT_FALSE(is_taken(8192, 132));
  EXPECT_TRUE(is_taken(8192, 8));
}

// --- the same with a mistake ---------------------------------------------------------------------

struct Mistake {
  const char *from, *to;
  int which = 0;  ///< of several places
};

std::string replaced(std::string text, const Mistake& m) {
  size_t at = text.find(m.from);
  for (int i = 0; i < m.which && at != std::string::npos; ++i) at = text.find(m.from, at + 1);
  EXPECT_NE(at, std::string::npos) << m.from;
  if (at == std::string::npos) return text;
  return text.replace(at, std::strlen(m.from), m.to);
}

/// Whether the interpreter or the result shows it.
bool is_noticed(const Mistake& m) {
  const ScopedSetting setting("BM_NV_CODE", "ptx");
  const Case c{.queries = 70, .keys = 200, .is_causal = true};
  Problem problem(c);
  const LoweredKernel kernel = problem.kernel();
  auto code = compiler::compile(kernel.ir, card_of(c), "PTX", {.use_cache = false});
  EXPECT_TRUE(code);
  const std::string text = replaced(reinterpret_cast<const char*>(code->image.data()), m);
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  code->image.assign(bytes.begin(), bytes.end());
  std::mt19937_64 random(7);
  Buffers buffers = problem.fill(kernel, random);
  const auto done = run_on_ptx(*code, buffers, {});
  return !done || problem.worst_excess(buffers) > 0 || done->traffic.shared_conflicts != 0;
}

TEST(GroupAttentionPlans, MistakesAreNoticed) {
  ASSERT_FALSE(is_noticed({"ldmatrix", "ldmatrix"}));
  for (const Mistake& m :
       {Mistake{"cp.async.wait_group 0;", "", 1}, Mistake{"bar.sync 0;", ""},
        Mistake{"bar.sync 0;", "", 1}, Mistake{"cp.async.commit_group;", "", 1},
        Mistake{".trans", ""}, Mistake{"1, 31, -1", "4, 31, -1"}, Mistake{"2, 31, -1", "1, 31, -1"},
        Mistake{"xor.b32", "and.b32"}, Mistake{"cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"}})
    EXPECT_TRUE(is_noticed(m)) << m.from << " → " << m.to;
}

/// docs/nvidia-compiler.md has them.
TEST(GroupAttentionPlans, ScoresTakeFewInstructions) {
  for (const int64_t width : {64, 128})
    for (const char* renderer : {"PTX", "NVRTC"}) {
      if (renderer == std::string_view("NVRTC") && !compiler::nvrtc_version()) continue;
      const Case c{
          .heads = 1, .shared_heads = 1, .keys = 512, .depth = width, .width = width, .units = 1};
      const PtxRun run = expect_right(c, renderer);
      const auto scores = static_cast<double>(c.queries * c.keys);
      const double instructions = static_cast<double>(run.lane_instructions) / scores;
      const double bytes = static_cast<double>(run.traffic.global_load_bytes) / scores;
      std::printf("%s, %ld elements: %.1f instructions, %.2f bytes loaded for each score\n",
                  renderer, static_cast<long>(width), instructions, bytes);
      EXPECT_LT(instructions, 60);
    }
}

// --- what it is made of -------------------------------------------------------------------------

using compiler::Builder;
using compiler::Program;
using compiler::ValueId;

constexpr uint32_t kItems = 64;

/// p0[i] = what `value` makes of p1[i], by groups of 64.
template <class F>
Program program_of(DType in, DType out, int64_t count, const hal::Arch& arch, F&& value) {
  Program p;
  p.name = "one";
  p.params = {{out, count, false, true}, {in, count, true, false}};
  p.block = kItems;
  Builder b(p, compiler::target_info(arch));
  const Builder::Loop groups = b.open_loop(p.root, compiler::LoopKind::kGroup);
  const ValueId at = b.add(b.mul(groups.index, b.index(kItems)), b.item());
  const ValueId v = b.load(1, in, 1, at);
  b.store(groups.body, 0, at, value(b, groups.body, v));
  b.close_groups(groups, 0, compiler::kNone);
  return p;
}

std::vector<std::byte> run_program(const Program& p, std::vector<std::byte> in,
                                   const hal::Arch& arch) {
  const Status verified = compiler::verify(p);
  EXPECT_TRUE(verified) << (verified ? "" : verified.error().message);
  const std::string text = compiler::render_ptx(p, compiler::target_info(arch));
  hal::CodeObject code;
  code.entry = p.name;
  code.block = {p.block, 1, 1};
  code.grid[0].constant = p.params[0].elements / kItems;
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  code.image.assign(bytes.begin(), bytes.end());
  const auto size = static_cast<size_t>(p.params[0].elements * item_size(p.params[0].dtype));
  Buffers buffers{std::vector<std::byte>(size), std::move(in)};
  const auto done = run_on_ptx(code, buffers, {});
  EXPECT_TRUE(done) << (done ? "" : done.error().message) << text;
  return buffers[0];
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST(GroupAttentionParts, PowersOfDistancesHaveTheBitsOfAllPowers) {
  const hal::Arch arch = card_of({});
  std::mt19937_64 random(std::random_device{}());
  std::uniform_real_distribution<float> far(-170, 0), near(-2, 0);
  std::vector<float> x{0.0F, -0.0F, -HUGE_VALF, NAN, -160.0F, -149.5F, -126.0F, -127.0F, -0.5F};
  while (x.size() < 256 * kItems) x.push_back(x.size() % 4 == 0 ? near(random) : far(random));
  const auto count = static_cast<int64_t>(x.size());
  const auto run = [&](bool is_short) {
    const auto power = [&](Builder& b, compiler::BlockId, ValueId v) {
      return is_short ? b.exp2_of_distance(v, 1) : b.alu(ir::Op::kExp2, DType::kF32, {&v, 1});
    };
    return run_program(program_of(DType::kF32, DType::kF32, count, arch, power), bytes_of(x), arch);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(GroupAttentionParts, WorkItemsOfASubGroupExchangeNumbers) {
  const hal::Arch arch = card_of({});
  std::vector<uint32_t> x(2 * kItems);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint32_t>(1000 + i);
  for (const uint32_t with : {1U, 2U, 16U, 31U}) {
    const auto exchange = [&](Builder& b, compiler::BlockId block, ValueId v) {
      return b.shuffle(block, v, with);
    };
    const Program p =
        program_of(DType::kU32, DType::kU32, static_cast<int64_t>(x.size()), arch, exchange);
    std::vector<uint32_t> want(x.size());
    for (size_t i = 0; i < x.size(); ++i) want[i] = x[i ^ with];
    EXPECT_EQ(run_program(p, bytes_of(x), arch), bytes_of(want)) << with;
  }
}

TEST(GroupAttentionParts, TwoNumbersBecomeAWord) {
  const hal::Arch arch = card_of({});
  std::vector<float> x(kItems);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.37F - 3;
  for (const DType half : {DType::kF16, DType::kBF16}) {
    const auto word = [&](Builder& b, compiler::BlockId, ValueId v) {
      return b.two_halves(v, b.neg(v), half);
    };
    const Program p = program_of(DType::kF32, DType::kU32, kItems, arch, word);
    std::vector<uint32_t> want;
    for (const float f : x) {
      const auto bits = [&](float v) -> uint32_t {
        return half == DType::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
      };
      want.push_back(bits(f) | bits(-f) << 16);
    }
    EXPECT_EQ(run_program(p, bytes_of(x), arch), bytes_of(want));
  }
}

/// Where only some work-items come to an exchange.
TEST(GroupAttentionParts, ExchangesThatSomeDoNotReachAreRefused) {
  const hal::Arch arch = card_of({});
  const auto exchange = [&](Builder& b, compiler::BlockId block, ValueId v) {
    const compiler::BlockId inside = b.open_block(block);
    b.shuffle(inside, v, 1);
    b.close_if(inside, b.lt(b.item(), b.index(7)));
    return v;
  };
  EXPECT_FALSE(compiler::verify(program_of(DType::kF32, DType::kF32, kItems, arch, exchange)));
}

}  // namespace
}  // namespace bm::test
