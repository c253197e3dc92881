// Packed GEMM (as BLIS and Goto have it): A and B are packed into scratch, tiles of C accumulate in
// registers; see PackedGemmPlan.
#include <array>
#include <functional>

#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_cpu/lowering.h"
#include "compiler/schedules/strategy.h"

namespace bm::compiler {
namespace {

/// Bytes between the rows of a packed A, beyond its K: rows of a power of two would
/// share few sets of a cache.
constexpr int64_t kRowPadding = 64;
/// Unroll factor of the innermost loop: its own instructions take the issue slots of products.
constexpr int64_t kUnroll = 4;

}  // namespace

Rewritten rewritten(const PackedGemmPlan& plan) {
  Rewritten out{plan.kernel.get(), {}};
  for (const ir::Store& s : plan.edge_stores)
    out.roots.insert(out.roots.end(), {s.index, s.value, s.gate});
  for (const PanelProduct& p : plan.products)
    for (const Node* n : {p.left, p.right, p.edge_right, p.left_k, p.left_line, p.edge_left_line})
      if (n) out.roots.push_back(n);
  return out;
}

void lower_packed_gemm(Emitter& e) { PackedGemm(e).run(); }

void PackedGemm::run() {
  const Builder::Loop grid = b_.open_loop(e_.root(), LoopKind::kGrid);
  block_.env = e_.unbound();
  ValueId rest = grid.index;
  const auto first_of = [&](const Node* range, int64_t step, bool is_last) {
    ValueId count = kNone;
    if (!is_last) {
      const Expr extent(b_, e_.emit(range->src[0], block_.env)), up = extent + (step - 1);
      count = e_.divide_index(Op::kDiv, up, b_.index(step), false);
    }
    return b_.mul(next_grid_digit(e_, &rest, count, is_last), b_.index(step));
  };
  block_.column = first_of(p_.column, p_.column_block, false);
  if (!p_.is_skinny) block_.row = first_of(p_.row, p_.row_block, p_.batch.empty());
  block_.env = bind_grid_batch(e_, rest, p_.batch, std::move(block_.env), grid.body);
  const auto left_of = [&](const Node* range, ValueId first, int64_t most) {
    const Expr extent(b_, e_.emit(range->src[0], block_.env));
    return ValueId{Expr(min(extent - Expr(b_, first), most))};
  };
  block_.columns = left_of(p_.column, block_.column, p_.column_block);
  if (p_.is_skinny) {
    lower_gemv(grid.body);
  } else {
    block_.rows = left_of(p_.row, block_.row, p_.row_block);
    for (size_t i = 0; i < p_.products.size(); ++i) stores_.push_back(make_contraction(i));
    for (size_t i = 0; i < p_.products.size(); ++i)
      if (p_.is_transposed)
        multiply_transposed(stores_[i], grid.body);
      else
        multiply_blocks(i, grid.body);
    if (p_.is_transposed) store_transposed(grid.body);
  }
  const ValueId begin = b_.bitcast(e_.program().block_begin, DType::kI64);
  b_.close_loop(grid, begin, b_.bitcast(e_.program().block_end, DType::kI64), 1);
}

PackedGemm::Contraction PackedGemm::make_contraction(size_t index) {
  const PanelProduct& product = p_.products[index];
  const DType t = product.reduce->dtype;
  const DType left = product.dot ? product.left->dtype : t;
  Contraction c{product};
  const int64_t vector = b_.target().vector_bits / 8 / item_size(left);
  c.row_step = (product.k_block() + vector - 1) / vector * vector + kRowPadding / item_size(left);
  if (p_.is_transposed)
    bind_transposed(product, &c);
  else if (!p_.reads_a_in_place)
    c.left = b_.add_local(left, static_cast<uint64_t>(p_.rows * c.row_step));
  if (!product.reads_b_in_place)
    c.right = b_.add_local(product.dot ? DType::kU32 : t,
                           static_cast<uint64_t>(p_.column_block * product.steps_block()));
  if (product.dot && product.dot->flips_left)
    c.corrections = b_.add_local(t, static_cast<uint64_t>(p_.column_block));
  const bool is_tile = product.is_single && (p_.is_transposed || index + 1 == p_.products.size());
  c.accumulators = b_.add_local(t, static_cast<uint64_t>(is_tile ? p_.rows * p_.tile_columns()
                                                                 : p_.row_block * p_.column_block));
  for (uint32_t i = 0; i < p_.rows * p_.vectors; ++i)
    c.registers.push_back(b_.add_register({t, p_.lanes}));
  return c;
}

/// Blocks are whole tiles: only the last one of all columns may be cut.
bool PackedGemm::has_whole_tiles() const {
  const Node* extent = p_.column->src[0];
  return extent->is_const() && extent->imm % p_.tile_columns() == 0;
}

bool PackedGemm::has_fixed_rows() const { return p_.row && p_.row->src[0]->is_const(); }

/// Code for tiles whose columns all exist, and code for the tail.
void PackedGemm::split_tail(ValueId column, BlockId parent, const SplitBody& body) {
  if (has_whole_tiles()) return body(parent, false);
  split_where(has_all_columns(column), parent, body);
}

void PackedGemm::split_where(ValueId is_inside, BlockId parent, const SplitBody& body) {
  const std::array conditions{is_inside, b_.negated(is_inside)};
  for (const bool has_tail : {false, true})
    e_.branch(conditions[has_tail], parent, [&](BlockId inside) { body(inside, has_tail); });
}

ValueId PackedGemm::has_all_columns(ValueId column) {
  const ValueId end = b_.add(column, b_.index(p_.tile_columns() - 1));
  return b_.lt(end, block_.columns);
}

/// The loops around columns in a loop over the rows of a tile.
Env PackedGemm::row_of_tile(ValueId row, const Builder::Loop& rows) {
  const Expr block(b_, block_.row), tile(b_, row);
  const Expr at = (block + tile) + Expr(b_, rows.index);
  return e_.bound_at(block_.env, p_.row, at, rows.body);
}

/// The loop over blocks of K, with B of a block packed unless it is read in place.
PackedGemm::KBlock PackedGemm::open_k_block(const Contraction& c, BlockId parent) {
  const PanelProduct& product = c.product;
  KBlock k;
  k.extent = e_.emit(product.right_k[0]->src[0], block_.env);
  k.loop = b_.open_loop(parent);
  const ValueId left = b_.sub(k.extent, k.loop.index);
  k.length = e_.min_index(left, b_.index(product.block));
  k.tile.first = k.loop.index;
  k.tile.length = b_.mul(k.length, b_.index(product.inner));
  if (!product.reads_b_in_place) pack_b(c, k.loop.index, k.length, k.loop.body);
  return k;
}

void PackedGemm::multiply_blocks(size_t index, BlockId parent) {
  const PanelProduct& product = p_.products[index];
  const Contraction& c = stores_[index];
  const KBlock k = open_k_block(c, parent);
  Tile tile = k.tile;

  const Builder::Loop rows = b_.open_loop(k.loop.body);
  tile.is_first = b_.eq(rows.index, b_.index(0));
  const ValueId left_over = b_.sub(block_.rows, rows.index);
  const ValueId height = e_.min_index(left_over, b_.index(p_.rows));
  const Expr row(b_, rows.index);
  tile.row = p_.reads_a_in_place ? ValueId{Expr((row + Expr(b_, height)) - p_.rows)} : rows.index;
  if (!p_.reads_a_in_place) pack_a(c, k.loop.index, rows.index, height, tile.length, rows.body);

  const Builder::Loop columns = b_.open_loop(rows.body);
  tile.column = columns.index;
  const auto accumulators_at = [&](size_t i) {
    const bool is_tile = product.is_single && i + 1 == p_.products.size();
    if (is_tile) return b_.index(0);
    return ValueId{Expr(row * p_.column_block + Expr(b_, columns.index) * p_.rows)};
  };
  tile.accumulators = accumulators_at(index);
  tile.height = height;
  if (index + 1 < p_.products.size()) {
    multiply_tile(c, tile, columns.body);
    spill_vectors(b_, columns.body, c.accumulators, tile.accumulators, c.registers);
  } else {
    std::vector<ValueId> accumulators;
    for (size_t i = 0; i < p_.products.size(); ++i) accumulators.push_back(accumulators_at(i));
    const ValueId next = b_.add(k.loop.index, b_.index(product.block));
    const ValueId has_more = product.is_single ? kNone : b_.lt(next, k.extent);
    const auto if_last = [&](bool is_last, const std::function<void(BlockId)>& body) {
      if (product.is_single) {
        if (is_last) body(columns.body);
        return;
      }
      e_.branch(is_last ? b_.negated(has_more) : has_more, columns.body, body);
    };
    if_last(true, [&](BlockId at) { prefetch_results(tile, at); });
    multiply_tile(c, tile, columns.body);
    if_last(true, [&](BlockId at) { epilogue(accumulators, tile, at); });
    if_last(false, [&](BlockId at) {
      spill_vectors(b_, at, c.accumulators, tile.accumulators, c.registers);
    });
  }
  b_.close_loop(columns, b_.index(0), block_.columns, p_.tile_columns());
  b_.close_loop(rows, b_.index(0), block_.rows, p_.rows);
  b_.close_loop(k.loop, b_.index(0), k.extent, product.block);
}

void PackedGemm::multiply_tile(const Contraction& c, const Tile& tile, BlockId parent) {
  const PanelProduct& product = c.product;
  start_tile(c, tile, parent);
  if (product.packs_b_on_the_fly) {
    ValueId is_first = tile.is_first;
    if (!has_whole_tiles()) is_first = b_.bit_and(is_first, has_all_columns(tile.column));
    const auto when = [&](ValueId condition, BlockId at, BSource source) {
      e_.branch(condition, at, [&](BlockId inside) { add_steps(c, tile, source, inside); });
    };
    if (has_fixed_rows()) {
      when(is_first, parent, BSource::kPacking);
    } else {
      // The number of rows may turn out to be that of a tile.
      const ValueId has_more = b_.lt(b_.index(p_.rows), block_.rows);
      e_.branch(is_first, parent, [&](BlockId at) {
        when(has_more, at, BSource::kPacking);
        when(b_.negated(has_more), at, BSource::kStream);
      });
    }
    when(b_.negated(is_first), parent, BSource::kPacked);
  } else {
    add_steps(c, tile, p_.reads_b_once ? BSource::kStream : BSource::kPacked, parent);
  }
}

/// All steps of K.
void PackedGemm::add_steps(const Contraction& c, const Tile& tile, BSource source, BlockId parent) {
  const PanelProduct& product = c.product;
  const ValueId steps = steps_of(product, tile.length);
  const auto run = [&](ValueId begin, ValueId end, int64_t unroll) {
    const Builder::Loop loop = b_.open_loop(parent);
    if (unroll > 1) prefetch_left(product, tile, loop.index, loop.body);
    for (int64_t u = 0; u < unroll; ++u)
      multiply_step(c, tile, b_.add(loop.index, b_.index(u)), source, loop.body);
    if (tile.ahead != kNone && unroll > 1) prefetch_panel(product, tile, loop, unroll);
    b_.close_loop(loop, begin, end, unroll);
  };
  // Two loops that read memory are as long as one: programs stay of a size that compiles quickly.
  const bool is_one_of_three = product.packs_b_on_the_fly && !has_fixed_rows();
  const int64_t unroll = is_one_of_three && source != BSource::kPacked ? kUnroll / 2 : kUnroll;
  const Expr all(b_, steps), whole = all - (all & (unroll - 1));
  run(b_.index(0), whole, unroll);
  const Node* extent = product.right_k[0]->src[0];
  const int64_t even = unroll * product.pack();
  if (!extent->is_const() || extent->imm * product.inner % even != 0 ||
      product.k_block() % even != 0)
    run(whole, steps, 1);
}

void PackedGemm::multiply_step(const Contraction& c, const Tile& tile, ValueId step, BSource source,
                               BlockId body) {
  const PanelProduct& product = c.product;
  const std::vector<ValueId> right = b_vectors(c, tile, step, source, body);
  const std::vector<ValueId> left = a_elements(c, tile, step, body);
  contract_vectors(
      b_, body, c.registers, right, [&](size_t i) { return e_.splat(left[i], p_.lanes); },
      [&](ValueId sum, ValueId a, ValueId b) {
        return product.dot ? dot(*product.dot, sum, a, b) : b_.mad(a, b, sum);
      });
}

std::vector<ValueId> PackedGemm::b_vectors(const Contraction& c, const Tile& tile, ValueId step,
                                           BSource source, BlockId body) {
  const PanelProduct& product = c.product;
  std::vector<ValueId> right;
  const Expr own(b_, step), first(b_, tile.first);
  const Expr at = Expr(b_, tile.column) * product.steps_block() + own * p_.tile_columns();
  if (product.reads_b_in_place || source != BSource::kPacked) {
    const Expr k = first + own * product.pack();
    const uint32_t binding = e_.make_bindings(k, body, 0, 1, 0);
    const Env env = e_.bound(block_.env, product.right_k[0], binding);
    const ValueId base = b_.add(block_.column, tile.column);
    const uint32_t column = e_.number_of(p_.column);
    Instances all = e_.bind_axis({env}, p_.column, base, body, p_.lanes, p_.vectors, p_.lanes);
    if (source != BSource::kPacked) {
      prefetch_stream(product.right, all, product.right_k[0], body);
      prefetch_rows_ahead(product.right, all, product.right_k[0], kRowsAhead, body);
    }
    for (Env& e : all) {
      if (product.dot) e[column] = e_.binding(e[column]).first_lane;
      right.push_back(product.dot ? b_.words(static_cast<int>(product.right->imm), p_.lanes,
                                             e_.emit(product.right->src[0], e), false)
                                  : e_.splat(e_.emit(product.right, e), p_.lanes));
    }
    if (source == BSource::kPacking) store_vectors(b_, body, c.right, at, right);
    return right;
  }
  for (uint32_t v = 0; v < p_.vectors; ++v)
    right.push_back(b_.local_load(body, c.right, Expr(at + v * p_.lanes), p_.lanes));
  return right;
}

/// One for every row of the tile; of dot products words.
std::vector<ValueId> PackedGemm::a_elements(const Contraction& c, const Tile& tile, ValueId step,
                                            BlockId body) {
  const PanelProduct& product = c.product;
  const Expr own(b_, step), k = own * product.pack();
  std::vector<ValueId> left;
  if (p_.reads_a_in_place) {
    const Expr start = Expr(b_, tile.first) * product.inner + k;
    const uint32_t binding = e_.make_bindings(start, body, 0, 1, 0);
    const Env env = e_.bound(block_.env, product.left_k, binding);
    const ValueId base = b_.add(block_.row, tile.row);
    for (const Env& e : e_.bind_axis({env}, p_.row, base, body, 1, p_.rows, 1))
      left.push_back(product.dot ? b_.words(static_cast<int>(product.left->imm), 1,
                                            e_.emit(product.left->src[0], e), false)
                                 : e_.emit(product.left, e));
    return left;
  }
  const Expr line = p_.is_transposed ? Expr(own * c.row_step + Expr(b_, tile.row)) : k;
  for (uint32_t i = 0; i < p_.rows; ++i) {
    const ValueId from = b_.add(line, b_.index(p_.is_transposed ? i : i * c.row_step));
    left.push_back(product.dot ? b_.local_words(body, c.left, from)
                               : b_.local_load(body, c.left, from));
  }
  return left;
}

/// What the accumulators of a tile start from: those of the block of K before, without corrections.
/// Steps of K are added in order, whatever the blocks: bits depend on neither threads nor
/// schedules.
void PackedGemm::start_tile(const Contraction& c, const Tile& tile, BlockId block) {
  const PanelProduct& product = c.product;
  const Type type{product.reduce->dtype, p_.lanes};
  for (const uint32_t reg : c.registers) b_.assign(block, reg, b_.constant(type, 0));
  if (!product.is_single) {
    const BlockId later = b_.open_block(block);
    for (uint32_t i = 0; i < c.registers.size(); ++i) {
      const Expr at = Expr(b_, tile.accumulators) + i * p_.lanes;
      b_.assign(later, c.registers[i], b_.local_load(later, c.accumulators, at, p_.lanes));
      // Those of the next tile are on their way meanwhile.
      const Expr next = at + p_.rows * p_.tile_columns();
      if (!p_.is_transposed) b_.prefetch_local(later, c.accumulators, next);
    }
    b_.close_if(later, b_.lt(b_.index(0), tile.first));
  }
  if (!product.dot || !product.dot->flips_left) return;
  for (uint32_t v = 0; v < p_.vectors; ++v) {
    const ValueId at = b_.add(tile.column, b_.index(int64_t{v} * p_.lanes));
    const ValueId correction = b_.local_load(block, c.corrections, at, p_.lanes);
    for (uint32_t i = 0; i < p_.rows; ++i) {
      const uint32_t reg = c.registers[i * p_.vectors + v];
      const Expr corrected = Expr(b_, b_.read(block, reg)) - Expr(b_, correction);
      b_.assign(block, reg, corrected);
    }
  }
}

}  // namespace bm::compiler
