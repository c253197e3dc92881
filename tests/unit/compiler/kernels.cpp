#include "tests/unit/compiler/kernels.h"

#include <array>

#include "compiler/compile.h"
#include "compiler/schedules/attention/split.h"

namespace bm::test {
namespace {

using ir::KernelIr;
using ir::Node;
using ir::Op;

KernelIr empty_kernel(std::string name) {
  KernelIr k;
  k.name = std::move(name);
  k.graph = std::make_unique<ir::Graph>();
  return k;
}

ir::Param input(DType t, int64_t n) { return {.dtype = t, .elements = n, .is_read = true}; }
ir::Param output(DType t, int64_t n) { return {.dtype = t, .elements = n, .is_written = true}; }

}  // namespace

KernelIr map_kernel(Op op, DType out, std::span<const DType> in, int64_t n) {
  KernelIr k = empty_kernel("map");
  ir::Graph& g = *k.graph;
  const Node* i = g.range(g.index(n));
  k.ranges = {i};
  k.params.push_back(output(out, n));
  std::vector<const Node*> args;
  for (DType t : in) {
    args.push_back(g.load(static_cast<int>(k.params.size()), t, i));
    k.params.push_back(input(t, n));
  }
  const Node* v = op == Op::kCast      ? g.cast(args[0], out)
                  : op == Op::kBitcast ? g.bitcast(args[0], out)
                  : op == Op::kSelect  ? g.select(args[0], args[1], args[2])
                  : op == Op::kFma     ? g.fma(args[0], args[1], args[2])
                  : args.size() == 1   ? g.unary(op, args[0])
                                       : g.binary(op, args[0], args[1]);
  k.stores.push_back({.param = 0, .index = i, .value = v});
  return k;
}

KernelIr matmul_kernel(int64_t m, int64_t n, int64_t kk, DType t, bool is_b_transposed) {
  KernelIr k = empty_kernel("matmul");
  ir::Graph& g = *k.graph;
  const Node* i = g.range(g.index(m));
  const Node* j = g.range(g.index(n));
  const Node* r = g.range(g.index(kk));
  k.ranges = {i, j};
  k.params = {output(t, m * n), input(t, m * kk), input(t, kk * n)};
  const Node* a = g.load(1, t, g.add(g.mul(i, kk), r));
  const Node* b = g.load(2, t, is_b_transposed ? g.add(g.mul(j, kk), r) : g.add(g.mul(r, n), j));
  const Node* sum = g.reduce(ir::ReduceOp::kSum, g.binary(Op::kMul, a, b), std::array{r});
  k.stores.push_back({.param = 0, .index = g.add(g.mul(i, n), j), .value = sum});
  return k;
}

KernelIr reduce_kernel(ir::ReduceOp op, DType t, int64_t rows, int64_t columns, bool is_over_rows) {
  KernelIr k = empty_kernel("reduce");
  ir::Graph& g = *k.graph;
  const Node* i = g.range(g.index(is_over_rows ? columns : rows));
  const Node* r = g.range(g.index(is_over_rows ? rows : columns));
  k.ranges = {i};
  k.params = {output(t, is_over_rows ? columns : rows), input(t, rows * columns)};
  const Node* at = is_over_rows ? g.add(g.mul(r, columns), i) : g.add(g.mul(i, columns), r);
  k.stores.push_back(
      {.param = 0, .index = i, .value = g.reduce(op, g.load(1, t, at), std::array{r})});
  return k;
}

KernelIr softmax_kernel(int64_t rows, int64_t columns) {
  KernelIr k = empty_kernel("softmax");
  ir::Graph& g = *k.graph;
  const Node* i = g.range(g.index(rows));
  const Node* j = g.range(g.index(columns));
  const Node* r = g.range(g.index(columns));
  const Node* q = g.range(g.index(columns));
  k.ranges = {i, j};
  k.params = {output(DType::kF32, rows * columns), input(DType::kF32, rows * columns)};
  const auto x = [&](const Node* c) { return g.load(1, DType::kF32, g.add(g.mul(i, columns), c)); };
  const Node* top = g.reduce(ir::ReduceOp::kMax, x(r), std::array{r});
  const auto e = [&](const Node* c) { return g.unary(Op::kExp2, g.binary(Op::kSub, x(c), top)); };
  const Node* sum = g.reduce(ir::ReduceOp::kSum, e(q), std::array{q});
  k.stores.push_back(
      {.param = 0, .index = g.add(g.mul(i, columns), j), .value = g.binary(Op::kDiv, e(j), sum)});
  return k;
}

KernelIr transpose_kernel(int64_t rows, int64_t columns, DType t) {
  KernelIr k = empty_kernel("transpose");
  ir::Graph& g = *k.graph;
  const Node* i = g.range(g.index(rows));
  const Node* j = g.range(g.index(columns));
  k.ranges = {i, j};
  k.params = {output(t, rows * columns), input(t, rows * columns)};
  k.stores.push_back({.param = 0,
                      .index = g.add(g.mul(i, columns), j),
                      .value = g.load(1, t, g.add(g.mul(j, rows), i))});
  return k;
}

KernelIr convolution_kernel(int64_t filters, int64_t c, int64_t h, int64_t w) {
  KernelIr k = empty_kernel("convolution");
  ir::Graph& g = *k.graph;
  const Node* f = g.range(g.index(filters));
  const Node* y = g.range(g.index(h));
  const Node* x = g.range(g.index(w));
  const Node* ci = g.range(g.index(c));
  const Node* dy = g.range(g.index(3));
  const Node* dx = g.range(g.index(3));
  k.ranges = {f, y, x};
  k.params = {output(DType::kF32, filters * h * w), input(DType::kF32, c * h * w),
              input(DType::kF32, filters * c * 9)};
  const Node* yy = g.add(g.add(y, dy), -1);
  const Node* xx = g.add(g.add(x, dx), -1);
  const auto is_inside = [&](const Node* v, int64_t n) {
    return g.both(g.less(g.index(-1), v), g.less(v, g.index(n)));
  };
  const Node* gate = g.both(is_inside(yy, h), is_inside(xx, w));
  const Node* a = g.load(1, DType::kF32, g.add(g.add(g.mul(ci, h * w), g.mul(yy, w)), xx), gate);
  const Node* b =
      g.load(2, DType::kF32, g.add(g.add(g.mul(g.add(g.mul(f, c), ci), 9), g.mul(dy, 3)), dx));
  const Node* sum = g.reduce(ir::ReduceOp::kSum, g.binary(Op::kMul, a, b), std::array{ci, dy, dx});
  k.stores.push_back(
      {.param = 0, .index = g.add(g.add(g.mul(f, h * w), g.mul(y, w)), x), .value = sum});
  return k;
}

KernelIr symbolic_row_sums(int64_t max_n, int64_t max_m) {
  KernelIr k = empty_kernel("rows");
  ir::Graph& g = *k.graph;
  k.vars = {{.name = "n", .min = 0, .max = max_n}, {.name = "m", .min = 0, .max = max_m}};
  const Node* i = g.range(g.var(1, 0, max_m));
  const Node* j = g.range(g.var(0, 0, max_n));
  k.ranges = {i};
  k.params = {output(DType::kF32, max_m), input(DType::kF32, max_m * max_n)};
  k.stores.push_back(
      {.param = 0,
       .index = i,
       .value = g.reduce(ir::ReduceOp::kSum, g.load(1, DType::kF32, g.add(g.mul(i, max_n), j)),
                         std::array{j})});
  return k;
}

std::optional<ir::KernelIr> decode_attention_kernel(const hal::Arch& arch) {
  using ir::Node;
  using ir::Op;
  constexpr int64_t kHeads = 4, kKeys = 512, kWidth = 64;
  ir::KernelIr k;
  k.name = "decode";
  k.graph = std::make_unique<ir::Graph>();
  ir::Graph& g = *k.graph;
  k.vars.push_back({"length", 1, kKeys});
  k.params = {{DType::kF32, kHeads * kWidth, true, false},
              {DType::kF32, kHeads * kWidth, false, true},
              {DType::kF32, kHeads * kKeys * kWidth, false, true},
              {DType::kF32, kHeads * kKeys * kWidth, false, true}};
  const Node* length = g.var(0, 1, kKeys);
  const Node *head = g.range(g.index(kHeads)), *column = g.range(g.index(kWidth)),
             *key = g.range(length);
  const auto element = [&](int param, const Node* line, const Node* at) {
    return g.load(param, DType::kF32, g.add(g.mul(line, kWidth), at));
  };
  const auto line_of = [&](const Node* at) { return g.add(g.mul(head, kKeys), at); };
  const auto score = [&](const Node* at) {
    const Node* kk = g.range(g.index(kWidth));
    return g.reduce(ir::ReduceOp::kSum,
                    g.binary(Op::kMul, element(1, head, kk), element(2, line_of(at), kk)),
                    std::array{kk});
  };
  const auto over_keys = [&](ir::ReduceOp op, const auto& value) {
    const Node* at = g.range(length);
    return g.reduce(op, value(at), std::array{at});
  };
  const Node* most = over_keys(ir::ReduceOp::kMax, score);
  const auto power = [&](const Node* at) {
    const Node* distance = g.binary(Op::kSub, score(at), most);
    return g.unary(Op::kExp2, g.binary(Op::kMul, distance, g.constant_f(DType::kF32, 1.442695)));
  };
  const Node* total = over_keys(ir::ReduceOp::kSum, power);
  const Node* weight = g.binary(Op::kMul, power(key), g.unary(Op::kRecip, total));
  const Node* mix =
      g.reduce(ir::ReduceOp::kSum, g.binary(Op::kMul, weight, element(3, line_of(key), column)),
               std::array{key});
  k.ranges = {head, column};
  k.stores.push_back({0, g.add(g.mul(head, kWidth), column), mix, nullptr});
  auto split = compiler::split_attention(k, arch, "PTX");
  return split ? std::optional(std::move(split->parts)) : std::nullopt;
}

}  // namespace bm::test
