#pragma once
// GSP-RM from its start on: libos arguments, message queues, RPCs one after another.
// Source: K arch libos_init_args.h, gpu/gsp/gsp_init_args.h, gpu/gsp/message_queue_cpu.c,
// message_queue_priv.h, shared/msgq/inc/msgq/msgq_priv.h, generated/g_rpc-message-header.h,
// gpu/gsp/kernel_gsp.c (kgspSetupLibosInitArgs_IMPL).
//
// It refuses
//   Q1  libos arguments without the log buffers or RMARGS, of another kind or place, not mapped
//   Q2  a page list of the queues that does not begin with itself, or with pages that are not
//   mapped Q3  a command queue's header with another version, size, element size or count Q4  a
//   write pointer beyond the queue; more elements than were written Q5  elements with a wrong
//   checksum, sequence number, element count Q6  RPC headers with another version or signature, a
//   length that does not fit Q7  a continuation that nothing precedes, or one that is missing Q8
//   GSP-RM without SET_SYSTEM_INFO and SET_REGISTRY before it

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/nv/chip/bus.h"
#include "tests/sim/nv/chip/falcon.h"
#include "tests/sim/nv/chip/memory.h"

namespace bm::sim::nv::card {

// Functions and events: K inc/kernel/vgpu/rpc_global_enums.h.
namespace rpc {
enum Function : uint32_t {
  kAllocMemory = 4,
  kFree = 10,
  kDupObject = 21,
  kUnloading = 47,
  kSetPageDirectory = 54,
  kGetStaticInfo = 65,
  kUpdateBarPde = 70,
  kContinuation = 71,
  kSetSystemInfo = 72,
  kSetRegistry = 73,
  kControl = 76,
  kUnsetPageDirectory = 79,
  kAlloc = 103,
  kInitDone = 0x1001,
  kRunCpuSequencer = 0x1002,
  kPostEvent = 0x1003,
  kRcTriggered = 0x1004,
  kMmuFaultQueued = 0x1005,
  kOsErrorLog = 0x1006,
};
}  // namespace rpc

/// What an RPC is answered with.
struct RpcReply {
  uint32_t result = 0;
  std::vector<std::byte> payload;
};

/// Thread: any, post() beside the rest; callers serialise the rest.
class GspQueues {
 public:
  GspQueues(const CardRow& row, RegisterFile& registers, Memory& memory, Falcon& gsp);

  /// RPCs with an answer. Called while nothing of this is locked but what callers hold.
  std::function<RpcReply(uint32_t function, std::span<const std::byte> payload)> handle;
  std::function<void(std::span<const std::byte> info)> on_system_info;
  /// Called after the status queue has something new.
  std::function<void()> on_message;
  /// GSP-RM has said that it is ready (GSP_INIT_DONE).
  std::function<void()> on_ready;
  std::function<void()> on_unload;
  /// A program for the host's processor that GSP-RM wants run before it is ready; empty: none. Then
  /// finish_start() has to be called.
  std::function<std::vector<std::byte>()> sequencer;

  bool start(uint64_t libos_arguments);
  void finish_start() {
    if (on_ready) on_ready();
    post(rpc::kInitDone, {});
  }
  void stop();
  bool is_running() const { return is_running_; }
  /// The doorbell.
  void ring();
  /// An event, or an answer.
  void post(uint32_t function, std::span<const std::byte> payload, uint32_t result = 0);
  uint64_t commands() const { return commands_; }

 private:
  static constexpr uint32_t kElement = 4096;
  struct Queue {
    uint64_t at = 0;  ///< in the shared memory
    uint32_t count = 0, entries_at = 0, read_pointer_at = 0;
  };
  bool refuse(const std::string& what);
  /// One word of the shared memory; nullptr: not there.
  uint32_t* word(uint64_t offset);
  bool copy_in(uint64_t offset, std::span<std::byte> to);
  bool copy_out(uint64_t offset, std::span<const std::byte> from);
  bool read_arguments(uint64_t address, uint64_t* rm_arguments);
  bool link(uint64_t rm_arguments);
  bool take(std::vector<std::byte>* message);
  void execute(std::span<const std::byte> message);
  void finish_large();
  bool send(const std::vector<std::byte>& message);

  const CardRow& row_;
  RegisterFile& registers_;
  Memory& memory_;
  Falcon& gsp_;
  bool is_running_ = false, has_system_info_ = false, has_registry_ = false;
  std::vector<uint64_t> pages_;  ///< of the shared memory
  Queue commands_queue_, status_queue_;
  uint32_t read_at_ = 0, expected_sequence_ = 0;
  uint64_t commands_ = 0;
  std::vector<std::byte> large_;  ///< of a message that goes on
  uint32_t large_function_ = 0;

  std::mutex status_mutex_;
  uint32_t write_at_ = 0, sequence_ = 0;
  std::deque<std::vector<std::byte>> waiting_;  ///< while the status queue is full
};

}  // namespace bm::sim::nv::card
