// Normalisations. Statistics of 16-bit inputs are kept in float32; the result has the input's
// dtype.
#include "tensor/ops_internal.h"

namespace bm {
namespace {

/// (x - mean) / √(variance + eps) over axes, at the wide dtype.
Tensor standardized(const Tensor& x, const Axes& axes, double eps) {
  const Tensor centered = x - x.mean(axes, true);
  return centered * (centered.square().mean(axes, true) + eps).rsqrt();
}

/// [c] against x [n, c, ...].
Tensor per_channel(const Tensor& v, const Tensor& x, std::string_view what) {
  if (v.rank() != 1 || x.rank() < 2 || (v.size(0) != x.size(1) && !v.size(0).is(1)))
    raise(Code::kInvalidArgument, "{} of {}: {} is not one value per channel", what,
          ops::describe(x), ops::describe(v));
  Shape shape(static_cast<size_t>(x.rank()), SymInt(1));
  shape[1] = v.size(0);
  return v.reshape(shape).cast(ops::wide_float(x.dtype()));
}

Tensor scaled(Tensor x, const Tensor& weight, const Tensor& bias) {
  if (weight.is_valid()) x = x * weight.cast(x.dtype());
  return bias.is_valid() ? x + bias.cast(x.dtype()) : x;
}

void check_trailing(const Tensor& x, const Tensor& v, std::string_view what) {
  bool fits = !v.is_valid() || v.rank() <= x.rank();
  for (int64_t i = 1; fits && v.is_valid() && i <= v.rank(); ++i)
    fits = v.size(-i) == x.size(-i) || v.size(-i).is(1);
  if (!fits)
    raise(Code::kInvalidArgument, "{} of {}: {} does not match its last axes", what,
          ops::describe(x), ops::describe(v));
}

}  // namespace

Tensor Tensor::layer_norm(const Tensor& weight, const Tensor& bias, double eps,
                          int64_t num_axes) const {
  if (num_axes < 1 || num_axes > rank())
    raise(Code::kInvalidArgument, "layer_norm of {} over {} axes", ops::describe(*this), num_axes);
  check_trailing(*this, weight, "layer_norm");
  check_trailing(*this, bias, "layer_norm");
  Axes axes;
  for (int64_t i = 1; i <= num_axes; ++i) axes.push_back(-i);
  const Tensor wide = cast(ops::wide_float(dtype()));
  return scaled(standardized(wide, axes, eps), weight, bias).cast(float_dtype(dtype()));
}

Tensor Tensor::rms_norm(const Tensor& weight, double eps) const {
  check_trailing(*this, weight, "rms_norm");
  const Tensor wide = cast(ops::wide_float(dtype()));
  const Tensor scale = (wide.square().mean({-1}, true) + eps).rsqrt();
  return scaled(wide * scale, weight, {}).cast(float_dtype(dtype()));
}

Tensor Tensor::batch_norm(const Tensor& weight, const Tensor& bias, const Tensor& mean,
                          const Tensor& variance, double eps) const {
  const Tensor wide = cast(ops::wide_float(dtype()));
  Tensor scale = (per_channel(variance, *this, "batch_norm") + eps).rsqrt();
  if (weight.is_valid()) scale = scale * per_channel(weight, *this, "batch_norm");
  Tensor out = (wide - per_channel(mean, *this, "batch_norm")) * scale;
  if (bias.is_valid()) out = out + per_channel(bias, *this, "batch_norm");
  return out.cast(float_dtype(dtype()));
}

Tensor Tensor::group_norm(int64_t groups, const Tensor& weight, const Tensor& bias,
                          double eps) const {
  const bool fits =
      rank() >= 2 && groups >= 1 && size(1).is_const() && size(1).constant() % groups == 0;
  if (!fits)
    raise(Code::kInvalidArgument, "group_norm of {}: {} groups do not divide its channels",
          ops::describe(*this), groups);
  const Tensor wide =
      cast(ops::wide_float(dtype())).unflatten(1, {groups, size(1).constant() / groups});
  Axes axes;
  for (int64_t i = 2; i < wide.rank(); ++i) axes.push_back(i);
  Tensor out = standardized(wide, axes, eps).flatten(1, 2);
  if (weight.is_valid()) out = out * per_channel(weight, *this, "group_norm");
  if (bias.is_valid()) out = out + per_channel(bias, *this, "group_norm");
  return out.cast(float_dtype(dtype()));
}

}  // namespace bm
