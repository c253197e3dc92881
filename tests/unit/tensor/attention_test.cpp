// Attention in one kernel, against sums in float64 with fresh random input.
#include "compiler/compile.h"
#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

struct Sizes {
  int64_t heads, shared_heads, queries, positions, width;
};

class Attention : public OnDevice {
 protected:
  std::mt19937 random{std::random_device{}()};

  std::vector<double> values(int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<double> v(static_cast<size_t>(n));
    for (double& x : v) x = static_cast<double>(normal(random));
    return v;
  }

  /// `bias`: added to the scores, [queries, positions]. Positions at `length` and after do not
  /// exist.
  static std::vector<double> expected(const Sizes& s, const std::vector<double>& q,
                                      const std::vector<double>& k, const std::vector<double>& v,
                                      const std::vector<double>& bias, int64_t length) {
    const auto at = [](const std::vector<double>& x, int64_t i) {
      return x[static_cast<size_t>(i)];
    };
    std::vector<double> out;
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.queries; ++i) {
        const int64_t from = h * s.shared_heads / s.heads * s.positions * s.width;
        std::vector<double> weights;
        double most = -kInf, sum = 0;
        for (int64_t p = 0; p < length; ++p) {
          double score = 0;
          for (int64_t d = 0; d < s.width; ++d)
            score += at(q, (h * s.queries + i) * s.width + d) * at(k, from + p * s.width + d);
          weights.push_back(score / std::sqrt(static_cast<double>(s.width)) +
                            at(bias, i * s.positions + p));
          most = std::max(most, weights.back());
        }
        for (double& w : weights) sum += w = most == -kInf ? 0 : std::exp(w - most);
        for (int64_t d = 0; d < s.width; ++d) {
          double mixed = 0;
          for (int64_t p = 0; p < length; ++p)
            mixed += weights[static_cast<size_t>(p)] * at(v, from + p * s.width + d);
          out.push_back(sum == 0 ? 0 : mixed / sum);
        }
      }
    return out;
  }
};
BM_ON_DEVICES(Attention);

TEST_P(Attention, FewQueriesOfGroupedHeadsWithMasksThatHideEverything) {
  std::vector<Sizes> all{{4, 2, 3, 37, 16}};
  // Lengths equal to widths and to numbers of queries must not be taken for each other.
  if (device() == "CPU")
    all = {{4, 2, 3, 37, 16}, {1, 1, 1, 1, 8},  {8, 8, 1, 130, 128}, {6, 2, 5, 64, 64},
           {2, 1, 8, 8, 8},   {3, 3, 7, 19, 5}, {2, 2, 1, 500, 80}};
  for (const Sizes& s : all) {
    const auto q = values(s.heads * s.queries * s.width),
               k = values(s.shared_heads * s.positions * s.width),
               v = values(s.shared_heads * s.positions * s.width);
    std::vector<double> bias(static_cast<size_t>(s.queries * s.positions));
    std::uniform_real_distribution<double> uniform;
    for (size_t i = 0; i < bias.size(); ++i)
      if (uniform(random) < 0.3 || i < static_cast<size_t>(s.positions)) bias[i] = -kInf;
    const Tensor query = f32(q, {s.heads, s.queries, s.width}),
                 key = f32(k, {s.shared_heads, s.positions, s.width}),
                 value = f32(v, {s.shared_heads, s.positions, s.width}),
                 mask = f32(bias, {s.queries, s.positions});
    const Shape shape{s.heads, s.queries, s.width};
    EXPECT_TRUE(has_values(Tensor::attention(query, key, value, mask), shape,
                           expected(s, q, k, v, bias, s.positions), {2e-6, 1e-5}))
        << s.positions << " positions";
    if (s.queries > s.positions) continue;
    std::fill(bias.begin(), bias.end(), 0.0);
    for (int64_t i = 0; i < s.queries; ++i)
      for (int64_t p = i + 1; p < s.positions; ++p)
        bias[static_cast<size_t>(i * s.positions + p)] = -kInf;
    EXPECT_TRUE(has_values(Tensor::attention(query, key, value, {}, true), shape,
                           expected(s, q, k, v, bias, s.positions), {2e-6, 1e-5}))
        << s.positions << " positions, causal";
  }
}

TEST_P(Attention, SymbolicLengths) {
  const Sizes s{4, 2, 1, 300, 32};
  const auto q = values(s.heads * s.width), k = values(s.shared_heads * s.positions * s.width),
             v = values(s.shared_heads * s.positions * s.width);
  const std::vector<double> bias(static_cast<size_t>(s.positions));
  const Tensor query = f32(q, {s.heads, 1, s.width}),
               keys = f32(k, {s.shared_heads, s.positions, s.width}).realize(),
               all = f32(v, {s.shared_heads, s.positions, s.width}).realize();
  Var length("length", 1, s.positions);
  for (const int64_t n : {1, 7, 16, 129, 300}) {
    length.set(n);
    const auto rows = [&](const Tensor& t) {
      return t.shrink({{0, s.shared_heads}, {0, SymInt(length)}, {0, s.width}});
    };
    EXPECT_TRUE(has_values(Tensor::attention(query, rows(keys), rows(all)), {s.heads, 1, s.width},
                           expected(s, q, k, v, bias, n), {2e-6, 1e-5}))
        << n;
  }
}

TEST_P(Attention, ManyQueriesInTiles) {
  std::vector<Sizes> all{{2, 1, 19, 37, 8}};
  if (device() == "CPU")
    all = {{4, 2, 33, 150, 16}, {1, 1, 100, 100, 64}, {6, 3, 17, 64, 80}, {2, 2, 300, 300, 5}};
  for (const Sizes& s : all) {
    const auto q = values(s.heads * s.queries * s.width),
               k = values(s.shared_heads * s.positions * s.width),
               v = values(s.shared_heads * s.positions * s.width);
    const Tensor query = f32(q, {s.heads, s.queries, s.width}),
                 key = f32(k, {s.shared_heads, s.positions, s.width}),
                 value = f32(v, {s.shared_heads, s.positions, s.width});
    const Shape shape{s.heads, s.queries, s.width};
    std::vector<double> bias(static_cast<size_t>(s.queries * s.positions));
    EXPECT_TRUE(has_values(Tensor::attention(query, key, value), shape,
                           expected(s, q, k, v, bias, s.positions), {2e-6, 1e-5}));
    std::uniform_real_distribution<double> uniform(-3, 3);
    for (size_t i = 0; i < bias.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / s.positions,
                 position = static_cast<int64_t>(i) % s.positions;
      bias[i] = position > row || row == 3
                    ? -kInf
                    : static_cast<double>(static_cast<float>(uniform(random)));
    }
    const Tensor mask = f32(bias, {s.queries, s.positions});
    for (const bool is_causal : {false, true})
      EXPECT_TRUE(has_values(Tensor::attention(query, key, value, mask, is_causal), shape,
                             expected(s, q, k, v, bias, s.positions), {2e-6, 1e-5}))
          << s.positions << " positions";
    const Tensor half = Tensor::attention(query.cast(DType::kF16), key.cast(DType::kF16),
                                          value.cast(DType::kF16), mask);
    EXPECT_TRUE(has_values(half.cast(DType::kF32), shape, expected(s, q, k, v, bias, s.positions),
                           {2e-2, 2e-2}));
  }
}

/// As the prompt of a language model does it: queries of a group side by side, keys in a cache.
TEST_P(Attention, PromptsOfAnyLengthAtAnyPosition) {
  const int64_t most = device() == "CPU" ? 150 : 20, group = 2, width = 16;
  const Sizes s{2, 2, group * most, 2 * most, width};
  const auto q = values(most * 2 * group * width), k = values(2 * 2 * most * width),
             v = values(2 * 2 * most * width);
  const Tensor queries = f32(q, {most, 2, group, width}).realize(),
               keys = f32(k, {2, 2 * most, width}).realize(),
               all = f32(v, {2, 2 * most, width}).realize();
  Var count("count", 1, most), position("position", 0, most);
  for (const auto& [n, from] : {std::pair<int64_t, int64_t>{most, 0},
                                {1, 5},
                                {most / 2 + 1, 3},
                                {17, most},
                                {most, most}}) {
    count.set(n);
    position.set(from);
    const SymInt end = SymInt(position) + SymInt(count);
    const auto rows = [&](const Tensor& t) {
      return t.shrink({{0, 2}, {0, end}, {0, width}}).unsqueeze(1);
    };
    const Tensor grouped =
        queries.shrink({{0, SymInt(count)}, {0, 2}, {0, group}, {0, width}}).permute({1, 2, 0, 3});
    Tensor scores = grouped.matmul(rows(keys).transpose()) * 0.25;
    const Tensor query_at =
        (Tensor::arange(count, DType::kI64, device()) + Tensor::value_of(position, device()))
            .unsqueeze(1);
    scores =
        (Tensor::arange(end, DType::kI64, device()).unsqueeze(0) <= query_at).where(scores, -kInf);
    const Tensor mixed = scores.softmax(-1).matmul(rows(all));
    // The same in the order that `expected` knows: heads, then group and query as one.
    std::vector<double> ordered, bias;
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t g = 0; g < group; ++g)
        for (int64_t i = 0; i < n; ++i)
          for (int64_t d = 0; d < width; ++d)
            ordered.push_back(q[static_cast<size_t>(((i * 2 + h) * group + g) * width + d)]);
    for (int64_t g = 0; g < group; ++g)
      for (int64_t i = 0; i < n; ++i)
        for (int64_t p = 0; p < s.positions; ++p) bias.push_back(p > i + from ? -kInf : 0);
    Sizes now = s;
    now.queries = group * n;
    EXPECT_TRUE(has_values(mixed, {2, group, SymInt(count), width},
                           expected(now, ordered, k, v, bias, n + from), {2e-6, 1e-5}))
        << n << " queries from " << from;
  }
}

TEST(AttentionKernels, AnyNumberOfQueriesTakesOneKernel) {
  const auto kernels = [](int64_t queries) {
    const auto input = [](const Shape& s) { return Tensor::empty(s, DType::kF32, "CPU"); };
    const NodePtr root = Tensor::attention(input({8, queries, 64}), input({2, 300, 64}),
                                           input({2, 300, 64}), {}, true)
                             .node();
    return plan_fusion({&root, 1}).stored.size();
  };
  for (const int64_t n : {1, 8, 9, 100}) EXPECT_EQ(kernels(n), 1u) << n;
}

constexpr const char* kCard = "NULL::sm_80";

Tensor card_input(const Shape& shape, DType dtype) { return Tensor::empty(shape, dtype, kCard); }

Tensor card_attention(int64_t queries, DType dtype) {
  const Tensor keys = card_input({2, 300, 64}, dtype);
  return Tensor::attention(card_input({8, queries, 64}, dtype), keys, keys);
}

size_t kernels(const std::vector<Tensor>& roots) {
  std::vector<NodePtr> nodes;
  for (const Tensor& t : roots) nodes.push_back(t.node());
  return plan_fusion(nodes).stored.size();
}

/// On cards the compiler says which formulas, types and sizes it has tiles for.
TEST(AttentionKernels, CardsTakeOneKernelWhereTheCompilerHasTiles) {
  EXPECT_EQ(kernels({card_attention(100, DType::kF16)}), 1u);
  EXPECT_EQ(kernels({card_attention(100, DType::kBF16)}), 1u);
  EXPECT_GT(kernels({card_attention(100, DType::kF32)}), 1u);
  EXPECT_GT(kernels({card_attention(10, DType::kF16)}), 1u);  // a tile has 16 queries
}

/// What is refused to one result changes nothing for the others of the graph, in either order.
TEST(AttentionKernels, ResultsOfOneGraphAreJudgedOneByOne) {
  const Tensor good = card_attention(100, DType::kF16), bad = card_attention(100, DType::kF32);
  const size_t alone = kernels({bad});
  EXPECT_EQ(kernels({good, bad}), alone + 1);
  EXPECT_EQ(kernels({bad, good}), alone + 1);
  // One after the other: queries of the second are results of the first.
  const Tensor keys = card_input({2, 300, 64}, DType::kF16);
  const Tensor then_good = Tensor::attention(bad.cast(DType::kF16).contiguous(), keys, keys);
  EXPECT_EQ(kernels({then_good}), alone + 1);
  const Tensor wide = card_input({2, 300, 64}, DType::kF32);
  EXPECT_EQ(kernels({Tensor::attention(good.cast(DType::kF32), wide, wide)}), alone + 1);
}

/// A mask that is computed where it is added, until another user of it wants it stored.
TEST(AttentionKernels, OperandsStoredForOthersLeaveOneKernel) {
  const Tensor q = card_input({8, 100, 64}, DType::kF16), k = card_input({8, 300, 64}, DType::kF16);
  const Tensor a = card_input({8, 100, 300}, DType::kF32),
               b = card_input({8, 100, 300}, DType::kF32);
  const Tensor mask = a * 0.5 + b * 2;
  const Tensor scores = q.cast(DType::kF32).matmul(k.cast(DType::kF32).transpose()) * 0.125 + mask;
  const Tensor weights = scores.softmax(-1).cast(DType::kF16).cast(DType::kF32);
  const Tensor result = weights.matmul(k.cast(DType::kF32));
  EXPECT_EQ(kernels({result}), 1u);
  // Every element of the mask is used 64 times.
  const Tensor other = mask.unsqueeze(3).expand({8, 100, 300, 64}) *
                       card_input({1, 1, 1, 64}, DType::kF32).expand({8, 100, 300, 64});
  const std::vector<NodePtr> nodes{result.node(), other.node()};
  const FusionPlan plan = plan_fusion(nodes);
  EXPECT_EQ(plan.stored.size(), 3u);
  const auto kernel =
      lower(*nodes[0], nullptr, [&](const Node* n) { return plan.stored.contains(n); });
  ASSERT_TRUE(kernel);
  runtime::Device& device = *nodes[0]->device;
  EXPECT_TRUE(compiler::would_fuse(kernel->ir, device.hal().arch(), device.renderer()));
}

}  // namespace
}  // namespace bm::test
