// Multi-head latent attention. Source: "DeepSeek-V2" (2024), section 2.1 and appendix C: the
// matrices that make keys and values of the components can be taken into queries and results. Then
// all heads share the components as their one key and value, and nothing else is stored or read.
#include <array>

#include "models/llama.h"

namespace bm::models {

Tensor Llama::attend_latent(size_t block, const Tensor& x, const SymInt& count,
                            const SymInt& position, KvCache& cache) const {
  const Block& b = blocks_[block];
  Tensor& keys = cache.keys[block];
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
  const auto of_table = [&](const Tensor& table, int64_t width) {
    return table.shrink({{position, position + count}, {0, 1}, {0, width}});
  };
  const Tensor all = project(in, b.latent.key_down).contiguous();
  const Tensor components = norm(all.slice(1, {0, rank}).contiguous(), b.latent.key_norm);
  const Tensor key_turned =
      rotate(all.slice(1, {rank, rank + rotated}).reshape({count, 1, rotated}), place(block).rope,
             of_table)
          .reshape({count, rotated});
  const SymInt end = position + count;
  const auto rows = [&](const SymInt& begin, int64_t from, int64_t to) {
    return keys.shrink({{0, 1}, {begin, end}, {from, to}});
  };
  const std::array parts{components, key_turned};
  rows(position, 0, rank + rotated).assign(Tensor::cat(parts, 1).unsqueeze(0));

  // [heads, count, plain] · [heads, plain, rank]: queries in terms of components.
  const Tensor absorbed = q.slice(2, {0, plain})
                              .permute({1, 0, 2})
                              .contiguous()
                              .matmul(b.latent.key_up.cast(DType::kF32))
                              .contiguous();
  const Tensor query_turned =
      rotate(q.slice(2, {plain, plain + rotated}), place(block).rope, of_table).permute({1, 0, 2});
  const std::array halves{absorbed, query_turned};
  const Tensor queries = Tensor::cat(halves, 2).contiguous();  // [heads, count, rank + rotated]
  const Tensor past = rows(0, 0, rank + rotated);
  Tensor scores = queries.matmul(past.transpose()) * static_cast<double>(config_.attention_scale);
  scores = mask_scores(block, scores.unsqueeze(0), count, position).squeeze(0);
  const Tensor mixed = scores.softmax(-1).matmul(rows(0, 0, rank)).contiguous();
  const Tensor values = mixed.matmul(b.latent.value_up.cast(DType::kF32).transpose());
  const Tensor joined = values.permute({1, 0, 2}).reshape({count, heads * value_length});
  return project(QuantisedActivations(joined), b.output);
}

}  // namespace bm::models
