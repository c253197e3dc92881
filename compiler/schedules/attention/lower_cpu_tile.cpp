// Online softmax of one tile: rescales the accumulators by exp2(old max - new max), then adds P·V.
// What one tile of queries does with a block of keys, and how its results are stored.
#include <algorithm>
#include <cmath>

#include "compiler/schedules/attention/lower_cpu.h"

namespace bm::compiler {
namespace {

/// Iterations of a loop over logits at once; a power of two.
constexpr uint32_t kVectorUnroll = 4;

}  // namespace

void TiledAttention::add_keys(QueryTile query_tile) {
  if (!a_.causal_bound) return add_visible_keys(query_tile);
  const ValueId rows = b_.add(query_tile.at, query_tile.height);
  const ValueId visible = visible_keys(rows, query_tile.block);
  query_tile.count = e_.min_index(b_.sub(visible, query_tile.first_key), query_tile.count);
  const BlockId parent = query_tile.block;
  query_tile.block = b_.open_block(parent);
  add_visible_keys(query_tile);
  b_.close_if(query_tile.block, b_.lt(b_.index(0), query_tile.count));
}

void TiledAttention::add_visible_keys(const QueryTile& query_tile) {
  const Builder::Loop keys = b_.open_loop(query_tile.block);
  const std::vector<ValueId> zeros(p_.key_tile * p_.vectors, b_.constant({s_.dtype, p_.lanes}, 0));
  multiply_rows(keys.body, zeros,
                {.rows = s_.keys,
                 .row_at = scaled(keys.index, s_.key_step),
                 .row_step = s_.key_step,
                 .head_dim_step = 1,
                 .vectors = s_.queries,
                 .vector_at = scaled(query_tile.at, s_.head_dim),
                 .length = b_.index(s_.head_dim),
                 .results = s_.logits,
                 .result_at = scaled(keys.index, p_.query_tile())});
  b_.close_loop(keys, b_.index(0), query_tile.count, p_.key_tile);

  std::vector<uint32_t> row_max;
  for (uint32_t v = 0; v < p_.vectors; ++v) {
    row_max.push_back(b_.add_register({s_.dtype, p_.lanes}));
    const ValueId at = moved(query_tile.at, int64_t{v} * p_.lanes);
    b_.assign(query_tile.block, row_max[v],
              b_.local_load(query_tile.block, s_.row_max, at, p_.lanes));
  }
  if (a_.edge_logit)
    split_tail(query_tile, [&](BlockId inside, bool has_tail) {
      finish_logits(query_tile, row_max, inside, has_tail);
    });
  else
    finish_logits(query_tile, row_max, query_tile.block, false);
  add_values(query_tile, take_exp(query_tile, row_max));
}

/// Online softmax: rescales the accumulated P·V by exp2(old maximum - new maximum), then adds that
/// of this block of keys.
void TiledAttention::add_values(const QueryTile& query_tile, const std::vector<ValueId>& rescale) {
  const Builder::Loop columns = b_.open_loop(query_tile.block);
  const ValueId base = scaled(query_tile.at, s_.lines);
  const ValueId line = b_.add(base, scaled(columns.index, p_.query_tile()));
  std::vector<ValueId> accumulators;
  for (uint32_t i = 0; i < p_.column_tile * p_.vectors; ++i) {
    const ValueId from = moved(line, int64_t{i} * p_.lanes);
    const ValueId before = b_.local_load(columns.body, s_.results, from, p_.lanes);
    accumulators.push_back(b_.mul(before, rescale[i % p_.vectors]));
  }
  multiply_rows(columns.body, accumulators,
                {.rows = s_.values,
                 .row_at = columns.index,
                 .row_step = 1,
                 .head_dim_step = s_.value_step,
                 .vectors = s_.logits,
                 .vector_at = b_.index(0),
                 .length = query_tile.count,
                 .results = s_.results,
                 .result_at = line});
  b_.close_loop(columns, b_.index(0), b_.index(s_.width), p_.column_tile);
}

/// A tile of registers: single elements times lines of a query tile, step by step of the head
/// dimension.
void TiledAttention::multiply_rows(BlockId block, const std::vector<ValueId>& start,
                                   const Tile& t) {
  for (size_t i = 0; i < start.size(); ++i) b_.assign(block, s_.accumulators[i], start[i]);
  const Builder::Loop loop = b_.open_loop(block);
  const ValueId line = b_.add(t.vector_at, scaled(loop.index, p_.query_tile()));
  const ValueId row = b_.add(t.row_at, scaled(loop.index, t.head_dim_step));
  std::vector<ValueId> vectors;
  for (uint32_t v = 0; v < p_.vectors; ++v)
    vectors.push_back(
        b_.local_load(loop.body, t.vectors, moved(line, int64_t{v} * p_.lanes), p_.lanes));
  const auto accumulators = std::span(s_.accumulators).first(start.size());
  const auto element = [&](size_t r) {
    const ValueId at = moved(row, static_cast<int64_t>(r) * t.row_step);
    return e_.splat(b_.local_load(loop.body, t.rows, at), p_.lanes);
  };
  contract_vectors(b_, loop.body, accumulators, vectors, element,
                   [&](ValueId sum, ValueId a, ValueId b) { return b_.mad(a, b, sum); });
  b_.close_loop(loop, b_.index(0), t.length, 1);
  spill_vectors(b_, block, t.results, t.result_at, accumulators);
}

/// Products of q·k become logits, which the row maxima take in. NaN need not: its exp2 is NaN.
void TiledAttention::finish_logits(const QueryTile& query_tile,
                                   const std::vector<uint32_t>& row_max, BlockId block,
                                   bool has_tail) {
  const uint32_t jam = !p_.has_loads ? kVectorUnroll : has_tail ? 1 : p_.lanes;
  const ValueId zero = b_.index(0);
  if (has_tail)
    return finish_keys(query_tile, row_max,
                       {zero, query_tile.count, a_.edge_logit, a_.edge_product, a_.edge_row}, block,
                       jam);
  ValueId from = zero;
  if (a_.unmasked_logit) {
    // What the first query sees, all see.
    const ValueId bound = causal_bound(b_.add(s_.row, query_tile.at), block);
    const ValueId visible = e_.min_index(b_.sub(bound, query_tile.first_key), query_tile.count);
    const ValueId positive = e_.max_index(visible, zero);
    from = whole_steps({b_, positive}, jam);
    finish_keys(query_tile, row_max, {zero, from, a_.unmasked_logit, a_.product, a_.row}, block,
                jam);
  }
  finish_keys(query_tile, row_max, {from, query_tile.count, a_.logit, a_.product, a_.row}, block,
              jam);
}

void TiledAttention::finish_keys(const QueryTile& query_tile, const std::vector<uint32_t>& row_max,
                                 const Logits& logits, BlockId block, uint32_t step) {
  const ValueId first = b_.add(s_.row, query_tile.at);
  const Instances rows =
      e_.bind_axis({s_.env}, logits.row, first, block, p_.lanes, p_.vectors, p_.lanes);
  in_steps(b_, logits.begin, logits.end, step, [&](ValueId begin, ValueId end, uint32_t jam) {
    const Builder::Loop loop = b_.open_loop(block);
    const ValueId at = b_.add(query_tile.first_key, loop.index);
    const Instances all = e_.bind_axis(rows, a_.key, at, loop.body, 1, jam, 1);
    const ValueId line = scaled(loop.index, p_.query_tile());
    std::vector<ValueId> addresses;
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t v = i / jam, copy = i % jam;
      addresses.push_back(moved(line, static_cast<int64_t>(copy * p_.query_tile() + v * p_.lanes)));
      e_.set_known(logits.product, all[i],
                   b_.local_load(loop.body, s_.logits, addresses.back(), p_.lanes));
    }
    const std::vector<ValueId> values = e_.emit_all(logits.value, all, p_.lanes);
    for (size_t i = 0; i < all.size(); ++i) {
      const uint32_t reg = row_max[i / jam];
      const Expr before(b_, b_.read(loop.body, reg)), value(b_, values[i]);
      const Expr larger = select(value < before, before, value);
      b_.assign(loop.body, reg, larger);
      b_.local_store(loop.body, s_.logits, addresses[i], values[i]);
    }
    b_.close_loop(loop, begin, end, jam);
  });
}

/// Logits become exp2(logit - row maximum), and the row sums grow. Returns the factors that rescale
/// what was accumulated under the maxima of earlier blocks.
std::vector<ValueId> TiledAttention::take_exp(const QueryTile& query_tile,
                                              const std::vector<uint32_t>& row_max) {
  const Type type{s_.dtype, p_.lanes};
  const auto exp = [&](ValueId shifted) {
    if (a_.scale) shifted = b_.mul(shifted, b_.constant_f(type, a_.scale->fimm()));
    return b_.alu(Op::kExp2, s_.dtype, {&shifted, 1});
  };
  std::vector<ValueId> from, rescale;
  std::vector<uint32_t> row_sums;
  for (uint32_t v = 0; v < p_.vectors; ++v) {
    const ValueId at = moved(query_tile.at, int64_t{v} * p_.lanes);
    const ValueId now = b_.read(query_tile.block, row_max[v]);
    const ValueId before = b_.local_load(query_tile.block, s_.row_max, at, p_.lanes);
    b_.local_store(query_tile.block, s_.row_max, at, now);
    // Nothing but -inf so far: distances from -inf would be NaN.
    const ValueId is_empty = b_.eq(now, b_.like(now, -HUGE_VAL));
    from.push_back(b_.select(is_empty, b_.like(now, 0), now));
    rescale.push_back(exp(b_.sub(before, from[v])));
    row_sums.push_back(b_.add_register(type));
    const ValueId row_sum = b_.local_load(query_tile.block, s_.row_sums, at, p_.lanes);
    b_.assign(query_tile.block, row_sums[v], b_.mul(row_sum, rescale[v]));
  }
  in_steps(b_, b_.index(0), query_tile.count, kVectorUnroll,
           [&](ValueId begin, ValueId end, uint32_t jam) {
             const Builder::Loop loop = b_.open_loop(query_tile.block);
             const ValueId line = scaled(loop.index, p_.query_tile());
             for (uint32_t i = 0; i < jam * p_.vectors; ++i) {
               const uint32_t v = i % p_.vectors;
               const ValueId at = moved(line, int64_t{i} * p_.lanes);
               const ValueId logit = b_.local_load(loop.body, s_.logits, at, p_.lanes);
               const ValueId share = exp(b_.sub(logit, from[v]));
               b_.local_store(loop.body, s_.logits, at, share);
               const ValueId row_sum = b_.read(loop.body, row_sums[v]);
               b_.assign(loop.body, row_sums[v], b_.add(row_sum, share));
             }
             b_.close_loop(loop, begin, end, jam);
           });
  spill_vectors(b_, query_tile.block, s_.row_sums, query_tile.at, row_sums);
  return rescale;
}

/// Epilogue: transposes the results of a query tile back and makes of them what the kernel stores.
void TiledAttention::finish_query_tile(const QueryTile& query_tile) {
  transpose_results(query_tile);
  const Builder::Loop rows = b_.open_loop(query_tile.block);
  const ValueId query = b_.add(query_tile.at, rows.index);
  const uint32_t row = e_.make_bindings(b_.add(s_.row, query), rows.body, 0, 1, 0);
  const Env env = e_.bound(s_.env, a_.row, row);
  e_.set_known(a_.row_sum, env, b_.local_load(rows.body, s_.row_sums, query));
  const ValueId line = scaled(rows.index, s_.transposed_step);
  const auto run = [&](int64_t begin, int64_t end, uint32_t lanes) {
    if (begin == end) return;
    const Builder::Loop loop = b_.open_loop(rows.body);
    const Instances one = e_.bind_axis({env}, a_.column, loop.index, loop.body, lanes, 1, lanes);
    const ValueId at = b_.add(line, loop.index);
    e_.set_known(a_.pv, one[0], b_.local_load(loop.body, s_.transposed, at, lanes));
    e_.emit_stores(loop.body, one, e_.kernel().stores);
    b_.close_loop(loop, b_.index(begin), b_.index(end), lanes);
  };
  const int64_t whole = s_.width / p_.lanes * p_.lanes;
  run(0, whole, p_.lanes);
  run(whole, s_.width, 1);
  b_.close_loop(rows, b_.index(0), query_tile.height, 1);
}

void TiledAttention::transpose_results(const QueryTile& query_tile) {
  const Builder::Loop columns = b_.open_loop(query_tile.block);
  const Builder::Loop part = b_.open_loop(columns.body);
  const ValueId base = scaled(query_tile.at, s_.lines);
  const ValueId line = b_.add(base, scaled(columns.index, p_.query_tile()));
  const ValueId from = b_.add(line, part.index);
  std::vector<ValueId> lines;
  for (uint32_t i = 0; i < p_.lanes; ++i)
    lines.push_back(
        b_.local_load(part.body, s_.results, moved(from, int64_t{i} * p_.query_tile()), p_.lanes));
  e_.transpose(&lines);
  const ValueId to = b_.add(scaled(part.index, s_.transposed_step), columns.index);
  for (uint32_t i = 0; i < p_.lanes; ++i)
    b_.local_store(part.body, s_.transposed, moved(to, i * s_.transposed_step), lines[i]);
  b_.close_loop(part, b_.index(0), b_.index(p_.query_tile()), p_.lanes);
  b_.close_loop(columns, b_.index(0), b_.index(s_.width), p_.lanes);
}

}  // namespace bm::compiler
