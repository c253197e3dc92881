#pragma once
// What the modelled machine is, and what goes wrong in it.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/notify/plant.h"

namespace bm::sim::amd {

class DeviceMemory;

/// A kernel launch as the command processor hands it to the compute units.
struct Launch {
  uint32_t gpu = 0, gpu_id = 0;
  uint64_t entry = 0;
  std::array<uint32_t, 3> groups{}, threads{};
  uint32_t rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  std::vector<uint32_t> user_data;  ///< initial scalar registers
  uint64_t scratch = 0;             ///< base, 0: none
  uint32_t scratch_wave_bytes = 0;
  uint32_t lds_bytes = 0;
  bool is_wave32 = false;
  const std::atomic<bool>* cancel = nullptr;  ///< set: the queue is being taken away
  uint64_t lost_page = 0;                     ///< instructions cannot be fetched from it; 0: none
};

/// What a dying queue tells the driver.
struct Death {
  enum class Kind {
    kMemory,
    kBadPacket,
    kException,
    kReset,      ///< the driver resets the GPU for a reason of its own
    kCancelled,  ///< nothing: its queue was destroyed meanwhile
  } kind = Kind::kBadPacket;
  uint64_t address = 0;
  bool is_write = false;
  std::string text;
  int wave_error = -1;  ///< SQ_INTERRUPT_ERROR_TYPE_*; -1: none
};

struct Options {
  std::string chip = "gfx1100";  ///< gfx942, gfx1030, gfx1100, gfx1102, gfx1201
  uint32_t gpus = 1;
  uint32_t major = 1, minor = 17;  ///< the interface's version
  uint32_t xccs = 1;
  uint64_t vram_bytes = uint64_t{1} << 30;
  uint64_t vram_taken = 0;  ///< of each GPU, by other processes
  bool has_large_bar = true;
  bool has_peers = true;                ///< GPUs may map each other's memory
  bool has_direct_links = false;        ///< between GPUs: XGMI instead of PCIe
  bool has_flush_page = true;           ///< of registers that flush writes over PCIe
  bool publishes_sizes = false;         ///< cwsr_size and ctl_stack_size in sysfs, as from 7.2 on
  bool has_bus_block = true;            ///< in ip_discovery
  bool gives_event_zero = false;        ///< to the first event, as older kernels did
  bool tells_resets = true;             ///< waits return what a reset was, as from 2025 on
  bool resets_on_exception = true;      ///< false: the wave halts, and only the log knows
  uint32_t target_version = 0;          ///< gfx_target_version that sysfs tells; 0: the chip's
  int kfd_error = 0, render_error = 0;  ///< errno of opening the nodes
  /// Calls to /dev/kfd whose name starts with `failing_name` before the one that fails; < 0: none
  /// fails. `failing_times`: of them in a row.
  int failing_call = -1;
  int failing_error = 12;  // ENOMEM
  int failing_times = 1;
  std::string failing_name = {};
  bool is_stalled = false;         ///< queues exist and never move
  bool has_lost_doorbell = false;  ///< what is written to doorbells reaches nobody
  uint32_t delay_us = 0;           ///< before each packet
  /// Runs kernels; what it returns kills the queue. Empty: launches do nothing.
  std::function<std::optional<Death>(DeviceMemory&, const Launch&)> execute = {};
};

/// What a planted fault damages or stops; planted.cpp says at which event, damage.cpp how. What the
/// engines find then, and whom they tell, is their own matter.
enum class Effect : uint8_t {
  kNone,
  // Of a launch: pointers among its arguments.
  kReadUnmapped,   ///< the last one points nowhere
  kWriteUnmapped,  ///< the first one, which kernels write through
  kWritePastEnd,
  kReadOtherGpu,  ///< to what only another GPU of the process has mapped
  kTwoFaults,     ///< kWriteUnmapped, then kTrap
  // The code it is to run.
  kAddToUnmapped,
  kJump,
  kMisaligned,
  kLeaveLds,
  kIllegal,
  kNoCode,       ///< bytes of 1
  kForeignCode,  ///< of another generation
  kCutCode,      ///< the page that holds it is gone
  kTrap,
  kSpin,
  // The packet.
  kEntry,
  kThreads,
  kGrid,
  kLds,
  kScratch,
  kRegisters,  ///< fewer than the kernel uses
  kShortArguments,
  kNoArguments,
  // Of a copy.
  kCopyFromUnmapped,
  kCopyToUnmapped,
  kCopyPastEnd,
  kCopyBeyond,
  // What stands still or is gone.
  kUnmet,     ///< a wait is for a value that never comes
  kHang,      ///< no kernel ends any more
  kStall,     ///< the queue stands still
  kWithhold,  ///< no fence comes any more
  kLost,      ///< the GPU is gone
  kReset,     ///< the driver resets the GPU
};

/// Turned while the machine runs. Thread: any.
struct Knobs {
  Plant<Effect> plant;
  std::atomic<bool> is_stalled{false};       ///< compute queues fetch nothing
  std::atomic<bool> is_copy_stalled{false};  ///< SDMA queues fetch nothing
  std::atomic<bool> is_hung{false};          ///< kernels start and never end
  std::atomic<bool> is_lost{false};          ///< the GPU is gone: calls fail with ENODEV
  std::atomic<int64_t> withheld_signal{-1};  ///< the n-th fence of a queue from now never comes
  std::atomic<uint32_t> signal_delay_us{0};  ///< before each fence
  std::atomic<int> held_chiplet{-1};         ///< stands still in buffers that every one runs
  std::atomic<uint64_t> held_turns{0};       ///< how often it was passed over
};

/// Names of the calls, by number; nullptr for numbers that mean nothing.
const char* call_name(uint32_t number);

}  // namespace bm::sim::amd
