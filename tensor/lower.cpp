#include "tensor/lower.h"

#include <map>
#include <unordered_map>

#include "compiler/ir/linear.h"
#include "compiler/analysis/unify.h"
#include "tensor/reshape.h"

namespace bm {
namespace {

using IndexNodes = std::vector<const ir::Node*>;

struct MemoKey {
  const Node* node;
  IndexNodes index;
  const ir::Node* gate;
  bool operator==(const MemoKey&) const = default;
};
struct MemoHash {
  size_t operator()(const MemoKey& k) const {
    size_t h = reinterpret_cast<size_t>(k.node) * 31 + reinterpret_cast<size_t>(k.gate);
    for (const ir::Node* n : k.index) h = h * 0x9e3779b97f4a7c15ULL + n->id;
    return h;
  }
};

/// Whose loops a kernel that stores `root` has. Those of a scan are its own: in another shape its
/// elements lie as they do in this one.
const Node& node_of_loops(const Node& root, const std::function<bool(const Node*)>& is_stored) {
  const Node* shaped = &root;
  while (shaped->kind == NodeKind::kReshape && is_static(shaped->shape) &&
         is_static(shaped->src[0]->shape) && !shaped->src[0]->is_realized() &&
         !is_stored(shaped->src[0].get()))
    shaped = shaped->src[0].get();
  const Node* n = shaped;
  while (n->kind == NodeKind::kCast && !n->src[0]->is_realized() && !is_stored(n->src[0].get()))
    n = n->src[0].get();
  return n->kind == NodeKind::kScan ? *shaped : root;
}

class Lowering {
 public:
  Lowering(const Node& root, const Node* target, const std::function<bool(const Node*)>& is_stored)
      : root_(root),
        shaped_(target ? root : node_of_loops(root, is_stored)),
        target_(target),
        is_stored_(is_stored) {
    out_.ir.graph = std::make_unique<ir::Graph>();
    g_ = out_.ir.graph.get();
  }

  /// `is_flat`: one loop over all elements instead of one per axis.
  Result<LoweredKernel> run(bool is_flat) {
    const Node* destination = &root_;
    if (target_) {
      destination = target_;
      while (is_movement(destination->kind)) destination = destination->src[0].get();
    }
    const int param = param_of(destination);
    out_.ir.params[static_cast<size_t>(param)].is_written = true;
    IndexNodes index = is_flat ? flat_index() : loop_index();
    const ir::Node* gate = nullptr;
    const ir::Node* value = emit_here(shaped_, index, nullptr);
    IndexNodes where = index;
    const Node* view = target_;
    while (view && view != destination) {
      where = source_index(*view, where, gate);
      view = view->src[0].get();
    }
    const ir::Node* at = flatten(where, strides_of(target_ ? destination->shape : shaped_.shape));
    out_.ir.stores.push_back({param, at, value, gate});
    for (const ir::Node* n : loads_of_destination_)
      if (n->src[0] != at) out_.reads_destination_elsewhere = true;
    out_.ir.name = name(is_flat);
    if (has_reduce_) compiler::unify_ranges(&out_.ir);
    BM_TRY(ir::verify(out_.ir));
    return std::move(out_);
  }

  /// Loops of `root` over segments, and one of `length` inside them.
  Result<LoweredKernel> run_segments(std::span<const Node* const> roots, int64_t length) {
    for (const Node* n : roots) out_.ir.params[static_cast<size_t>(param_of(n))].is_written = true;
    row_step_ = length;
    const IndexNodes outer = loop_index();
    const ir::Node* inner = loop(length);
    out_.ir.ranges.push_back(inner);
    IndexNodes all = outer;
    all.push_back(inner);
    Shape shape = root_.shape;
    shape.emplace_back(length);
    for (const Node* n : roots) {
      const bool is_element = max_elements(n->shape) == max_elements(shape);
      BM_TRY(reshape_groups(n->shape, is_element ? shape : root_.shape));
      const IndexNodes index = is_element ? reshape_index(shape, n->shape, all)
                                          : reshape_index(root_.shape, n->shape, outer);
      const ir::Node* gate = is_element ? nullptr : g_->less(inner, g_->index(1));
      const ir::Node* value = emit_here(*n, index, nullptr);
      const ir::Node* at = flatten(index, strides_of(n->shape));
      out_.ir.stores.push_back({param_of(n), at, value, gate});
    }
    out_.ir.name = name(false) + fmt::format("x{}_{}", length, roots.size());
    if (has_reduce_) compiler::unify_ranges(&out_.ir);
    BM_TRY(ir::verify(out_.ir));
    return std::move(out_);
  }

 private:
  const Node& root_;
  const Node& shaped_;  // what the loops are those of
  const Node* target_;
  const std::function<bool(const Node*)>& is_stored_;
  LoweredKernel out_;
  ir::Graph* g_ = nullptr;
  std::unordered_map<MemoKey, const ir::Node*, MemoHash> memo_;
  std::vector<const ir::Node*> loads_of_destination_;
  bool has_reduce_ = false;
  int64_t row_step_ = 0;  // longer loops of reductions are two, the inner one of so many iterations
  char kind_ = 'E';       // first letter of the kernel's name
  std::string reduce_dims_;

  // --- arguments ---------------------------------------------------------------------------
  int param_of(const Node* n) {
    for (size_t i = 0; i < out_.params.size(); ++i) {
      const Node* p = out_.params[i];
      const bool is_same_storage = p->is_realized() && n->is_realized() &&
                                   p->buffer.storage == n->buffer.storage &&
                                   p->buffer.offset == n->buffer.offset && p->dtype == n->dtype;
      if (p == n || is_same_storage) {
        auto& known = out_.ir.params[i].elements;
        known = std::max(known, max_elements(n->shape));
        return static_cast<int>(i);
      }
    }
    out_.params.push_back(n);
    out_.ir.params.push_back({n->dtype, max_elements(n->shape), false, false});
    return static_cast<int>(out_.params.size() - 1);
  }

  const ir::Node* expression(const SymInt& s) {
    const ir::Node* sum = g_->index(s.constant());
    for (const SymInt::Term& t : s.terms()) {
      size_t i = 0;
      while (i < out_.vars.size() && !(out_.vars[i] == t.var)) ++i;
      if (i == out_.vars.size()) {
        out_.vars.push_back(t.var);
        out_.ir.vars.push_back({t.var.name(), t.var.min(), t.var.max()});
      }
      sum = g_->add(sum,
                    g_->mul(g_->var(static_cast<int>(i), t.var.min(), t.var.max()), t.coefficient));
    }
    return sum;
  }

  // --- loops -------------------------------------------------------------------------------
  const ir::Node* loop(const SymInt& extent) {
    if (extent.is(1)) return g_->index(0);
    return g_->range(expression(extent));
  }

  IndexNodes loop_index() {
    IndexNodes index;
    for (const SymInt& d : shaped_.shape) {
      index.push_back(loop(d));
      if (!d.is(1)) out_.ir.ranges.push_back(index.back());
    }
    return index;
  }

  IndexNodes flat_index() {
    const ir::Node* flat = loop(max_elements(shaped_.shape));
    if (!flat->is_const()) out_.ir.ranges.push_back(flat);
    IndexNodes index(shaped_.shape.size());
    int64_t inner = 1;
    for (size_t i = shaped_.shape.size(); i-- > 0;) {
      const int64_t d = shaped_.shape[i].constant();
      index[i] = g_->mod(g_->div(flat, inner), d);
      inner *= d;
    }
    return index;
  }

  const ir::Node* flatten(const IndexNodes& index, const std::vector<int64_t>& strides) {
    const ir::Node* at = g_->index(0);
    for (size_t i = 0; i < index.size(); ++i) at = g_->add(at, g_->mul(index[i], strides[i]));
    return at;
  }

  // --- movement: index of the source element for an index of the result -----------------------
  IndexNodes source_index(const Node& n, const IndexNodes& index, const ir::Node*& gate) {
    const Node& s = *n.src[0];
    IndexNodes out(s.shape.size());
    switch (n.kind) {
      case NodeKind::kPermute:
        for (size_t i = 0; i < index.size(); ++i) out[static_cast<size_t>(n.ints[i])] = index[i];
        return out;
      case NodeKind::kExpand:
        for (size_t i = 0; i < index.size(); ++i)
          out[i] = s.shape[i].is(1) ? g_->index(0) : index[i];
        return out;
      case NodeKind::kFlip:
        out = index;
        for (int64_t a : n.ints) {
          const auto i = static_cast<size_t>(a);
          out[i] = g_->sub(expression(s.shape[i] - 1), index[i]);
        }
        return out;
      case NodeKind::kShrink:
        for (size_t i = 0; i < index.size(); ++i)
          out[i] = g_->add(index[i], expression(n.syms[2 * i]));
        return out;
      case NodeKind::kPad:
        for (size_t i = 0; i < index.size(); ++i) {
          out[i] = index[i];
          if (n.syms[2 * i].is(0) && n.syms[2 * i + 1].is(0)) continue;
          out[i] = g_->sub(index[i], expression(n.syms[2 * i]));
          const ir::Node* is_high = g_->less(out[i], expression(s.shape[i]));
          const ir::Node* is_low = g_->less(out[i], g_->index(0));
          gate = g_->both(gate, g_->both(g_->unary(ir::Op::kNot, is_low), is_high));
        }
        return out;
      case NodeKind::kReshape: return reshape_index(n.shape, s.shape, index);
      default: break;
    }
    return index;
  }

  IndexNodes reshape_index(const Shape& from, const Shape& to, const IndexNodes& index) {
    IndexNodes out(to.size(), g_->index(0));
    const auto groups = reshape_groups(to, from);  // checked when the node was made
    if (!groups || max_elements(from) == 0) return out;
    for (const ReshapeGroup& group : *groups) {
      const ir::Node* flat = g_->index(0);
      int64_t step = 1;
      for (size_t i = group.dst_end; i-- > group.dst_begin;) {
        flat = g_->add(flat, g_->mul(index[i], step));
        if (from[i].is_const()) step *= from[i].constant();  // a symbolic axis is the outermost
      }
      int64_t inner = 1;
      for (size_t i = group.src_end; i-- > group.src_begin;) {
        if (to[i].is(1)) continue;
        const ir::Node* digit = g_->div(flat, inner);
        bool is_outermost = true;
        for (size_t j = group.src_begin; j < i; ++j) is_outermost &= to[j].is(1);
        out[i] = is_outermost ? digit : g_->mod(digit, to[i].constant());
        if (to[i].is_const()) inner *= to[i].constant();
      }
    }
    return out;
  }

  // --- values ------------------------------------------------------------------------------
  const ir::Node* emit(const Node& n, const IndexNodes& index, const ir::Node* gate) {
    MemoKey key{&n, index, gate};
    if (auto it = memo_.find(key); it != memo_.end()) return it->second;
    const ir::Node* value =
        (n.is_realized() || is_stored_(&n)) ? load(n, index, gate) : emit_here(n, index, gate);
    memo_.emplace(std::move(key), value);
    return value;
  }

  const ir::Node* load(const Node& n, const IndexNodes& index, const ir::Node* gate) {
    const int param = param_of(&n);
    out_.ir.params[static_cast<size_t>(param)].is_read = true;
    const ir::Node* value = g_->load(param, n.dtype, flatten(index, strides_of(n.shape)), gate);
    if (param == 0 && value->op == ir::Op::kLoad) loads_of_destination_.push_back(value);
    return value;
  }

  const ir::Node* emit_here(const Node& n, const IndexNodes& index, const ir::Node* gate) {
    switch (n.kind) {
      case NodeKind::kConst:
        return is_float(n.dtype) ? g_->constant_f(n.dtype, n.scalar.f)
                                 : g_->constant(n.dtype, n.scalar.i);
      case NodeKind::kIota: return index[0];
      case NodeKind::kVarValue: return expression(n.syms[0]);
      case NodeKind::kAlu: return emit_alu(n, index, gate);
      case NodeKind::kCast: return g_->cast(emit(*n.src[0], index, gate), n.dtype);
      case NodeKind::kBitcast: return g_->bitcast(emit(*n.src[0], index, gate), n.dtype);
      case NodeKind::kContiguous: return emit(*n.src[0], index, gate);
      case NodeKind::kReduce: return emit_reduce(n, index, gate);
      case NodeKind::kScan: return emit_scan(n, index, gate);
      case NodeKind::kTopK: return emit_top_k(n, index, gate);
      case NodeKind::kGather: return emit_gather(n, index, gate);
      case NodeKind::kPad: {
        const ir::Node* inside = nullptr;
        const IndexNodes at = source_index(n, index, inside);
        const ir::Node* fill = is_float(n.dtype) ? g_->constant_f(n.dtype, n.scalar.f)
                                                 : g_->constant(n.dtype, n.scalar.i);
        if (inside && inside->is_const(0)) return fill;
        const ir::Node* value = emit(*n.src[0], at, g_->both(gate, inside));
        return inside ? g_->select(inside, value, fill) : value;
      }
      case NodeKind::kReshape:
      case NodeKind::kPermute:
      case NodeKind::kExpand:
      case NodeKind::kShrink:
      case NodeKind::kFlip: {
        const ir::Node* unused = nullptr;
        return emit(*n.src[0], source_index(n, index, unused), gate);
      }
      case NodeKind::kBuffer:
      case NodeKind::kCopy: break;
    }
    return load(n, index, gate);
  }

  const ir::Node* emit_alu(const Node& n, const IndexNodes& index, const ir::Node* gate) {
    const ir::Node* a = emit(*n.src[0], index, gate);
    if (n.src.size() == 1) return g_->unary(n.op, a);
    const ir::Node* b = emit(*n.src[1], index, gate);
    if (n.src.size() == 2) return g_->binary(n.op, a, b);
    return g_->select(a, b, emit(*n.src[2], index, gate));
  }

  const ir::Node* emit_reduce(const Node& n, const IndexNodes& index, const ir::Node* gate) {
    has_reduce_ = true;
    IndexNodes inner = index;
    std::vector<const ir::Node*> ranges;
    for (int64_t a : n.ints) {
      const auto i = static_cast<size_t>(a);
      if (n.src[0]->shape[i].max() ==
          0)  // nothing to reduce: the identity (max and min are refused earlier)
        return g_->constant(n.dtype, n.reduce_op == ir::ReduceOp::kProd ? 1 : 0);
      const SymInt& extent = n.src[0]->shape[i];
      if (row_step_ > 0 && extent.is_const() && extent.constant() > row_step_ &&
          extent.constant() % row_step_ == 0) {
        // Then they are the loops over segments and elements.
        ranges.push_back(loop(extent.constant() / row_step_));
        ranges.push_back(loop(row_step_));
        inner[i] = g_->add(g_->mul(ranges[ranges.size() - 2], row_step_), ranges.back());
        continue;
      }
      inner[i] = loop(extent);
      if (inner[i]->is_const()) continue;
      ranges.push_back(inner[i]);
      reduce_dims_ += fmt::format("_{}", n.src[0]->shape[i].max());
    }
    return g_->reduce(n.reduce_op, emit(*n.src[0], inner, gate), ranges);
  }

  /// The fuser leaves scans in kernels whose loops are theirs.
  const ir::Node* emit_scan(const Node& n, const IndexNodes& index, const ir::Node* gate) {
    kind_ = 's';
    const ir::Node* value = emit(*n.src[0], index, gate);
    return g_->scan(n.reduce_op, value, index[static_cast<size_t>(n.ints[0])]);
  }

  const ir::Node* emit_top_k(const Node& n, const IndexNodes& index, const ir::Node* gate) {
    kind_ = 'o';
    const auto axis = static_cast<size_t>(n.ints[0]);
    IndexNodes inner = index;
    inner[axis] = loop(n.src[0]->shape[axis]);
    return g_->top_k(emit(*n.src[0], inner, gate), inner[axis], index[axis]);
  }

  const ir::Node* emit_gather(const Node& n, const IndexNodes& index, const ir::Node* gate) {
    const auto axis = static_cast<size_t>(n.ints[0]);
    const ir::Node* position = emit(*n.src[1], index, gate);
    const ir::Node* is_low = g_->less(position, g_->index(0));
    const ir::Node* is_high = g_->less(position, expression(n.src[0]->shape[axis]));
    const ir::Node* inside = g_->both(g_->unary(ir::Op::kNot, is_low), is_high);
    IndexNodes at = index;
    at[axis] = position;
    const ir::Node* value = emit(*n.src[0], at, g_->both(gate, inside));
    return g_->select(inside, value, g_->constant(n.dtype, 0));
  }

  std::string name(bool is_flat) const {
    std::string out(1, has_reduce_ ? 'r' : kind_);
    if (is_flat) {
      out += fmt::format("_{}", max_elements(root_.shape));
    } else {
      for (const SymInt& d : root_.shape)
        if (!d.is(1)) out += fmt::format("_{}{}", d.is_const() ? "" : "s", d.max());
    }
    return out + reduce_dims_;
  }
};

}  // namespace

Result<LoweredKernel> lower(const Node& root, const Node* target,
                            const std::function<bool(const Node*)>& is_stored) {
  size_t num_axes = 0;
  for (const SymInt& d : root.shape) num_axes += d.is(1) ? 0 : 1;
  // One long loop vectorises and splits over threads best; it is only taken when it is free.
  if (num_axes > 1 && is_static(root.shape)) {
    Lowering flat(root, target, is_stored);
    auto lowered = flat.run(true);
    if (lowered) {
      std::vector<const ir::Node*> roots;
      for (const ir::Store& s : lowered->ir.stores) roots.insert(roots.end(), {s.index, s.value});
      const auto nodes = ir::topological(roots);
      const bool is_free = std::none_of(nodes.begin(), nodes.end(), [](const ir::Node* n) {
        return n->op == ir::Op::kReduce || n->op == ir::Op::kScan || n->op == ir::Op::kTopK ||
               (n->dtype == DType::kI64 && (n->op == ir::Op::kDiv || n->op == ir::Op::kMod));
      });
      if (is_free) return lowered;
    }
  }
  return Lowering(root, target, is_stored).run(false);
}

Result<LoweredKernel> lower_segments(std::span<const Node* const> roots, const Node& segments,
                                     int64_t length,
                                     const std::function<bool(const Node*)>& is_stored) {
  return Lowering(segments, nullptr, is_stored).run_segments(roots, length);
}

}  // namespace bm
