#include "tensor/reduce_parts.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <vector>

namespace bm {
namespace {

/// Reductions of at least this many elements to few results are done in parts, so that there is
/// something to share out. Parts depend on the shape alone: results are the same on any number of
/// processors.
constexpr int64_t kLongReduction = 1 << 18, kPart = 1 << 15;
/// Few: of results next to each other, which lie in lanes, and of others.
constexpr int64_t kFewColumns = 256, kFewRows = 16;
/// The same for devices with work-groups, where a group has a result or eight adjacent ones: less
/// than three quarters of the compute units would have something to do. There parts depend on their
/// number. What a group keeps in registers between its passes over a row, up to 2^15 elements, is
/// not divided, and a part has something to do for every work-item of a group.
constexpr int64_t kGroupLong = 1 << 15, kGroupPart = 1 << 13, kLeastGroupPart = kGroupPart / 8;
constexpr int64_t kGroupColumns = 8;

/// Contractions (GEMM) to few results on CPUs: blocks of tiles are too few for the processors. K is
/// split into parts of this length, which shapes alone decide as above. Less work than this is
/// done before others have been asked to help.
constexpr int64_t kContractionPart = 1 << 11, kFewProducts = 1 << 11;
constexpr int64_t kLeastProducts = 512 * kContractionPart;

/// Contractions of float32 and 16-bit elements on devices with work-groups: a group has a tile of
/// at least so many results, and K is long enough to be worth a second kernel.
constexpr int64_t kGroupTile = 64 * 64, kLongContraction = 1 << 13, kLeastContractionPart = 1024;
/// Parts begin at such a multiple: matrix instructions read 16 bytes at a time.
constexpr int64_t kPartStep = 64;

struct Parts {
  int64_t axis = 0, count = 0, length = 0;  ///< count · length elements along the axis, then a rest
  bool is_outermost =
      false;  ///< results of a part lie together, so that adjacent ones are adjacent
};

/// `size` elements in parts of about `wanted`, without a rest if a length near it allows that.
std::optional<Parts> divided(int64_t size, int64_t wanted, Parts p) {
  p.length = wanted;
  for (int64_t length = wanted; length > wanted / 4; --length) {
    if (size % length != 0) continue;
    p.length = length;
    break;
  }
  p.count = size / p.length;
  return p.count > 1 ? std::optional(p) : std::nullopt;
}

/// Whether an exponential is computed on the way to the value: softmax, whose product with values
/// is one kernel with what makes it (attention).
bool has_exponential(const Node& value) {
  std::vector<const Node*> stack{&value};
  std::unordered_set<const Node*> seen{&value};
  while (!stack.empty()) {
    const Node& n = *stack.back();
    stack.pop_back();
    if (n.kind == NodeKind::kAlu && n.op == ir::Op::kExp2) return true;
    if (n.kind == NodeKind::kReduce || n.kind == NodeKind::kContiguous || n.is_realized()) continue;
    for (const NodePtr& s : n.src)
      if (seen.insert(s.get()).second) stack.push_back(s.get());
  }
  return false;
}

/// Whether `a` is a product of two matrices before it is summed: each factor has an axis of results
/// that the other lacks.
bool is_contraction(const Tensor& a, int64_t k) {
  const Node& n = *a.node();
  if (n.kind != NodeKind::kAlu || n.op != ir::Op::kMul) return false;
  const auto lacks_axis = [&](const Node& factor) {
    if (factor.kind != NodeKind::kExpand) return false;
    for (int64_t i = 0; i < a.rank(); ++i)
      if (i != k && !a.size(i).is(1) && factor.src[0]->shape[static_cast<size_t>(i)].is(1))
        return true;
    return false;
  };
  return lacks_axis(*n.src[0]) && lacks_axis(*n.src[1]) && !has_exponential(*n.src[0]) &&
         !has_exponential(*n.src[1]);
}

/// Whether both factors are float32, or 16-bit elements before they are widened.
bool has_float_factors(const Tensor& a) {
  const auto is_half = [](const NodePtr& factor) {
    const Node* n = factor.get();
    while (n->kind == NodeKind::kExpand || n->kind == NodeKind::kReshape ||
           n->kind == NodeKind::kPermute)
      n = n->src[0].get();
    return n->kind == NodeKind::kCast && is_half_like(n->src[0]->dtype);
  };
  return a.dtype() == DType::kF32 || (is_half(a.node()->src[0]) && is_half(a.node()->src[1]));
}

/// Split-K over groups: as many parts as give every compute unit a tile. One kernel cannot: its
/// groups may run in any order and share no accumulators.
std::optional<Parts> group_contraction(const Tensor& a, int64_t kept, int64_t reduced, Parts p) {
  const int64_t units = a.device().hal().arch().units;
  const int64_t tiles = (kept + kGroupTile - 1) / kGroupTile;
  if (kept < kGroupTile || reduced < kLongContraction || tiles * 2 > units ||
      !is_contraction(a, p.axis) || !has_float_factors(a))
    return std::nullopt;
  const int64_t count = std::min(units / tiles, reduced / kLeastContractionPart);
  const int64_t wanted = (reduced / count + kPartStep - 1) / kPartStep * kPartStep;
  p.length = wanted;
  // Without a rest, which would be a third kernel, if a length near it allows that.
  for (int64_t length = wanted; length > wanted / 2; length -= kPartStep)
    if (reduced % length == 0) {
      p.length = length;
      break;
    }
  p.count = reduced / p.length;
  p.is_outermost = true;
  return p.count > 1 ? std::optional(p) : std::nullopt;
}

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
  if (!has_groups && axes.size() == 1 && kept <= kFewProducts && reduced >= 2 * kContractionPart &&
      kept * reduced >= kLeastProducts && is_contraction(a, p.axis))
    return divided(reduced, kContractionPart, p);
  if (has_groups && axes.size() == 1)
    if (const auto found = group_contraction(a, kept, reduced, p)) return found;
  const int64_t busy = has_groups ? int64_t{arch.units} * 3 / 4 : 0;
  const int64_t few =
      has_columns ? std::max(kFewColumns, busy * kGroupColumns) : std::max(kFewRows, busy);
  // Columns are read a few at a time; whoever reduces these has 2^18 elements before it is worth
  // it.
  const int64_t least = has_groups && !has_columns ? kGroupLong + 1 : kLongReduction;
  if (reduced < least || kept > few) return std::nullopt;
  const int64_t size = a.size(p.axis).constant();
  // A group for every compute unit, or more with parts of the usual length.
  const int64_t part = has_groups ? std::clamp(reduced * kept / std::max<int64_t>(arch.units, 1),
                                               kLeastGroupPart, kGroupPart)
                                  : kPart;
  return divided(size, std::max<int64_t>(part / (reduced / size), 1), p);
}

Tensor reduce_parts(ir::ReduceOp op, const Tensor& a, const Axes& axes, const Parts& p) {
  const int64_t size = a.size(p.axis).constant(), whole = p.count * p.length;
  const Tensor tiles =
      a.slice(p.axis, {0, whole, 1}).unflatten(p.axis, {SymInt(p.count), SymInt(p.length)});
  Axes inside;
  for (int64_t i : axes) inside.push_back(i >= p.axis ? i + 1 : i);
  Shape shape = a.shape();
  for (int64_t i : axes) shape[static_cast<size_t>(i)] = 1;
  Tensor partials = reduce(op, tiles, inside);
  if (p.is_outermost) {
    std::vector<int64_t> order{p.axis};
    for (int64_t i = 0; i < partials.rank(); ++i)
      if (i != p.axis) order.push_back(i);
    partials = partials.permute(order);
  }
  const Tensor parts = partials.contiguous();
  const Tensor out = reduce(op, parts, {p.is_outermost ? 0 : p.axis}).reshape(shape);
  if (whole == size) return out;
  const Tensor rest = reduce(op, a.slice(p.axis, {whole, size, 1}), axes).contiguous();
  static constexpr std::array kOps = {ir::Op::kAdd, ir::Op::kMul, ir::Op::kMax, ir::Op::kMin};
  return alu(kOps[static_cast<size_t>(op)], out, rest);
}

}  // namespace

std::optional<Tensor> reduce_in_two_passes(ir::ReduceOp op, const Tensor& a, const Axes& axes) {
  const std::optional<Parts> parts = parts_of(a, axes);
  return parts ? std::optional(reduce_parts(op, a, axes, *parts)) : std::nullopt;
}

}  // namespace bm
