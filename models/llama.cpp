#include "models/llama.h"

#include <cmath>
#include <limits>

namespace bm::models {
namespace {

Tensor project(const QuantisedActivations& x, const Matrix& weight, const Tensor& bias = {}) {
  const Tensor out = weight.linear(x);
  return bias.is_valid() ? out + bias.cast(DType::kF32) : out;
}

Tensor norm(const Tensor& x, const Tensor& weight, float epsilon) {
  return x.rms_norm(weight.cast(DType::kF32), static_cast<double>(epsilon));
}

}  // namespace

KvCache Llama::make_cache() const {
  const Shape shape{config_.head_count_kv, context_, config_.head_length};
  KvCache cache;
  for (uint32_t i = 0; i < config_.block_count; ++i) {
    cache.keys.push_back(Tensor::zeros(shape, DType::kF32, device_).contiguous().realize());
    cache.values.push_back(Tensor::zeros(shape, DType::kF32, device_).contiguous().realize());
  }
  return cache;
}

void Llama::make_rope_tables(std::span<const float> frequency_factors) {
  const size_t half = config_.head_length / 2, rotated = config_.rope_length / 2,
               width = config_.head_length;
  std::vector<float> cosines(size_t{context_} * width, 1.0F), sines(size_t{context_} * width, 0.0F);
  for (size_t i = 0; i < rotated; ++i) {
    double frequency = std::pow(static_cast<double>(config_.rope_base),
                                -2.0 * static_cast<double>(i) / config_.rope_length);
    if (!frequency_factors.empty()) frequency /= static_cast<double>(frequency_factors[i]);
    const size_t first = config_.rope_style == RopeStyle::kInterleaved ? 2 * i : i;
    const size_t second = config_.rope_style == RopeStyle::kInterleaved ? 2 * i + 1 : i + half;
    for (size_t p = 0; p < context_; ++p) {
      const double angle =
          static_cast<double>(p) / static_cast<double>(config_.rope_scale) * frequency;
      cosines[p * width + first] = cosines[p * width + second] =
          static_cast<float>(std::cos(angle));
      // (a, b) → (a·cos − b·sin, b·cos + a·sin): the partner's factor carries the sign.
      sines[p * width + first] = static_cast<float>(-std::sin(angle));
      sines[p * width + second] = static_cast<float>(std::sin(angle));
    }
  }
  const Shape shape{context_, 1, config_.head_length};
  cosines_ = Tensor::from(cosines, shape, device_);
  sines_ = Tensor::from(sines, shape, device_);
}

/// Rotary positions of x [count, heads, head length].
Tensor Llama::rotate(const Tensor& x, const SymInt& count, const SymInt& position) const {
  const int64_t width = config_.head_length, half = width / 2;
  const auto rows = [&](const Tensor& table) {
    return table.shrink({{position, position + count}, {0, 1}, {0, width}});
  };
  const SymInt heads = x.size(1);
  const bool is_interleaved = config_.rope_style == RopeStyle::kInterleaved;
  const Shape pairs = is_interleaved ? Shape{count, heads, half, 2} : Shape{count, heads, 2, half};
  const Tensor partner = x.reshape(pairs).flip({is_interleaved ? 3 : 2}).reshape(x.shape());
  return x * rows(cosines_) + partner * rows(sines_);
}

Tensor Llama::attend(const Block& b, const Tensor& x, const SymInt& count, const SymInt& position,
                     Tensor& keys, Tensor& values) const {
  const int64_t heads = config_.head_count, kv_heads = config_.head_count_kv,
                width = config_.head_length;
  const int64_t group = heads / kv_heads;
  const QuantisedActivations in(x);
  // Stored: a rotation reads every number twice.
  Tensor q = project(in, b.query, b.query_bias).contiguous().reshape({count, heads, width});
  Tensor k = project(in, b.key, b.key_bias).contiguous().reshape({count, kv_heads, width});
  const Tensor v = project(in, b.value, b.value_bias).reshape({count, kv_heads, width});
  if (b.query_norm.is_valid()) q = norm(q, b.query_norm, config_.norm_epsilon);
  if (b.key_norm.is_valid()) k = norm(k, b.key_norm, config_.norm_epsilon);
  q = rotate(q, count, position);
  k = rotate(k, count, position);

  const auto rows = [&](const Tensor& cache, const SymInt& begin, const SymInt& end) {
    return cache.shrink({{0, kv_heads}, {begin, end}, {0, width}});
  };
  const SymInt end = position + count;
  rows(keys, position, end).assign(k.permute({1, 0, 2}));
  rows(values, position, end).assign(v.permute({1, 0, 2}));

  // [kv, group, count, width] · [kv, 1, width, end] → scores of every position so far.
  const Tensor grouped = q.reshape({count, kv_heads, group, width}).permute({1, 2, 0, 3});
  const Tensor past_keys = rows(keys, 0, end).unsqueeze(1),
               past_values = rows(values, 0, end).unsqueeze(1);
  Tensor scores =
      grouped.matmul(past_keys.transpose()) * (1.0 / std::sqrt(static_cast<double>(width)));
  if (!count.is(1)) {
    const Tensor query_at =
        (Tensor::arange(count, DType::kI64, device_) + Tensor::value_of(position, device_))
            .unsqueeze(1);
    const Tensor is_visible = Tensor::arange(end, DType::kI64, device_).unsqueeze(0) <= query_at;
    scores = is_visible.where(scores, -std::numeric_limits<double>::infinity());
  }
  const Tensor mixed = scores.softmax(-1).matmul(past_values);
  const Tensor joined = mixed.permute({2, 0, 1, 3}).reshape({count, heads * width});
  return project(QuantisedActivations(joined), b.output, b.output_bias);
}

Tensor Llama::feed_forward(const Block& b, const Tensor& x) const {
  const QuantisedActivations in(x);
  const Tensor gate = project(in, b.gate, b.gate_bias);
  const Tensor active = config_.activation == Activation::kSilu ? gate.silu() : gate.gelu();
  return project(QuantisedActivations(active * project(in, b.up, b.up_bias)), b.down, b.down_bias);
}

Tensor Llama::forward(const Tensor& tokens, const SymInt& count, const SymInt& position,
                      KvCache& cache) const {
  Tensor x = embedding_.take(tokens.shrink({{0, count}}));
  if (config_.embedding_scale != 1.0F) x = x * static_cast<double>(config_.embedding_scale);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    x = x + attend(b, norm(x, b.attention_norm, config_.norm_epsilon), count, position,
                   cache.keys[i], cache.values[i]);
    x = x + feed_forward(b, norm(x, b.feed_forward_norm, config_.norm_epsilon));
  }
  const Tensor last = x.shrink({{count - 1, count}, {0, config_.embedding_length}});
  const Tensor logits =
      project(QuantisedActivations(norm(last, output_norm_, config_.norm_epsilon)),
              output_.is_valid() ? output_ : embedding_, output_bias_);
  return logits.reshape({config_.vocab_size}).contiguous();
}

}  // namespace bm::models
