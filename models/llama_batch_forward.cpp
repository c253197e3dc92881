// The network over tokens of several sequences: attention through page tables.
#include <bit>

#include "models/llama.h"

namespace bm::models {

namespace {

/// The rows of a run.
Tensor of_run(const BatchRun& run, const Tensor& t, const SymInt& first) {
  std::vector<std::pair<SymInt, SymInt>> ranges{{first, first + run.count}};
  for (int64_t axis = 1; axis < t.rank(); ++axis) ranges.emplace_back(0, t.size(axis));
  return t.shrink(ranges);
}

/// What the slots hold of a sequence, up to the run's last token. `is_copied`: see KvRows::take.
Tensor past_of(const BatchRun& run, const PagedKvCache& cache, const KvRows& slots, size_t device,
               bool is_copied = false) {
  const int64_t shift = std::countr_zero(static_cast<uint64_t>(cache.page_length));
  const Tensor at = Tensor::arange(run.position + run.count, DType::kI64, slots.device().name());
  const Tensor page = run.pages[device].take(at >> shift).cast(DType::kI64);
  return slots.take((page << shift) + (at & (cache.page_length - 1)), is_copied);
}

}  // namespace

std::vector<Tensor> Llama::chosen_of_runs(size_t block, const Tensor& x, const Tensor& compressed,
                                          const BatchStep& step, PagedKvCache& cache) const {
  if (!is_indexed(block)) return std::vector<Tensor>(step.runs.size());
  const size_t at_device = device_of(block);
  if (!has_indexer(block)) {
    if (block > 0 && device_of(block - 1) != at_device)
      for (Tensor& chosen : cache.chosen) chosen = chosen.to(place(block).device);
    return cache.chosen;
  }
  const BatchWorkspace& space = step.workspaces[at_device];
  const Tensor positions = space.positions.shrink({{0, step.rows}});
  const IndexParts parts = index_parts(block, x, compressed, step.rows,
                                       {cache.rope, [&](const Tensor& table, int64_t length) {
                                          return table.take(positions).slice(2, {0, length});
                                        }});
  const int64_t heads = config_.indexer.heads, length = config_.indexer.length;
  // As in attend_paged().
  Tensor queries = space.index_queries.shrink({{0, step.rows}, {0, heads}, {0, length}}),
         keys = space.index_keys.shrink({{0, step.rows}, {0, 1}, {0, length}}),
         weights = space.index_weights.shrink({{0, step.rows}, {0, heads}});
  queries.assign(parts.queries);
  keys.assign(parts.keys);
  if (parts.weights.is_valid()) weights.assign(parts.weights);
  KvRows& slots = cache.index_slots[block];
  for (const BatchRun& run : step.runs)
    slots.store(run.slot, run.count, of_run(run, space.index_keys, run.row));
  cache.chosen.clear();
  for (const BatchRun& run : step.runs)
    cache.chosen.push_back(
        choose(block,
               {of_run(run, space.index_queries, run.row),
                {},
                parts.weights.is_valid() ? of_run(run, space.index_weights, run.row) : Tensor()},
               past_of(run, cache, slots, at_device), run.count, run.position));
  return cache.chosen;
}

Tensor Llama::attend_latent_paged(size_t block, const Tensor& x, const BatchStep& step,
                                  PagedKvCache& cache) const {
  const size_t at_device = device_of(block);
  const BatchWorkspace::HeadSpace& space =
      step.workspaces[at_device].heads[config_.blocks[block].heads];
  const int64_t heads = config_.head_count, width = space.pairs.size(2).constant(),
                values = space.joined.size(1).constant();
  const Tensor positions = step.workspaces[at_device].positions.shrink({{0, step.rows}});
  const LatentParts parts = latent_parts(
      block, x, step.rows,
      {cache.rope, [&](const Tensor& table,
                       int64_t length) { return table.take(positions).slice(2, {0, length}); }},
      [&] { return positions.cast(DType::kI64); });
  const std::vector<Tensor> chosen = chosen_of_runs(block, x, parts.compressed, step, cache);
  // As in attend_paged().
  Tensor queries = space.queries.shrink({{0, step.rows}, {0, heads}, {0, width}});
  queries.assign(parts.queries.permute({1, 0, 2}));
  Tensor stored = space.pairs.shrink({{0, step.rows}, {0, 1}, {0, width}});
  stored.assign(parts.stored.unsqueeze(1));
  for (const BatchRun& run : step.runs)
    cache.slots[block].store(run.slot, run.count, of_run(run, space.pairs, run.row));
  for (size_t i = 0; i < step.runs.size(); ++i) {
    const BatchRun& run = step.runs[i];
    of_run(run, space.joined, run.row)
        .assign(mix_latent(block, of_run(run, space.queries, run.row).permute({1, 0, 2}),
                           past_of(run, cache, cache.slots[block], at_device).permute({1, 0, 2}),
                           run.count, run.position, chosen[i]));
  }
  const Tensor mixed = space.joined.shrink({{0, step.rows}, {0, values}});
  return project_output(block, parts.gate.is_valid() ? mixed * parts.gate : mixed);
}

Tensor Llama::attend_paged(size_t block, const Tensor& x, const BatchStep& step,
                           PagedKvCache& cache) const {
  const BlockConfig& config = config_.blocks[block];
  if (config_.latent.rank > 0 && config.has_attention)
    return attend_latent_paged(block, x, step, cache);
  if (config.is_linear) return project_output(block, x);
  if (!config.is_recurrent) return attend_heads_paged(block, x, step, cache);
  if (!config.has_attention) return attend_recurrent_paged(block, x, step, cache);
  const Tensor in = x.contiguous();
  return attend_heads_paged(block, in, step, cache) +
         attend_recurrent_paged(block, in, step, cache);
}

Tensor Llama::attend_heads_paged(size_t block, const Tensor& x, const BatchStep& step,
                                 PagedKvCache& cache) const {
  const HeadKind& kind = config_.heads_of(block);
  const int64_t kv_heads = kind.count_kv, width = kind.length, heads = kind.count;
  const size_t at_device = device_of(block), source = config_.blocks[block].kv_block;
  const BatchWorkspace::HeadSpace& space =
      step.workspaces[at_device].heads[config_.blocks[block].heads];
  const Tensor positions = step.workspaces[at_device].positions.shrink({{0, step.rows}});
  const Heads h = project_heads(
      block, x, step.rows,
      {cache.rope, [&](const Tensor& table,
                       int64_t length) { return table.take(positions).slice(2, {0, length}); }},
      [&] { return positions.cast(DType::kI64); });
  const std::vector<Tensor> chosen = chosen_of_runs(block, x, {}, step, cache);
  // Stored with all rows before any sequence reads them: the kernels so far know no sequences.
  Tensor queries = space.queries.shrink({{0, step.rows}, {0, heads}, {0, width}});
  queries.assign(h.query);
  const auto store = [&](const Tensor& what, int64_t which) {
    Tensor part =
        space.pairs.shrink({{0, step.rows}, {which, which + 1}, {0, kv_heads}, {0, width}});
    part.assign(what.reshape({step.rows, 1, kv_heads, width}));
  };
  KvRows& slots = cache.slots[source];
  if (source == block) {
    store(h.key, 0);
    store(h.value, 1);
    for (const BatchRun& run : step.runs)
      slots.store(run.slot, run.count,
                  of_run(run, space.pairs, run.row).reshape({run.count, 2 * kv_heads, width}));
  }
  // On GPUs the axes are as mix() has them: what it makes goes straight to its place.
  const bool has_axes = slots.device().hal().arch().max_block > 1;
  const Tensor joined =
      has_axes ? space.joined.reshape({space.joined.size(0), kv_heads, heads / kv_heads, width})
               : space.joined;
  for (size_t i = 0; i < step.runs.size(); ++i) {
    const BatchRun& run = step.runs[i];
    // One kernel of attention reads every key for many queries: no look-ups there. Copies of int8
    // would have to be two, of codes and of scales.
    const bool is_copied =
        slots.type() != DType::kI8 && rounds_attention(space.queries, slots.type(), run.count);
    const Tensor past = past_of(run, cache, slots, at_device, is_copied);
    const auto part = [&](int64_t which) {
      return past.slice(1, {which * kv_heads, (which + 1) * kv_heads}).permute({1, 0, 2});
    };
    const auto placed = [&](const Tensor& mixed) {
      return has_axes ? mixed : mixed.reshape({run.count, heads * width});
    };
    of_run(run, joined, run.row)
        .assign(placed(mix(block, of_run(run, space.queries, run.row), part(0), part(1),
                           slots.type(), run.count, run.position, chosen[i])));
  }
  const Tensor mixed =
      join_values(block, space.joined.shrink({{0, step.rows}, {0, heads * width}}), step.rows);
  return project_output(block, h.gate.is_valid() ? mixed * h.gate : mixed);
}

Tensor Llama::run_blocks(const BatchStep& step, PagedKvCache& cache) const {
  const Tensor tokens = step.tokens.shrink({{0, step.rows}});
  Tensor x = embed(tokens, [&](const Tensor& table) {
    return table.take(step.workspaces[0].positions.shrink({{0, step.rows}}));
  });
  Tensor inputs = layer_inputs(tokens, x);
  x = widen(x);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (inputs.is_valid()) inputs = bring(i, inputs);
    x = is_rwkv() ? run_rwkv_block(i, bring(i, x), rwkv_steps_paged(i, step, cache))
                  : run_block(i, bring(i, x), inputs,
                              [&](const Tensor& in) { return attend_paged(i, in, step, cache); });
    x = after_block(i, x);
  }
  cache.chosen.clear();
  return x;
}

Tensor Llama::hidden_batch(const BatchStep& step, PagedKvCache& cache) const {
  return norm(narrow(run_blocks(step, cache)), output_norm_).contiguous();
}

Tensor Llama::forward_batch(const BatchStep& step, PagedKvCache& cache) const {
  const Tensor x = run_blocks(step, cache);
  const Tensor wanted = x.contiguous().take(step.outputs.shrink({{0, step.output_count}}));
  return project_logits(narrow(wanted.contiguous())).contiguous();
}

}  // namespace bm::models
