#pragma once
// What the parts of lower_panel*.cpp and lower_strips.cpp hand each other.

#include <vector>

#include "compiler/lowering/emitter.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"

namespace bm::compiler {

/// Rows asked for ahead of a copy: as long as memory takes.
constexpr int64_t kRowsAhead = 32;

/// Arrays in scratch and registers of one product.
struct Emitter::PanelStore {
  uint32_t left = 0, right = 0, sums = 0;
  uint32_t corrections = 0;         // of PanelDot::flips_left: by column of the block
  int64_t row_step = 0;             // of `left`; of turned plans from depth to depth
  uint32_t turned = 0;              // of turned plans: sums by column of the block, row_step apart
  std::vector<uint32_t> registers;  // [row][vector]
};

/// What copies one panel, or one column of it, of the right operand.
struct Emitter::PanelCopyState {
  const PanelProduct& product;
  const PanelStore& store;
  ValueId first = kNone, trips = kNone;  // iterations of the outermost loop of the depth
  ValueId panel = kNone;                 // where it goes
  const Node* value = nullptr;
  uint32_t copies = 1;  // iterations side by side, a power of two
  // Column by column: the first one, and how many.
  ValueId column = kNone, width = kNone;
};

/// What copies vectors of the left operand of a turned plan.
struct Emitter::TurnedCopy {
  const PanelProduct& product;
  const PanelStore& store;
  ValueId first = kNone, trips = kNone;  // iterations of PanelProduct::line_depth[0]
  ValueId at = kNone;                    // place of the first vector at the first step
  const Node* value = nullptr;
};

/// What is added to one tile of sums at a time.
struct Emitter::PanelTile {
  ValueId first = kNone, length = kNone;  // iterations of the depth
  ValueId row = kNone, column = kNone;    // first ones, counted from those of the block
  ValueId sums = kNone;                   // place in PanelStore::sums
  ValueId is_first = kNone;               // whether it is in the first rows of the block
  ValueId height = kNone;  // rows, of them the last ones if left operands are read in place
  // Element of a right operand read in place that is asked for meanwhile, or kNone; `lines` of the
  // cache a trip, of `parts` tiles that share the asking.
  ValueId ahead = kNone;
  int64_t lines = 0, parts = 0;
};

/// What one call of the grid works on.
struct Emitter::PanelBlock {
  Env env;                                // loops besides rows and columns
  ValueId row = kNone, column = kNone;    // first ones
  ValueId rows = kNone, columns = kNone;  // how many
};

}  // namespace bm::compiler
