#pragma once
// Candidates of a choice of knobs, by what the schedule is made of; rows of strategies() name them.

#include <vector>

#include "compiler/schedules/schedule.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {

/// Loops in lanes, without work-groups.
std::vector<Knobs> loop_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                   const Schedule& schedule, const Knobs& from);
/// Loops by work-groups.
std::vector<Knobs> group_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                    const Schedule& schedule, const Knobs& from);
/// Packed GEMM and int8 dot products (schedules/gemm_cpu/knobs.cpp).
std::vector<Knobs> tile_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                   const Schedule& schedule, const Knobs& from);
/// GEMM on GPUs.
std::vector<Knobs> gemm_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                   const Schedule& schedule, const Knobs& from);
/// Attention, without work-groups and with them.
std::vector<Knobs> attention_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                        const Schedule& schedule, const Knobs& from);
std::vector<Knobs> group_attention_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                              const Schedule& schedule, const Knobs& from);

}  // namespace bm::compiler
