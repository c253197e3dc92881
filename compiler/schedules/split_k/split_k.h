#pragma once
// Split-K GEMM: few results and a long K. The work-items of a group divide K, each with
// partial sums of a whole tile of results, which the group then adds in shared memory.

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/schedules/schedule.h"
#include "compiler/tune/knobs.h"

namespace bm::compiler {

class Emitter;

/// Rows (M) or columns (N) of the results.
struct SplitKSide {
  const ir::Node* along = nullptr;  ///< output loop
  uint32_t tile = 1;                ///< results of a work-group along it

  int64_t extent() const { return along->src[0]->imm; }
  int64_t tiles() const { return (extent() + tile - 1) / tile; }
  bool is_cut() const { return extent() % tile != 0; }  ///< the last tile lies partly outside
};

struct SplitKPlan {
  const ir::Node* reduce = nullptr;
  const ir::Node* k = nullptr;  ///< the loop of the reduction that is split
  SplitKSide m, n;
  uint32_t splits = 256;  ///< parts of K, one of every work-item of a group; a power of two
  uint32_t unroll = 4;    ///< steps of K whose loads a work-item has in flight

  uint32_t results() const { return m.tile * n.tile; }
  /// Work-items that add the partial sums of one result, in a first pass; a power of two.
  uint32_t adders() const { return std::bit_floor(splits / results()); }
  /// Elements between the partial sums of two results: adjacent work-items of the first pass, which
  /// read `adders` adjacent ones each, meet different banks.
  uint32_t row() const { return splits + adders(); }
  /// The same of the second pass, where a work-item has a row to itself.
  uint32_t short_row() const { return adders() + 1; }
  uint64_t shared_bytes() const {
    return uint64_t{results()} * (row() + short_row()) *
           static_cast<uint64_t>(item_size(reduce->dtype));
  }
};

// For the table of strategies.
std::optional<Schedule> make_split_k_schedule(const ir::KernelIr& kernel, const TargetInfo& target,
                                              uint32_t units, const ScheduleLimits& limits);
void lower_split_k(Emitter& e);
std::string describe_split_k(const Schedule& schedule);
std::vector<Knobs> split_k_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                      const Schedule& schedule, const Knobs& from);

}  // namespace bm::compiler
