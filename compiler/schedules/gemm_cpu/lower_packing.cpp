// Copies of the operands of panels.
#include <array>
#include <cstdlib>

#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {
namespace {

/// Iterations of a copying loop side by side.
constexpr uint32_t kCopies = 4;
/// Of a byte; see PanelDot::flips_left.
constexpr int64_t kUpperBit = 0x80;
/// Bytes between rows from which on a loop over rows outruns the hardware's prefetchers.
constexpr int64_t kFarRow = 512;

}  // namespace

/// Panels of tile_columns() columns, depth by depth.
void Emitter::copy_right(const PanelBlock& block, const PanelProduct& product, const PanelStore& s,
                         ValueId first, ValueId trips, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  if (product.copies_along && has_whole_tiles()) return;
  const Builder::Loop tiles = b_.open_loop(parent);
  const ValueId panel = b_.mul(tiles.index, b_.index(product.steps_block()));
  const auto copy = [&](BlockId inside, bool is_edge) {
    PanelCopyState state{product, s, first, trips, panel};
    const ValueId base = b_.add(block.column, tiles.index);
    const bool is_single = product.right_copy == PanelCopy::kSingle ||
                           (is_edge && product.right_copy != PanelCopy::kVectors);
    if (!is_single) {
      const Node* column = is_edge ? p.edge_column : p.column;
      state.value = is_edge ? product.edge_right : product.right;
      state.copies = product.right_copy == PanelCopy::kTransposed ? p.lanes : kCopies;
      const Instances columns =
          bind_axis({block.env}, column, base, inside, p.lanes, p.vectors, p.lanes);
      return copy_depth(state, columns, inside, 1, b_.index(0));
    }
    state.value = product.right;
    state.copies = kCopies;
    const std::array widths{b_.sub(block.columns, tiles.index), b_.index(p.tile_columns())};
    state.width = b_.alu(Op::kMin, DType::kI64, widths);
    state.column = base;
    copy_depth(state, {block.env}, inside, 1, b_.index(0));
  };
  if (product.copies_along)
    copy(tiles.body, true);
  else if (product.right_copy == PanelCopy::kSingle)
    copy(tiles.body, false);
  else
    split_edge(tiles.index, block, tiles.body, copy);
  if (product.dot && product.dot->flips_left) sum_panel(product, s, tiles.index, trips, tiles.body);
  ValueId begin = b_.index(0);
  if (product.copies_along) {  // no more than the tile that is cut
    const ValueId step = b_.index(p.tile_columns());
    begin = b_.mul(divide_index(Op::kDiv, block.columns, step, false), step);
  }
  b_.close_loop(tiles, begin, block.columns, p.tile_columns());
}

/// Inner loops of the depth first, so that what only depends on them stays out of the first one.
void Emitter::copy_depth(const PanelCopyState& state, const Instances& columns, BlockId parent,
                         size_t level, ValueId inner) {
  const auto copy = [&](const PanelCopyState& what, const Instances& where, BlockId inside) {
    return what.product.dot ? copy_words(what, where, inside)
                            : copy_lines(what, where, inside, inner);
  };
  if (level == state.product.right_depth.size()) {
    if (state.column == kNone) return copy(state, columns, parent);
    // Column by column inside: few lines of a cache at a time.
    const Builder::Loop loop = b_.open_loop(parent);
    PanelCopyState one = state;
    one.panel = b_.add(state.panel, loop.index);
    const ValueId at = b_.add(state.column, loop.index);
    const uint32_t binding = make_bindings(at, loop.body, 0, 1, 0);
    copy(one, {bound(columns[0], schedule_.panels()->column, binding)}, loop.body);
    return b_.close_loop(loop, b_.index(0), state.width, 1);
  }
  const Node* range = state.product.right_depth[level];
  const int64_t extent = range->src[0]->imm;
  const Builder::Loop loop = b_.open_loop(parent);
  const uint32_t binding = make_bindings(loop.index, loop.body, 0, 1, 0);
  Instances inside;
  for (const Env& env : columns) inside.push_back(bound(env, range, binding));
  const ValueId at = b_.add(b_.mul(inner, b_.index(extent)), loop.index);
  copy_depth(state, inside, loop.body, level + 1, at);
  b_.close_loop(loop, b_.index(0), b_.index(extent), 1);
}

void Emitter::copy_lines(const PanelCopyState& state, const Instances& columns, BlockId parent,
                         ValueId inner) {
  const PanelPlan& p = *schedule_.panels();
  const uint32_t number =
      number_of(state.value == state.product.edge_right ? p.edge_column : p.column);
  const uint32_t lanes = bindings_[columns[0][number]].lanes;
  const auto run = [&](ValueId begin, ValueId end, uint32_t jam) {
    const Builder::Loop loop = b_.open_loop(parent);
    const ValueId base = b_.add(state.first, loop.index);
    const Instances all =
        bind_axis(columns, state.product.right_depth[0], base, loop.body, 1, jam, 1);
    const ValueId depth = b_.add(b_.mul(loop.index, b_.index(state.product.inner)), inner);
    const ValueId at = b_.add(state.panel, b_.mul(depth, b_.index(p.tile_columns())));
    instances_ = &all;
    std::vector<ValueId> vectors;
    for (const Env& env : all) vectors.push_back(spread(emit(state.value, env), lanes));
    instances_ = nullptr;
    // Windows are read again for every place in them.
    if (lanes > 1 && state.product.right_depth.size() == 1)
      prefetch_rows_ahead(state.value, all, state.product.right_depth[0], kRowsAhead, loop.body);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto vector = static_cast<int64_t>(i / jam), copy = static_cast<int64_t>(i % jam);
      const int64_t offset = copy * state.product.inner * p.tile_columns() + vector * p.lanes;
      b_.local_store(loop.body, state.store.right, b_.add(at, b_.index(offset)), vectors[i]);
    }
    b_.close_loop(loop, begin, end, jam);
  };
  const ValueId rest = b_.bit_and(state.trips, b_.index(state.copies - 1));
  const ValueId whole = b_.sub(state.trips, rest);
  run(b_.index(0), whole, state.copies);
  run(whole, state.trips, 1);
}

/// Asks for what `value` loads in lanes `ahead` iterations of `depth` from now.
void Emitter::prefetch_rows_ahead(const Node* value, const Instances& all, const Node* depth,
                                  int64_t ahead, BlockId body) {
  std::vector<std::pair<int64_t, ValueId>> rows;
  for (const Node* n : ir::topological({&value, 1})) {
    if (n->op != Op::kLoad) continue;
    const std::optional<int64_t> row = strides(number_of(depth), 0).stride(n->src[0]);
    if (!row || std::abs(*row) * item_size(n->dtype) < kFarRow) continue;
    for (const Env& env : all) {
      const uint32_t vr = vector_range(dependencies(n), env);
      if (vr == kNone || strides(vr, bindings_[env[vr]].lanes).stride(n->src[0]) != 1) continue;
      // One request per cache line.
      if (bindings_[env[vr]].offset * item_size(n->dtype) % b_.target().cache_line_bytes != 0)
        continue;
      Env first = env;
      first[vr] = bindings_[env[vr]].first_lane;
      const ValueId at = emit(n->src[0], first);
      rows.emplace_back(n->imm, b_.add(at, b_.index(*row * ahead)));
    }
  }
  for (const auto& [param, at] : rows) b_.prefetch(body, static_cast<int>(param), at);
}

/// Asks for what copy_left will copy next: the rows of the tile below are shared out over the tiles
/// of this one's row, and each is asked for as this one's depth goes by.
void Emitter::prefetch_left(const PanelBlock& block, const PanelProduct& product,
                            const PanelTile& tile, ValueId step, BlockId body) {
  const PanelPlan& p = *schedule_.panels();
  if (!p.row || p.is_turned || product.left_lanes == 1) return;
  const int64_t tiles = p.column_block / p.tile_columns();
  const int64_t each = (p.rows + tiles - 1) / tiles;
  const ValueId number = divide_index(Op::kDiv, tile.column, b_.index(p.tile_columns()), false);
  const std::array last{b_.mul(number, b_.index(each)), b_.index(p.rows - each)};
  const ValueId row = b_.add(b_.alu(Op::kMin, DType::kI64, last), b_.index(p.rows));
  const Instances rows = bind_axis({block.env}, p.row, b_.add(b_.add(block.row, tile.row), row),
                                   body, 1, static_cast<uint32_t>(each), 1);
  const ValueId start = b_.mul(tile.first, b_.index(product.inner));
  const ValueId depth = b_.add(start, b_.mul(step, b_.index(product.pack())));
  const uint32_t binding = make_bindings(depth, body, 0, 1, 0);
  for (const Node* n : ir::topological({&product.left, 1})) {
    if (n->op != Op::kLoad || strides(number_of(product.left_depth), 0).stride(n->src[0]) != 1)
      continue;
    for (const Env& env : rows)
      b_.prefetch(body, static_cast<int>(n->imm),
                  emit(n->src[0], bound(env, product.left_depth, binding)));
  }
}

/// Row by row; rows that do not exist keep what was there, and their sums are never looked at.
void Emitter::copy_left(const PanelBlock& block, const PanelProduct& product, const PanelStore& s,
                        ValueId first, ValueId row, ValueId height, ValueId length,
                        BlockId parent) {
  const Builder::Loop rows = b_.open_loop(parent);
  const ValueId at = b_.add(b_.add(block.row, row), rows.index);
  const Env env = bound(block.env, schedule_.panels()->row, make_bindings(at, rows.body, 0, 1, 0));
  const ValueId start = b_.mul(first, b_.index(product.inner));
  const ValueId line = b_.mul(rows.index, b_.index(s.row_step));
  const auto run = [&](ValueId begin, ValueId end, uint32_t lanes) {
    const Builder::Loop loop = b_.open_loop(rows.body);
    const ValueId base = b_.add(start, loop.index);
    const uint32_t binding = make_bindings(base, loop.body, 0, lanes, 0);
    const ValueId v = emit(product.left, bound(env, product.left_depth, binding));
    const bool is_flipped = product.dot && product.dot->flips_left;
    const ValueId number = is_flipped ? b_.bit_xor(v, b_.like_int(v, kUpperBit)) : v;
    b_.local_store(loop.body, s.left, b_.add(line, loop.index), spread(number, lanes));
    b_.close_loop(loop, begin, end, lanes);
  };
  const ValueId rest = b_.bit_and(length, b_.index(product.left_lanes - 1));
  const ValueId whole = b_.sub(length, rest);
  if (product.left_lanes > 1) run(b_.index(0), whole, product.left_lanes);
  run(product.left_lanes > 1 ? whole : b_.index(0), length, 1);
  if (product.dot) fill_words(product, s, line, length, rows.body);
  b_.close_loop(rows, b_.index(0), height, 1);
}

}  // namespace bm::compiler
