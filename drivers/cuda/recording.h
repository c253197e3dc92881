#pragma once
// Recorded command lists: steps with a patch table, runs of them as graphs.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/cuda/graph.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/steps.h"
#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "runtime/hal/patch_table.h"

namespace bm::cuda {

/// Arguments live in a shadow of the blocks given at record time. Replaying touches what changed
/// and nothing else. Everything under the submission lock, context current.
class CudaRecording final : public hal::Recording {
 public:
  /// A part that is replayed at once, or step by step where `graph` is null or does not fit.
  struct Part {
    uint32_t first = 0, count = 0;
    std::unique_ptr<GraphSegment> graph;
  };

  /// Errors: as translate; kInvalidArgument for a patch of nothing, or two of one place. A run that
  /// the driver does not take as a graph is no error.
  static Result<std::unique_ptr<CudaRecording>> build(std::span<const hal::Command> commands,
                                                      std::span<const hal::Patch> patches,
                                                      const Memory& memory, CuStream stream);
  /// Applies the slots whose value changed. Errors: kInvalidArgument (too few values, a grid beyond
  /// the limits, an address).
  Status patch(std::span<const uint64_t> values, const Memory& memory);

  std::span<const Part> parts() const { return parts_; }
  std::span<const Step> steps(const Part& part) const {
    return std::span(steps_).subspan(part.first, part.count);
  }

 private:
  static constexpr uint32_t kNoPart = UINT32_MAX;
  void keep_arguments();
  Status make_parts(const Context& context, CuStream stream);
  Status apply(const hal::Patch& patch, uint64_t value);
  Status resolve_stale(const Memory& memory, bool all_copies);
  void touch(uint32_t step);

  std::vector<Step> steps_;
  std::vector<uint64_t> arguments_;  ///< of all launches
  std::vector<Part> parts_;
  std::vector<uint32_t> part_of_;  ///< step → part with a graph, or kNoPart
  std::vector<uint32_t> copies_;   ///< steps
  std::vector<uint32_t> stale_;    ///< steps whose addresses changed, each once
  std::vector<uint8_t> is_stale_;  ///< step → whether it is one of them
  hal::PatchTable patches_;
  uint64_t generation_ = 0;  ///< of the memory when everything was resolved
};

}  // namespace bm::cuda
