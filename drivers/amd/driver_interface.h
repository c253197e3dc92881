#pragma once
// AMD's waist: what device and queues need from whatever owns the GPU beside memory. Implemented
// over the amdgpu kernel driver's compute interface (kfd/).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drivers/amd/regs/registers.h"
#include "drivers/hcq/driver_interface.h"
#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::amd {

struct ChipRow;  // chips.h

/// What the opened GPU is. Counts are per chiplet (XCC) where they say so.
struct GpuFacts : hcq::GpuFacts {
  const ChipRow* chip = nullptr;
  uint32_t gpu_id = 0;
  RegisterMap registers;  ///< bus registers only where this card's are known
  uint32_t xccs = 1;
  uint32_t engines_per_xcc = 1;  ///< shader engines
  uint32_t cus_per_xcc = 1;
  uint32_t simds_per_cu = 2;
  uint32_t waves_per_simd = 16;
  uint32_t scratch_slots_per_cu = 32;
  uint32_t lds_bytes = 65536;   ///< of one compute unit
  uint64_t l2_bytes = 4 << 20;  ///< 4 MiB where the driver does not tell
  uint32_t sdma_engines = 0;
  /// Copy queues run INDIRECT packets. Only where whoever owns the GPU sets IB_CNTL.IB_ENABLE of
  /// them: the amdgpu driver leaves it clear on queues it makes for programs.
  bool has_indirect_copies = false;
  /// CONST_FILL may be used. Every engine knows it; not every model of one does (tinygrad's has
  /// COPY and WRITE).
  bool has_fills = true;
  uint64_t clock_hz = 100'000'000;     ///< of timestamps
  std::vector<uint32_t> near_gpu_ids;  ///< peers with a link of their own (XGMI), not over PCIe
};

using hcq::is_system;
using hcq::Memory;
using hcq::MemoryDomain;  // no buffer lies in kVideoMapped: nothing here tells the GPU of the
                          // writes
using hcq::MemoryRequest;

enum class QueueType : uint8_t { kPm4, kAql, kSdma };

struct QueueRequest {
  QueueType type = QueueType::kPm4;
  const Memory* ring = nullptr;  ///< its size is the ring's: a power of two
  uint32_t priority = 7;         ///< 0 … 15
  uint32_t sdma_engine = 0;      ///< preference among copy engines; not binding
};

/// What a recovery resets, in the order in which it is tried.
enum class RecoveryStage : uint8_t {
  kQueues,     ///< every hardware queue, with the waves it runs
  kProcessor,  ///< the command processor of compute queues, after which those have to be restarted
  kCopyEngines,  ///< the same for copies
  kCard,         ///< everything: no memory of the card's and no queue is what it was
};

/// One hardware queue. Destroying it stops the queue before anything it uses is freed.
class HardwareQueue {
 public:
  virtual ~HardwareQueue() = default;
  /// After a recovery: empty, from the ring's start on, at the addresses it had. kUnsupported: make
  /// another one.
  virtual Status restart() { return fail(Code::kUnsupported, "queues cannot be restarted here"); }
  HostView object;  ///< aql::kQueueBytes at the start of the page with the pointers
  uint64_t object_va = 0;
  HostView write_pointer;  ///< 64 bits, ours
  HostView read_pointer;   ///< 64 bits, the GPU's
  Doorbell<uint64_t> doorbell;
  /// Interrupts: the queue writes `event_id` to `mailbox`, then raises one with it as context.
  uint64_t mailbox = 0;
  uint32_t event_id = 0;
};

/// Why the GPU gave up.
struct GpuFault {
  enum class Kind : uint8_t { kMemory, kHardware };
  Kind kind = Kind::kMemory;
  uint64_t address = 0;  ///< kMemory, page granular
  bool is_not_present = false, is_read_only = false, is_no_execute = false, is_imprecise = false;
  bool is_whole_reset = false;  ///< kHardware: the whole GPU, not one engine
  uint32_t reset_gpu_id = 0;    ///< kHardware: of another GPU of the process, if not 0
  bool is_ecc = false;          ///< kHardware: memory error, not a hang
  bool is_memory_lost = false;  ///< kHardware: contents of video memory are gone
  std::string log{};            ///< what the driver's event log says, may be empty
};

/// One GPU. Thread: callers serialise, except for wait_event() and take_fault().
class DriverInterface : public hcq::DriverInterface {
 public:
  const GpuFacts& facts() const override = 0;
  virtual Result<std::unique_ptr<HardwareQueue>> create_queue(const QueueRequest& request) = 0;
  /// Blocks until a queue's interrupt or a fault, at most `timeout_ms`; false: time ran out.
  virtual Result<bool> wait_event(uint32_t timeout_ms) = 0;
  /// The first fault since opening, if there was one. One system call.
  virtual std::optional<GpuFault> take_fault() = 0;
  /// What the kernel driver has written down since opening about waves that went wrong; may be
  /// empty. For hangs: an exception need not be a fault.
  virtual std::string recent_errors() { return {}; }
  /// Bytes of video memory that can still be allocated.
  virtual uint64_t available_memory() = 0;
  /// Fills memory of the GPU with zeroes and waits for it.
  using Clear = std::function<Status(uint64_t va, uint64_t bytes)>;
  /// Where video memory may hold what another process has left, allocate() clears what it hands out
  /// with this, once for every byte. nullptr: nobody does any more. Kernel drivers clear
  /// themselves.
  virtual void clear_with(Clear /*clear*/) {}
  /// Whether recover() does anything: only who owns the engines can reset them.
  virtual bool can_recover() const { return false; }
  /// One stage, verified by what the card itself says afterwards; what take_fault() told is
  /// forgotten. Whether the queues work again is for the caller to see. Errors: what did not obey.
  virtual Status recover(RecoveryStage /*stage*/) {
    return fail(Code::kUnsupported, "the kernel driver recovers its GPUs itself");
  }
};

}  // namespace bm::amd
