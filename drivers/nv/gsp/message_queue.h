#pragma once
// Calls to the GSP through two queues in the host's memory: commands, which we write, and the
// GSP's messages. A message is one to sixteen pages; a longer one goes on in continuation records.
// Source: open-gpu-kernel-modules 570.144, message_queue_cpu.c, message_queue_priv.h, msgq.c,
// rpc.c; nouveau, gsp/rm/r535/{rpc,gsp}.c; nova-core, gsp/cmdq.rs.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "drivers/nv/gsp/boot_memory.h"
#include "drivers/nv/gsp/bus.h"
#include "drivers/nv/gsp/rpc.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

inline constexpr uint32_t kQueueBytes = 0x40000, kQueueMessages = kQueueBytes / kGspPage - 1;
inline constexpr uint32_t kMessageHeaderBytes = 48, kRpcHeaderBytes = 32;
inline constexpr uint32_t kMostMessageBytes = 16 * kGspPage;
/// Of one message; more goes in several.
inline constexpr uint32_t kMostPayloadBytes =
    kMostMessageBytes - kMessageHeaderBytes - kRpcHeaderBytes;
inline constexpr uint64_t kMostRpcBytes = 16 << 20;  ///< of a request, whatever it is cut into

/// XOR of 64-bit words, folded; what is missing of the last word is 0. Over a message with its
/// checksum it is 0.
uint32_t message_checksum(std::span<const std::byte> bytes);

/// What a message carries.
struct RpcMessage {
  uint32_t function = 0, result = 0, sequence = 0;
  std::vector<std::byte> payload;
};
/// Whole pages. `payload`: at most kMostPayloadBytes.
std::vector<std::byte> encode_message(uint32_t sequence, uint32_t function,
                                      std::span<const std::byte> payload);
/// `bytes`: as many pages as the message says. Errors: kCorrupt (lengths, checksum, signature).
Result<RpcMessage> decode_message(std::span<const std::byte> bytes);

/// Thread: callers serialise.
class MessageQueue final : public GspRpc {
 public:
  static Result<std::unique_ptr<MessageQueue>> create(Bus& bus, BootMemory& memory);

  /// For the resource manager's arguments.
  uint64_t address() const { return block_.address(); }
  uint32_t page_table_entries() const { return kTableEntries; }
  uint64_t command_offset() const { return kTableBytes; }
  uint64_t status_offset() const { return kTableBytes + kQueueBytes; }

  /// What the GSP has the host do to its registers while it boots: RUN_CPU_SEQUENCER goes there.
  using Sequencer = std::function<Status(std::span<const std::byte> payload)>;
  void set_sequencer(Sequencer sequencer) { sequencer_ = std::move(sequencer); }

  /// Until the GSP has made its queue. Errors: kTimeout, kCorrupt (another form).
  Status link(uint64_t timeout_us);
  /// Until this event has come; all of them go to sequencer and sink. Errors: as call().
  Status wait_event(RpcEvent event, uint64_t timeout_us);

  Result<RpcReply> call(const RpcRequest& request) override;
  Status post(const RpcRequest& request) override;
  Status poll() override;
  void set_sink(RpcEventSink* sink) override { sink_ = sink; }
  Status status() const override;

  /// The GSP is gone on purpose: every further call says so.
  void close();

 private:
  static constexpr uint32_t kTableEntries = 2 * kQueueBytes / kGspPage + 1;
  static constexpr uint64_t kTableBytes = kGspPage;

  MessageQueue(Bus& bus, BootBlock block) : bus_(bus), block_(std::move(block)) {}
  template <class T>
  Result<T> keep(Result<T> result);
  Status send(const RpcRequest& request);
  Status send_one(uint32_t function, std::span<const std::byte> payload, uint64_t timeout_us,
                  std::string_view what);
  /// What has come next; nothing: no message is there.
  Result<std::optional<RpcMessage>> receive();
  /// Waits for the next one.
  Result<RpcMessage> next(uint64_t deadline_us, std::string_view what, uint64_t waited_for_us);
  Status dispatch(const RpcMessage& message);
  Status check_time(uint64_t deadline_us, std::string_view what, uint64_t others);
  Result<RpcReply> wait_reply(const RpcRequest& request);
  Status wait_event_inner(RpcEvent event, uint64_t timeout_us);
  Status poll_inner();
  HostView commands() const { return block_.view().slice(command_offset(), kQueueBytes); }
  HostView messages() const { return block_.view().slice(status_offset(), kQueueBytes); }

  Bus& bus_;
  BootBlock block_;
  Sequencer sequencer_;
  RpcEventSink* sink_ = nullptr;
  std::deque<RpcMessage> pending_;  ///< came while there was no room to send
  uint32_t command_write_ = 0, message_read_ = 0;
  uint32_t command_sequence_ = 0, message_sequence_ = 0;
  uint32_t last_function_ = 0;  ///< of what came last
  uint32_t looks_ = 0;
  bool is_linked_ = false;
  Status first_error_;
};

}  // namespace bm::nv::gsp
