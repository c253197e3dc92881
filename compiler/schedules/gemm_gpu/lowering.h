#pragma once
// Lowering of GEMM for targets with work-groups.

#include <span>
#include <utility>
#include <vector>

#include "compiler/lowering/contract.h"
#include "compiler/lowering/epilogue.h"

namespace bm::compiler {

// For the table of strategies.
void lower_register_gemm(Emitter& e);
void lower_pipelined_gemm(Emitter& e);
void lower_simt_gemm(Emitter& e);

/// The output loops besides rows and columns of C: digits of what is left of a group's number.
Env bind_batch(Emitter& e, ValueId rest, Env env, BlockId block);

/// The loops of a contraction around `k`, its loop that goes through tiles.
class OuterLoops {
 public:
  OuterLoops(Emitter& e, const Node* reduce, const Node* k, Env env, BlockId block);
  BlockId body() const { return body_; }
  const Env& env() const { return env_; }
  void close();

 private:
  struct Open {
    Builder::Loop loop;
    ValueId end;
  };
  Builder& b_;
  Env env_;
  BlockId body_;
  std::vector<Open> open_;
};

/// What GEMMs by MMA instructions share; see MatrixPlan.
class MmaGemm {
 protected:
  /// Where the tile of a sub-group is, and what holds its accumulators.
  struct Tile {
    ValueId row = kNone, column = kNone;              // first of the tile
    ValueId first_row = kNone, first_column = kNone;  // first of the group's
    ValueId own_row = kNone, own_column = kNone;      // distance between these
    ValueId lane_group = kNone, part = kNone;         // this one's, and the thread in it
    Env env;                                          // loops besides rows and columns
    std::vector<uint32_t> left, right;  // bindings of the rows and columns that are loaded
    // Where the results of a work-item belong: rows of [left slots of an instruction][result],
    // columns of [right slot][result].
    std::vector<std::vector<Offsets::Position>> out_rows, out_columns;
    // First register of [left slots of an instruction][right slot].
    std::vector<uint32_t> accumulators;
  };

  explicit MmaGemm(Emitter& e) : e_(e), b_(e.builder()), p_(*e.schedule().matrix()) {}
  Tile tile_of_group(ValueId group, BlockId block);
  void clear_accumulators(Tile* tile, BlockId block);
  /// Whether A and B start at multiples of 16 bytes.
  ValueId operands_aligned();

  Emitter& e_;
  Builder& b_;
  const MatrixPlan& p_;
};

/// Every sub-group loads its fragments from memory.
class RegisterGemm : MmaGemm {
 public:
  explicit RegisterGemm(Emitter& e) : MmaGemm(e) {}
  void run();

 private:
  void bind_tile(Tile* tile, BlockId block);
  SlotWords fragments(const MatrixOperand& operand, const std::vector<uint32_t>& slots,
                      const Env& env, ValueId k, int64_t offset, BlockId block, bool is_aligned);
  void multiply_tiles(const Tile& tile, BlockId block, bool is_aligned);
  void store_tile(const Tile& tile, BlockId block);
};

/// Tiles are staged in shared memory; see PipePlan.
class PipelinedGemm : MmaGemm {
 public:
  explicit PipelinedGemm(Emitter& e) : MmaGemm(e) {}
  void run();

 private:
  /// Tiles in shared memory, in flight and being multiplied: the left one, then the right one.
  struct Pipe {
    const Tile& tile;
    CopyKind copy = CopyKind::kAsync;
    LineStage stage;
    BlockId block = 0;  // around the loop over K
  };

  ValueId stage_start(ValueId iteration);
  LineTile line_tile(const Pipe& pipe, const MatrixOperand& o, ValueId iteration,
                     BlockId block) const;
  bool is_k_major(const MatrixOperand& o) const { return o.is_k_major || p_.has_words(o); }
  /// Of float32 words can be copied beside the work-items wherever they are.
  bool is_async(const Pipe& pipe) const {
    return pipe.copy == CopyKind::kAsync || p_.has_rounding() || p_.has_words(p_.left) ||
           p_.has_words(p_.right);
  }
  void round_stage(const Pipe& pipe, ValueId iteration, ValueId stage, BlockId block);
  void copy_stage(const Pipe& pipe, ValueId iteration, ValueId stage, BlockId block);
  void prefetch_stage(const Pipe& pipe, ValueId iteration, BlockId block);
  SlotWords load_fragments(const Pipe& pipe, const MatrixOperand& o, uint32_t step, ValueId stage,
                           BlockId block) const;
  void multiply_stage(const Pipe& pipe, ValueId stage, BlockId block);
  void multiply_warpgroup_stage(const Pipe& pipe, ValueId stage, BlockId block);
  void run_pipeline(const Pipe& pipe);
  // Accumulators in tensor memory.
  void allocate_tensor_memory(const Pipe& pipe);
  void multiply_tensor_stage(const Pipe& pipe, ValueId iteration, ValueId stage, BlockId block);
  void wait_for_stage(const Pipe& pipe, ValueId iteration, BlockId block);
  void load_accumulators(const Pipe& pipe);
  ValueId mbarrier(ValueId iteration);
  uint32_t tensor_columns() const { return TensorMemory::allocated(p_.block_n()); }
  /// First byte of what tensor memory needs in shared memory.
  int64_t tensor_bytes() const { return int64_t{p_.stage_bytes()} * p_.pipe->stages; }
  void store_results(const Tile& tile, BlockId block, bool is_aligned);
};

/// Without MMA instructions; see StagedPlan.
class SimtGemm {
 public:
  explicit SimtGemm(Emitter& e) : e_(e), b_(e.builder()), p_(*e.schedule().staged()) {}
  void run();

 private:
  /// Where a group's tile is, and what a work-item has of it.
  struct State {
    Env env;                                        // loops besides rows and columns
    ValueId row = kNone, column = kNone;            // first of the group's tile
    ValueId item_row = kNone, item_column = kNone;  // first of the work-item's, in the tile
    std::vector<uint32_t> accumulators;             // registers, row by row
    uint32_t left = 0, right = 0;                   // local arrays: steps × tile
  };

  /// An element on its way to shared memory.
  struct Staged {
    const StagedOperand* operand = nullptr;
    uint32_t array = 0;
    ValueId at = kNone;  ///< element of `array`
    Env line;            ///< all loops but K's
    ValueId k_own = kNone;
    int64_t k_offset = 0;  ///< with k_own the step
  };

  void tile_of_group(ValueId group, BlockId block);
  void add_share(const StagedOperand& operand, bool is_left, const Env& env, BlockId block,
                 std::vector<Staged>* out);
  std::vector<ValueId> load_shares(std::span<const Staged> shares, ValueId k, bool is_whole,
                                   BlockId block);
  std::vector<ValueId> load_any_shares(std::span<const Staged> shares, ValueId k, BlockId block);
  /// Positions along a loop from `first` on; those beyond it are clamped where tiles cut it.
  Offsets lines(const Node* range, uint32_t tile, ValueId first, BlockId block);
  void multiply(BlockId block);
  void store_results(BlockId block);

  Emitter& e_;
  Builder& b_;
  const StagedPlan& p_;
  State s_;
};

}  // namespace bm::compiler
