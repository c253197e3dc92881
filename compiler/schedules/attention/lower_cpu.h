#pragma once
// Lowering of tiled attention for CPUs; private to lower_cpu*.cpp.

#include <functional>
#include <vector>

#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"
#include "compiler/schedules/attention/attention_plan.h"

namespace bm::compiler {

/// See AttentionPlan. Arrays of query tiles hold, query tile by query tile, one line of queries per
/// step.
class TiledAttention {
 public:
  explicit TiledAttention(Emitter& e)
      : e_(e), b_(e.builder()), p_(*e.schedule().attention()), a_(p_.parts) {}

  void run();

 private:
  /// One block of queries.
  struct State {
    Env env;                               // loops besides queries, keys and the result's elements
    ValueId row = kNone, rows = kNone;     // the first query, how many
    int64_t head_dim = 1, width = 1;       // of q·k, of a result
    int64_t key_step = 1, value_step = 1;  // between packed rows
    int64_t lines = 1;                     // of a query tile of results
    int64_t transposed_step = 1;
    DType dtype = DType::kF32;
    // Local arrays.
    uint32_t queries = 0, keys = 0, values = 0, logits = 0, results = 0, row_max = 0, row_sums = 0,
             transposed = 0;
    std::vector<uint32_t> accumulators;  // registers of a tile, [row][vector]
  };
  /// One query tile at one block of keys.
  struct QueryTile {
    ValueId at = kNone;                        // first query, from the block's first on
    ValueId height = kNone;                    // queries that exist
    ValueId first_key = kNone, count = kNone;  // keys
    BlockId block = kNone;
  };
  /// A product of single elements and lines of a query tile, both in local arrays.
  struct Tile {
    uint32_t rows = 0;
    ValueId row_at = kNone;
    int64_t row_step = 0;       // to the next row of the tile
    int64_t head_dim_step = 0;  // to the next step of the head dimension
    uint32_t vectors = 0;
    ValueId vector_at = kNone;
    ValueId length = kNone;  // of the head dimension
    uint32_t results = 0;
    ValueId result_at = kNone;
  };
  /// Keys of a block whose logits are made in one way.
  struct Logits {
    ValueId begin = kNone, end = kNone;
    const Node *value = nullptr, *product = nullptr, *row = nullptr;
  };

  void make_workspace();
  ValueId scaled(ValueId v, int64_t factor);
  ValueId moved(ValueId v, int64_t offset);
  ValueId causal_bound(ValueId row, BlockId block);
  ValueId visible_keys(ValueId rows, BlockId block);
  void split_tail(const QueryTile& query_tile, const std::function<void(BlockId, bool)>& body);
  void start_query_tile(const QueryTile& query_tile);
  void transpose_queries(const QueryTile& query_tile, BlockId block);
  void copy_queries(const QueryTile& query_tile, BlockId block);
  void pack_rows(const Node* value, const Node* along, uint32_t array, int64_t step, ValueId first,
                 ValueId count, BlockId parent);
  // lower_cpu_tile.cpp
  void add_keys(QueryTile query_tile);
  void add_visible_keys(const QueryTile& query_tile);
  void add_values(const QueryTile& query_tile, const std::vector<ValueId>& rescale);
  void multiply_rows(BlockId block, const std::vector<ValueId>& start, const Tile& tile);
  void finish_logits(const QueryTile& query_tile, const std::vector<uint32_t>& row_max,
                     BlockId block, bool has_tail);
  void finish_keys(const QueryTile& query_tile, const std::vector<uint32_t>& row_max,
                   const Logits& logits, BlockId block, uint32_t step);
  std::vector<ValueId> take_exp(const QueryTile& query_tile, const std::vector<uint32_t>& row_max);
  void finish_query_tile(const QueryTile& query_tile);
  void transpose_results(const QueryTile& query_tile);

  Emitter& e_;
  Builder& b_;
  const AttentionPlan& p_;
  const AttentionParts& a_;
  State s_;
};

}  // namespace bm::compiler
