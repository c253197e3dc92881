// Reading and writing through tensors of integers.
#include "tensor/ops_internal.h"

namespace bm {

using enum ir::Op;

namespace {

/// Integers of any dtype as int64 positions on an axis of size n; negative ones count from its end.
Tensor positions(const Tensor& index, const SymInt& n, std::string_view what) {
  ops::need_integer(index, what);
  const Tensor at = index.cast(DType::kI64);
  if (is_unsigned(index.dtype())) return at;
  return select(at < 0, at + ops::number(n, at), at);
}

}  // namespace

Tensor Tensor::gather(int64_t axis_, const Tensor& index) const {
  if (rank() == 0 && index.rank() == 0)
    return unsqueeze(0).gather(axis_, index.unsqueeze(0)).squeeze(0);
  const int64_t a = axis(axis_);
  if (index.rank() != rank())
    raise(Code::kInvalidArgument, "gather along axis {}: index {} and source {} differ in rank", a,
          ops::describe(index), ops::describe(*this));
  return gather_raw(*this, a, positions(index, size(a), "gather: the index"));
}

Tensor Tensor::take(const Tensor& index, int64_t axis_) const {
  if (rank() == 0) return unsqueeze(0).take(index, axis_);
  const int64_t a = axis(axis_);
  if (index.rank() == 0) return take(index.reshape({1}), a).squeeze(a);
  // Source [pre, n, post] seen as [pre, n, 1…, post]; the index fills the axes in the middle.
  const Shape pre(shape().begin(), shape().begin() + a),
      post(shape().begin() + a + 1, shape().end());
  const auto between = [&](const Shape& middle) {
    Shape s = pre;
    s.insert(s.end(), middle.begin(), middle.end());
    s.insert(s.end(), post.begin(), post.end());
    return s;
  };
  const Shape& wanted = index.shape();
  Shape flat(wanted.size(), SymInt(1)), grown = wanted;
  flat[0] = grown[0] = size(a);
  Shape aligned(pre.size(), SymInt(1));
  aligned.insert(aligned.end(), wanted.begin(), wanted.end());
  aligned.insert(aligned.end(), post.size(), SymInt(1));
  const Tensor at =
      positions(index, size(a), "take: the index").reshape(aligned).expand(between(wanted));
  return gather_raw(reshape(between(flat)).expand(between(grown)), a, at);
}

namespace {

struct ScatterKind {
  std::string_view name;
  ir::ReduceOp op;
};
constexpr ScatterKind kScatterKinds[] = {{"add", ir::ReduceOp::kSum},
                                         {"prod", ir::ReduceOp::kProd},
                                         {"max", ir::ReduceOp::kMax},
                                         {"min", ir::ReduceOp::kMin}};

/// Same shape as `wanted` outside `axis`, filled up with `value`.
Tensor filled_up(const Tensor& x, const Shape& wanted, int64_t axis, Scalar value) {
  std::vector<SymInt> room;
  for (int64_t i = 0; i < x.rank(); ++i) {
    room.emplace_back(0);
    room.push_back(i == axis ? SymInt(0) : wanted[static_cast<size_t>(i)] - x.size(i));
  }
  return pad_raw(x, room, value);
}

Tensor cut_to(const Tensor& x, const Shape& wanted) {
  std::vector<SymInt> ranges;
  for (const SymInt& d : wanted) {
    ranges.emplace_back(0);
    ranges.push_back(d);
  }
  return shrink_raw(x, ranges);
}

}  // namespace

// As a function of the old value: element j looks through the whole index for entries equal to j.
// Cost: size(axis) × index.size(axis) comparisons per line, in one reduction kernel; no atomics, so
// the result does not depend on the device. For "set" the entry found is the one furthest along.
Tensor Tensor::scatter(int64_t axis_, const Tensor& index, const Tensor& src,
                       std::string_view how) const {
  if (rank() == 0 && index.rank() == 0)
    return unsqueeze(0).scatter(axis_, index.unsqueeze(0), src, how).squeeze(0);
  const int64_t a = axis(axis_), last = rank() - 1;
  const auto fail_shapes = [&] {
    raise(Code::kInvalidArgument,
          "scatter along axis {} into {}: index {} and source {} do not fit", a,
          ops::describe(*this), ops::describe(index), ops::describe(src));
  };
  if (index.rank() != rank()) fail_shapes();
  Tensor values = src;
  if (src.rank() == 0) {
    Tensor room = scalar_like(*this, 0).expand(index.shape());
    match(room, values, "scatter");
  }
  values = values.cast(dtype());
  if (values.rank() != rank()) fail_shapes();
  for (int64_t i = 0; i < rank(); ++i)
    if ((i != a && (size(i) - index.size(i)).min() < 0) ||
        (values.size(i) - index.size(i)).min() < 0)
      fail_shapes();
  // Lines become the last axis; entries that do not exist point at no element.
  values = filled_up(cut_to(values, index.shape()), shape(), a, {}).transpose(a, last);
  const Tensor at = filled_up(positions(index, size(a), "scatter: the index"), shape(), a, {-1, -1})
                        .transpose(a, last);
  const Tensor old = transpose(a, last);
  const Tensor hits = at.unsqueeze(-2) == ops::iota_along(size(a), last, rank() + 1, device());
  const bool is_empty = index.size(a).is(0);
  if (how == "set") {
    if (is_empty) return *this;
    const Tensor entry = ops::iota_along(index.size(a), rank(), rank() + 1, device());
    const Tensor newest =
        reduce(ir::ReduceOp::kMax, select(hits, entry, scalar_like(entry, -1)), {-1}).squeeze(-1);
    return select(newest >= 0, gather_raw(values, last, newest), old).transpose(a, last);
  }
  for (const ScatterKind& kind : kScatterKinds) {
    if (kind.name != how) continue;
    if (is_bool(dtype()))
      raise(Code::kInvalidArgument, "scatter \"{}\" is not defined on {}", how,
            ops::describe(*this));
    if (is_empty) return *this;
    const Tensor found = select(hits, values.unsqueeze(-2), ops::identity_like(values, kind.op));
    return ops::combine(kind.op, old, reduce(kind.op, found, {-1}).squeeze(-1)).transpose(a, last);
  }
  raise(Code::kInvalidArgument, "scatter: \"{}\" is none of set, add, prod, max, min", how);
}

}  // namespace bm
