#pragma once
// Small helpers shared by the ops_*.cpp files.

#include "tensor/primitives.h"

namespace bm::ops {

/// Tensor of x's shape and device filled with one value.
inline Tensor full_like(const Tensor& x, double value, DType dtype) {
  return constant(value, dtype, x.device()).expand(x.shape());
}

/// f on x as a float tensor. 16-bit floats are computed in float32 and rounded once at the end.
template <class F>
Tensor in_float(const Tensor& x, F&& f) {
  const DType t = float_dtype(x.dtype());
  if (is_half_like(t)) return f(x.cast(DType::kF32)).cast(t);
  return f(x.cast(t));
}

/// float32 for 16-bit floats and non-floats, otherwise t: where intermediate results are kept.
inline DType wide_float(DType t) { return is_half_like(t) ? DType::kF32 : float_dtype(t); }

/// x != 0 as bool.
Tensor truth(const Tensor& x);

/// Sorted, distinct axes in [0, rank); no axes = all of them.
Axes normalized(const Tensor& x, const Axes& axes, std::string_view what);
/// Value that leaves the other operand of a reduction unchanged, as a scalar of x's dtype.
Tensor identity_like(const Tensor& x, ir::ReduceOp op);
/// The reduction of two values.
Tensor combine(ir::ReduceOp op, const Tensor& a, const Tensor& b);
/// Whether kernels for x's device run in work-groups, which share no running results.
bool has_groups(const Tensor& x);
/// Position of the first largest (smallest) element or NaN along an axis, which is kept with size
/// 1, in one pass; nothing for 64-bit types and axes that are symbolic or too long.
std::optional<Tensor> first_extreme(const Tensor& x, int64_t axis, bool is_largest);
/// Softmax along an axis for attention: lines of nothing but -inf give 0 instead of NaN. Float32 or
/// wider.
Tensor shares(const Tensor& x, int64_t axis);
/// Drops axes of size 1 that a reduction left (sorted).
Tensor drop_axes(const Tensor& x, const Axes& axes);
/// Product of dimensions, of which at most one may be symbolic.
SymInt product(const Shape& shape, std::string_view what);
/// A symbolic integer as an int64 scalar on x's device.
Tensor number(const SymInt& n, const Tensor& like);
/// 0, 1, … along one axis of a tensor of this rank (other axes have size 1).
Tensor iota_along(const SymInt& n, int64_t axis, int64_t rank, runtime::Device& device);
/// "float32 [2, 3]" for messages.
std::string describe(const Tensor& x);
/// Throws naming dtype and shape unless x holds integers.
void need_integer(const Tensor& x, std::string_view what);

/// Dtypes of a sum of products: operands are cast to `sum` before they are multiplied.
struct Product {
  DType sum, result;
};
Product product_types(const Tensor& a, const Tensor& b,
                      std::optional<DType> accumulate = std::nullopt);

/// One value per spatial axis: `given` of size 1 counts for all.
Axes spread(const Axes& given, int64_t count, std::string_view what);
/// Windows over the last kernel.size() axes: [..., *s] → [..., *out, *kernel].
Tensor windows(const Tensor& x, const Axes& kernel, const Axes& stride, const Axes& dilation,
               std::string_view what);

/// Rows of threefry output: two uint32 words per uint64 counter. key and counter broadcast.
std::pair<Tensor, Tensor> threefry(const Tensor& key, const Tensor& counter);

}  // namespace bm::ops
