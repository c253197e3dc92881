// Products: matmul, linear, attention. einsum has its own file.
#include "tensor/ops_internal.h"
#include "tensor/rounded_activations.h"

namespace bm {

namespace ops {

Product product_types(const Tensor& a, const Tensor& b, std::optional<DType> accumulate) {
  const DType common = promote(a.dtype(), b.dtype());
  Product p{common, common};
  p.sum = accumulate ? *accumulate : is_half_like(common) ? DType::kF32 : sum_dtype(common);
  p.result = accumulate ? *accumulate : common;
  return p;
}

}  // namespace ops

namespace {

[[noreturn]] void raise_mismatch(std::string_view what, const Tensor& a, const Tensor& b,
                                 std::string_view why) {
  raise(Code::kInvalidArgument, "{}: {} and {} do not fit: {}", what, ops::describe(a),
        ops::describe(b), why);
}

void check_matmul(const Tensor& a, const Tensor& b) {
  if (a.rank() == 0 || b.rank() == 0) raise_mismatch("matmul", a, b, "both need at least one axis");
  const SymInt &k = a.size(-1), &k2 = b.size(b.rank() == 1 ? -1 : -2);
  if (k != k2)
    raise_mismatch("matmul", a, b,
                   fmt::format("inner sizes {} and {} differ", k.to_string(), k2.to_string()));
  for (int64_t i = 3; i <= std::min(a.rank(), b.rank()); ++i)
    if (a.size(-i) != b.size(-i) && !a.size(-i).is(1) && !b.size(-i).is(1))
      raise_mismatch("matmul", a, b, "leading axes do not broadcast");
}

}  // namespace

// Operands are widened before they are multiplied: products of 16-bit floats are exact in float32.
Tensor Tensor::matmul(const Tensor& b, std::optional<DType> accumulate) const {
  check_matmul(*this, b);
  const ops::Product types = ops::product_types(*this, b, accumulate);
  const bool is_row = rank() == 1, is_column = b.rank() == 1;
  const Tensor left = (is_row ? unsqueeze(0) : *this).unsqueeze(-2);  // [..., m, 1, k]
  const Tensor right =
      (is_column ? b.unsqueeze(-1) : b).transpose(-2, -1).unsqueeze(-3);  // [..., 1, n, k]
  Tensor out =
      reduce(ir::ReduceOp::kSum, left.cast(types.sum) * right.cast(types.sum), {-1}).squeeze(-1);
  out = out.cast(types.result);
  if (is_column) out = out.squeeze(-1);
  return is_row ? out.squeeze(is_column ? -1 : -2) : out;
}

Tensor Tensor::linear(const Tensor& weight, const Tensor& bias) const {
  if (weight.rank() != 2 || rank() == 0 || size(-1) != weight.size(1))
    raise_mismatch("linear", *this, weight,
                   "the weight must be [out, in] with in = the input's last axis");
  const auto rounded = rounded_type(*this, weight);
  const Tensor out =
      rounded ? rounded_activations(*this, *rounded).matmul(weight.transpose(), DType::kF32)
              : matmul(weight.transpose());
  if (!bias.is_valid()) return out;
  if (bias.rank() != 1 || bias.size(0) != weight.size(0))
    raise_mismatch("linear", weight, bias, "the bias must be [out]");
  return out + bias;
}

namespace {

/// Causal and explicit masks: masked logits become -inf.
Tensor masked(Tensor logits, const Tensor& mask, bool is_causal) {
  const Tensor minus_inf = scalar_like(logits, -HUGE_VAL);
  if (is_causal) {
    const int64_t rank = logits.rank();
    const Tensor query = ops::iota_along(logits.size(-2), rank - 2, rank, logits.device());
    const Tensor key = ops::iota_along(logits.size(-1), rank - 1, rank, logits.device());
    logits = select(key <= query, logits, minus_inf);
  }
  if (!mask.is_valid()) return logits;
  return is_bool(mask.dtype()) ? select(mask, logits, minus_inf)
                               : logits + mask.cast(logits.dtype());
}

}  // namespace

// Fewer heads in k and v than in q: each serves a group of consecutive query heads. Causal: query
// i sees keys 0 … i. Logits and their softmax are kept in float32 for 16-bit inputs. A query that
// may attend to nothing gives 0.
namespace {

/// What scores are multiplied with: 1/√width unless it is given. A width that is a variable counts
/// as it is at each run.
Tensor score_factor(const Tensor& q, DType wide, std::optional<double> scale) {
  const SymInt& width = q.size(-1);
  if (scale) return *scale;
  // Scores of no products are 0, not 0·∞.
  if (width.is_const())
    return 1 / std::sqrt(static_cast<double>(std::max<int64_t>(width.constant(), 1)));
  return ops::number(width, q).cast(wide).sqrt().reciprocal();
}

}  // namespace

Tensor Tensor::attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                         bool is_causal, std::optional<double> scale) {
  if (q.rank() < 2 || k.rank() < 2 || q.size(-1) != k.size(-1))
    raise_mismatch("attention: query and key", q, k, "last axes differ");
  if (v.rank() != k.rank() || v.size(-2) != k.size(-2))
    raise_mismatch("attention: key and value", k, v, "lengths differ");
  Tensor keys = k, values = v;
  if (q.rank() >= 3 && k.rank() >= 3 && q.size(-3) != k.size(-3) && !k.size(-3).is(1)) {
    const bool is_static_heads = q.size(-3).is_const() && k.size(-3).is_const();
    if (!is_static_heads || q.size(-3).constant() % k.size(-3).constant() != 0)
      raise_mismatch("attention: query and key", q, k,
                     "the number of query heads is no multiple of the key heads");
    const int64_t group = q.size(-3).constant() / k.size(-3).constant();
    keys = k.repeat_interleave(group, -3);
    values = v.repeat_interleave(group, -3);
  }
  const DType common = promote(q.dtype(), k.dtype());
  const DType wide = ops::wide_float(common);
  const Tensor logits = q.matmul(keys.transpose(), wide) * score_factor(q, wide, scale);
  const Tensor masked_logits = masked(logits, mask, is_causal);
  const Tensor weights = ops::shares(masked_logits, masked_logits.rank() - 1);
  const Tensor out = weights.cast(float_dtype(v.dtype())).matmul(values);
  return out.cast(float_dtype(promote(common, v.dtype())));
}

}  // namespace bm
