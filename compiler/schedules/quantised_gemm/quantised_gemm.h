#pragma once
// Quantised GEMM by int8 MMA (IMMA, WMMA, MFMA): reductions over blocks whose int8 dot products of
// 8-bit elements are tiles of a sub-group; scales are applied to the int32 results in registers.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/schedules/schedule.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {

class Emitter;
struct Rewritten;

/// Words that the lanes of a lane group have of one step: lane p the word p + first of the one dot
/// product or, of several shorter ones, word p % words of number p / words.
struct QuantisedStep {
  std::vector<const ir::Node*> dots;
  int64_t words = 0;  ///< of one dot product, if there are several
  int64_t first = 0;
};

/// An integer expression in the body of an outer reduction: dot products of a block added up, and
/// terms that are none.
struct BlockDot {
  const ir::Node* node = nullptr;
  std::vector<const ir::Node*> others;
  MatrixInfo info;
  std::vector<QuantisedStep> steps;  ///< the last instruction's missing ones are zeros
};

/// One product of a block: float16 vectors by what is dequantised of the codes in a word.
struct DequantisedTerm {
  const ir::Node* load = nullptr;    ///< of the vectors
  const ir::Node* weight = nullptr;  ///< float32, before it is rounded to float16
  const ir::Node* code = nullptr;    ///< in it: the code as float32
  int64_t first = 0;                 ///< of K in the block
};

/// Quantised GEMM by instructions for float16: every lane dequantises the words that hold its share
/// of the rows, in registers; vectors come through shared memory. A block of 32 is two steps of K,
/// of which lane p of a lane group has word p: elements 0, 1 in its first and 2, 3 in its second
/// register. Vectors lie in memory in the order that this makes of K.
/// Where nothing is copied beside the work-items (`is_staged`: AMD), the rows go through shared
/// memory too: every word is dequantised by one work-item of the group, and all of its sub-groups
/// multiply by it. Rows are the right operand then, as results lie side by side along them.
struct DequantisedPlan {
  static constexpr int64_t kBlock = 32, kStep = 16, kStageBlocks = 2, kWords = 4;
  static constexpr int64_t kLineBytes = kBlock * 2, kStagedStages = 2;  ///< is_staged
  /// The kernel that the nodes belong to, where its rows were one loop; nullptr: as it was.
  std::shared_ptr<const ir::KernelIr> kernel;
  const ir::Node* reduce = nullptr;
  std::vector<const ir::Node*> rows;  ///< output loops, merged; of two the last has 16 iterations
  const ir::Node* vectors = nullptr;
  /// Loops of the sum: over blocks, steps of one (or nullptr), lanes, registers, halves.
  const ir::Node *block = nullptr, *step = nullptr, *lane = nullptr, *pair = nullptr,
                 *element = nullptr;
  std::vector<DequantisedTerm> terms;
  MatrixInfo info;       ///< of fragments
  MatrixInfo group_mma;  ///< sub_groups > 1: by this one, with the rows in registers
  uint32_t sub_group = 32, sub_groups = 4;
  uint32_t row_tiles = 1;  ///< of a sub-group, 16 rows each
  uint32_t slots = 16;     ///< of vectors, of a sub-group; info.slot of them each
  uint32_t stages = 3;     ///< of 64 elements of K in shared memory
  bool is_staged = false;
  uint32_t vector_groups = 1;  ///< is_staged: sub-groups side by side along vectors

  bool has_group_mma() const { return group_mma.sub_groups > 1; }
  uint32_t items() const { return sub_group * sub_groups; }
  int64_t row_groups() const { return sub_groups / vector_groups; }  ///< side by side along rows
  int64_t block_m() const { return int64_t{16} * row_tiles * row_groups(); }
  int64_t block_n() const { return int64_t{info.slot} * slots * vector_groups; }
  /// is_staged: work-items that share the words of a step of a row.
  int64_t word_parts() const {
    return std::max<int64_t>(1, int64_t{sub_group} * sub_groups / block_m());
  }
  int64_t row_count() const;
  int64_t iterations() const { return block->src[0]->imm / kStageBlocks; }
  int64_t stage_bytes() const {
    return is_staged ? (block_m() + block_n()) * kLineBytes : block_n() * 128;
  }
};

struct QuantisedPlan {
  std::shared_ptr<const DequantisedPlan> dequantised;  ///< not nullptr: nothing else counts
  const ir::Node* rows = nullptr;                      ///< output loop over rows of the matrix: A
  const ir::Node* vectors = nullptr;                   ///< the one over vectors: B
  std::vector<const ir::Node*> reduces;                ///< over the blocks, equally many each
  std::vector<BlockDot> block_dots;
  uint32_t sub_group = 32;
  uint32_t row_tiles = 1, vector_tiles = 1;  ///< instructions of a sub-group, side by side
  uint32_t warps_m = 1, warps_n = 1;         ///< powers of two
  uint32_t unroll = 1;  ///< blocks of an iteration, whose words are loaded before any is multiplied

  int64_t blocks() const { return reduces[0]->src[1]->src[0]->imm; }

  const MatrixInfo& info() const { return block_dots[0].info; }
  int64_t block_m() const { return int64_t{info().slot} * info().a_slots * row_tiles * warps_m; }
  int64_t block_n() const { return int64_t{info().slot} * vector_tiles * warps_n; }
};

/// Which factor of the dot product is the matrix.
const ir::Node* matrix_factor(const DotPlan& dot, const ir::Node* rows);
/// Words of a dot product.
int64_t words_of(const ir::Node* dot);

// For the table of strategies.
std::optional<Schedule> make_quantised_schedule(const ir::KernelIr& kernel,
                                                const TargetInfo& target, uint32_t units,
                                                const ScheduleLimits& limits);
void lower_quantised_gemm(Emitter& e);
std::string describe_quantised(const Schedule& schedule);

std::optional<Schedule> make_dequantised_schedule(const ir::KernelIr& kernel,
                                                  const TargetInfo& target, uint32_t units,
                                                  const ScheduleLimits& limits);
Rewritten rewritten(const DequantisedPlan& plan);
void lower_dequantised_gemm(Emitter& e);
std::string describe_dequantised(const Schedule& schedule);

}  // namespace bm::compiler
