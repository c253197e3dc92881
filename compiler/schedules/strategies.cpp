// The table of strategies. A new schedule is a folder and a row here.
#include <array>

#include "compiler/schedules/attention/attention_plan.h"
#include "compiler/schedules/gemm_cpu/gemm_plan.h"
#include "compiler/schedules/gemm_gpu/lowering.h"
#include "compiler/schedules/groups/lowering.h"
#include "compiler/schedules/implicit_gemm/implicit_gemm.h"
#include "compiler/schedules/int8_dot/lowering.h"
#include "compiler/schedules/loops/lowering.h"
#include "compiler/schedules/loops/scan.h"
#include "compiler/schedules/quantised_gemm/quantised_gemm.h"
#include "compiler/schedules/split_k/split_k.h"
#include "compiler/schedules/strategy.h"
#include "compiler/schedules/topk/lowering.h"
#include "compiler/tune/candidates.h"

namespace bm::compiler {
namespace {

using ir::KernelIr;
using Limits = ScheduleLimits;
using Found = std::optional<Schedule>;

/// Only loops are wanted.
bool is_plain(const Limits& limits) { return limits.knobs && limits.knobs->get("plain") == 1; }

bool is_dequantised(const Schedule& s) { return s.quantised() && s.quantised()->dequantised; }

// Scans come first: no other row of work-groups takes a kernel that has one.
constexpr std::array kStrategies = {
    Strategy{.name = "scan",
             .folder = "group_scan",
             .has_groups = true,
             .match = [](const KernelIr& k, const TargetInfo& t, uint32_t units,
                         const Limits& l) { return make_group_scan_schedule(k, t, units, l); },
             .is_of = [](const Schedule& s) { return s.group_scan() != nullptr; },
             .lower = lower_group_scan,
             .describe = describe_group_scan,
             .candidates = group_candidates},
    Strategy{
        .name = "attention.decode",
        .folder = "attention",
        .has_groups = true,
        .match =
            [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
              return is_plain(l) ? Found() : make_decode_attention_schedule(k, t, units, l);
            },
        .is_of =
            [](const Schedule& s) { return s.group_attention() && s.group_attention()->decode; },
        .rewritten =
            [](const Schedule& s) { return rewritten(s.group_attention()->decode->parts); },
        .lower = lower_decode_attention,
        .describe = describe_decode_attention,
        .candidates = decode_attention_candidates},
    Strategy{.name = "attention.mma",
             .folder = "attention",
             .has_groups = true,
             .fuses_reductions = true,
             .match =
                 [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
                   return is_plain(l) ? Found() : make_group_attention_schedule(k, t, units, l);
                 },
             .is_of = [](const Schedule& s) { return s.group_attention() != nullptr; },
             .rewritten = [](const Schedule& s) { return rewritten(s.group_attention()->parts); },
             .lower = lower_flash_attention,
             .describe = describe_group_attention,
             .candidates = group_attention_candidates},
    Strategy{.name = "gemm.dequantised",
             .folder = "quantised_gemm",
             .has_groups = true,
             .match =
                 [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
                   return is_plain(l) ? Found() : make_dequantised_schedule(k, t, units, l);
                 },
             .is_of = is_dequantised,
             .rewritten = [](const Schedule& s) { return rewritten(*s.quantised()->dequantised); },
             .lower = lower_dequantised_gemm,
             .describe = describe_dequantised,
             .candidates = gemm_candidates},
    Strategy{.name = "gemm.quantised",
             .folder = "quantised_gemm",
             .has_groups = true,
             .match =
                 [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
                   return is_plain(l) ? Found() : make_quantised_schedule(k, t, units, l);
                 },
             .is_of = [](const Schedule& s) { return s.quantised() != nullptr; },
             .lower = lower_quantised_gemm,
             .describe = describe_quantised,
             .candidates = gemm_candidates},
    Strategy{
        .name = "gemm.split_k",
        .folder = "split_k",
        .has_groups = true,
        .match =
            [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
              return is_plain(l) ? Found() : make_split_k_schedule(k, t, units, l);
            },
        .is_of = [](const Schedule& s) { return s.split_k() != nullptr; },
        .lower = lower_split_k,
        .describe = describe_split_k,
        .candidates = split_k_candidates},
    Strategy{
        .name = "gemm.pipelined",
        .folder = "gemm_gpu",
        .has_groups = true,
        .match =
            [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
              return is_plain(l) ? Found() : make_pipe_schedule(k, t, units, l);
            },
        .is_of = [](const Schedule& s) { return s.matrix() && s.matrix()->pipe; },
        .lower = lower_pipelined_gemm,
        .describe = describe_pipe,
        .candidates = gemm_candidates},
    Strategy{.name = "gemm.implicit",
             .folder = "implicit_gemm",
             .has_groups = true,
             .match =
                 [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
                   return is_plain(l) ? Found() : make_implicit_schedule(k, t, units, l);
                 },
             .is_of = [](const Schedule& s) { return s.implicit() != nullptr; },
             .lower = lower_implicit_gemm,
             .describe = describe_implicit,
             .candidates = gemm_candidates},
    Strategy{
        .name = "gemm.register",
        .folder = "gemm_gpu",
        .has_groups = true,
        .match =
            [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
              return is_plain(l) ? Found() : make_matrix_schedule(k, t, units, l);
            },
        .is_of = [](const Schedule& s) { return s.matrix() && !s.matrix()->pipe; },
        .lower = lower_register_gemm,
        .describe = describe_matrix,
        .candidates = gemm_candidates},
    Strategy{.name = "gemm.simt",
             .folder = "gemm_gpu",
             .has_groups = true,
             .match =
                 [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
                   return is_plain(l) ? Found() : make_staged_schedule(k, t, units, l);
                 },
             .is_of = [](const Schedule& s) { return s.staged() != nullptr; },
             .lower = lower_simt_gemm,
             .describe = describe_staged,
             .candidates = gemm_candidates},
    Strategy{
        .name = "transpose",
        .folder = "groups",
        .has_groups = true,
        .match =
            [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
              return is_plain(l) ? Found() : make_transpose_schedule(k, t, units, l);
            },
        .is_of = [](const Schedule& s) { return s.transposed() != nullptr; },
        .lower = lower_transpose,
        .describe = describe_transpose,
        .candidates = group_candidates},
    Strategy{.name = "topk",
             .folder = "topk",
             .match = [](const KernelIr& k, const TargetInfo& t, uint32_t units,
                         const Limits& l) { return make_top_k_schedule(k, t, units, l); },
             .is_of = [](const Schedule& s) { return s.top_k != nullptr; },
             .lower = lower_topk,
             .describe = describe_top_k,
             .candidates = loop_candidates},
    Strategy{.name = "dot.int8",
             .folder = "int8_dot",
             .match =
                 [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
                   return is_plain(l) || scan_loop(k) ? Found() : make_dot_schedule(k, t, units, l);
                 },
             .is_of = [](const Schedule& s) { return s.block == 0 && !s.dots.empty(); },
             .lower = lower_int8_dot,
             .describe = describe_dots,
             .candidates = tile_candidates},
    Strategy{
        .name = "attention.tiled",
        .folder = "attention",
        .fuses_reductions = true,
        .match =
            [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
              return is_plain(l) || scan_loop(k) ? Found()
                                                 : make_attention_schedule(k, t, units, l);
            },
        .is_of = [](const Schedule& s) { return s.attention() != nullptr; },
        .rewritten = [](const Schedule& s) { return rewritten(s.attention()->parts); },
        .lower = lower_tiled_attention,
        .describe = describe_attention,
        .candidates = attention_candidates},
    Strategy{.name = "gemm.packed",
             .folder = "gemm_cpu",
             .match =
                 [](const KernelIr& k, const TargetInfo& t, uint32_t units, const Limits& l) {
                   return is_plain(l) || scan_loop(k) ? Found()
                                                      : make_panel_schedule(k, t, units, l);
                 },
             .is_of = [](const Schedule& s) { return s.panels() != nullptr; },
             .rewritten = [](const Schedule& s) { return rewritten(*s.panels()); },
             .lower = lower_packed_gemm,
             .describe = describe_panels,
             .candidates = tile_candidates},
    // These take every kernel: they stand last.
    Strategy{.name = "groups",
             .folder = "groups",
             .has_groups = true,
             .match = [](const KernelIr& k, const TargetInfo& t, uint32_t units,
                         const Limits& l) { return Found(make_group_schedule(k, t, units, l)); },
             .is_of = [](const Schedule& s) { return s.block != 0; },
             .lower = lower_groups,
             .describe = describe_loops,
             .candidates = group_candidates},
    Strategy{.name = "loops",
             .folder = "loops",
             .match = [](const KernelIr& k, const TargetInfo& t, uint32_t units,
                         const Limits& l) { return Found(make_loop_schedule(k, t, units, l)); },
             .is_of = [](const Schedule&) { return true; },
             .lower = lower_loops,
             .describe = describe_loops,
             .candidates = loop_candidates}};

}  // namespace

std::span<const Strategy> strategies() { return kStrategies; }

const Strategy& strategy_of(const Schedule& schedule) {
  for (const Strategy& row : kStrategies)
    if (row.is_of(schedule)) return row;
  return kStrategies.back();
}

Schedule make_schedule(const ir::KernelIr& kernel, const TargetInfo& target, uint32_t units,
                       ScheduleLimits limits) {
  for (const Strategy& row : kStrategies)
    if (row.has_groups == target.has_groups)
      if (auto schedule = row.match(kernel, target, units, limits)) return std::move(*schedule);
  return {};  // not reached: the last rows take every kernel
}

}  // namespace bm::compiler
