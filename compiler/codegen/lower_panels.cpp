// Sums of products in tiles of registers, from operands copied into scratch; see PanelPlan.
#include <algorithm>
#include <array>

#include "compiler/codegen/lowerer.h"
#include "compiler/opt/panels.h"

namespace bm::compiler {
namespace {

/// Distance between the rows of a copied left operand, beyond its depth: rows of a power of two
/// would share few sets of a cache.
constexpr int64_t kRowPadding = 16;
/// Iterations of a copying loop side by side.
constexpr uint32_t kCopies = 4;

}  // namespace

/// Arrays in scratch and registers of one product.
struct Lowerer::PanelStore {
  uint32_t left = 0, right = 0, sums = 0;
  int64_t row_step = 0;             // of `left`
  std::vector<uint32_t> registers;  // [row][vector]
};

/// What copies one panel, or one column of it, of the right operand.
struct Lowerer::PanelCopyState {
  const PanelProduct& product;
  const PanelStore& store;
  ValueId first = kNone, trips = kNone;  // iterations of the outermost loop of the depth
  ValueId panel = kNone;                 // where it goes
  const Node* value = nullptr;
  uint32_t copies = 1;  // iterations side by side, a power of two
  // Column by column: the first one, and how many.
  ValueId column = kNone, width = kNone;
};

/// What one call of the grid works on.
struct Lowerer::PanelBlock {
  Env env;                                // loops besides rows and columns
  ValueId row = kNone, column = kNone;    // first ones
  ValueId rows = kNone, columns = kNone;  // how many
};

void Lowerer::add_panel_roots(std::vector<const Node*>* roots) const {
  for (const ir::Store& s : schedule_.panels->edge_stores)
    roots->insert(roots->end(), {s.index, s.value, s.gate});
  for (const PanelProduct& p : schedule_.panels->products)
    roots->insert(roots->end(), {p.left, p.right, p.edge_right, p.left_depth});
}

void Lowerer::lower_panels(BlockId root) {
  const PanelPlan& p = *schedule_.panels;
  const Builder::Loop grid = b_.open_loop(root, LoopKind::kGrid);
  PanelBlock block;
  block.env = Env(ranges_.size(), 0);
  const auto count = [&](const Node* range, int64_t step) {
    const ValueId extent = emit(range->src[0], block.env);
    return divide_index(Op::kDiv, b_.add(extent, b_.index(step - 1)), b_.index(step), false);
  };
  ValueId rest = grid.index;
  const auto digit = [&](ValueId of) {
    const ValueId d = divide_index(Op::kMod, rest, of, false);
    rest = divide_index(Op::kDiv, rest, of, false);
    return d;
  };
  const ValueId columns = digit(count(p.column, p.column_block));
  block.column = b_.mul(columns, b_.index(p.column_block));
  if (!p.is_strip) {
    const ValueId rows = p.batch.empty() ? rest : digit(count(p.row, p.row_block));
    block.row = b_.mul(rows, b_.index(p.row_block));
  }
  for (size_t i = p.batch.size(); i-- > 0;) {
    const Node* range = p.batch[i];
    const ValueId at = i == 0 ? rest : digit(emit(range->src[0], block.env));
    block.env = bound(block.env, range, make_bindings(at, grid.body, 0, 1, 0));
  }
  const auto left_of = [&](const Node* range, ValueId first, int64_t most) {
    const std::array args{b_.sub(emit(range->src[0], block.env), first), b_.index(most)};
    return b_.alu(Op::kMin, DType::kI64, args);
  };
  block.columns = left_of(p.column, block.column, p.column_block);
  if (p.is_strip) {
    lower_strips(block, grid.body);
  } else {
    block.rows = left_of(p.row, block.row, p.row_block);
    std::vector<PanelStore> stores;
    for (size_t i = 0; i < p.products.size(); ++i) stores.push_back(panel_store(i));
    for (size_t i = 0; i < p.products.size(); ++i) multiply_panels(block, stores, i, grid.body);
  }
  const ValueId begin = b_.bitcast(program_.block_begin, DType::kI64);
  b_.close_loop(grid, begin, b_.bitcast(program_.block_end, DType::kI64), 1);
}

Lowerer::PanelStore Lowerer::panel_store(size_t index) {
  const PanelPlan& p = *schedule_.panels;
  const PanelProduct& product = p.products[index];
  const DType t = product.reduce->dtype;
  PanelStore s;
  s.row_step = (product.depth_block() + p.lanes - 1) / p.lanes * p.lanes + kRowPadding;
  s.left = b_.add_local(t, static_cast<uint64_t>(p.rows * s.row_step));
  s.right = b_.add_local(t, static_cast<uint64_t>(p.column_block * product.depth_block()));
  const bool is_tile = product.is_single && index + 1 == p.products.size();
  s.sums = b_.add_local(
      t, static_cast<uint64_t>(is_tile ? p.rows * p.tile_columns() : p.row_block * p.column_block));
  for (uint32_t i = 0; i < p.rows * p.vectors; ++i)
    s.registers.push_back(b_.add_register({t, p.lanes}));
  return s;
}

/// Code for places whose columns all exist, and code for tiles at the edge.
void Lowerer::split_edge(ValueId column, const PanelBlock& block, BlockId parent,
                         const std::function<void(BlockId, bool)>& body) {
  const PanelPlan& p = *schedule_.panels;
  const Node* extent = p.column->src[0];
  // Blocks are whole tiles: only the last one of all columns is cut.
  if (extent->is_const() && extent->imm % p.tile_columns() == 0) return body(parent, false);
  const ValueId end = b_.add(column, b_.index(p.tile_columns() - 1));
  const ValueId is_inside = b_.lt(end, block.columns);
  const std::array conditions{is_inside, b_.raw(Op::kNot, DType::kBool, {is_inside})};
  for (const bool is_edge : {false, true}) {
    const BlockId inside = b_.open_block(parent);
    // What is read there may not exist elsewhere: nothing moves out, nothing is shared.
    const BlockId floor = b_.set_floor(inside);
    const auto memo = memo_;
    body(inside, is_edge);
    memo_ = memo;
    b_.set_floor(floor);
    b_.close_if(inside, conditions[is_edge]);
  }
}

void Lowerer::multiply_panels(const PanelBlock& block, const std::vector<PanelStore>& stores,
                              size_t index, BlockId parent) {
  const PanelPlan& p = *schedule_.panels;
  const PanelProduct& product = p.products[index];
  const PanelStore& s = stores[index];
  const ValueId extent = emit(product.right_depth[0]->src[0], block.env);
  const Builder::Loop depth = b_.open_loop(parent);
  const std::array sizes{b_.sub(extent, depth.index), b_.index(product.block)};
  const ValueId trips = b_.alu(Op::kMin, DType::kI64, sizes);
  const ValueId length = b_.mul(trips, b_.index(product.inner));
  copy_right(block, product, s, depth.index, trips, depth.body);

  const Builder::Loop rows = b_.open_loop(depth.body);
  const std::array heights{b_.sub(block.rows, rows.index), b_.index(p.rows)};
  const ValueId height = b_.alu(Op::kMin, DType::kI64, heights);
  copy_left(block, product, s, depth.index, rows.index, height, length, rows.body);

  const Builder::Loop columns = b_.open_loop(rows.body);
  const auto sums_at = [&](size_t i) {
    const bool is_tile = product.is_single && i + 1 == p.products.size();
    if (is_tile) return b_.index(0);
    const ValueId row = b_.mul(rows.index, b_.index(p.column_block));
    return b_.add(row, b_.mul(columns.index, b_.index(p.rows)));
  };
  multiply_tile(product, s, sums_at(index), depth.index, columns.index, length, columns.body);
  if (index + 1 == p.products.size()) {
    std::vector<ValueId> sums;
    for (size_t i = 0; i < p.products.size(); ++i) sums.push_back(sums_at(i));
    const auto finish = [&](BlockId at) {
      store_panels(block, stores, sums, rows.index, columns.index, height, at);
    };
    if (product.is_single) {
      finish(columns.body);
    } else {
      const BlockId last = b_.open_block(columns.body);
      const BlockId floor = b_.set_floor(last);
      const auto memo = memo_;
      finish(last);
      memo_ = memo;
      b_.set_floor(floor);
      const ValueId next = b_.add(depth.index, b_.index(product.block));
      b_.close_if(last, b_.raw(Op::kNot, DType::kBool, {b_.lt(next, extent)}));
    }
  }
  b_.close_loop(columns, b_.index(0), block.columns, p.tile_columns());
  b_.close_loop(rows, b_.index(0), block.rows, p.rows);
  b_.close_loop(depth, b_.index(0), extent, product.block);
}

/// Panels of tile_columns() columns, depth by depth.
void Lowerer::copy_right(const PanelBlock& block, const PanelProduct& product, const PanelStore& s,
                         ValueId first, ValueId trips, BlockId parent) {
  const PanelPlan& p = *schedule_.panels;
  const Builder::Loop tiles = b_.open_loop(parent);
  const ValueId panel = b_.mul(tiles.index, b_.index(product.depth_block()));
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
  if (product.right_copy == PanelCopy::kSingle)
    copy(tiles.body, false);
  else
    split_edge(tiles.index, block, tiles.body, copy);
  b_.close_loop(tiles, b_.index(0), block.columns, p.tile_columns());
}

/// Inner loops of the depth first, so that what only depends on them stays out of the first one.
void Lowerer::copy_depth(const PanelCopyState& state, const Instances& columns, BlockId parent,
                         size_t level, ValueId inner) {
  if (level == state.product.right_depth.size()) {
    if (state.column == kNone) return copy_lines(state, columns, parent, inner);
    // Column by column inside: few lines of a cache at a time.
    const Builder::Loop loop = b_.open_loop(parent);
    PanelCopyState one = state;
    one.panel = b_.add(state.panel, loop.index);
    const ValueId at = b_.add(state.column, loop.index);
    const uint32_t binding = make_bindings(at, loop.body, 0, 1, 0);
    copy_lines(one, {bound(columns[0], schedule_.panels->column, binding)}, loop.body, inner);
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

void Lowerer::copy_lines(const PanelCopyState& state, const Instances& columns, BlockId parent,
                         ValueId inner) {
  const PanelPlan& p = *schedule_.panels;
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

/// Row by row; rows that do not exist keep what was there, and their sums are never looked at.
void Lowerer::copy_left(const PanelBlock& block, const PanelProduct& product, const PanelStore& s,
                        ValueId first, ValueId row, ValueId height, ValueId length,
                        BlockId parent) {
  const Builder::Loop rows = b_.open_loop(parent);
  const ValueId at = b_.add(b_.add(block.row, row), rows.index);
  const Env env = bound(block.env, schedule_.panels->row, make_bindings(at, rows.body, 0, 1, 0));
  const ValueId start = b_.mul(first, b_.index(product.inner));
  const ValueId line = b_.mul(rows.index, b_.index(s.row_step));
  const auto run = [&](ValueId begin, ValueId end, uint32_t lanes) {
    const Builder::Loop loop = b_.open_loop(rows.body);
    const ValueId base = b_.add(start, loop.index);
    const uint32_t binding = make_bindings(base, loop.body, 0, lanes, 0);
    const ValueId v = emit(product.left, bound(env, product.left_depth, binding));
    b_.local_store(loop.body, s.left, b_.add(line, loop.index), spread(v, lanes));
    b_.close_loop(loop, begin, end, lanes);
  };
  const ValueId rest = b_.bit_and(length, b_.index(product.left_lanes - 1));
  const ValueId whole = b_.sub(length, rest);
  if (product.left_lanes > 1) run(b_.index(0), whole, product.left_lanes);
  run(product.left_lanes > 1 ? whole : b_.index(0), length, 1);
  b_.close_loop(rows, b_.index(0), height, 1);
}

void Lowerer::multiply_tile(const PanelProduct& product, const PanelStore& s, ValueId sums,
                            ValueId first, ValueId column, ValueId length, BlockId block) {
  const PanelPlan& p = *schedule_.panels;
  const Type type{product.reduce->dtype, p.lanes};
  const auto sum_at = [&](size_t i) {
    return b_.add(sums, b_.index(static_cast<int64_t>(i) * p.lanes));
  };
  for (const uint32_t reg : s.registers) b_.assign(block, reg, b_.constant(type, 0));
  if (!product.is_single) {
    const BlockId later = b_.open_block(block);
    for (size_t i = 0; i < s.registers.size(); ++i)
      b_.assign(later, s.registers[i], b_.local_load(later, s.sums, sum_at(i), p.lanes));
    b_.close_if(later, b_.lt(b_.index(0), first));
  }
  const ValueId panel = b_.mul(column, b_.index(product.depth_block()));
  const Builder::Loop loop = b_.open_loop(block);
  const ValueId at = b_.add(panel, b_.mul(loop.index, b_.index(p.tile_columns())));
  std::vector<ValueId> right;
  for (uint32_t v = 0; v < p.vectors; ++v)
    right.push_back(
        b_.local_load(loop.body, s.right, b_.add(at, b_.index(int64_t{v} * p.lanes)), p.lanes));
  for (uint32_t i = 0; i < p.rows; ++i) {
    const ValueId a =
        b_.local_load(loop.body, s.left, b_.add(loop.index, b_.index(i * s.row_step)));
    const ValueId wide = spread(a, p.lanes);
    for (uint32_t v = 0; v < p.vectors; ++v) {
      const uint32_t reg = s.registers[i * p.vectors + v];
      b_.assign(loop.body, reg, b_.mad(wide, right[v], b_.read(loop.body, reg)));
    }
  }
  b_.close_loop(loop, b_.index(0), length, 1);
  for (size_t i = 0; i < s.registers.size(); ++i)
    b_.local_store(block, s.sums, sum_at(i), b_.read(block, s.registers[i]));
}

/// The rest of the kernel for one tile: sums become what the stores want.
void Lowerer::store_panels(const PanelBlock& block, const std::vector<PanelStore>& stores,
                           const std::vector<ValueId>& sums, ValueId row, ValueId column,
                           ValueId height, BlockId parent) {
  const PanelPlan& p = *schedule_.panels;
  split_edge(column, block, parent, [&](BlockId inside, bool is_edge) {
    const Builder::Loop rows = b_.open_loop(inside);
    Env env = block.env;
    if (p.row) {
      const ValueId at = b_.add(b_.add(block.row, row), rows.index);
      env = bound(env, p.row, make_bindings(at, rows.body, 0, 1, 0));
    }
    const ValueId base = b_.add(block.column, column);
    const Node* range = is_edge ? p.edge_column : p.column;
    const Instances all = bind_axis({env}, range, base, inside, p.lanes, p.vectors, p.lanes);
    const ValueId line = b_.mul(rows.index, b_.index(p.tile_columns()));
    for (size_t i = 0; i < p.products.size(); ++i) {
      const PanelProduct& product = p.products[i];
      for (uint32_t v = 0; v < p.vectors; ++v) {
        const ValueId from = b_.add(b_.add(sums[i], line), b_.index(int64_t{v} * p.lanes));
        memo_[key(is_edge ? product.edge_reduce : product.reduce, all[v])] =
            b_.local_load(rows.body, stores[i].sums, from, p.lanes);
      }
    }
    emit_stores(rows.body, all, is_edge ? p.edge_stores : kernel_.stores);
    b_.close_loop(rows, b_.index(0), height, 1);
  });
}

/// Few rows: sums of all columns of the block in scratch, a few depths added at a time.
void Lowerer::lower_strips(PanelBlock& block, BlockId parent) {
  const PanelPlan& p = *schedule_.panels;
  block.row = b_.index(0);
  std::vector<PanelStore> stores(p.products.size());
  for (size_t i = 0; i < p.products.size(); ++i) {
    const DType t = p.products[i].reduce->dtype;
    stores[i].sums = b_.add_local(t, static_cast<uint64_t>(p.rows * p.column_block));
    const Builder::Loop zero = b_.open_loop(parent);
    b_.local_store(zero.body, stores[i].sums, zero.index, b_.constant({t, p.lanes}, 0));
    b_.close_loop(zero, b_.index(0), b_.index(p.rows * p.column_block), p.lanes);
    const ValueId extent = emit(p.products[i].right_depth[0]->src[0], block.env);
    const ValueId rest = b_.bit_and(extent, b_.index(PanelPlan::kStripDepths - 1));
    const ValueId whole = b_.sub(extent, rest);
    add_strip(block, p.products[i], stores[i], b_.index(0), whole, PanelPlan::kStripDepths, parent);
    add_strip(block, p.products[i], stores[i], whole, extent, 1, parent);
  }
  const Builder::Loop columns = b_.open_loop(parent);
  const std::vector<ValueId> sums(p.products.size(), b_.mul(columns.index, b_.index(p.rows)));
  store_panels(block, stores, sums, b_.index(0), columns.index, b_.index(p.rows), columns.body);
  b_.close_loop(columns, b_.index(0), block.columns, p.tile_columns());
}

void Lowerer::add_strip(const PanelBlock& block, const PanelProduct& product, const PanelStore& s,
                        ValueId begin, ValueId end, uint32_t depths, BlockId parent) {
  const PanelPlan& p = *schedule_.panels;
  const Builder::Loop depth = b_.open_loop(parent);
  const Instances along =
      bind_axis({block.env}, product.left_depth, depth.index, depth.body, 1, depths, 1);
  std::vector<std::vector<ValueId>> left(p.rows);  // [row][depth]
  for (uint32_t r = 0; r < p.rows; ++r) {
    const uint32_t row = p.row ? make_bindings(b_.index(r), program_.root, 0, 1, 0) : 0;
    for (const Env& env : along)
      left[r].push_back(spread(emit(product.left, p.row ? bound(env, p.row, row) : env), p.lanes));
  }
  const Builder::Loop columns = b_.open_loop(depth.body);
  const ValueId sums = b_.mul(columns.index, b_.index(p.rows));
  split_edge(columns.index, block, columns.body, [&](BlockId inside, bool is_edge) {
    const ValueId base = b_.add(block.column, columns.index);
    const Node* range = is_edge ? p.edge_column : p.column;
    const Node* value = is_edge ? product.edge_right : product.right;
    const Instances all = bind_axis(along, range, base, inside, p.lanes, p.vectors, p.lanes);
    for (uint32_t r = 0; r < p.rows; ++r)
      for (uint32_t v = 0; v < p.vectors; ++v) {
        const ValueId at =
            b_.add(sums, b_.index(int64_t{r} * p.tile_columns() + int64_t{v} * p.lanes));
        ValueId sum = b_.local_load(inside, s.sums, at, p.lanes);
        for (uint32_t d = 0; d < depths; ++d)
          sum = b_.mad(left[r][d], spread(emit(value, all[d * p.vectors + v]), p.lanes), sum);
        b_.local_store(inside, s.sums, at, sum);
      }
  });
  b_.close_loop(columns, b_.index(0), block.columns, p.tile_columns());
  b_.close_loop(depth, begin, end, depths);
}

}  // namespace bm::compiler
