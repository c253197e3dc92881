// Packing of A and B, and software prefetch of what will be packed.
#include <array>
#include <cstdlib>

#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {
namespace {

/// Iterations of a copying loop side by side.
constexpr uint32_t kPackUnroll = 4;
/// Of a byte; see PanelDot::flips_left.
constexpr int64_t kUpperBit = 0x80;
/// Bytes between rows from which on a loop over rows outruns the hardware's prefetchers.
constexpr int64_t kFarRow = 512;
/// Bytes that a stream is prefetched ahead.
constexpr int64_t kStreamAhead = 4096, kPackedStreamAhead = 2048;

}  // namespace

/// Panels of tile_columns() columns, step by step of K.
void PackedGemm::pack_b(const Contraction& c, ValueId first, ValueId trip_count, BlockId parent) {
  const PanelProduct& product = c.product;
  if (product.packs_b_on_the_fly && has_whole_tiles()) return;
  const Builder::Loop tiles = b_.open_loop(parent);
  const ValueId panel = b_.mul(tiles.index, b_.index(product.steps_block()));
  const auto copy = [&](BlockId inside, bool has_tail) {
    Packing state{c,
                  {.array = c.right,
                   .lanes = p_.lanes,
                   .spacing = p_.lanes,
                   .k = product.right_k[0],
                   .first = first,
                   .count = trip_count,
                   .inner_count = product.inner,
                   .at = panel,
                   .step = p_.tile_columns(),
                   .unroll = kPackUnroll}};
    const ValueId base = b_.add(block_.column, tiles.index);
    const bool is_single = product.right_copy == PanelCopy::kSingle ||
                           (has_tail && product.right_copy != PanelCopy::kVectors);
    Instances columns{block_.env};
    state.stage.value = has_tail && !is_single ? product.edge_right : product.right;
    if (!is_single) {
      const Node* column = has_tail ? p_.edge_column : p_.column;
      if (product.right_copy == PanelCopy::kTransposed) state.stage.unroll = p_.lanes;
      columns = e_.bind_axis(columns, column, base, inside, p_.lanes, p_.vectors, p_.lanes);
    } else {
      state.stage.lanes = 1;
      const Expr end(b_, block_.columns), start(b_, tiles.index);
      state.width = Expr(min(end - start, p_.tile_columns()));
      state.column = base;
    }
    for_inner_k(product.right_k, columns, inside,
                [&](const Instances& all, ValueId inner, BlockId body) {
                  pack_columns(state, inner, all, body);
                });
  };
  if (product.packs_b_on_the_fly)
    copy(tiles.body, true);
  else if (product.right_copy == PanelCopy::kSingle)
    copy(tiles.body, false);
  else
    split_tail(tiles.index, tiles.body, copy);
  if (product.dot && product.dot->flips_left)
    add_corrections(c, tiles.index, trip_count, tiles.body);
  ValueId begin = b_.index(0);
  if (product.packs_b_on_the_fly) {  // no more than the tile that is cut
    const Expr step(b_, b_.index(p_.tile_columns()));
    begin = Expr(Expr(b_, e_.divide_index(Op::kDiv, block_.columns, step, false)) * step);
  }
  b_.close_loop(tiles, begin, block_.columns, p_.tile_columns());
}

/// `body` for all iterations of the loops of K but the outermost one, with the number of each among
/// them. They are around that one, so that what only depends on them stays out of it.
void PackedGemm::for_inner_k(std::span<const Node* const> loops, const Instances& all,
                             BlockId parent,
                             const std::function<void(const Instances&, ValueId, BlockId)>& body,
                             ValueId inner) {
  if (inner == kNone) inner = b_.index(0);
  if (loops.size() == 1) return body(all, inner, parent);
  const int64_t extent = loops[1]->src[0]->imm;
  const Builder::Loop loop = b_.open_loop(parent);
  const uint32_t binding = e_.make_bindings(loop.index, loop.body, 0, 1, 0);
  Instances inside;
  for (const Env& env : all) inside.push_back(e_.bound(env, loops[1], binding));
  const Expr outer(b_, inner), at = outer * extent + Expr(b_, loop.index);
  for_inner_k(loops.subspan(1), inside, loop.body, body, at);
  b_.close_loop(loop, b_.index(0), b_.index(extent), 1);
}

void PackedGemm::pack_columns(const Packing& state, ValueId inner, const Instances& columns,
                              BlockId parent) {
  if (state.column != kNone) {
    // Column by column inside: few lines of a cache at a time.
    const Builder::Loop loop = b_.open_loop(parent);
    Packing one = state;
    one.stage.at = b_.add(state.stage.at, loop.index);
    one.column = kNone;
    const ValueId at = b_.add(state.column, loop.index);
    pack_columns(one, inner, {e_.bound_at(columns[0], p_.column, at, loop.body)}, loop.body);
    return b_.close_loop(loop, b_.index(0), state.width, 1);
  }
  if (state.c.product.dot) return pack_words(state, columns, parent);
  const VectorStage& stage = state.stage;
  stage_vectors(e_, stage, inner, columns, parent, [&](const Instances& all, BlockId body) {
    // Windows are read again for every position in them.
    if (stage.lanes > 1 && state.c.product.right_k.size() == 1)
      prefetch_rows_ahead(stage.value, all, stage.k, kRowsAhead, body);
  });
}

/// Prefetches what `value` loads in lanes `ahead` iterations of `k` from now, where the hardware
/// does not.
void PackedGemm::prefetch_rows_ahead(const Node* value, const Instances& all, const Node* k,
                                     int64_t ahead, BlockId body) {
  prefetch_loads(value, all, k, body,
                 [&](int64_t row_bytes) { return row_bytes < kFarRow ? 0 : ahead; });
}

/// One stream that is computed with as fast as memory gives it: the hardware's prefetchers stop at
/// the end of each page, and wait for memory once at the beginning of the next.
void PackedGemm::prefetch_stream(const Node* value, const Instances& all, const Node* k,
                                 BlockId body) {
  const int64_t bytes = p_.reads_b_once ? kStreamAhead : kPackedStreamAhead;
  prefetch_loads(value, all, k, body, [&](int64_t row_bytes) {
    return row_bytes == 0 || row_bytes >= kFarRow ? 0 : std::max<int64_t>(bytes / row_bytes, 1);
  });
}

/// `ahead`: so many iterations of `k` at so many bytes each; 0: none.
void PackedGemm::prefetch_loads(const Node* value, const Instances& all, const Node* k,
                                BlockId body, const std::function<int64_t(int64_t)>& ahead) {
  std::vector<std::pair<int64_t, ValueId>> rows;
  for (const Node* n : ir::topological({&value, 1})) {
    if (n->op != Op::kLoad) continue;
    const std::optional<int64_t> row = e_.strides(e_.number_of(k), 0).stride(n->src[0]);
    if (!row) continue;
    const int64_t steps = ahead(std::abs(*row) * item_size(n->dtype));
    if (steps == 0) continue;
    for (const Env& env : all) {
      const uint32_t vr = e_.vector_range(e_.dependencies(n), env);
      if (vr == kNone || e_.strides(vr, e_.binding(env[vr]).lanes).stride(n->src[0]) != 1) continue;
      // One request per cache line.
      if (e_.binding(env[vr]).offset * item_size(n->dtype) % b_.target().cache_line_bytes != 0)
        continue;
      Env first = env;
      first[vr] = e_.binding(env[vr]).first_lane;
      const ValueId at = e_.emit(n->src[0], first);
      rows.emplace_back(n->imm, b_.add(at, b_.index(*row * steps)));
    }
  }
  for (const auto& [param, at] : rows) b_.prefetch(body, static_cast<int>(param), at);
}

/// Asks for what pack_a will copy next: the rows of the tile below are shared out over the tiles
/// of this one's row, and each is prefetched as this one's K goes by.
void PackedGemm::prefetch_left(const PanelProduct& product, const Tile& tile, ValueId step,
                               BlockId body) {
  if (!p_.row || p_.is_transposed || product.left_lanes == 1) return;
  const int64_t tiles = p_.column_block / p_.tile_columns();
  const int64_t each = (p_.rows + tiles - 1) / tiles;
  const ValueId number = e_.divide_index(Op::kDiv, tile.column, b_.index(p_.tile_columns()), false);
  const Expr row = min(Expr(b_, number) * each, p_.rows - each) + p_.rows;
  const Expr block_row(b_, block_.row), tile_row(b_, tile.row);
  const Expr first_row = (block_row + tile_row) + row;
  const Instances rows =
      e_.bind_axis({block_.env}, p_.row, first_row, body, 1, static_cast<uint32_t>(each), 1);
  const Expr first(b_, tile.first), own(b_, step);
  const Expr k = first * product.inner + own * product.pack();
  const uint32_t binding = e_.make_bindings(k, body, 0, 1, 0);
  for (const Node* n : ir::topological({&product.left, 1})) {
    if (n->op != Op::kLoad || e_.strides(e_.number_of(product.left_k), 0).stride(n->src[0]) != 1)
      continue;
    for (const Env& env : rows)
      b_.prefetch(body, static_cast<int>(n->imm),
                  e_.emit(n->src[0], e_.bound(env, product.left_k, binding)));
  }
}

/// Row by row; rows that do not exist keep what was there, and their accumulators are never looked
/// at.
void PackedGemm::pack_a(const Contraction& c, ValueId first, ValueId row, ValueId height,
                        ValueId length, BlockId parent) {
  const PanelProduct& product = c.product;
  const Builder::Loop rows = b_.open_loop(parent);
  const Env env = row_of_tile(row, rows);
  const ValueId start = b_.mul(first, b_.index(product.inner));
  const ValueId line = b_.mul(rows.index, b_.index(c.row_step));
  in_steps(b_, b_.index(0), length, product.left_lanes,
           [&](ValueId begin, ValueId end, uint32_t lanes) {
             const Builder::Loop loop = b_.open_loop(rows.body);
             const ValueId base = b_.add(start, loop.index);
             const uint32_t binding = e_.make_bindings(base, loop.body, 0, lanes, 0);
             const ValueId v = e_.emit(product.left, e_.bound(env, product.left_k, binding));
             const bool is_flipped = product.dot && product.dot->flips_left;
             const ValueId number = is_flipped ? b_.bit_xor(v, b_.like_int(v, kUpperBit)) : v;
             b_.local_store(loop.body, c.left, b_.add(line, loop.index), e_.splat(number, lanes));
             b_.close_loop(loop, begin, end, lanes);
           });
  if (product.dot) fill_words(c, line, length, rows.body);
  b_.close_loop(rows, b_.index(0), height, 1);
}

}  // namespace bm::compiler
