// Blocks that keep a state of fixed size instead of keys and values: gated delta networks and short
// convolutions. A token at a time: the state after one is what the next begins with.
#include <array>
#include <cmath>

#include "models/llama.h"

namespace bm::models {
namespace {

/// What a cache holds at position 0 is of another text, which may have ended in no numbers at all.
Tensor from_start(const Tensor& state, const SymInt& position, const std::string& device) {
  const Tensor is_going_on = Tensor::value_of(position, device) > 0;
  return is_going_on.reshape(Shape(state.shape().size(), SymInt(1))).where(state, 0.0);
}

/// A causal convolution per channel of x [channels] and the `kernel` − 1 inputs before it, which
/// `past` [channels, kernel − 1] holds and is given those of the next token. Weights: [channels,
/// kernel]; bias: [channels], or invalid.
Tensor convolve(const Tensor& x, const Tensor& weights, const Tensor& bias, Tensor past,
                const SymInt& position, const std::string& device) {
  const int64_t channels = weights.size(0).constant(), kernel = weights.size(1).constant();
  const std::array parts{from_start(past, position, device), x.reshape({channels, 1})};
  const Tensor window = Tensor::cat(parts, 1).contiguous();
  past.assign(window.slice(1, {1, kernel}));
  const Tensor sum = (window * weights.cast(DType::kF32)).sum({1});
  return bias.is_valid() ? sum + bias.cast(DType::kF32) : sum;
}

/// A sequence's own of [sequences, …].
Tensor of_sequence(const Tensor& all, const SymInt& number) {
  if (!all.is_valid()) return {};
  std::vector<std::pair<SymInt, SymInt>> ranges{{number, number + 1}};
  Shape shape;
  for (int64_t axis = 1; axis < all.rank(); ++axis) {
    ranges.emplace_back(0, all.size(axis));
    shape.push_back(all.size(axis));
  }
  return all.shrink(ranges).reshape(shape);
}

/// Divided by its length. Source: ggml, ggml_l2_norm().
Tensor unit(const Tensor& x, double least) {
  return x / (x * x).sum({-1}, true).sqrt().maximum(least);
}

}  // namespace

Tensor Llama::attend_recurrent(size_t block, const Tensor& x, const SymInt& position,
                               KvCache& cache) const {
  return recur(block, x, 1, [&](const RecurrentInputs& in) {
    return recur_token(block, in, position, cache.inputs[block], cache.states[block]);
  });
}

Tensor Llama::attend_recurrent_paged(size_t block, const Tensor& x, const BatchStep& step,
                                     PagedKvCache& cache) const {
  const BatchWorkspace& space = step.workspaces[device_of(block)];
  const int64_t heads = config_.recurrent.heads, channels = config_.recurrent.channels,
                inner = space.mixed.size(1).constant();
  return recur(block, x, step.rows, [&](const RecurrentInputs& in) {
    // Stored with all rows before any sequence reads its own: the kernels so far know no sequences.
    const auto store = [&](const Tensor& what, int64_t from, int64_t to) {
      Tensor part = space.inputs.shrink({{0, step.rows}, {from, to}});
      part.assign(what.reshape({step.rows, to - from}));
    };
    store(in.convolved, 0, channels);
    if (in.beta.is_valid()) store(in.beta, channels, channels + heads);
    if (in.alpha.is_valid()) store(in.alpha, channels + heads, channels + 2 * heads);
    for (const BatchRun& run : step.runs) {
      const auto row = [&](int64_t from, int64_t to) {
        return space.inputs.shrink({{run.row, run.row + 1}, {from, to}});
      };
      RecurrentInputs own{row(0, channels), {}, {}};
      if (in.beta.is_valid()) own.beta = row(channels, channels + heads);
      if (in.alpha.is_valid()) own.alpha = row(channels + heads, channels + 2 * heads);
      const Tensor mixed =
          recur_token(block, own, run.position, of_sequence(cache.inputs[block], run.state),
                      of_sequence(cache.states[block], run.state));
      Tensor to = space.mixed.shrink({{run.row, run.row + 1}, {0, inner}});
      to.assign(mixed.reshape({1, inner}));
    }
    return space.mixed.shrink({{0, step.rows}, {0, inner}});
  });
}

Tensor Llama::recur(size_t block, const Tensor& x, const SymInt& rows,
                    const std::function<Tensor(const RecurrentInputs&)>& run) const {
  const Recurrent& r = blocks_[block].recurrent;
  const QuantisedActivations in(x);
  if (has_state_space()) return mamba(block, in, rows, run);
  const Tensor all = project(in, r.in).contiguous();
  if (!config_.row->has(kDeltaNet)) {
    // Source: llama.cpp, src/models/lfm2.cpp.
    const int64_t width = config_.embedding_length;
    const auto part = [&](int64_t i) { return all.slice(1, {i * width, (i + 1) * width}); };
    const Tensor mixed = run({(part(0) * part(2)).contiguous(), {}, {}});
    return project(QuantisedActivations((part(1) * mixed.reshape({rows, width})).contiguous()),
                   r.out);
  }
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, groups = c.groups;
  RecurrentInputs inputs{all, {}, {}};
  if (has_grouped_heads(block)) {
    const Tensor both =
        project(in, r.beta_alpha).contiguous().reshape({rows, groups, 2, heads / groups});
    inputs.beta = both.slice(2, {0, 1});
    inputs.alpha = both.slice(2, {1, 2});
  } else {
    inputs.beta = project(in, r.beta);
    inputs.alpha = project(in, r.alpha);
  }
  const Tensor read = run(inputs).reshape({rows, heads, length});
  const Tensor gate = project(in, r.gate).reshape({rows, heads, length}).silu();
  const Tensor out = norm(read.contiguous(), r.norm) * gate;
  return project(QuantisedActivations(out.reshape({rows, heads * length}).contiguous()), r.out);
}

Tensor Llama::recur_token(size_t block, const RecurrentInputs& in, const SymInt& position,
                          const Tensor& past, const Tensor& state) const {
  const Recurrent& r = blocks_[block].recurrent;
  const Tensor convolved = convolve(in.convolved, r.convolution, r.convolution_bias, past, position,
                                    place(block).device);
  if (has_state_space()) return state_space(block, convolved, in, position, state);
  return config_.row->has(kDeltaNet) ? delta_net(block, convolved, in, position, state) : convolved;
}

bool Llama::has_state_space() const {
  return config_.row->has(kMamba) || config_.row->has(kMamba2);
}

/// Source: "Mamba" (Gu, Dao, 2023), figure 3, and "Transformers are SSMs" (Dao, Gu, 2024), section
/// 7; the order of the parts in a file's matrices: llama.cpp, src/models/mamba-base.cpp.
Tensor Llama::mamba(size_t block, const QuantisedActivations& in, const SymInt& rows,
                    const std::function<Tensor(const RecurrentInputs&)>& run) const {
  const Recurrent& r = blocks_[block].recurrent;
  const RecurrentConfig& c = config_.recurrent;
  const int64_t inner = static_cast<int64_t>(c.inner()), channels = c.channels, heads = c.heads;
  const Tensor all = project(in, r.in).contiguous();
  const auto part = [&](int64_t from, int64_t length) {
    return all.slice(1, {from, from + length});
  };
  // Mamba-1 gates with what comes second, Mamba-2 with what comes first.
  const bool is_first = config_.row->has(kMamba);
  const RecurrentInputs inputs{part(is_first ? 0 : inner, channels),
                               {},
                               is_first ? Tensor() : part(inner + channels, heads)};
  const Tensor read = run(inputs).reshape({rows, inner});
  Tensor out = read * part(is_first ? inner : 0, inner).silu();
  if (r.norm.is_used) {
    const int64_t groups = c.groups;
    const Tensor grouped = out.contiguous().reshape({rows, groups, inner / groups});
    out = (grouped.rms_norm({}, static_cast<double>(config_.norm_epsilon)) *
           r.norm.weight.cast(DType::kF32))
              .reshape({rows, inner});
  }
  return project(QuantisedActivations(out.contiguous()), r.out);
}

/// One token: h = exp(step·A)·h + (step·x)·B, y = h·C + D·x.
Tensor Llama::state_space(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                          const SymInt& position, Tensor state) const {
  const Recurrent& r = blocks_[block].recurrent;
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, groups = c.groups, keys = c.keys,
                inner = static_cast<int64_t>(c.inner()), rank = c.step_rank;
  const Tensor activated = convolved.silu().contiguous();
  const Tensor x = activated.slice(0, {0, inner}).reshape({heads, length, 1});
  Tensor step, key, query;  // [heads, 1, 1], [heads, 1, keys] or [1, 1, keys]
  if (config_.row->has(kMamba)) {
    const Tensor all =
        project(QuantisedActivations(activated.reshape({1, inner})), r.parameters).contiguous();
    const auto part = [&](int64_t from, int64_t to, const Norm& n) {
      const Tensor t = all.slice(1, {from, to});
      if (c.has_plain_norms) return t.rms_norm({}, static_cast<double>(config_.norm_epsilon));
      return norm(t, n);
    };
    const QuantisedActivations steps(part(0, rank, r.steps_norm).contiguous());
    step = project(steps, r.steps).reshape({heads, 1, 1});
    key = part(rank, rank + keys, r.keys_norm).reshape({1, 1, keys});
    query = part(rank + keys, rank + 2 * keys, r.queries_norm).reshape({1, 1, keys});
  } else {
    const auto of_heads = [&](int64_t from) {
      return activated.slice(0, {from, from + groups * keys})
          .reshape({groups, 1, keys})
          .expand({groups, heads / groups, keys})
          .reshape({heads, 1, keys});
    };
    step = (in.alpha.reshape({heads}) + r.step.cast(DType::kF32)).reshape({heads, 1, 1});
    key = of_heads(inner);
    query = of_heads(inner + groups * keys);
  }
  step = step.softplus().contiguous();
  const Tensor rate =
      r.rate.cast(DType::kF32).reshape({heads, 1, config_.row->has(kMamba) ? keys : int64_t{1}});
  const Tensor decay = (step * rate).exp();
  const Tensor written = (step * x).contiguous();
  const Tensor next =
      (from_start(state, position, place(block).device) * decay + written * key.contiguous())
          .contiguous();
  state.assign(next);
  const Tensor out = (next * query.contiguous()).sum({2});
  return out.contiguous() +
         r.skip.cast(DType::kF32).reshape({heads, 1}) * x.reshape({heads, length});
}

/// A group of Qwen3-Next is heads side by side, one of Qwen3.5 every so-manieth head.
bool Llama::has_grouped_heads(size_t block) const {
  return blocks_[block].recurrent.beta_alpha.matrix.is_valid();
}

/// Source: "Gated Delta Networks" (Yang, Kautz, Hatamizadeh, 2024), equation 10; what surrounds it
/// is Qwen3-Next's: llama.cpp, src/models/qwen3next.cpp, qwen35.cpp.
Tensor Llama::delta_net(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                        const SymInt& position, Tensor state) const {
  const Recurrent& r = blocks_[block].recurrent;
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, groups = c.groups, each = heads / groups,
                keys = groups * length;
  const Tensor activated = convolved.silu().contiguous();
  const double least = static_cast<double>(config_.norm_epsilon);
  const auto of_heads = [&](int64_t from) {
    const Tensor t = unit(activated.slice(0, {from, from + keys}).reshape({groups, length}), least);
    const Tensor spread = has_grouped_heads(block)
                              ? t.reshape({groups, 1, length}).expand({groups, each, length})
                              : t.reshape({1, groups, length}).expand({each, groups, length});
    return spread.reshape({heads, 1, length}).contiguous();
  };
  const Tensor query = of_heads(0), key = of_heads(keys);
  const Tensor value = activated.slice(0, {2 * keys, 2 * keys + heads * length});
  const Tensor decay =
      ((in.alpha.reshape({heads}) + r.step.cast(DType::kF32)).softplus() * r.rate.cast(DType::kF32))
          .exp()
          .reshape({heads, 1, 1})
          .contiguous();
  // [heads, length of values, length of keys]
  const Tensor old = (from_start(state, position, place(block).device) * decay).contiguous();
  const Tensor expected = (old * key).sum({2}, true).contiguous();
  const Tensor change =
      ((value.reshape({heads, length, 1}) - expected) * in.beta.reshape({heads, 1, 1}).sigmoid())
          .contiguous();
  const Tensor next = (old + change * key).contiguous();
  state.assign(next);
  const double scale = 1 / std::sqrt(static_cast<double>(length));
  return (next * query).sum({2}).contiguous() * scale;  // [heads, length]
}

}  // namespace bm::models
