// Packed GEMM for C whose adjacent elements are rows (column-major): A is packed in vectors along
// M, and tiles of C are transposed before they are stored.
#include <algorithm>
#include <array>

#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {
namespace {

/// Vectors of rows, and iterations of the depth, that are copied side by side.
constexpr uint32_t kVectors = 2, kCopies = 4;
/// Steps of a trip of multiply_tile.
constexpr int64_t kTrip = 4;

}  // namespace

/// Arrays in scratch. Steps of an odd number of vectors: those of a power of two would share few
/// sets of a cache.
void PackedGemm::place_transposed(const PanelProduct& product, Contraction* c) {
  // Vectors may begin at the last row of a tile or a line.
  const int64_t vectors = (p_.row_block + p_.lanes - 1) / p_.lanes + 1;
  c->row_step = (vectors | 1) * p_.lanes;
  const DType t = product.reduce->dtype;
  c->left = b_.add_local(t, static_cast<uint64_t>(product.depth_block() * c->row_step));
  c->transposed = b_.add_local(t, static_cast<uint64_t>(p_.column_block * c->row_step));
}

/// A block of the left operand, depth by depth.
void PackedGemm::pack_a_transposed(const Contraction& c, const Tile& tile, BlockId parent) {
  const PanelProduct& product = c.product;
  TransposedPacking copy{c};
  const ValueId inner = b_.index(product.line_inner);
  const ValueId first = b_.mul(tile.first, b_.index(product.inner));
  copy.first = e_.divide_index(Op::kDiv, first, inner, false);
  copy.trips = e_.divide_index(Op::kDiv, tile.length, inner, false);
  copy.at = b_.index(0);
  if (!product.line_outer) return pack_a_line(copy, block_.env, block_.row, block_.rows, parent);
  // In order: the last vector of a line reaches into the next.
  const ValueId extent = b_.index(product.line->src[0]->imm);
  const ValueId begin = e_.divide_index(Op::kDiv, block_.row, extent, false);
  const ValueId count = e_.divide_index(Op::kDiv, block_.rows, extent, false);
  const Builder::Loop lines = b_.open_loop(parent);
  const uint32_t line = e_.make_bindings(b_.add(begin, lines.index), lines.body, 0, 1, 0);
  copy.at = b_.mul(lines.index, extent);
  pack_a_line(copy, e_.bound(block_.env, product.line_outer, line), b_.index(0), extent,
              lines.body);
  b_.close_loop(lines, b_.index(0), count, 1);
}

void PackedGemm::pack_a_line(const TransposedPacking& copy, const Env& env, ValueId begin,
                             ValueId count, BlockId parent) {
  const auto run = [&](ValueId from, ValueId to, uint32_t vectors) {
    const Builder::Loop loop = b_.open_loop(parent);
    const ValueId base = b_.add(begin, loop.index);
    TransposedPacking here = copy;
    here.at = b_.add(copy.at, loop.index);
    const auto body = [&](BlockId inside, bool has_tail) {
      const Node* range = has_tail ? copy.c.product.edge_line : copy.c.product.line;
      here.value = has_tail ? copy.c.product.edge_left_line : copy.c.product.left_line;
      const Instances all = e_.bind_axis({env}, range, base, inside, p_.lanes, vectors, p_.lanes);
      pack_a_steps(here, all, 1, b_.index(0), inside);
    };
    const ValueId last = b_.add(loop.index, b_.index(int64_t{p_.lanes} - 1));
    if (vectors > 1 || copy.c.product.line->src[0]->imm % p_.lanes == 0)
      body(loop.body, false);
    else
      split_where(b_.lt(last, count), loop.body, body);
    b_.close_loop(loop, from, to, int64_t{vectors} * p_.lanes);
  };
  const ValueId rest = b_.bit_and(count, b_.index(int64_t{kVectors} * p_.lanes - 1));
  const ValueId whole = b_.sub(count, rest);
  run(b_.index(0), whole, kVectors);
  run(whole, count, 1);
}

/// Inner loops of the depth first: gates that only depend on them stay out of the first one.
void PackedGemm::pack_a_steps(const TransposedPacking& copy, const Instances& vectors, size_t level,
                              ValueId inner, BlockId parent) {
  const PanelProduct& product = copy.c.product;
  if (level < product.line_depth.size()) {
    return pack_along(product.line_depth[level], vectors, inner, parent,
                      [&](const Instances& inside, ValueId at, BlockId body) {
                        pack_a_steps(copy, inside, level + 1, at, body);
                      });
  }
  const auto run = [&](ValueId from, ValueId to, uint32_t copies) {
    const Builder::Loop loop = b_.open_loop(parent);
    const ValueId base = b_.add(copy.first, loop.index);
    const Instances all =
        e_.bind_axis(vectors, product.line_depth[0], base, loop.body, 1, copies, 1);
    const ValueId step = b_.add(b_.mul(loop.index, b_.index(product.line_inner)), inner);
    const ValueId at = b_.add(copy.at, b_.mul(step, b_.index(copy.c.row_step)));
    std::vector<ValueId> values;
    for (const Env& env : all) values.push_back(e_.splat(e_.emit(copy.value, env), p_.lanes));
    for (size_t i = 0; i < all.size(); ++i) {
      const auto vector = static_cast<int64_t>(i / copies),
                 later = static_cast<int64_t>(i % copies);
      const int64_t offset = later * product.line_inner * copy.c.row_step + vector * p_.lanes;
      b_.local_store(loop.body, copy.c.left, b_.add(at, b_.index(offset)), values[i]);
    }
    b_.close_loop(loop, from, to, copies);
  };
  const ValueId rest = b_.bit_and(copy.trips, b_.index(kCopies - 1));
  const ValueId whole = b_.sub(copy.trips, rest);
  run(b_.index(0), whole, kCopies);
  run(whole, copy.trips, 1);
}

/// One panel of the right operand stays in the first cache for all rows; meanwhile the next one is
/// asked for.
void PackedGemm::multiply_transposed(const Contraction& c, BlockId parent) {
  const PanelProduct& product = c.product;
  const KBlock k = open_k_block(c, parent);
  Tile tile = k.tile;
  pack_a_transposed(c, tile, k.loop.body);

  const Builder::Loop columns = b_.open_loop(k.loop.body), rows = b_.open_loop(columns.body);
  tile.row = rows.index;
  tile.column = columns.index;
  const ValueId line = b_.mul(rows.index, b_.index(p_.column_block));
  tile.sums =
      product.is_single ? b_.index(0) : b_.add(line, b_.mul(columns.index, b_.index(p_.rows)));
  if (product.reads_right) find_next_panel(product, rows.index, k.length, &tile);
  multiply_tile(c, tile, rows.body);
  spill_accumulators(c, tile, rows.body);
  if (product.is_single) {
    transpose_tile(c, tile, rows.body);
  } else {
    const BlockId last = b_.open_block(rows.body);
    const BlockId floor = b_.set_floor(last);
    transpose_tile(c, tile, last);
    b_.set_floor(floor);
    const ValueId next = b_.add(k.loop.index, b_.index(product.block));
    b_.close_if(last, b_.raw(Op::kNot, DType::kBool, {b_.lt(next, k.extent)}));
  }
  b_.close_loop(rows, b_.index(0), block_.rows, p_.rows);
  b_.close_loop(columns, b_.index(0), block_.columns, p_.tile_columns());
  b_.close_loop(k.loop, b_.index(0), k.extent, product.block);
}

/// Where the panel lies that is read after this one: of the next columns, after the last of them of
/// the next depth. The tiles of all rows share the asking, line by line in turn.
void PackedGemm::find_next_panel(const PanelProduct& product, ValueId rows, ValueId trips,
                                 Tile* tile) {
  const ValueId next = b_.add(tile->column, b_.index(p_.tile_columns()));
  const ValueId is_last = b_.raw(Op::kNot, DType::kBool, {b_.lt(next, block_.columns)});
  const ValueId zero = b_.index(0), next_depth = b_.add(tile->first, trips);
  const ValueId column = b_.add(block_.column, b_.select(is_last, zero, next));
  const ValueId depth = b_.select(is_last, next_depth, tile->first);
  Env env = e_.bound(block_.env, p_.column, e_.make_bindings(column, b_.block_of(column), 0, 1, 0));
  env = e_.bound(env, product.right_depth[0], e_.make_bindings(depth, b_.block_of(depth), 0, 1, 0));
  const ValueId first = e_.emit(product.right->src[0], env);
  const int64_t line = b_.target().cache_line_bytes / item_size(product.right->dtype),
                tiles = p_.row_block / p_.rows,
                trip = std::max<int64_t>(kTrip * p_.tile_columns() / line, 1);
  tile->lines = std::max<int64_t>((trip + tiles - 1) / tiles, 1);
  tile->parts = std::max<int64_t>(std::min(tiles, trip / tile->lines), 1);
  const ValueId number = e_.divide_index(Op::kDiv, rows, b_.index(p_.rows), false);
  const ValueId part = e_.divide_index(Op::kMod, number, b_.index(tile->parts), false);
  tile->ahead = b_.add(first, b_.mul(part, b_.index(tile->lines * line)));
}

/// The share of a trip of `steps` steps, into the second cache: the first one is full of what this
/// tile reads.
void PackedGemm::prefetch_panel(const PanelProduct& product, const Tile& tile,
                                const Builder::Loop& loop, int64_t steps) {
  const int64_t line = b_.target().cache_line_bytes / item_size(product.right->dtype);
  const int64_t apart = tile.parts * tile.lines * line / steps;
  const ValueId at = b_.add(tile.ahead, b_.mul(loop.index, b_.index(apart)));
  for (int64_t i = 0; i < tile.lines; ++i)
    b_.prefetch(loop.body, static_cast<int>(product.right->imm), b_.add(at, b_.index(i * line)),
                true);
}

/// The sums of a tile, row by row, to where those of its columns are. What lies beyond its rows is
/// overwritten by the next tile.
void PackedGemm::transpose_tile(const Contraction& c, const Tile& tile, BlockId parent) {
  const auto load = [&](uint32_t row, uint32_t vector) {
    const int64_t at = int64_t{row} * p_.tile_columns() + int64_t{vector} * p_.lanes;
    return b_.local_load(parent, c.sums, b_.add(tile.sums, b_.index(at)), p_.lanes);
  };
  for (uint32_t v = 0; v < p_.vectors; ++v)
    for (uint32_t first = 0; first < p_.rows; first += p_.lanes) {
      std::vector<ValueId> lines;
      for (uint32_t l = 0; l < p_.lanes; ++l)
        lines.push_back(first + l < p_.rows ? load(first + l, v) : lines.back());
      e_.transpose(&lines);
      for (uint32_t l = 0; l < p_.lanes; ++l) {
        const ValueId column = b_.add(tile.column, b_.index(int64_t{v} * p_.lanes + l));
        const ValueId row = b_.add(tile.row, b_.index(first));
        const ValueId at = b_.add(b_.mul(column, b_.index(c.row_step)), row);
        b_.local_store(parent, c.transposed, at, lines[l]);
      }
    }
}

/// The rest of the kernel for a block, column by column.
void PackedGemm::store_transposed(BlockId parent) {
  const Builder::Loop columns = b_.open_loop(parent);
  const ValueId column = b_.add(block_.column, columns.index);
  const Env env = e_.bound(block_.env, p_.column, e_.make_bindings(column, columns.body, 0, 1, 0));
  const auto run = [&](ValueId from, ValueId to, uint32_t vectors) {
    const Builder::Loop rows = b_.open_loop(columns.body);
    const ValueId base = b_.add(block_.row, rows.index);
    const ValueId at = b_.add(b_.mul(columns.index, b_.index(stores_[0].row_step)), rows.index);
    const auto body = [&](BlockId inside, bool has_tail) {
      const Node* range = has_tail ? p_.edge_row : p_.row;
      const Instances all = e_.bind_axis({env}, range, base, inside, p_.lanes, vectors, p_.lanes);
      for (size_t i = 0; i < p_.products.size(); ++i)
        for (uint32_t v = 0; v < vectors; ++v) {
          const ValueId place = b_.add(at, b_.index(int64_t{v} * p_.lanes));
          e_.set_known(has_tail ? p_.products[i].edge_reduce : p_.products[i].reduce, all[v],
                       b_.local_load(inside, stores_[i].transposed, place, p_.lanes));
        }
      e_.emit_stores(inside, all, has_tail ? p_.edge_stores : e_.kernel().stores);
    };
    const ValueId last = b_.add(rows.index, b_.index(int64_t{p_.lanes} - 1));
    if (vectors > 1 || p_.row->src[0]->imm % p_.lanes == 0)
      body(rows.body, false);
    else
      split_where(b_.lt(last, block_.rows), rows.body, body);
    b_.close_loop(rows, from, to, int64_t{vectors} * p_.lanes);
  };
  const ValueId rest = b_.bit_and(block_.rows, b_.index(int64_t{kVectors} * p_.lanes - 1));
  const ValueId whole = b_.sub(block_.rows, rest);
  run(b_.index(0), whole, kVectors);
  run(whole, block_.rows, 1);
  b_.close_loop(columns, b_.index(0), block_.columns, 1);
}

}  // namespace bm::compiler
