#pragma once
// Quantised GEMM by int8 MMA (IMMA, WMMA, MFMA): reductions over blocks whose int8 dot products of
// 8-bit elements are tiles of a sub-group; scales are applied to the int32 results in registers.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/schedules/schedule.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {

class Emitter;

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

struct QuantisedPlan {
  const ir::Node* rows = nullptr;        ///< output loop over rows of the matrix: A
  const ir::Node* vectors = nullptr;     ///< the one over vectors: B
  std::vector<const ir::Node*> reduces;  ///< over the blocks, equally many each
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

}  // namespace bm::compiler
