// Reductions, and scans built from them.
#include "compiler/targets/target.h"
#include "tensor/ops_internal.h"

namespace bm {

using enum ir::Op;

namespace ops {

Axes normalized(const Tensor& x, const Axes& axes, std::string_view what) {
  Axes out;
  const bool is_scalar = x.rank() == 0;
  for (int64_t a : axes) out.push_back(is_scalar && (a == 0 || a == -1) ? 0 : x.axis(a));
  if (axes.empty())
    for (int64_t i = 0; i < x.rank(); ++i) out.push_back(i);
  std::sort(out.begin(), out.end());
  if (std::adjacent_find(out.begin(), out.end()) != out.end())
    raise(Code::kInvalidArgument, "{} of {}: an axis is named twice", what, to_string(x.shape()));
  if (is_scalar) out.clear();  // one line of one element, and no axis to keep or to drop
  return out;
}

Tensor drop_axes(const Tensor& x, const Axes& axes) {
  Shape kept;
  for (int64_t i = 0; i < x.rank(); ++i)
    if (!std::binary_search(axes.begin(), axes.end(), i)) kept.push_back(x.size(i));
  return x.reshape(kept);
}

Tensor identity_like(const Tensor& x, ir::ReduceOp op) {
  const DType t = x.dtype();
  switch (op) {
    case ir::ReduceOp::kSum: return scalar_like(x, 0);
    case ir::ReduceOp::kProd: return scalar_like(x, 1);
    case ir::ReduceOp::kMax:
      return is_float(t) ? scalar_like(x, -HUGE_VAL)
                         : constant_int(t == DType::kU64 ? 0 : int_min(t), t, x.device());
    case ir::ReduceOp::kMin:
      return is_float(t) ? scalar_like(x, HUGE_VAL)
                         : constant_int(t == DType::kU64 ? -1 : int_max(t), t, x.device());
  }
  return {};
}

Tensor combine(ir::ReduceOp op, const Tensor& a, const Tensor& b) {
  switch (op) {
    case ir::ReduceOp::kSum: return a + b;
    case ir::ReduceOp::kProd: return a * b;
    case ir::ReduceOp::kMax: return a.maximum(b);
    case ir::ReduceOp::kMin: return a.minimum(b);
  }
  return {};
}

bool has_groups(const Tensor& x) {
  return compiler::target_info(x.device().hal().arch()).has_groups;
}

}  // namespace ops

namespace {

Tensor reduced(ir::ReduceOp op, const Tensor& x, const Axes& axes, bool keepdim,
               std::string_view what) {
  const Axes list = ops::normalized(x, axes, what);
  if (list.empty()) return x;
  const bool needs_elements = op == ir::ReduceOp::kMax || op == ir::ReduceOp::kMin;
  for (int64_t a : list)
    if (needs_elements && x.size(a).min() == 0 && x.size(a).max() == 0)
      raise(Code::kInvalidArgument, "{} over axis {} of {}: there are no elements", what, a,
            to_string(x.shape()));
  const Tensor out = reduce(op, x, list);
  return keepdim ? out : ops::drop_axes(out, list);
}

/// Number of elements that the axes hold, as a scalar of dtype t.
Tensor count_of(const Tensor& x, const Axes& axes, DType t) {
  Shape sizes;
  for (int64_t a : axes) sizes.push_back(x.size(a));
  const SymInt n = ops::product(sizes, "mean");
  if (n.is_const()) return constant(static_cast<double>(n.constant()), t, x.device());
  return ops::number(n, x).cast(t);
}

/// Mean at the width accumulators have; reduced axes stay.
Tensor wide_mean(const Tensor& x, const Axes& axes) {
  const Tensor wide = x.cast(ops::wide_float(x.dtype()));
  return reduce(ir::ReduceOp::kSum, wide, axes) / count_of(x, axes, wide.dtype());
}

/// Position of the largest (or smallest) element along one axis: the first where it is reached, or
/// the first NaN.
Tensor arg_extreme(const Tensor& x, std::optional<int64_t> axis, bool keepdim, ir::ReduceOp op,
                   std::string_view what) {
  if (!axis) {
    const Tensor flat = x.rank() == 1 ? x : x.reshape({ops::product(x.shape(), what)});
    const Tensor at = arg_extreme(flat, 0, false, op, what);
    return keepdim ? at.reshape(Shape(x.shape().size(), SymInt(1))) : at;
  }
  if (x.rank() == 0) return arg_extreme(x.unsqueeze(0), axis, false, op, what);
  const int64_t a = x.axis(*axis);
  if (x.size(a).is(0))
    raise(Code::kInvalidArgument, "{} over axis {} of {}: there are no elements", what, a,
          to_string(x.shape()));
  if (is_bool(x.dtype())) return arg_extreme(x.cast(DType::kU8), a, keepdim, op, what);
  if (!ops::has_groups(x))
    if (const auto at = ops::first_extreme(x, a, op == ir::ReduceOp::kMax))
      return keepdim ? *at : ops::drop_axes(*at, {a});
  Tensor is_hit = x == reduce(op, x, {a});
  if (is_float(x.dtype())) is_hit = is_hit | x.isnan();
  const Tensor position = ops::iota_along(x.size(a), a, x.rank(), x.device());
  const Tensor first =
      reduce(ir::ReduceOp::kMin,
             select(is_hit, position, scalar_like(position, 0) + x.size(a).max()), {a});
  return keepdim ? first : ops::drop_axes(first, {a});
}

/// Largest value along axes (kept), with 0 where that is -inf or nothing: a shift that leaves no
/// inf - inf.
Tensor safe_max(const Tensor& x, const Axes& axes) {
  for (const int64_t a : axes)
    if (x.size(a).is(0)) return reduce(ir::ReduceOp::kSum, x, axes);
  const Tensor m = reduce(ir::ReduceOp::kMax, x, axes);
  return select(alu(kEq, m, scalar_like(m, -HUGE_VAL)), scalar_like(m, 0), m);
}

/// e^(x - max) and its sum along axes, which is 0 for lines of nothing but -inf.
struct Exponentials {
  Tensor shifted, values, sum;
};
Exponentials exponentials(const Tensor& x, const Axes& axes) {
  Exponentials e;
  e.shifted = x - safe_max(x, axes);
  e.values = (e.shifted * (1 / std::log(2.0))).exp2();
  e.sum = reduce(ir::ReduceOp::kSum, e.values, axes);
  return e;
}

}  // namespace

Tensor ops::shares(const Tensor& x, int64_t axis) {
  const Exponentials e = exponentials(x, {axis});
  const Tensor sum = select(alu(kEq, e.sum, scalar_like(e.sum, 0)), scalar_like(e.sum, 1), e.sum);
  return e.values * sum.reciprocal();
}

Tensor Tensor::sum(const Axes& axes, bool keepdim, std::optional<DType> accumulate) const {
  return reduced(ir::ReduceOp::kSum, cast(accumulate ? *accumulate : sum_dtype(dtype())), axes,
                 keepdim, "sum");
}
Tensor Tensor::prod(const Axes& axes, bool keepdim) const {
  return reduced(ir::ReduceOp::kProd, cast(sum_dtype(dtype())), axes, keepdim, "prod");
}
Tensor Tensor::max(const Axes& axes, bool keepdim) const {
  return reduced(ir::ReduceOp::kMax, *this, axes, keepdim, "max");
}
Tensor Tensor::min(const Axes& axes, bool keepdim) const {
  return reduced(ir::ReduceOp::kMin, *this, axes, keepdim, "min");
}

Tensor Tensor::any(const Axes& axes, bool keepdim) const {
  const Tensor bits =
      ops::truth(*this).cast(DType::kI32);  // an empty line gives 0: the sum, not the largest
  return ops::truth(reduced(ir::ReduceOp::kSum, bits, axes, keepdim, "any"));
}
Tensor Tensor::all(const Axes& axes, bool keepdim) const { return !(!*this).any(axes, keepdim); }

Tensor Tensor::mean(const Axes& axes, bool keepdim) const {
  const Axes list = ops::normalized(*this, axes, "mean");
  const Tensor out = wide_mean(*this, list).cast(float_dtype(dtype()));
  return keepdim ? out : ops::drop_axes(out, list);
}

Tensor Tensor::var(const Axes& axes, bool keepdim, int64_t correction) const {
  const Axes list = ops::normalized(*this, axes, "var");
  const Tensor wide = cast(ops::wide_float(dtype()));
  const Tensor squares = reduce(ir::ReduceOp::kSum, (wide - wide_mean(*this, list)).square(), list);
  const Tensor freedom = (count_of(*this, list, wide.dtype()) - correction).maximum(0);
  const Tensor out = (squares / freedom).cast(float_dtype(dtype()));
  return keepdim ? out : ops::drop_axes(out, list);
}

Tensor Tensor::std(const Axes& axes, bool keepdim, int64_t correction) const {
  return cast(ops::wide_float(dtype()))
      .var(axes, keepdim, correction)
      .sqrt()
      .cast(float_dtype(dtype()));
}

Tensor Tensor::argmax(std::optional<int64_t> axis, bool keepdim) const {
  return arg_extreme(*this, axis, keepdim, ir::ReduceOp::kMax, "argmax");
}
Tensor Tensor::argmin(std::optional<int64_t> axis, bool keepdim) const {
  return arg_extreme(*this, axis, keepdim, ir::ReduceOp::kMin, "argmin");
}

Tensor Tensor::logsumexp(const Axes& axes, bool keepdim) const {
  const Axes list = ops::normalized(*this, axes, "logsumexp");
  const Tensor wide = cast(ops::wide_float(dtype()));
  const Tensor m = safe_max(wide, list);
  // The largest is +inf: inf - inf would be NaN.
  const Tensor shifted = select(wide == HUGE_VAL, wide, wide - m);
  const Tensor powers = (shifted * (1 / std::log(2.0))).exp2();
  const Tensor out =
      (reduce(ir::ReduceOp::kSum, powers, list).log() + m).cast(float_dtype(dtype()));
  return keepdim ? out : ops::drop_axes(out, list);
}

Tensor Tensor::softmax(int64_t axis_) const {
  if (rank() == 0) return unsqueeze(0).softmax(axis_).squeeze(0);
  const Exponentials e = exponentials(cast(ops::wide_float(dtype())), {axis(axis_)});
  return (e.values * e.sum.reciprocal()).cast(float_dtype(dtype()));
}

Tensor Tensor::log_softmax(int64_t axis_) const {
  if (rank() == 0) return unsqueeze(0).log_softmax(axis_).squeeze(0);
  const Exponentials e = exponentials(cast(ops::wide_float(dtype())), {axis(axis_)});
  return (e.shifted - e.sum.log()).cast(float_dtype(dtype()));
}

namespace {

/// Of a scan on devices with work-groups: lines side by side in a group where the axis is not the
/// last, and fewest elements of a part of a line that is worth a group.
constexpr int64_t kScanColumns = 32, kLeastScanPart = 2048, kLeastColumnPart = 256;
/// Parts of a line at most: what each gives is scanned in one step.
constexpr int64_t kMostScanParts = 512;
/// Groups along the later axes of a grid.
constexpr int64_t kMostScanGroups = 65535;

/// out[i] = op over j < i of x[j], along the last axis: n² steps in one kernel.
Tensor scan_before(ir::ReduceOp op, const Tensor& x) {
  const int64_t rank = x.rank();
  const Tensor i = ops::iota_along(x.size(-1), rank - 1, rank + 1, x.device());
  const Tensor j = ops::iota_along(x.size(-1), rank, rank + 1, x.device());
  const Tensor masked = select(j < i, x.unsqueeze(-2), ops::identity_like(x, op));
  return reduce(op, masked, {-1}).squeeze(-1);
}

/// Parts of a line with a group each; 1: as it is there is one for every second compute unit, or
/// lines are too short.
int64_t scan_parts(const Tensor& x, int64_t axis) {
  int64_t lines = 1, inner = 1;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (!x.size(i).is_const()) return 1;
    if (i != axis) lines *= x.size(i).constant();
    if (i > axis) inner *= x.size(i).constant();
  }
  const int64_t n = x.size(axis).constant(), units = x.device().hal().arch().units;
  const int64_t groups = inner > 1 ? (lines + kScanColumns - 1) / kScanColumns : lines;
  const int64_t least = inner > 1 ? kLeastColumnPart : kLeastScanPart;
  if (lines == 0 || groups * 2 > units) return 1;
  return std::clamp<int64_t>(std::min(units / groups, n / least), 1, kMostScanParts);
}

/// Parts side by side, each starting with what all before it give: their results come first, in
/// kernels of their own. One kernel cannot do both: its groups may run in any order, so that none
/// may wait for another (decoupled look-back).
Tensor scan_in_parts(ir::ReduceOp op, const Tensor& x, int64_t axis, int64_t parts, DType t) {
  const int64_t n = x.size(axis).constant();
  int64_t length = (n + parts - 1) / parts;
  // Without a rest if a length near it allows that; else parts of whole vectors.
  for (int64_t longer = length; longer < 2 * length; ++longer)
    if (n % longer == 0 && longer % 16 == 0) {
      length = longer;
      break;
    }
  if (n % length != 0) length = (length + 63) / 64 * 64;
  parts = (n + length - 1) / length;
  std::vector<SymInt> room(static_cast<size_t>(2 * x.rank()), SymInt(0));
  room[static_cast<size_t>(2 * axis + 1)] = parts * length - n;
  const Tensor whole =
      parts * length == n ? x : pad_raw(x, room, ops::identity_like(x, op).node()->scalar);
  const Tensor tiles = whole.unflatten(axis, {SymInt(parts), SymInt(length)});
  const auto before_each = [&](const Tensor& totals) {
    return scan_before(op, totals.transpose(axis, -1))
        .transpose(axis, -1)
        .unsqueeze(axis + 1)
        .contiguous();
  };
  Tensor out;
  if (op == ir::ReduceOp::kSum && t == DType::kF32) {
    // Running sums in float32 drift unless what is before a part is added last; and scans, which
    // are compensated, end with better totals than a reduction.
    const Tensor inside = scan_raw(op, tiles, axis + 1);
    const Tensor totals = inside.slice(axis + 1, {length - 1, length, 1}).squeeze(axis + 1);
    out = ops::combine(op, before_each(totals), inside).cast(t);
  } else {
    const Tensor totals = reduce(op, tiles, {axis + 1}).squeeze(axis + 1).contiguous();
    const Tensor number = ops::iota_along(SymInt(length), axis + 1, tiles.rank(), x.device());
    const Tensor start = ops::combine(op, before_each(totals), tiles);
    out = scan_raw(op, select(number == 0, start, tiles), axis + 1).cast(t);
  }
  const Tensor lines = out.flatten(axis, axis + 1);
  return parts * length == n ? lines : lines.slice(axis, {0, n, 1});
}

/// Whether a kernel has an axis of its grid for every extent that is known at launch only.
bool has_scan_grid(const Tensor& x, int64_t axis) {
  int64_t others = 1, known = 0;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i == axis) continue;
    known += x.size(i).is_const() ? 0 : 1;
    if (x.size(i).is_const()) others *= x.size(i).constant();
    if (!x.size(i).is_const() && x.size(i).max() > kMostScanGroups) return false;
  }
  return known < 2 && others <= INT32_MAX;
}

/// Of type `t` in the end.
Tensor scan(ir::ReduceOp op, const Tensor& x, int64_t axis, DType t) {
  if (x.rank() == 0) return scan(op, x.unsqueeze(0), axis, t).squeeze(0);
  axis = x.axis(axis);
  if (x.size(axis).is(0) || x.size(axis).is(1)) return x.cast(t);
  if (!ops::has_groups(x)) return scan_raw(op, x, axis).cast(t);
  if (!has_scan_grid(x, axis)) {
    const Tensor line = x.transpose(axis, -1);
    return ops::combine(op, scan_before(op, line), line).transpose(axis, -1).cast(t);
  }
  const int64_t parts = scan_parts(x, axis);
  return parts > 1 ? scan_in_parts(op, x, axis, parts, t) : scan_raw(op, x, axis).cast(t);
}

}  // namespace

// 16-bit floats accumulate in float32 and are rounded once.
Tensor Tensor::cumsum(int64_t axis) const {
  const DType t = sum_dtype(dtype());
  return scan(ir::ReduceOp::kSum, cast(is_half_like(t) ? DType::kF32 : t), axis, t);
}
Tensor Tensor::cumprod(int64_t axis) const {
  const DType t = sum_dtype(dtype());
  return scan(ir::ReduceOp::kProd, cast(is_half_like(t) ? DType::kF32 : t), axis, t);
}
Tensor Tensor::cummax(int64_t axis) const { return scan(ir::ReduceOp::kMax, *this, axis, dtype()); }

}  // namespace bm
