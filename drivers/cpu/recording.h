#pragma once
// Command lists of inline devices in the form they are executed: flat records and a patch table.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drivers/cpu/pool.h"
#include "runtime/base/result.h"
#include "runtime/hal/command.h"
#include "runtime/hal/device.h"

namespace bm::cpu {

enum class CallKind : uint8_t {
  kNothing,     ///< kernel without blocks, copy without bytes
  kKernel,      ///< words: entry, argument block, blocks, bytes of scratch
  kPoolKernel,  ///< the same, big enough for the pool
  kCounted,     ///< kernel or copy of a device that only counts
  kWait,        ///< words: address, value
  kSignal,      ///< words: address, value
  kWrite,       ///< words: address, value
  kTimestamp,   ///< words: address
  kBarrier,
  kCopy,  ///< words: destination, source, bytes
};

struct Call {
  CallKind kind = CallKind::kNothing;
  std::array<uint64_t, 4> words{};
};

/// How commands become calls; part of the queue.
struct CallRules {
  bool counts_only = false;  ///< kernels and copies are counted, not run (NULL)
  bool has_pool = false;
  uint32_t pool_threads = 1;  ///< 1: no pool
};

/// Total work from which a kernel goes to the pool: about 10 us of one core, several times what
/// handing over to a parked worker costs.
inline constexpr uint64_t kPoolWork = 1 << 17;

/// Errors: kInvalidArgument (program of another device, more than 2^63 blocks, no argument block,
/// an address that cannot be one); kUnsupported (kernel that wants scratch on a queue without a
/// pool).
Result<Call> make_call(const hal::Command& command, const CallRules& rules);

/// Immutable list of calls and where each slot's value goes, grouped by slot (CSR).
class CallRecording final : public hal::Recording {
 public:
  /// Errors: as make_call; kInvalidArgument for a patch that names no such command, field or word,
  /// or two patches of one place.
  static Result<std::unique_ptr<CallRecording>> build(std::span<const hal::Command> commands,
                                                      std::span<const hal::Patch> patches,
                                                      const CallRules& rules);

  std::span<const Call> calls() const { return calls_; }
  /// Rewrites the patch sites of every slot whose value differs from the last replay.
  /// Errors: kInvalidArgument (too few values, launch dimension beyond 32 bits, an address that
  /// cannot be one).
  Status patch(std::span<const uint64_t> values);

 private:
  /// One 64-bit store: into a call, or an argument block in host memory.
  struct Store {
    uint32_t slot;
    uint64_t* target;
    uint64_t addend;
  };
  struct Launch {
    uint32_t call;
    uint64_t work_per_block;
    std::array<uint64_t, 3> grid;
  };
  explicit CallRecording(const CallRules& rules) : rules_(rules) {}
  Result<uint64_t*> target_of(std::span<const hal::Command> commands, const hal::Patch& patch);
  uint64_t* grid_target(uint32_t command, size_t axis, const hal::Dispatch& dispatch);
  Status sort_stores();
  Status update_launches();
  Status check_addresses() const;

  CallRules rules_;
  std::vector<Call> calls_;
  std::vector<Launch> launches_;       ///< kernels whose grid is patched; never grows after build
  std::vector<uint32_t> addressed_;    ///< commands whose addresses are patched
  std::vector<Store> stores_;          ///< by slot, then destination
  std::vector<uint32_t> first_store_;  ///< slot → index into stores_; one more than slots
  std::vector<uint64_t> last_;         ///< values of the last replay
  bool must_write_all_ = true;
};

}  // namespace bm::cpu
