#pragma once
// NVIDIA's waist: what device and queues need from whatever owns the GPU beside memory. Implemented
// over the nvidia kernel driver's ioctls (rm_ioctl/).

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drivers/hcq/driver_interface.h"
#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::nv {

struct ChipRow;  // chips.h

/// What the opened GPU is. Counts are the maxima of the chip (GR_GET_INFO litter values): local
/// memory is indexed by physical TPC.
struct GpuFacts : hcq::GpuFacts {
  const ChipRow* chip = nullptr;  ///< row of the compute class chosen
  uint32_t sm_version = 0;        ///< 90 for sm_90
  uint32_t compute_class = 0, copy_class = 0, channel_class = 0, usermode_class = 0;
  uint32_t gpcs = 0, tpcs_per_gpc = 0, sms_per_tpc = 0, warps_per_sm = 0;
  uint32_t enabled_sms = 0;
  uint32_t copy_engines = 0;
  std::array<uint8_t, 16> uuid{};
};

using hcq::Memory;
using hcq::MemoryDomain;
using hcq::MemoryRequest;

enum class Engine : uint8_t { kCompute, kCopy };

struct ChannelRequest {
  Engine engine = Engine::kCompute;
  uint32_t copy_index = 0;    ///< which copy engine, modulo what is there
  Memory* ring = nullptr;     ///< GPFIFO entries, then USERD (512-byte aligned); kVideoMapped
  uint64_t ring_offset = 0;   ///< of the entries in `ring`
  uint32_t entries = 0;       ///< power of two
  uint64_t userd_offset = 0;  ///< of USERD in `ring`
};

/// 16-byte record the driver writes when a channel dies. Source: open-gpu-kernel-modules
/// 595.45.04, nvgputypes.h, NvNotification.
struct ErrorNotifier {
  uint64_t time_ns;
  uint32_t code;  ///< robust-channel code
  uint16_t engine;
  uint16_t status;  ///< 0xffff: error
};
static_assert(sizeof(ErrorNotifier) == 16 && offsetof(ErrorNotifier, status) == 14);

/// One scheduled channel in a group of its own kind. Destroying it frees channel, objects and
/// group.
class Channel {
 public:
  virtual ~Channel() = default;
  uint32_t token = 0;         ///< value stored to the doorbell
  uint32_t engine_class = 0;  ///< for SET_OBJECT
  HostView notifier;          ///< of an ErrorNotifier; never empty

  /// Lets whoever owns the GPU write what it knows to notifiers, where nothing else does so: called
  /// wherever errors are looked for, so it is cheap and never waits. Thread: any.
  virtual void look() const {}
  bool needs_look = false;  ///< nothing else writes notifiers: look() does something

  bool has_error() const {
    if (needs_look) look();
    return notifier.load<uint16_t>(offsetof(ErrorNotifier, status)) == 0xffff;
  }
  uint32_t error_code() const { return notifier.load<uint32_t>(offsetof(ErrorNotifier, code)); }
  uint64_t error_time_ns() const {
    return notifier.load<uint64_t>(offsetof(ErrorNotifier, time_ns));
  }
};

/// What the driver knows of a fault; every part may be missing (sandboxes refuse the queries).
struct FaultDetails {
  struct Mmu {
    uint64_t address = 0;
    std::string access;  ///< "read", "write", "atomic", …
    std::string kind;    ///< "unmapped", "read-only", …
  };
  struct Sm {
    uint32_t sm = 0, esr_global = 0, esr_warp = 0;
    uint64_t pc = 0;
    std::string text;  ///< "illegal instruction", "misaligned address", …
  };
  std::vector<Mmu> mmu;
  std::vector<Sm> sms;
  std::string kernel_log;  ///< last NVRM lines where readable
};

/// One GPU. Errors name stage, call, object and status:
/// "stage 26 (channel): RM_ALLOC of class c86f under …: NV_ERR_INVALID_CLASS".
class DriverInterface : public hcq::DriverInterface {
 public:
  const GpuFacts& facts() const override = 0;
  virtual Result<std::unique_ptr<Channel>> create_channel(const ChannelRequest& request) = 0;
  /// Starts the channel whose token it is rung with.
  virtual Doorbell<uint32_t> doorbell() = 0;
  /// GPU nanosecond clock, read without a system call.
  virtual uint64_t clock_ns() = 0;
  /// Asks for whatever is known about a fault of `channel`. Never fails: parts stay empty.
  virtual FaultDetails fault_details(Channel& channel) = 0;
  /// Descriptor that becomes readable when a non-stall interrupt of `channel` arrives, or
  /// kUnsupported: then waits only spin and sleep.
  virtual Result<int> event_fd(Channel& channel) = 0;
  /// Waits on event_fd() and consumes the event; false: time ran out.
  virtual Result<bool> wait_event(Channel& channel, int timeout_ms) = 0;
  /// Windows of shared and local memory in the shader's generic address space; no mapping of the
  /// process lies there.
  virtual uint64_t shared_window() const = 0;
  virtual uint64_t local_window() const = 0;
  /// Fills memory of the GPU with zeroes and waits for it.
  using Clear = std::function<Status(uint64_t va, uint64_t bytes)>;
  /// Where video memory may hold what another process has left, allocate() clears what it hands out
  /// with this, once for every byte. nullptr: nobody does any more. Kernel drivers clear
  /// themselves.
  virtual void clear_with(Clear /*clear*/) {}
  virtual bool wants_clearing() const { return false; }
};

}  // namespace bm::nv
