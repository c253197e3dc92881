#pragma once
// Makers of graph nodes: every tensor operation is composed of these. They check shapes and dtypes.

#include "tensor/tensor.h"

namespace bm {

/// Elementwise op on tensors of equal dtype; shapes broadcast. Comparisons give bool.
Tensor alu(ir::Op op, const Tensor& a);
Tensor alu(ir::Op op, Tensor a, Tensor b);
Tensor select(const Tensor& condition, Tensor a, Tensor b);
/// Reduced axes stay with size 1; accumulates in the tensor's dtype (float16/bfloat16: in float32).
Tensor reduce(ir::ReduceOp op, const Tensor& a, const Axes& axes);
/// Results of the reduction of the elements so far along `axis`. Devices without work-groups.
Tensor scan_raw(ir::ReduceOp op, const Tensor& a, int64_t axis);
/// The `count` smallest elements of int64 `a` along `axis`, in order; INT64_MAX where there are
/// fewer. Devices without work-groups.
Tensor top_k_raw(const Tensor& a, int64_t axis, int64_t count);
/// Constant of shape [].
Tensor scalar_like(const Tensor& like, double value);
Tensor constant(double value, DType dtype, runtime::Device& device);
Tensor constant_int(int64_t value, DType dtype, runtime::Device& device);
Tensor iota(const SymInt& n, runtime::Device& device);
/// src[0] indexed along `axis` by int64 `index` (same rank; other axes of index not larger than
/// src's).
Tensor gather_raw(const Tensor& src, int64_t axis, const Tensor& index);
/// Pad with non-negative amounts; a constant fill.
Tensor pad_raw(const Tensor& a, const std::vector<SymInt>& before_after, Scalar value);
/// begin and size per axis.
Tensor shrink_raw(const Tensor& a, const std::vector<SymInt>& begin_size);

/// Makes `n` known to the storages it reads, so that an assign realises it first.
void register_reader(const NodePtr& n);
/// Storage, or movement nodes down to it.
bool is_view_of_storage(const Node* n);

/// Type both operands are converted to (promotion.cpp): the field's rules; see docs/.
DType promote(DType a, DType b);
/// Least type for a sum: bool and small ints → int32/uint32…, floats unchanged.
DType sum_dtype(DType t);
/// float types unchanged, everything else float32.
DType float_dtype(DType t);
/// A tensor made from a C++ number (weak): takes the other operand's dtype when its category
/// allows.
bool is_weak(const Tensor& t);
/// Both promoted to a common dtype and broadcast to a common shape.
void match(Tensor& a, Tensor& b, std::string_view what);

}  // namespace bm
