// The oracle itself, checked by hand: rounding, layouts of symbolic shapes, refusals.
#include "tensor/interpret.h"

#include "tensor/interpret_alu.h"
#include "tests/unit/tensor/support.h"

namespace bm::test {
namespace {

NodePtr source(DType t, Shape shape) {
  auto n = std::make_shared<Node>();
  n->kind = NodeKind::kBuffer;
  n->dtype = t;
  n->shape = std::move(shape);
  return n;
}

template <class T>
const std::byte* bytes_of(const std::vector<T>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}

TEST(Interpret, NarrowFloatsAreRoundedOnce) {
  // 1 + 2^-11 + 2^-30 rounds up to 1 + 2^-10; through float32 it would be a tie and round down.
  EXPECT_EQ(reference::to_f16(1 + 0x1p-11 + 0x1p-30), 0x3c01);
  EXPECT_EQ(reference::to_f16(1 + 0x1p-11), 0x3c00);
  EXPECT_EQ(reference::to_f16(65519.99), 0x7bff);
  EXPECT_EQ(reference::to_f16(65520), 0x7c00);
  EXPECT_EQ(reference::to_f16(0x1p-24), 0x0001);
  EXPECT_EQ(reference::to_f16(0x1p-25), 0x0000);
  EXPECT_EQ(reference::to_f16(-0x1.8p-24), 0x8002);
  EXPECT_EQ(reference::to_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
  EXPECT_EQ(reference::to_bf16(-kInf), 0xff80);
}

TEST(Interpret, ReadsAndWritesOnlyTheCurrentPartOfSymbolicShapes) {
  const Var n("n", 1, 4);
  n.set(2);
  Node flip;
  flip.kind = NodeKind::kFlip;
  flip.shape = {2, n};
  flip.ints = {1};
  flip.src = {source(DType::kF32, {2, n})};
  const std::vector<float> in = {1, 2, -1, -1, 3, 4, -1, -1};  // rows are 4 apart: the largest n
  std::vector<float> out(8, 9);
  const std::byte* sources[] = {bytes_of(in)};
  ASSERT_TRUE(interpret(flip, sources, reinterpret_cast<std::byte*>(out.data())));
  EXPECT_EQ(out, (std::vector<float>{2, 1, 9, 9, 4, 3, 9, 9}));
}

TEST(Interpret, SumsAccumulateInFloat64) {
  Node sum;
  sum.kind = NodeKind::kReduce;
  sum.shape = {1};
  sum.ints = {0};
  sum.src = {source(DType::kF32, {3})};
  const std::vector<float> in = {16777216, 1, 1};  // float32 steps would lose both ones
  float out = 0;
  const std::byte* sources[] = {bytes_of(in)};
  ASSERT_TRUE(interpret(sum, sources, reinterpret_cast<std::byte*>(&out)));
  EXPECT_EQ(out, 16777218);
}

TEST(Interpret, RefusesWhatHasNoValue) {
  Node node;
  node.kind = NodeKind::kBuffer;
  float out = 0;
  EXPECT_FALSE(interpret(node, {}, reinterpret_cast<std::byte*>(&out)));
  node.kind = NodeKind::kAlu;
  node.op = ir::Op::kAnd;
  node.src = {source(DType::kF32, {}), source(DType::kF32, {})};
  const std::byte* sources[] = {reinterpret_cast<std::byte*>(&out),
                                reinterpret_cast<std::byte*>(&out)};
  const Status status = interpret(node, sources, reinterpret_cast<std::byte*>(&out));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "and does not exist on float32");
  EXPECT_FALSE(interpret(node, {}, reinterpret_cast<std::byte*>(&out)));
}

TEST(Interpret, IntegerRules) {
  using reference::Value;
  const auto apply = [](ir::Op op, DType t, int64_t a, int64_t b) {
    const std::array args{Value{a, 0}, Value{b, 0}};
    return wrap_integer(t, reference::alu_function(op, t)(t, args).i);
  };
  EXPECT_EQ(apply(ir::Op::kDiv, DType::kI64, INT64_MIN, -1), INT64_MIN);
  EXPECT_EQ(apply(ir::Op::kDiv, DType::kI32, -7, 2), -3);
  EXPECT_EQ(apply(ir::Op::kMod, DType::kI32, -7, 2), -1);
  EXPECT_EQ(apply(ir::Op::kDiv, DType::kI32, 7, 0), 0);
  EXPECT_EQ(apply(ir::Op::kMod, DType::kI32, 7, 0), 0);
  EXPECT_EQ(apply(ir::Op::kAdd, DType::kI8, 127, 1), -128);
  EXPECT_EQ(apply(ir::Op::kShl, DType::kU8, 1, 8), 0);
  EXPECT_EQ(apply(ir::Op::kShr, DType::kI16, -1, 99), -1);
  EXPECT_EQ(apply(ir::Op::kLt, DType::kU64, -1, 1), 0);
  EXPECT_EQ(reference::convert({0, 1e30}, DType::kF64, DType::kI64).i, INT64_MAX);
  EXPECT_EQ(reference::convert({0, -1e30}, DType::kF64, DType::kI16).i, -32768);
  EXPECT_EQ(reference::convert({-1, 0}, DType::kU64, DType::kF64).f, 0x1p64);
}

}  // namespace
}  // namespace bm::test
