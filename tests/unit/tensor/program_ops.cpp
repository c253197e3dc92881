// The operations random programs are made of. An expression is written once: it runs, and it is the
// text of the reproduction.
#include "tests/unit/tensor/program_draw.h"
#include "tests/unit/tensor/program_helpers.h"

namespace bm::test {
namespace {

using enum Noise;

#define BM_ROW(weight, noise, takes, draw, ...)                                              \
  Row {                                                                                      \
    weight, noise, takes, draw, #__VA_ARGS__, [](Operands& o) -> Tensor {                    \
      auto& [x, y, z, n] = o;                                                                \
      auto& [i, j, k, keep, t, axes, dims, pads, length] = n;                                \
      (void)x, (void)y, (void)z, (void)i, (void)j, (void)k, (void)keep, (void)t, (void)axes, \
          (void)dims, (void)pads, (void)length;                                              \
      return __VA_ARGS__;                                                                    \
    }                                                                                        \
  }

Shape shape_of(const std::vector<int64_t>& dims) { return {dims.begin(), dims.end()}; }
std::vector<std::pair<SymInt, SymInt>> room(const std::vector<std::pair<int64_t, int64_t>>& pads) {
  return {pads.begin(), pads.end()};
}

std::vector<Row> make_rows() {
  std::vector<Row> r{
      // kHideRow and the one after it, for bool.
      BM_ROW(0, kExact, "fi", draw::nothing, y.where(x, 0)),
      BM_ROW(0, kExact, "b", draw::nothing, x & y),

      BM_ROW(4, kMath, "f", draw::nothing, x.sin()),
      BM_ROW(3, kMath, "f", draw::nothing, x.cos()),
      BM_ROW(1, kMath, "f", draw::nothing, x.tan()),
      BM_ROW(4, kMath, "f", draw::nothing, x.tanh()),
      BM_ROW(6, kMath, "f", draw::nothing, x.exp()),
      BM_ROW(4, kMath, "f", draw::nothing, (-x.abs()).exp2()),
      BM_ROW(1, kMath, "f", draw::nothing, x.expm1()),
      BM_ROW(4, kMath, "f", draw::nothing, x.log()),
      BM_ROW(4, kMath, "f", draw::nothing, (x.abs() + 0.5).log()),
      BM_ROW(1, kMath, "f", draw::nothing, (x * x + 1).log2()),
      BM_ROW(1, kMath, "f", draw::nothing, x.abs().log1p()),
      BM_ROW(1, kMath, "f", draw::nothing, (x.abs() + 0.25).log10()),
      BM_ROW(1, kMath, "f", draw::nothing, (x.tanh() * 0.75).asin()),
      BM_ROW(1, kMath, "f", draw::nothing, (x.tanh() * 0.75).acos()),
      BM_ROW(1, kMath, "f", draw::nothing, x.atan()),
      BM_ROW(1, kMath, "f", draw::nothing, x.clip(-2, 2).sinh()),
      BM_ROW(1, kMath, "f", draw::nothing, x.clip(-2, 2).cosh()),
      BM_ROW(3, kMath, "f", draw::nothing, x.sqrt()),
      BM_ROW(3, kMath, "f", draw::nothing, (x.abs() + 1).sqrt()),
      BM_ROW(3, kMath, "f", draw::nothing, (x.square() + 0.5).rsqrt()),
      BM_ROW(2, kMath, "f", draw::nothing, (x.abs() + 1).reciprocal()),
      BM_ROW(8, kMath, "f", draw::nothing, x.sigmoid()),
      BM_ROW(10, kMath, "f", draw::nothing, x.silu()),
      BM_ROW(5, kMath, "f", draw::nothing, x.gelu()),
      BM_ROW(3, kMath, "f", draw::nothing, x.gelu(false)),
      BM_ROW(2, kMath, "f", draw::nothing, x.softplus()),
      BM_ROW(2, kMath, "f", draw::nothing, x.elu()),
      BM_ROW(1, kMath, "f", draw::nothing, x.hardswish()),
      BM_ROW(1, kMath, "f", draw::nothing, x.hardsigmoid()),
      BM_ROW(2, kMath, "f", draw::nothing, x.mish()),
      BM_ROW(2, kMath, "f", draw::nothing, x.erf()),
      BM_ROW(1, kMath, "f", draw::nothing, (x.abs() + 0.5).pow(1.5)),
      BM_ROW(2, kExact, "fi", draw::nothing, -x),
      BM_ROW(2, kExact, "fi", draw::nothing, x.abs()),
      BM_ROW(2, kExact, "fi", draw::nothing, x.relu()),
      BM_ROW(2, kExact, "f", draw::nothing, x.clip(-1.5, 2)),
      BM_ROW(1, kMath, "f", draw::nothing, x.leaky_relu()),
      BM_ROW(2, kRounded, "fi", draw::nothing, x.square()),
      BM_ROW(3, kRounded, "f", draw::nothing, x * 0.25),
      BM_ROW(1, kStep, "f", draw::nothing, x.sign()),
      BM_ROW(1, kStep, "f", draw::nothing, x.trunc()),
      BM_ROW(1, kStep, "f", draw::nothing, x.floor()),
      BM_ROW(1, kStep, "f", draw::nothing, x.ceil()),
      BM_ROW(1, kStep, "f", draw::nothing, x.round()),
      BM_ROW(1, kStep, "f", draw::nothing, x.isfinite()),
      BM_ROW(1, kMath, "f", draw::nothing, x.mod(1.75)),
      BM_ROW(1, kMath, "f", draw::nothing, x.fmod(1.5)),
      BM_ROW(1, kMath, "f", draw::nothing, x.floor_div(0.75)),
      BM_ROW(6, kRounded, "fib", draw::cast, x.cast(t)),
      BM_ROW(2, kExact, "i", draw::nothing, ~x),
      BM_ROW(2, kExact, "b", draw::nothing, !x),
      BM_ROW(2, kExact, "i", draw::nothing, x >> 2),
      BM_ROW(2, kExact, "i", draw::nothing, x << 1),
      BM_ROW(1, kExact, "i", draw::nothing, (x & 7).pow(2)),

      BM_ROW(10, kRounded, "fi", draw::partner, x + y),
      BM_ROW(8, kRounded, "fi", draw::partner, x - y),
      BM_ROW(22, kRounded, "fi", draw::partner, x * y),
      BM_ROW(3, kExact, "fi", draw::partner, x.maximum(y)),
      BM_ROW(3, kExact, "fi", draw::partner, x.minimum(y)),
      BM_ROW(4, kMath, "f", draw::partner, x / (y.abs() + 0.5)),
      BM_ROW(1, kMath, "i", draw::partner, x / (y.abs() + 1)),
      BM_ROW(2, kMath, "f", draw::partner, x.lerp(y, 0.25)),
      BM_ROW(2, kMath, "f", draw::partner, x.sigmoid() * y),
      BM_ROW(2, kSum, "f", draw::nothing, x - x.mean()),
      BM_ROW(2, kStep, "fi", draw::partner, x < y),
      BM_ROW(1, kStep, "fi", draw::partner, x >= y),
      BM_ROW(1, kStep, "fib", draw::partner, x == y),
      BM_ROW(1, kStep, "fi", draw::partner, x != y),
      BM_ROW(3, kMath, "fi", draw::partner, (x > 0).where(x, y)),
      BM_ROW(3, kExact, "fi", draw::choice, z.where(x, y)),
      BM_ROW(2, kExact, "ib", draw::partner, x & y),
      BM_ROW(2, kExact, "ib", draw::partner, x | y),
      BM_ROW(2, kExact, "ib", draw::partner, x ^ y),
      BM_ROW(2, kExact, "i", draw::partner, x.mod((y & 7) + 1)),
      BM_ROW(2, kExact, "i", draw::partner, x.floor_div((y & 7) + 1)),
      BM_ROW(1, kExact, "i", draw::partner, x.trunc_div((y & 7) + 1)),
      BM_ROW(1, kExact, "i", draw::partner, x.fmod((y & 7) + 1)),
      BM_ROW(2, kRounded, "fi", draw::ranked,
             x + Tensor::arange(x.size(-1), x.dtype(), x.device().name())),

      BM_ROW(5, kSum, "fib", draw::axes, x.sum(axes, keep)),
      BM_ROW(4, kSum, "f", draw::axes, x.mean(axes, keep)),
      BM_ROW(4, kExact, "fi", draw::axes, x.max(axes, keep)),
      BM_ROW(4, kExact, "fi", draw::axes, x.min(axes, keep)),
      BM_ROW(1, kSum, "fi", draw::axis, x.prod({i}, keep)),
      BM_ROW(8, kSum, "f", draw::axes, x.var(axes, keep)),
      BM_ROW(5, kSum, "f", draw::axes, x.std(axes, keep, 0)),
      BM_ROW(6, kSum, "f", draw::axes, x.logsumexp(axes, keep)),
      BM_ROW(2, kExact, "ib", draw::axes, x.any(axes, keep)),
      BM_ROW(2, kExact, "ib", draw::axes, x.all(axes, keep)),
      BM_ROW(3, kOrder, "fi", draw::axis, x.argmax(i, keep)),
      BM_ROW(3, kOrder, "fi", draw::axis, x.argmin(i, keep)),
      BM_ROW(6, kSum, "f", draw::axis, x.softmax(i)),
      BM_ROW(3, kSum, "f", draw::axis, x.log_softmax(i)),
      BM_ROW(3, kSum, "fi", draw::axis, x.cumsum(i)),
      BM_ROW(1, kSum, "fi", draw::axis, x.cumprod(i)),
      BM_ROW(2, kExact, "fi", draw::axis, x.cummax(i)),
      BM_ROW(2, kExact, "fi", draw::axis, x.sort(i, keep).first),
      BM_ROW(2, kOrder, "fi", draw::axis, x.sort(i, keep).second),
      BM_ROW(2, kExact, "fi", draw::some, x.topk(j, i, keep).first),
      BM_ROW(2, kOrder, "fi", draw::some, x.topk(j, i, keep).second),

      BM_ROW(6, kNorm, "f", draw::ranked, x.layer_norm()),
      BM_ROW(6, kNorm, "f", draw::affine, x.layer_norm(y, z)),
      BM_ROW(2, kNorm, "f", draw::image, x.layer_norm({}, {}, 1e-5, 2)),
      BM_ROW(3, kSum, "f", draw::ranked, x.rms_norm()),
      BM_ROW(3, kSum, "f", draw::affine, x.rms_norm(y)),
      BM_ROW(4, kNorm, "f", draw::channels, x.group_norm(j, y, z)),
      BM_ROW(3, kNorm, "f", draw::image, x.group_norm(x.size(1).constant())),
      BM_ROW(2, kSum, "f", draw::channels, x.batch_norm(y, z, z * 0.5, y.abs() + 0.5)),

      BM_ROW(6, kSum, "f", draw::right, x.matmul(y)),
      BM_ROW(2, kSum, "i", draw::right, x.matmul(y)),
      BM_ROW(3, kSum, "f", draw::linear, x.linear(y, z)),
      BM_ROW(2, kSum, "f", draw::transposed, Tensor::einsum("...ij,kj->...ik", std::array{x, y})),
      BM_ROW(2, kSum, "f", draw::weighted, Tensor::einsum("...i,i->...", std::array{x, y})),
      BM_ROW(3, kSum, "f", draw::kernel, x.conv(y, z, {j}, {k})),
      BM_ROW(2, kSum, "f", draw::depthwise, x.conv(y, z, {j}, {k}, {1}, x.size(1).constant())),
      BM_ROW(2, kSum, "f", draw::turned, x.conv_transpose(y, z, {j})),
      BM_ROW(2, kExact, "f", draw::window, x.max_pool({2, 2}, {j})),
      BM_ROW(2, kSum, "f", draw::window, x.avg_pool({2, 2}, {j})),
      BM_ROW(2, kSum, "f", draw::keys, Tensor::attention(x, y, z, {}, keep)),

      BM_ROW(3, kExact, "fib", draw::nothing, x.flatten()),
      BM_ROW(3, kExact, "fib", draw::divided, x.unflatten(i, {j, -1})),
      BM_ROW(3, kExact, "fib", draw::two_axes, x.transpose(i, j)),
      BM_ROW(3, kExact, "fib", draw::order, x.permute(axes)),
      BM_ROW(3, kExact, "fib", draw::grown, x.expand(shape_of(dims))),
      BM_ROW(5, kExact, "fib", draw::range, x.slice(i, {j, k, 1})),
      BM_ROW(2, kExact, "fib", draw::axis, x.slice(i, {{}, {}, -j})),
      BM_ROW(12, kExact, "fib", draw::first_rows, x.slice(i, {0, length, 1})),
      BM_ROW(4, kExact, "fib", draw::last_row, x.slice(i, {length - 1, length, 1})),
      BM_ROW(3, kExact, "fib", draw::axis, x.flip({i})),
      BM_ROW(4, kExact, "fi", draw::padded, x.pad(room(pads), 1)),
      BM_ROW(2, kExact, "fib", draw::axis, x.roll(j, i)),
      BM_ROW(2, kExact, "fib", draw::growing, x.repeat_interleave(2, i)),
      BM_ROW(3, kExact, "fib", draw::growing, Tensor::cat(std::array{x, x.flip({i})}, i)),
      BM_ROW(3, kExact, "fib", draw::twin, Tensor::cat(std::array{x, y}, i)),
      BM_ROW(2, kExact, "fib", draw::twin, Tensor::stack(std::array{x, y}, i)),
      BM_ROW(2, kExact, "fi", draw::matrix, x.tril(j - 2)),
      BM_ROW(2, kExact, "fi", draw::matrix, x.triu(j - 2)),
      BM_ROW(1, kExact, "fib", draw::matrix, x.diagonal()),
      BM_ROW(2, kExact, "fib", draw::nothing, x.squeeze()),
      BM_ROW(2, kExact, "fib", draw::axis, x.unsqueeze(i)),
      BM_ROW(2, kExact, "fib", draw::axis, x.chunk(2, i)[0]),
      BM_ROW(2, kExact, "fib", draw::nothing, x.contiguous()),
      BM_ROW(3, kExact, "fi", draw::lookup, x.gather(i, y)),
      BM_ROW(3, kExact, "fi", draw::rows_of, x.take(y, i)),
      BM_ROW(2, kExact, "fi", draw::scattered, x.scatter(i, y, z)),
      BM_ROW(2, kSum, "fi", draw::scattered, x.scatter(i, y, z, "add")),
      BM_ROW(1, kExact, "fi", draw::scattered, x.scatter(i, y, z, "max")),
      BM_ROW(1, kExact, "fi", draw::scattered, x.scatter(i, y, z, "min")),
      BM_ROW(1, kSum, "fi", draw::scattered, x.scatter(i, y, z, "prod")),

      // What models are made of.
      BM_ROW(3, kSum, "f", draw::grouped,
             Tensor::attention(x, y.index({0}), y.index({1}), {}, keep)),
      BM_ROW(3, kSum, "f", draw::masked,
             Tensor::attention(x, y.index({0}), y.index({1}), z, keep, 0.25)),
      BM_ROW(2, kSum, "f", draw::grouped,
             Tensor::attention(x, y.index({0}), y.index({1}), seen(x, y, j, k))),
      BM_ROW(3, kSum, "f", draw::decoded, mixed(x, y, j, 2.0, t)),
      BM_ROW(2, kMath, "f", draw::angles, rotated(x, y)),
      BM_ROW(2, kMath, "f", draw::angles, rotated_pairs(x, y)),
      BM_ROW(3, kSum, "f", draw::gated,
             (x.linear(y.index({0})).silu() * x.linear(y.index({1}))).linear(z)),
      BM_ROW(2, kSum, "f", draw::nibbles, x.linear(unpacked(y, z))),
      BM_ROW(2, kSum, "f", draw::words, x.linear(unpacked_words(y, z))),
      BM_ROW(2, kSum, "f", draw::bytes, x.linear((y.cast(z.dtype()) * (z * 0.03125)).flatten(1))),
      BM_ROW(2, kSum, "i", draw::blocks, block_product(x, y, z * 0x1p-10)),
      // Vectors that 16 bits hold, so that it does not matter whether a device rounds them.
      BM_ROW(2, kSum, "f", draw::half_layer, x.cast(DType::kF16).cast(DType::kF32).linear(y, z)),
      BM_ROW(2, kSum, "f", draw::bfloat_layer, x.cast(DType::kBF16).cast(DType::kF32).linear(y, z)),
      BM_ROW(2, kSum, "f", draw::experts, Tensor::einsum("mk,mnk->mn", std::array{x, y.take(z)})),
      BM_ROW(3, kSum, "f", draw::dilated, x.conv(y, z, axes, dims, {j}, k)),
      BM_ROW(2, kSum, "f", draw::turned_back, x.conv_transpose(y, z, axes, dims, {i}, {j}, k)),
      BM_ROW(2, kExact, "f", draw::pooled, x.max_pool(axes, dims, {j}, {k})),
      BM_ROW(2, kSum, "f", draw::pooled, x.avg_pool(axes, dims, {j}, keep)),
      BM_ROW(2, kSum, "fi", draw::accumulated, x.matmul(y, t)),
      BM_ROW(2, kSum, "fi", draw::summed, x.sum(axes, keep, t)),
      BM_ROW(2, kSum, "f", draw::batched, Tensor::einsum("bij,bkj->bik", std::array{x, y})),
      BM_ROW(1, kRounded, "f", draw::column, Tensor::einsum("...,j->...j", std::array{x, y})),
      BM_ROW(1, kSum, "f", draw::chained, Tensor::einsum("...i,ij,jk->...k", std::array{x, y, z})),
      BM_ROW(1, kExact, "f", draw::square, Tensor::einsum("...ii->...i", std::array{x})),
      BM_ROW(1, kSum, "f", draw::square, Tensor::einsum("...ii->...", std::array{x})),
      BM_ROW(1, kSum, "f", draw::same, Tensor::einsum("...ij,...ij->...j", std::array{x, y})),
      BM_ROW(1, kSum, "f", draw::same, Tensor::einsum("...ij,...kj->...ik", std::array{x, y})),
      BM_ROW(2, kExact, "i", draw::same_bits, x.bitcast(t)),
      BM_ROW(1, kExact, "i", draw::nothing,
             ((x.cast(DType::kI32) & 0x7fffff) | 0x3f800000).bitcast(DType::kF32)),
      BM_ROW(1, kExact, "i", draw::nothing,
             ((x.cast(DType::kU16) & 1023) | 0x3c00).bitcast(DType::kF16)),
      BM_ROW(1, kExact, "i", draw::nothing,
             ((x.cast(DType::kI16) & 127) | 0x3f80).bitcast(DType::kBF16)),
      BM_ROW(1, kStep, "f", draw::nothing, x.cast(DType::kF32).bitcast(DType::kI32) >> 3),
      BM_ROW(2, kExact, "fib", draw::repeated, x.repeat(dims)),
      BM_ROW(2, kExact, "f", draw::cropped, x.pad(room(pads), -0.5)),
      BM_ROW(2, kExact, "fib", draw::range, x.slice(i, {j, k, 2})),
      BM_ROW(2, kExact, "fib", draw::range, x.slice(i, {k - 1, {}, -2})),
      BM_ROW(1, kExact, "fib", draw::axis, x.slice(i, {-j, {}, 1})),
      BM_ROW(1, kExact, "fib", draw::indexed, x.index({j, Slice{k, {}, -3}})),
      BM_ROW(1, kExact, "fib", draw::indexed, x.index({Slice{{}, {}, 2}, k})),
      BM_ROW(1, kExact, "fib", draw::axis, x.split(j, i).back()),
      BM_ROW(2, kMath, "f", draw::nothing, (x.to(beside(x)).silu() + 1).to(x.device().name())),
  };
  const auto assigns = [&r](Row row) {
    row.is_assign = true;
    r.push_back(row);
  };
  assigns(BM_ROW(6, kRounded, "fi", draw::assigned, x.assign(y)));
  assigns(BM_ROW(6, kRounded, "fi", draw::assigned_part, (x.slice(i, {j, k, 1}).assign(y), x)));
  r.back().part = [](const Numbers& n) { return std::pair(SymInt(n.j), SymInt(n.k)); };
  // As a key-value cache is filled.
  assigns(BM_ROW(6, kRounded, "fi", draw::assigned_last,
                 (x.slice(i, {length - 1, length, 1}).assign(y), x)));
  r.back().part = [](const Numbers& n) { return std::pair(n.length - 1, n.length); };
  assigns(
      BM_ROW(6, kRounded, "fi", draw::assigned_first, (x.slice(i, {0, length, 1}).assign(y), x)));
  r.back().part = [](const Numbers& n) { return std::pair(SymInt(0), n.length); };
  return r;
}

}  // namespace

const std::vector<Row>& rows() {
  // Read by every program, never changed.
  static const std::vector<Row> table = make_rows();
  return table;
}

}  // namespace bm::test
