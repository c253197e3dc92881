// RWKV: blocks whose states decay by channels of the keys, and that read a token together with the
// one before. Source: "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence"
// (Peng and others, 2024), section 4.2, and "RWKV-7 Goose with Expressive Dynamic State Evolution"
// (Peng and others, 2025), section 4; names and order of a file's tensors: llama.cpp,
// src/models/rwkv6.cpp, rwkv7.cpp. The same without a norm of the results: RWKV in place of Qwen's
// attention.
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "models/llama.h"
#include "models/llama_states.h"

namespace bm::models {
namespace {

constexpr double kGroupEpsilon = 64e-5;  // of the norm of a head's results

Tensor floats(const Tensor& t) { return t.cast(DType::kF32); }

}  // namespace

/// Of x [count, width] of consecutive tokens the row before each. `past` [width, 1] holds what
/// comes before the first, and is given the last.
Tensor Llama::shift_rows(const Tensor& x, const SymInt& count, const SymInt& position, Tensor past,
                         const std::string& device) {
  const SymInt width = x.size(1);
  const std::array parts{from_start(past, position, device).reshape({1, width}), x};
  const Tensor window = Tensor::cat(parts, 0).contiguous();
  past.assign(window.shrink({{count, count + 1}, {0, width}}).reshape({width, 1}));
  return window.shrink({{0, count}, {0, width}});
}

/// Linear attention over a state S [values, keys] per head: S = S·diag(w) + v·kᵀ, y = S·q; with
/// what is removed, S = S·(diag(w) + a·bᵀ) + v·kᵀ. With a bonus u the state before is read, and of
/// the token itself v·(u ∘ k)ᵀ.
Tensor Llama::decay_token(size_t block, const DecayInputs& in, const SymInt& position,
                          Tensor state) const {
  const RecurrentConfig& c = config_.recurrent;
  const int64_t heads = c.heads, length = c.length, keys = c.keys;
  const auto along_keys = [&](const Tensor& t) { return t.reshape({heads, 1, keys}); };
  const Tensor key = along_keys(in.key), query = along_keys(in.query),
               value = in.value.reshape({heads, length, 1});
  const Tensor old = from_start(state, position, place(block).device).contiguous();
  Tensor next = old * along_keys(in.decay).exp() + value * key;
  if (in.removed.is_valid()) {
    const Tensor seen = (old * along_keys(in.removed)).sum({2}, true).contiguous();
    next = next + seen * along_keys(in.added);
  }
  next = next.contiguous();
  state.assign(next);
  if (!c.has_bonus) return (next * query).sum({2}).contiguous().reshape({1, heads * length});
  const Tensor bonus = along_keys(floats(blocks_[block].recurrent.bonus));
  const Tensor own = (bonus * key * query).sum({2}, true).contiguous();  // [heads, 1, 1]
  const Tensor before = (old * query).sum({2}, true).contiguous();
  return (before + value * own).contiguous().reshape({1, heads * length});
}

/// The same for a piece of a prompt, as chunks of kDeltaChunk tokens. Within one, G being the sums
/// of the logarithms of the decays so far, what is taken out of the state solves (I − N)·U =
/// (exp(G')∘A)·Sᵀ + M·V, where N and M are products of A with B and K that decay between the two
/// tokens; see delta_piece(). Decays have no bound: what lies between two tokens is summed up for
/// each pair, so that no exponent is above zero. → [count, heads · length]
Tensor Llama::decay_piece(size_t block, const DecayInputs& in, const SymInt& count,
                          const SymInt& position, Tensor state) const {
  constexpr int64_t kTokens = kDeltaPiece, n = kDeltaChunk, kChunks = kTokens / n;
  const RecurrentConfig& c = config_.recurrent;
  const int64_t length = c.length, heads = c.heads, keys = c.keys;
  const std::string& device = place(block).device;
  // Rows behind the last one repeat it, and neither write nor decay.
  const Tensor number = Tensor::arange(kTokens, DType::kI64, device);
  const Tensor end = Tensor::value_of(count, device);
  const Tensor row = number.minimum(end - 1).contiguous();
  const Tensor is_in = (number < end).reshape({kTokens, 1});
  const auto chunked = [&](const Tensor& t, int64_t width) {  // → [heads, chunks, n, width]
    return t.reshape({kTokens, heads, width})
        .permute({1, 0, 2})
        .contiguous()
        .reshape({heads, kChunks, n, width});
  };
  const auto rows_of = [&](const Tensor& t) { return t.contiguous().take(row); };
  const auto masked = [&](const Tensor& t) { return chunked(is_in.where(rows_of(t), 0.0), keys); };
  const Tensor query = chunked(rows_of(in.query), keys), key = masked(in.key),
               value = chunked(rows_of(in.value), length), rate = masked(in.decay);
  const Tensor at = Tensor::arange(n, DType::kI64, device);
  const Tensor earlier = at.reshape({1, n}), later = at.reshape({n, 1});
  // Up to a token, itself among them: [heads, chunks, n, keys].
  const Tensor until = (earlier <= later)
                           .reshape({n, n, 1})
                           .where(rate.reshape({heads, kChunks, 1, n, keys}), 0.0)
                           .sum({3})
                           .contiguous();
  const Tensor before = (until - rate).contiguous();
  const Tensor total = until.slice(2, {n - 1, n}).contiguous();
  const Tensor kept = (total - until).exp().contiguous();
  // [heads, chunks, n, n]: of each row of `a`, whose token sees decays up to `reach`, with each of
  // b.
  const auto pairs = [&](const Tensor& a, const Tensor& reach, const Tensor& b,
                         const Tensor& is_seen) {
    const auto row_wise = [&](const Tensor& t) { return t.reshape({heads, kChunks, n, 1, keys}); };
    const auto column_wise = [&](const Tensor& t) {
      return t.reshape({heads, kChunks, 1, n, keys});
    };
    const Tensor between = is_seen.reshape({n, n, 1}).where(
        row_wise(reach) - column_wise(until), -std::numeric_limits<double>::infinity());
    return (row_wise(a) * column_wise(b) * between.exp()).sum({4}).contiguous();
  };
  const Tensor is_earlier = earlier < later, is_up_to = earlier <= later;
  const Tensor& reach = c.has_bonus ? before : until;
  Tensor weights = pairs(query, reach, key, c.has_bonus ? is_earlier : is_up_to);
  if (c.has_bonus) {
    const Tensor bonus = floats(blocks_[block].recurrent.bonus).reshape({heads, 1, 1, keys});
    const Tensor own = (query * key * bonus).sum({3}, true).contiguous();
    weights = (weights + (earlier == later).where(own, 0.0)).contiguous();
  }
  const bool removes = in.removed.is_valid();
  const Tensor read = (query * reach.exp()).contiguous();
  Tensor inverse, taken, added, of_values, of_taken;
  if (removes) {
    const Tensor removed = chunked(rows_of(in.removed), keys);
    added = masked(in.added);
    const Tensor n1 = pairs(removed, before, added, is_earlier), n2 = n1.matmul(n1).contiguous(),
                 n4 = n2.matmul(n2).contiguous();
    const Tensor unity = (earlier == later).cast(DType::kF32);
    inverse = (unity + n1)
                  .contiguous()
                  .matmul((unity + n2).contiguous())
                  .contiguous()
                  .matmul((unity + n4).contiguous())
                  .contiguous();
    taken = (removed * before.exp()).contiguous();
    of_values = pairs(removed, before, key, is_earlier).matmul(value).contiguous();
    of_taken = pairs(query, until, added, is_up_to);
    added = (added * kept).contiguous();
  }
  const Tensor written = weights.matmul(value).contiguous();
  const Tensor stored = (key * kept).contiguous();
  Tensor s = from_start(state, position, device).contiguous();  // [heads, length, keys]
  std::vector<Tensor> out;
  for (int64_t i = 0; i < kChunks; ++i) {
    const auto here = [&](const Tensor& t) {
      return t.slice(1, {i, i + 1}).reshape({heads, t.size(2), t.size(3)}).contiguous();
    };
    const Tensor keys_first = s.transpose(1, 2).contiguous();
    Tensor y = here(read).matmul(keys_first) + here(written);
    Tensor next =
        s * here(total).exp() + here(value).transpose(1, 2).contiguous().matmul(here(stored));
    if (removes) {
      const Tensor seen = (here(taken).matmul(keys_first) + here(of_values)).contiguous();
      const Tensor change = here(inverse).matmul(seen).contiguous();
      y = y.contiguous() + here(of_taken).matmul(change);
      next = next.contiguous() + change.transpose(1, 2).contiguous().matmul(here(added));
    }
    out.push_back(y.contiguous());
    s = next.contiguous();
  }
  state.assign(s);
  return Tensor::cat(out, 1)
      .permute({1, 0, 2})
      .contiguous()
      .reshape({kTokens, heads * length})
      .shrink({{0, count}, {0, heads * length}});
}

Tensor Llama::decay_run(size_t block, const DecayInputs& in, const SymInt& count,
                        const SymInt& position, const Tensor& state) const {
  return count.is(1) ? decay_token(block, in, position, state)
                     : decay_piece(block, in, count, position, state);
}

Llama::RwkvSteps Llama::rwkv_steps(size_t block, const SymInt& count, const SymInt& position,
                                   KvCache& cache) const {
  const int64_t width = config_.embedding_length;
  const Tensor &past = cache.inputs[block], &state = cache.states[block];
  return {
      .shift =
          [=, this](const Tensor& x, int64_t which) {
            return shift_rows(x, count, position,
                              past.slice(0, {which * width, (which + 1) * width}),
                              place(block).device);
          },
      .run = [=, this](
                 const DecayInputs& in) { return decay_run(block, in, count, position, state); }};
}

/// As in attend_recurrent_paged(): what all rows have is stored before any sequence reads its own.
Llama::RwkvSteps Llama::rwkv_steps_paged(size_t block, const BatchStep& step,
                                         PagedKvCache& cache) const {
  const BatchWorkspace& space = step.workspaces[device_of(block)];
  const int64_t width = config_.embedding_length;
  const auto mixed_of = [&space, width](const BatchRun& run) {
    return space.mixed.shrink({{run.row, run.row + run.count}, {0, width}});
  };
  const auto store = [&space, &step, width](const Tensor& t, int64_t number) {
    Tensor part = space.inputs.shrink({{0, step.rows}, {number * width, (number + 1) * width}});
    part.assign(t.reshape({step.rows, width}));
  };
  const auto stored = [&space, width](const BatchRun& run, int64_t number) {
    return space.inputs.shrink(
        {{run.row, run.row + run.count}, {number * width, (number + 1) * width}});
  };
  const auto all = [&space, &step, width] {
    return space.mixed.shrink({{0, step.rows}, {0, width}});
  };
  return {.shift =
              [=, this, &step, &cache](const Tensor& x, int64_t which) {
                store(x, 0);
                for (const BatchRun& run : step.runs) {
                  const Tensor past = of_sequence(cache.inputs[block], run.state)
                                          .slice(0, {which * width, (which + 1) * width});
                  mixed_of(run).assign(shift_rows(stored(run, 0), run.count, run.position, past,
                                                  place(block).device));
                }
                return all();
              },
          .run =
              [=, this, &step, &cache](const DecayInputs& in) {
                int64_t number = 0;
                for (const Tensor* t :
                     {&in.query, &in.decay, &in.key, &in.value, &in.removed, &in.added})
                  if (t->is_valid()) store(*t, number++);
                for (const BatchRun& run : step.runs) {
                  DecayInputs own{
                      stored(run, 0), stored(run, 1), stored(run, 2), stored(run, 3), {}, {}};
                  if (in.removed.is_valid())
                    own.removed = stored(run, 4), own.added = stored(run, 5);
                  mixed_of(run).assign(decay_run(block, own, run.count, run.position,
                                                 of_sequence(cache.states[block], run.state)));
                }
                return all();
              }};
}

/// Between a token and the one before it: x + (before − x)·share, a share for every component.
Tensor Llama::between(const Tensor& x, const Tensor& before, const Tensor& share) {
  return (x + (before - x) * share).contiguous();
}

/// What sees the heads' results before they are mixed: a norm of each head, where there is one.
Tensor Llama::rwkv_norm(size_t block, const Tensor& read) const {
  const Norm& n = blocks_[block].recurrent.norm;
  const int64_t heads = config_.recurrent.heads, length = config_.recurrent.length;
  if (!n.is_used) return read;
  const SymInt rows = read.size(0);
  return read.reshape({rows, heads, length})
                 .contiguous()
                 .layer_norm({}, {}, kGroupEpsilon)
                 .reshape({rows, heads * length}) *
             floats(n.weight) +
         floats(n.bias);
}

Tensor Llama::rwkv6_mix(size_t block, const Tensor& x, const RwkvSteps& steps) const {
  const Rwkv& w = blocks_[block].rwkv;
  const RecurrentConfig& c = config_.recurrent;
  const SymInt rows = x.size(0);
  const int64_t width = config_.embedding_length, heads = c.heads, groups = c.groups,
                length = c.length;
  const Tensor before = steps.shift(x, 0).contiguous();
  // How much of the token before is in each of the five: a share for all, and what the two tell.
  const Tensor told =
      project(QuantisedActivations(between(x, before, floats(w.share))), w.shares_in)
          .tanh()
          .contiguous();
  const int64_t rank = told.size(1).constant() / 5;
  const Tensor more = told.reshape({rows, 5, rank})
                          .permute({1, 0, 2})
                          .contiguous()
                          .matmul(floats(w.shares_out).transpose(1, 2))
                          .contiguous();  // [5, rows, width]
  const auto mixed = [&](int64_t i) {
    const Tensor share =
        more.slice(0, {i, i + 1}).reshape({rows, width}) + w.shares[static_cast<size_t>(i)];
    return QuantisedActivations(between(x, before, share));
  };
  const auto spread = [&](const Tensor& t) {
    return groups == heads ? t
                           : t.contiguous()
                                 .reshape({rows, groups, 1, length})
                                 .expand({rows, groups, heads / groups, length})
                                 .reshape({rows, width});
  };
  const Tensor slow = project(mixed(0), w.decay_in).tanh().contiguous();
  const Tensor decay =
      ((project(QuantisedActivations(slow), w.decay_out) + floats(w.decay)).exp() * -1.0)
          .contiguous();
  Tensor key = spread(project(mixed(1), w.key)).contiguous();
  const Tensor value = spread(project(mixed(2), w.value)).contiguous();
  Tensor query = project(mixed(3), w.query).contiguous();
  const Tensor scores = project(mixed(4), w.gate).contiguous();
  if (!c.has_bonus) {
    key = (key * (decay.exp() * -1.0 + 1.0)).contiguous();
    query = (query * (1 / std::sqrt(static_cast<double>(length)))).contiguous();
  }
  const Tensor gate = c.has_bonus ? scores.silu() : scores.sigmoid();
  const Tensor read = steps.run({query, decay, key, value, {}, {}});
  return project(QuantisedActivations((rwkv_norm(block, read) * gate).contiguous()), w.output);
}

std::pair<Tensor, Tensor> Llama::rwkv7_mix(size_t block, const Tensor& x, const Tensor& first,
                                           const RwkvSteps& steps) const {
  const Rwkv& w = blocks_[block].rwkv;
  const RecurrentConfig& c = config_.recurrent;
  const SymInt rows = x.size(0);
  const int64_t width = config_.embedding_length, heads = c.heads, length = c.length;
  const Tensor before = steps.shift(x, 0).contiguous();
  const auto mixed = [&](size_t i) {
    return QuantisedActivations(between(x, before, w.shares[i]));
  };
  const auto low_rank = [](const Tensor& hidden, const Projection& out, const Tensor& base) {
    return project(QuantisedActivations(hidden.contiguous()), out) + floats(base);
  };
  const Tensor query = project(mixed(0), w.query).contiguous();
  constexpr double kFastest = -0.6065306597126334;  // −e^(−½): the logarithm of the fastest decay
  const Tensor decay =
      (low_rank(project(mixed(1), w.decay_in).tanh(), w.decay_out, w.decay).sigmoid() * kFastest)
          .contiguous();
  const Tensor key = project(mixed(2), w.key).contiguous();
  const QuantisedActivations for_value = mixed(3);
  Tensor value = project(for_value, w.value).contiguous();
  Tensor values = first;
  if (block == 0) {
    values = value;
  } else {
    const Tensor share = low_rank(project(for_value, w.first_in), w.first_out, w.first).sigmoid();
    value = (value + (first - value) * share).contiguous();
  }
  const Tensor rate =
      low_rank(project(mixed(4), w.rate_in), w.rate_out, w.rate).sigmoid().contiguous();
  const auto of_heads = [&](const Tensor& t) { return t.reshape({rows, heads, length}); };
  const Tensor removed =
      unit(of_heads((key * floats(w.removed_key)).contiguous()), 1e-12).reshape({rows, width});
  const Tensor direction = removed.contiguous();
  const Tensor written = (key * ((rate - 1.0) * floats(w.rate_key) + 1.0)).contiguous();
  const Tensor read =
      rwkv_norm(block, steps.run({query, decay, written, value, (direction * -1.0).contiguous(),
                                  (direction * rate).contiguous()}));
  const Tensor own = of_heads((written * query * floats(w.own)).contiguous()).sum({2}, true);
  Tensor out = read + (of_heads(value) * own.contiguous()).reshape({rows, width});
  if (w.gate_in.matrix.is_valid())
    out = out.contiguous() *
          project(QuantisedActivations(project(mixed(5), w.gate_in).sigmoid().contiguous()),
                  w.gate_out);
  return {project(QuantisedActivations(out.contiguous()), w.output), values};
}

Tensor Llama::channel_mix(size_t block, const Tensor& x, const Tensor& before) const {
  const Rwkv& w = blocks_[block].rwkv;
  const QuantisedActivations in(between(x, before, floats(w.key_share)));
  const QuantisedActivations hidden(activate(block, project(in, w.channel_key)).contiguous());
  const Tensor out = project(hidden, w.channel_value);
  if (!w.receptance_share.is_valid()) return out;
  const QuantisedActivations gate(between(x, before, floats(w.receptance_share)));
  return out.contiguous() * project(gate, w.receptance).sigmoid();
}

Tensor Llama::run_rwkv_block(size_t block, const Tensor& x, const RwkvSteps& steps) const {
  const Block& b = blocks_[block];
  const int64_t width = config_.embedding_length;
  const bool is_seventh = config_.row->has(kRwkv7);
  const Tensor all = x.contiguous(), stream = is_seventh ? part_of(all, 0, width) : all;
  const Tensor in = norm(stream.contiguous(), b.attention_norm).contiguous();
  Tensor mixed, values;
  if (is_seventh)
    std::tie(mixed, values) = rwkv7_mix(block, in, part_of(all, 1, width).contiguous(), steps);
  else
    mixed = rwkv6_mix(block, in, steps);
  const Tensor sum = (stream + mixed).contiguous();
  const Tensor read = norm(sum, b.feed_forward_norm).contiguous();
  Tensor out = sum + (config_.row->has(kChannelMix)
                          ? channel_mix(block, read, steps.shift(read, 1).contiguous())
                          : dense_feed_forward(block, read));
  const size_t every = config_.recurrent.halved_every;
  if (every > 0 && (block + 1) % every == 0) out = out * 0.5;
  if (!is_seventh) return out;
  const std::array parts{out.contiguous(), values};
  return Tensor::cat(parts, 1).contiguous();
}

}  // namespace bm::models
