// Sparse attention: an indexer scores all positions with small heads, and attention reads the best
// of them. Source: "DeepSeek-V3.2" (2025), section 2.1. MiniMax-M3 chooses blocks of positions, for
// every head of keys by an indexer's head of its own.
#include <array>
#include <bit>
#include <limits>

#include "models/llama.h"

namespace bm::models {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();
/// Source: DeepSeek-V3.2, inference/model.py, class LayerNorm.
constexpr double kKeyEpsilon = 1e-6;

/// Which of the last axis are among the k largest, the first of equal ones: exactly k, however many
/// there are, or all where there are fewer. Scores become whole numbers in the same order, all
/// different; the k-th largest is found bit by bit, by counting what is not below.
Tensor is_among_best(const Tensor& scores, int64_t k) {
  const SymInt n = scores.size(-1);
  const std::string device = scores.device().name();
  const auto position_bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(n.max())));
  // -0 and +0 are equal.
  const Tensor raw = (scores == 0.0).where(0.0, scores).contiguous().bitcast(DType::kI32);
  const Tensor ordered = (raw < 0).where(raw ^ int64_t{INT32_MAX}, raw).cast(DType::kI64);
  const Tensor from_end =
      Tensor::arange(n, DType::kI64, device) * -1 + ((int64_t{1} << position_bits) - 1);
  const Tensor keys = ((ordered << position_bits) + from_end).contiguous();
  // Read from memory: the steps differ in no constant, and one kernel serves them all.
  std::vector<int64_t> steps;
  for (int bit = 31 + position_bits; bit >= 0; --bit) steps.push_back(int64_t{1} << bit);
  const auto count = static_cast<int64_t>(steps.size());
  Shape line = scores.shape();
  line.back() = SymInt(1);
  const Shape one(line.size(), SymInt(1));
  const Tensor table = Tensor::from(steps, {count}, device);
  Tensor bound = Tensor::full_int(one, -steps[0], DType::kI64, device).expand(line).contiguous();
  for (int64_t i = 0; i < count; ++i) {
    const Tensor higher = bound + table.slice(0, {i, i + 1}).reshape(one);
    const Tensor not_below = (keys >= higher).cast(DType::kI32).sum({-1}, true);
    bound = (not_below >= k).where(higher, bound).contiguous();
  }
  return keys >= bound;
}

/// Pairs of the first `rotated` elements as the tables have them: halves, or side by side.
Tensor with_pairs(const Tensor& x, int64_t rotated, RopeStyle have, RopeStyle want) {
  if (have == want) return x;
  const SymInt rows = x.size(0);
  const int64_t heads = x.size(1).constant(), length = x.size(2).constant();
  const bool are_halves = have == RopeStyle::kHalves;
  const Shape pairs =
      are_halves ? Shape{rows, heads, 2, rotated / 2} : Shape{rows, heads, rotated / 2, 2};
  const Tensor turned = x.slice(2, {0, rotated})
                            .reshape(pairs)
                            .permute({0, 1, 3, 2})
                            .contiguous()
                            .reshape({rows, heads, rotated});
  if (rotated == length) return turned;
  const std::array parts{turned, x.slice(2, {rotated, length})};
  return Tensor::cat(parts, 2).contiguous();
}

}  // namespace

Llama::IndexParts Llama::index_parts(size_t block, const Tensor& x, const Tensor& compressed,
                                     const SymInt& rows, const RopeRows& rope) const {
  const Index& index = blocks_[block].index;
  const IndexerConfig& c = config_.indexer;
  const int64_t heads = c.heads, length = c.length, rotated = rope_of(block).length;
  const QuantisedActivations in(x);
  Tensor queries =
      project(compressed.is_valid() ? QuantisedActivations(compressed) : in, index.query)
          .contiguous()
          .reshape({rows, heads, length});
  Tensor keys = project(in, index.key).contiguous().reshape({rows, 1, length});
  queries = norm(queries, index.query_norm);
  // Norms of DeepSeek's indexer take means off, whatever those of the model do.
  keys = index.weights.matrix.is_valid()
             ? keys.layer_norm(index.key_norm.weight.cast(DType::kF32),
                               index.key_norm.bias.cast(DType::kF32),
                               index.key_norm.epsilon > 0 ? index.key_norm.epsilon : kKeyEpsilon)
             : norm(keys, index.key_norm);
  const auto turn = [&](const Tensor& t) {
    const Tensor paired = with_pairs(t.contiguous(), rotated, c.rope_style, config_.rope_style);
    const int64_t n = t.size(1).constant();
    if (rotated == length) return rotate(block, paired, rope);
    if (c.rotates_tail) {
      const int64_t first = length - rotated;
      const std::array parts{
          t.slice(2, {0, first}),
          rotate(block, t.slice(2, {first, length}).reshape({rows, n, rotated}), rope)};
      return Tensor::cat(parts, 2);
    }
    const std::array parts{
        rotate(block, paired.slice(2, {0, rotated}).reshape({rows, n, rotated}), rope),
        paired.slice(2, {rotated, length})};
    return Tensor::cat(parts, 2);
  };
  return {turn(queries).contiguous(), turn(keys).contiguous(),
          index.weights.matrix.is_valid() ? project(in, index.weights).contiguous() : Tensor()};
}

Tensor Llama::choose(size_t block, const IndexParts& parts, const Tensor& past, const SymInt& count,
                     const SymInt& position) const {
  const IndexerConfig& c = config_.indexer;
  const int64_t heads = c.heads;
  const SymInt end = position + count;
  const Tensor query_at = positions(block, count, position).unsqueeze(1);
  const Tensor is_visible =
      Tensor::arange(end, DType::kI64, place(block).device).unsqueeze(0) <= query_at;
  // [heads, count, length] · [length, end]: what scales all scores changes no order.
  Tensor scores = parts.queries.permute({1, 0, 2}).matmul(past.permute({1, 2, 0}));
  if (parts.weights.is_valid()) {
    scores = (scores.relu() * parts.weights.transpose().unsqueeze(2)).sum({0}, true);
    return is_among_best(is_visible.where(scores, kHidden), c.chosen);
  }
  // Of a block counts its best position. All blocks that there may be: extents are not divided.
  const int64_t blocks = (end.max() + c.block - 1) / c.block, all = blocks * c.block;
  scores =
      is_visible.where(scores, kHidden).contiguous().pad({{0, 0}, {0, 0}, {0, all - end}}, kHidden);
  const Tensor best =
      scores.reshape({heads, count, blocks, int64_t{c.block}}).max({3}).contiguous();
  const Tensor number = Tensor::arange(blocks, DType::kI64, place(block).device).unsqueeze(0);
  const Tensor own = query_at.floor_div(int64_t{c.block});
  const Tensor is_local = (number <= own) & (number > own - int64_t{c.local});
  const Tensor chosen =
      is_among_best(is_local.where(std::numeric_limits<double>::infinity(), best), c.chosen)
          .contiguous();
  return chosen.unsqueeze(3)
      .expand({heads, count, blocks, int64_t{c.block}})
      .contiguous()
      .reshape({heads, count, all})
      .shrink({{0, heads}, {0, count}, {0, end}});
}

Tensor Llama::chosen_of(size_t block, const Tensor& x, const Tensor& compressed,
                        const SymInt& count, const SymInt& position, KvCache& cache) const {
  if (!is_indexed(block)) return {};
  if (has_indexer(block)) {
    const IndexParts parts =
        index_parts(block, x, compressed, count, rope_rows(cache, count, position));
    KvRows& keys = cache.index_keys[block];
    keys.store(position, count, parts.keys);
    cache.chosen = choose(block, parts, keys.load(position + count), count, position).contiguous();
  } else if (place_of_block_[block] != place_of_block_[block - 1]) {
    cache.chosen = cache.chosen.to(place(block).device);
  }
  return cache.chosen;
}

}  // namespace bm::models
