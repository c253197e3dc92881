#include "tensor/interpret.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "tensor/interpret_alu.h"

namespace bm {
namespace {

using reference::Value;
using Position = std::vector<int64_t>;

/// An array as it lies in memory: current sizes, strides over the largest sizes.
struct Layout {
  Position sizes, strides;

  explicit Layout(const Shape& shape) {
    int64_t step = 1;
    sizes.resize(shape.size());
    strides.resize(shape.size());
    for (size_t i = shape.size(); i-- > 0;) {
      sizes[i] = shape[i].value();
      strides[i] = step;
      step *= shape[i].max();
    }
  }
  size_t rank() const { return sizes.size(); }
  int64_t count() const {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  }
  int64_t at(const Position& index) const {
    return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
  }
  bool holds(const Position& index) const {
    for (size_t i = 0; i < index.size(); ++i)
      if (index[i] < 0 || index[i] >= sizes[i]) return false;
    return true;
  }
};

/// Calls f(index) for every index, last axis fastest.
template <class F>
void for_each_index(const Position& sizes, F&& f) {
  for (int64_t n : sizes)
    if (n <= 0) return;
  Position index(sizes.size(), 0);
  while (true) {
    f(std::as_const(index));
    size_t axis = sizes.size();
    while (axis > 0 && ++index[axis - 1] == sizes[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

struct Work {
  const Node& node;
  std::span<const std::byte* const> sources;
  std::byte* out;
  Layout layout;
  std::vector<Layout> source_layouts;

  DType source_dtype(size_t i) const { return node.src[i]->dtype; }
  Value read(size_t source, const Position& index) const {
    return reference::load(source_dtype(source), sources[source], source_layouts[source].at(index));
  }
  void write(const Position& index, const Value& v) const {
    reference::store(node.dtype, out, layout.at(index), v);
  }
  Value scalar() const { return {node.scalar.i, node.scalar.f}; }
  void copy_element(const Position& to, const Position& from) const {
    const auto size = item_size(node.dtype);
    std::memcpy(out + layout.at(to) * size, sources[0] + source_layouts[0].at(from) * size,
                static_cast<size_t>(size));
  }
};

Status run_const(const Work& w) {
  w.write({}, w.scalar());
  return {};
}

Status run_iota(const Work& w) {
  for_each_index(w.layout.sizes, [&](const Position& i) { w.write(i, {i[0], 0}); });
  return {};
}

Status run_var_value(const Work& w) {
  w.write({}, {w.node.syms[0].value(), 0});
  return {};
}

Status run_select(const Work& w) {
  for_each_index(w.layout.sizes,
                 [&](const Position& i) { w.write(i, w.read(w.read(0, i).i != 0 ? 1 : 2, i)); });
  return {};
}

Status run_alu(const Work& w) {
  if (w.node.op == ir::Op::kSelect) return run_select(w);
  const reference::AluFunction f = reference::alu_function(w.node.op, w.source_dtype(0));
  if (f == nullptr)
    return fail(Code::kInvalidArgument, "{} does not exist on {}", ir::op_name(w.node.op),
                dtype_name(w.source_dtype(0)));
  const size_t count = w.node.src.size();
  std::array<Value, 3> args{};
  for_each_index(w.layout.sizes, [&](const Position& i) {
    for (size_t k = 0; k < count; ++k) args[k] = w.read(k, i);
    w.write(i, f(w.source_dtype(0), {args.data(), count}));
  });
  return {};
}

Status run_cast(const Work& w) {
  for_each_index(w.layout.sizes, [&](const Position& i) {
    w.write(i, reference::convert(w.read(0, i), w.source_dtype(0), w.node.dtype));
  });
  return {};
}

Value identity_of(ir::ReduceOp op, DType t) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (op) {
    case ir::ReduceOp::kSum: return {0, 0};
    case ir::ReduceOp::kProd: return {1, 1};
    case ir::ReduceOp::kMax: return {t == DType::kU64 ? 0 : int_min(t), -kInfinity};
    case ir::ReduceOp::kMin: return {t == DType::kU64 ? -1 : int_max(t), kInfinity};
  }
  return {};
}

ir::Op combiner_of(ir::ReduceOp op) {
  switch (op) {
    case ir::ReduceOp::kSum: return ir::Op::kAdd;
    case ir::ReduceOp::kProd: return ir::Op::kMul;
    case ir::ReduceOp::kMax: return ir::Op::kMax;
    case ir::ReduceOp::kMin: return ir::Op::kMin;
  }
  return ir::Op::kAdd;
}

/// Elements along the reduced axes in row-major order, accumulated in float64 or wrapped int64.
Status run_reduce(const Work& w) {
  const DType t = w.source_dtype(0);
  const reference::AluFunction combine = reference::alu_function(combiner_of(w.node.reduce_op), t);
  Position inner(w.layout.rank(), 1);
  for (int64_t axis : w.node.ints)
    inner[static_cast<size_t>(axis)] = w.source_layouts[0].sizes[static_cast<size_t>(axis)];
  for_each_index(w.layout.sizes, [&](const Position& o) {
    std::array<Value, 2> pair{identity_of(w.node.reduce_op, t), Value{}};
    for_each_index(inner, [&](const Position& r) {
      Position from = o;
      for (size_t k = 0; k < from.size(); ++k) from[k] += r[k];
      pair[1] = w.read(0, from);
      pair[0] = combine(t, pair);
      if (!is_float(t)) pair[0].i = wrap_integer(t, pair[0].i);
    });
    w.write(o, pair[0]);
  });
  return {};
}

/// In float64 or wrapped int64, as run_reduce; what is written is rounded, what goes on is not.
Status run_scan(const Work& w) {
  const DType t = w.source_dtype(0);
  const reference::AluFunction combine = reference::alu_function(combiner_of(w.node.reduce_op), t);
  const auto axis = static_cast<size_t>(w.node.ints[0]);
  Position lines = w.layout.sizes;
  const int64_t length = std::exchange(lines[axis], std::min<int64_t>(lines[axis], 1));
  for_each_index(lines, [&](const Position& first) {
    std::array<Value, 2> pair{identity_of(w.node.reduce_op, t), Value{}};
    Position at = first;
    for (at[axis] = 0; at[axis] < length; ++at[axis]) {
      pair[1] = w.read(0, at);
      pair[0] = combine(t, pair);
      if (!is_float(t)) pair[0].i = wrap_integer(t, pair[0].i);
      w.write(at, pair[0]);
    }
  });
  return {};
}

Status run_top_k(const Work& w) {
  const auto axis = static_cast<size_t>(w.node.ints[0]);
  Position lines = w.layout.sizes;
  const int64_t count = std::exchange(lines[axis], std::min<int64_t>(lines[axis], 1));
  for_each_index(lines, [&](const Position& first) {
    std::vector<int64_t> all;
    Position at = first;
    for (at[axis] = 0; at[axis] < w.source_layouts[0].sizes[axis]; ++at[axis])
      all.push_back(w.read(0, at).i);
    std::sort(all.begin(), all.end());
    all.resize(static_cast<size_t>(count), INT64_MAX);
    for (at[axis] = 0; at[axis] < count; ++at[axis])
      w.write(at, {all[static_cast<size_t>(at[axis])], 0});
  });
  return {};
}

/// Both sides number their current elements in row-major order.
Status run_reshape(const Work& w) {
  const Layout& source = w.source_layouts[0];
  if (source.count() != w.layout.count())
    return fail(Code::kInvalidArgument, "reshape of {} to {}: element counts differ",
                to_string(w.node.src[0]->shape), to_string(w.node.shape));
  int64_t number = 0;
  for_each_index(w.layout.sizes, [&](const Position& o) {
    Position from(source.rank());
    int64_t rest = number++;
    for (size_t k = source.rank(); k-- > 0;) {
      from[k] = rest % source.sizes[k];
      rest /= source.sizes[k];
    }
    w.copy_element(o, from);
  });
  return {};
}

Status run_permute(const Work& w) {
  for_each_index(w.layout.sizes, [&](const Position& o) {
    Position from(o.size());
    for (size_t k = 0; k < o.size(); ++k) from[static_cast<size_t>(w.node.ints[k])] = o[k];
    w.copy_element(o, from);
  });
  return {};
}

Status run_expand(const Work& w) {
  for_each_index(w.layout.sizes, [&](const Position& o) {
    Position from = o;
    for (size_t k = 0; k < o.size(); ++k)
      if (w.source_layouts[0].sizes[k] == 1) from[k] = 0;
    w.copy_element(o, from);
  });
  return {};
}

Status run_pad(const Work& w) {
  for_each_index(w.layout.sizes, [&](const Position& o) {
    Position from = o;
    for (size_t k = 0; k < o.size(); ++k) from[k] -= w.node.syms[2 * k].value();
    if (w.source_layouts[0].holds(from)) {
      w.copy_element(o, from);
    } else {
      w.write(o, w.scalar());
    }
  });
  return {};
}

Status run_shrink(const Work& w) {
  for_each_index(w.layout.sizes, [&](const Position& o) {
    Position from = o;
    for (size_t k = 0; k < o.size(); ++k) from[k] += w.node.syms[2 * k].value();
    w.copy_element(o, from);
  });
  return {};
}

Status run_flip(const Work& w) {
  for_each_index(w.layout.sizes, [&](const Position& o) {
    Position from = o;
    for (int64_t axis : w.node.ints) {
      const auto k = static_cast<size_t>(axis);
      from[k] = w.layout.sizes[k] - 1 - o[k];
    }
    w.copy_element(o, from);
  });
  return {};
}

Status run_gather(const Work& w) {
  const auto axis = static_cast<size_t>(w.node.ints[0]);
  for_each_index(w.layout.sizes, [&](const Position& o) {
    Position from = o;
    from[axis] = w.read(1, o).i;
    if (w.source_layouts[0].holds(from)) {
      w.copy_element(o, from);
    } else {
      w.write(o, Value{});
    }
  });
  return {};
}

/// Same index on both sides: kContiguous, and kBitcast, which keeps the bytes.
Status run_same_bytes(const Work& w) {
  for_each_index(w.layout.sizes, [&](const Position& o) { w.copy_element(o, o); });
  return {};
}

struct Row {
  size_t sources;
  Status (*function)(const Work&);
};

Row row_of(const Node& node) {
  switch (node.kind) {
    case NodeKind::kConst: return {0, run_const};
    case NodeKind::kIota: return {0, run_iota};
    case NodeKind::kVarValue: return {0, run_var_value};
    case NodeKind::kAlu:
      return {ir::is_unary(node.op) ? 1u : ir::is_binary(node.op) ? 2u : 3u, run_alu};
    case NodeKind::kCast: return {1, run_cast};
    case NodeKind::kBitcast: return {1, run_same_bytes};
    case NodeKind::kReduce: return {1, run_reduce};
    case NodeKind::kScan: return {1, run_scan};
    case NodeKind::kTopK: return {1, run_top_k};
    case NodeKind::kReshape: return {1, run_reshape};
    case NodeKind::kPermute: return {1, run_permute};
    case NodeKind::kExpand: return {1, run_expand};
    case NodeKind::kPad: return {1, run_pad};
    case NodeKind::kShrink: return {1, run_shrink};
    case NodeKind::kFlip: return {1, run_flip};
    case NodeKind::kGather: return {2, run_gather};
    case NodeKind::kContiguous: return {1, run_same_bytes};
    case NodeKind::kBuffer:
    case NodeKind::kCopy: return {0, nullptr};
  }
  return {0, nullptr};
}

}  // namespace

Status interpret(const Node& node, std::span<const std::byte* const> sources, std::byte* out) {
  const Row row = row_of(node);
  if (row.function == nullptr)
    return fail(Code::kInvalidArgument, "this kind of node has no value to compute");
  if (sources.size() != row.sources || node.src.size() != row.sources)
    return fail(Code::kInvalidArgument, "expected {} sources, got {}", row.sources, sources.size());
  Work work{node, sources, out, Layout(node.shape), {}};
  for (const NodePtr& s : node.src) work.source_layouts.emplace_back(s->shape);
  return row.function(work);
}

}  // namespace bm
