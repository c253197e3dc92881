#include <gtest/gtest.h>

#include <random>

#include "compiler/ir/kernel.h"

namespace bm::ir {
namespace {

/// out[i] = Σ_k a[i·8 + k] · a[i·8 + k]
KernelIr sample() {
  KernelIr k;
  k.name = "r_4_8";
  k.graph = std::make_unique<Graph>();
  Graph& g = *k.graph;
  k.params = {{DType::kF32, 4, true, false}, {DType::kF32, 32, false, true}};
  const Node* i = g.range(g.index(4));
  const Node* r = g.range(g.index(8));
  const Node* a = g.load(1, DType::kF32, g.add(g.mul(i, 8), r));
  const Node* ranges[] = {r};
  k.ranges = {i};
  k.stores = {{0, i, g.reduce(ReduceOp::kSum, g.binary(Op::kMul, a, a), ranges), nullptr}};
  return k;
}

TEST(Kernel, AWellFormedKernelVerifies) { EXPECT_TRUE(verify(sample())); }

TEST(Kernel, AnIndexThatLeavesItsParamIsRefused) {
  KernelIr k = sample();
  k.params[1].elements = 31;
  const auto status = verify(k);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("leaves"), std::string::npos);
}

TEST(Kernel, ALoopIndexThatNobodyBindsIsRefused) {
  KernelIr k = sample();
  k.stores[0].value = k.stores[0].value->src[0];  // the product, outside its reduction
  ASSERT_FALSE(verify(k));
}

TEST(Kernel, AReductionOverOneLoopTwiceIsRefused) {
  KernelIr k = sample();
  const Node* sum = k.stores[0].value;
  const Node* twice[] = {sum->src[1], sum->src[1]};
  k.stores[0].value = k.graph->reduce(ReduceOp::kSum, sum->src[0], twice);
  const auto status = verify(k);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("one loop twice"), std::string::npos);
}

TEST(Kernel, AStoreOfAnotherTypeIsRefused) {
  KernelIr k = sample();
  k.params[0].dtype = DType::kF64;
  ASSERT_FALSE(verify(k));
}

TEST(Kernel, AnUngatedStoreOutsideIsRefused) {
  KernelIr k = sample();
  k.params[0].elements = 3;
  ASSERT_FALSE(verify(k));
}

TEST(Kernel, BytesRoundTrip) {
  const std::string bytes = serialize(sample());
  const auto back = deserialize(bytes);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(serialize(*back), bytes);
}

TEST(Kernel, NamesAreNotPartOfTheKey) {
  KernelIr k = sample();
  k.name = "another";
  EXPECT_EQ(serialize(k), serialize(sample()));
}

TEST(Kernel, DamagedBytesAreRefusedOrMeanAValidKernel) {
  const std::string bytes = serialize(sample());
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string damaged = bytes;
    for (int i = 0; i < 1 + static_cast<int>(random() % 4); ++i)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    const auto back = deserialize(damaged);
    if (!back) {
      EXPECT_EQ(back.error().code, Code::kCorrupt);
    } else {
      EXPECT_TRUE(verify(*back)) << "seed " << seed;
    }
  }
}

TEST(Kernel, CostCountsWorkOnce) {
  const Cost c = estimate_cost(sample(), {});
  EXPECT_EQ(c.flops, 4 * 8 * 2);
  EXPECT_EQ(c.bytes, (32 + 4) * 4);
}

TEST(Kernel, CostFollowsVariables) {
  KernelIr k;
  k.name = "E";
  k.graph = std::make_unique<Graph>();
  Graph& g = *k.graph;
  k.params = {{DType::kF32, 100, true, false}, {DType::kF32, 100, false, true}};
  k.vars = {{"n", 1, 100}};
  const Node* i = g.range(g.var(0, 1, 100));
  k.ranges = {i};
  k.stores = {{0, i, g.unary(Op::kSqrt, g.load(1, DType::kF32, i)), nullptr}};
  ASSERT_TRUE(verify(k));
  const int64_t n[] = {7};
  EXPECT_EQ(estimate_cost(k, n).flops, 7);
  EXPECT_EQ(estimate_cost(k, n).bytes, 7 * 8);
}

}  // namespace
}  // namespace bm::ir
