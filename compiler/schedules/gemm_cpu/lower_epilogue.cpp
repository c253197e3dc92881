// Epilogue of packed GEMM: accumulators are spilled for the next block of K, or become results.
#include <array>
#include <functional>
#include <unordered_set>

#include "compiler/program/expr.h"
#include "compiler/schedules/gemm_cpu/lowering.h"

namespace bm::compiler {
namespace {

/// Operations after the accumulators that are written out for every vector of a tile.
constexpr size_t kMostWrittenOut = 8;

bool has_load(const Node* root) {
  for (const Node* n : ir::topological({&root, 1}))
    if (n->op == Op::kLoad) return true;
  return false;
}

}  // namespace

/// The addresses of a tile's results prefetched while its accumulators are computed.
void PackedGemm::prefetch_results(const Tile& tile, BlockId parent) {
  const uint32_t column = e_.number_of(p_.column);
  const Builder::Loop rows = b_.open_loop(parent);
  const Env env = row_of_tile(tile.row, rows);
  const ValueId base = b_.add(block_.column, tile.column);
  for (const ir::Store& store : e_.kernel().stores) {
    const auto param = static_cast<size_t>(store.param);
    const int64_t line = b_.target().cache_line_bytes / item_size(e_.kernel().params[param].dtype);
    if (e_.strides(column, p_.lanes).stride(store.index) != 1 || has_load(store.index)) continue;
    const auto count = static_cast<uint32_t>((p_.tile_columns() + line - 1) / line);
    for (const Env& e : e_.bind_axis({env}, p_.column, base, rows.body, 1, count, line)) {
      const ValueId index = e_.emit(store.index, e);
      b_.prefetch(rows.body, store.param, index);
    }
  }
  b_.close_loop(rows, b_.index(0), b_.index(p_.rows), 1);
}

/// Whether the rest of the kernel may be written out for every vector of a tile.
bool PackedGemm::is_epilogue_short() const {
  if (!p_.row) return false;
  std::vector<const Node*> roots;
  for (const ir::Store& s : e_.kernel().stores) {
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

/// The rest of the kernel for a tile whose accumulators are in registers: whole tiles from there,
/// others by way of scratch.
void PackedGemm::epilogue(const std::vector<ValueId>& accumulators, const Tile& tile,
                          BlockId parent) {
  const auto through_scratch = [&](BlockId at) {
    spill_vectors(b_, at, stores_.back().accumulators, tile.accumulators, stores_.back().registers);
    const ValueId rows = b_.index(p_.rows);
    store_tile(accumulators, tile, p_.reads_a_in_place ? b_.sub(rows, tile.height) : b_.index(0),
               p_.reads_a_in_place ? rows : tile.height, at);
  };
  if (!is_epilogue_short()) return through_scratch(parent);
  const auto is_multiple = [](const Node* range, int64_t of) {
    return range->src[0]->is_const() && range->src[0]->imm % of == 0;
  };
  ValueId is_whole = kNone;
  if (!is_multiple(p_.row, p_.rows)) is_whole = b_.eq(tile.height, b_.index(p_.rows));
  if (!is_multiple(p_.column, p_.tile_columns())) {
    const ValueId is_inside = has_all_columns(tile.column);
    is_whole = is_whole == kNone ? is_inside : b_.bit_and(is_whole, is_inside);
  }
  if (is_whole == kNone) return store_accumulators(accumulators, tile, parent);
  e_.branch(is_whole, parent, [&](BlockId at) { store_accumulators(accumulators, tile, at); });
  e_.branch(b_.negated(is_whole), parent, through_scratch);
}

void PackedGemm::store_accumulators(const std::vector<ValueId>& accumulators, const Tile& tile,
                                    BlockId parent) {
  const ValueId row = b_.add(block_.row, tile.row);
  const ValueId column = b_.add(block_.column, tile.column);
  const Instances rows = e_.bind_axis({block_.env}, p_.row, row, parent, 1, p_.rows, 1);
  for (uint32_t r = 0; r < p_.rows; ++r) {
    const Instances all =
        e_.bind_axis({rows[r]}, p_.column, column, parent, p_.lanes, p_.vectors, p_.lanes);
    for (uint32_t v = 0; v < p_.vectors; ++v) {
      const uint32_t vector = r * p_.vectors + v;
      for (size_t i = 0; i + 1 < p_.products.size(); ++i) {
        const ValueId at = b_.add(accumulators[i], b_.index(int64_t{vector} * p_.lanes));
        e_.set_known(p_.products[i].reduce, all[v],
                     b_.local_load(parent, stores_[i].accumulators, at, p_.lanes));
      }
      e_.set_known(p_.products.back().reduce, all[v],
                   b_.read(parent, stores_.back().registers[vector]));
    }
    e_.emit_stores(parent, all, e_.kernel().stores);
  }
}

/// The rest of the kernel for one tile: accumulators become what the stores want.
void PackedGemm::store_tile(const std::vector<ValueId>& accumulators, const Tile& tile,
                            ValueId begin, ValueId end, BlockId parent) {
  split_tail(tile.column, parent, [&](BlockId inside, bool has_tail) {
    const Builder::Loop rows = b_.open_loop(inside);
    const Env env = p_.row ? row_of_tile(tile.row, rows) : block_.env;
    const ValueId base = b_.add(block_.column, tile.column);
    const Node* range = has_tail ? p_.edge_column : p_.column;
    const Instances all = e_.bind_axis({env}, range, base, inside, p_.lanes, p_.vectors, p_.lanes);
    const ValueId line = b_.mul(rows.index, b_.index(p_.tile_columns()));
    store_line(
        all, &Contraction::accumulators, [&](size_t i) { return b_.add(accumulators[i], line); },
        has_tail, rows.body);
    b_.close_loop(rows, begin, end, 1);
  });
}

/// The rest of the kernel for vectors side by side, whose accumulators begin at element from(i) of
/// an array of contraction i.
void PackedGemm::store_line(const Instances& all, uint32_t Contraction::* array,
                            const std::function<ValueId(size_t)>& from, bool has_tail,
                            BlockId block) {
  for (size_t i = 0; i < p_.products.size(); ++i) {
    const PanelProduct& product = p_.products[i];
    const Expr first(b_, from(i));
    for (uint32_t v = 0; v < all.size(); ++v) {
      const Expr at = first + v * p_.lanes;
      e_.set_known(has_tail ? product.edge_reduce : product.reduce, all[v],
                   b_.local_load(block, stores_[i].*array, at, p_.lanes));
    }
  }
  e_.emit_stores(block, all, has_tail ? p_.edge_stores : e_.kernel().stores);
}

}  // namespace bm::compiler
