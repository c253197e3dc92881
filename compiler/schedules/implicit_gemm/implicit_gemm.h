#pragma once
// Implicit GEMM: GEMM and convolutions by matrix instructions. Rows, columns and K
// are each several loops merged into one; what is out of bounds or padding is filled with zeros on
// its way to shared memory. Tiles come there through registers, by a double buffer: the loads of
// the next tile are in flight while one is multiplied.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/schedules/schedule.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {

class Emitter;

/// What a work-item takes from memory at once.
enum class Gather : uint8_t {
  kChunks,    ///< 16 bytes along K
  kRows,      ///< 16 bytes along the rows (columns), transposed in registers; elements of 16 bits
  kElements,  ///< single ones
};

struct ImplicitOperand {
  const ir::Node* load = nullptr;      ///< perhaps with a gate
  std::vector<const ir::Node*> along;  ///< output loops merged into rows (columns), last fastest
  Gather gather = Gather::kElements;
  bool is_deep = false;  ///< kElements: adjacent in memory along K
  /// kChunks: they start at any element, and the target puts them together from single ones.
  bool is_unaligned = false;
  uint32_t slots = 1;  ///< of a sub-group's tile; see MatrixInfo
  int64_t extent() const;
};

struct ImplicitPlan {
  /// Bytes of K in a stage, and stages in shared memory.
  static constexpr int64_t kLineBytes = 64, kStages = 2;
  const ir::Node* reduce = nullptr;
  MatrixInfo info;
  ImplicitOperand left, right;
  /// Loops of the sum, last fastest. Steps of a stage are all along the last one, unless is_flat:
  /// then they are digits of one number.
  std::vector<const ir::Node*> k;
  bool is_flat = false;
  uint32_t sub_group = 32, warps_m = 1, warps_n = 1;
  int64_t band = 1;

  uint32_t items() const { return sub_group * warps_m * warps_n; }
  int64_t item_bytes() const { return item_size(info.in); }
  int64_t stage_k() const { return kLineBytes / item_bytes(); }
  int64_t per_chunk() const { return 16 / item_bytes(); }
  int64_t left_rows() const { return int64_t{left.slots} * info.slot; }  ///< of a sub-group
  int64_t right_rows() const { return int64_t{right.slots} * info.slot; }
  int64_t block_m() const { return left_rows() * warps_m; }
  int64_t block_n() const { return right_rows() * warps_n; }
  int64_t grid_m() const { return (left.extent() + block_m() - 1) / block_m(); }
  int64_t grid_n() const { return (right.extent() + block_n() - 1) / block_n(); }
  /// Of the fastest loop, or of all of them where is_flat.
  int64_t k_extent() const;
  int64_t stages_per_k() const { return (k_extent() + stage_k() - 1) / stage_k(); }
  int64_t stages() const;  ///< of the whole sum
  /// Whether the last stage is one of its own, behind the loop: only there does K end inside, and
  /// chunks of 16 bytes that it would cut are taken as single elements.
  bool has_tail() const { return k.size() == 1 && k_extent() % stage_k() != 0; }
  int64_t stage_words() const { return (block_m() + block_n()) * kLineBytes / 4; }
  uint32_t accumulators() const {
    return info.accumulators * left.slots / info.a_slots * right.slots;
  }
};

// For the table of strategies.
std::optional<Schedule> make_implicit_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                               uint32_t units, const ScheduleLimits& limits);
void lower_implicit_gemm(Emitter& e);
std::string describe_implicit(const Schedule& schedule);

}  // namespace bm::compiler
