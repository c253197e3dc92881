// Index arithmetic: whatever the graph simplifies must keep its value for every iteration.
#include <gtest/gtest.h>

#include <random>

#include "compiler/ir/linear.h"
#include "compiler/ir/node.h"

namespace bm::ir {
namespace {

/// Unsimplified expression beside the graph's: a small interpreter of its own.
struct Expr {
  enum Kind { kRange, kConst, kAdd, kSub, kMul, kDiv, kMod, kMin, kMax } kind = kConst;
  int64_t value = 0;
  int a = -1, b = -1;
};

struct Both {
  std::vector<Expr> tree;
  std::vector<const Node*> nodes;
};

int64_t evaluate(const std::vector<Expr>& t, int i, const std::vector<int64_t>& at) {
  const Expr& e = t[static_cast<size_t>(i)];
  const auto l = [&] { return evaluate(t, e.a, at); };
  const auto r = [&] { return evaluate(t, e.b, at); };
  switch (e.kind) {
    case Expr::kRange: return at[static_cast<size_t>(e.value)];
    case Expr::kConst: return e.value;
    case Expr::kAdd: return l() + r();
    case Expr::kSub: return l() - r();
    case Expr::kMul: return l() * r();
    case Expr::kDiv: return r() == 0 ? 0 : l() / r();
    case Expr::kMod: return r() == 0 ? 0 : l() % r();
    case Expr::kMin: return std::min(l(), r());
    case Expr::kMax: return std::max(l(), r());
  }
  return 0;
}

int64_t evaluate(const Node* n, const std::vector<const Node*>& ranges,
                 const std::vector<int64_t>& at) {
  for (size_t i = 0; i < ranges.size(); ++i)
    if (n == ranges[i]) return at[i];
  if (n->is_const()) return n->imm;
  std::vector<Scalar> args;
  for (const Node* s : n->src) args.push_back({s->dtype, evaluate(s, ranges, at), 0});
  return fold(n->op, n->dtype, args).i;
}

TEST(Index, SimplifiedExpressionsKeepTheirValue) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
    };
    Graph g;
    std::vector<int64_t> extents;
    std::vector<const Node*> ranges;
    Both both;
    for (int i = 0; i < 3; ++i) {
      extents.push_back(2 + pick(6));
      ranges.push_back(g.range(g.index(extents.back())));
      both.tree.push_back({Expr::kRange, i, -1, -1});
      both.nodes.push_back(ranges.back());
    }
    for (int step = 0; step < 12; ++step) {
      const int a = static_cast<int>(pick(static_cast<int64_t>(both.tree.size())));
      Expr e{static_cast<Expr::Kind>(Expr::kAdd + pick(7)), 0, a, -1};
      const bool is_constant =
          e.kind == Expr::kDiv || e.kind == Expr::kMod || e.kind == Expr::kMul || pick(2) == 0;
      if (is_constant) {
        const int64_t low = e.kind == Expr::kDiv || e.kind == Expr::kMod ? 1 : -6;
        both.tree.push_back({Expr::kConst, low + pick(12), -1, -1});
        both.nodes.push_back(g.index(both.tree.back().value));
        e.b = static_cast<int>(both.tree.size()) - 1;
      } else {
        e.b = static_cast<int>(pick(static_cast<int64_t>(both.tree.size())));
      }
      constexpr Op kOps[] = {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMod, Op::kMin, Op::kMax};
      const Node* n = g.binary(kOps[e.kind - Expr::kAdd], both.nodes[static_cast<size_t>(e.a)],
                               both.nodes[static_cast<size_t>(e.b)]);
      both.tree.push_back(e);
      both.nodes.push_back(n);
    }
    const int root = static_cast<int>(both.tree.size()) - 1;
    std::vector<int64_t> at(3);
    for (at[0] = 0; at[0] < extents[0]; ++at[0])
      for (at[1] = 0; at[1] < extents[1]; ++at[1])
        for (at[2] = 0; at[2] < extents[2]; ++at[2]) {
          const Node* n = both.nodes[static_cast<size_t>(root)];
          const int64_t want = evaluate(both.tree, root, at), got = evaluate(n, ranges, at);
          ASSERT_EQ(got, want) << "seed " << seed << " at " << at[0] << ' ' << at[1] << ' '
                               << at[2];
          ASSERT_LE(n->lo, got) << "seed " << seed;
          ASSERT_GE(n->hi, got) << "seed " << seed;
          const Linear l = linear(n);
          ASSERT_LE(l.lower(), got) << "seed " << seed;
          ASSERT_GE(l.upper(), got) << "seed " << seed;
        }
  }
}

TEST(Index, BoundsHoldOverVariableExtents) {
  constexpr int64_t kMost = 5;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t from, int64_t to) {
      return from + static_cast<int64_t>(random() % static_cast<uint32_t>(to - from + 1));
    };
    Graph g;
    const Node* n = g.var(0, 1, kMost);
    const int64_t times[] = {pick(1, 4), pick(1, 4)}, more[] = {pick(0, 3), pick(0, 3)};
    std::vector<const Node*> ranges;
    for (int i = 0; i < 2; ++i)
      ranges.push_back(g.range(g.add(g.mul(n, times[i]), g.index(more[i]))));
    const auto quotient = [&](const Node* a, const Node* b) {
      return g.div(g.add(g.add(g.mul(a, pick(1, 4)), g.mul(b, pick(0, 4))), g.index(pick(0, 6))),
                   pick(1, 4));
    };
    const Node* q = quotient(ranges[0], ranges[1]);
    const Node* x = g.sub(g.add(g.mul(n, pick(-4, 4)), g.index(pick(-3, 3))),
                          g.mul(pick(0, 1) == 0 ? q : quotient(q, ranges[1]), pick(-3, 3)));
    const Linear l = linear(x);
    ranges.push_back(n);
    std::vector<int64_t> at(3);
    for (at[2] = 1; at[2] <= kMost; ++at[2])
      for (at[0] = 0; at[0] < times[0] * at[2] + more[0]; ++at[0])
        for (at[1] = 0; at[1] < times[1] * at[2] + more[1]; ++at[1]) {
          const int64_t got = evaluate(x, ranges, at);
          ASSERT_LE(l.lower(), got) << "seed " << seed;
          ASSERT_GE(l.upper(), got) << "seed " << seed;
        }
  }
}

TEST(Index, QuotientsOfVariableExtentsAreBelowThem) {
  Graph g;
  const Node* n = g.var(0, 1, 9);
  const Node* i = g.range(g.mul(n, 2));
  const Linear l = linear(g.sub(g.sub(n, g.index(1)), g.div(i, 2)));
  EXPECT_EQ(l.lower(), 0);
  EXPECT_EQ(l.upper(), 8);
}

TEST(Index, FlatteningAndUnflatteningCancels) {
  Graph g;
  const Node* i = g.range(g.index(6));
  const Node* j = g.range(g.index(35));
  const Node* flat = g.add(g.mul(i, 35), j);
  EXPECT_EQ(g.div(flat, 35), i);
  EXPECT_EQ(g.mod(flat, 35), j);
  EXPECT_EQ(g.mod(g.div(flat, 5), 7), g.div(j, 5));
}

TEST(Index, CoefficientsBeyondTheDivisorAreTakenApart) {
  Graph g;
  const Node* x = g.range(g.index(56));
  const Node* k = g.range(g.index(3));
  // Windows of three in rows of 58, as convolutions make them.
  const Node* window = g.add(x, g.mul(k, 59));
  EXPECT_EQ(g.mod(window, 58), g.add(x, k));
  EXPECT_EQ(g.div(window, 58), k);
  EXPECT_EQ(g.mod(g.sub(g.index(5), k), 10), g.sub(g.index(5), k)) << "what was below stays";
  const Node* wide = g.range(g.index(57));
  EXPECT_EQ(g.mod(g.add(wide, g.mul(k, 59)), 58)->op, Op::kMod) << "56 + 2 is not below 58";
}

TEST(Index, DigitsOfAnIndexRecombine) {
  Graph g;
  const Node* i = g.range(g.index(6 * 7 * 8));
  const Node* high = g.div(i, 56);
  const Node* middle = g.mod(g.div(i, 8), 7);
  const Node* low = g.mod(i, 8);
  EXPECT_EQ(g.add(g.add(g.mul(high, 56), g.mul(middle, 8)), low), i);
}

TEST(Index, ARangeIsBelowItsSymbolicExtent) {
  Graph g;
  const Node* n = g.var(0, 1, 64);
  const Node* p = g.var(1, 0, 100);
  const Node* i = g.range(g.add(n, p));
  EXPECT_TRUE(g.less(i, g.add(p, n))->is_const(1));
  EXPECT_FALSE(g.less(i, g.add(p, 1))->is_const());
  EXPECT_TRUE(g.less(g.add(i, 1), g.index(0))->is_const(0));
}

TEST(Index, EqualExpressionsAreOneNode) {
  Graph g;
  const Node* i = g.range(g.index(10));
  const Node* j = g.range(g.index(10));
  EXPECT_EQ(g.add(i, j), g.add(j, i));
  EXPECT_EQ(g.add(g.mul(i, 3), g.mul(j, 2)), g.add(g.mul(j, 2), g.mul(i, 3)));
  EXPECT_EQ(g.sub(g.add(i, j), j), i);
}

TEST(Index, StrideOfARangeIsItsCoefficient) {
  Graph g;
  const Node* i = g.range(g.index(10));
  const Node* j = g.range(g.index(10));
  int64_t stride = 0;
  EXPECT_TRUE(affine_stride(g.add(g.mul(i, 12), g.mul(j, 3)), j, &stride));
  EXPECT_EQ(stride, 3);
  EXPECT_TRUE(affine_stride(i, j, &stride));
  EXPECT_EQ(stride, 0);
  EXPECT_FALSE(affine_stride(g.mod(j, 4), j, &stride));
}

}  // namespace
}  // namespace bm::ir
