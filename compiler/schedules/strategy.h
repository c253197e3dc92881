#pragma once
// Strategies: the ways of turning a kernel into a schedule and that into loops, one row each.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/kernel.h"
#include "compiler/program/program.h"
#include "compiler/schedules/schedule.h"
#include "compiler/targets/target.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {

class Emitter;

/// The kernel as a plan has rewritten it.
struct Rewritten {
  const ir::KernelIr* kernel = nullptr;  ///< nullptr: as it was
  std::vector<const ir::Node*> roots;    ///< of expressions that its stores do not have
};

struct Strategy {
  std::string_view name;    ///< idea and variant: "gemm.pipelined"
  std::string_view folder;  ///< of compiler/schedules
  bool has_groups = false;  ///< for targets with work-groups, or for those without
  /// What reductions inside others give is made once and stays on chip: see compiler::would_fuse.
  bool fuses_reductions = false;
  /// Nothing: not for this kernel, or another row does it better.
  std::optional<Schedule> (*match)(const ir::KernelIr&, const TargetInfo&, uint32_t units,
                                   const ScheduleLimits&) = nullptr;
  bool (*is_of)(const Schedule&) = nullptr;           ///< whether the schedule is one of this row's
  Rewritten (*rewritten)(const Schedule&) = nullptr;  ///< nullptr: the kernel is as it was
  /// Writes the whole program; the schedule is the emitter's.
  void (*lower)(Emitter&) = nullptr;
  std::string (*describe)(const Schedule&) = nullptr;  ///< lines for people, each with its end
  /// `from` with one choice changed, in every way that makes sense for such a schedule.
  std::vector<Knobs> (*candidates)(const ir::KernelIr&, const TargetInfo&, const Schedule&,
                                   const Knobs& from) = nullptr;
};

/// In order of preference. The last row of either kind of target takes every kernel.
std::span<const Strategy> strategies();

/// The row that made the schedule.
const Strategy& strategy_of(const Schedule& schedule);

// What rows describe, each for schedules that are theirs (schedule_text.cpp).
std::string describe_loops(const Schedule& schedule);
std::string describe_top_k(const Schedule& schedule);
std::string describe_dots(const Schedule& schedule);
std::string describe_panels(const Schedule& schedule);
std::string describe_attention(const Schedule& schedule);
std::string describe_group_attention(const Schedule& schedule);
std::string describe_matrix(const Schedule& schedule);
std::string describe_pipe(const Schedule& schedule);
std::string describe_staged(const Schedule& schedule);
std::string describe_transpose(const Schedule& schedule);
std::string describe_group_scan(const Schedule& schedule);

}  // namespace bm::compiler
