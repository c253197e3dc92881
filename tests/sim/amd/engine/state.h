#pragma once
// What the engines of a modelled GPU take and tell: launches, deaths, faults that are planted, and
// what they count.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/notify/plant.h"

namespace bm::sim::amd {

class GpuMemory;

/// A wave that is resident, as registers of the sequencer show it.
struct ResidentWave {
  uint64_t pc = 0, exec = 0;
  bool is_in_barrier = false, is_halted = false;
  bool has_illegal_instruction = false, has_memory_violation = false, has_trapped = false;
};

/// Waves of the work-group that a queue runs, kept up to date now and then. Thread: any.
class WaveBoard {
 public:
  void show(std::vector<ResidentWave> waves) {
    const std::lock_guard lock(mutex_);
    waves_ = std::move(waves);
  }
  std::vector<ResidentWave> waves() const {
    const std::lock_guard lock(mutex_);
    return waves_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<ResidentWave> waves_;
};

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
  WaveBoard* board = nullptr;                 ///< where resident waves are shown; may be none
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
  int wave_error = -1;      ///< SQ_INTERRUPT_ERROR_TYPE_*; -1: none
  bool is_of_wave = false;  ///< a shader's, not the queue engine's own
};

/// Runs a kernel; what it returns kills the queue. Empty: launches do nothing.
using Execute = std::function<std::optional<Death>(GpuMemory&, const Launch&)>;

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

/// What all engines of a machine share. Thread: any.
struct EngineState {
  virtual ~EngineState() = default;
  virtual bool is_stalled() const = 0;    ///< queues exist and never move
  virtual uint32_t delay_us() const = 0;  ///< before each packet
  virtual const Execute& execute() const = 0;

  void note(std::string text) {
    const std::lock_guard lock(mutex);
    findings.push_back(std::move(text));
  }
  std::vector<std::string> all_findings() const {
    const std::lock_guard lock(mutex);
    return findings;
  }

  Knobs knobs;
  std::atomic<uint64_t> packets{0}, launches{0}, copied_bytes{0}, interrupts{0};
  std::atomic<uint64_t> wraps{0};                 ///< of copy rings
  std::atomic<uint64_t> packets_over_the_end{0};  ///< of copy rings: allowed, and not done
  mutable std::mutex mutex;
  std::vector<std::string> findings;  ///< why queues died
};

}  // namespace bm::sim::amd
