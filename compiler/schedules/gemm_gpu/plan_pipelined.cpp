// Multistage pipelined GEMM on tensor cores (double buffer and more): tiles, stages, swizzle.
// Schedule for GEMM whose tiles go through shared memory, several stages of K
// ahead of the matrix instructions: these read them there, or sub-groups read fragments of them.
// Tiles may reach beyond rows, columns and K.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "compiler/schedules/gemm_gpu/contraction.h"
#include "compiler/schedules/gemm_gpu/knobs.h"

namespace bm::compiler {
namespace {

using ir::Node;

/// Values behind the product that a work-item computes, by weight; more make too much code. As many
/// as GELU with tanh takes for 128 results.
constexpr double kMostEpilogue = 5200;
constexpr double kOtherRegisters = 56;
/// Rows, columns and bytes of K below which fragments come straight from memory.
constexpr int64_t kLeastExtent = 64, kLeastBytesOfK = 128;
/// The same for products that can be done in no other way by matrix instructions.
constexpr int64_t kLeastTailExtent = 16, kLeastTailBytesOfK = 64;
// Rough cycles of one compute unit. Source: measurements of mma.sync and wgmma in arXiv 2402.13499.
constexpr double kMmaCycles = 2;           ///< 16·8 results, 32 bytes of K
constexpr double kWarpgroupMmaCycles = 1;  ///< the same, by an instruction that reads shared memory
constexpr double kTensorMmaCycles = 0.5;   ///< by tcgen05: peak of a B200's data sheet
constexpr double kSharedCycles = 1;        ///< 128 bytes of shared memory
constexpr double kFarCycles = 2;           ///< 128 bytes from the cache of all units
constexpr double kLatencyCycles = 1000;    ///< from asking for a stage until it is there
constexpr double kStartCycles = 1500;      ///< of a group
constexpr double kResultCycles = 0.125;    ///< of one result on its way to memory
/// Rows or columns that are known at launch only: with more, most groups might find nothing to do.
constexpr int64_t kMostSymbolic = 1 << 16;

struct TileRow {
  uint32_t warps_m, warps_n, a_slots, b_slots;
};
constexpr std::array kTiles = {TileRow{2, 4, 8, 8}, TileRow{4, 2, 8, 8}, TileRow{2, 4, 8, 4},
                               TileRow{2, 2, 8, 8}, TileRow{4, 2, 4, 4}, TileRow{2, 4, 4, 4},
                               TileRow{2, 2, 4, 4}};
/// For instructions of four sub-groups: 64 rows each, of all columns of the group.
constexpr std::array kGroupTiles = {TileRow{8, 1, 2, 32}, TileRow{8, 1, 2, 16},
                                    TileRow{4, 1, 2, 32}, TileRow{4, 1, 2, 16},
                                    TileRow{8, 1, 2, 8},  TileRow{4, 1, 2, 8}};

/// For accumulators in tensor memory: sub-groups load those of 32 lanes each, from the one of its
/// quarters that their number says, so four of them are below each other.
constexpr std::array kTensorTiles = {TileRow{4, 2, 4, 16}, TileRow{4, 2, 4, 8},
                                     TileRow{4, 1, 4, 16}, TileRow{4, 1, 4, 8},
                                     TileRow{4, 1, 4, 4}};

class PipeScheduler : GemmPlanner {
 public:
  using GemmPlanner::GemmPlanner;

  std::optional<Schedule> run() {
    const auto product = find_matrix_product(model_);
    if (!product || product->reduce->src.size() != 2) return std::nullopt;
    for (const auto* infos : {&target_.tensor_memory, &target_.matrix})
      for (const MatrixInfo& info : *infos) {
        if (!product->is_for(info) || is_truncating(info)) continue;
        for (const Node* x : kernel_.ranges)
          for (const Node* y : kernel_.ranges)
            if (x != y) consider(*product, info, x, y);
      }
    return best_ ? matrix_schedule(kernel_, target_, *best_) : std::nullopt;
  }

 private:
  /// Whether another instruction, which takes the same products, has its operands rounded.
  bool is_truncating(const MatrixInfo& info) const {
    const auto is_rounding = [](const MatrixInfo& other) {
      return other.in == DType::kF32 && other.reads_shared_memory();
    };
    return info.in == DType::kF32 && !info.reads_shared_memory() &&
           (std::ranges::any_of(target_.matrix, is_rounding) ||
            std::ranges::any_of(target_.tensor_memory, is_rounding));
  }

  /// 0: not known.
  static int64_t extent(const Node* range) {
    return range->src[0]->is_const() ? range->src[0]->imm : 0;
  }

  /// Whether 16 bytes of a line are all inside the operand or all beyond it.
  static bool has_whole_chunks(const MatrixOperand& o, const Node* k) {
    // Only words of two elements can be transposed; those of one on their way to shared memory.
    const bool has_words = item_size(o.load->dtype) == 4;
    if (!o.is_k_major && item_size(o.load->dtype) != 2 && !has_words) return false;
    const int64_t size = extent(o.is_k_major ? k : o.along);
    return size > 0 && size % o.per_load() == 0;
  }

  bool is_large_enough(const MatrixPlan& p) const {
    if (std::max(p.left.most(), p.right.most()) > kMostSymbolic &&
        extent(p.left.along) * extent(p.right.along) == 0)
      return false;
    const int64_t least = std::min(p.left.most(), p.right.most());
    const int64_t bytes = extent(p.k) * item_size(p.info.in);
    if (least >= kLeastExtent && bytes >= kLeastBytesOfK) return true;
    ScheduleLimits limits = limits_;
    return least >= kLeastTailExtent && bytes >= kLeastTailBytesOfK &&
           !make_matrix_schedule(kernel_, target_, static_cast<uint32_t>(units_), limits);
  }

  void consider(const MatrixProduct& product, const MatrixInfo& info, const Node* rows,
                const Node* columns) {
    const Node* k = product.reduce->src[1];
    for (size_t side = 0; side < 2; ++side) {
      const auto left = matrix_operand(model_, product.loads[side], rows, k, columns);
      const auto right = matrix_operand(model_, product.loads[1 - side], columns, k, rows);
      if (!left || !right || !has_whole_chunks(*left, k) || !has_whole_chunks(*right, k)) continue;
      MatrixPlan plan;
      plan.reduce = product.reduce;
      plan.k = k;
      plan.info = info;
      plan.sub_group = target_.sub_group;
      plan.left = *left;
      plan.right = *right;
      plan.left.is_piped = plan.right.is_piped = true;
      if (!is_large_enough(plan)) continue;
      if (info.has_tensor_memory)
        consider_tiles(plan, kTensorTiles);
      else if (info.sub_groups > 1)
        consider_tiles(plan, kGroupTiles);
      else
        consider_tiles(plan, kTiles);
    }
  }

  template <size_t kRows>
  void consider_tiles(MatrixPlan& p, const std::array<TileRow, kRows>& rows) {
    for (const TileRow& row : rows) {
      p.warps_m = row.warps_m;
      p.warps_n = row.warps_n;
      p.left.slots = row.a_slots;
      p.right.slots = row.b_slots;
      for (const uint32_t stages : {6u, 5u, 4u, 3u, 2u}) {
        // A stage is free again one iteration after it was multiplied, if that goes on by itself.
        const uint32_t used = p.info.reads_shared_memory() ? 2 : 1;
        if (stages <= used) continue;
        p.pipe = PipePlan{.stages = stages, .ahead = stages - used};
        consider_tile(p);
      }
    }
  }

  static uint32_t accumulators(const MatrixPlan& p) {
    return p.info.accumulators * p.left.slots / p.info.a_slots * p.right.slots;
  }

  static double items(const MatrixPlan& p) {
    return static_cast<double>(p.sub_group) * p.warps_m * p.warps_n;
  }

  void consider_tile(const MatrixPlan& p) {
    const uint32_t bytes = p.shared_bytes();
    if (accumulators(p) > std::min(kMaxAccumulators, limits_.max_accumulators) ||
        items(p) > target_.max_block || bytes > target_.pipe.group_memory_bytes ||
        (model_.output_nodes() + 1) * accumulators(p) > kMostEpilogue)
      return;
    const double cost =
        time(p) *
        asked_factor(limits_.knobs, {.m = p.block_m(), .n = p.block_n(), .stages = p.pipe->stages});
    if (best_ && cost >= least_ * 0.99) return;
    best_ = p;
    least_ = cost;
  }

  /// Cycles of one iteration of a group that has the compute unit for itself.
  static double busy(const MatrixPlan& p) {
    const bool is_group = p.info.reads_shared_memory();
    const auto down = static_cast<double>(p.block_m()), across = static_cast<double>(p.block_n());
    const double products = down / 16 * across / 8 * 4;
    const double readers = p.info.has_tensor_memory ? 1 : p.warps_m * p.warps_n / p.info.sub_groups;
    // Rounding reads and writes all of it, work-items copy words one by one.
    const double rounded = p.has_rounding() ? 2 * (down + across) : 0;
    const double lines = is_group ? down / readers + across : p.left.rows() + p.right.rows();
    const double cycles = p.info.has_tensor_memory ? kTensorMmaCycles
                          : is_group               ? kWarpgroupMmaCycles
                                                   : kMmaCycles;
    return std::max({products * cycles, (readers * lines + down + across + rounded) * kSharedCycles,
                     (down + across) * kFarCycles});
  }

  /// Cycles of the whole kernel.
  double time(const MatrixPlan& p) {
    double groups = static_cast<double>(p.grid_m() * p.grid_n());
    for (const Node* r : kernel_.ranges)
      if (r != p.left.along && r != p.right.along) groups *= CostModel::trip_count(r);
    const PipeInfo& room = target_.pipe;
    const double bytes = p.shared_bytes() + room.reserved_bytes;
    const double registers = items(p) * std::min(accumulators(p) + kOtherRegisters, 255.0);
    double resident = std::floor(std::min(
        {room.cu_memory_bytes / bytes, room.cu_registers / registers, room.cu_items / items(p)}));
    if (p.info.has_tensor_memory)
      resident =
          std::min(resident, double{TensorMemory::kColumns} / TensorMemory::allocated(p.block_n()));
    resident = std::clamp(resident, 1.0, std::max(1.0, std::ceil(groups / units_)));
    const double trip_count = std::ceil(static_cast<double>(extent(p.k)) / p.stage_k());
    const double iteration = std::max(resident * busy(p), kLatencyCycles / p.pipe->ahead);
    const double results = static_cast<double>(p.block_m() * p.block_n());
    return std::ceil(groups / (units_ * resident)) *
           (trip_count * iteration + kStartCycles + resident * results * kResultCycles);
  }

  std::optional<MatrixPlan> best_;
  double least_ = 0;
};

}  // namespace

std::optional<Schedule> make_pipe_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                           uint32_t units, ScheduleLimits limits) {
  if (target.matrix.empty() || target.pipe.group_memory_bytes == 0 || !limits.has_tiles)
    return std::nullopt;
  return PipeScheduler(kernel, target, units, limits).run();
}

}  // namespace bm::compiler
