#pragma once
// State of the lowering of attention by matrix instructions; private to lower_group_*.cpp.

#include <array>
#include <vector>

#include "compiler/codegen/lowerer.h"
#include "compiler/opt/attention.h"

namespace bm::compiler {

/// What a group and this work-item of it have. Results of an instruction lie with work-item 4·g + t
/// of a sub-group: columns 2t and 2t+1 of rows g and g+8.
struct Lowerer::GroupAttention {
  Env env;                                          // loops over heads
  ValueId first_row = kNone, row_extent = kNone;    // queries
  ValueId all_keys = kNone, visible_keys = kNone;   // of any query, of this group's
  ValueId lane = kNone, part = kNone;               // in the sub-group; t
  ValueId own_lines = kNone;                        // the sub-group's first query in the group
  ValueId is_aligned = kNone, is_not = kNone;       // params start at multiples of 16 bytes
  uint32_t array = 0;                               // local one
  std::array<uint32_t, 2> rows = {};                // bindings of the queries g and g + 8
  std::array<ValueId, 2> has_row = {kNone, kNone};  // kNone: certainly
  std::vector<std::vector<ValueId>> queries;        // words, by 16 steps of depth
  // First of four registers for 8 keys, for 8 elements of the results.
  std::vector<uint32_t> scores, results;
  std::array<uint32_t, 2> most = {}, totals = {};  // registers, by row; totals of this work-item
};

/// Rows of a param on their way to local memory.
struct Lowerer::GroupTile {
  const Node *load = nullptr, *along = nullptr, *inner = nullptr;
  ValueId first = kNone, extent = kNone;  // of the loop `along`; extent kNone: all lines are there
  int64_t lines = 0;
  ValueId at = kNone;  // byte
};

/// What a block of keys gives for rows g and g + 8.
struct Lowerer::GroupPowers {
  std::array<std::vector<ValueId>, 2> scores;   // in the order of keys
  std::array<ValueId, 2> from = {}, fade = {};  // the maximum; what earlier sums are worth
};

}  // namespace bm::compiler
