// Sums of products of few rows: the right operand is read in its own order; see PanelPlan.
#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {

/// Few rows: sums of all columns of the block in scratch, a few depths added at a time.
void Emitter::lower_strips(PanelBlock& block, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  block.row = b_.index(0);
  std::vector<PanelStore> stores(p.products.size());
  for (size_t i = 0; i < p.products.size(); ++i) {
    const DType t = p.products[i].reduce->dtype;
    stores[i].sums = b_.add_local(t, static_cast<uint64_t>(p.rows * p.column_block));
    const Builder::Loop zero = b_.open_loop(parent);
    b_.local_store(zero.body, stores[i].sums, zero.index, b_.constant({t, p.lanes}, 0));
    b_.close_loop(zero, b_.index(0), b_.index(p.rows * p.column_block), p.lanes);
    const ValueId extent = emit(p.products[i].right_depth[0]->src[0], block.env);
    const ValueId rest = b_.bit_and(extent, b_.index(p.strip_depths - 1));
    const ValueId whole = b_.sub(extent, rest);
    add_strip(block, p.products[i], stores[i], b_.index(0), whole, p.strip_depths, parent);
    add_strip(block, p.products[i], stores[i], whole, extent, 1, parent);
  }
  const Builder::Loop columns = b_.open_loop(parent);
  const std::vector<ValueId> sums(p.products.size(), b_.mul(columns.index, b_.index(p.rows)));
  PanelTile tile;
  tile.row = b_.index(0);
  tile.column = columns.index;
  store_panels(block, stores, sums, tile, b_.index(0), b_.index(p.rows), columns.body);
  b_.close_loop(columns, b_.index(0), block.columns, p.tile_columns());
}

void Emitter::add_strip(const PanelBlock& block, const PanelProduct& product, const PanelStore& s,
                        ValueId begin, ValueId end, uint32_t depths, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
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
    // The rows of the next trip, however far apart they are.
    if (depths > 1) prefetch_rows_ahead(value, all, product.left_depth, depths, inside);
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
