#pragma once
// PackedGemmPlan: GEMM (and convolutions as implicit GEMM) in tiles of vector registers.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"
#include "compiler/schedules/schedule.h"

namespace bm::compiler {

class Emitter;
struct Rewritten;

/// How an operand is copied.
enum class PanelCopy : uint8_t {
  kVectors,     ///< contiguous in memory, contiguous in the copy
  kTransposed,  ///< contiguous in memory along K
  kSingle,      ///< element by element
};

/// How dot products of words stand for a product of narrow elements.
struct PanelDot {
  DotKind kind = DotKind::kU8S8;
  /// The left words are the first operand of DotKind (of kU8S8: the unsigned one).
  bool is_left_first = true;
  /// Both factors are signed, or neither is: the upper bits of the elements of A are flipped, and
  /// what this adds to every column is taken away again.
  bool flips_left = false;
};

/// Σ over K of left · right, where `left` varies along the rows and `right` along the columns.
struct PanelProduct {
  const ir::Node *reduce = nullptr, *edge_reduce = nullptr;
  /// Of dot products without the conversions to the type of the sum.
  const ir::Node *left = nullptr, *right = nullptr, *edge_right = nullptr;
  std::optional<PanelDot> dot;       ///< several steps of K at a time; then right_k is one loop
  const ir::Node* left_k = nullptr;  ///< all loops of the reduction as one
  /// The loops as `right` sees them, outer to inner; all but the first have constant extents, whose
  /// product is `inner`.
  std::vector<const ir::Node*> right_k;
  int64_t inner = 1;
  int64_t block = 1;        ///< iterations of right_k[0] whose operands are copied at a time
  bool is_single = true;    ///< that is all of them
  uint32_t left_lanes = 1;  ///< copied at a time along K
  PanelCopy right_copy = PanelCopy::kSingle;
  bool reads_b_in_place = false;    ///< where it is: it lies in panels of tile_columns() already
  bool packs_b_on_the_fly = false;  ///< B, while the first rows of a block are multiplied
  /// Of transposed plans: the loops of K as `left_line` sees them, outer to inner, all constant
  /// but the first, and the product of the extents of the inner ones.
  std::vector<const ir::Node*> line_k;
  int64_t line_inner = 1;
  const ir::Node *left_line = nullptr, *edge_left_line = nullptr;
  /// What their vectors run along: all rows, or, where those are not evenly spaced in memory, the
  /// innermost loop of them for each iteration of `line_outer`.
  const ir::Node *line = nullptr, *edge_line = nullptr, *line_outer = nullptr;
  int64_t k_block() const { return block * inner; }
  /// Steps of K that one iteration of the innermost loop takes.
  int64_t pack() const { return dot ? dot_k(dot->kind) : 1; }
  int64_t steps_block() const { return (k_block() + pack() - 1) / pack(); }
};

/// Packed GEMM (BLIS, Goto): blocks of M and N are partitioned over threads. For a block, the
/// operands are packed into the workspace in the order they are read in: B in panels of
/// tile_columns() columns, step by step of K (of dot products: word by word), A row by row.
struct PackedGemmPlan {
  /// The kernel with all rows and all columns in one loop each; all nodes here are its own.
  std::shared_ptr<const ir::KernelIr> kernel;
  const ir::Node *row = nullptr, *column = nullptr;  ///< row nullptr: one row
  /// Skinny GEMM (M below a tile): nothing is packed. A few steps of K at a time are added to the
  /// accumulators of a whole block of columns, which are in the workspace, so that B is streamed
  /// once, in its own order.
  bool is_skinny = false;
  uint32_t k_unroll = 8;               ///< a power of two
  std::vector<const ir::Node*> batch;  ///< the other output loops
  /// For tiles that reach beyond the last column: its loop ends later, and nothing is read or
  /// written there.
  const ir::Node* edge_column = nullptr;
  std::vector<ir::Store> edge_stores;
  std::vector<PanelProduct> products;
  uint32_t lanes = 1, vectors = 1, rows = 1;  ///< tile: rows × vectors·lanes
  /// A is read in place. There are at least as many rows as a tile has; the last
  /// tile begins at a row of the one before where it would end beyond the last row.
  bool reads_a_in_place = false;
  /// All rows are one tile, and each B is read in place, as a stream from memory (is_read_once).
  bool reads_b_once = false;
  bool is_packing_b_expensive =
      false;  ///< it takes a noticeable part of the time; constants are prepacked then
  /// Adjacent results are rows: A is copied step by step of K, adjacent
  /// rows side by side, and the accumulators of a block are transposed before they are stored.
  bool is_transposed = false;
  const ir::Node* edge_row = nullptr;       ///< as edge_column; edge_stores are along it
  int64_t row_block = 1, column_block = 1;  ///< multiples of the tile's
  int64_t tile_columns() const { return int64_t{vectors} * lanes; }
};

/// For kernels that are worth it: enough rows, columns and K for packing to pay. Targets
/// without work-groups.
std::optional<Schedule> make_panel_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                            uint32_t units, ScheduleLimits limits);

/// The kernel whose loops and expressions the plan names.
Rewritten rewritten(const PackedGemmPlan& plan);
void lower_packed_gemm(Emitter& e);

}  // namespace bm::compiler
