// Blocks that keep a state of fixed size instead of keys and values: gated delta networks and short
// convolutions. A token at a time: the state after one is what the next begins with.
#include <array>
#include <cmath>

#include "models/llama.h"

namespace bm::models {
namespace {

/// What a cache holds at position 0 is of another text.
Tensor from_start(const Tensor& state, const SymInt& position, const std::string& device) {
  const Tensor is_going_on = Tensor::value_of(position, device) > 0;
  return state * is_going_on.cast(DType::kF32).reshape(Shape(state.shape().size(), SymInt(1)));
}

/// A causal convolution per channel of x [channels] and the `kernel` − 1 inputs before it, which
/// `past` [channels, kernel − 1] holds and is given those of the next token. Weights: [channels,
/// kernel].
Tensor convolve(const Tensor& x, const Tensor& weights, Tensor& past, const SymInt& position,
                const std::string& device) {
  const int64_t channels = weights.size(0).constant(), kernel = weights.size(1).constant();
  const std::array parts{from_start(past, position, device), x.reshape({channels, 1})};
  const Tensor window = Tensor::cat(parts, 1).contiguous();
  past.assign(window.slice(1, {1, kernel}));
  return (window * weights.cast(DType::kF32)).sum({1});
}

/// Divided by its length. Source: ggml, ggml_l2_norm().
Tensor unit(const Tensor& x, double least) {
  return x / (x * x).sum({-1}, true).sqrt().maximum(least);
}

}  // namespace

Tensor Llama::attend_recurrent(size_t block, const Tensor& x, const SymInt& position,
                               KvCache& cache) const {
  const Recurrent& r = blocks_[block].recurrent;
  const QuantisedActivations in(x);
  if (config_.row->has(kDeltaNet)) return delta_net(block, in, position, cache);
  // Source: llama.cpp, src/models/lfm2.cpp.
  const int64_t width = config_.embedding_length;
  const Tensor all = project(in, r.in).contiguous();
  const auto part = [&](int64_t i) { return all.slice(1, {i * width, (i + 1) * width}); };
  const Tensor mixed = convolve((part(0) * part(2)).contiguous(), r.convolution,
                                cache.inputs[block], position, place(block).device);
  return project(QuantisedActivations((part(1) * mixed.reshape({1, width})).contiguous()), r.out);
}

/// Source: "Gated Delta Networks" (Yang, Kautz, Hatamizadeh, 2024), equation 10; what surrounds it
/// is Qwen3-Next's: llama.cpp, src/models/qwen3next.cpp, qwen35.cpp.
Tensor Llama::delta_net(size_t block, const QuantisedActivations& in, const SymInt& position,
                        KvCache& cache) const {
  const Recurrent& r = blocks_[block].recurrent;
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, groups = c.groups, each = heads / groups,
                keys = groups * length;
  const Tensor turned = convolve(project(in, r.in).contiguous(), r.convolution, cache.inputs[block],
                                 position, place(block).device)
                            .silu()
                            .contiguous();
  const double least = static_cast<double>(config_.norm_epsilon);
  // A group of Qwen3-Next is heads side by side, one of Qwen3.5 every so-manieth head.
  const bool is_beside = r.beta_alpha.matrix.is_valid();
  const auto of_heads = [&](int64_t from) {
    const Tensor t = unit(turned.slice(0, {from, from + keys}).reshape({groups, length}), least);
    const Tensor spread = is_beside ? t.reshape({groups, 1, length}).expand({groups, each, length})
                                    : t.reshape({1, groups, length}).expand({each, groups, length});
    return spread.reshape({heads, 1, length}).contiguous();
  };
  const Tensor query = of_heads(0), key = of_heads(keys);
  const Tensor value = turned.slice(0, {2 * keys, 2 * keys + heads * length});
  Tensor beta, alpha;
  if (is_beside) {
    const Tensor both = project(in, r.beta_alpha).contiguous().reshape({groups, 2, each});
    beta = both.slice(1, {0, 1}).reshape({heads, 1, 1});
    alpha = both.slice(1, {1, 2}).reshape({heads});
  } else {
    beta = project(in, r.beta).reshape({heads, 1, 1});
    alpha = project(in, r.alpha).reshape({heads});
  }
  const Tensor decay = ((alpha + r.step.cast(DType::kF32)).softplus() * r.rate.cast(DType::kF32))
                           .exp()
                           .reshape({heads, 1, 1})
                           .contiguous();
  // [heads, length of values, length of keys]
  Tensor& state = cache.states[block];
  const Tensor old = (from_start(state, position, place(block).device) * decay).contiguous();
  const Tensor expected = (old * key).sum({2}, true).contiguous();
  const Tensor change =
      ((value.reshape({heads, length, 1}) - expected) * beta.sigmoid()).contiguous();
  const Tensor next = (old + change * key).contiguous();
  state.assign(next);
  const double scale = 1 / std::sqrt(static_cast<double>(length));
  const Tensor read = (next * query).sum({2}).contiguous() * scale;  // [heads, length]
  const Tensor gate = project(in, r.gate).reshape({heads, length}).silu();
  const Tensor out = norm(read.contiguous(), r.norm) * gate;
  return project(QuantisedActivations(out.reshape({1, heads * length}).contiguous()), r.out);
}

}  // namespace bm::models
