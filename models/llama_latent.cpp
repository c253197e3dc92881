// Multi-head latent attention. Source: "DeepSeek-V2" (2024), section 2.1 and appendix C: the
// matrices that make keys and values of the components can be taken into queries and results. Then
// all heads share the components as their one key and value, and nothing else is stored or read.
#include <array>

#include "models/llama.h"

namespace bm::models {

Tensor Llama::attend_latent(size_t block, const Tensor& x, const SymInt& count,
                            const SymInt& position, KvCache& cache) const {
  const Block& b = blocks_[block];
  KvRows& keys = cache.keys[block];
  const int64_t heads = config_.head_count, rank = config_.latent.rank,
                rotated = config_.rope_length, plain = config_.head_length - rotated,
                value_length = config_.latent.value_length;
  const QuantisedActivations in(x);
  const bool is_compressed = b.latent.query_down.matrix.is_valid();
  const Tensor q =
      [&] {
        if (!is_compressed) return project(in, b.query);
        const Tensor components = project(in, b.latent.query_down).contiguous();
        return project(QuantisedActivations(norm(components, b.latent.query_norm)), b.query);
      }()
          .contiguous()
          .reshape({count, heads, config_.head_length});
  const RopeRows rope{cache.rope, [&](const Tensor& table, int64_t width) {
                        return table.shrink({{position, position + count}, {0, 1}, {0, width}});
                      }};
  const Tensor all = project(in, b.latent.key_down).contiguous();
  const Tensor components = norm(all.slice(1, {0, rank}).contiguous(), b.latent.key_norm);
  const Tensor key_turned =
      rotate(block, all.slice(1, {rank, rank + rotated}).reshape({count, 1, rotated}), rope)
          .reshape({count, rotated});
  const std::array parts{components, key_turned};
  keys.store(position, count, Tensor::cat(parts, 1).unsqueeze(1));

  // [heads, count, plain] · [heads, plain, rank]: queries in terms of components.
  const Tensor absorbed = q.slice(2, {0, plain})
                              .permute({1, 0, 2})
                              .contiguous()
                              .matmul(b.latent.key_up.cast(DType::kF32))
                              .contiguous();
  const Tensor query_turned =
      rotate(block, q.slice(2, {plain, plain + rotated}), rope).permute({1, 0, 2});
  const std::array halves{absorbed, query_turned};
  const Tensor queries = Tensor::cat(halves, 2).contiguous();  // [heads, count, rank + rotated]
  const Tensor past = keys.load(position + count).permute({1, 0, 2});
  Tensor scores = queries.matmul(past.transpose()) * static_cast<double>(config_.attention_scale);
  scores = mask_scores(block, scores.unsqueeze(0), count, position).squeeze(0);
  const Tensor mixed = scores.softmax(-1).matmul(past.slice(2, {0, rank})).contiguous();
  const Tensor values = mixed.matmul(b.latent.value_up.cast(DType::kF32).transpose());
  const Tensor joined = values.permute({1, 0, 2}).reshape({count, heads * value_length});
  return project(QuantisedActivations(joined), b.output);
}

}  // namespace bm::models
