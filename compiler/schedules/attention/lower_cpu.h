#pragma once
// State of the lowering of attention; private to lower_attention*.cpp.

#include <vector>

#include "compiler/lowering/emitter.h"
#include "compiler/schedules/attention/attention_plan.h"

namespace bm::compiler {

/// One block of queries. Arrays of strips hold, strip by strip, one line of queries per step.
struct Lowerer::AttentionState {
  Env env;                               // loops besides queries, keys and the result's elements
  ValueId row = kNone, rows = kNone;     // the first query, how many
  int64_t depth = 1, width = 1;          // of q·k, of a result
  int64_t key_step = 1, value_step = 1;  // between copied rows
  int64_t lines = 1;                     // of a strip of results
  int64_t turned_step = 1;
  DType dtype = DType::kF32;
  // Local arrays.
  uint32_t queries = 0, keys = 0, values = 0, scores = 0, results = 0, most = 0, totals = 0,
           turned = 0;
  std::vector<uint32_t> sums;  // registers of a tile, [row][vector]
};

/// One strip at one block of keys.
struct Lowerer::AttentionStrip {
  ValueId at = kNone;                        // first query, from the block's first on
  ValueId height = kNone;                    // queries that exist
  ValueId first_key = kNone, count = kNone;  // keys
  BlockId block = kNone;
};

/// A product of single elements and lines of a strip, both in local arrays.
struct Lowerer::AttentionTile {
  uint32_t rows = 0;
  ValueId row_at = kNone;
  int64_t row_step = 0, depth_step = 0;  // to the next row of the tile, to the next step of depth
  uint32_t vectors = 0;
  ValueId vector_at = kNone;
  ValueId length = kNone;  // of the depth
  uint32_t results = 0;
  ValueId result_at = kNone;
};

/// Keys of a block whose scores are made in one way.
struct Lowerer::AttentionScores {
  ValueId begin = kNone, end = kNone;
  const Node *value = nullptr, *product = nullptr, *row = nullptr;
};

}  // namespace bm::compiler
