// What blocks have besides attention and a feed-forward in Gemma 3n and Gemma 4: embeddings of
// their own for every token, and several vectors of a token of which a block computes one. Source:
// "Alternating Updates for Efficient Transformers" (Baykal and others, 2023), "LAuReL: Learned
// Augmented Residual Layer" (Menghani and others, 2024), and transformers, modeling_gemma3n.py.
#include <array>
#include <cmath>

#include "models/llama.h"
#include "models/llama_states.h"

namespace bm::models {
namespace {

const double kHalf = 1 / std::sqrt(2.0);  // of the sum of two things of the same variance

/// Root mean square of every row, [rows, 1].
Tensor magnitude(const Tensor& x) { return (x * x).mean({-1}, true).maximum(1e-5).sqrt(); }

}  // namespace

Tensor Llama::layer_inputs(const Tensor& tokens, const Tensor& x) const {
  if (config_.layer_input_length == 0) return {};
  const int64_t length = config_.layer_input_length, blocks = config_.block_count;
  const SymInt rows = x.size(0);
  const double width = static_cast<double>(config_.embedding_length);
  const Tensor projected =
      (project(QuantisedActivations(x.contiguous()), layer_projection_) * (1 / std::sqrt(width)))
          .contiguous()
          .reshape({rows, blocks, length});
  const Tensor of_state = norm(projected, layer_norm_).reshape({rows, blocks * length});
  if (!layer_embedding_.is_valid()) return of_state.contiguous();
  const Tensor own = layer_embedding_.take(tokens) * std::sqrt(static_cast<double>(length));
  return ((of_state + own) * kHalf).contiguous();
}

Tensor Llama::layer_input(size_t block, const Tensor& x, const Tensor& inputs) const {
  const LayerInput& p = blocks_[block].layer_input;
  const Tensor own = part_of(inputs, static_cast<int64_t>(block), config_.layer_input_length);
  const Tensor gate = activate(block, project(QuantisedActivations(x), p.gate));
  return norm(project(QuantisedActivations((gate * own).contiguous()), p.out).contiguous(), p.norm);
}

Tensor Llama::widen(const Tensor& x) const {
  if (config_.row->has(kRwkv7)) return x.contiguous().pad({{0, 0}, {0, config_.embedding_length}});
  if (config_.hyper.count > 0)
    return Tensor::cat(std::vector<Tensor>(config_.hyper.count, x.contiguous()), 1).contiguous();
  if (config_.kept_every > 0)
    return x.contiguous().pad(
        {{0, 0}, {0, static_cast<int64_t>(config_.stream_length() - config_.embedding_length)}});
  if (config_.altup.count == 0) return x;
  const Tensor first = x.contiguous();
  const QuantisedActivations in(first);
  std::vector<Tensor> all{first};
  for (const Matrix& m : altup_in_) {
    const Tensor other = m.linear(in).contiguous();
    all.push_back(other * (magnitude(first) / magnitude(other)));
  }
  return Tensor::cat(all, 1).contiguous();
}

Tensor Llama::narrow(const Tensor& x) const {
  if (config_.row->has(kRwkv7)) return part_of(x, 0, config_.embedding_length).contiguous();
  const int64_t width = config_.embedding_length, count = config_.altup.count;
  if (config_.hyper.count > 0) {
    const Tensor all = x.contiguous();
    return read_vectors(all, hyper_shares(all, output_hyper_), config_.hyper.count, width)
        .contiguous();
  }
  if (config_.kept_every > 0) {
    const Tensor all = x.contiguous();
    const auto kept = static_cast<int64_t>(config_.stream_length()) / width - 1;
    return mix_kept(all, part_of(all, 0, width), kept, output_scorer_).contiguous();
  }
  if (config_.altup.count == 0) return x;
  const Tensor first = part_of(x, 0, width).contiguous();
  Tensor sum = first;
  for (int64_t i = 1; i < count; ++i) {
    const QuantisedActivations in(part_of(x, i, width).contiguous());
    const Tensor other = altup_out_[static_cast<size_t>(i - 1)].linear(in).contiguous();
    sum = sum + other * (magnitude(first) / magnitude(other));
  }
  return (sum * (1 / static_cast<double>(count))).contiguous();
}

Tensor Llama::altup_modalities(size_t block, const Tensor& x) const {
  const Altup& a = blocks_[block].altup;
  const Tensor read = norm(x, a.router_norm) * (1 / static_cast<double>(config_.embedding_length));
  return project(QuantisedActivations(read.contiguous()), a.router).tanh().contiguous();
}

Tensor Llama::run_altup_block(size_t block, const Tensor& x, const Tensor& inputs,
                              const std::function<Tensor(const Tensor&)>& attention) const {
  const Block& b = blocks_[block];
  const Altup& a = b.altup;
  const int64_t width = config_.embedding_length, count = config_.altup.count;
  const Tensor all = x.contiguous();
  // [rows, to · from]
  const Tensor shares =
      project(QuantisedActivations(altup_modalities(block, part_of(all, 0, width).contiguous())),
              a.predict)
          .contiguous();
  std::vector<Tensor> predicted;
  for (int64_t to = 0; to < count; ++to) {
    Tensor sum = part_of(all, to, width);
    for (int64_t from = 0; from < count; ++from)
      sum = sum + part_of(all, from, width) * part_of(shares, to * count + from, 1);
    predicted.push_back(sum.contiguous());
  }
  const Tensor& active = predicted[0];
  const Tensor in = norm(active, b.attention_norm).contiguous();
  const Tensor components = project(QuantisedActivations(in), a.laurel_in).contiguous();
  const Tensor laurel =
      in +
      norm(project(QuantisedActivations(components), a.laurel_out).contiguous(), a.laurel_norm);
  const Tensor attended = active + norm(attention(in).contiguous(), b.attention_post_norm);
  const Tensor sum = ((attended + laurel) * kHalf).contiguous();
  const Tensor computed =
      (sum + norm(feed_forward(block, norm(sum, b.feed_forward_norm)).contiguous(),
                  b.feed_forward_post_norm))
          .contiguous();
  const Tensor corrections =
      (project(QuantisedActivations(altup_modalities(block, computed)), a.correct) + 1.0)
          .contiguous();
  const Tensor surprise = (computed - active).contiguous();
  const auto corrected = [&](int64_t i) {
    return predicted[static_cast<size_t>(i)] + surprise * part_of(corrections, i, 1);
  };
  std::vector<Tensor> out{corrected(0).contiguous()};
  const Tensor own =
      layer_input(block, (out[0] * a.correct_scale.cast(DType::kF32)).contiguous(), inputs)
          .contiguous();
  for (int64_t i = 1; i < count; ++i) out.push_back(corrected(i) + own);
  return Tensor::cat(out, 1).contiguous();
}

}  // namespace bm::models
