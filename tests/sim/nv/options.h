#pragma once
// What a simulated machine is, what goes wrong in it, and what it noticed.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/notify/plant.h"
#include "tests/sim/nv/status.h"

namespace bm::sim::nv {

struct Options {
  std::string chip = "gh100";  ///< tu102 ga100 ga102 ad102 gh100 gb100 gb202
  std::string release = "580";
  std::string version = {};  ///< what the module says of itself; empty: a version of `release`
  uint32_t gpus = 1;
  uint64_t video_memory = uint64_t{8} << 30;  ///< bytes of each GPU
  bool has_peers = true;                      ///< GPUs may reach each other's memory
  bool has_nodes = true;                      ///< false: /dev/nvidia* does not exist
  bool is_permitted = true;                   ///< false: opening a node fails with EACCES
  bool is_sandboxed = false;  ///< calls that gVisor's nvproxy refuses fail with EINVAL
  bool has_toolkit = true;    ///< false: programs find no libnvJitLink and no libnvrtc
  bool is_bootable = true;    ///< false: firmware is missing, opening a GPU fails with EIO
};

/// One planned failure: the `nth` (from 1) call whose name starts with `call` fails.
/// Names: "open:/dev/nvidia0", "mmap", "RM_ALLOC:c86f", "RM_CONTROL:c36f0108", "RM_FREE",
/// "RM_MAP_MEMORY", "UVM:33", "CARD_INFO", …; "" matches every call, which a sweep counts through.
struct Failure {
  std::string call = {};
  uint64_t nth = 1;
  RmStatus status = RmStatus::kOk;  ///< in the structure's status word, where the call has one
  int error = 0;                    ///< or this errno as the system call's result
  uint64_t times = 1;
};

/// What a planted fault damages or stops; planted.cpp says at which event, damage.cpp how. What the
/// engines find then, and whom they tell, is their own matter.
enum class PlantEffect : uint8_t {
  kNone,
  // Of a launch: addresses among its arguments, in constant bank 0.
  kReadUnmapped,   ///< the last one points nowhere
  kWriteUnmapped,  ///< the first one, which kernels write through
  kWritePastEnd,
  kReadBeforeBegin,
  kMisaligned,
  kTwoFaults,  ///< kWriteUnmapped, then a copy channel's fault
  // Its program.
  kAddToUnmapped,
  kOutOfRange,  ///< of shared memory
  kTrap,
  kNonsense,
  kBarrier,  ///< one that waits for more threads than there are
  kSpin,
  kCutText,
  kNoText,  ///< ELF where text should be
  // Its descriptor.
  kThreads,
  kDepth,
  kShared,
  kGrid,
  kVersion,  ///< of another generation
  kProgram,
  // Of a copy.
  kCopyFromUnmapped,
  kCopyToUnmapped,
  kCopyPastEnd,
  kCopyBeyond,
  // What stands still or is gone.
  kUnmet,     ///< an acquire is for a value that never comes
  kHang,      ///< no kernel ends any more
  kStall,     ///< engines fetch nothing any more
  kWithhold,  ///< no release comes any more
  kLost,      ///< the GPU has fallen off the bus
};

/// Turned while the machine runs. Thread: any.
struct Knobs {
  Plant<PlantEffect> plant;
  std::atomic<bool> is_stalled{false};          ///< engines fetch nothing
  std::atomic<bool> is_hung{false};             ///< kernels start and never end
  std::atomic<bool> is_lost{false};             ///< the GPU has fallen off the bus
  std::atomic<bool> is_stubbed{false};          ///< kernels and copies complete without working
  std::atomic<uint32_t> semaphore_delay_us{0};  ///< before each release
  std::atomic<int64_t> withheld_release{-1};    ///< the n-th release from now never happens
  std::atomic<uint64_t> max_instructions{uint64_t{1} << 34};  ///< of one kernel, in PTX
};

}  // namespace bm::sim::nv
