#include "tensor/reduce_parts.h"

#include <algorithm>
#include <array>

namespace bm {
namespace {

/// Reductions of at least this many elements to few results are done in parts, so that there is
/// something to share out. Parts depend on the shape alone: results are the same on any number of
/// processors.
constexpr int64_t kLongReduction = 1 << 18, kPart = 1 << 15;
/// Few: of results next to each other, which lie in lanes, and of others.
constexpr int64_t kFewColumns = 256, kFewRows = 16;
/// The same for devices with work-groups, where a group has a result or eight neighbours: less than
/// three quarters of the compute units would have something to do. There parts depend on their
/// number.
constexpr int64_t kGroupPart = 1 << 13;
constexpr int64_t kGroupColumns = 8;

struct Parts {
  int64_t axis = 0, count = 0, length = 0;  ///< count · length elements along the axis, then a rest
};

std::optional<Parts> parts_of(const Tensor& a, const Axes& axes) {
  if (a.device().hal().arch().vendor == hal::Vendor::kRef) return std::nullopt;
  int64_t reduced = 1, kept = 1;
  Parts p{.axis = axes[0]};
  bool has_columns = false;
  for (int64_t i = 0; i < a.rank(); ++i) {
    if (!a.size(i).is_const()) return std::nullopt;
    const int64_t size = a.size(i).constant();
    const bool is_reduced = std::binary_search(axes.begin(), axes.end(), i);
    (is_reduced ? reduced : kept) *= size;
    if (is_reduced && size > a.size(p.axis).constant()) p.axis = i;
    if (size != 1) has_columns = !is_reduced;
  }
  const hal::Arch& arch = a.device().hal().arch();
  const bool has_groups = arch.max_block > 1;
  const int64_t busy = has_groups ? int64_t{arch.units} * 3 / 4 : 0;
  const int64_t few =
      has_columns ? std::max(kFewColumns, busy * kGroupColumns) : std::max(kFewRows, busy);
  if (reduced < kLongReduction || kept > few) return std::nullopt;
  const int64_t size = a.size(p.axis).constant();
  const int64_t part = has_groups ? kGroupPart : kPart;
  const int64_t wanted = std::max<int64_t>(part / (reduced / size), 1);
  // Without a rest, if a length near the wanted one allows that.
  p.length = wanted;
  for (int64_t length = wanted; length > wanted / 4; --length) {
    if (size % length != 0) continue;
    p.length = length;
    break;
  }
  p.count = size / p.length;
  return p.count > 1 ? std::optional(p) : std::nullopt;
}

Tensor reduce_parts(ir::ReduceOp op, const Tensor& a, const Axes& axes, const Parts& p) {
  const int64_t size = a.size(p.axis).constant(), whole = p.count * p.length;
  const Tensor tiles =
      a.slice(p.axis, {0, whole, 1}).unflatten(p.axis, {SymInt(p.count), SymInt(p.length)});
  Axes inside;
  for (int64_t i : axes) inside.push_back(i >= p.axis ? i + 1 : i);
  Shape shape = a.shape();
  for (int64_t i : axes) shape[static_cast<size_t>(i)] = 1;
  const Tensor parts = reduce(op, tiles, inside).contiguous();
  const Tensor out = reduce(op, parts, {p.axis}).reshape(shape);
  if (whole == size) return out;
  const Tensor rest = reduce(op, a.slice(p.axis, {whole, size, 1}), axes).contiguous();
  static constexpr std::array kOps = {ir::Op::kAdd, ir::Op::kMul, ir::Op::kMax, ir::Op::kMin};
  return alu(kOps[static_cast<size_t>(op)], out, rest);
}

}  // namespace

std::optional<Tensor> reduce_in_parts(ir::ReduceOp op, const Tensor& a, const Axes& axes) {
  const std::optional<Parts> parts = parts_of(a, axes);
  return parts ? std::optional(reduce_parts(op, a, axes, *parts)) : std::nullopt;
}

}  // namespace bm
