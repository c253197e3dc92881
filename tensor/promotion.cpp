// Which dtype two operands meet in: the lattice the field uses (NumPy-like for integers, the float
// operand wins over integers whatever their width, float16 with bfloat16 gives float32).
#include "tensor/primitives.h"

namespace bm {
namespace {

int category(DType t) { return is_bool(t) ? 0 : is_int(t) ? 1 : 2; }

DType promote_ints(DType a, DType b) {
  if (is_signed(a) == is_signed(b)) return item_size(a) >= item_size(b) ? a : b;
  const DType s = is_signed(a) ? a : b, u = is_signed(a) ? b : a;
  if (item_size(s) > item_size(u)) return s;
  switch (u) {
    case DType::kU8: return DType::kI16;
    case DType::kU16: return DType::kI32;
    case DType::kU32: return DType::kI64;
    default: return DType::kU64;
  }
}

}  // namespace

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (category(a) != category(b)) return category(a) > category(b) ? a : b;
  if (category(a) == 1) return promote_ints(a, b);
  if (is_half_like(a) && is_half_like(b)) return DType::kF32;
  return std::max(a, b);
}

DType sum_dtype(DType t) {
  if (is_bool(t)) return DType::kI32;
  if (is_int(t) && item_size(t) < 4) return is_signed(t) ? DType::kI32 : DType::kU32;
  return t;
}

DType float_dtype(DType t) { return is_float(t) ? t : DType::kF32; }

bool is_weak(const Tensor& t) { return t.node()->is_weak; }

namespace {

DType meeting_dtype(const Tensor& a, const Tensor& b) {
  const DType ta = a.dtype(), tb = b.dtype();
  if (is_weak(a) == is_weak(b)) return promote(ta, tb);
  const DType strong = is_weak(a) ? tb : ta, weak = is_weak(a) ? ta : tb;
  return category(weak) > category(strong) ? weak : strong;
}

}  // namespace

void match(Tensor& a, Tensor& b, std::string_view what) {
  const DType t = meeting_dtype(a, b);
  runtime::Device& device = is_weak(a) ? b.device() : a.device();
  for (Tensor* x : {&a, &b}) {
    const Node& n = *x->node();
    if (!n.is_weak) continue;
    *x = is_float(t)
             ? constant(n.dtype == DType::kF32 ? n.scalar.f : static_cast<double>(n.scalar.i), t,
                        device)
         : is_float(n.dtype) ? constant(n.scalar.f, t, device)
                             : constant_int(n.scalar.i, t, device);
  }
  if (&a.device() != &b.device())
    raise(Code::kInvalidArgument, "{}: operands are on {} and {}; move one with to()", what,
          a.device().name(), b.device().name());
  const Shape shape = broadcast(a.shape(), b.shape(), what);
  a = a.cast(t).expand(shape);
  b = b.cast(t).expand(shape);
}

}  // namespace bm
