#pragma once
// Tensor: a lazy array with value semantics. Operations build a graph; realize(), data() and item()
// compile and run it. Misuse throws bm::Exception naming shapes and dtypes involved.
//
// Thread: a Tensor belongs to one thread at a time; realised tensors may be read by many.

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/dtype.h"
#include "tensor/exception.h"
#include "tensor/node.h"
#include "tensor/symint.h"

namespace bm {

using Axes = std::vector<int64_t>;

/// Python-like slice of one axis: negative begin/end count from the end, step may be negative (not
/// 0).
struct Slice {
  std::optional<SymInt> begin, end;
  int64_t step = 1;
};
/// One index of Tensor::index: an integer (drops the axis), a slice, or all of it (default Slice).
struct Index {
  Index(int i) : at(SymInt(i)) {}          // NOLINT(google-explicit-constructor)
  Index(int64_t i) : at(SymInt(i)) {}      // NOLINT(google-explicit-constructor)
  Index(const SymInt& i) : at(i) {}        // NOLINT(google-explicit-constructor)
  Index(const Var& v) : at(SymInt(v)) {}   // NOLINT(google-explicit-constructor)
  Index(Slice s) : slice(std::move(s)) {}  // NOLINT(google-explicit-constructor)
  std::optional<SymInt> at;
  Slice slice;
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(NodePtr node) : node_(std::move(node)) {}
  /// C++ numbers are weak: they take the other operand's dtype when its category allows
  /// (int tensor + 1 stays int; int tensor + 0.5 becomes float32). On their own: bool, int64,
  /// float32.
  template <class T>
    requires std::is_arithmetic_v<T>
  Tensor(T value) : Tensor(weak(value)) {}  // NOLINT(google-explicit-constructor)

  // --- creation (device "" = default device) -------------------------------------------------
  static Tensor full(const Shape& shape, double value, DType dtype = DType::kF32,
                     std::string_view device = "");
  static Tensor full_int(const Shape& shape, int64_t value, DType dtype = DType::kI64,
                         std::string_view device = "");
  static Tensor zeros(const Shape& shape, DType dtype = DType::kF32, std::string_view device = "");
  static Tensor ones(const Shape& shape, DType dtype = DType::kF32, std::string_view device = "");
  /// Uninitialised storage, allocated at once. Static shapes only.
  static Tensor empty(const Shape& shape, DType dtype = DType::kF32, std::string_view device = "");
  /// 0, 1, … n - 1.
  static Tensor arange(const SymInt& n, DType dtype = DType::kI64, std::string_view device = "");
  /// begin + i·step for i in [0, ceil((end - begin) / step)); no elements when `end` lies the other
  /// way. Floating results are computed in float64 and rounded once. Throws: a step of 0, bounds
  /// that are not finite, and fractions for an integer dtype.
  static Tensor arange(double begin, double end, double step, DType dtype,
                       std::string_view device = "");
  /// n evenly spaced values from `begin` to `end`, both included (n = 1: `begin`); computed in
  /// float64 and rounded once, to an integer dtype toward zero. Throws: n < 0.
  static Tensor linspace(double begin, double end, int64_t n, DType dtype = DType::kF32,
                         std::string_view device = "");
  /// [n, m] with ones on the diagonal; m = -1 means m = n. Throws: other negative sizes.
  static Tensor eye(int64_t n, int64_t m = -1, DType dtype = DType::kF32,
                    std::string_view device = "");
  /// Value of a variable as an int64 scalar.
  static Tensor value_of(const SymInt& v, std::string_view device = "");
  /// Copies host data; bytes.size() must equal elements × item size.
  static Tensor from_bytes(std::span<const std::byte> bytes, const Shape& shape, DType dtype,
                           std::string_view device = "");
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, std::string_view device = "");
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape,
                     std::string_view device = "") {
    return from(std::span<const T>(values), shape, device);
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values, std::string_view device = "") {
    return from(std::span<const T>(values.begin(), values.size()),
                {static_cast<int64_t>(values.size())}, device);
  }
  /// Wraps memory owned by someone else: valid until `release` runs, which is after the last use.
  /// `pointer` is a host pointer aligned to the item size, or what `kind` says: on an OpenCL device
  /// a cl_mem of its context (cl::native_handles) or memory of clSVMAlloc, on a CUDA device a
  /// CUdeviceptr of its GPU and primary context.
  static Tensor from_blob(void* pointer, const Shape& shape, DType dtype,
                          std::string_view device = "", std::function<void()> release = {},
                          hal::ExternalKind kind = hal::ExternalKind::kHostPointer);
  /// Wraps a runtime buffer (row-major).
  static Tensor from_buffer(runtime::Buffer buffer, const Shape& shape, DType dtype);

  // --- properties -------------------------------------------------------------------------------
  /// False for Tensor() and for what was moved from. Operations on such a tensor throw.
  bool is_valid() const { return node_ != nullptr; }
  const Shape& shape() const { return node()->shape; }
  /// Size of an axis (negative counts from the end).
  const SymInt& size(int64_t axis) const;
  int64_t rank() const { return static_cast<int64_t>(shape().size()); }
  DType dtype() const { return node()->dtype; }
  /// A number on its own is on the default device, which is opened only then.
  runtime::Device& device() const;
  int64_t elements() const { return max_elements(shape()); }
  bool is_realized() const { return node()->is_realized(); }
  const NodePtr& node() const {
    if (!node_) [[unlikely]]
      throw_no_value();
    return node_;
  }
  /// Axis in [0, rank); throws naming axis and shape.
  int64_t axis(int64_t a) const;

  // --- running --------------------------------------------------------------------------------
  /// Computes this tensor into its own storage; returns *this.
  Tensor& realize();
  /// Realises several at once (one schedule: shared work is done once).
  static void realize(std::span<Tensor* const> tensors);
  /// Storage of a realised tensor.
  const runtime::Buffer& buffer() const;
  /// Host copy, row-major over the current shape.
  std::vector<std::byte> bytes() const;
  template <class T>
  std::vector<T> data() const;
  template <class T>
  T item() const;
  /// Writes `value` (broadcast, cast to this dtype) into this tensor's storage, which must be
  /// realised or a view of realised storage. Tensors computed from the old contents keep the old
  /// contents. Runs at once (in a capture: is recorded). Pass an rvalue to let it be fused in
  /// place.
  Tensor& assign(Tensor&& value);
  Tensor& assign(const Tensor& value) { return assign(Tensor(value)); }
  Tensor to(std::string_view device) const;
  Tensor contiguous() const;
  Tensor clone() const { return contiguous(); }

  // --- movement -------------------------------------------------------------------------------
  Tensor reshape(const Shape& shape) const;  ///< one dimension may be -1
  Tensor permute(const Axes& order) const;
  Tensor expand(const Shape& shape) const;  ///< -1 keeps a dimension; new axes in front
  Tensor pad(const std::vector<std::pair<SymInt, SymInt>>& before_after,
             double value = 0) const;  ///< negative shrinks
  Tensor shrink(const std::vector<std::pair<SymInt, SymInt>>& begin_end) const;
  Tensor flip(const Axes& axes) const;
  Tensor transpose(int64_t a = -2, int64_t b = -1) const;
  Tensor slice(int64_t axis, const Slice& s) const;
  Tensor index(const std::vector<Index>& indices) const;
  Tensor squeeze(std::optional<int64_t> axis = std::nullopt) const;
  Tensor unsqueeze(int64_t axis) const;
  Tensor flatten(int64_t first = 0, int64_t last = -1) const;
  Tensor unflatten(int64_t axis, const Shape& sizes) const;
  Tensor repeat(const std::vector<int64_t>& counts) const;
  Tensor repeat_interleave(int64_t count, int64_t axis) const;
  Tensor roll(int64_t shift, int64_t axis) const;
  std::vector<Tensor> split(int64_t size, int64_t axis = 0) const;
  std::vector<Tensor> chunk(int64_t n, int64_t axis = 0) const;
  static Tensor cat(std::span<const Tensor> tensors, int64_t axis = 0);
  static Tensor stack(std::span<const Tensor> tensors, int64_t axis = 0);
  /// out[i][j] = this[index[i][j]][j] (axis 0); negative indices count from the end; out of range →
  /// 0.
  Tensor gather(int64_t axis, const Tensor& index) const;
  /// Rows along `axis` by a tensor of integers of any shape (embedding look-up).
  Tensor take(const Tensor& index, int64_t axis = 0) const;
  /// Copy of this with `src` put at `index` along axis; last writer wins ("set"), or summed
  /// ("add"), "prod", "max", "min".
  Tensor scatter(int64_t axis, const Tensor& index, const Tensor& src,
                 std::string_view reduce = "set") const;
  Tensor tril(int64_t diagonal = 0) const;
  Tensor triu(int64_t diagonal = 0) const;
  Tensor diagonal() const;

  // --- elementwise ----------------------------------------------------------------------------
  Tensor cast(DType dtype) const;
  Tensor bitcast(DType dtype) const;
  Tensor operator-() const;
  Tensor operator!() const;  ///< logical not
  Tensor operator~() const;  ///< bitwise not
  Tensor exp2() const;
  Tensor exp() const;
  Tensor expm1() const;
  Tensor log2() const;
  Tensor log() const;
  Tensor log1p() const;
  Tensor log10() const;
  Tensor sin() const;
  Tensor cos() const;
  Tensor tan() const;
  Tensor asin() const;
  Tensor acos() const;
  Tensor atan() const;
  Tensor sinh() const;
  Tensor cosh() const;
  Tensor tanh() const;
  Tensor sqrt() const;
  Tensor rsqrt() const;
  Tensor reciprocal() const;
  Tensor square() const;
  Tensor abs() const;
  Tensor sign() const;  ///< -1, 0 or 1; +0 for -0, NaN for NaN
  Tensor trunc() const;
  Tensor floor() const;
  Tensor ceil() const;
  Tensor round() const;  ///< half to even
  Tensor isnan() const;
  Tensor isinf() const;
  Tensor isfinite() const;
  Tensor relu() const;
  Tensor leaky_relu(double slope = 0.01) const;
  Tensor sigmoid() const;
  Tensor silu() const;
  Tensor gelu(bool tanh_form = true) const;
  Tensor softplus() const;
  Tensor elu(double alpha = 1) const;
  Tensor hardswish() const;
  Tensor hardsigmoid() const;
  Tensor mish() const;
  Tensor erf() const;
  Tensor clip(std::optional<double> lo, std::optional<double> hi) const;
  Tensor maximum(const Tensor& other) const;
  Tensor minimum(const Tensor& other) const;
  /// Integers with a negative exponent: a number known now throws, as its results are no integers;
  /// a tensor's leave bases 1 and -1 what they are and make every other base 0.
  Tensor pow(const Tensor& exponent) const;
  Tensor floor_div(const Tensor& other) const;  ///< rounds toward -inf
  Tensor mod(const Tensor& other) const;        ///< sign of the divisor
  Tensor trunc_div(const Tensor& other) const;
  Tensor fmod(const Tensor& other) const;  ///< sign of the dividend
  /// this (bool) ? a : b.
  Tensor where(const Tensor& a, const Tensor& b) const;
  Tensor lerp(const Tensor& end, const Tensor& weight) const;

  // --- reductions (negative axes count from the end; no axes = all) ---------------------------
  Tensor sum(const Axes& axes = {}, bool keepdim = false,
             std::optional<DType> accumulate = std::nullopt) const;
  Tensor prod(const Axes& axes = {}, bool keepdim = false) const;
  /// Throws where there are no elements, like min, argmax and argmin.
  Tensor max(const Axes& axes = {}, bool keepdim = false) const;
  Tensor min(const Axes& axes = {}, bool keepdim = false) const;
  Tensor mean(const Axes& axes = {}, bool keepdim = false) const;
  Tensor var(const Axes& axes = {}, bool keepdim = false, int64_t correction = 1) const;
  Tensor std(const Axes& axes = {}, bool keepdim = false, int64_t correction = 1) const;
  Tensor any(const Axes& axes = {}, bool keepdim = false) const;
  Tensor all(const Axes& axes = {}, bool keepdim = false) const;
  Tensor argmax(std::optional<int64_t> axis = std::nullopt,
                bool keepdim = false) const;  ///< int64; first of ties
  Tensor argmin(std::optional<int64_t> axis = std::nullopt, bool keepdim = false) const;
  Tensor logsumexp(const Axes& axes = {}, bool keepdim = false) const;
  Tensor softmax(int64_t axis = -1) const;
  Tensor log_softmax(int64_t axis = -1) const;
  Tensor cumsum(int64_t axis) const;
  Tensor cumprod(int64_t axis) const;
  Tensor cummax(int64_t axis) const;
  /// {values, int64 indices}; stable; NaN last when ascending.
  std::pair<Tensor, Tensor> sort(int64_t axis = -1, bool descending = false) const;
  std::pair<Tensor, Tensor> topk(int64_t k, int64_t axis = -1, bool largest = true) const;

  // --- linear algebra and neural networks -----------------------------------------------------
  /// Product over the last two axes; leading axes broadcast. a [..., m, k], b [..., k, n] → [...,
  /// m, n].
  Tensor matmul(const Tensor& b, std::optional<DType> accumulate = std::nullopt) const;
  Tensor dot(const Tensor& b) const { return matmul(b); }
  /// x [..., in], weight [out, in], bias [out] → [..., out].
  Tensor linear(const Tensor& weight, const Tensor& bias = {}) const;
  /// NCHW (or NC, NCW, NCDHW); weight [out, in/groups, *kernel].
  Tensor conv(const Tensor& weight, const Tensor& bias = {}, const Axes& stride = {1},
              const Axes& padding = {0}, const Axes& dilation = {1}, int64_t groups = 1) const;
  Tensor conv_transpose(const Tensor& weight, const Tensor& bias = {}, const Axes& stride = {1},
                        const Axes& padding = {0}, const Axes& output_padding = {0},
                        const Axes& dilation = {1}, int64_t groups = 1) const;
  Tensor max_pool(const Axes& kernel, const Axes& stride = {}, const Axes& padding = {0},
                  const Axes& dilation = {1}) const;
  Tensor avg_pool(const Axes& kernel, const Axes& stride = {}, const Axes& padding = {0},
                  bool count_padding = true) const;
  Tensor layer_norm(const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5,
                    int64_t num_axes = 1) const;
  Tensor rms_norm(const Tensor& weight = {}, double eps = 1e-5) const;
  Tensor batch_norm(const Tensor& weight, const Tensor& bias, const Tensor& mean,
                    const Tensor& variance, double eps = 1e-5) const;
  Tensor group_norm(int64_t groups, const Tensor& weight = {}, const Tensor& bias = {},
                    double eps = 1e-5) const;
  /// q [..., heads, m, d], k and v [..., heads, n, d]; mask: bool (true = may attend) or added to
  /// scores. A masked key weighs 0. Whether infinities and NaN among its
  /// values make the result NaN (0·∞) is left open: they do on REF and where the key is multiplied
  /// all the same, not where kernels skip it.
  static Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& mask = {}, bool is_causal = false,
                          std::optional<double> scale = std::nullopt);
  static Tensor einsum(std::string_view formula, std::span<const Tensor> operands);

  // --- random numbers: counter-based (Threefry), equal on every device ------------------------
  static Tensor rand(const Shape& shape, DType dtype = DType::kF32,
                     std::string_view device = "");  ///< [0, 1)
  static Tensor randn(const Shape& shape, DType dtype = DType::kF32, std::string_view device = "");
  static Tensor randint(const Shape& shape, int64_t low, int64_t high, DType dtype = DType::kI64,
                        std::string_view device = "");
  static Tensor uniform(const Shape& shape, double low, double high, DType dtype = DType::kF32,
                        std::string_view device = "");
  static void manual_seed(uint64_t seed);

 private:
  [[noreturn]] static void throw_no_value();
  static NodePtr weak_node(DType dtype, int64_t i, double f);
  template <class T>
  static NodePtr weak(T value) {
    if constexpr (std::is_same_v<T, bool>)
      return weak_node(DType::kBool, value, value);
    else if constexpr (std::is_floating_point_v<T>)
      return weak_node(DType::kF32, 0, static_cast<double>(value));
    else
      return weak_node(DType::kI64, static_cast<int64_t>(value), static_cast<double>(value));
  }
  NodePtr node_;
};

// Broadcasting arithmetic with the field's promotion rules (promotion.h); comparisons give bool.
Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);  ///< true division: integers become float32
Tensor operator&(const Tensor& a, const Tensor& b);
Tensor operator|(const Tensor& a, const Tensor& b);
Tensor operator^(const Tensor& a, const Tensor& b);
Tensor operator<<(const Tensor& a, const Tensor& b);
Tensor operator>>(const Tensor& a, const Tensor& b);
Tensor operator<(const Tensor& a, const Tensor& b);
Tensor operator>(const Tensor& a, const Tensor& b);
Tensor operator<=(const Tensor& a, const Tensor& b);
Tensor operator>=(const Tensor& a, const Tensor& b);
Tensor operator==(const Tensor& a, const Tensor& b);
Tensor operator!=(const Tensor& a, const Tensor& b);

/// dtype of host types; specialised for the 13 dtypes (float16/bfloat16 as Half/BFloat wrappers of
/// uint16_t).
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<bool>() {
  return DType::kBool;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::kI8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kU8;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::kI16;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::kU16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::kU32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::kU64;
}
template <>
constexpr DType dtype_of<Half>() {
  return DType::kF16;
}
template <>
constexpr DType dtype_of<BFloat>() {
  return DType::kBF16;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kF64;
}

namespace detail {
void check_dtype(const Tensor& t, DType wanted);
int64_t check_single(const Tensor& t);
}  // namespace detail

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape, std::string_view device) {
  return from_bytes(std::as_bytes(values), shape, dtype_of<T>(), device);
}
template <class T>
std::vector<T> Tensor::data() const {
  detail::check_dtype(*this, dtype_of<T>());
  const std::vector<std::byte> raw = bytes();
  std::vector<T> out(raw.size() / sizeof(T));
  if constexpr (std::is_same_v<T, bool>) {
    for (size_t i = 0; i < raw.size(); ++i) out[i] = raw[i] != std::byte{0};
  } else if (!raw.empty()) {
    std::memcpy(out.data(), raw.data(), raw.size());
  }
  return out;
}
template <class T>
T Tensor::item() const {
  detail::check_single(*this);
  return data<T>().at(0);
}

}  // namespace bm
