// GEMV and skinny GEMM (few rows): B is streamed once, unpacked, in its own order; accumulators for
// a whole block of columns are in scratch. See PackedGemmPlan.
#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {

/// GEMV and skinny GEMM: accumulators of all columns of the block in scratch, a few steps of K
/// added at a time.
void PackedGemm::lower_gemv(BlockId parent) {
  block_.row = b_.index(0);
  for (size_t i = 0; i < p_.products.size(); ++i) {
    const DType t = p_.products[i].reduce->dtype;
    Contraction& c = stores_.emplace_back(Contraction{p_.products[i]});
    c.accumulators = b_.add_local(t, static_cast<uint64_t>(p_.rows * p_.column_block));
    const Builder::Loop zero = b_.open_loop(parent);
    b_.local_store(zero.body, c.accumulators, zero.index, b_.constant({t, p_.lanes}, 0));
    b_.close_loop(zero, b_.index(0), b_.index(p_.rows * p_.column_block), p_.lanes);
    const ValueId extent = e_.emit(p_.products[i].right_k[0]->src[0], block_.env);
    in_steps(b_, b_.index(0), extent, p_.k_unroll,
             [&](ValueId begin, ValueId end, uint32_t unroll) {
               add_k_steps(c, begin, end, unroll, parent);
             });
  }
  const Builder::Loop columns = b_.open_loop(parent);
  const std::vector<ValueId> accumulators(p_.products.size(),
                                          b_.mul(columns.index, b_.index(p_.rows)));
  Tile tile;
  tile.row = b_.index(0);
  tile.column = columns.index;
  store_tile(accumulators, tile, b_.index(0), b_.index(p_.rows), columns.body);
  b_.close_loop(columns, b_.index(0), block_.columns, p_.tile_columns());
}

void PackedGemm::add_k_steps(const Contraction& c, ValueId begin, ValueId end, uint32_t unroll,
                             BlockId parent) {
  const PanelProduct& product = c.product;
  const Builder::Loop k = b_.open_loop(parent);
  const Instances along = e_.bind_axis({block_.env}, product.left_k, k.index, k.body, 1, unroll, 1);
  std::vector<std::vector<ValueId>> left(p_.rows);  // [row][step of K]
  for (uint32_t r = 0; r < p_.rows; ++r) {
    const uint32_t row = p_.row ? e_.make_bindings(b_.index(r), e_.program().root, 0, 1, 0) : 0;
    for (const Env& env : along)
      left[r].push_back(
          e_.splat(e_.emit(product.left, p_.row ? e_.bound(env, p_.row, row) : env), p_.lanes));
  }
  const Builder::Loop columns = b_.open_loop(k.body);
  const Expr accumulators = Expr(b_, columns.index) * p_.rows;
  split_tail(columns.index, columns.body, [&](BlockId inside, bool has_tail) {
    const ValueId base = b_.add(block_.column, columns.index);
    const Node* range = has_tail ? p_.edge_column : p_.column;
    const Node* value = has_tail ? product.edge_right : product.right;
    const Instances all = e_.bind_axis(along, range, base, inside, p_.lanes, p_.vectors, p_.lanes);
    // The rows of the next iteration, however far apart they are.
    if (unroll > 1) prefetch_rows_ahead(value, all, product.left_k, unroll, inside);
    for (uint32_t r = 0; r < p_.rows; ++r)
      for (uint32_t v = 0; v < p_.vectors; ++v) {
        const Expr at = accumulators + (r * p_.tile_columns() + v * p_.lanes);
        ValueId sum = b_.local_load(inside, c.accumulators, at, p_.lanes);
        for (uint32_t d = 0; d < unroll; ++d) {
          const ValueId right = e_.splat(e_.emit(value, all[d * p_.vectors + v]), p_.lanes);
          sum = b_.mad(left[r][d], right, sum);
        }
        b_.local_store(inside, c.accumulators, at, sum);
      }
  });
  b_.close_loop(columns, b_.index(0), block_.columns, p_.tile_columns());
  b_.close_loop(k, begin, end, unroll);
}

}  // namespace bm::compiler
