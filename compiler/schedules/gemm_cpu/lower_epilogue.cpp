// What follows the sums of a tile: they are kept for the next depth, or become results.
#include <array>
#include <functional>
#include <unordered_set>

#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {
namespace {

/// Operations after the sums that are written out for every vector of a tile.
constexpr size_t kMostWrittenOut = 8;

bool has_load(const Node* root) {
  for (const Node* n : ir::topological({&root, 1}))
    if (n->op == Op::kLoad) return true;
  return false;
}

}  // namespace

void Emitter::keep_sums(const PanelStore& s, const PanelTile& tile, BlockId block) {
  const int64_t lanes = schedule_.panels()->lanes;
  for (size_t i = 0; i < s.registers.size(); ++i)
    b_.local_store(block, s.sums, b_.add(tile.sums, b_.index(static_cast<int64_t>(i) * lanes)),
                   b_.read(block, s.registers[i]));
}

/// The places of a tile's results on their way while its sums are made.
void Emitter::prefetch_results(const PanelBlock& block, const PanelTile& tile, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const uint32_t column = number_of(p.column);
  const Builder::Loop rows = b_.open_loop(parent);
  const ValueId at = b_.add(b_.add(block.row, tile.row), rows.index);
  const Env env = bound(block.env, p.row, make_bindings(at, rows.body, 0, 1, 0));
  const ValueId base = b_.add(block.column, tile.column);
  for (const ir::Store& store : kernel_.stores) {
    const auto param = static_cast<size_t>(store.param);
    const int64_t line = b_.target().cache_line_bytes / item_size(kernel_.params[param].dtype);
    if (strides(column, p.lanes).stride(store.index) != 1 || has_load(store.index)) continue;
    const auto count = static_cast<uint32_t>((p.tile_columns() + line - 1) / line);
    for (const Env& e : bind_axis({env}, p.column, base, rows.body, 1, count, line)) {
      const ValueId index = emit(store.index, e);
      b_.prefetch(rows.body, store.param, index);
    }
  }
  b_.close_loop(rows, b_.index(0), b_.index(p.rows), 1);
}

/// Whether the rest of the kernel may be written out for every vector of a tile.
bool Emitter::is_rest_short() const {
  const PanelPlan& p = *schedule_.panels();
  if (!p.row) return false;
  std::vector<const Node*> roots;
  for (const ir::Store& s : kernel_.stores) {
    roots.push_back(s.value);
    if (s.gate) roots.push_back(s.gate);
  }
  size_t count = 0;
  std::unordered_set<const Node*> seen;
  const std::function<void(const Node*)> visit = [&](const Node* n) {
    if (n->op == Op::kReduce || !seen.insert(n).second) return;
    if (n->dtype != DType::kI64) ++count;
    if (n->op == Op::kLoad) return;
    for (const Node* s : n->src) visit(s);
  };
  for (const Node* n : roots) visit(n);
  return count <= kMostWrittenOut;
}

/// The rest of the kernel for a tile whose sums are in registers: whole tiles from there, others
/// by way of scratch.
void Emitter::finish_tile(const PanelBlock& block, const std::vector<PanelStore>& stores,
                          const std::vector<ValueId>& sums, const PanelTile& tile, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const auto through_scratch = [&](BlockId at) {
    keep_sums(stores.back(), tile, at);
    const ValueId rows = b_.index(p.rows);
    store_panels(block, stores, sums, tile, p.reads_left ? b_.sub(rows, tile.height) : b_.index(0),
                 p.reads_left ? rows : tile.height, at);
  };
  if (!is_rest_short()) return through_scratch(parent);
  const auto is_multiple = [](const Node* range, int64_t of) {
    return range->src[0]->is_const() && range->src[0]->imm % of == 0;
  };
  ValueId is_whole = kNone;
  if (!is_multiple(p.row, p.rows)) is_whole = b_.eq(tile.height, b_.index(p.rows));
  if (!is_multiple(p.column, p.tile_columns())) {
    const ValueId is_inside = has_all_columns(tile.column, block);
    is_whole = is_whole == kNone ? is_inside : b_.bit_and(is_whole, is_inside);
  }
  if (is_whole == kNone) return store_registers(block, stores, sums, tile, parent);
  in_branch(is_whole, parent, [&](BlockId at) { store_registers(block, stores, sums, tile, at); });
  in_branch(b_.raw(Op::kNot, DType::kBool, {is_whole}), parent, through_scratch);
}

void Emitter::store_registers(const PanelBlock& block, const std::vector<PanelStore>& stores,
                              const std::vector<ValueId>& sums, const PanelTile& tile,
                              BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  const ValueId row = b_.add(block.row, tile.row);
  const ValueId column = b_.add(block.column, tile.column);
  const Instances rows = bind_axis({block.env}, p.row, row, parent, 1, p.rows, 1);
  for (uint32_t r = 0; r < p.rows; ++r) {
    const Instances all =
        bind_axis({rows[r]}, p.column, column, parent, p.lanes, p.vectors, p.lanes);
    for (uint32_t v = 0; v < p.vectors; ++v) {
      const uint32_t place = r * p.vectors + v;
      for (size_t i = 0; i + 1 < p.products.size(); ++i) {
        const ValueId at = b_.add(sums[i], b_.index(int64_t{place} * p.lanes));
        memo_[key(p.products[i].reduce, all[v])] =
            b_.local_load(parent, stores[i].sums, at, p.lanes);
      }
      memo_[key(p.products.back().reduce, all[v])] =
          b_.read(parent, stores.back().registers[place]);
    }
    emit_stores(parent, all, kernel_.stores);
  }
}

/// The rest of the kernel for one tile: sums become what the stores want.
void Emitter::store_panels(const PanelBlock& block, const std::vector<PanelStore>& stores,
                           const std::vector<ValueId>& sums, const PanelTile& tile, ValueId begin,
                           ValueId end, BlockId parent) {
  const PanelPlan& p = *schedule_.panels();
  split_edge(tile.column, block, parent, [&](BlockId inside, bool is_edge) {
    const Builder::Loop rows = b_.open_loop(inside);
    Env env = block.env;
    if (p.row) {
      const ValueId at = b_.add(b_.add(block.row, tile.row), rows.index);
      env = bound(env, p.row, make_bindings(at, rows.body, 0, 1, 0));
    }
    const ValueId base = b_.add(block.column, tile.column);
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
    b_.close_loop(rows, begin, end, 1);
  });
}

}  // namespace bm::compiler
