// Convolutions and pooling over sliding windows, which are views: one fused kernel each.
#include <algorithm>

#include "compiler/targets/card.h"
#include "compiler/targets/target.h"
#include "tensor/ops_internal.h"

namespace bm {
namespace {

/// Of channels that are multiplied by matrix instructions: 16 bytes of them are loaded at once.
constexpr int64_t kChunkBytes = 16;
/// Pixels of a channel of the image, and channels of results, from which on it pays to lay out
/// image and weights anew.
constexpr int64_t kLeastPixels = 512, kLeastChannels = 32;
/// Operations of matrix instructions that a compute unit does in a cycle.
constexpr double kFastProducts = 2048;

/// "conv: float32 [1, 3, 8, 8] and float32 [4, 2, 3, 3] do not fit: why".
[[noreturn]] void raise_fit(std::string_view what, const Tensor& x, const Tensor& weight,
                            std::string_view why) {
  raise(Code::kInvalidArgument, "{}: {} and {} do not fit: {}", what, ops::describe(x),
        ops::describe(weight), why);
}

/// Pads (or cuts, where negative) the last axes.
Tensor pad_last(const Tensor& x, const std::vector<std::pair<int64_t, int64_t>>& amounts,
                Scalar value) {
  std::vector<std::pair<SymInt, SymInt>> cuts(static_cast<size_t>(x.rank()) - amounts.size());
  std::vector<SymInt> room(2 * cuts.size(), SymInt(0));
  for (size_t i = 0; i < cuts.size(); ++i) cuts[i] = {0, x.shape()[i]};
  for (size_t i = 0; i < amounts.size(); ++i) {
    const SymInt& n = x.shape()[cuts.size()];
    const auto [before, after] = amounts[i];
    cuts.emplace_back(std::max<int64_t>(-before, 0), n - std::max<int64_t>(-after, 0));
    room.emplace_back(std::max<int64_t>(before, 0));
    room.emplace_back(std::max<int64_t>(after, 0));
  }
  return pad_raw(x.shrink(cuts), room, value);
}

std::vector<std::pair<int64_t, int64_t>> symmetric(const Axes& padding) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t p : padding) out.emplace_back(p, p);
  return out;
}

void check_bias(std::string_view what, const Tensor& weight, const Tensor& bias,
                const SymInt& channels) {
  if (bias.is_valid() && (bias.rank() != 1 || bias.size(0) != channels))
    raise_fit(what, weight, bias, fmt::format("the bias must be [{}]", channels.to_string()));
}

/// bias [c] added to x [n, c, ...].
Tensor with_bias(const Tensor& x, const Tensor& bias) {
  if (!bias.is_valid()) return x;
  Shape shape(static_cast<size_t>(x.rank()), SymInt(1));
  shape[1] = bias.size(0);
  return x + bias.reshape(shape);
}

void append(Shape& to, const Shape& from, int64_t first, int64_t count) {
  to.insert(to.end(), from.begin() + first, from.begin() + first + count);
}

/// x [n, c, *s], already padded; weight [o, c/groups, *k] → [n, o, *out].
Tensor conv_padded(const Tensor& x, const Tensor& weight, const Axes& stride, const Axes& dilation,
                   int64_t groups) {
  const int64_t spatial = x.rank() - 2;
  const ops::Product types = ops::product_types(x, weight);
  Axes kernel;
  for (int64_t i = 0; i < spatial; ++i) kernel.push_back(weight.size(2 + i).constant());
  const Tensor w =
      ops::windows(x.cast(types.sum), kernel, stride, dilation, "conv");  // [n, c, *out, *k]
  const int64_t in = weight.size(1).constant(), out = weight.size(0).constant() / groups;
  // [n, g, 1, *out, c/g, *k] × [g, o/g, *1, c/g, *k], summed over the tail.
  Shape left{x.size(0), groups, 1, in}, right{groups, out}, result{x.size(0), groups * out};
  append(left, w.shape(), 2, 2 * spatial);
  right.insert(right.end(), static_cast<size_t>(spatial), SymInt(1));
  append(right, weight.shape(), 1, 1 + spatial);
  append(result, w.shape(), 2, spatial);
  Axes order{0, 1, 2}, tail;
  for (int64_t i = 0; i < spatial; ++i) order.push_back(4 + i);
  order.push_back(3);
  for (int64_t i = 0; i < spatial; ++i) order.push_back(4 + spatial + i);
  for (int64_t i = 0; i <= spatial; ++i) tail.push_back(3 + spatial + i);
  const Tensor products = w.reshape(left).permute(order) * weight.cast(types.sum).reshape(right);
  return reduce(ir::ReduceOp::kSum, products, tail).reshape(result).cast(types.result);
}

/// Whether matrix instructions would wait for what is gathered element by element: windows of an
/// image whose channels are planes. Slower ones take as long as that.
bool wants_channels_last(const Tensor& x, const Tensor& weight, int64_t groups) {
  const hal::Arch& arch = x.device().hal().arch();
  const compiler::CardInfo* card = compiler::find_card(arch.name);
  if (card == nullptr || card->mma_f16 < kFastProducts || x.rank() < 3 || !is_static(x.shape()) ||
      x.dtype() != weight.dtype())
    return false;
  const auto size = [](const Tensor& t, int64_t axis) { return t.size(axis).constant(); };
  const int64_t in = size(weight, 1), out = size(weight, 0);
  const int64_t taps = max_elements(weight.shape()) / std::max<int64_t>(in * out, 1);
  const int64_t pixels = max_elements(x.shape()) / std::max<int64_t>(size(x, 1), 1);
  const compiler::TargetInfo target = compiler::target_info(arch);
  return taps > 1 && pixels >= kLeastPixels && out / groups >= kLeastChannels && in > 0 &&
         in * item_size(x.dtype()) % kChunkBytes == 0 &&
         std::ranges::any_of(target.matrix, [&](const auto& m) { return m.in == x.dtype(); });
}

/// The same tensor [n, c, *s] with its channels adjacent in memory.
Tensor channels_last(const Tensor& x) {
  Axes last{0}, back{0, x.rank() - 1};
  for (int64_t i = 2; i < x.rank(); ++i) last.push_back(i);
  for (int64_t i = 1; i + 1 < x.rank(); ++i) back.push_back(i);
  last.push_back(1);
  return x.permute(last).contiguous().permute(back);
}

void check_conv(std::string_view what, const Tensor& x, const Tensor& weight, int64_t groups,
                const SymInt& wanted_channels) {
  if (x.rank() < 2 || weight.rank() != x.rank())
    raise_fit(what, x, weight, "both need [n, channels, spatial axes…] with as many axes");
  if (!is_static(weight.shape())) raise_fit(what, x, weight, "the weight has a symbolic axis");
  if (groups < 1 || weight.size(0).constant() % groups != 0)
    raise_fit(what, x, weight,
              fmt::format("{} groups do not divide the weight's first axis", groups));
  if (x.size(1) != wanted_channels)
    raise_fit(what, x, weight,
              fmt::format("{} input channels, the weight wants {}", x.size(1).to_string(),
                          wanted_channels.to_string()));
}

}  // namespace

Tensor Tensor::conv(const Tensor& weight, const Tensor& bias, const Axes& stride,
                    const Axes& padding, const Axes& dilation, int64_t groups) const {
  check_conv("conv", *this, weight, groups,
             weight.rank() > 1 ? weight.size(1) * groups : SymInt(0));
  check_bias("conv", weight, bias, weight.size(0));
  const int64_t spatial = rank() - 2;
  const bool is_last = wants_channels_last(*this, weight, groups);
  const Tensor x = is_last ? channels_last(*this) : *this;
  const Tensor padded = pad_last(x, symmetric(ops::spread(padding, spatial, "conv: padding")), {});
  const Tensor w = is_last ? channels_last(weight) : weight;
  const Tensor out = conv_padded(padded, w, ops::spread(stride, spatial, "conv: stride"),
                                 ops::spread(dilation, spatial, "conv: dilation"), groups);
  return with_bias(out, bias);
}

namespace {

/// Dilation: step - 1 zeros between adjacent elements of one axis.
Tensor spaced_out(const Tensor& x, int64_t axis, int64_t step) {
  if (step == 1) return x;
  const SymInt& n = x.size(axis);
  std::vector<std::pair<SymInt, SymInt>> room(static_cast<size_t>(x.rank()) + 1, {0, 0});
  room[static_cast<size_t>(axis) + 1].second = step - 1;
  Shape merged = x.shape();
  merged[static_cast<size_t>(axis)] = n * step;
  return x.unsqueeze(axis + 1).pad(room).reshape(merged).slice(axis, {0, n * step - (step - 1), 1});
}

}  // namespace

// The adjoint of conv: input spread out by the stride, padded by what the kernel reaches over the
// edge, convolved with the mirrored kernel. Weight [in, out/groups, *kernel].
Tensor Tensor::conv_transpose(const Tensor& weight, const Tensor& bias, const Axes& stride,
                              const Axes& padding, const Axes& output_padding, const Axes& dilation,
                              int64_t groups) const {
  check_conv("conv_transpose", *this, weight, groups,
             weight.rank() > 0 ? weight.size(0) : SymInt(0));
  check_bias("conv_transpose", weight, bias,
             weight.rank() > 1 ? weight.size(1) * groups : SymInt(0));
  const int64_t spatial = rank() - 2;
  const Axes strides = ops::spread(stride, spatial, "conv_transpose: stride");
  const Axes pads = ops::spread(padding, spatial, "conv_transpose: padding");
  const Axes extra = ops::spread(output_padding, spatial, "conv_transpose: output padding");
  const Axes dilations = ops::spread(dilation, spatial, "conv_transpose: dilation");
  Tensor x = *this;
  std::vector<std::pair<int64_t, int64_t>> amounts;
  Axes mirrored;
  for (int64_t i = 0; i < spatial; ++i) {
    const auto k = static_cast<size_t>(i);
    if (strides[k] < 1)
      raise_fit("conv_transpose", *this, weight, fmt::format("stride {}", strides[k]));
    x = spaced_out(x, 2 + i, strides[k]);
    const int64_t reach = dilations[k] * (weight.size(2 + i).constant() - 1) - pads[k];
    amounts.emplace_back(reach, reach + extra[k]);
    mirrored.push_back(3 + i);
  }
  const int64_t in = weight.size(0).constant() / groups;
  const Tensor swapped =
      weight.unflatten(0, {groups, in}).transpose(1, 2).flip(mirrored).flatten(0, 1);
  const Tensor out = conv_padded(pad_last(x, amounts, {}), swapped,
                                 Axes(static_cast<size_t>(spatial), 1), dilations, groups);
  return with_bias(out, bias);
}

namespace {

/// Windows of the last axes; padding is filled with `value`.
Tensor pool_windows(const Tensor& x, const Axes& kernel, const Axes& stride, const Axes& padding,
                    const Axes& dilation, Scalar value, std::string_view what) {
  const auto spatial = static_cast<int64_t>(kernel.size());
  if (spatial == 0 || spatial > x.rank())
    raise(Code::kInvalidArgument, "{} of {}: {} spatial axes", what, ops::describe(x), spatial);
  const Axes pads = ops::spread(padding, spatial, what);
  for (size_t i = 0; i < kernel.size(); ++i)
    if (pads[i] < 0 || 2 * pads[i] > kernel[i])
      raise(Code::kInvalidArgument, "{} of {}: padding {} exceeds half of the kernel {}", what,
            ops::describe(x), pads[i], kernel[i]);
  return ops::windows(pad_last(x, symmetric(pads), value), kernel,
                      stride.empty() ? kernel : ops::spread(stride, spatial, what),
                      ops::spread(dilation, spatial, what), what);
}

Tensor reduce_windows(ir::ReduceOp op, const Tensor& w, size_t spatial) {
  Axes tail;
  for (size_t i = 0; i < spatial; ++i) tail.push_back(w.rank() - static_cast<int64_t>(spatial - i));
  return ops::drop_axes(reduce(op, w, tail), tail);
}

}  // namespace

Tensor Tensor::max_pool(const Axes& kernel, const Axes& stride, const Axes& padding,
                        const Axes& dilation) const {
  const Scalar lowest = ops::identity_like(*this, ir::ReduceOp::kMax).node()->scalar;
  return reduce_windows(ir::ReduceOp::kMax,
                        pool_windows(*this, kernel, stride, padding, dilation, lowest, "max_pool"),
                        kernel.size());
}

Tensor Tensor::avg_pool(const Axes& kernel, const Axes& stride, const Axes& padding,
                        bool count_padding) const {
  const Tensor wide = cast(ops::wide_float(dtype()));
  const auto sum_of = [&](const Tensor& x) {
    return reduce_windows(ir::ReduceOp::kSum,
                          pool_windows(x, kernel, stride, padding, {1}, {}, "avg_pool"),
                          kernel.size());
  };
  int64_t area = 1;
  for (int64_t k : kernel) area *= k;
  const Tensor total = sum_of(wide);
  const Tensor mean = count_padding ? total / static_cast<double>(area)
                                    : total / sum_of(ops::full_like(wide, 1, wide.dtype()));
  return mean.cast(float_dtype(dtype()));
}

}  // namespace bm
