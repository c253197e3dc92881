#pragma once
// Commands in the form this driver executes: addresses resolved, kernels looked up.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/cl/memory.h"
#include "drivers/cl/program.h"
#include "runtime/base/result.h"
#include "runtime/hal/command.h"
#include "runtime/hal/device.h"
#include "runtime/hal/patch_table.h"

namespace bm::cl {

enum class StepKind : uint8_t {
  kNothing,
  kDispatch,   ///< launch
  kCopy,       ///< words: destination, source, bytes
  kWait,       ///< words: address, value
  kSignal,     ///< words: address, value
  kWrite,      ///< words: address, value
  kTimestamp,  ///< words: address
};

struct Step {
  StepKind kind = StepKind::kNothing;
  bool is_observed = false;  ///< the host acts on its end: its event is wanted
  bool is_stale = false;     ///< words changed after they were resolved
  uint32_t launch = 0;       ///< kDispatch: index into the launches
  std::array<uint64_t, 3> words{};
  Place dst, src;            ///< kCopy, kWrite
  uint64_t* host = nullptr;  ///< kWait, kSignal, kTimestamp
};

struct Launch {
  const ClProgram* program = nullptr;
  OwnedKernel own_kernel;                 ///< recordings: arguments stay set
  const uint64_t* arguments = nullptr;    ///< argument block
  std::array<uint64_t, 3> grid{1, 1, 1};  ///< blocks
  std::vector<Region*> views;             ///< per buffer: host memory the kernel touches, or null
  bool has_views = false;

  cl_kernel kernel() const { return own_kernel ? own_kernel.get() : program->kernel(); }
};

/// Steps and launches of one command list. Reused lists keep their memory.
struct StepList {
  std::vector<Step> steps;
  std::vector<Launch> launches;
  size_t num_launches = 0;  ///< used ones

  void clear() {
    steps.clear();
    num_launches = 0;
  }
};

/// Replaces `list` by the steps of `commands`. Errors: kInvalidArgument (address, program of
/// another device, missing argument block), kUnsupported (a signal the host does not see).
Status translate(std::span<const hal::Command> commands, Memory& memory, StepList& list);
/// Resolves a step's addresses (again).
Status resolve(Step& step, Memory& memory);
/// Sets one argument of a launch's kernel.
Status bind_argument(Launch& launch, uint32_t index, uint64_t word, Memory& memory);
/// Sets all arguments from the argument block.
Status bind_arguments(Launch& launch, Memory& memory);

/// Pre-resolved list with a patch table. Replaying sets the arguments that changed and nothing
/// else. Everything under the submission lock.
class ClRecording final : public hal::Recording {
 public:
  /// Errors: as translate; kInvalidArgument for a patch of nothing, or two of one place.
  static Result<std::unique_ptr<ClRecording>> build(std::span<const hal::Command> commands,
                                                    std::span<const hal::Patch> patches,
                                                    Memory& memory);
  /// Applies the slots whose value changed. Errors: kInvalidArgument (too few values, a launch
  /// dimension beyond 32 bits, an address).
  Status patch(std::span<const uint64_t> values, Memory& memory);
  StepList& list() { return list_; }

 private:
  Status apply(const hal::Patch& patch, uint64_t value, Memory& memory);
  Status resolve_stale(Memory& memory);

  StepList list_;
  hal::PatchTable patches_;
  uint64_t generation_ = 0;  ///< of the memory when everything was resolved
  bool has_new_grid_ = false;
};

}  // namespace bm::cl
