// Creation, properties and running of tensors.
#include "tensor/tensor.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "runtime/buffer.h"
#include "tensor/capture_scope.h"
#include "tensor/primitives.h"
#include "tensor/schedule.h"

namespace bm {
namespace {

runtime::Device& device_named(std::string_view name) {
  return *(name.empty() ? unwrap(runtime::default_device()) : unwrap(runtime::open_device(name)));
}

Tensor storage_node(runtime::Buffer buffer, const Shape& shape, DType dtype) {
  auto n = std::make_shared<Node>();
  n->kind = NodeKind::kBuffer;
  n->dtype = dtype;
  n->device = &buffer.device();
  n->shape = shape;
  n->buffer = std::move(buffer);
  return Tensor(std::move(n));
}

uint64_t byte_size(const Shape& shape, DType dtype) {
  return static_cast<uint64_t>(max_elements(shape)) * static_cast<uint64_t>(item_size(dtype));
}

void need_static(std::string_view what, const Shape& shape) {
  if (!is_static(shape))
    raise(Code::kInvalidArgument, "{}: shape {} is symbolic", what, to_string(shape));
}

}  // namespace

void Tensor::throw_no_value() {
  raise(Code::kInvalidArgument,
        "this tensor has no value: it was default-constructed or moved from; give it one first, "
        "or ask is_valid()");
}

NodePtr Tensor::weak_node(DType dtype, int64_t i, double f) {
  auto n = std::make_shared<Node>();
  n->dtype = dtype;
  n->scalar = {i, f};
  n->is_weak = true;  // the device is the other operand's
  return n;
}

runtime::Device& Tensor::device() const {
  const std::atomic_ref device(node()->device);
  if (runtime::Device* known = device.load(std::memory_order_relaxed)) return *known;
  runtime::Device* const fallback = unwrap(runtime::default_device());
  device.store(fallback, std::memory_order_relaxed);
  return *fallback;
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, std::string_view device) {
  return constant(value, dtype, device_named(device)).expand(shape);
}
Tensor Tensor::full_int(const Shape& shape, int64_t value, DType dtype, std::string_view device) {
  return constant_int(value, dtype, device_named(device)).expand(shape);
}
Tensor Tensor::zeros(const Shape& shape, DType dtype, std::string_view device) {
  return full_int(shape, 0, dtype, device);
}
Tensor Tensor::ones(const Shape& shape, DType dtype, std::string_view device) {
  return full_int(shape, 1, dtype, device);
}

Tensor Tensor::empty(const Shape& shape, DType dtype, std::string_view device) {
  runtime::Buffer buffer = unwrap(runtime::allocate(
      device_named(device), {.size = std::max<uint64_t>(byte_size(shape, dtype), 1)}));
  return storage_node(std::move(buffer), shape, dtype);
}

Tensor Tensor::arange(const SymInt& n, DType dtype, std::string_view device) {
  return iota(n, device_named(device)).cast(dtype);
}

namespace {

/// begin + i·step for i < n, in integers where the dtype holds integers.
Tensor ramp(double begin, double step, int64_t n, DType dtype, runtime::Device& device) {
  const Tensor i = iota(n, device);
  if (is_float(dtype))
    return (i.cast(DType::kF64) * constant(step, DType::kF64, device) +
            constant(begin, DType::kF64, device))
        .cast(dtype);
  const Tensor steps = i * constant_int(static_cast<int64_t>(step), DType::kI64, device);
  return (steps + constant_int(static_cast<int64_t>(begin), DType::kI64, device)).cast(dtype);
}

/// Whether int64 holds `v` exactly.
bool is_whole(double v) { return v == std::trunc(v) && std::fabs(v) < 0x1p63; }

}  // namespace

Tensor Tensor::arange(double begin, double end, double step, DType dtype, std::string_view device) {
  const double count = std::ceil((end - begin) / step);
  if (step == 0 || !std::isfinite(begin) || !std::isfinite(end) || !std::isfinite(step) ||
      !(count < 0x1p62))
    raise(Code::kInvalidArgument, "arange({}, {}, {}): {}", begin, end, step,
          step == 0 ? "the step is 0" : "the bounds and their number of steps must be finite");
  if (!is_float(dtype) && !(is_whole(begin) && is_whole(step)))
    raise(Code::kInvalidArgument,
          "arange({}, {}, {}) of {}: begin and step must be integers; make it a float32 and cast",
          begin, end, step, dtype_name(dtype));
  const auto n = static_cast<int64_t>(std::max(count, 0.0));
  return ramp(begin, step, n, dtype, device_named(device));
}

Tensor Tensor::linspace(double begin, double end, int64_t n, DType dtype, std::string_view device) {
  if (n < 0 || !std::isfinite(begin) || !std::isfinite(end))
    raise(Code::kInvalidArgument, "linspace({}, {}, {}): {}", begin, end, n,
          n < 0 ? "a negative number of values" : "the bounds must be finite");
  runtime::Device& on = device_named(device);
  const auto steps = static_cast<double>(std::max<int64_t>(n - 1, 1));
  const double width = end - begin;
  const double step = std::isfinite(width) ? width / steps : end / steps - begin / steps;
  const Tensor values = ramp(begin, step, n, DType::kF64, on);
  if (n < 2) return values.cast(dtype);
  // The last one is `end` itself, however the steps were rounded.
  return select(iota(n, on) == n - 1, constant(end, DType::kF64, on), values).cast(dtype);
}

Tensor Tensor::eye(int64_t n, int64_t m, DType dtype, std::string_view device) {
  if (m == -1) m = n;
  if (n < 0 || m < 0)
    raise(Code::kInvalidArgument, "eye of {} rows and {} columns: sizes are not negative", n, m);
  runtime::Device& on = device_named(device);
  return (iota(n, on).reshape({n, 1}) == iota(m, on).reshape({1, m})).cast(dtype);
}

Tensor Tensor::from_bytes(std::span<const std::byte> bytes, const Shape& shape, DType dtype,
                          std::string_view device) {
  return guard_call("making a tensor", [&] {
    need_static("from", shape);
    if (bytes.size() != byte_size(shape, dtype))
      raise(Code::kInvalidArgument, "from: {} of {} needs {} bytes, not {}", to_string(shape),
            dtype_name(dtype), byte_size(shape, dtype), bytes.size());
    Tensor t = empty(shape, dtype, device);
    runtime::Buffer dst = t.buffer();
    dst.size = bytes.size();
    if (!bytes.empty()) unwrap(runtime::copy_in(dst, bytes));
    return t;
  });
}

Tensor Tensor::from_blob(void* pointer, const Shape& shape, DType dtype, std::string_view device,
                         std::function<void()> release, hal::ExternalKind kind) {
  need_static("from_blob", shape);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (kind != hal::ExternalKind::kClMem && address % static_cast<uintptr_t>(item_size(dtype)) != 0)
    raise(Code::kInvalidArgument, "from_blob: {} is not aligned to the {} bytes of {}", pointer,
          item_size(dtype), dtype_name(dtype));
  return storage_node(unwrap(runtime::wrap(device_named(device), pointer, byte_size(shape, dtype),
                                           std::move(release), kind)),
                      shape, dtype);
}

Tensor Tensor::from_buffer(runtime::Buffer buffer, const Shape& shape, DType dtype) {
  if (buffer.size < byte_size(shape, dtype))
    raise(Code::kInvalidArgument, "from_buffer: {} of {} needs {} bytes, the buffer has {}",
          to_string(shape), dtype_name(dtype), byte_size(shape, dtype), buffer.size);
  return storage_node(std::move(buffer), shape, dtype);
}

const SymInt& Tensor::size(int64_t a) const { return shape()[static_cast<size_t>(axis(a))]; }

int64_t Tensor::axis(int64_t a) const {
  if (a < -rank() || a >= rank())
    raise(Code::kInvalidArgument, "axis {} is out of range for shape {}", a,
          bm::to_string(shape()));
  return a < 0 ? a + rank() : a;
}

Tensor& Tensor::realize() {
  return guard_call("running a tensor", [&]() -> Tensor& {
    device();  // a number on its own needs one now
    if (!is_realized()) realize_nodes({&node_, 1});
    return *this;
  });
}

void Tensor::realize(std::span<Tensor* const> tensors) {
  guard_call("running tensors", [&] {
    std::vector<NodePtr> roots;
    for (Tensor* t : tensors) {
      t->device();
      if (!t->is_realized()) roots.push_back(t->node_);
    }
    if (!roots.empty()) realize_nodes(roots);
  });
}

const runtime::Buffer& Tensor::buffer() const {
  if (!is_realized())
    raise(Code::kInvalidArgument, "tensor {} has no storage; realize() it first",
          bm::to_string(shape()));
  check_readable(*node_);
  return node_->buffer;
}

std::vector<std::byte> Tensor::bytes() const {
  return guard_call("reading a tensor", [&] {
    if (CaptureScope::current())
      raise(Code::kInvalidArgument,
            "tensor data cannot be read while a capture records: nothing has run yet; return the "
            "tensor instead");
    Tensor t = *this;
    t.realize();
    const auto item = static_cast<size_t>(item_size(dtype()));
    std::vector<std::byte> all(byte_size(shape(), dtype()));
    if (!all.empty()) {
      runtime::Buffer src = t.buffer();
      src.size = all.size();
      unwrap(runtime::copy_out(all, src));
    }
    if (is_static(shape())) return all;
    // Symbolic axes are stored at their largest size: keep the part in use.
    std::vector<std::byte> used;
    const std::vector<int64_t> strides = strides_of(shape());
    std::vector<int64_t> sizes, index(shape().size(), 0);
    for (const SymInt& d : shape()) sizes.push_back(d.value());
    const int64_t count = elements_now(shape());
    for (int64_t i = 0; i < count; ++i) {
      int64_t at = 0;
      for (size_t k = 0; k < index.size(); ++k) at += index[k] * strides[k];
      const std::byte* from = all.data() + static_cast<size_t>(at) * item;
      used.insert(used.end(), from, from + item);
      for (size_t k = index.size(); k-- > 0 && ++index[k] == sizes[k];) index[k] = 0;
    }
    return used;
  });
}

Tensor& Tensor::assign(Tensor&& given) {
  return guard_call("assigning a tensor", [&]() -> Tensor& {
    Tensor value = std::move(given);
    if (is_weak(value)) {  // a number takes this tensor's dtype
      const Node& n = *value.node();
      value = is_float(n.dtype) ? constant(n.scalar.f, dtype(), device())
                                : constant_int(n.scalar.i, dtype(), device());
    }
    if (&value.device() != &device()) value = value.to(device().name());
    if (!(broadcast(shape(), value.shape(), "assign") == shape()))
      raise(Code::kInvalidArgument, "assign: a value of shape {} does not fit into {}",
            bm::to_string(value.shape()), bm::to_string(shape()));
    value = value.cast(dtype()).expand(shape());
    assign_nodes(node_, value.node_);
    return *this;
  });
}

namespace detail {

void check_dtype(const Tensor& t, DType wanted) {
  if (t.dtype() != wanted)
    raise(Code::kInvalidArgument, "data: the tensor holds {}, not {}; cast() it first",
          dtype_name(t.dtype()), dtype_name(wanted));
}

int64_t check_single(const Tensor& t) {
  const int64_t n = elements_now(t.shape());
  if (n != 1)
    raise(Code::kInvalidArgument, "item: tensor {} has {} elements, not one", to_string(t.shape()),
          n);
  return n;
}

}  // namespace detail
}  // namespace bm
