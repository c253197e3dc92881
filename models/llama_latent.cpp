// Multi-head latent attention. Source: "DeepSeek-V2" (2024), section 2.1 and appendix C: the
// matrices that make keys and values of the components can be taken into queries and results. Then
// all heads share the components as their one key and value, and nothing else is stored or read.
#include <array>
#include <limits>

#include "models/llama.h"

namespace bm::models {

Llama::LatentParts Llama::latent_parts(size_t block, const Tensor& x, const SymInt& rows,
                                       const RopeRows& rope,
                                       const std::function<Tensor()>& positions) const {
  const Block& b = blocks_[block];
  const int64_t heads = config_.head_count, rank = config_.latent.rank,
                rotated = config_.rope_length, plain = config_.head_length - rotated;
  const QuantisedActivations in(x);
  Tensor compressed;
  if (b.latent.query_down.matrix.is_valid())
    compressed = norm(project(in, b.latent.query_down).contiguous(), b.latent.query_norm);
  if (compressed.is_valid() && is_indexed(block)) compressed = compressed.contiguous();
  Tensor q = project(compressed.is_valid() ? QuantisedActivations(compressed) : in, b.query)
                 .contiguous()
                 .reshape({rows, heads, config_.head_length});
  if (config_.temperature_scale != 0.0F) q = (q * temperature(positions())).contiguous();
  const Tensor all = project(in, b.latent.key_down).contiguous();
  const Tensor components = norm(all.slice(1, {0, rank}).contiguous(), b.latent.key_norm);
  const auto turn = [&](const Tensor& t) {
    return config_.rope_style == RopeStyle::kNone ? t : rotate(block, t, rope);
  };
  const Tensor key_turned = turn(all.slice(1, {rank, rank + rotated}).reshape({rows, 1, rotated}))
                                .reshape({rows, rotated});
  const std::array parts{components, key_turned};

  // [heads, rows, plain] · [heads, plain, rank]: queries in terms of components.
  const Tensor absorbed = q.slice(2, {0, plain})
                              .permute({1, 0, 2})
                              .contiguous()
                              .matmul(b.latent.key_up.cast(DType::kF32))
                              .contiguous();
  const Tensor query_turned = turn(q.slice(2, {plain, plain + rotated})).permute({1, 0, 2});
  const std::array halves{absorbed, query_turned};
  const Tensor gate =
      b.attention_gate.matrix.is_valid()
          ? gate_attention(block, in, rows, heads * int64_t{config_.latent.value_length})
          : Tensor();
  return {Tensor::cat(halves, 2).contiguous(), Tensor::cat(parts, 1), compressed, gate};
}

Tensor Llama::mix_latent(size_t block, const Tensor& queries, const Tensor& past,
                         const SymInt& count, const SymInt& position, const Tensor& chosen) const {
  const int64_t heads = config_.head_count, rank = config_.latent.rank,
                value_length = config_.latent.value_length;
  Tensor scores = queries.matmul(past.transpose()) * static_cast<double>(config_.attention_scale);
  scores = mask_scores(block, scores.unsqueeze(0), count, position).squeeze(0);
  if (chosen.is_valid()) scores = chosen.where(scores, -std::numeric_limits<double>::infinity());
  const Tensor mixed =
      shares_of(block, scores, {heads, 1, 1}).matmul(past.slice(2, {0, rank})).contiguous();
  const Tensor values = mixed.matmul(blocks_[block].latent.value_up.cast(DType::kF32).transpose());
  return values.permute({1, 0, 2}).reshape({count, heads * value_length});
}

Tensor Llama::attend_latent(size_t block, const Tensor& x, const SymInt& count,
                            const SymInt& position, KvCache& cache) const {
  KvRows& keys = cache.keys[block];
  const LatentParts parts = latent_parts(block, x, count, rope_rows(cache, count, position),
                                         [&] { return positions(block, count, position); });
  const Tensor chosen = chosen_of(block, x, parts.compressed, count, position, cache);
  keys.store(position, count, parts.stored.unsqueeze(1));
  const Tensor past = keys.load(position + count).permute({1, 0, 2});
  const Tensor mixed = mix_latent(block, parts.queries, past, count, position, chosen);
  return project_output(block, parts.gate.is_valid() ? mixed * parts.gate : mixed);
}

}  // namespace bm::models
