#pragma once
// Commands in the form this driver executes: addresses resolved, kernels looked up.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "drivers/cuda/memory.h"
#include "drivers/cuda/program.h"
#include "runtime/base/result.h"
#include "runtime/hal/command.h"

namespace bm::cuda {

class GraphSegment;

enum class StepKind : uint8_t {
  kNothing,
  kLaunch,
  kCopy,       ///< words: destination, source, bytes
  kWait,       ///< words: address, value
  kSignal,     ///< words: address, value
  kWrite,      ///< words: address, value
  kTimestamp,  ///< words: address
  kGraph,      ///< several of the above at once
};

/// Complete in itself: a queue that stands still keeps steps for later.
struct Step {
  StepKind kind = StepKind::kNothing;
  std::array<uint64_t, 3> words{};
  Place dst, src;                        ///< dst: also the word of waits, signals and the like
  const CudaProgram* program = nullptr;  ///< kLaunch
  std::byte* arguments = nullptr;        ///< kLaunch: the packed words, null when there are none
  hal::Dim3 grid;                        ///< kLaunch: blocks
  GraphSegment* graph = nullptr;         ///< kGraph

  bool is_empty_grid() const { return grid.x == 0 || grid.y == 0 || grid.z == 0; }
  std::atomic_ref<uint64_t> word() const {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(dst.host));
  }
};

/// Replaces `steps` by those of `commands`, one for one. Errors: kInvalidArgument (address, grid,
/// program of another device), kUnsupported (a word neither the host nor a stream can use).
Status translate(std::span<const hal::Command> commands, const Memory& memory,
                 std::vector<Step>& steps);
/// Resolves a step's addresses (again).
Status resolve(Step& step, const Memory& memory);

}  // namespace bm::cuda
