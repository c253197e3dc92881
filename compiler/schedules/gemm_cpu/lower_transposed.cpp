// Packed GEMM for C whose adjacent elements are rows (column-major): A is packed in vectors along
// M, and tiles of C are transposed before they are stored.
#include <algorithm>
#include <array>

#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {
namespace {

/// Vectors of rows, and iterations of K, that are copied side by side.
constexpr uint32_t kVectors = 2, kTransposeUnroll = 4;
/// Steps of an iteration of multiply_tile.
constexpr int64_t kSteps = 4;

}  // namespace

/// Arrays in scratch. Steps of an odd number of vectors: those of a power of two would share few
/// sets of a cache.
void PackedGemm::bind_transposed(const PanelProduct& product, Contraction* c) {
  // Vectors may begin at the last row of a tile or a line.
  const int64_t vectors = (p_.row_block + p_.lanes - 1) / p_.lanes + 1;
  c->row_step = (vectors | 1) * p_.lanes;
  const DType t = product.reduce->dtype;
  c->left = b_.add_local(t, static_cast<uint64_t>(product.k_block() * c->row_step));
  c->transposed = b_.add_local(t, static_cast<uint64_t>(p_.column_block * c->row_step));
}

/// A block of A, step by step of K.
void PackedGemm::pack_a_transposed(const Contraction& c, const Tile& tile, BlockId parent) {
  const PanelProduct& product = c.product;
  const ValueId inner = b_.index(product.line_inner);
  const ValueId first = b_.mul(tile.first, b_.index(product.inner));
  VectorStage stage{.array = c.left,
                    .lanes = p_.lanes,
                    .spacing = p_.lanes,
                    .k = product.line_k[0],
                    .first = e_.divide_index(Op::kDiv, first, inner, false),
                    .count = e_.divide_index(Op::kDiv, tile.length, inner, false),
                    .inner_count = product.line_inner,
                    .at = b_.index(0),
                    .step = c.row_step,
                    .unroll = kTransposeUnroll};
  if (!product.line_outer)
    return pack_a_line(product, stage, block_.env, block_.row, block_.rows, parent);
  // In order: the last vector of a line reaches into the next.
  const ValueId extent = b_.index(product.line->src[0]->imm);
  const ValueId begin = e_.divide_index(Op::kDiv, block_.row, extent, false);
  const ValueId count = e_.divide_index(Op::kDiv, block_.rows, extent, false);
  const Builder::Loop lines = b_.open_loop(parent);
  const uint32_t line = e_.make_bindings(b_.add(begin, lines.index), lines.body, 0, 1, 0);
  stage.at = b_.mul(lines.index, extent);
  pack_a_line(product, stage, e_.bound(block_.env, product.line_outer, line), b_.index(0), extent,
              lines.body);
  b_.close_loop(lines, b_.index(0), count, 1);
}

void PackedGemm::pack_a_line(const PanelProduct& product, const VectorStage& line, const Env& env,
                             ValueId begin, ValueId count, BlockId parent) {
  in_steps(b_, b_.index(0), count, kVectors * p_.lanes, [&](ValueId from, ValueId to, uint32_t by) {
    const uint32_t vectors = by > 1 ? kVectors : 1;
    const Builder::Loop loop = b_.open_loop(parent);
    const ValueId base = b_.add(begin, loop.index);
    VectorStage here = line;
    here.at = b_.add(line.at, loop.index);
    split_rows(loop, vectors, product.line, count, [&](BlockId inside, bool has_tail) {
      const Node* range = has_tail ? product.edge_line : product.line;
      here.value = has_tail ? product.edge_left_line : product.left_line;
      const Instances all = e_.bind_axis({env}, range, base, inside, p_.lanes, vectors, p_.lanes);
      for_inner_k(product.line_k, all, inside,
                  [&](const Instances& bound, ValueId inner, BlockId body) {
                    stage_vectors(e_, here, inner, bound, body);
                  });
    });
    b_.close_loop(loop, from, to, int64_t{vectors} * p_.lanes);
  });
}

/// The body of a loop over `count` rows of `range`, where a vector alone may reach beyond the last.
void PackedGemm::split_rows(const Builder::Loop& loop, uint32_t vectors, const Node* range,
                            ValueId count, const SplitBody& body) {
  const ValueId last = b_.add(loop.index, b_.index(int64_t{p_.lanes} - 1));
  if (vectors > 1 || range->src[0]->imm % p_.lanes == 0) return body(loop.body, false);
  split_where(b_.lt(last, count), loop.body, body);
}

/// One panel of B stays in L1 for all rows; meanwhile the next one is
/// prefetched.
void PackedGemm::multiply_transposed(const Contraction& c, BlockId parent) {
  const PanelProduct& product = c.product;
  const KBlock k = open_k_block(c, parent);
  Tile tile = k.tile;
  pack_a_transposed(c, tile, k.loop.body);

  const Builder::Loop columns = b_.open_loop(k.loop.body), rows = b_.open_loop(columns.body);
  tile.row = rows.index;
  tile.column = columns.index;
  const Expr row(b_, rows.index), line = row * p_.column_block;
  tile.accumulators =
      product.is_single ? b_.index(0) : Expr(line + Expr(b_, columns.index) * p_.rows);
  if (product.reads_b_in_place) find_next_panel(product, rows.index, k.length, &tile);
  multiply_tile(c, tile, rows.body);
  spill_vectors(b_, rows.body, c.accumulators, tile.accumulators, c.registers);
  if (product.is_single) {
    transpose_tile(c, tile, rows.body);
  } else {
    const BlockId last = b_.open_block(rows.body);
    const BlockId floor = b_.set_floor(last);
    transpose_tile(c, tile, last);
    b_.set_floor(floor);
    const Expr is_last = !(Expr(b_, k.loop.index) + product.block < Expr(b_, k.extent));
    b_.close_if(last, is_last);
  }
  b_.close_loop(rows, b_.index(0), block_.rows, p_.rows);
  b_.close_loop(columns, b_.index(0), block_.columns, p_.tile_columns());
  b_.close_loop(k.loop, b_.index(0), k.extent, product.block);
}

/// Where the panel lies that is read after this one: of the next columns, after the last of them of
/// the next block of K. The tiles of all rows share the asking, line by line in turn.
void PackedGemm::find_next_panel(const PanelProduct& product, ValueId rows, ValueId trip_count,
                                 Tile* tile) {
  const Expr next = Expr(b_, tile->column) + p_.tile_columns();
  const Expr is_last = !(next < Expr(b_, block_.columns));
  const Expr first_k(b_, tile->first), zero(b_, b_.index(0));
  const Expr next_k = first_k + Expr(b_, trip_count);
  const Expr column = Expr(b_, block_.column) + select(is_last, zero, next);
  const Expr k = select(is_last, next_k, first_k);
  Env env = e_.bound(block_.env, p_.column, e_.make_bindings(column, b_.block_of(column), 0, 1, 0));
  env = e_.bound(env, product.right_k[0], e_.make_bindings(k, b_.block_of(k), 0, 1, 0));
  const ValueId first = e_.emit(product.right->src[0], env);
  const int64_t line = b_.target().cache_line_bytes / item_size(product.right->dtype),
                tiles = p_.row_block / p_.rows,
                lines = std::max<int64_t>(kSteps * p_.tile_columns() / line, 1);
  tile->lines = std::max<int64_t>((lines + tiles - 1) / tiles, 1);
  tile->parts = std::max<int64_t>(std::min(tiles, lines / tile->lines), 1);
  const ValueId number = e_.divide_index(Op::kDiv, rows, b_.index(p_.rows), false);
  const ValueId part = e_.divide_index(Op::kMod, number, b_.index(tile->parts), false);
  tile->ahead = Expr(Expr(b_, first) + Expr(b_, part) * (tile->lines * line));
}

/// The share of an iteration of `steps` steps, into L2: the first one is full of what
/// this tile reads.
void PackedGemm::prefetch_panel(const PanelProduct& product, const Tile& tile,
                                const Builder::Loop& loop, int64_t steps) {
  const int64_t line = b_.target().cache_line_bytes / item_size(product.right->dtype);
  const int64_t apart = tile.parts * tile.lines * line / steps;
  const Expr ahead(b_, tile.ahead), at = ahead + Expr(b_, loop.index) * apart;
  for (int64_t i = 0; i < tile.lines; ++i)
    b_.prefetch(loop.body, static_cast<int>(product.right->imm), Expr(at + i * line), true);
}

/// The accumulators of a tile, row by row, to where those of its columns are. What lies beyond its
/// rows is overwritten by the next tile.
void PackedGemm::transpose_tile(const Contraction& c, const Tile& tile, BlockId parent) {
  const Expr tile_row(b_, tile.row), tile_column(b_, tile.column);
  const auto load = [&](uint32_t row, uint32_t vector) {
    const int64_t at = int64_t{row} * p_.tile_columns() + int64_t{vector} * p_.lanes;
    return b_.local_load(parent, c.accumulators, b_.add(tile.accumulators, b_.index(at)), p_.lanes);
  };
  for (uint32_t v = 0; v < p_.vectors; ++v)
    for (uint32_t first = 0; first < p_.rows; first += p_.lanes) {
      std::vector<ValueId> lines;
      for (uint32_t l = 0; l < p_.lanes; ++l)
        lines.push_back(first + l < p_.rows ? load(first + l, v) : lines.back());
      e_.transpose(&lines);
      for (uint32_t l = 0; l < p_.lanes; ++l) {
        const Expr column = tile_column + (int64_t{v} * p_.lanes + l), row = tile_row + first;
        b_.local_store(parent, c.transposed, Expr(column * c.row_step + row), lines[l]);
      }
    }
}

/// The rest of the kernel for a block, column by column.
void PackedGemm::store_transposed(BlockId parent) {
  const Builder::Loop columns = b_.open_loop(parent);
  const ValueId column = b_.add(block_.column, columns.index);
  const Env env = e_.bound(block_.env, p_.column, e_.make_bindings(column, columns.body, 0, 1, 0));
  in_steps(b_, b_.index(0), block_.rows, kVectors * p_.lanes,
           [&](ValueId from, ValueId to, uint32_t by) {
             const uint32_t vectors = by > 1 ? kVectors : 1;
             const Builder::Loop rows = b_.open_loop(columns.body);
             const ValueId base = b_.add(block_.row, rows.index);
             const Expr line = Expr(b_, columns.index) * stores_[0].row_step;
             const ValueId at = b_.add(line, rows.index);
             split_rows(rows, vectors, p_.row, block_.rows, [&](BlockId inside, bool has_tail) {
               const Instances all = e_.bind_axis({env}, has_tail ? p_.edge_row : p_.row, base,
                                                  inside, p_.lanes, vectors, p_.lanes);
               const auto from_line = [&](size_t) { return at; };
               store_line(all, &Contraction::transposed, from_line, has_tail, inside);
             });
             b_.close_loop(rows, from, to, int64_t{vectors} * p_.lanes);
           });
  b_.close_loop(columns, b_.index(0), block_.columns, 1);
}

}  // namespace bm::compiler
