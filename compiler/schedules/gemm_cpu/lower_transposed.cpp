// Panels whose results lie along the rows: left operands in vectors of rows, sums turned at the
// end.
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
void Emitter::place_turned(const PanelProduct& product, PanelStore* s) {
  const PanelPlan& p = *schedule_.panels();
  // Vectors may begin at the last row of a tile or a line.
  const int64_t vectors = (p.row_block + p.lanes - 1) / p.lanes + 1;
  s->row_step = (vectors | 1) * p.lanes;
  const DType t = product.reduce->dtype;
  s->left = b_.add_local(t, static_cast<uint64_t>(product.depth_block() * s->row_step));
  s->turned = b_.add_local(t, static_cast<uint64_t>(p.column_block * s->row_step));
}

/// A block of the left operand, depth by depth.
void Emitter::copy_turned(const PanelBlock& block, const PanelProduct& product, const PanelStore& s,
                          const PanelTile& tile, BlockId parent) {
  TurnedCopy copy{product, s};
  const ValueId inner = b_.index(product.line_inner);
  const ValueId first = b_.mul(tile.first, b_.index(product.inner));
  copy.first = divide_index(Op::kDiv, first, inner, false);
  copy.trips = divide_index(Op::kDiv, tile.length, inner, false);
  copy.at = b_.index(0);
  if (!product.line_outer) return copy_line(copy, block.env, block.row, block.rows, parent);
  // In order: the last vector of a line reaches into the next.
  const ValueId extent = b_.index(product.line->src[0]->imm);
  const ValueId begin = divide_index(Op::kDiv, block.row, extent, false);
  const ValueId count = divide_index(Op::kDiv, block.rows, extent, false);
  const Builder::Loop lines = b_.open_loop(parent);
  const uint32_t line = make_bindings(b_.add(begin, lines.index), lines.body, 0, 1, 0);
  copy.at = b_.mul(lines.index, extent);
  copy_line(copy, bound(block.env, product.line_outer, line), b_.index(0), extent, lines.body);
  b_.close_loop(lines, b_.index(0), count, 1);
}

void Emitter::copy_line(const TurnedCopy& copy, const Env& env, ValueId begin, ValueId count,
                        BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const auto run = [&](ValueId from, ValueId to, uint32_t vectors) {
    const Builder::Loop loop = b_.open_loop(parent);
    const ValueId base = b_.add(begin, loop.index);
    TurnedCopy here = copy;
    here.at = b_.add(copy.at, loop.index);
    const auto body = [&](BlockId inside, bool is_edge) {
      const Node* range = is_edge ? copy.product.edge_line : copy.product.line;
      here.value = is_edge ? copy.product.edge_left_line : copy.product.left_line;
      const Instances all = bind_axis({env}, range, base, inside, p.lanes, vectors, p.lanes);
      copy_steps(here, all, 1, b_.index(0), inside);
    };
    const ValueId last = b_.add(loop.index, b_.index(int64_t{p.lanes} - 1));
    if (vectors > 1 || copy.product.line->src[0]->imm % p.lanes == 0)
      body(loop.body, false);
    else
      split_where(b_.lt(last, count), loop.body, body);
    b_.close_loop(loop, from, to, int64_t{vectors} * p.lanes);
  };
  const ValueId rest = b_.bit_and(count, b_.index(int64_t{kVectors} * p.lanes - 1));
  const ValueId whole = b_.sub(count, rest);
  run(b_.index(0), whole, kVectors);
  run(whole, count, 1);
}

/// Inner loops of the depth first: gates that only depend on them stay out of the first one.
void Emitter::copy_steps(const TurnedCopy& copy, const Instances& vectors, size_t level,
                         ValueId inner, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const PanelProduct& product = copy.product;
  if (level < product.line_depth.size()) {
    const Node* range = product.line_depth[level];
    const int64_t extent = range->src[0]->imm;
    const Builder::Loop loop = b_.open_loop(parent);
    const uint32_t binding = make_bindings(loop.index, loop.body, 0, 1, 0);
    Instances inside;
    for (const Env& env : vectors) inside.push_back(bound(env, range, binding));
    const ValueId at = b_.add(b_.mul(inner, b_.index(extent)), loop.index);
    copy_steps(copy, inside, level + 1, at, loop.body);
    return b_.close_loop(loop, b_.index(0), b_.index(extent), 1);
  }
  const auto run = [&](ValueId from, ValueId to, uint32_t copies) {
    const Builder::Loop loop = b_.open_loop(parent);
    const ValueId base = b_.add(copy.first, loop.index);
    const Instances all = bind_axis(vectors, product.line_depth[0], base, loop.body, 1, copies, 1);
    const ValueId step = b_.add(b_.mul(loop.index, b_.index(product.line_inner)), inner);
    const ValueId at = b_.add(copy.at, b_.mul(step, b_.index(copy.store.row_step)));
    std::vector<ValueId> values;
    for (const Env& env : all) values.push_back(spread(emit(copy.value, env), p.lanes));
    for (size_t i = 0; i < all.size(); ++i) {
      const auto vector = static_cast<int64_t>(i / copies),
                 later = static_cast<int64_t>(i % copies);
      const int64_t offset = later * product.line_inner * copy.store.row_step + vector * p.lanes;
      b_.local_store(loop.body, copy.store.left, b_.add(at, b_.index(offset)), values[i]);
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
void Emitter::multiply_turned(const PanelBlock& block, const PanelStore& s,
                              const PanelProduct& product, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const ValueId extent = emit(product.right_depth[0]->src[0], block.env);
  const Builder::Loop depth = b_.open_loop(parent);
  const std::array sizes{b_.sub(extent, depth.index), b_.index(product.block)};
  const ValueId trips = b_.alu(Op::kMin, DType::kI64, sizes);
  PanelTile tile;
  tile.first = depth.index;
  tile.length = b_.mul(trips, b_.index(product.inner));
  if (!product.reads_right) copy_right(block, product, s, depth.index, trips, depth.body);
  copy_turned(block, product, s, tile, depth.body);

  const Builder::Loop columns = b_.open_loop(depth.body), rows = b_.open_loop(columns.body);
  tile.row = rows.index;
  tile.column = columns.index;
  const ValueId line = b_.mul(rows.index, b_.index(p.column_block));
  tile.sums =
      product.is_single ? b_.index(0) : b_.add(line, b_.mul(columns.index, b_.index(p.rows)));
  if (product.reads_right) look_ahead(block, product, rows.index, trips, &tile);
  multiply_tile(block, product, s, tile, rows.body);
  keep_sums(s, tile, rows.body);
  if (product.is_single) {
    turn_tile(s, tile, rows.body);
  } else {
    const BlockId last = b_.open_block(rows.body);
    const BlockId floor = b_.set_floor(last);
    turn_tile(s, tile, last);
    b_.set_floor(floor);
    const ValueId next = b_.add(depth.index, b_.index(product.block));
    b_.close_if(last, b_.raw(Op::kNot, DType::kBool, {b_.lt(next, extent)}));
  }
  b_.close_loop(rows, b_.index(0), block.rows, p.rows);
  b_.close_loop(columns, b_.index(0), block.columns, p.tile_columns());
  b_.close_loop(depth, b_.index(0), extent, product.block);
}

/// Where the panel lies that is read after this one: of the next columns, after the last of them of
/// the next depth. The tiles of all rows share the asking, line by line in turn.
void Emitter::look_ahead(const PanelBlock& block, const PanelProduct& product, ValueId rows,
                         ValueId trips, PanelTile* tile) {
  const PanelPlan& p = *schedule_.panels();
  const ValueId next = b_.add(tile->column, b_.index(p.tile_columns()));
  const ValueId is_last = b_.raw(Op::kNot, DType::kBool, {b_.lt(next, block.columns)});
  const std::array columns{is_last, b_.index(0), next},
      depths{is_last, b_.add(tile->first, trips), tile->first};
  const ValueId column = b_.add(block.column, b_.alu(Op::kSelect, DType::kI64, columns));
  const ValueId depth = b_.alu(Op::kSelect, DType::kI64, depths);
  Env env = bound(block.env, p.column, make_bindings(column, b_.block_of(column), 0, 1, 0));
  env = bound(env, product.right_depth[0], make_bindings(depth, b_.block_of(depth), 0, 1, 0));
  const ValueId first = emit(product.right->src[0], env);
  const int64_t line = b_.target().cache_line_bytes / item_size(product.right->dtype),
                tiles = p.row_block / p.rows,
                trip = std::max<int64_t>(kTrip * p.tile_columns() / line, 1);
  tile->lines = std::max<int64_t>((trip + tiles - 1) / tiles, 1);
  tile->parts = std::max<int64_t>(std::min(tiles, trip / tile->lines), 1);
  const ValueId number = divide_index(Op::kDiv, rows, b_.index(p.rows), false);
  const ValueId part = divide_index(Op::kMod, number, b_.index(tile->parts), false);
  tile->ahead = b_.add(first, b_.mul(part, b_.index(tile->lines * line)));
}

/// The share of a trip of `steps` steps, into the second cache: the first one is full of what this
/// tile reads.
void Emitter::prefetch_panel(const PanelProduct& product, const PanelTile& tile,
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
void Emitter::turn_tile(const PanelStore& s, const PanelTile& tile, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const auto load = [&](uint32_t row, uint32_t vector) {
    const int64_t at = int64_t{row} * p.tile_columns() + int64_t{vector} * p.lanes;
    return b_.local_load(parent, s.sums, b_.add(tile.sums, b_.index(at)), p.lanes);
  };
  for (uint32_t v = 0; v < p.vectors; ++v)
    for (uint32_t first = 0; first < p.rows; first += p.lanes) {
      std::vector<ValueId> lines;
      for (uint32_t l = 0; l < p.lanes; ++l)
        lines.push_back(first + l < p.rows ? load(first + l, v) : lines.back());
      transpose(&lines);
      for (uint32_t l = 0; l < p.lanes; ++l) {
        const ValueId column = b_.add(tile.column, b_.index(int64_t{v} * p.lanes + l));
        const ValueId row = b_.add(tile.row, b_.index(first));
        const ValueId at = b_.add(b_.mul(column, b_.index(s.row_step)), row);
        b_.local_store(parent, s.turned, at, lines[l]);
      }
    }
}

/// The rest of the kernel for a block, column by column.
void Emitter::store_turned(const PanelBlock& block, const std::vector<PanelStore>& stores,
                           BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const Builder::Loop columns = b_.open_loop(parent);
  const ValueId column = b_.add(block.column, columns.index);
  const Env env = bound(block.env, p.column, make_bindings(column, columns.body, 0, 1, 0));
  const auto run = [&](ValueId from, ValueId to, uint32_t vectors) {
    const Builder::Loop rows = b_.open_loop(columns.body);
    const ValueId base = b_.add(block.row, rows.index);
    const ValueId at = b_.add(b_.mul(columns.index, b_.index(stores[0].row_step)), rows.index);
    const auto body = [&](BlockId inside, bool is_edge) {
      const Node* range = is_edge ? p.edge_row : p.row;
      const Instances all = bind_axis({env}, range, base, inside, p.lanes, vectors, p.lanes);
      for (size_t i = 0; i < p.products.size(); ++i)
        for (uint32_t v = 0; v < vectors; ++v) {
          const ValueId place = b_.add(at, b_.index(int64_t{v} * p.lanes));
          memo_[key(is_edge ? p.products[i].edge_reduce : p.products[i].reduce, all[v])] =
              b_.local_load(inside, stores[i].turned, place, p.lanes);
        }
      emit_stores(inside, all, is_edge ? p.edge_stores : kernel_.stores);
    };
    const ValueId last = b_.add(rows.index, b_.index(int64_t{p.lanes} - 1));
    if (vectors > 1 || p.row->src[0]->imm % p.lanes == 0)
      body(rows.body, false);
    else
      split_where(b_.lt(last, block.rows), rows.body, body);
    b_.close_loop(rows, from, to, int64_t{vectors} * p.lanes);
  };
  const ValueId rest = b_.bit_and(block.rows, b_.index(int64_t{kVectors} * p.lanes - 1));
  const ValueId whole = b_.sub(block.rows, rest);
  run(b_.index(0), whole, kVectors);
  run(whole, block.rows, 1);
  b_.close_loop(columns, b_.index(0), block.columns, 1);
}

}  // namespace bm::compiler
