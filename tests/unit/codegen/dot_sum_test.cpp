// Inner sums of products of 8-bit numbers: exact however they are written down, laid out and tiled,
// and done by dot products where the layout has words side by side.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compiler/codegen/evaluate.h"
#include "compiler/codegen/target.h"
#include "tests/unit/codegen/runner.h"

namespace bm::test {
namespace {

using ir::Node;
using ir::Op;

/// What is done to the bytes of the matrix before they are multiplied.
enum class Bytes { kWhole, kLow, kHigh, kMixed };

struct Shape {
  int64_t vectors, rows, blocks;
  Bytes code;
  bool has_shift = true;  ///< an integer per block and vector is added to the inner sum
  bool is_packed = true;  ///< 16 rows side by side; false: rows one after another
};

/// out[v][n] = Σ_b float(Σ_{g,j} code(w) · x + shift[v][b]) · scale[n][b]
ir::KernelIr dot_sum_kernel(const Shape& s) {
  ir::KernelIr k;
  k.name = "dot_sums";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const Node *v = g.range(g.index(s.vectors)), *n = g.range(g.index(s.rows));
  const Node *b = g.range(g.index(s.blocks)), *group = g.range(g.index(8)),
             *j = g.range(g.index(4));
  k.ranges = {v, n};
  const int64_t block = 32, row = s.blocks * block;
  k.params = {{.dtype = DType::kF32, .elements = s.vectors * s.rows, .is_written = true},
              {.dtype = DType::kU8, .elements = s.rows * row, .is_read = true},
              {.dtype = DType::kI8, .elements = s.vectors * row, .is_read = true},
              {.dtype = DType::kI32, .elements = s.vectors * s.blocks, .is_read = true},
              {.dtype = DType::kF32, .elements = s.rows * s.blocks, .is_read = true}};
  const Node* column = g.add(g.mul(group, 4), j);
  const Node* at = g.add(g.add(g.mul(n, row), g.mul(b, block)), column);
  if (s.is_packed) {
    const Node* words = g.add(g.add(g.mul(g.div(n, 16), s.blocks), b), g.index(0));
    at = g.add(g.add(g.mul(words, 16 * block), g.mul(group, 64)), g.add(g.mul(g.mod(n, 16), 4), j));
  }
  const auto byte = [&](int64_t c) { return g.constant(DType::kU8, c); };
  const Node* w = g.load(1, DType::kU8, at);
  if (s.code == Bytes::kLow) w = g.binary(Op::kAnd, w, byte(15));
  if (s.code == Bytes::kHigh) w = g.binary(Op::kShr, w, byte(4));
  if (s.code == Bytes::kMixed)
    w = g.binary(Op::kXor, g.binary(Op::kShl, w, byte(3)),
                 g.binary(Op::kOr, g.binary(Op::kShr, w, byte(5)), byte(0x81)));
  const Node* x = g.load(2, DType::kI8, g.add(g.add(g.mul(v, row), g.mul(b, block)), column));
  const Node* product = g.binary(Op::kMul, g.cast(w, DType::kI32), g.cast(x, DType::kI32));
  const Node* inner = g.reduce(ir::ReduceOp::kSum, product, std::array{group, j});
  if (s.has_shift)
    inner = g.binary(Op::kAdd, inner, g.load(3, DType::kI32, g.add(g.mul(v, s.blocks), b)));
  const Node* scale = g.load(4, DType::kF32, g.add(g.mul(n, s.blocks), b));
  const Node* term = g.binary(Op::kMul, g.cast(inner, DType::kF32), scale);
  const Node* sum = g.reduce(ir::ReduceOp::kSum, term, std::array{b});
  k.stores.push_back({.param = 0, .index = g.add(g.mul(v, s.rows), n), .value = sum});
  return k;
}

/// Scales are 1 and -2: every sum is an integer that float32 holds.
std::vector<std::vector<std::byte>> buffers_of(const ir::KernelIr& k) {
  std::mt19937 random(11);
  std::vector<std::vector<std::byte>> out;
  for (const ir::Param& p : k.params) {
    std::vector<std::byte> bytes(static_cast<size_t>(p.elements * item_size(p.dtype)));
    for (int64_t i = 0; i < p.elements && p.is_read; ++i) {
      if (item_size(p.dtype) == 1) bytes[static_cast<size_t>(i)] = static_cast<std::byte>(random());
      const auto shift = static_cast<int32_t>(random() % 2000) - 1000;
      const float scale = random() % 2 ? 1.0F : -2.0F;
      if (p.dtype == DType::kI32) std::memcpy(&bytes[static_cast<size_t>(4 * i)], &shift, 4);
      if (p.dtype == DType::kF32) std::memcpy(&bytes[static_cast<size_t>(4 * i)], &scale, 4);
    }
    out.push_back(std::move(bytes));
  }
  return out;
}

void check(const Shape& s) {
  const ir::KernelIr k = dot_sum_kernel(s);
  auto want = buffers_of(k);
  std::vector<std::span<std::byte>> spans(want.begin(), want.end());
  ASSERT_TRUE(compiler::evaluate(k, spans, {}));
  for (const Where where : {Where{"LLVM"}, Where{"LLVM", false}, Where{"CLANG"}}) {
    auto got = buffers_of(k);
    const Status done = run_on(where, k, got, {});
    if (!done && done.error().code == Code::kNotFound) continue;
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(got[0], want[0]) << where_name(where) << " " << s.vectors << " " << s.rows << " "
                               << s.blocks << " code " << static_cast<int>(s.code);
  }
}

TEST(DotSum, IsExactForEveryCode) {
  for (const Bytes code : {Bytes::kWhole, Bytes::kLow, Bytes::kHigh, Bytes::kMixed})
    check({3, 48, 5, code});
}

TEST(DotSum, IsExactForOddShapes) {
  check({1, 16, 1, Bytes::kWhole});
  check({1, 160, 7, Bytes::kLow, false});
  check({13, 96, 3, Bytes::kWhole});
  check({29, 608, 2, Bytes::kHigh});
  check({5, 32, 4, Bytes::kWhole, true, false});
  check({2, 15, 3, Bytes::kLow, true, false});
}

TEST(DotSum, PackedMatricesAreMultipliedByInstructions) {
  const auto arch = native_arch();
  if (compiler::target_info(arch).dots.empty() ||
      compiler::target_info(arch).dots[0].kind != compiler::DotKind::kU8S8)
    GTEST_SKIP() << "this machine has no dot products of 8-bit numbers";
  for (const int64_t vectors : {1, 40}) {
    const auto text =
        compiler::explain(dot_sum_kernel({vectors, 64, 9, Bytes::kLow}), arch, "LLVM");
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_NE(text->lowered.find("= dot"), std::string::npos) << text->lowered;
    EXPECT_NE(text->assembly.find("vpdpbusd"), std::string::npos);
  }
}

}  // namespace
}  // namespace bm::test
