// Packing of A and B, and software prefetch of what will be packed.
#include <array>
#include <cstdlib>

#include "compiler/program/index.h"
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
void PackedGemm::pack_b(const Contraction& c, ValueId first, ValueId trips, BlockId parent) {
  const PanelProduct& product = c.product;
  if (product.copies_along && has_whole_tiles()) return;
  const Builder::Loop tiles = b_.open_loop(parent);
  const ValueId panel = b_.mul(tiles.index, b_.index(product.steps_block()));
  const auto copy = [&](BlockId inside, bool has_tail) {
    Packing state{c, first, trips, panel};
    const ValueId base = b_.add(block_.column, tiles.index);
    const bool is_single = product.right_copy == PanelCopy::kSingle ||
                           (has_tail && product.right_copy != PanelCopy::kVectors);
    if (!is_single) {
      const Node* column = has_tail ? p_.edge_column : p_.column;
      state.value = has_tail ? product.edge_right : product.right;
      state.copies = product.right_copy == PanelCopy::kTransposed ? p_.lanes : kCopies;
      const Instances columns =
          e_.bind_axis({block_.env}, column, base, inside, p_.lanes, p_.vectors, p_.lanes);
      return pack_k_loops(state, columns, inside, 1, b_.index(0));
    }
    state.value = product.right;
    state.copies = kCopies;
    const Index end(b_, block_.columns), start(b_, tiles.index);
    state.width = Index(min(end - start, p_.tile_columns()));
    state.column = base;
    pack_k_loops(state, {block_.env}, inside, 1, b_.index(0));
  };
  if (product.copies_along)
    copy(tiles.body, true);
  else if (product.right_copy == PanelCopy::kSingle)
    copy(tiles.body, false);
  else
    split_tail(tiles.index, tiles.body, copy);
  if (product.dot && product.dot->flips_left) add_corrections(c, tiles.index, trips, tiles.body);
  ValueId begin = b_.index(0);
  if (product.copies_along) {  // no more than the tile that is cut
    const ValueId step = b_.index(p_.tile_columns());
    begin = b_.mul(e_.divide_index(Op::kDiv, block_.columns, step, false), step);
  }
  b_.close_loop(tiles, begin, block_.columns, p_.tile_columns());
}

/// `body` for every iteration of an inner loop of K, whose number among all of them it is given.
void PackedGemm::pack_along(const Node* range, const Instances& all, ValueId inner, BlockId parent,
                            const std::function<void(const Instances&, ValueId, BlockId)>& body) {
  const int64_t extent = range->src[0]->imm;
  const Builder::Loop loop = b_.open_loop(parent);
  const uint32_t binding = e_.make_bindings(loop.index, loop.body, 0, 1, 0);
  Instances inside;
  for (const Env& env : all) inside.push_back(e_.bound(env, range, binding));
  const ValueId at = b_.add(b_.mul(inner, b_.index(extent)), loop.index);
  body(inside, at, loop.body);
  b_.close_loop(loop, b_.index(0), b_.index(extent), 1);
}

/// Inner loops of the depth first, so that what only depends on them stays out of the first one.
void PackedGemm::pack_k_loops(const Packing& state, const Instances& columns, BlockId parent,
                              size_t level, ValueId inner) {
  const auto copy = [&](const Packing& what, const Instances& where, BlockId inside) {
    return what.c.product.dot ? pack_words(what, where, inside)
                              : pack_lines(what, where, inside, inner);
  };
  if (level == state.c.product.right_depth.size()) {
    if (state.column == kNone) return copy(state, columns, parent);
    // Column by column inside: few lines of a cache at a time.
    const Builder::Loop loop = b_.open_loop(parent);
    Packing one = state;
    one.panel = b_.add(state.panel, loop.index);
    const ValueId at = b_.add(state.column, loop.index);
    const uint32_t binding = e_.make_bindings(at, loop.body, 0, 1, 0);
    copy(one, {e_.bound(columns[0], p_.column, binding)}, loop.body);
    return b_.close_loop(loop, b_.index(0), state.width, 1);
  }
  pack_along(state.c.product.right_depth[level], columns, inner, parent,
             [&](const Instances& inside, ValueId at, BlockId body) {
               pack_k_loops(state, inside, body, level + 1, at);
             });
}

void PackedGemm::pack_lines(const Packing& state, const Instances& columns, BlockId parent,
                            ValueId inner) {
  const uint32_t number =
      e_.number_of(state.value == state.c.product.edge_right ? p_.edge_column : p_.column);
  const uint32_t lanes = e_.binding(columns[0][number]).lanes;
  const auto run = [&](ValueId begin, ValueId end, uint32_t jam) {
    const Builder::Loop loop = b_.open_loop(parent);
    const ValueId base = b_.add(state.first, loop.index);
    const Instances all =
        e_.bind_axis(columns, state.c.product.right_depth[0], base, loop.body, 1, jam, 1);
    const ValueId depth = b_.add(b_.mul(loop.index, b_.index(state.c.product.inner)), inner);
    const ValueId at = b_.add(state.panel, b_.mul(depth, b_.index(p_.tile_columns())));
    e_.set_instances(&all);
    std::vector<ValueId> vectors;
    for (const Env& env : all) vectors.push_back(e_.splat(e_.emit(state.value, env), lanes));
    e_.set_instances(nullptr);
    // Windows are read again for every place in them.
    if (lanes > 1 && state.c.product.right_depth.size() == 1)
      prefetch_rows_ahead(state.value, all, state.c.product.right_depth[0], kRowsAhead, loop.body);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto vector = static_cast<int64_t>(i / jam), copy = static_cast<int64_t>(i % jam);
      const int64_t offset = copy * state.c.product.inner * p_.tile_columns() + vector * p_.lanes;
      b_.local_store(loop.body, state.c.right, b_.add(at, b_.index(offset)), vectors[i]);
    }
    b_.close_loop(loop, begin, end, jam);
  };
  const ValueId rest = b_.bit_and(state.trips, b_.index(state.copies - 1));
  const ValueId whole = b_.sub(state.trips, rest);
  run(b_.index(0), whole, state.copies);
  run(whole, state.trips, 1);
}

/// Asks for what `value` loads in lanes `ahead` iterations of `depth` from now.
void PackedGemm::prefetch_rows_ahead(const Node* value, const Instances& all, const Node* depth,
                                     int64_t ahead, BlockId body) {
  std::vector<std::pair<int64_t, ValueId>> rows;
  for (const Node* n : ir::topological({&value, 1})) {
    if (n->op != Op::kLoad) continue;
    const std::optional<int64_t> row = e_.strides(e_.number_of(depth), 0).stride(n->src[0]);
    if (!row || std::abs(*row) * item_size(n->dtype) < kFarRow) continue;
    for (const Env& env : all) {
      const uint32_t vr = e_.vector_range(e_.dependencies(n), env);
      if (vr == kNone || e_.strides(vr, e_.binding(env[vr]).lanes).stride(n->src[0]) != 1) continue;
      // One request per cache line.
      if (e_.binding(env[vr]).offset * item_size(n->dtype) % b_.target().cache_line_bytes != 0)
        continue;
      Env first = env;
      first[vr] = e_.binding(env[vr]).first_lane;
      const ValueId at = e_.emit(n->src[0], first);
      rows.emplace_back(n->imm, b_.add(at, b_.index(*row * ahead)));
    }
  }
  for (const auto& [param, at] : rows) b_.prefetch(body, static_cast<int>(param), at);
}

/// Asks for what pack_a will copy next: the rows of the tile below are shared out over the tiles
/// of this one's row, and each is asked for as this one's depth goes by.
void PackedGemm::prefetch_left(const PanelProduct& product, const Tile& tile, ValueId step,
                               BlockId body) {
  if (!p_.row || p_.is_turned || product.left_lanes == 1) return;
  const int64_t tiles = p_.column_block / p_.tile_columns();
  const int64_t each = (p_.rows + tiles - 1) / tiles;
  const ValueId number = e_.divide_index(Op::kDiv, tile.column, b_.index(p_.tile_columns()), false);
  const Index row = min(Index(b_, number) * each, p_.rows - each) + p_.rows;
  const Instances rows =
      e_.bind_axis({block_.env}, p_.row, b_.add(b_.add(block_.row, tile.row), row), body, 1,
                   static_cast<uint32_t>(each), 1);
  const ValueId start = b_.mul(tile.first, b_.index(product.inner));
  const ValueId depth = b_.add(start, b_.mul(step, b_.index(product.pack())));
  const uint32_t binding = e_.make_bindings(depth, body, 0, 1, 0);
  for (const Node* n : ir::topological({&product.left, 1})) {
    if (n->op != Op::kLoad ||
        e_.strides(e_.number_of(product.left_depth), 0).stride(n->src[0]) != 1)
      continue;
    for (const Env& env : rows)
      b_.prefetch(body, static_cast<int>(n->imm),
                  e_.emit(n->src[0], e_.bound(env, product.left_depth, binding)));
  }
}

/// Row by row; rows that do not exist keep what was there, and their sums are never looked at.
void PackedGemm::pack_a(const Contraction& c, ValueId first, ValueId row, ValueId height,
                        ValueId length, BlockId parent) {
  const PanelProduct& product = c.product;
  const Builder::Loop rows = b_.open_loop(parent);
  const ValueId at = b_.add(b_.add(block_.row, row), rows.index);
  const Env env = e_.bound(block_.env, p_.row, e_.make_bindings(at, rows.body, 0, 1, 0));
  const ValueId start = b_.mul(first, b_.index(product.inner));
  const ValueId line = b_.mul(rows.index, b_.index(c.row_step));
  const auto run = [&](ValueId begin, ValueId end, uint32_t lanes) {
    const Builder::Loop loop = b_.open_loop(rows.body);
    const ValueId base = b_.add(start, loop.index);
    const uint32_t binding = e_.make_bindings(base, loop.body, 0, lanes, 0);
    const ValueId v = e_.emit(product.left, e_.bound(env, product.left_depth, binding));
    const bool is_flipped = product.dot && product.dot->flips_left;
    const ValueId number = is_flipped ? b_.bit_xor(v, b_.like_int(v, kUpperBit)) : v;
    b_.local_store(loop.body, c.left, b_.add(line, loop.index), e_.splat(number, lanes));
    b_.close_loop(loop, begin, end, lanes);
  };
  const ValueId rest = b_.bit_and(length, b_.index(product.left_lanes - 1));
  const ValueId whole = b_.sub(length, rest);
  if (product.left_lanes > 1) run(b_.index(0), whole, product.left_lanes);
  run(product.left_lanes > 1 ? whole : b_.index(0), length, 1);
  if (product.dot) fill_words(c, line, length, rows.body);
  b_.close_loop(rows, b_.index(0), height, 1);
}

}  // namespace bm::compiler
