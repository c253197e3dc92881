#pragma once
// Remote procedure calls to the resource manager that runs on the card's GSP: a request and its
// answer, and what the GSP tells of its own accord. What carries them is message_queue.h; tests
// have a fake.
// Source: open-gpu-kernel-modules 570.144, rpc_global_enums.h, rpc.c (_issueRpcAndWait,
// _issueRpcAndWaitLarge), kernel_gsp.c (_kgspProcessRpcEvent); nouveau, nvkm/subdev/gsp/rm/r535/
// rpc.c.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::nv::gsp {

/// NV_VGPU_MSG_FUNCTION_*: what the host asks.
enum class RpcFunction : uint32_t {
  kAllocMemory = 4,
  kFree = 10,
  kDupObject = 21,
  kUnloadingGuestDriver = 47,
  kSetPageDirectory = 54,
  kGetGspStaticInfo = 65,
  kUpdateBarPde = 70,
  kContinuationRecord = 71,  ///< never asked for: what carries a long message uses it
  kGspSetSystemInfo = 72,
  kSetRegistry = 73,
  kGspRmControl = 76,
  kUnsetPageDirectory = 79,
  kGspRmAlloc = 103,
};

/// NV_VGPU_MSG_EVENT_*: what the GSP tells. Others come, too.
enum class RpcEvent : uint32_t {
  kGspInitDone = 0x1001,
  kRunCpuSequencer = 0x1002,
  kPostEvent = 0x1003,
  kRcTriggered = 0x1004,
  kMmuFaultQueued = 0x1005,
  kOsErrorLog = 0x1006,
  kPerfBoostSyncLimits = 0x100e,
  kUcodeLibosPrint = 0x100c,
  kGspLockdownNotice = 0x101c,
  kGspPostNocatRecord = 0x1020,
  kRecoveryAction = 0x1022,
};
inline constexpr uint32_t kFirstRpcEvent = 0x1000;

/// TIMEOUT: the kernel waits 4 s for an answer of the GSP (r535_gsp_msg_recv) and up to 6 s for the
/// slowest (GPU_TIMEOUT_DEFAULT with kgspRpcRecvPoll); 10 s cover both on a busy machine.
inline constexpr uint64_t kRpcTimeoutUs = 10'000'000;

struct RpcRequest {
  std::string_view what;  ///< for messages: "GSP_RM_ALLOC of NV01_DEVICE_0"
  RpcFunction function{};
  /// Behind the header of the call. Longer than a message: goes in several.
  std::span<const std::byte> payload;
  /// Of the answer's payload, where it is not the request's: an answer of several messages is
  /// complete with so many.
  std::optional<uint64_t> reply_bytes = std::nullopt;
  uint64_t timeout_us = kRpcTimeoutUs;
};

struct RpcReply {
  /// NV_STATUS of the call itself (rpc_result), 0: done. What a control or an allocation answers is
  /// a field of its payload.
  uint32_t result = 0;
  /// Behind the header, messages joined; may be shorter than was expected.
  std::vector<std::byte> payload;
};

/// Is told of what the GSP says of its own accord, in order, from inside call(), post() and poll():
/// it must not call back.
class RpcEventSink {
 public:
  virtual ~RpcEventSink() = default;
  virtual void on_event(RpcEvent event, uint32_t result, std::span<const std::byte> payload) = 0;
};

/// Thread: callers serialise. The first failure of the way itself (a message that cannot be, an
/// answer that stayed away, a card that is gone) is sticky: from then on every call returns it.
class GspRpc {
 public:
  virtual ~GspRpc() = default;
  /// A request and its answer; what the GSP tells meanwhile goes to the sink. The answer's
  /// `result` is the caller's to look at.
  /// Errors: kTimeout (no answer: what, waited, what came last); kCorrupt (checksum, sequence,
  /// sizes, with the offset); kDeviceLost; kCancelled (Ctrl-C); kInvalidArgument (too long).
  virtual Result<RpcReply> call(const RpcRequest& request) = 0;
  /// A request without an answer. Errors: as call().
  virtual Status post(const RpcRequest& request) = 0;
  /// Serves what has come, without waiting. Errors: as call().
  virtual Status poll() = 0;
  /// nullptr: nobody listens; what comes is dropped. Outlives the last call.
  virtual void set_sink(RpcEventSink* sink) = 0;
  /// The first failure of the way; sticky.
  virtual Status status() const = 0;
};

/// "GSP_RM_CONTROL", "RC_TRIGGERED"; "function 200", "event 0x1099" for others.
std::string rpc_name(uint32_t function_or_event);

}  // namespace bm::nv::gsp
