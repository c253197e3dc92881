#include "drivers/nv/gsp/message_queue.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "drivers/nv/abi/gsp.h"
#include "runtime/base/bits.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace bm::nv::gsp {
namespace {

using abi::gsp::Gsp;
using abi::gsp::QueueElement;
using abi::gsp::QueueTx;
using abi::gsp::RpcHeader;

static_assert(QueueElement::rpc.offset == kMessageHeaderBytes);
static_assert(RpcHeader::kBytes == kRpcHeaderBytes);

// Both queues: a header of what its writer writes, behind it the place of its read pointer into the
// other queue, then pages. msgq_priv.h; the flag says that read pointers are swapped.
constexpr uint32_t kReadPointer = QueueTx::kBytes, kSwapped = 1;
// rpc_headers.h, NV_VGPU_MSG_HEADER_VERSION; "VRPC", NV_VGPU_MSG_SIGNATURE_VALID.
constexpr uint32_t kHeaderVersion = 0x03000000, kSignature = 0x43505256;
// NV_VGPU_MSG_RESULT_RPC_PENDING: nobody has answered yet.
constexpr uint32_t kPending = 0xffffffff;
constexpr uint32_t kMostPerPoll = 2 * kQueueBytes / kGspPage;

}  // namespace

uint32_t message_checksum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at < bytes.size(); at += sizeof sum) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    sum ^= word;
  }
  return hi32(sum) ^ lo32(sum);
}

std::vector<std::byte> encode_message(uint32_t sequence, uint32_t function,
                                      std::span<const std::byte> payload) {
  BM_CHECK(payload.size() <= kMostPayloadBytes);
  const auto rpc_bytes = static_cast<uint32_t>(kRpcHeaderBytes + payload.size());
  std::vector<std::byte> bytes(align_up(uint64_t{kMessageHeaderBytes} + rpc_bytes, kGspPage));
  Gsp<QueueElement> element;
  element.set(QueueElement::seqNum, sequence).set(QueueElement::elemCount, bytes.size() / kGspPage);
  Gsp<RpcHeader> rpc;
  rpc.set(RpcHeader::header_version, kHeaderVersion)
      .set(RpcHeader::signature, kSignature)
      .set(RpcHeader::length, rpc_bytes)
      .set(RpcHeader::function, function)
      .set(RpcHeader::rpc_result, kPending)
      .set(RpcHeader::rpc_result_private, kPending);
  element.set_bytes(QueueElement::rpc, rpc.bytes());
  std::ranges::copy(element.bytes(), bytes.begin());
  std::ranges::copy(payload, bytes.begin() + kMessageHeaderBytes + kRpcHeaderBytes);
  const uint32_t sum = message_checksum(bytes);
  std::memcpy(bytes.data() + QueueElement::checkSum.offset, &sum, sizeof sum);
  return bytes;
}

Result<RpcMessage> decode_message(std::span<const std::byte> bytes) {
  const auto element = BM_TRY(Gsp<QueueElement>::decode(bytes, "a message of the GSP"));
  const auto rpc =
      BM_TRY(Gsp<RpcHeader>::decode(element.get_bytes(QueueElement::rpc), "a message of the GSP"));
  const uint64_t length = rpc.get(RpcHeader::length);
  if (length < kRpcHeaderBytes || kMessageHeaderBytes + length > bytes.size())
    return fail(Code::kCorrupt, "message {} of the GSP says {:#x} bytes at 0x38, and has {:#x}",
                element.get(QueueElement::seqNum), length, bytes.size() - kMessageHeaderBytes);
  const std::span<const std::byte> summed =
      bytes.first(std::min<uint64_t>(align_up(kMessageHeaderBytes + length, 8u), bytes.size()));
  if (const uint32_t sum = message_checksum(summed); sum != 0)
    return fail(Code::kCorrupt, "message {} of the GSP ({}): its checksum at 0x20 is off by {:#x}",
                element.get(QueueElement::seqNum),
                rpc_name(static_cast<uint32_t>(rpc.get(RpcHeader::function))), sum);
  if (rpc.get(RpcHeader::signature) != kSignature)
    return fail(Code::kCorrupt, "message {} of the GSP: signature {:#x} at 0x34, wanted {:#x}",
                element.get(QueueElement::seqNum), rpc.get(RpcHeader::signature), kSignature);
  const std::span<const std::byte> payload =
      bytes.subspan(kMessageHeaderBytes + kRpcHeaderBytes, length - kRpcHeaderBytes);
  return RpcMessage{.function = static_cast<uint32_t>(rpc.get(RpcHeader::function)),
                    .result = static_cast<uint32_t>(rpc.get(RpcHeader::rpc_result)),
                    .sequence = static_cast<uint32_t>(element.get(QueueElement::seqNum)),
                    .payload = {payload.begin(), payload.end()}};
}

Result<std::unique_ptr<MessageQueue>> MessageQueue::create(Bus& bus, BootMemory& memory) {
  BootBlock block =
      BM_TRY(memory.allocate(kTableBytes + 2 * uint64_t{kQueueBytes}, true, "the GSP's queues"));
  const std::vector<uint64_t> pages = block.pages();
  for (uint32_t i = 0; i < kTableEntries; ++i)
    block.view().store<uint64_t>(i * sizeof(uint64_t), pages[i]);
  std::unique_ptr<MessageQueue> made(new MessageQueue(bus, std::move(block)));
  Gsp<QueueTx> header;
  header.set(QueueTx::size, kQueueBytes)
      .set(QueueTx::msgSize, kGspPage)
      .set(QueueTx::msgCount, kQueueMessages)
      .set(QueueTx::flags, kSwapped)
      .set(QueueTx::rxHdrOff, kReadPointer)
      .set(QueueTx::entryOff, kGspPage);
  made->commands().copy_in(0, header.bytes());
  made->commands().publish();
  return made;
}

Status MessageQueue::status() const {
  if (!first_error_) return first_error_;
  return bus_.status();
}

template <class T>
Result<T> MessageQueue::keep(Result<T> result) {
  if (!result && result.error().code != Code::kInvalidArgument && first_error_)
    first_error_ = tl::unexpected(result.error());
  return result;
}

void MessageQueue::close() {
  if (first_error_)
    first_error_ = fail(Code::kDeviceLost, "the card's resource manager was told to unload");
}

Status MessageQueue::link(uint64_t timeout_us) {
  BM_TRY(status());
  const HostView theirs = messages();
  const bool came = BM_TRY(bus_.poll(timeout_us, [&] {
    if (++looks_ % 256 == 0) static_cast<void>(bus_.probe(reg::kBoot0));
    return theirs.load_acquire<uint32_t>(QueueTx::size.offset) != 0;
  }));
  if (!came)
    return keep(Status(fail(Code::kTimeout,
                            "the GSP has not made its message queue in {} ms: it has stopped "
                            "before its resource manager",
                            timeout_us / 1000)));
  std::array<std::byte, QueueTx::kBytes> bytes{};
  theirs.copy_out(0, bytes);
  const auto header = BM_TRY(Gsp<QueueTx>::decode(bytes, "the GSP's queue"));
  if (header.get(QueueTx::size) != kQueueBytes || header.get(QueueTx::msgSize) != kGspPage ||
      header.get(QueueTx::msgCount) != kQueueMessages ||
      header.get(QueueTx::entryOff) != kGspPage || header.get(QueueTx::rxHdrOff) != kReadPointer ||
      (header.get(QueueTx::flags) & kSwapped) == 0)
    return keep(Status(fail(
        Code::kCorrupt,
        "the GSP's queue has {:#x} bytes, {} messages of {:#x} from {:#x} on, its read pointer at "
        "{:#x}, flags {:#x}: not the firmware's this is for",
        header.get(QueueTx::size), header.get(QueueTx::msgCount), header.get(QueueTx::msgSize),
        header.get(QueueTx::entryOff), header.get(QueueTx::rxHdrOff), header.get(QueueTx::flags))));
  is_linked_ = true;
  return {};
}

Status MessageQueue::send_one(uint32_t function, std::span<const std::byte> payload,
                              uint64_t timeout_us, std::string_view what) {
  const std::vector<std::byte> bytes = encode_message(command_sequence_, function, payload);
  const auto pages = static_cast<uint32_t>(bytes.size() / kGspPage);
  const HostView theirs = messages(), ours = commands();
  uint32_t read = 0;
  const auto free_pages = [&] {
    // Before the GSP runs its queue is empty memory, and ours is all free.
    read = is_linked_ ? theirs.load_acquire<uint32_t>(kReadPointer) : 0;
    return read >= kQueueMessages ? 0
                                  : (read + kQueueMessages - command_write_ - 1) % kQueueMessages;
  };
  const bool has_room = BM_TRY(bus_.poll(timeout_us, [&] {
    if (free_pages() >= pages) return true;
    // Whoever waits for room in the other queue does not read this one.
    if (!is_linked_) return false;
    if (auto message = receive(); !message) {
      bus_.fail_with(message.error());
    } else if (*message) {
      pending_.push_back(std::move(**message));
    }
    return false;
  }));
  if (!has_room)
    return fail(Code::kTimeout,
                "{}: the GSP reads no commands (its pointer {}, ours {} of {}, {} pages to send, "
                "waited {} ms)",
                what, read, command_write_, kQueueMessages, pages, timeout_us / 1000);
  for (uint32_t i = 0; i < pages; ++i)
    ours.copy_in(kGspPage * (1 + (command_write_ + i) % kQueueMessages),
                 std::span(bytes).subspan(i * kGspPage, kGspPage));
  ours.publish();
  command_write_ = (command_write_ + pages) % kQueueMessages;
  ours.store_release<uint32_t>(QueueTx::writePtr.offset, command_write_);
  ours.publish();
  ++command_sequence_;
  bus_.write(reg::kQueueHead, 0);
  return bus_.status();
}

Status MessageQueue::send(const RpcRequest& request) {
  BM_TRY(status());
  if (request.payload.size() > kMostRpcBytes)
    return fail(Code::kInvalidArgument, "{}: {:#x} bytes, and a call has at most {:#x}",
                request.what, request.payload.size(), kMostRpcBytes);
  auto function = static_cast<uint32_t>(request.function);
  std::span<const std::byte> rest = request.payload;
  do {
    const size_t part = std::min<size_t>(rest.size(), kMostPayloadBytes);
    BM_TRY(send_one(function, rest.first(part), request.timeout_us, request.what));
    rest = rest.subspan(part);
    function = static_cast<uint32_t>(RpcFunction::kContinuationRecord);
  } while (!rest.empty());
  return {};
}

Result<std::optional<RpcMessage>> MessageQueue::receive() {
  const HostView theirs = messages();
  for (;;) {
    const uint32_t written = theirs.load_acquire<uint32_t>(QueueTx::writePtr.offset);
    if (written >= kQueueMessages)
      return fail(Code::kCorrupt, "the GSP's write pointer is {}, and its queue has {} pages",
                  written, kQueueMessages);
    const uint32_t there = (written + kQueueMessages - message_read_) % kQueueMessages;
    if (there == 0) return std::nullopt;
    const auto page = [&](uint32_t index) {
      return kGspPage * (1 + (message_read_ + index) % kQueueMessages);
    };
    const uint32_t pages = theirs.load<uint32_t>(page(0) + QueueElement::elemCount.offset);
    if (pages == 0 || pages > kMostMessageBytes / kGspPage)
      return fail(Code::kCorrupt, "a message of the GSP at page {} says it has {} pages at 0x28",
                  message_read_, pages);
    if (pages > there) return std::nullopt;  // the rest is on its way
    std::vector<std::byte> bytes(pages * kGspPage);
    for (uint32_t i = 0; i < pages; ++i)
      theirs.copy_out(page(i), std::span(bytes).subspan(i * kGspPage, kGspPage));
    RpcMessage message = BM_TRY(decode_message(bytes));
    if (message.sequence > message_sequence_)
      return fail(Code::kCorrupt, "message {} of the GSP came where {} was next", message.sequence,
                  message_sequence_);
    message_read_ = (message_read_ + pages) % kQueueMessages;
    commands().store_release<uint32_t>(kReadPointer, message_read_);
    commands().publish();
    // An old one again is passed over, as the kernel's module does.
    if (message.sequence < message_sequence_) continue;
    ++message_sequence_;
    last_function_ = message.function;
    return message;
  }
}

Result<RpcMessage> MessageQueue::next(uint64_t deadline_us, std::string_view what,
                                      uint64_t waited_for_us) {
  if (!pending_.empty()) {
    RpcMessage message = std::move(pending_.front());
    pending_.pop_front();
    return message;
  }
  const uint64_t now = bus_.clock().now_us();
  std::optional<RpcMessage> message;
  Status broken;
  const bool came = BM_TRY(bus_.poll(deadline_us > now ? deadline_us - now : 0, [&] {
    // Memory of the host does not say that the card is gone.
    if (++looks_ % 256 == 0) static_cast<void>(bus_.probe(reg::kBoot0));
    auto one = receive();
    if (!one) {
      broken = tl::unexpected(std::move(one.error()));
      return true;
    }
    message = std::move(*one);
    return message.has_value();
  }));
  BM_TRY(std::move(broken));
  if (came) return std::move(*message);
  return fail(
      Code::kTimeout, "{}: no answer of the GSP in {} ms{}", what, waited_for_us / 1000,
      last_function_ == 0 ? "" : fmt::format("; what came last: {}", rpc_name(last_function_)));
}

Status MessageQueue::dispatch(const RpcMessage& message) {
  const auto event = static_cast<RpcEvent>(message.function);
  if (message.function < kFirstRpcEvent) {
    log("nv", LogLevel::kInfo, "the GSP answers {} ({:#x}), which nobody waits for",
        rpc_name(message.function), message.result);
    return {};
  }
  if (event == RpcEvent::kRunCpuSequencer && sequencer_) return sequencer_(message.payload);
  if (sink_ != nullptr)
    sink_->on_event(event, message.result, message.payload);
  else
    log("nv", LogLevel::kTrace, "the GSP tells {}", rpc_name(message.function));
  return {};
}

/// A GSP that tells without end does not make a wait endless.
Status MessageQueue::check_time(uint64_t deadline_us, std::string_view what, uint64_t others) {
  if (bus_.clock().now_us() <= deadline_us) return {};
  return fail(Code::kTimeout,
              "{}: no answer of the GSP in time, but {} other messages; what came last: {}", what,
              others, rpc_name(last_function_));
}

Result<RpcReply> MessageQueue::wait_reply(const RpcRequest& request) {
  const uint64_t deadline = bus_.clock().now_us() + request.timeout_us;
  const auto function = static_cast<uint32_t>(request.function);
  const uint64_t expected = request.reply_bytes.value_or(request.payload.size());
  constexpr auto kMore = static_cast<uint32_t>(RpcFunction::kContinuationRecord);
  std::optional<RpcReply> reply;
  uint64_t others = 0;
  for (;;) {
    RpcMessage message = BM_TRY(next(deadline, request.what, request.timeout_us));
    if (!reply && message.function == function) {
      reply = RpcReply{.result = message.result, .payload = std::move(message.payload)};
    } else if (reply && message.function == kMore) {
      reply->payload.insert(reply->payload.end(), message.payload.begin(), message.payload.end());
    } else {
      BM_TRY(dispatch(message));
      BM_TRY(check_time(deadline, request.what, ++others));
      continue;
    }
    const bool is_long = expected > kMostPayloadBytes && reply->result == 0;
    if (!is_long || reply->payload.size() >= expected) return std::move(*reply);
  }
}

Result<RpcReply> MessageQueue::call(const RpcRequest& request) {
  BM_TRY(keep(send(request)));
  return keep(wait_reply(request));
}

Status MessageQueue::post(const RpcRequest& request) { return keep(send(request)); }

Status MessageQueue::poll_inner() {
  while (!pending_.empty()) {
    const RpcMessage message = std::move(pending_.front());
    pending_.pop_front();
    BM_TRY(dispatch(message));
  }
  // What a queue holds; a GSP that writes faster than this reads waits for the next poll.
  for (uint32_t i = 0; i < kMostPerPoll; ++i) {
    const std::optional<RpcMessage> message = BM_TRY(receive());
    if (!message) return {};
    BM_TRY(dispatch(*message));
  }
  return {};
}

Status MessageQueue::poll() {
  BM_TRY(status());
  return keep(poll_inner());
}

Status MessageQueue::wait_event_inner(RpcEvent event, uint64_t timeout_us) {
  const uint64_t deadline = bus_.clock().now_us() + timeout_us;
  uint64_t others = 0;
  for (;;) {
    const RpcMessage message =
        BM_TRY(next(deadline, rpc_name(static_cast<uint32_t>(event)), timeout_us));
    BM_TRY(dispatch(message));
    if (message.function != static_cast<uint32_t>(event)) {
      BM_TRY(check_time(deadline, rpc_name(static_cast<uint32_t>(event)), ++others));
      continue;
    }
    if (message.result == 0) return {};
    return fail(Code::kIo, "{}: status {:#x}", rpc_name(message.function), message.result);
  }
}

Status MessageQueue::wait_event(RpcEvent event, uint64_t timeout_us) {
  BM_TRY(status());
  return keep(wait_event_inner(event, timeout_us));
}

}  // namespace bm::nv::gsp
