// Tokens that have several vectors between blocks: hyper-connections, whose weights say what a half
// of a block reads of each and adds to it, and attention to what earlier blocks have read. Source:
// "Hyper-Connections" (Zhu and others, 2024), "Attention Residuals" (Kimi Team, 2026); llama.cpp,
// src/models/hy-v4.cpp, kimi-k3.cpp.
#include <vector>

#include "models/llama.h"
#include "models/llama_states.h"

namespace bm::models {

Tensor Llama::hyper_shares(const Tensor& x, const Hyper& h) const {
  const int64_t count = config_.hyper.count;
  const auto epsilon = static_cast<double>(config_.hyper.epsilon),
             magnitude = static_cast<double>(config_.hyper.magnitude);
  const Tensor read = x.rms_norm({}, static_cast<double>(config_.norm_epsilon)).contiguous();
  const Tensor mixes = project(QuantisedActivations(read), h.mix).contiguous();
  const Tensor base = h.base.cast(DType::kF32), scale = h.scale.cast(DType::kF32);
  std::vector<Tensor> out;
  for (int64_t i = 0; i * count < mixes.size(1).constant(); ++i) {
    const Tensor share = (part_of(mixes, i, count) * scale.slice(0, {i, i + 1}) +
                          base.slice(0, {i * count, (i + 1) * count}))
                             .sigmoid();
    out.push_back((i == 0 ? share : share * magnitude) + epsilon);
  }
  return Tensor::cat(out, 1).contiguous();
}

Tensor Llama::run_hyper_block(size_t block, const Tensor& x,
                              const std::function<Tensor(const Tensor&)>& attention) const {
  const Block& b = blocks_[block];
  const int64_t width = config_.embedding_length, count = config_.hyper.count;
  const auto half = [&](const Tensor& all, const Hyper& h, const Norm& n,
                        const std::function<Tensor(const Tensor&)>& compute) {
    const Tensor shares = hyper_shares(all, h);
    const Tensor in = norm(read_vectors(all, shares, count, width).contiguous(), n);
    const Tensor given = compute(in).contiguous();
    std::vector<Tensor> out;
    for (int64_t i = 0; i < count; ++i)
      out.push_back(part_of(all, i, width) + given * part_of(shares, count + i, 1));
    return Tensor::cat(out, 1).contiguous();
  };
  const Tensor sum = half(x.contiguous(), b.attention_hyper, b.attention_norm, attention);
  return half(sum, b.feed_forward_hyper, b.feed_forward_norm,
              [&](const Tensor& in) { return feed_forward(block, in); });
}

Tensor Llama::mix_kept(const Tensor& x, const Tensor& current, int64_t count,
                       const Tensor& scorer) const {
  if (count == 0) return current;
  const int64_t width = config_.embedding_length;
  std::vector<Tensor> vectors, scores;
  for (int64_t i = 1; i <= count; ++i) vectors.push_back(part_of(x, i, width));
  vectors.push_back(current);
  // They are scored by their directions; what is mixed has its length.
  for (const Tensor& v : vectors)
    scores.push_back(
        v.contiguous()
            .rms_norm(scorer.cast(DType::kF32), static_cast<double>(config_.norm_epsilon))
            .sum({1}, true));
  const Tensor shares = Tensor::cat(scores, 1).contiguous().softmax(1).contiguous();
  return read_vectors(Tensor::cat(vectors, 1).contiguous(), shares, count + 1, width);
}

Tensor Llama::run_keeping_block(size_t block, const Tensor& x,
                                const std::function<Tensor(const Tensor&)>& attention) const {
  const Block& b = blocks_[block];
  const int64_t width = config_.embedding_length, every = config_.kept_every,
                number = static_cast<int64_t>(block), kept = (number + every - 1) / every;
  const bool is_keeping = number % every == 0;
  Tensor all = x.contiguous();
  const Tensor before = part_of(all, 0, width);
  const Tensor read = mix_kept(all, before, kept, b.attention_scorer).contiguous();
  const Tensor attended = attention(norm(read, b.attention_norm)).contiguous();
  std::vector<Tensor> out;
  for (int64_t i = 0; i * width < all.size(1).constant(); ++i)
    out.push_back(part_of(all, is_keeping && i == kept + 1 ? 0 : i, width));
  all = Tensor::cat(out, 1).contiguous();
  // A block that keeps what it reads begins a new sum.
  const Tensor sum = (is_keeping ? attended : before + attended).contiguous();
  const Tensor mixed =
      mix_kept(all, sum, kept + (is_keeping ? 1 : 0), b.feed_forward_scorer).contiguous();
  out[0] = sum + feed_forward(block, norm(mixed, b.feed_forward_norm));
  for (size_t i = 1; i < out.size(); ++i) out[i] = part_of(all, static_cast<int64_t>(i), width);
  return Tensor::cat(out, 1).contiguous();
}

}  // namespace bm::models
