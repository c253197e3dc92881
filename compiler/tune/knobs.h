#pragma once
// Choices of a schedule by name, in place of the scheduler's own.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/ir/kernel.h"
#include "runtime/base/result.h"

namespace bm::compiler {

/// Largest unroll factor of a body, and most lanes, that any choice may ask for.
inline constexpr int64_t kMaxKnobUnroll = 32, kMostKnobLanes = 64;

/// Whatever is set, the schedule stays a legal one: a knob that does not fit a kernel is passed
/// over. Loops are numbered as in KernelIr::ranges.
///
/// axis, lanes: the output loop in lanes (-1: none) and how many; jamN: unroll-and-jam of loop N;
/// rlanes 0: no reduction has lanes of its own; unroll: accumulators of those that have; blocks:
/// blocks per processor; plain 1: none of the schedules for one shape of kernel only. Of panels and
/// dot products: trows, tvectors: a tile's rows and vectors; rtiles, ctiles: tiles of a block along
/// M and N; kc: K of a block; transposed: vectors run along M and C tiles are
/// transposed before the store; unroll: K at a time, of GEMV. With work-groups: block:
/// work-items per group; items: iterations of one. Of GEMM on GPUs: tile_m, tile_n: results of a
/// group; tile_k: K of an iteration; stages: of a pipeline. Of quantised GEMM and attention there:
/// sub_groups of a group; of the former, unroll: blocks at a time. Of attention: tile_m, tile_n:
/// queries and keys of a block.
struct Knobs {
  std::map<std::string, int64_t, std::less<>> values;

  bool empty() const { return values.empty(); }
  std::optional<int64_t> get(std::string_view name) const;
  /// "axis=1 jam0=4 lanes=16".
  std::string text() const;
  /// Inverse of text. Errors: kInvalidArgument naming the word.
  static Result<Knobs> parse(std::string_view text);
  bool operator==(const Knobs&) const = default;
};

/// `from` with one choice changed, in every way that makes sense for the kernel: what the row of
/// strategies() says that makes its schedule. `units`: processors that share the work.
std::vector<Knobs> tuning_candidates(const ir::KernelIr& kernel, const TargetInfo& target,
                                     const Knobs& from, uint32_t units = 1);

}  // namespace bm::compiler
