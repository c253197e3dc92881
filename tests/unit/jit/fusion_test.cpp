// How many kernels a computation becomes, and that odd index paths still give the right values.
#include <gtest/gtest.h>

#include "tensor/fusion.h"
#include "tensor/lower.h"
#include "tensor/primitives.h"
#include "tensor/tensor.h"

namespace bm {
namespace {

Tensor input(const Shape& shape) { return Tensor::empty(shape, DType::kF32, "CPU"); }
Tensor sum(const Tensor& t, const Axes& axes) { return reduce(ir::ReduceOp::kSum, t, axes); }

size_t kernels(const Tensor& t) {
  const NodePtr root = t.node();
  return plan_fusion({&root, 1}).stored.size();
}

TEST(Fusion, AnElementwiseChainIsOneKernel) {
  const Tensor x = input({100}), y = input({100});
  EXPECT_EQ(kernels(((x + y) * x - 1) * 2), 1u);
}

TEST(Fusion, WorkBeforeAndAfterAReductionJoinsIt) {
  const Tensor x = input({8, 100});
  EXPECT_EQ(kernels(alu(ir::Op::kSqrt, sum(x * x, {1}) * 0.01 + 1)), 1u);
}

TEST(Fusion, AReductionUsedAlongItsOwnRowsStays) {
  const Tensor x = input({8, 100});
  EXPECT_EQ(kernels(x - sum(x, {1})), 1u);
}

TEST(Fusion, ReductionsOfDifferentRowsDoNotMeet) {
  const Tensor x = input({8, 100});
  EXPECT_EQ(kernels(input({100, 8}) - sum(x, {1}).reshape({1, 8}) - sum(x, {0}).reshape({100, 1})),
            2u);
}

TEST(Fusion, ABranchThatRejoinsStaysInTheReductionsKernel) {
  const Tensor r = sum(input({8, 100}), {1});
  EXPECT_EQ(kernels(r * r + alu(ir::Op::kExp2, r)), 1u);
}

TEST(Fusion, MovementNeedsNoKernel) {
  const Tensor x = input({4, 6});
  EXPECT_EQ(kernels((x.permute({1, 0}).reshape({24}).flip({0}) + 1).pad({{1, 1}})), 1u);
}

TEST(Fusion, ExpensiveValuesAreNotRecomputedPerBroadcastCopy) {
  const Tensor row = input({1, 64}) * input({1, 64}) + 1;
  const Tensor product =
      row.reshape({1, 1, 64}).expand({32, 16, 64}) * input({1, 16, 64}).expand({32, 16, 64});
  EXPECT_EQ(kernels(sum(product, {2})), 2u);
}

TEST(Fusion, LongExpressionsAreCut) {
  Tensor t = input({16});
  for (int i = 0; i < 2000; ++i) t = t + i;
  EXPECT_GT(kernels(t), 5u);
  EXPECT_LT(kernels(t), 400u);
}

TEST(Fusion, ADoublingGraphStaysLinear) {
  Tensor t = Tensor::ones({4}, DType::kF32, "CPU").contiguous().realize();
  for (int i = 0; i < 60; ++i) t = (t + t) * 0.5;
  EXPECT_EQ(t.data<float>(), std::vector<float>(4, 1.0F));
}

TEST(Fusion, TenThousandNodesDoNotRecurse) {
  Tensor t = Tensor::zeros({2}, DType::kF32, "CPU").contiguous().realize();
  for (int i = 0; i < 10'000; ++i) t = t + 1;
  EXPECT_EQ(t.data<float>()[0], 10'000.0F);
}

TEST(Lowering, KernelsOfOneShapeAreOneLoopWhenThatIsFree) {
  const Tensor t = input({16, 32, 8}) + input({16, 32, 8});
  const auto k = lower(*t.node(), nullptr, [](const Node*) { return false; });
  ASSERT_TRUE(k) << k.error().message;
  EXPECT_EQ(k->ir.ranges.size(), 1u);
  const Tensor p = input({16, 32, 8}).permute({2, 1, 0}) + input({8, 32, 16});
  const auto q = lower(*p.node(), nullptr, [](const Node*) { return false; });
  ASSERT_TRUE(q) << q.error().message;
  EXPECT_EQ(q->ir.ranges.size(), 3u);
}

TEST(Lowering, SymbolicAxesAreNotMergedBehindOthers) {
  Var n("n", 1, 8);
  const Tensor t = input({4, 8}).shrink({{0, 4}, {0, SymInt(n)}});
  EXPECT_THROW(t.reshape({SymInt(n) * 4}), Exception);
  EXPECT_NO_THROW(input({8, 4}).shrink({{0, SymInt(n)}, {0, 4}}).reshape({SymInt(n) * 4}));
}

}  // namespace
}  // namespace bm
