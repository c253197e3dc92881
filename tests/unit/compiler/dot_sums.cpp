#include "tests/unit/compiler/dot_sums.h"

#include <array>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "compiler/ir/evaluate.h"

namespace bm::test {

using ir::Node;
using ir::Op;

ir::KernelIr dot_sum_kernel(const DotShape& s) {
  ir::KernelIr k;
  k.name = "dot_sums";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  const Node *v = g.range(g.index(s.vectors)), *n = g.range(g.index(s.rows));
  const Node *b = g.range(g.index(s.blocks)), *group = g.range(g.index(s.words)),
             *j = g.range(g.index(s.width));
  k.ranges = {v, n};
  const int64_t row = s.blocks * s.block();
  const DType code = s.is_signed ? DType::kI8 : DType::kU8;
  k.params = {{.dtype = DType::kF32, .elements = s.vectors * s.rows, .is_written = true},
              {.dtype = code, .elements = s.skipped + s.rows * (row + s.padding), .is_read = true},
              {.dtype = DType::kI8, .elements = s.vectors * row, .is_read = true},
              {.dtype = DType::kI32, .elements = s.vectors * s.blocks, .is_read = true},
              {.dtype = DType::kF32, .elements = s.rows * s.blocks, .is_read = true}};
  const Node* column = g.add(g.mul(group, s.width), j);
  const Node* at = g.add(g.add(g.mul(n, row + s.padding), g.mul(b, s.block())), column);
  if (s.is_packed) {
    const Node* words = g.add(g.mul(g.div(n, 16), s.blocks), b);
    at = g.add(g.add(g.mul(words, 16 * s.block()), g.mul(group, 16 * s.width)),
               g.add(g.mul(g.mod(n, 16), s.width), j));
  }
  const auto byte = [&](int64_t c) { return g.constant(DType::kU8, c); };
  const Node* w = g.load(1, code, g.add(at, s.skipped));
  if (s.code == Bytes::kLow) w = g.binary(Op::kAnd, w, byte(15));
  if (s.code == Bytes::kHigh) w = g.binary(Op::kShr, w, byte(4));
  if (s.code == Bytes::kMixed)
    w = g.binary(Op::kXor, g.binary(Op::kShl, w, byte(3)),
                 g.binary(Op::kOr, g.binary(Op::kShr, w, byte(5)), byte(0x81)));
  const Node* x = g.load(2, DType::kI8, g.add(g.add(g.mul(v, row), g.mul(b, s.block())), column));
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

Buffers dot_sum_buffers(const ir::KernelIr& k, uint32_t seed) {
  std::mt19937 random(seed);
  Buffers out;
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

Buffers evaluated(const ir::KernelIr& k, Buffers buffers) {
  std::vector<std::span<std::byte>> spans(buffers.begin(), buffers.end());
  const Status done = compiler::evaluate(k, spans, {});
  EXPECT_TRUE(done) << done.error().message;
  return buffers;
}

}  // namespace bm::test
