// Attention with online softmax on CPUs, tiled over queries and keys.
// Attention in tiles of queries and keys; see AttentionPlan. Lanes run along the queries, so that
// row maxima, row sums and masks never cross them.
#include <algorithm>
#include <cmath>

#include "compiler/schedules/attention/lower_cpu.h"
#include "compiler/schedules/strategy.h"

namespace bm::compiler {
namespace {

/// Distance between copied keys and values beyond their length: rows of a power of two would share
/// few sets of a cache.
constexpr int64_t kRowPadding = 16;
/// Vectors of a packing loop at once.
constexpr uint32_t kVectorUnroll = 4;

int64_t round_up(int64_t v, int64_t step) { return (v + step - 1) / step * step; }

}  // namespace

ValueId TiledAttention::scaled(ValueId v, int64_t factor) { return b_.mul(v, b_.index(factor)); }
ValueId TiledAttention::moved(ValueId v, int64_t offset) { return b_.add(v, b_.index(offset)); }

void TiledAttention::make_workspace() {
  s_.env = e_.unbound();
  s_.dtype = a_.pv->dtype;
  s_.head_dim = a_.head_dim->src[0]->imm;
  s_.width = a_.column->src[0]->imm;
  // Tiles may reach beyond the last element: what is there is never looked at.
  s_.lines = std::max(round_up(s_.width, p_.column_tile), round_up(s_.width, p_.lanes));
  s_.key_step = round_up(s_.head_dim, p_.lanes) + kRowPadding;
  s_.value_step = s_.lines + kRowPadding;
  s_.transposed_step = round_up(s_.width, p_.lanes) + kRowPadding;
  const auto array = [&](int64_t count) {
    return b_.add_local(s_.dtype, static_cast<uint64_t>(count));
  };
  s_.queries = array(p_.row_block * s_.head_dim);
  s_.keys = array(p_.key_block * s_.key_step);
  s_.values = array(p_.key_block * s_.value_step);
  s_.logits = array(p_.key_block * p_.query_tile());
  s_.results = array(p_.row_block * s_.lines);
  s_.row_max = array(p_.row_block);
  s_.row_sums = array(p_.row_block);
  s_.transposed = array(p_.query_tile() * s_.transposed_step);
  for (uint32_t i = 0; i < std::max(p_.key_tile, p_.column_tile) * p_.vectors; ++i)
    s_.accumulators.push_back(b_.add_register({s_.dtype, p_.lanes}));
}

Rewritten rewritten(const AttentionParts& a) {
  Rewritten out{a.kernel.get(), {a.query, a.keys, a.values, a.logit, a.row_sum, a.pv}};
  for (const Node* n : {a.causal_bound, a.unmasked_logit, a.edge_logit})
    if (n) out.roots.push_back(n);
  return out;
}

void lower_tiled_attention(Emitter& e) { TiledAttention(e).run(); }

void TiledAttention::run() {
  const Builder::Loop grid = b_.open_loop(e_.root(), LoopKind::kGrid);
  make_workspace();
  const ValueId extent = e_.emit(a_.row->src[0], s_.env), block_size = b_.index(p_.row_block);
  ValueId rest = grid.index;
  const ValueId blocks =
      e_.divide_index(Op::kDiv, moved(extent, p_.row_block - 1), block_size, false);
  s_.row = scaled(next_grid_digit(e_, &rest, blocks, a_.batch.empty()), p_.row_block);
  s_.env = bind_grid_batch(e_, rest, a_.batch, std::move(s_.env), grid.body);
  s_.rows = e_.min_index(b_.sub(extent, s_.row), block_size);
  const auto for_query_tiles = [&](BlockId parent, auto&& body) {
    const Builder::Loop query_tiles = b_.open_loop(parent);
    QueryTile query_tile{.at = query_tiles.index, .block = query_tiles.body};
    const ValueId query_tile_size = b_.index(p_.query_tile());
    query_tile.height = e_.min_index(b_.sub(s_.rows, query_tiles.index), query_tile_size);
    body(query_tile);
    b_.close_loop(query_tiles, b_.index(0), s_.rows, p_.query_tile());
  };
  for_query_tiles(grid.body, [&](const QueryTile& query_tile) { start_query_tile(query_tile); });
  const ValueId visible = visible_keys(s_.rows, grid.body);
  const Builder::Loop keys = b_.open_loop(grid.body);
  const ValueId most = b_.index(p_.key_block);
  const ValueId count = e_.min_index(b_.sub(visible, keys.index), most);
  pack_rows(a_.keys, a_.head_dim, s_.keys, s_.key_step, keys.index, count, keys.body);
  pack_rows(a_.values, a_.column, s_.values, s_.value_step, keys.index, count, keys.body);
  for_query_tiles(keys.body, [&](QueryTile query_tile) {
    query_tile.first_key = keys.index;
    query_tile.count = count;
    add_keys(query_tile);
  });
  b_.close_loop(keys, b_.index(0), visible, p_.key_block);
  for_query_tiles(grid.body, [&](const QueryTile& query_tile) { finish_query_tile(query_tile); });
  const ValueId begin = b_.bitcast(e_.program().block_begin, DType::kI64);
  b_.close_loop(grid, begin, b_.bitcast(e_.program().block_end, DType::kI64), 1);
}

/// Keys up to the last one that any of the block's first `rows` queries sees.
ValueId TiledAttention::visible_keys(ValueId rows, BlockId block) {
  const ValueId all = e_.emit(a_.key->src[0], s_.env);
  if (!a_.causal_bound) return all;
  const ValueId last = moved(b_.add(s_.row, rows), -1);
  return e_.min_index(all, causal_bound(last, block));
}

/// The first key that is masked for a query.
ValueId TiledAttention::causal_bound(ValueId row, BlockId block) {
  return e_.emit(a_.causal_bound, e_.bound(s_.env, a_.row, e_.make_bindings(row, block, 0, 1, 0)));
}

/// Code for query tiles whose queries all exist, and code for the last one.
void TiledAttention::split_tail(const QueryTile& query_tile,
                                const std::function<void(BlockId, bool)>& body) {
  const Node* extent = a_.row->src[0];
  if (extent->is_const() && extent->imm % p_.query_tile() == 0)
    return body(query_tile.block, false);
  const ValueId is_cut = b_.lt(query_tile.height, b_.index(p_.query_tile()));
  const ValueId is_whole = b_.negated(is_cut);
  for (const bool has_tail : {false, true})
    e_.branch(has_tail ? is_cut : is_whole, query_tile.block,
              [&](BlockId inside) { body(inside, has_tail); });
}

/// Packs the queries, transposed, and sets row maxima and row sums to those of nothing.
void TiledAttention::start_query_tile(const QueryTile& query_tile) {
  split_tail(query_tile, [&](BlockId inside, bool has_tail) {
    if (p_.is_transposed_in_registers && !has_tail)
      transpose_queries(query_tile, inside);
    else
      copy_queries(query_tile, inside);
  });
  const auto fill = [&](uint32_t array, int64_t step, double value) {
    const Builder::Loop loop = b_.open_loop(query_tile.block);
    const ValueId base = scaled(query_tile.at, step);
    const ValueId constant = b_.constant_f({s_.dtype, p_.lanes}, value);
    b_.local_store(loop.body, array, b_.add(base, loop.index), constant);
    b_.close_loop(loop, b_.index(0), b_.index(step * p_.query_tile()), p_.lanes);
  };
  fill(s_.results, s_.lines, 0);
  fill(s_.row_max, 1, -HUGE_VAL);
  fill(s_.row_sums, 1, 0);
}

/// Squares of as many queries as there are lanes, transposed in registers.
void TiledAttention::transpose_queries(const QueryTile& query_tile, BlockId block) {
  const Builder::Loop part = b_.open_loop(block);
  const Expr row = (Expr(b_, s_.row) + Expr(b_, query_tile.at)) + Expr(b_, part.index);
  const Instances rows = e_.bind_axis({s_.env}, a_.row, row, part.body, p_.lanes, 1, p_.lanes);
  const ValueId line = b_.add(scaled(query_tile.at, s_.head_dim), part.index);
  const auto run = [&](int64_t begin, int64_t end, uint32_t jam) {
    if (begin == end) return;
    const Builder::Loop loop = b_.open_loop(part.body);
    const Instances all = e_.bind_axis(rows, a_.head_dim, loop.index, loop.body, 1, jam, 1);
    const ValueId at = b_.add(line, scaled(loop.index, p_.query_tile()));
    const std::vector<ValueId> vectors = e_.emit_all(a_.query, all, p_.lanes);
    for (size_t i = 0; i < vectors.size(); ++i)
      b_.local_store(loop.body, s_.queries, moved(at, static_cast<int64_t>(i) * p_.query_tile()),
                     vectors[i]);
    b_.close_loop(loop, b_.index(begin), b_.index(end), jam);
  };
  const int64_t whole = s_.head_dim / p_.lanes * p_.lanes;
  run(0, whole, p_.lanes);
  run(whole, s_.head_dim, 1);
  b_.close_loop(part, b_.index(0), b_.index(p_.query_tile()), p_.lanes);
}

/// Element by element; queries that do not exist are zero.
void TiledAttention::copy_queries(const QueryTile& query_tile, BlockId block) {
  const ValueId base = scaled(query_tile.at, s_.head_dim);
  const Builder::Loop zero = b_.open_loop(block);
  const ValueId nothing = b_.constant_f({s_.dtype, p_.lanes}, 0);
  b_.local_store(zero.body, s_.queries, b_.add(base, zero.index), nothing);
  b_.close_loop(zero, b_.index(0), b_.index(s_.head_dim * p_.query_tile()), p_.lanes);
  const Builder::Loop rows = b_.open_loop(block);
  const Expr row = (Expr(b_, s_.row) + Expr(b_, query_tile.at)) + Expr(b_, rows.index);
  const Env env = e_.bound(s_.env, a_.row, e_.make_bindings(row, rows.body, 0, 1, 0));
  const ValueId line = b_.add(base, rows.index);
  const Builder::Loop loop = b_.open_loop(rows.body);
  const ValueId v = e_.emit(
      a_.query, e_.bound(env, a_.head_dim, e_.make_bindings(loop.index, loop.body, 0, 1, 0)));
  const ValueId at = b_.add(line, scaled(loop.index, p_.query_tile()));
  b_.local_store(loop.body, s_.queries, at, v);
  b_.close_loop(loop, b_.index(0), b_.index(s_.head_dim), 1);
  b_.close_loop(rows, b_.index(0), query_tile.height, 1);
}

/// Keys or values of a block, one after the other.
void TiledAttention::pack_rows(const Node* value, const Node* along, uint32_t array, int64_t step,
                               ValueId first, ValueId count, BlockId parent) {
  const Builder::Loop keys = b_.open_loop(parent);
  const ValueId key = b_.add(first, keys.index);
  const Env env = e_.bound(s_.env, a_.key, e_.make_bindings(key, keys.body, 0, 1, 0));
  const ValueId line = scaled(keys.index, step);
  const auto run = [&](int64_t begin, int64_t end, uint32_t lanes, uint32_t jam) {
    if (begin == end) return;
    const Builder::Loop loop = b_.open_loop(keys.body);
    const ValueId at = b_.add(line, loop.index);
    const Instances all = e_.bind_axis({env}, along, loop.index, loop.body, lanes, jam, lanes);
    for (size_t i = 0; i < all.size(); ++i) {
      const ValueId v = e_.splat(e_.emit(value, all[i]), lanes);
      b_.local_store(loop.body, array, moved(at, static_cast<int64_t>(i) * lanes), v);
    }
    b_.close_loop(loop, b_.index(begin), b_.index(end), int64_t{lanes} * jam);
  };
  const int64_t length = along->src[0]->imm, wide = int64_t{p_.lanes} * kVectorUnroll;
  const int64_t most = length / wide * wide, whole = length / p_.lanes * p_.lanes;
  run(0, most, p_.lanes, kVectorUnroll);
  run(most, whole, p_.lanes, 1);
  run(whole, length, 1, 1);
  b_.close_loop(keys, b_.index(0), count, 1);
}

}  // namespace bm::compiler
