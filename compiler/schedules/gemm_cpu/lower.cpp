// Sums of products in tiles of registers, from operands copied into scratch; see PanelPlan.
#include <array>
#include <functional>

#include "compiler/schedules/gemm_cpu/lowering.h"
#include "compiler/schedules/strategy.h"

namespace bm::compiler {
namespace {

/// Bytes between the rows of a copied left operand, beyond its depth: rows of a power of two would
/// share few sets of a cache.
constexpr int64_t kRowPadding = 64;
/// Steps of the innermost loop written out: its own instructions take the place of products.
constexpr int64_t kUnroll = 4;

}  // namespace

Rewritten rewritten(const PanelPlan& plan) {
  Rewritten out{plan.kernel.get(), {}};
  for (const ir::Store& s : plan.edge_stores)
    out.roots.insert(out.roots.end(), {s.index, s.value, s.gate});
  for (const PanelProduct& p : plan.products)
    for (const Node* n :
         {p.left, p.right, p.edge_right, p.left_depth, p.left_line, p.edge_left_line})
      if (n) out.roots.push_back(n);
  return out;
}

void Emitter::lower_panels(BlockId root) {
  const PanelPlan& p = *schedule_.panels();
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
    for (size_t i = 0; i < p.products.size(); ++i)
      if (p.is_turned)
        multiply_turned(block, stores[i], p.products[i], grid.body);
      else
        multiply_panels(block, stores, i, grid.body);
    if (p.is_turned) store_turned(block, stores, grid.body);
  }
  const ValueId begin = b_.bitcast(program_.block_begin, DType::kI64);
  b_.close_loop(grid, begin, b_.bitcast(program_.block_end, DType::kI64), 1);
}

Emitter::PanelStore Emitter::panel_store(size_t index) {
  const PanelPlan& p = *schedule_.panels();
  const PanelProduct& product = p.products[index];
  const DType t = product.reduce->dtype;
  const DType left = product.dot ? product.left->dtype : t;
  PanelStore s;
  const int64_t vector = b_.target().vector_bits / 8 / item_size(left);
  s.row_step =
      (product.depth_block() + vector - 1) / vector * vector + kRowPadding / item_size(left);
  if (p.is_turned)
    place_turned(product, &s);
  else if (!p.reads_left)
    s.left = b_.add_local(left, static_cast<uint64_t>(p.rows * s.row_step));
  if (!product.reads_right)
    s.right = b_.add_local(product.dot ? DType::kU32 : t,
                           static_cast<uint64_t>(p.column_block * product.steps_block()));
  if (product.dot && product.dot->flips_left)
    s.corrections = b_.add_local(t, static_cast<uint64_t>(p.column_block));
  const bool is_tile = product.is_single && (p.is_turned || index + 1 == p.products.size());
  s.sums = b_.add_local(
      t, static_cast<uint64_t>(is_tile ? p.rows * p.tile_columns() : p.row_block * p.column_block));
  for (uint32_t i = 0; i < p.rows * p.vectors; ++i)
    s.registers.push_back(b_.add_register({t, p.lanes}));
  return s;
}

/// Blocks are whole tiles: only the last one of all columns may be cut.
bool Emitter::has_whole_tiles() const {
  const Node* extent = schedule_.panels()->column->src[0];
  return extent->is_const() && extent->imm % schedule_.panels()->tile_columns() == 0;
}

/// Code for places whose columns all exist, and code for tiles at the edge.
void Emitter::split_edge(ValueId column, const PanelBlock& block, BlockId parent,
                         const std::function<void(BlockId, bool)>& body) {
  if (has_whole_tiles()) return body(parent, false);
  split_where(has_all_columns(column, block), parent, body);
}

void Emitter::split_where(ValueId is_inside, BlockId parent,
                          const std::function<void(BlockId, bool)>& body) {
  const std::array conditions{is_inside, b_.raw(Op::kNot, DType::kBool, {is_inside})};
  for (const bool is_edge : {false, true})
    in_branch(conditions[is_edge], parent, [&](BlockId inside) { body(inside, is_edge); });
}

ValueId Emitter::has_all_columns(ValueId column, const PanelBlock& block) {
  const ValueId end = b_.add(column, b_.index(schedule_.panels()->tile_columns() - 1));
  return b_.lt(end, block.columns);
}

void Emitter::multiply_panels(const PanelBlock& block, const std::vector<PanelStore>& stores,
                              size_t index, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const PanelProduct& product = p.products[index];
  const PanelStore& s = stores[index];
  const ValueId extent = emit(product.right_depth[0]->src[0], block.env);
  const Builder::Loop depth = b_.open_loop(parent);
  const std::array sizes{b_.sub(extent, depth.index), b_.index(product.block)};
  const ValueId trips = b_.alu(Op::kMin, DType::kI64, sizes);
  PanelTile tile;
  tile.first = depth.index;
  tile.length = b_.mul(trips, b_.index(product.inner));
  if (!product.reads_right) copy_right(block, product, s, depth.index, trips, depth.body);

  const Builder::Loop rows = b_.open_loop(depth.body);
  tile.is_first = b_.eq(rows.index, b_.index(0));
  const ValueId left_over = b_.sub(block.rows, rows.index);
  const std::array heights{left_over, b_.index(p.rows)};
  const ValueId height = b_.alu(Op::kMin, DType::kI64, heights);
  tile.row = p.reads_left ? b_.sub(b_.add(rows.index, height), b_.index(p.rows)) : rows.index;
  if (!p.reads_left)
    copy_left(block, product, s, depth.index, rows.index, height, tile.length, rows.body);

  const Builder::Loop columns = b_.open_loop(rows.body);
  tile.column = columns.index;
  const auto sums_at = [&](size_t i) {
    const bool is_tile = product.is_single && i + 1 == p.products.size();
    if (is_tile) return b_.index(0);
    const ValueId row = b_.mul(rows.index, b_.index(p.column_block));
    return b_.add(row, b_.mul(columns.index, b_.index(p.rows)));
  };
  tile.sums = sums_at(index);
  tile.height = height;
  if (index + 1 < p.products.size()) {
    multiply_tile(block, product, s, tile, columns.body);
    keep_sums(s, tile, columns.body);
  } else {
    std::vector<ValueId> sums;
    for (size_t i = 0; i < p.products.size(); ++i) sums.push_back(sums_at(i));
    const ValueId next = b_.add(depth.index, b_.index(product.block));
    const ValueId has_more = product.is_single ? kNone : b_.lt(next, extent);
    const auto if_last = [&](bool is_last, const std::function<void(BlockId)>& body) {
      if (product.is_single) {
        if (is_last) body(columns.body);
        return;
      }
      in_branch(is_last ? b_.raw(Op::kNot, DType::kBool, {has_more}) : has_more, columns.body,
                body);
    };
    if_last(true, [&](BlockId at) { prefetch_results(block, tile, at); });
    multiply_tile(block, product, s, tile, columns.body);
    if_last(true, [&](BlockId at) { finish_tile(block, stores, sums, tile, at); });
    if_last(false, [&](BlockId at) { keep_sums(s, tile, at); });
  }
  b_.close_loop(columns, b_.index(0), block.columns, p.tile_columns());
  b_.close_loop(rows, b_.index(0), block.rows, p.rows);
  b_.close_loop(depth, b_.index(0), extent, product.block);
}

void Emitter::multiply_tile(const PanelBlock& block, const PanelProduct& product,
                            const PanelStore& s, const PanelTile& tile, BlockId parent) {
  start_tile(product, s, tile, parent);
  if (product.copies_along) {
    ValueId copies = tile.is_first;
    if (!has_whole_tiles()) copies = b_.bit_and(copies, has_all_columns(tile.column, block));
    in_branch(copies, parent, [&](BlockId at) { add_steps(block, product, s, tile, true, at); });
    in_branch(b_.raw(Op::kNot, DType::kBool, {copies}), parent,
              [&](BlockId at) { add_steps(block, product, s, tile, false, at); });
  } else {
    add_steps(block, product, s, tile, false, parent);
  }
}

/// All steps of the depth; `copies`: the right operand comes from memory and goes into its panel.
void Emitter::add_steps(const PanelBlock& block, const PanelProduct& product, const PanelStore& s,
                        const PanelTile& tile, bool copies, BlockId parent) {
  const ValueId steps = steps_of(product, tile.length);
  const auto run = [&](ValueId begin, ValueId end, int64_t unroll) {
    const Builder::Loop loop = b_.open_loop(parent);
    if (unroll > 1) prefetch_left(block, product, tile, loop.index, loop.body);
    for (int64_t u = 0; u < unroll; ++u)
      multiply_step(block, product, s, tile, b_.add(loop.index, b_.index(u)), copies, loop.body);
    if (tile.ahead != kNone && unroll > 1) prefetch_panel(product, tile, loop, unroll);
    b_.close_loop(loop, begin, end, unroll);
  };
  const ValueId whole = b_.sub(steps, b_.bit_and(steps, b_.index(kUnroll - 1)));
  run(b_.index(0), whole, kUnroll);
  const Node* extent = product.right_depth[0]->src[0];
  const int64_t even = kUnroll * product.pack();
  if (!extent->is_const() || extent->imm * product.inner % even != 0 ||
      product.depth_block() % even != 0)
    run(whole, steps, 1);
}

void Emitter::multiply_step(const PanelBlock& block, const PanelProduct& product,
                            const PanelStore& s, const PanelTile& tile, ValueId step, bool copies,
                            BlockId body) {
  const PanelPlan& p = *schedule_.panels();
  const std::vector<ValueId> right = right_vectors(block, product, s, tile, step, copies, body);
  const std::vector<ValueId> left = left_numbers(block, product, s, tile, step, body);
  for (uint32_t i = 0; i < p.rows; ++i) {
    const ValueId wide = spread(left[i], p.lanes);
    for (uint32_t v = 0; v < p.vectors; ++v) {
      const uint32_t reg = s.registers[i * p.vectors + v];
      const ValueId sum = b_.read(body, reg);
      b_.assign(body, reg,
                product.dot ? dot_panels(*product.dot, sum, wide, right[v])
                            : b_.mad(wide, right[v], sum));
    }
  }
}

std::vector<ValueId> Emitter::right_vectors(const PanelBlock& block, const PanelProduct& product,
                                            const PanelStore& s, const PanelTile& tile,
                                            ValueId step, bool copies, BlockId body) {
  const PanelPlan& p = *schedule_.panels();
  std::vector<ValueId> right;
  const ValueId panel = b_.mul(tile.column, b_.index(product.steps_block()));
  const ValueId place = b_.add(panel, b_.mul(step, b_.index(p.tile_columns())));
  const auto at = [&](uint32_t v) { return b_.add(place, b_.index(int64_t{v} * p.lanes)); };
  if (product.reads_right || copies) {
    const ValueId depth = b_.add(tile.first, b_.mul(step, b_.index(product.pack())));
    const uint32_t binding = make_bindings(depth, body, 0, 1, 0);
    const Env env = bound(block.env, product.right_depth[0], binding);
    const ValueId base = b_.add(block.column, tile.column);
    const uint32_t column = number_of(p.column);
    Instances all = bind_axis({env}, p.column, base, body, p.lanes, p.vectors, p.lanes);
    if (copies) prefetch_rows_ahead(product.right, all, product.right_depth[0], kRowsAhead, body);
    for (Env& e : all) {
      if (product.dot) e[column] = bindings_[e[column]].first_lane;
      right.push_back(product.dot ? b_.words(static_cast<int>(product.right->imm), p.lanes,
                                             emit(product.right->src[0], e), false)
                                  : spread(emit(product.right, e), p.lanes));
    }
    if (copies)
      for (uint32_t v = 0; v < p.vectors; ++v) b_.local_store(body, s.right, at(v), right[v]);
    return right;
  }
  for (uint32_t v = 0; v < p.vectors; ++v)
    right.push_back(b_.local_load(body, s.right, at(v), p.lanes));
  return right;
}

/// One for every row of the tile; of dot products words.
std::vector<ValueId> Emitter::left_numbers(const PanelBlock& block, const PanelProduct& product,
                                           const PanelStore& s, const PanelTile& tile, ValueId step,
                                           BlockId body) {
  const PanelPlan& p = *schedule_.panels();
  const ValueId depth = b_.mul(step, b_.index(product.pack()));
  std::vector<ValueId> left;
  if (p.reads_left) {
    const ValueId start = b_.add(b_.mul(tile.first, b_.index(product.inner)), depth);
    const uint32_t binding = make_bindings(start, body, 0, 1, 0);
    const Env env = bound(block.env, product.left_depth, binding);
    const ValueId base = b_.add(block.row, tile.row);
    for (const Env& e : bind_axis({env}, p.row, base, body, 1, p.rows, 1))
      left.push_back(product.dot ? b_.words(static_cast<int>(product.left->imm), 1,
                                            emit(product.left->src[0], e), false)
                                 : emit(product.left, e));
    return left;
  }
  const ValueId line = p.is_turned ? b_.add(b_.mul(step, b_.index(s.row_step)), tile.row) : depth;
  for (uint32_t i = 0; i < p.rows; ++i) {
    const ValueId from = b_.add(line, b_.index(p.is_turned ? i : i * s.row_step));
    left.push_back(product.dot ? b_.local_words(body, s.left, from)
                               : b_.local_load(body, s.left, from));
  }
  return left;
}

/// What the sums of a tile start from: those of the depth before, without corrections. Depths are
/// added in order, whatever the blocks: bits depend on neither threads nor schedules.
void Emitter::start_tile(const PanelProduct& product, const PanelStore& s, const PanelTile& tile,
                         BlockId block) {
  const PanelPlan& p = *schedule_.panels();
  const Type type{product.reduce->dtype, p.lanes};
  for (const uint32_t reg : s.registers) b_.assign(block, reg, b_.constant(type, 0));
  if (!product.is_single) {
    const BlockId later = b_.open_block(block);
    for (size_t i = 0; i < s.registers.size(); ++i) {
      const ValueId at = b_.add(tile.sums, b_.index(static_cast<int64_t>(i) * p.lanes));
      b_.assign(later, s.registers[i], b_.local_load(later, s.sums, at, p.lanes));
      // Those of the next tile are on their way meanwhile.
      const int64_t tile_size = int64_t{p.rows} * p.tile_columns();
      if (!p.is_turned) b_.prefetch_local(later, s.sums, b_.add(at, b_.index(tile_size)));
    }
    b_.close_if(later, b_.lt(b_.index(0), tile.first));
  }
  if (!product.dot || !product.dot->flips_left) return;
  for (uint32_t v = 0; v < p.vectors; ++v) {
    const ValueId at = b_.add(tile.column, b_.index(int64_t{v} * p.lanes));
    const ValueId correction = b_.local_load(block, s.corrections, at, p.lanes);
    for (uint32_t i = 0; i < p.rows; ++i) {
      const uint32_t reg = s.registers[i * p.vectors + v];
      b_.assign(block, reg, b_.sub(b_.read(block, reg), correction));
    }
  }
}

}  // namespace bm::compiler
