// Views derived from the primitive ones: slices, joins, repeats, diagonals, sliding windows.
#include "tensor/ops_internal.h"
#include "tensor/reshape.h"

namespace bm {

using enum ir::Op;

namespace ops {

Tensor number(const SymInt& n, const Tensor& like) {
  if (n.is_const()) return constant_int(n.constant(), DType::kI64, like.device());
  return Tensor::value_of(n, like.device().name());
}

SymInt product(const Shape& shape, std::string_view what) {
  SymInt out = 1;
  for (const SymInt& d : shape) {
    if (!d.is_const() && !out.is_const())
      raise(Code::kUnsupported, "{} of {}: two symbolic axes cannot be merged", what,
            to_string(shape));
    out = d.is_const() ? out * d.constant() : d * out.constant();
  }
  return out;
}

Tensor iota_along(const SymInt& n, int64_t axis, int64_t rank, runtime::Device& device) {
  Shape shape(static_cast<size_t>(rank), SymInt(1));
  shape[static_cast<size_t>(axis)] = n;
  return iota(n, device).reshape(shape);
}

Axes spread(const Axes& given, int64_t count, std::string_view what) {
  if (static_cast<int64_t>(given.size()) == count) return given;
  if (given.size() == 1) return Axes(static_cast<size_t>(count), given[0]);
  raise(Code::kInvalidArgument, "{}: {} values given for {} spatial axes", what, given.size(),
        count);
}

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t known_size(const Tensor& x, int64_t axis, std::string_view what) {
  if (!x.size(axis).is_const())
    raise(Code::kUnsupported, "{} of {}: axis {} is symbolic", what, describe(x), x.axis(axis));
  return x.size(axis).constant();
}

/// One axis [n] → two axes [kernel, out]: element (k, o) is x[o·stride + k·dilation].
Tensor window_axis(const Tensor& x, int64_t axis, int64_t kernel, int64_t stride, int64_t dilation,
                   std::string_view what) {
  const int64_t n = known_size(x, axis, what), reach = dilation * (kernel - 1) + 1;
  if (kernel < 1 || stride < 1 || dilation < 1)
    raise(Code::kInvalidArgument, "{}: kernel {}, stride {} and dilation {} must be positive", what,
          kernel, stride, dilation);
  if (n < reach)
    raise(Code::kInvalidArgument, "{} of {}: a window of {} does not fit axis {}", what,
          describe(x), reach, axis);
  const int64_t out = (n - reach) / stride + 1;
  const auto a = static_cast<size_t>(axis);
  Shape shape = x.shape();
  // Repeats of x laid end to end and cut into rows of n·f + dilation: each row starts `dilation`
  // further into x. f leaves room for rounding the row up to whole strides.
  const int64_t f = std::max<int64_t>(ceil_div(out * stride - dilation, n), 1);
  const int64_t row = n * f + dilation, repeats = ceil_div(kernel * row, n);
  shape.insert(shape.begin() + axis, SymInt(1));
  Tensor y = x.reshape(shape);
  shape[a] = repeats;
  y = y.expand(shape);
  shape = x.shape();
  shape[a] = repeats * n;
  y = y.reshape(shape).slice(axis, {0, kernel * row, 1});
  y = y.unflatten(axis, {kernel, row}).slice(axis + 1, {0, out * stride, 1});
  y = y.unflatten(axis + 1, {out, stride}).slice(axis + 2, {0, 1, 1});
  return y.squeeze(axis + 2);
}

/// Windows that do not overlap: [n] → [kernel, out] by cutting.
Tensor cut_axis(const Tensor& x, int64_t axis, int64_t kernel, int64_t stride,
                std::string_view what) {
  const int64_t n = known_size(x, axis, what);
  if (n < kernel)
    raise(Code::kInvalidArgument, "{} of {}: a window of {} does not fit axis {}", what,
          describe(x), kernel, axis);
  const int64_t out = (n - kernel) / stride + 1;
  std::vector<std::pair<SymInt, SymInt>> room(static_cast<size_t>(x.rank()), {0, 0});
  room[static_cast<size_t>(axis)].second = std::max<int64_t>(out * stride - n, 0);
  const Tensor y = x.pad(room).slice(axis, {0, out * stride, 1});
  return y.unflatten(axis, {out, stride}).slice(axis + 1, {0, kernel, 1}).transpose(axis, axis + 1);
}

}  // namespace

Tensor windows(const Tensor& x, const Axes& kernel, const Axes& stride, const Axes& dilation,
               std::string_view what) {
  const auto spatial = static_cast<int64_t>(kernel.size()), first = x.rank() - spatial;
  if (first < 0)
    raise(Code::kInvalidArgument, "{} of {}: {} spatial axes are too many", what, describe(x),
          spatial);
  Tensor y = x;
  for (int64_t i = 0; i < spatial; ++i) {
    const auto k = static_cast<size_t>(i);
    const bool is_cut = kernel[k] >= 1 && kernel[k] <= stride[k] && dilation[k] == 1;
    y = is_cut ? cut_axis(y, first + 2 * i, kernel[k], stride[k], what)
               : window_axis(y, first + 2 * i, kernel[k], stride[k], dilation[k], what);
  }
  Axes order;
  for (int64_t i = 0; i < first; ++i) order.push_back(i);
  for (int64_t i = 0; i < spatial; ++i) order.push_back(first + 2 * i + 1);
  for (int64_t i = 0; i < spatial; ++i) order.push_back(first + 2 * i);
  return y.permute(order);
}

}  // namespace ops

namespace {

/// A slice bound as an index: from the end when negative, never outside [0, n].
SymInt clamped_bound(const SymInt& v, const SymInt& n, const Tensor& x, int64_t axis) {
  const auto undecided = [&]() -> SymInt {
    raise(Code::kUnsupported,
          "slice of axis {} of {}: whether {} lies inside depends on the variables", axis,
          to_string(x.shape()), v.to_string());
  };
  if (v.max() >= 0 && v.min() < 0) return undecided();
  const SymInt at = v.max() < 0 ? v + n : v;
  if (at.max() <= 0) return 0;
  if (at.min() < 0) return undecided();
  if ((at - n).min() >= 0) return n;
  return (n - at).min() >= 0 ? at : undecided();
}

Tensor shrink_axis(const Tensor& x, int64_t axis, const SymInt& begin, const SymInt& size) {
  std::vector<SymInt> ranges;
  for (const SymInt& d : x.shape()) {
    ranges.emplace_back(0);
    ranges.push_back(d);
  }
  ranges[static_cast<size_t>(2 * axis)] = begin;
  ranges[static_cast<size_t>(2 * axis) + 1] = size;
  return shrink_raw(x, ranges);
}

/// Every step-th element from the first.
Tensor every(const Tensor& x, int64_t axis, int64_t step) {
  const int64_t n = x.size(axis).constant();
  step = std::min(step, std::max<int64_t>(n, 1));  // steps over the end are all the same
  const int64_t count = (n + step - 1) / step;
  if (count == 0) return x;
  std::vector<std::pair<SymInt, SymInt>> room(static_cast<size_t>(x.rank()), {0, 0});
  room[static_cast<size_t>(axis)].second = count * step - n;
  return shrink_axis(x.pad(room).unflatten(axis, {count, step}), axis + 1, 0, 1).squeeze(axis + 1);
}

Tensor slice_backwards(const Tensor& x, int64_t axis, const Slice& s) {
  const SymInt& n = x.size(axis);
  const bool is_static =
      n.is_const() && (!s.begin || s.begin->is_const()) && (!s.end || s.end->is_const());
  if (!is_static)
    raise(Code::kUnsupported, "slice of axis {} of {}: a negative step needs fixed bounds", axis,
          to_string(x.shape()));
  const int64_t size = n.constant();
  const auto at = [&](const std::optional<SymInt>& v, int64_t otherwise) {
    if (!v) return otherwise;
    const int64_t c = v->constant();
    return std::clamp<int64_t>(c < 0 ? c + size : c, -1, size - 1);
  };
  const int64_t first = size - 1 - at(s.begin, size - 1), last = size - 1 - at(s.end, -1);
  return every(
      shrink_axis(x.flip({axis}), axis, std::min(first, size), std::max<int64_t>(last - first, 0)),
      axis, -s.step);
}

}  // namespace

Tensor Tensor::transpose(int64_t a, int64_t b) const {
  if (rank() == 0) return unsqueeze(0).transpose(a, b).squeeze(0);
  Axes order;
  for (int64_t i = 0; i < rank(); ++i) order.push_back(i);
  std::swap(order[static_cast<size_t>(axis(a))], order[static_cast<size_t>(axis(b))]);
  return permute(order);
}

Tensor Tensor::slice(int64_t axis_, const Slice& s) const {
  const int64_t a = axis(axis_);
  if (s.step == 0)
    raise(Code::kInvalidArgument, "slice of axis {} of {}: the step is zero", a,
          bm::to_string(shape()));
  if (s.step < 0) return slice_backwards(*this, a, s);
  const SymInt& n = size(a);
  const SymInt begin = s.begin ? clamped_bound(*s.begin, n, *this, a) : SymInt(0);
  const SymInt end = s.end ? clamped_bound(*s.end, n, *this, a) : n;
  SymInt length = end - begin;
  if (length.max() <= 0) length = 0;
  if (length.min() < 0)
    raise(Code::kUnsupported, "slice of axis {} of {}: {} may exceed {}", a, bm::to_string(shape()),
          begin.to_string(), end.to_string());
  const Tensor cut = shrink_axis(*this, a, begin, length);
  if (s.step == 1) return cut;
  if (!length.is_const())
    raise(Code::kUnsupported, "slice of axis {} of {}: a step of {} needs fixed bounds", a,
          bm::to_string(shape()), s.step);
  return every(cut, a, s.step);
}

Tensor Tensor::index(const std::vector<Index>& indices) const {
  if (static_cast<int64_t>(indices.size()) > rank())
    raise(Code::kInvalidArgument, "index of {}: {} indices are too many", ops::describe(*this),
          indices.size());
  Tensor out = *this;
  Shape kept;
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto a = static_cast<int64_t>(i);
    if (!indices[i].at) {
      out = out.slice(a, indices[i].slice);
      kept.push_back(out.shape()[i]);
      continue;
    }
    const SymInt& n = shape()[i];
    const SymInt at = indices[i].at->max() < 0 ? *indices[i].at + n : *indices[i].at;
    if (at.min() < 0 || (n - at).min() < 1)
      raise(Code::kInvalidArgument, "index {} is out of range for axis {} of {}",
            indices[i].at->to_string(), i, bm::to_string(shape()));
    out = shrink_axis(out, a, at, 1);
  }
  kept.insert(kept.end(), shape().begin() + static_cast<int64_t>(indices.size()), shape().end());
  return out.reshape(kept);
}

Tensor Tensor::squeeze(std::optional<int64_t> axis_) const {
  if (rank() == 0 && axis_) return unsqueeze(0).squeeze(axis_);
  const int64_t only = axis_ ? axis(*axis_) : -1;
  if (axis_ && !size(only).is(1)) return *this;
  Shape kept;
  for (int64_t i = 0; i < rank(); ++i)
    if (!(axis_ ? i == only : size(i).is(1))) kept.push_back(size(i));
  return reshape(kept);
}

Tensor Tensor::unsqueeze(int64_t axis_) const {
  const int64_t a = axis_ < 0 ? axis_ + rank() + 1 : axis_;
  if (a < 0 || a > rank())
    raise(Code::kInvalidArgument, "unsqueeze of {}: axis {} is out of range",
          bm::to_string(shape()), axis_);
  Shape grown = shape();
  grown.insert(grown.begin() + a, SymInt(1));
  return reshape(grown);
}

Tensor Tensor::flatten(int64_t first, int64_t last) const {
  if (rank() == 0) return unsqueeze(0).flatten(first, last);
  const int64_t a = axis(first), b = axis(last);
  if (a > b)
    raise(Code::kInvalidArgument, "flatten of {}: axis {} lies behind axis {}",
          bm::to_string(shape()), first, last);
  Shape merged(shape().begin(), shape().begin() + a);
  merged.push_back(ops::product(Shape(shape().begin() + a, shape().begin() + b + 1), "flatten"));
  merged.insert(merged.end(), shape().begin() + b + 1, shape().end());
  return reshape(merged);
}

Tensor Tensor::unflatten(int64_t axis_, const Shape& sizes) const {
  const int64_t a = axis(axis_);
  Shape parts = sizes, split = shape();
  // Of this axis alone: others without elements leave no doubt what -1 is.
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].is(-1)) {
      parts[i] = infer_dimension({size(a)}, sizes, i);
      break;
    }
  split.erase(split.begin() + a);
  split.insert(split.begin() + a, parts.begin(), parts.end());
  return reshape(split);
}

Tensor Tensor::repeat(const std::vector<int64_t>& counts) const {
  if (static_cast<int64_t>(counts.size()) < rank())
    raise(Code::kInvalidArgument, "repeat of {}: {} counts are too few", ops::describe(*this),
          counts.size());
  Tensor out = *this;
  while (out.rank() < static_cast<int64_t>(counts.size())) out = out.unsqueeze(0);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0)
      raise(Code::kInvalidArgument, "repeat of {}: count {} is negative", ops::describe(*this),
            counts[i]);
    if (counts[i] == 1) continue;
    const auto a = static_cast<int64_t>(i);
    Shape grown = out.shape(), merged = out.shape();
    grown.insert(grown.begin() + a, SymInt(counts[i]));
    merged[i] = merged[i] * counts[i];
    out = out.unsqueeze(a).expand(grown).reshape(merged);
  }
  return out;
}

Tensor Tensor::repeat_interleave(int64_t count, int64_t axis_) const {
  const int64_t a = axis(axis_);
  if (count < 0)
    raise(Code::kInvalidArgument, "repeat_interleave of {}: count {} is negative",
          ops::describe(*this), count);
  Shape grown = shape(), merged = shape();
  grown.insert(grown.begin() + a + 1, SymInt(count));
  merged[static_cast<size_t>(a)] = merged[static_cast<size_t>(a)] * count;
  return unsqueeze(a + 1).expand(grown).reshape(merged);
}

Tensor Tensor::roll(int64_t shift, int64_t axis_) const {
  const int64_t a = axis(axis_), n = ops::known_size(*this, a, "roll");
  if (n == 0) return *this;
  const int64_t first = n - ((shift % n) + n) % n;  // the element that becomes number 0
  if (first == n) return *this;
  return cat(std::array{slice(a, {first, n, 1}), slice(a, {0, first, 1})}, a);
}

std::vector<Tensor> Tensor::split(int64_t size, int64_t axis_) const {
  const int64_t a = axis(axis_), n = ops::known_size(*this, a, "split");
  if (size < 1)
    raise(Code::kInvalidArgument, "split of {}: pieces of {} elements", ops::describe(*this), size);
  std::vector<Tensor> pieces;
  for (int64_t at = 0; at < n || pieces.empty(); at += size)
    pieces.push_back(slice(a, {at, std::min(at + size, n), 1}));
  return pieces;
}

std::vector<Tensor> Tensor::chunk(int64_t n, int64_t axis_) const {
  if (n < 1) raise(Code::kInvalidArgument, "chunk of {} into {} pieces", ops::describe(*this), n);
  const int64_t length = ops::known_size(*this, axis(axis_), "chunk");
  if (length == 0) return std::vector<Tensor>(static_cast<size_t>(n), *this);
  return split(std::max<int64_t>(ops::ceil_div(length, n), 1), axis_);
}

namespace {

/// Tensors [lo, hi) padded to the whole, as a balanced tree of selections: each element passes
/// log2(count) comparisons, and only the tensor it comes from is read.
Tensor join(const std::vector<Tensor>& padded, const std::vector<SymInt>& offsets,
            const Tensor& position, size_t lo, size_t hi) {
  if (hi - lo == 1) return padded[lo];
  const size_t mid = (lo + hi) / 2;
  return select(position < ops::number(offsets[mid], position),
                join(padded, offsets, position, lo, mid), join(padded, offsets, position, mid, hi));
}

/// Operands of one kernel: every element passes a comparison for each time their number halves, and
/// a kernel of thousands takes seconds to compile.
constexpr size_t kMostJoined = 32;

void check_cat(std::span<const Tensor> tensors, int64_t axis) {
  const Tensor& first = tensors[0];
  for (const Tensor& t : tensors) {
    bool fits = t.rank() == first.rank();
    for (int64_t i = 0; fits && i < t.rank(); ++i) fits = i == axis || t.size(i) == first.size(i);
    if (!fits)
      raise(Code::kInvalidArgument, "cat along axis {}: {} and {} differ outside it", axis,
            ops::describe(first), ops::describe(t));
    if (&t.device() != &first.device())
      raise(Code::kInvalidArgument, "cat: operands are on {} and {}; move one with to()",
            first.device().name(), t.device().name());
  }
}

}  // namespace

Tensor Tensor::cat(std::span<const Tensor> tensors, int64_t axis_) {
  if (tensors.empty()) raise(Code::kInvalidArgument, "cat of no tensors");
  const int64_t a = tensors[0].axis(axis_);
  check_cat(tensors, a);
  DType t = tensors[0].dtype();
  SymInt total = 0;
  for (const Tensor& x : tensors) {
    t = promote(t, x.dtype());
    total = total + x.size(a);
  }
  std::vector<Tensor> parts;
  for (const Tensor& x : tensors)
    if (!x.size(a).is(0)) parts.push_back(x.cast(t));
  if (parts.empty()) return tensors[0].cast(t);
  if (parts.size() > kMostJoined) {
    std::vector<Tensor> groups;
    for (size_t i = 0; i < parts.size(); i += kMostJoined)
      groups.push_back(cat({&parts[i], std::min(kMostJoined, parts.size() - i)}, a).contiguous());
    return cat(groups, a);
  }
  std::vector<Tensor> padded;
  std::vector<SymInt> offsets;
  SymInt offset = 0;
  for (const Tensor& x : parts) {
    std::vector<SymInt> room(static_cast<size_t>(2 * x.rank()), SymInt(0));
    room[static_cast<size_t>(2 * a)] = offset;
    room[static_cast<size_t>(2 * a) + 1] = total - offset - x.size(a);
    padded.push_back(pad_raw(x, room, {}));
    offsets.push_back(offset);
    offset = offset + x.size(a);
  }
  const Tensor position = ops::iota_along(total, a, parts[0].rank(), parts[0].device());
  return join(padded, offsets, position, 0, padded.size());
}

Tensor Tensor::stack(std::span<const Tensor> tensors, int64_t axis_) {
  if (tensors.empty()) raise(Code::kInvalidArgument, "stack of no tensors");
  std::vector<Tensor> grown;
  for (const Tensor& t : tensors) {
    if (t.shape() != tensors[0].shape())
      raise(Code::kInvalidArgument, "stack: shapes {} and {} differ",
            bm::to_string(tensors[0].shape()), bm::to_string(t.shape()));
    grown.push_back(t.unsqueeze(axis_));
  }
  return cat(grown, axis_ < 0 ? axis_ + tensors[0].rank() + 1 : axis_);
}

namespace {

/// Keeps the elements whose column minus row satisfies `keep`.
template <class F>
Tensor triangle(const Tensor& x, std::string_view what, F&& keep) {
  if (x.rank() < 2)
    raise(Code::kInvalidArgument, "{} needs at least two axes, not {}", what, ops::describe(x));
  const Tensor row = ops::iota_along(x.size(-2), x.rank() - 2, x.rank(), x.device());
  const Tensor column = ops::iota_along(x.size(-1), x.rank() - 1, x.rank(), x.device());
  return select(keep(column - row), x, scalar_like(x, 0));
}

}  // namespace

Tensor Tensor::tril(int64_t diagonal) const {
  return triangle(*this, "tril", [&](const Tensor& offset) { return offset <= diagonal; });
}
Tensor Tensor::triu(int64_t diagonal) const {
  return triangle(*this, "triu", [&](const Tensor& offset) { return offset >= diagonal; });
}

/// Rows laid end to end with one element added each: the diagonal becomes the first column.
Tensor Tensor::diagonal() const {
  if (rank() < 2)
    raise(Code::kInvalidArgument, "diagonal needs at least two axes, not {}", ops::describe(*this));
  const int64_t n =
      std::min(ops::known_size(*this, -2, "diagonal"), ops::known_size(*this, -1, "diagonal"));
  Tensor square = slice(-2, {0, n, 1}).slice(-1, {0, n, 1});
  if (n == 0) return square.flatten(-2, -1);
  std::vector<std::pair<SymInt, SymInt>> room(static_cast<size_t>(rank()) - 1, {0, 0});
  room.back().second = n;
  return square.flatten(-2, -1)
      .pad(room)
      .unflatten(-1, {n, n + 1})
      .slice(-1, {0, 1, 1})
      .squeeze(-1);
}

}  // namespace bm
