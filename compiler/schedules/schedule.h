#pragma once
// Schedule: which loops become the grid, which one runs in vector lanes, what is unrolled.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"
#include "runtime/hal/program.h"

namespace bm::compiler {

struct Knobs;

/// One output loop. Each iteration covers `lanes`·`jam` iterations: `jam` adjacent vectors
/// whose bodies are merged, so that what they share is loaded once.
struct AxisPlan {
  const ir::Node* range = nullptr;
  uint32_t lanes = 1;
  uint32_t jam = 1;
  /// A group has Schedule::group_outputs iterations of it, and each of its work-items one.
  bool has_group_outputs = false;
  bool is_masked = false;  ///< what full vectors leave of the loop is one more, masked
  uint32_t rest = 1;       ///< merged vectors where fewer than `jam` are left; 0, 1: one at a time
  /// Not 0: a loop over tiles of so many iterations; a later loop over the same range goes through
  /// one of them. A multiple of that loop's step.
  int64_t tile = 0;
  int64_t step() const { return tile > 0 ? tile : int64_t{lanes} * jam; }
};

/// How one reduction runs.
struct ReducePlan {
  const ir::Node* vector_range = nullptr;  ///< runs in lanes; nullptr: no lanes of its own
  uint32_t lanes = 1;
  uint32_t unroll = 1;     ///< independent accumulators
  bool is_shared = false;  ///< the work-items of a group do it together; no lanes then
  /// Not 0, is_shared: iterations of a work-item that are loaded before any is added, in a
  /// iteration. If it never has more of them there is no loop, and other reductions and item loops
  /// over the same loops find what was loaded and computed in registers.
  uint32_t item_unroll = 0;
};

/// A value of every element of a row that several passes over the row want: the first pass keeps it
/// in the workspace, later ones load it.
struct RowCachePlan {
  const ir::Node* node = nullptr;
  const ir::Node* producer = nullptr;  ///< the reduction whose pass computes it
};

/// What one digit of a group's number along an axis of the grid stands for.
struct GroupFactor {
  uint32_t loop = ~0u;      ///< position in Schedule::loops; ~0u: chunks of the item loops
  int64_t count = 0;        ///< number of chunks; 0: known at launch
  bool is_bounded = false;  ///< more groups than iterations may be launched
};

/// One factor of a product of matrices. A slot is so many rows of the left or columns of the right
/// one (MatrixInfo).
struct MatrixOperand {
  const ir::Node* load = nullptr;
  const ir::Node* along = nullptr;  ///< output loop over rows (left) or columns (right)
  /// What is contiguous in memory is along K; otherwise along the rows or columns, and slots
  /// come in groups, interleaved, of as many elements as one load brings.
  bool is_k_major = true;
  uint32_t slots = 1;  ///< of one sub-group's tile
  uint32_t slot = 8;
  bool is_piped = false;  ///< goes through shared memory; slots then follow each other

  uint32_t per_load() const { return 16 / static_cast<uint32_t>(item_size(load->dtype)); }
  uint32_t rows() const { return slots * slot; }
  /// The extent of `along`, or its bound.
  int64_t most() const {
    return along->src[0]->is_const() ? along->src[0]->imm : along->src[0]->hi;
  }
  /// Slots of a group where memory is not deep: of 16 bytes, or of as many as there are.
  uint32_t together() const { return slots < per_load() ? slots : per_load(); }
};

/// Tiles of both factors go through shared memory: `stages` of them are there, of which `ahead` are
/// on their way while one is multiplied. A stage is 128 bytes deep (TileLayout).
struct PipePlan {
  static constexpr uint32_t kLineBytes = 128;
  uint32_t stages = 3;
  uint32_t ahead = 2;
};

/// GEMM by matrix instructions (MMA): every sub-group has a tile.
struct MatrixPlan {
  const ir::Node* reduce = nullptr;
  const ir::Node* k = nullptr;  ///< loop of the reduction that the instructions run along
  MatrixInfo info;
  uint32_t sub_group = 32;  ///< work-items
  MatrixOperand left, right;
  uint32_t warps_m = 1, warps_n = 1;  ///< sub-groups of a group; powers of two
  /// Threadblock swizzle: rows of groups done at once, so that what they read stays in L2.
  int64_t band = 1;
  uint32_t k_steps = 1;          ///< per iteration, loaded before any of them is multiplied
  std::optional<PipePlan> pipe;  ///< `k_steps` is not used then
  int64_t block_m() const { return int64_t{left.rows()} * warps_m; }  ///< rows of a group
  int64_t block_n() const { return int64_t{right.rows()} * warps_n; }
  /// Groups along the rows; the last may reach beyond them in plans with a pipe. Of an extent that
  /// is known at launch only, as many as its bound asks for: some find nothing to do.
  int64_t grid_m() const { return (left.most() + block_m() - 1) / block_m(); }
  int64_t grid_n() const { return (right.most() + block_n() - 1) / block_n(); }
  uint32_t stage_k() const {
    return PipePlan::kLineBytes / static_cast<uint32_t>(item_size(info.in));
  }
  /// MMA of float32 (tf32) on shared memory: what was staged is rounded before it is multiplied,
  /// and all of it is K-major.
  bool has_rounding() const { return pipe && info.reads_shared_memory() && info.in == DType::kF32; }
  /// Whether an operand becomes K-major while it is staged, word by word.
  bool has_words(const MatrixOperand& o) const {
    return pipe && info.in == DType::kF32 && !o.is_k_major;
  }
  uint32_t stage_bytes() const {
    return static_cast<uint32_t>(block_m() + block_n()) * PipePlan::kLineBytes;
  }
  /// Shared memory of a group, with a pipe.
  uint32_t shared_bytes() const {
    return stage_bytes() * pipe->stages + (info.has_tensor_memory ? TensorMemory::kSharedBytes : 0);
  }
  /// Depth of which every work-item loads 16 bytes of a row.
  int64_t k_step() const { return int64_t{16} * info.parts / item_size(info.in); }
  int64_t tile_k() const { return k_step() * k_steps; }
};

/// An int8 dot product, written out as instructions on packed words: four
/// contiguous elements along the loop `along`. On targets with work-groups every word begins at a
/// multiple of four elements of its param.
struct DotPlan {
  DotKind kind = DotKind::kU8S8;
  const ir::Node* left = nullptr;
  const ir::Node* right = nullptr;
  const ir::Node* along = nullptr;
};
struct PackedGemmPlan;
struct AttentionPlan;
struct GroupAttentionPlan;
struct SplitKPlan;
struct QuantisedPlan;
struct ImplicitPlan;

/// One factor of a product whose tiles go through shared memory.
struct StagedOperand {
  const ir::Node* value = nullptr;
  const ir::Node* along = nullptr;  ///< output loop over rows (left) or columns (right)
  bool is_k_major = false;          ///< contiguous in memory along K
  uint32_t tile = 64;               ///< rows or columns of a group
  uint32_t per_item = 4;            ///< of a work-item; a multiple of 16 bytes
  /// Groups along the loop, the last of which may reach beyond it; of its bound where the extent is
  /// known at launch only.
  int64_t tiles() const {
    const ir::Node* extent = along->src[0];
    return ((extent->is_const() ? extent->imm : extent->hi) + tile - 1) / tile;
  }
  /// Elements between the steps of K in shared memory: no multiple of its banks.
  uint64_t row() const { return tile + 16 / static_cast<uint64_t>(item_size(value->dtype)); }
};

/// SIMT GEMM: groups keep tiles of A and B in shared memory.
struct StagedPlan {
  const ir::Node* reduce = nullptr;
  const ir::Node* k = nullptr;  ///< loop of the reduction that is taken in steps
  StagedOperand left, right;
  uint32_t steps = 16;  ///< of K in shared memory
  uint32_t items() const { return left.tile / left.per_item * (right.tile / right.per_item); }
};

/// Loads that are contiguous in memory along another output loop than those of the
/// stores. A group does a tile of both loops: its work-items load along `across` into shared
/// memory, wait for each other, and do everything else along `along`.
struct TransposePlan {
  static constexpr uint32_t kBlock = 256;  ///< work-items
  const ir::Node* across = nullptr;        ///< output loop along which the loads are contiguous
  const ir::Node* along = nullptr;         ///< the one along which the stores are
  std::vector<const ir::Node*> loads;      ///< a tile of shared memory each
  uint32_t tile = 32;                      ///< iterations of either loop; a power of two
  uint32_t bank_bytes = 4;                 ///< of shared memory

  /// Iterations along the second loop of a pass that the work-items do at once.
  uint32_t rows() const { return kBlock / tile; }
  uint32_t unroll() const { return tile / rows(); }
  /// Elements between adjacent ones along `along` in shared memory. An odd number of banks, or of
  /// pairs of them where an element takes two: neither pass has two work-items wait for one bank.
  uint32_t row(const ir::Node* load) const {
    const auto size = static_cast<uint32_t>(item_size(load->dtype));
    return tile + (size < bank_bytes ? bank_bytes / size : 1);
  }
  uint64_t local_bytes(const ir::Node* load) const {
    return uint64_t{row(load)} * tile * static_cast<uint64_t>(item_size(load->dtype));
  }
};

/// Scans of a kernel on targets with work-groups. A group has `columns` lines side by side and goes
/// along them in tiles of parts·per_item·runs elements, each line's by `parts` work-items; what the
/// tiles so far give together stays in registers.
struct ScanPlan {
  const ir::Node* along = nullptr;   ///< output loop that is scanned
  const ir::Node* beside = nullptr;  ///< output loop over the lines of a group; nullptr: one
  uint32_t parts = 256;              ///< work-items of a line; a power of two
  uint32_t columns = 1;              ///< lines of a group; a power of two
  uint32_t per_item = 4;             ///< elements of a work-item that follow each other
  uint32_t runs = 1;                 ///< of so many elements, a tile of all parts apart
  uint32_t lanes = 1;                ///< parts of a sub-group that read each other's registers
  /// Adjacent work-items have adjacent parts of a line; otherwise adjacent lines.
  bool is_part_low = true;
  int64_t tile() const { return int64_t{parts} * per_item * runs; }
  /// Results of a line and run that go through shared memory.
  uint32_t units() const { return parts / lanes; }
};

/// Contiguous elements of a work-item, loaded and stored 16 bytes at a time
/// (lowering/contiguous.h), where the params below are at multiples of 16 bytes.
struct ContiguousPlan {
  uint32_t count = 1;  ///< 1: adjacent elements are adjacent work-items'
  std::map<const ir::Node*, const ir::Node*> loads;  ///< with the loop they are contiguous along
  std::set<int> params;
};

/// What a schedule for one shape of kernel is made of; none: loops, in lanes or in groups.
using StrategyPlan =
    std::variant<std::monostate, MatrixPlan, StagedPlan, TransposePlan, ScanPlan,
                 std::shared_ptr<const PackedGemmPlan>, std::shared_ptr<const AttentionPlan>,
                 std::shared_ptr<const GroupAttentionPlan>, std::shared_ptr<const SplitKPlan>,
                 std::shared_ptr<const QuantisedPlan>, std::shared_ptr<const ImplicitPlan>>;

struct Schedule {
  std::vector<AxisPlan> loops;       ///< outer to inner
  const ir::Node* scan = nullptr;    ///< loop that the kernel's scans run along: the innermost
  const ir::Node* top_k = nullptr;   ///< node whose pass goes in front of loop `top_k_axis`
  uint32_t top_k_axis = 0;           ///< its value depends on the loops before
  uint32_t grid_loops = 0;           ///< leading loops merged into the grid
  int64_t chunk = 1;                 ///< iterations of the merged loop per block
  std::array<hal::DimExpr, 3> grid;  ///< number of blocks
  uint64_t work_per_block = 0;
  double predicted_cost = 0;  ///< by the cost model; compares schedules of one kernel
  // Targets with work-groups: the leading grid_loops are spread over groups, the others, merged,
  // over chunks and their iterations over the group's work-items.
  uint32_t block = 0;                            ///< work-items per group; 0: no groups
  std::array<std::vector<GroupFactor>, 3> axes;  ///< lowest digit first
  /// Outputs per work-group along the loop that has_group_outputs: work-item i has output i %
  /// group_outputs, or i / (block / group_outputs) where is_output_major, and all work-items of an
  /// output share its reductions and item loops. The latter are unrolled then.
  uint32_t group_outputs = 1;
  bool is_output_major = false;
  /// Not 0: a work-item has at most so many iterations of the item loops, and they are written out.
  uint32_t item_unroll = 0;
  int64_t trip_count = 0;    ///< most iterations of one work-item; 0: not known
  bool is_unrolled = false;  ///< a work-item's iterations are unrolled, loads first
  bool is_exact = false;     ///< no work-item is left without its iterations
  std::unordered_map<const ir::Node*, ReducePlan> reduces;
  std::unordered_map<const ir::Node*, DotPlan> dots;  ///< reductions without a loop of their own
  std::vector<RowCachePlan> row_caches;
  std::set<int> streams;  ///< params whose stores are non-temporal
  ContiguousPlan contiguous;
  StrategyPlan plan;  ///< of a schedule for one shape of kernel

  /// GEMM by matrix instructions, by SIMT code: `loops` are those besides the rows and columns of
  /// the product, one per group. nullptr: the plan is another one; so are those below.
  const MatrixPlan* matrix() const { return std::get_if<MatrixPlan>(&plan); }
  const StagedPlan* staged() const { return std::get_if<StagedPlan>(&plan); }
  /// All `loops` are in the grid, those of the plan in tiles.
  const TransposePlan* transposed() const { return std::get_if<TransposePlan>(&plan); }
  /// The same, but for the loop that is scanned, which a group has to itself.
  const ScanPlan* group_scan() const { return std::get_if<ScanPlan>(&plan); }
  /// The kernel is lowered as gemm_cpu/gemm_plan.h and attention/attention_plan.h say; of the
  /// schedule only the grid counts.
  const PackedGemmPlan* panels() const { return shared<PackedGemmPlan>(); }
  const AttentionPlan* attention() const { return shared<AttentionPlan>(); }
  const GroupAttentionPlan* group_attention() const { return shared<GroupAttentionPlan>(); }
  const SplitKPlan* split_k() const { return shared<SplitKPlan>(); }
  const QuantisedPlan* quantised() const { return shared<QuantisedPlan>(); }
  const ImplicitPlan* implicit() const { return shared<ImplicitPlan>(); }

  /// Groups along the loop at position `loop`, which has_group_outputs.
  int64_t output_groups(uint32_t loop) const {
    return (loops[loop].range->src[0]->imm + group_outputs - 1) / group_outputs;
  }

 private:
  template <class T>
  const T* shared() const {
    const auto* found = std::get_if<std::shared_ptr<const T>>(&plan);
    return found ? found->get() : nullptr;
  }
};

/// Bounds for kernels whose code would grow out of hand.
struct ScheduleLimits {
  uint32_t max_lanes = 64;
  bool has_tiles = true;
  bool has_skinny = true;  ///< matrices may be read where they are for more rows than one tile has
  /// Right operands of panels are taken to be in their order already: by pack_constants.
  bool is_packed = false;
  uint32_t max_accumulators = 128;  ///< accumulators of a work-item in GEMM
  const Knobs* knobs = nullptr;     ///< choices made elsewhere; nullptr: none
};

/// One line per loop and reduction, for people.
std::string to_string(const Schedule& schedule);

/// dim · (extent / step). Extents that are not linear in the variables count with their bound:
/// surplus blocks find nothing to do, and the result is false. At most one factor is symbolic.
bool multiply(hal::DimExpr* dim, const ir::Node* extent, int64_t step);

/// Puts loops, those with tiles by tiles, on the axes of the grid: `order` are their numbers in the
/// schedule, first what groups that follow each other differ in. Constants share the first axis,
/// every other loop has one of its own. False if there are too many of those, or too many groups.
bool assign_to_grid(const TargetInfo& target, std::span<const uint32_t> order, Schedule* schedule);

/// Chooses a schedule from shapes and the target. `units`: processors that can share the work.
Schedule make_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                       ScheduleLimits limits = {});
/// Loops, whatever the kernel: on targets without and with work-groups.
Schedule make_loop_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                            ScheduleLimits limits);
Schedule make_group_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                             ScheduleLimits limits);

/// For kernels around int8 dot products, on targets without work-groups.
std::optional<Schedule> make_dot_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                          uint32_t units, ScheduleLimits limits);

/// For kernels with a kTopK node, on targets without work-groups.
std::optional<Schedule> make_top_k_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                            uint32_t units, ScheduleLimits limits);

/// For kernels around a product of matrices that the target has instructions for.
std::optional<Schedule> make_matrix_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                             uint32_t units, ScheduleLimits limits);

/// The same through shared memory, where there is room for it.
std::optional<Schedule> make_pipe_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                           uint32_t units, ScheduleLimits limits);

/// The same without such instructions, where that pays.
std::optional<Schedule> make_staged_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                             uint32_t units, ScheduleLimits limits);

/// For kernels with scans, on targets with work-groups.
std::optional<Schedule> make_group_scan_schedule(const ir::KernelIr& kernel,
                                                 const TargetInfo& target, uint32_t units,
                                                 const ScheduleLimits& limits);

/// For kernels without reductions that transpose what they load, on targets with work-groups.
std::optional<Schedule> make_transpose_schedule(const ir::KernelIr& kernel,
                                                const TargetInfo& target, uint32_t units,
                                                ScheduleLimits limits);

}  // namespace bm::compiler
