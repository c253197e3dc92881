#include "tests/unit/compiler/products.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "compiler/ir/evaluate.h"
#include "compiler/ir/number.h"
#include "runtime/base/half.h"
#include "tests/unit/compiler/dot_sums.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {

namespace {

/// `residual`: makes what is added to the sum.
const ir::Node* with_tail(ir::Graph& g, const Product& p, const ir::Node* sum,
                          const std::function<const ir::Node*()>& residual) {
  const auto number = [&](double v) { return g.constant_f(p.sum, v); };
  const auto times = [&](const ir::Node* a, const ir::Node* b) {
    return g.binary(ir::Op::kMul, a, b);
  };
  const auto plus = [&](const ir::Node* a, const ir::Node* b) {
    return g.binary(ir::Op::kAdd, a, b);
  };
  /// 1 / (1 + e^-x)
  const auto sigmoid = [&](const ir::Node* x) {
    const ir::Node* power = g.unary(ir::Op::kExp2, times(x, number(-1.4426950408889634)));
    return g.unary(ir::Op::kRecip, plus(power, number(1)));
  };
  switch (p.tail) {
    case Tail::kNone: return sum;
    case Tail::kScale: return times(sum, number(0.125));
    case Tail::kResidual: return plus(sum, residual());
    case Tail::kSilu: return times(sum, sigmoid(sum));
    case Tail::kGelu: {
      // The approximation with tanh: x·σ(2·√(2/π)·(x + 0.044715·x³)).
      const ir::Node* cube = times(times(sum, sum), sum);
      const ir::Node* inner = plus(sum, times(cube, number(0.044715)));
      return times(sum, sigmoid(times(inner, number(1.5957691216057308))));
    }
  }
  __builtin_unreachable();
}

}  // namespace

ir::KernelIr product_kernel(const Product& p) {
  ir::KernelIr kernel;
  kernel.name = "product";
  kernel.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *kernel.graph;
  if (p.has_symbolic_rows) kernel.vars = {{.name = "rows", .min = 1, .max = p.m}};
  const ir::Node* rows = p.has_symbolic_rows ? g.var(0, 1, p.m) : g.index(p.m);
  const ir::Node *b = g.range(g.index(p.batches)), *i = g.range(rows), *j = g.range(g.index(p.n)),
                 *k = g.range(g.index(p.k));
  kernel.ranges = p.batches > 1 ? std::vector{b, i, j} : std::vector{i, j};
  const auto at = [&](const ir::Node* x, int64_t stride, const ir::Node* y, int64_t size) {
    const ir::Node* index = g.add(g.mul(x, stride), y);
    return p.batches > 1 ? g.add(index, g.mul(b, size)) : index;
  };
  const ir::Node* left = p.is_left_transposed ? at(k, p.m, i, p.m * p.k) : at(i, p.k, k, p.m * p.k);
  const ir::Node* right = p.is_right_deep ? at(j, p.k, k, p.n * p.k) : at(k, p.n, j, p.n * p.k);
  const auto wide = [&](int param, const ir::Node* index) {
    return g.cast(g.load(param, p.in, index), p.sum);
  };
  const ir::Node* sum = g.reduce(
      ir::ReduceOp::kSum, g.binary(ir::Op::kMul, wide(1, left), wide(2, right)), std::array{k});
  kernel.params = {{.dtype = p.out, .elements = p.batches * p.m * p.n, .is_written = true},
                   {.dtype = p.in, .elements = p.batches * p.m * p.k, .is_read = true},
                   {.dtype = p.in, .elements = p.batches * p.n * p.k, .is_read = true}};
  if (p.has_epilogue) {
    kernel.params.push_back({.dtype = p.sum, .elements = p.n, .is_read = true});
    sum = g.binary(ir::Op::kAdd, sum, g.load(3, p.sum, j));
    sum = g.binary(ir::Op::kMax, sum, g.constant(p.sum, 0));
  }
  const ir::Node* place = at(i, p.n, j, p.m * p.n);
  sum = with_tail(g, p, sum, [&] {
    const auto number = static_cast<int>(kernel.params.size());
    kernel.params.push_back({.dtype = p.sum, .elements = p.batches * p.m * p.n, .is_read = true});
    return g.load(number, p.sum, place);
  });
  kernel.stores.push_back({.param = 0, .index = place, .value = g.cast(sum, p.out)});
  return kernel;
}

std::vector<ir::KernelIr> corpus() {
  std::vector<ir::KernelIr> out;
  for (const DType t :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI32, DType::kI8, DType::kU64})
    out.push_back(matmul_kernel(64, 64, 64, t));
  out.push_back(matmul_kernel(1024, 1024, 512, DType::kF32));
  for (const ir::ReduceOp op : {ir::ReduceOp::kSum, ir::ReduceOp::kMax}) {
    out.push_back(reduce_kernel(op, DType::kF32, 3, 100'000, false));
    out.push_back(reduce_kernel(op, DType::kI16, 300, 1000, true));
  }
  out.push_back(product_kernel({.n = 128, .has_epilogue = true}));
  out.push_back(product_kernel({.in = DType::kBF16, .m = 32, .is_right_deep = true}));
  out.push_back(product_kernel(
      {.in = DType::kI8, .sum = DType::kI32, .out = DType::kI32, .is_right_deep = true}));
  out.push_back(dot_sum_kernel({.vectors = 3, .rows = 64, .blocks = 5, .code = Bytes::kLow}));
  out.push_back(dot_sum_kernel(
      {.vectors = 1, .rows = 3, .blocks = 40, .is_packed = false, .is_signed = true}));
  out.push_back(softmax_kernel(7, 3000));
  out.push_back(transpose_kernel(300, 200, DType::kI8));
  out.push_back(convolution_kernel(8, 4, 16, 16));
  out.push_back(symbolic_row_sums(300, 5000));
  for (const ir::Op op : {ir::Op::kExp2, ir::Op::kLog2, ir::Op::kSin, ir::Op::kSqrt})
    for (const DType t : {DType::kF32, DType::kF64, DType::kF16})
      out.push_back(map_kernel(op, t, std::array{t}, 1000));
  return out;
}

void put(DType t, double v, std::byte* at) {
  const auto store = [&](auto x) { std::memcpy(at, &x, sizeof x); };
  switch (t) {
    case DType::kF16: return store(f32_to_f16(static_cast<float>(v)));
    case DType::kBF16: return store(f32_to_bf16(static_cast<float>(v)));
    case DType::kF32: return store(static_cast<float>(v));
    case DType::kF64: return store(v);
    default: {
      const auto whole = static_cast<int64_t>(v);
      std::memcpy(at, &whole, static_cast<size_t>(item_size(t)));
    }
  }
}

Buffers small_numbers(const ir::KernelIr& kernel) {
  Buffers out;
  for (const ir::Param& p : kernel.params) {
    const auto size = static_cast<size_t>(item_size(p.dtype));
    out.emplace_back(static_cast<size_t>(p.elements) * size);
    if (!p.is_read) continue;
    for (size_t i = 0; i < static_cast<size_t>(p.elements); ++i)
      put(p.dtype, static_cast<double>(1 + i * 7 % 13), &out.back()[i * size]);
  }
  return out;
}

double difference(const ir::KernelIr& kernel, const Buffers& got, const Buffers& want) {
  double worst = 0;
  for (size_t p = 0; p < want.size(); ++p) {
    const DType t = kernel.params[p].dtype;
    const auto size = static_cast<size_t>(item_size(t));
    for (size_t i = 0; i < want[p].size(); i += size) {
      const double a = number_at(t, &got[p][i]), b = number_at(t, &want[p][i]);
      worst = std::max(worst, std::abs(a - b) / std::max(1.0, std::abs(b)));
    }
  }
  return worst;
}

double worst_difference(const ir::KernelIr& kernel, const Buffers& got, const Buffers& start,
                        std::span<const int64_t> vars) {
  Buffers want = start;
  const std::vector<std::span<std::byte>> spans(want.begin(), want.end());
  const Status done = compiler::evaluate(kernel, spans, vars);
  EXPECT_TRUE(done) << done.error().message;
  return difference(kernel, got, want);
}

double difference_from_cpu(const ir::KernelIr& kernel, const Buffers& got, const Buffers& start) {
  Buffers want = start;
  const Status done = run_on({"LLVM"}, kernel, want, {});
  EXPECT_TRUE(done) << done.error().message;
  return difference(kernel, got, want);
}

double tolerance(const ir::KernelIr& kernel) {
  const DType t = kernel.params[0].dtype;
  return t == DType::kF16 ? 2e-3 : t == DType::kBF16 ? 2e-2 : is_float(t) ? 1e-6 : 0;
}

}  // namespace bm::test
