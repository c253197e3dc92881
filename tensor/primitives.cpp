#include "tensor/primitives.h"

#include <mutex>

#include "tensor/reduce_parts.h"
#include "tensor/reshape.h"

namespace bm {
namespace {

std::mutex& reader_lock(const Node* n) {
  static std::mutex locks[16];  // striped: weights are read by graphs of many threads
  return locks[(reinterpret_cast<uintptr_t>(n) >> 6) & 15];
}

void remember_reader(Node& storage, const NodePtr& reader) {
  std::lock_guard guard(reader_lock(&storage));
  auto& list = storage.readers;
  if (list.size() >= 16 && (list.size() & (list.size() - 1)) == 0)
    std::erase_if(list, [](const std::weak_ptr<Node>& w) { return w.expired(); });
  list.push_back(reader);
}

}  // namespace

bool is_view_of_storage(const Node* n) {
  while (is_movement(n->kind)) n = n->src[0].get();
  return n->kind == NodeKind::kBuffer;
}

void raise_gone(const Node& n) {
  if (n.gone == Gone::kDonated)
    raise(Code::kInvalidArgument,
          "tensor {} was donated to a captured program, which took its memory over: use the "
          "program's output, or pass a clone()",
          to_string(n.shape));
  raise(Code::kInvalidArgument,
        "tensor {} is the output of an earlier run of a captured program that has run again since: "
        "read or clone() it before, or capture with fresh outputs (JitOptions::outputs)",
        to_string(n.shape));
}

void register_reader(const NodePtr& n) {
  for (const NodePtr& s : n->src)
    if (is_view_of_storage(s.get())) remember_reader(*s, n);
}

bool is_movement(NodeKind kind) {
  switch (kind) {
    case NodeKind::kReshape:
    case NodeKind::kPermute:
    case NodeKind::kExpand:
    case NodeKind::kPad:
    case NodeKind::kShrink:
    case NodeKind::kFlip: return true;
    case NodeKind::kBuffer:
    case NodeKind::kConst:
    case NodeKind::kIota:
    case NodeKind::kVarValue:
    case NodeKind::kAlu:
    case NodeKind::kCast:
    case NodeKind::kBitcast:
    case NodeKind::kReduce:
    case NodeKind::kScan:
    case NodeKind::kTopK:
    case NodeKind::kGather:
    case NodeKind::kContiguous:
    case NodeKind::kCopy: return false;
  }
  return false;
}

Node::~Node() {
  // Chains of thousands of nodes would otherwise destroy each other recursively. There is no stack
  // either, which could not be had where memory is exhausted: on the way down a node keeps the way
  // back in src[0], whose former content takes the node's place in its parent.
  NodePtr at;  // the node taken apart; nullptr: this one
  for (;;) {
    std::vector<NodePtr>& sources = at ? at->src : src;
    if (sources.size() == (at ? 1 : 0)) {
      if (!at) return;
      NodePtr back = std::move(sources.front());
      sources.clear();
      at = std::move(back);
      continue;
    }
    NodePtr last = std::move(sources.back());
    if (last.use_count() != 1 || last->src.empty()) {
      sources.pop_back();
      continue;
    }
    sources.back() = std::exchange(last->src.front(), std::move(at));
    at = std::move(last);
  }
}

namespace {

Tensor make(Node&& node) {
  auto n = std::make_shared<Node>(std::move(node));
  max_elements(n->shape);
  register_reader(n);
  return Tensor(std::move(n));
}

Tensor unary_node(NodeKind kind, const Tensor& a, DType dtype) {
  Node n;
  n.kind = kind;
  n.dtype = dtype;
  n.device = &a.device();
  n.shape = a.shape();
  n.src = {a.node()};
  return make(std::move(n));
}

Tensor movement(NodeKind kind, const Tensor& a, Shape shape, std::vector<int64_t> ints = {},
                std::vector<SymInt> syms = {}, Scalar scalar = {}) {
  Node n;
  n.kind = kind;
  n.dtype = a.dtype();
  n.device = &a.device();
  n.shape = std::move(shape);
  n.src = {a.node()};
  n.ints = std::move(ints);
  n.syms = std::move(syms);
  n.scalar = scalar;
  return make(std::move(n));
}

void need_float(ir::Op op, const Tensor& a) {
  if (!is_float(a.dtype()))
    raise(Code::kInvalidArgument, "{} needs a floating dtype, not {}", ir::op_name(op),
          dtype_name(a.dtype()));
}

void need_bits(ir::Op op, const Tensor& a) {
  if (is_float(a.dtype()))
    raise(Code::kInvalidArgument, "{} needs an integer or bool dtype, not {}", ir::op_name(op),
          dtype_name(a.dtype()));
}

Tensor alu_node(ir::Op op, DType dtype, std::vector<Tensor> operands) {
  Node n;
  n.kind = NodeKind::kAlu;
  n.op = op;
  n.dtype = dtype;
  n.device = &operands[0].device();
  n.shape = operands[0].shape();
  for (const Tensor& t : operands) n.src.push_back(t.node());
  return make(std::move(n));
}

}  // namespace

Tensor alu(ir::Op op, const Tensor& a) {
  switch (op) {
    case ir::Op::kRecip:
    case ir::Op::kSqrt:
    case ir::Op::kExp2:
    case ir::Op::kLog2:
    case ir::Op::kSin: need_float(op, a); break;
    case ir::Op::kNot: need_bits(op, a); break;
    case ir::Op::kTrunc:
      if (!is_float(a.dtype())) return a;
      break;
    default: break;
  }
  return alu_node(op, a.dtype(), {a});
}

Tensor alu(ir::Op op, Tensor a, Tensor b) {
  match(a, b, ir::op_name(op));
  switch (op) {
    case ir::Op::kAnd:
    case ir::Op::kOr:
    case ir::Op::kXor:
    case ir::Op::kShl:
    case ir::Op::kShr: need_bits(op, a); break;
    default: break;
  }
  return alu_node(op, ir::is_comparison(op) ? DType::kBool : a.dtype(), {a, b});
}

Tensor select(const Tensor& condition, Tensor a, Tensor b) {
  if (!is_bool(condition.dtype()))
    raise(Code::kInvalidArgument, "where: the condition is {}, not bool",
          dtype_name(condition.dtype()));
  if (is_weak(a) && is_weak(b)) {  // two numbers: they live where the condition does
    const DType t = promote(a.dtype(), b.dtype());
    const auto number = [&](const Tensor& x) {
      const Node& n = *x.node();
      return is_float(n.dtype) ? constant(n.scalar.f, t, condition.device())
                               : constant_int(n.scalar.i, t, condition.device());
    };
    a = number(a);
    b = number(b);
  }
  match(a, b, "where");
  const Shape shape = broadcast(condition.shape(), a.shape(), "where");
  if (&condition.device() != &a.device())
    raise(Code::kInvalidArgument, "where: operands are on {} and {}; move one with to()",
          condition.device().name(), a.device().name());
  return alu_node(ir::Op::kSelect, a.dtype(),
                  {condition.expand(shape), a.expand(shape), b.expand(shape)});
}

Tensor Tensor::cast(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  return unary_node(NodeKind::kCast, *this, dtype);
}

Tensor Tensor::bitcast(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  if (item_size(dtype) != item_size(this->dtype()))
    raise(Code::kInvalidArgument, "bitcast: {} and {} differ in size", dtype_name(this->dtype()),
          dtype_name(dtype));
  return unary_node(NodeKind::kBitcast, *this, dtype);
}

Tensor Tensor::contiguous() const { return unary_node(NodeKind::kContiguous, *this, dtype()); }

Tensor Tensor::to(std::string_view device) const {
  runtime::Device* target =
      device.empty() ? unwrap(runtime::default_device()) : unwrap(runtime::open_device(device));
  if (target == &this->device()) return *this;
  Tensor out = unary_node(NodeKind::kCopy, *this, dtype());
  out.node_->device = target;
  return out;
}

Tensor reduce(ir::ReduceOp op, const Tensor& a, const Axes& axes) {
  std::vector<int64_t> sorted;
  for (int64_t axis : axes) sorted.push_back(a.axis(axis));
  if (axes.empty())
    for (int64_t i = 0; i < a.rank(); ++i) sorted.push_back(i);
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    raise(Code::kInvalidArgument, "{} of {}: an axis is named twice", ir::reduce_op_name(op),
          to_string(a.shape()));
  Shape shape = a.shape();
  std::vector<int64_t> real;
  for (int64_t i : sorted) {
    auto& d = shape[static_cast<size_t>(i)];
    if (d.max() == 0 && (op == ir::ReduceOp::kMax || op == ir::ReduceOp::kMin))
      raise(Code::kInvalidArgument, "{} over axis {} of {}: there are no elements",
            ir::reduce_op_name(op), i, to_string(a.shape()));
    if (!d.is(1)) real.push_back(i);
    d = 1;
  }
  if (real.empty()) return a;
  if (is_half_like(a.dtype()) && (op == ir::ReduceOp::kSum || op == ir::ReduceOp::kProd))
    return reduce(op, a.cast(DType::kF32), real).cast(a.dtype());
  if (auto out = reduce_in_two_passes(op, a, real)) return std::move(*out);
  Node n;
  n.kind = NodeKind::kReduce;
  n.reduce_op = op;
  n.dtype = a.dtype();
  n.device = &a.device();
  n.shape = std::move(shape);
  n.src = {a.node()};
  n.ints = std::move(real);
  return make(std::move(n));
}

Tensor scan_raw(ir::ReduceOp op, const Tensor& a, int64_t axis) {
  Node n;
  n.kind = NodeKind::kScan;
  n.reduce_op = op;
  n.dtype = a.dtype();
  n.device = &a.device();
  n.shape = a.shape();
  n.src = {a.node()};
  n.ints = {a.axis(axis)};
  return make(std::move(n));
}

Tensor top_k_raw(const Tensor& a, int64_t axis, int64_t count) {
  if (a.dtype() != DType::kI64)
    raise(Code::kInvalidArgument, "the smallest elements of {} {}: only int64 is ordered",
          dtype_name(a.dtype()), to_string(a.shape()));
  Node n;
  n.kind = NodeKind::kTopK;
  n.dtype = a.dtype();
  n.device = &a.device();
  n.shape = a.shape();
  n.src = {a.node()};
  n.ints = {a.axis(axis)};
  n.shape[static_cast<size_t>(n.ints[0])] = count;
  return make(std::move(n));
}

Tensor constant(double value, DType dtype, runtime::Device& device) {
  Node n;
  n.dtype = dtype;
  n.device = &device;
  n.scalar = {is_float(dtype)
                  ? 0
                  : ir::fold(ir::Op::kCast, dtype, std::array{ir::Scalar{DType::kF64, 0, value}}).i,
              value};
  return make(std::move(n));
}

Tensor constant_int(int64_t value, DType dtype, runtime::Device& device) {
  Node n;
  n.dtype = dtype;
  n.device = &device;
  n.scalar = {is_float(dtype)
                  ? value
                  : ir::fold(ir::Op::kCast, dtype, std::array{ir::Scalar{DType::kI64, value, 0}}).i,
              static_cast<double>(value)};
  return make(std::move(n));
}

Tensor scalar_like(const Tensor& like, double value) {
  return constant(value, like.dtype(), like.device());
}

Tensor iota(const SymInt& n, runtime::Device& device) {
  Node node;
  node.kind = NodeKind::kIota;
  node.dtype = DType::kI64;
  node.device = &device;
  node.shape = {n};
  return make(std::move(node));
}

Tensor Tensor::value_of(const SymInt& v, std::string_view device) {
  Node node;
  node.kind = NodeKind::kVarValue;
  node.dtype = DType::kI64;
  node.device =
      device.empty() ? unwrap(runtime::default_device()) : unwrap(runtime::open_device(device));
  node.syms = {v};
  return make(std::move(node));
}

Tensor gather_raw(const Tensor& src, int64_t axis, const Tensor& index) {
  axis = src.axis(axis);
  bool fits = src.rank() == index.rank() && index.dtype() == DType::kI64;
  for (int64_t i = 0; fits && i < src.rank(); ++i)
    if (i != axis && index.size(i).max() > src.size(i).max()) fits = false;
  if (!fits)
    raise(Code::kInvalidArgument, "gather along axis {}: index {} {} does not fit {}", axis,
          dtype_name(index.dtype()), to_string(index.shape()), to_string(src.shape()));
  if (&src.device() != &index.device())
    raise(Code::kInvalidArgument, "gather: operands are on {} and {}", src.device().name(),
          index.device().name());
  Node n;
  n.kind = NodeKind::kGather;
  n.dtype = src.dtype();
  n.device = &src.device();
  n.shape = index.shape();
  n.src = {src.node(), index.node()};
  n.ints = {axis};
  return make(std::move(n));
}

Tensor Tensor::reshape(const Shape& wanted) const {
  Shape shape = wanted;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!shape[i].is(-1)) continue;
    shape[i] = infer_dimension(this->shape(), wanted, i);
    break;
  }
  if (shape == this->shape()) return *this;
  auto groups = reshape_groups(this->shape(), shape);
  if (!groups) throw Exception(std::move(groups.error()));
  // A reshape of a reshape is one reshape when the outer pair can be matched directly.
  if (node_->kind == NodeKind::kReshape && reshape_groups(node_->src[0]->shape, shape))
    return movement(NodeKind::kReshape, Tensor(node_->src[0]), shape);
  return movement(NodeKind::kReshape, *this, shape);
}

Tensor Tensor::permute(const Axes& order) const {
  std::vector<int64_t> axes;
  Shape shape;
  std::vector<bool> seen(static_cast<size_t>(rank()));
  for (int64_t a : order) {
    const int64_t i = axis(a);
    if (seen[static_cast<size_t>(i)])
      raise(Code::kInvalidArgument, "permute of {}: axis {} is named twice",
            bm::to_string(this->shape()), i);
    seen[static_cast<size_t>(i)] = true;
    axes.push_back(i);
    shape.push_back(this->shape()[static_cast<size_t>(i)]);
  }
  if (static_cast<int64_t>(axes.size()) != rank())
    raise(Code::kInvalidArgument, "permute of {} needs {} axes, not {}",
          bm::to_string(this->shape()), rank(), axes.size());
  if (std::is_sorted(axes.begin(), axes.end())) return *this;
  return movement(NodeKind::kPermute, *this, std::move(shape), std::move(axes));
}

Tensor Tensor::expand(const Shape& wanted) const {
  Shape shape = wanted;
  if (shape.size() < this->shape().size())
    raise(Code::kInvalidArgument, "expand: {} has more axes than {}", bm::to_string(this->shape()),
          bm::to_string(wanted));
  const size_t skip = shape.size() - this->shape().size();
  for (size_t i = 0; i < this->shape().size(); ++i) {
    const SymInt& have = this->shape()[i];
    if (shape[skip + i].is(-1)) shape[skip + i] = have;
    if (!(have == shape[skip + i]) && !have.is(1))
      raise(Code::kInvalidArgument, "expand: {} does not expand to {}",
            bm::to_string(this->shape()), bm::to_string(wanted));
  }
  if (shape == this->shape()) return *this;
  Tensor t = *this;
  if (skip) {
    Shape padded(skip, SymInt(1));
    padded.insert(padded.end(), this->shape().begin(), this->shape().end());
    t = t.reshape(padded);
    if (shape == padded) return t;
  }
  return movement(NodeKind::kExpand, t, std::move(shape));
}

Tensor pad_raw(const Tensor& a, const std::vector<SymInt>& before_after, Scalar value) {
  Shape shape = a.shape();
  bool is_identity = true;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (before_after[2 * i].min() < 0 || before_after[2 * i + 1].min() < 0)
      raise(Code::kInvalidArgument, "pad of {}: negative amount on axis {}", to_string(a.shape()),
            i);
    is_identity &= before_after[2 * i].is(0) && before_after[2 * i + 1].is(0);
    shape[i] = shape[i] + before_after[2 * i] + before_after[2 * i + 1];
  }
  if (is_identity) return a;
  return movement(NodeKind::kPad, a, std::move(shape), {}, before_after, value);
}

Tensor shrink_raw(const Tensor& a, const std::vector<SymInt>& begin_size) {
  Shape shape = a.shape();
  bool is_identity = true;
  for (size_t i = 0; i < shape.size(); ++i) {
    const SymInt &begin = begin_size[2 * i], &size = begin_size[2 * i + 1];
    // Compare ends as expressions first: n - (s + t) may be a constant although each part varies.
    if (begin.min() < 0 || size.min() < 0 || (shape[i] - begin - size).min() < 0)
      raise(Code::kInvalidArgument, "axis {} of {}: range [{}, {}) leaves it", i,
            to_string(a.shape()), begin.to_string(), (begin + size).to_string());
    is_identity &= begin.is(0) && size == shape[i];
    shape[i] = size;
  }
  if (is_identity) return a;
  return movement(NodeKind::kShrink, a, std::move(shape), {}, begin_size);
}

Tensor Tensor::pad(const std::vector<std::pair<SymInt, SymInt>>& before_after, double value) const {
  if (static_cast<int64_t>(before_after.size()) != rank())
    raise(Code::kInvalidArgument, "pad of {} needs {} pairs, not {}", bm::to_string(shape()),
          rank(), before_after.size());
  std::vector<SymInt> grow, cut;
  for (size_t i = 0; i < before_after.size(); ++i) {
    const auto& [before, after] = before_after[i];
    const SymInt cut_before = before.max() < 0 ? before * -1 : SymInt(0),
                 cut_after = after.max() < 0 ? after * -1 : SymInt(0);
    cut.push_back(cut_before);
    cut.push_back(shape()[i] - cut_before - cut_after);
    grow.push_back(before.max() < 0 ? SymInt(0) : before);
    grow.push_back(after.max() < 0 ? SymInt(0) : after);
  }
  Scalar fill{
      is_float(dtype())
          ? 0
          : ir::fold(ir::Op::kCast, dtype(), std::array{ir::Scalar{DType::kF64, 0, value}}).i,
      value};
  return pad_raw(shrink_raw(*this, cut), grow, fill);
}

Tensor Tensor::shrink(const std::vector<std::pair<SymInt, SymInt>>& begin_end) const {
  if (static_cast<int64_t>(begin_end.size()) != rank())
    raise(Code::kInvalidArgument, "shrink of {} needs {} pairs, not {}", bm::to_string(shape()),
          rank(), begin_end.size());
  std::vector<SymInt> flat;
  for (const auto& [begin, end] : begin_end) {
    flat.push_back(begin);
    flat.push_back(end - begin);
  }
  return shrink_raw(*this, flat);
}

Tensor Tensor::flip(const Axes& axes) const {
  if (rank() == 0 && !axes.empty()) return unsqueeze(0).flip(axes).squeeze(0);
  std::vector<int64_t> list;
  for (int64_t a : axes) {
    const int64_t i = axis(a);
    if (std::find(list.begin(), list.end(), i) != list.end())
      raise(Code::kInvalidArgument, "flip of {}: axis {} is named twice", bm::to_string(shape()),
            i);
    if (!size(i).is(1)) list.push_back(i);
  }
  if (list.empty()) return *this;
  std::sort(list.begin(), list.end());
  return movement(NodeKind::kFlip, *this, shape(), std::move(list));
}

}  // namespace bm
