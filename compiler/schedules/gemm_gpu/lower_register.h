#pragma once
// Tiles of matrix instructions. Private to lower_matrix.cpp and lower_pipe*.cpp.

#include "compiler/lowering/emitter.h"

namespace bm::compiler {

/// Where the tile of a sub-group is, and what holds its sums.
struct Emitter::Tile {
  ValueId row = kNone, column = kNone;              // first of the tile
  ValueId first_row = kNone, first_column = kNone;  // first of the group's
  ValueId own_row = kNone, own_column = kNone;      // distance between these
  ValueId place = kNone, part = kNone;              // g and p of this work-item
  Env env;                                          // loops besides rows and columns
  std::vector<uint32_t> left, right;  // bindings of the rows and columns that are loaded
  // Bindings of the sums of a work-item: rows of [left slots of an instruction][sum], columns of
  // [right slot][sum].
  std::vector<std::vector<uint32_t>> out_rows, out_columns;
  // Whether these rows and columns are there, in the same order; empty: all are.
  std::vector<std::vector<ValueId>> has_rows, has_columns;
  std::vector<uint32_t> sums;  // first register of [left slots of an instruction][right slot]
};

/// Tiles in local memory, on their way there and being multiplied.
struct Emitter::Pipe {
  const Tile& tile;
  CopyKind copy = CopyKind::kAsync;
  uint32_t array = 0;  // local one: stages of the left tile and the right tile
  BlockId block = 0;   // around the loop over depth
};

}  // namespace bm::compiler
