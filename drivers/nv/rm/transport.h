#pragma once
// The way to the resource manager: calls of the nvidia kernel driver, messages to the card's own
// GSP, or answers that were recorded. Nothing above this header knows which.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "drivers/nv/abi/abi.h"
#include "drivers/nv/rm/status.h"
#include "drivers/transport/mmio.h"
#include "runtime/base/result.h"

namespace bm::nv {

/// What a call answered: the resource manager's status and the object's handle, where one was made.
struct RmAnswer {
  uint32_t status = kStatusOk;
  uint32_t handle = 0;
};

/// `client` and `parent` 0: the root object of a new client.
struct RmAllocCall {
  uint32_t client = 0, parent = 0, object_class = 0;
  abi::AnyParams* params = nullptr;
};

struct RmControlCall {
  uint32_t client = 0, object = 0, command = 0;
  abi::AnyParams* params = nullptr;
  uint32_t bytes = 0;  ///< of the parameters, as this release has them
  /// What a pointer among the parameters leads to, read and written by the call: a way that carries
  /// bytes has to carry these too.
  std::span<std::byte> pointed = {};
};

struct RmMapCall {
  uint32_t gpu = 0;  ///< id of the GPU whose memory or registers it is; 0: system memory
  uint32_t client = 0, device = 0, memory = 0;
  uint64_t bytes = 0;
  std::string_view what;  ///< for errors: "the doorbell page"
};

/// The CPU's view of an object; taken down on destruction.
class RmMapping {
 public:
  virtual ~RmMapping() = default;
  const HostView& view() const { return view_; }

 protected:
  HostView view_;
};

/// Where interrupts of a GPU arrive.
class RmEvent {
 public:
  virtual ~RmEvent() = default;
  /// What an event object is told to notify.
  virtual uint64_t data() const = 0;
  /// Readable while an event is pending. Errors: kUnsupported.
  virtual Result<int> fd() const = 0;
  /// Waits and consumes; false: time ran out. Errors: kDeviceLost (`gpu_name` for the message).
  virtual Result<bool> wait(int timeout_ms, std::string_view gpu_name) = 0;
};

/// Thread: any. Errors are failures of the way itself and name `stage` and `what`; what the
/// resource manager refuses is a status.
class RmTransport {
 public:
  virtual ~RmTransport() = default;
  /// Layouts of the release that answers.
  virtual const abi::Abi& abi() const = 0;
  virtual const std::string& version() const = 0;  ///< as it says it

  virtual Result<RmAnswer> alloc(Stage stage, std::string_view what, const RmAllocCall& call) = 0;
  virtual Result<uint32_t> control(Stage stage, std::string_view what,
                                   const RmControlCall& call) = 0;
  virtual Result<uint32_t> free(Stage stage, std::string_view what, uint32_t client,
                                uint32_t parent, uint32_t handle) = 0;
  /// Shows an object to the CPU, wherever there is room. A status is an error here.
  virtual Result<std::unique_ptr<RmMapping>> map(Stage stage, const RmMapCall& call) = 0;
  /// For the GPU `gpu`, whose device object is `device`. A status is an error here.
  virtual Result<std::unique_ptr<RmEvent>> open_event(uint32_t gpu, uint32_t client,
                                                      uint32_t device) = 0;
  /// Serves what the resource manager tells of its own accord, where somebody has to look. Cheap;
  /// never waits. Thread: any.
  virtual void poll_events() {}
  /// Whether poll_events() does anything.
  virtual bool has_events() const { return false; }
  /// What the driver has logged, where this user may read it; empty otherwise.
  virtual std::string driver_log() = 0;
};

}  // namespace bm::nv
