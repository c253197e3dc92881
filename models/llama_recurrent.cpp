// Blocks that keep a state of fixed size instead of keys and values: gated delta networks, short
// convolutions and state spaces. A token at a time, as the state after one is what the next begins
// with; all but Mamba-1 also take a piece of a prompt at once.
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "models/llama.h"
#include "models/llama_states.h"

namespace bm::models {
namespace {

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

/// The same for x [count, channels] of consecutive tokens.
Tensor convolve_piece(const Tensor& x, const Tensor& weights, const Tensor& bias, Tensor past,
                      const SymInt& count, const SymInt& position, const std::string& device) {
  const int64_t channels = weights.size(0).constant(), kernel = weights.size(1).constant();
  const std::array parts{from_start(past, position, device).transpose(0, 1), x};
  const Tensor window = Tensor::cat(parts, 0).contiguous();  // [kernel − 1 + count, channels]
  past.assign(
      window.shrink({{count, count + (kernel - 1)}, {0, channels}}).transpose(0, 1).contiguous());
  const Tensor taps = weights.cast(DType::kF32).transpose(0, 1).contiguous();
  Tensor sum;
  for (int64_t i = 0; i < kernel; ++i) {
    const Tensor term = window.shrink({{i, count + i}, {0, channels}}) * taps.slice(0, {i, i + 1});
    sum = sum.is_valid() ? sum + term : term;
  }
  return bias.is_valid() ? sum + bias.cast(DType::kF32) : sum;
}

}  // namespace

uint32_t Llama::most_piece() const {
  if (config_.row->has(kMamba)) return 1;
  const bool has_chunks = config_.row->has(kDeltaNet) || config_.row->has(kKeyDecay) || is_rwkv();
  return has_chunks ? kDeltaPiece : kPromptPiece;
}

Tensor Llama::attend_recurrent(size_t block, const Tensor& x, const SymInt& count,
                               const SymInt& position, KvCache& cache) const {
  return recur(block, x, count, [&](const RecurrentInputs& in) {
    return recur_run(block, in, count, position, cache.inputs[block], cache.states[block]);
  });
}

Tensor Llama::recur_run(size_t block, const RecurrentInputs& in, const SymInt& count,
                        const SymInt& position, const Tensor& past, const Tensor& state) const {
  return count.is(1) ? recur_token(block, in, position, past, state)
                     : recur_piece(block, in, count, position, past, state);
}

Tensor Llama::attend_recurrent_paged(size_t block, const Tensor& x, const BatchStep& step,
                                     PagedKvCache& cache) const {
  const BatchWorkspace& space = step.workspaces[device_of(block)];
  const int64_t heads = config_.recurrent.heads, channels = config_.recurrent.channels,
                inner = space.mixed.size(1).constant(),
                row_length = static_cast<int64_t>(config_.recurrent.row_length());
  return recur(block, x, step.rows, [&](const RecurrentInputs& in) {
    // Stored with all rows before any sequence reads its own: the kernels so far know no sequences.
    const auto store = [&](const Tensor& what, int64_t from, int64_t to) {
      Tensor part = space.inputs.shrink({{0, step.rows}, {from, to}});
      part.assign(what.reshape({step.rows, to - from}));
    };
    store(in.convolved, 0, channels);
    if (in.beta.is_valid()) store(in.beta, channels, channels + heads);
    if (in.alpha.is_valid()) store(in.alpha, channels + heads, row_length);
    for (const BatchRun& run : step.runs) {
      const auto row = [&](int64_t from, int64_t to) {
        return space.inputs.shrink({{run.row, run.row + run.count}, {from, to}});
      };
      RecurrentInputs own{row(0, channels), {}, {}};
      if (in.beta.is_valid()) own.beta = row(channels, channels + heads);
      if (in.alpha.is_valid()) own.alpha = row(channels + heads, row_length);
      const Tensor mixed = recur_run(block, own, run.count, run.position,
                                     of_sequence(cache.inputs[block], run.state),
                                     of_sequence(cache.states[block], run.state));
      Tensor to = space.mixed.shrink({{run.row, run.row + run.count}, {0, inner}});
      to.assign(mixed.reshape({run.count, inner}));
    }
    return space.mixed.shrink({{0, step.rows}, {0, inner}});
  });
}

Tensor Llama::recur(size_t block, const Tensor& x, const SymInt& rows,
                    const std::function<Tensor(const RecurrentInputs&)>& run) const {
  const Recurrent& r = blocks_[block].recurrent;
  const QuantisedActivations in(x);
  if (has_state_space()) return mamba(block, in, rows, run);
  if (config_.row->has(kKeyDecay)) return key_decay_net(block, in, rows, run);
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
  if (config_.row->has(kKeyDecay))
    return decay_run(block, key_decay_inputs(convolved, in, 1), 1, position, state);
  if (has_state_space()) return state_space(block, convolved, in, position, state);
  return config_.row->has(kDeltaNet) ? delta_net(block, convolved, in, position, state) : convolved;
}

Tensor Llama::recur_piece(size_t block, const RecurrentInputs& in, const SymInt& count,
                          const SymInt& position, const Tensor& past, const Tensor& state) const {
  const Recurrent& r = blocks_[block].recurrent;
  const Tensor convolved = convolve_piece(in.convolved, r.convolution, r.convolution_bias, past,
                                          count, position, place(block).device);
  if (config_.row->has(kDeltaNet)) return delta_piece(block, convolved, in, count, position, state);
  if (config_.row->has(kKeyDecay))
    return decay_run(block, key_decay_inputs(convolved, in, count), count, position, state);
  return has_state_space() ? scan_piece(block, convolved, in, count, position, state) : convolved;
}

/// Mamba-2 in its dual form, attention with weights that decay: y_i = Σ_{j≤i} (C_i·B_j)
/// exp(Σ_{j<k≤i} step_k·A) step_j·x_j, and what the state gives. All exponents are below zero.
/// Source: "Transformers are SSMs" (Dao, Gu, 2024), sections 5 and 6. → [count, inner]
Tensor Llama::scan_piece(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                         const SymInt& count, const SymInt& position, Tensor state) const {
  const Recurrent& r = blocks_[block].recurrent;
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, groups = c.groups, keys = c.keys,
                inner = static_cast<int64_t>(c.inner());
  const std::string& device = place(block).device;
  const Tensor activated = convolved.silu().contiguous();
  const auto part = [&](int64_t from, int64_t to) {
    return activated.shrink({{0, count}, {from, to}});
  };
  const Tensor x = part(0, inner).reshape({count, heads, length}).permute({1, 0, 2}).contiguous();
  const auto of_groups = [&](int64_t from) {
    return part(from, from + groups * keys)
        .reshape({count, groups, keys})
        .permute({1, 0, 2})
        .contiguous();
  };
  // [groups, n, …] → [heads, n, …]
  const auto of_heads = [&](const Tensor& t) {
    const SymInt last = t.size(2);
    return t.reshape({groups, 1, count, last})
        .expand({groups, heads / groups, count, last})
        .reshape({heads, count, last});
  };
  const Tensor key = of_groups(inner), query = of_groups(inner + groups * keys);
  const Tensor step = (in.alpha.reshape({count, heads}) + r.step.cast(DType::kF32).reshape({heads}))
                          .softplus()
                          .transpose(0, 1)
                          .contiguous();  // [heads, count]
  const Tensor rate = (step * r.rate.cast(DType::kF32).reshape({heads, 1})).contiguous();
  const Tensor number = Tensor::arange(count, DType::kI64, device);
  const Tensor is_before = number.reshape({1, 1, count}) <= number.reshape({1, count, 1});
  // Of all tokens up to one, itself among them: [heads, count].
  const Tensor total = is_before.where(rate.reshape({heads, 1, count}), 0.0).sum({2}).contiguous();
  const Tensor decay =
      is_before
          .where(total.reshape({heads, count, 1}) - total.reshape({heads, 1, count}),
                 -std::numeric_limits<double>::infinity())
          .exp();
  const Tensor scores = query.matmul(key.transpose(1, 2)).contiguous();  // [groups, count, count]
  const Tensor weights = (of_heads(scores) * decay * step.reshape({heads, 1, count})).contiguous();
  const Tensor within = weights.matmul(x).contiguous();  // [heads, count, length]
  const Tensor old = from_start(state, position, device).contiguous();
  const Tensor before = of_heads(query).contiguous().matmul(old.transpose(1, 2)).contiguous() *
                        total.exp().reshape({heads, count, 1});
  const Tensor end = rate.sum({1}, true).contiguous();  // [heads, 1]
  const Tensor kept = ((end - total).exp() * step).reshape({heads, count, 1});
  const Tensor written =
      (x * kept).transpose(1, 2).contiguous().matmul(of_heads(key).contiguous()).contiguous();
  state.assign(old * end.exp().reshape({heads, 1, 1}) + written);
  const Tensor out = within + before + x * r.skip.cast(DType::kF32).reshape({heads, 1, 1});
  return out.permute({1, 0, 2}).contiguous().reshape({count, inner});
}

/// Kimi Delta Attention: a gated delta network whose states decay by channels of the keys. What
/// makes decays and gates is of low rank or, in Ling 3, one matrix. Source: "Kimi Linear" (Kimi
/// Team, 2025), section 3; names of a file's tensors, and bounds of decays: llama.cpp,
/// src/models/kimi-linear.cpp, bailingmoe3.cpp, kimi-k3.cpp. Some files have rates below zero.
Tensor Llama::key_decay_net(size_t block, const QuantisedActivations& in, const SymInt& rows,
                            const std::function<Tensor(const RecurrentInputs&)>& run) const {
  const Block& b = blocks_[block];
  const Recurrent& r = b.recurrent;
  const int64_t heads = config_.recurrent.heads, length = config_.recurrent.length,
                inner = heads * length;
  const std::array three{project(in, b.query), project(in, b.key), project(in, b.value)};
  const auto second = [&](const Tensor& few, const Projection& p) {
    return p.matrix.is_valid() ? project(QuantisedActivations(few.contiguous()), p) : few;
  };
  const Tensor step = second(project(in, r.parameters), r.steps) + r.step.cast(DType::kF32);
  const Tensor rate = r.rate.cast(DType::kF32).reshape({1, heads, 1});
  const auto of_heads = [&](const Tensor& t) { return t.reshape({rows, heads, length}); };
  const auto floor = static_cast<double>(config_.recurrent.decay_floor);
  const Tensor decay = floor < 0 ? (of_heads(step) * rate.abs()).sigmoid() * floor
                                 : of_heads(step.softplus()) * rate;
  const RecurrentInputs inputs{Tensor::cat(three, 1).contiguous(), project(in, r.beta),
                               decay.reshape({rows, inner}).contiguous()};
  const Tensor read = run(inputs).reshape({rows, heads, length});
  const Tensor gate = second(project(in, r.gate_in), r.gate).sigmoid();
  const Tensor out = norm(read.contiguous(), r.norm).reshape({rows, inner}) * gate;
  return project(QuantisedActivations(out.contiguous()), r.out);
}

/// S = S·diag(w); S = S + β·(v − S·k)·kᵀ, as decay_token() has it.
Llama::DecayInputs Llama::key_decay_inputs(const Tensor& convolved, const RecurrentInputs& in,
                                           const SymInt& count) const {
  const int64_t heads = config_.recurrent.heads, length = config_.recurrent.length,
                inner = heads * length;
  const Tensor all = convolved.silu().contiguous().reshape({count, 3 * inner});
  const auto part = [&](int64_t i) {
    return all.shrink({{0, count}, {i * inner, (i + 1) * inner}}).reshape({count, heads, length});
  };
  const auto normed = [&](int64_t i) {
    return unit(part(i).contiguous(), static_cast<double>(config_.norm_epsilon));
  };
  const double scale = 1 / std::sqrt(static_cast<double>(length));
  const Tensor key = normed(1).contiguous();
  const Tensor beta = in.beta.reshape({count, heads, 1}).sigmoid().contiguous();
  const Tensor decay = in.alpha.reshape({count, inner}).contiguous();
  const auto flat = [&](const Tensor& t) { return t.reshape({count, inner}).contiguous(); };
  const Tensor written = flat(key * beta);
  return {flat(normed(0) * scale), decay, written, flat(part(2)), flat(flat(key) * decay.exp()),
          flat(written * -1.0)};
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

/// Keys or queries of all heads, normalised: rows [n, groups · length] → [n, heads, length].
Tensor Llama::delta_heads(size_t block, const Tensor& rows) const {
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, groups = c.groups, each = heads / groups;
  const SymInt n = rows.size(0);
  const Tensor t =
      unit(rows.reshape({n, groups, length}), static_cast<double>(config_.norm_epsilon));
  const Tensor spread = has_grouped_heads(block)
                            ? t.reshape({n, groups, 1, length}).expand({n, groups, each, length})
                            : t.reshape({n, 1, groups, length}).expand({n, each, groups, length});
  return spread.reshape({n, heads, length}).contiguous();
}

/// A piece of a prompt, as chunks of kDeltaChunk tokens. Within one, what the tokens change solves
/// (I − N)·U = β·(V − exp(G)·K·Sᵀ), G being the sum of the logarithms of the decays so far and N
/// strictly lower triangular; chunks so short that (I − N)⁻¹ = (I + N)(I + N²)(I + N⁴) is exact,
/// and sums of its powers do not cancel. Chunks follow each other by their state S alone. Source:
/// "Gated Delta Networks" (Yang, Kautz, Hatamizadeh, 2024), section 3.3. → [count, heads · length]
Tensor Llama::delta_piece(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                          const SymInt& count, const SymInt& position, Tensor state) const {
  constexpr int64_t kTokens = kDeltaPiece, n = kDeltaChunk, kChunks = kTokens / n;
  const Recurrent& r = blocks_[block].recurrent;
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, keys = c.groups * length;
  const std::string& device = place(block).device;
  // Rows behind the last one repeat it, and neither write nor decay.
  const Tensor number = Tensor::arange(kTokens, DType::kI64, device);
  const Tensor end = Tensor::value_of(count, device);
  const Tensor row = number.minimum(end - 1).contiguous();
  const Tensor is_in = (number < end).reshape({kTokens, 1});
  const Tensor rows = convolved.silu().contiguous().take(row);
  const auto chunked = [&](const Tensor& t) {  // [rows, heads, …] → [heads, chunks, n, …]
    const int64_t width = t.size(2).constant();
    return t.permute({1, 0, 2}).contiguous().reshape({heads, kChunks, n, width});
  };
  const auto part = [&](int64_t from, int64_t to) { return rows.slice(1, {from, to}); };
  const Tensor query = chunked(delta_heads(block, part(0, keys))),
               key = chunked(delta_heads(block, part(keys, 2 * keys))),
               value = chunked(
                   part(2 * keys, 2 * keys + heads * length).reshape({kTokens, heads, length}));
  const auto of_rows = [&](const Tensor& t) {
    return t.contiguous().reshape({count, heads}).take(row);
  };
  const auto masked = [&](const Tensor& t) {
    return chunked(is_in.where(t, 0.0).reshape({kTokens, heads, 1}));
  };
  const Tensor beta = masked(of_rows(in.beta).sigmoid());  // [heads, chunks, n, 1]
  const Tensor rate =
      masked((of_rows(in.alpha) + r.step.cast(DType::kF32).reshape({heads})).softplus() *
             r.rate.cast(DType::kF32).reshape({heads}));
  const Tensor at = Tensor::arange(n, DType::kI64, device);
  const Tensor earlier = at.reshape({1, n}), later = at.reshape({n, 1});
  const Tensor along = rate.reshape({heads, kChunks, 1, n});
  const Tensor total = (earlier <= later).where(along, 0.0).sum({3}).contiguous();
  const Tensor until = total.reshape({heads, kChunks, n, 1});
  const Tensor decay = (earlier <= later)
                           .where(until - total.reshape({heads, kChunks, 1, n}),
                                  -std::numeric_limits<double>::infinity())
                           .exp()
                           .contiguous();
  const Tensor keys_t = key.transpose(2, 3).contiguous();
  const Tensor near = key.matmul(keys_t).contiguous();
  const Tensor step = (earlier < later).where(beta * decay * near, 0.0) * -1.0;
  const Tensor n1 = step.contiguous(), n2 = n1.matmul(n1).contiguous(),
               n4 = n2.matmul(n2).contiguous();
  const Tensor unity = (earlier == later).cast(DType::kF32);
  const Tensor inverse = (unity + n1)
                             .contiguous()
                             .matmul((unity + n2).contiguous())
                             .contiguous()
                             .matmul((unity + n4).contiguous())
                             .contiguous();
  const Tensor weights = (query.matmul(keys_t) * decay).contiguous();
  const Tensor grown = until.exp().contiguous();  // [heads, chunks, n, 1]
  const Tensor last = total.slice(2, {n - 1, n}).reshape({heads, kChunks, 1, 1});
  const Tensor kept = (last - until).exp().contiguous();
  const std::array pair{key, query};
  const Tensor both = Tensor::cat(pair, 2).contiguous();  // [heads, chunks, 2n, length]
  Tensor s = from_start(state, position, device).contiguous();
  std::vector<Tensor> out;
  for (int64_t i = 0; i < kChunks; ++i) {
    const auto here = [&](const Tensor& t) {
      return t.slice(1, {i, i + 1}).reshape({heads, t.size(2), t.size(3)});
    };
    const Tensor seen =
        here(both).contiguous().matmul(s.transpose(1, 2)).contiguous();  // [heads, 2n, length]
    const auto half = [&](int64_t from) { return seen.slice(1, {from, from + n}); };
    const Tensor missing = (here(beta) * (here(value) - here(grown) * half(0))).contiguous();
    const Tensor change = here(inverse).contiguous().matmul(missing).contiguous();
    out.push_back((here(grown) * half(n) + here(weights).contiguous().matmul(change)).contiguous());
    const Tensor written =
        (change * here(kept)).transpose(1, 2).contiguous().matmul(here(key).contiguous());
    s = (s * here(last.exp()) + written).contiguous();
  }
  state.assign(s);
  const double scale = 1 / std::sqrt(static_cast<double>(length));
  return (Tensor::cat(out, 1).permute({1, 0, 2}).contiguous().reshape({kTokens, heads * length}) *
          scale)
      .contiguous()
      .shrink({{0, count}, {0, heads * length}});
}

/// Source: "Gated Delta Networks" (Yang, Kautz, Hatamizadeh, 2024), equation 10; what surrounds it
/// is Qwen3-Next's: llama.cpp, src/models/qwen3next.cpp, qwen35.cpp.
Tensor Llama::delta_net(size_t block, const Tensor& convolved, const RecurrentInputs& in,
                        const SymInt& position, Tensor state) const {
  const Recurrent& r = blocks_[block].recurrent;
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, keys = c.groups * length;
  const Tensor activated = convolved.silu().contiguous();
  const auto of_heads = [&](int64_t from) {
    return delta_heads(block, activated.slice(0, {from, from + keys}).reshape({1, keys}))
        .reshape({heads, 1, length});
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
