// One place knows how nodes are rebuilt: copies of kernels, with any node there is, are the same.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <unordered_map>

#include "compiler/ir/kernel.h"

namespace bm::ir {
namespace {

/// A value of every dtype that an operation takes, which no rule replaces.
const Node* any_value(Graph& g, DType t, int param) { return g.load(param, t, g.index(0)); }

/// A kernel whose stores use every operation.
KernelIr everything() {
  KernelIr k;
  k.name = "everything";
  k.graph = std::make_unique<Graph>();
  Graph& g = *k.graph;
  k.vars = {{"n", 2, 9}};
  k.params = {{DType::kF32, 9, false, true},
              {DType::kI64, 9, false, true},
              {DType::kF32, 9, true, false},
              {DType::kI64, 9, true, false},
              {DType::kBool, 9, true, false}};
  const Node* i = g.range(g.var(0, 2, 9));
  const Node* f = g.load(0, DType::kF32, i, g.less(i, g.index(7)));
  const Node* n = g.load(1, DType::kI64, i);
  const Node *r = g.range(g.index(5)), *q = g.range(g.index(6));
  k.ranges = {i};
  const auto put = [&](const Node* value) {
    const int param = is_float(value->dtype) ? 2 : value->dtype == DType::kBool ? 4 : 3;
    k.stores.push_back({param, i, value, nullptr});
  };
  for (const Op op : {Op::kNeg, Op::kRecip, Op::kSqrt, Op::kExp2, Op::kLog2, Op::kSin, Op::kTrunc})
    put(g.unary(op, f));
  put(g.unary(Op::kNot, n));
  put(g.cast(g.cast(f, DType::kI16), DType::kF32));
  put(g.cast(g.bitcast(f, DType::kU32), DType::kI64));
  for (int op = static_cast<int>(Op::kAdd); op <= static_cast<int>(Op::kNe); ++op)
    put(g.binary(static_cast<Op>(op), n, any_value(g, DType::kI64, 1)));
  for (const Op op : {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMod, Op::kMax, Op::kMin})
    put(g.binary(op, f, any_value(g, DType::kF32, 0)));
  put(g.select(g.less(n, g.index(3)), f, g.constant_f(DType::kF32, 0.1)));
  put(g.fma(f, f, any_value(g, DType::kF32, 0)));
  put(g.reduce(ReduceOp::kMax, g.load(0, DType::kF32, r), std::array{r}));
  put(g.scan(ReduceOp::kProd, f, i));
  put(g.top_k(g.load(1, DType::kI64, q), q, g.mod(i, 3)));
  return k;
}

std::vector<const Node*> all_nodes(const KernelIr& k) {
  std::vector<const Node*> roots = k.ranges;
  for (const Store& s : k.stores) roots.insert(roots.end(), {s.index, s.value});
  return topological(roots);
}

TEST(Remake, CopiesOfAllNodesAreTheSame) {
  KernelIr k = everything();
  std::set<Op> seen;
  auto graph = std::make_unique<Graph>();
  std::unordered_map<const Node*, const Node*> copies;
  for (const Node* n : all_nodes(k)) {
    std::vector<const Node*> sources;
    for (const Node* s : n->src) sources.push_back(copies.at(s));
    const Node* copy = graph->remake(*n, sources);
    EXPECT_EQ(copy->op, n->op) << op_name(n->op);
    EXPECT_EQ(copy->dtype, n->dtype) << op_name(n->op);
    EXPECT_EQ(copy->lo, n->lo) << op_name(n->op);
    EXPECT_EQ(copy->hi, n->hi) << op_name(n->op);
    copies[n] = copy;
    seen.insert(n->op);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kNumOps));
  const std::string before = serialize(k);
  for (const Node*& r : k.ranges) r = copies.at(r);
  for (Store& s : k.stores) s = {s.param, copies.at(s.index), copies.at(s.value), nullptr};
  EXPECT_EQ(serialize(k), before);
  k.stores.pop_back();  // an order and a scan do not go together
  const auto read = deserialize(serialize(k));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(serialize(*read), serialize(k));
}

TEST(Remake, OtherSourcesAreSimplifiedAsIfMadeAnew) {
  Graph g;
  const Node* i = g.range(g.index(8));
  const Node* sum = g.add(g.mul(i, 3), 4);
  EXPECT_EQ(g.substitute(sum, std::array{i}, std::array{g.index(2)}), g.index(10));
  const Node* scanned = g.scan(ReduceOp::kSum, g.load(0, DType::kF32, g.index(1)), i);
  EXPECT_EQ(g.substitute(scanned, std::array{i}, std::array{g.index(0)}), scanned->src[0]);
}

}  // namespace
}  // namespace bm::ir
