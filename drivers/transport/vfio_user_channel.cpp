#include "drivers/transport/vfio_user_channel.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include "runtime/base/bits.h"
#include "runtime/base/byte_reader.h"

namespace bm {
namespace {

struct Header {
  uint16_t id, command;
  uint32_t size, flags, error;
};
static_assert(sizeof(Header) == 16);
constexpr uint32_t kTypeMask = 0xf, kReply = 1, kNoReply = 0x10, kError = 0x20;

/// Of one message of ours, data and what precedes it; also what we take of the server's.
constexpr uint64_t kMaxTransfer = 1_MiB, kMaxPayload = kMaxTransfer + 64_KiB;
/// Descriptors that we take in one message.
constexpr int kMaxFds = 8;
// The protocol's version: minor versions add to what there is.
constexpr uint16_t kMajor = 0, kMinor = 1;

Result<uint64_t> number(const nlohmann::json& object, const char* key, uint64_t fallback) {
  const auto found = object.find(key);
  if (found == object.end()) return fallback;
  if (!found->is_number_unsigned())
    return fail(Code::kCorrupt, "the capability {} is no number", key);
  return found->get<uint64_t>();
}

}  // namespace

Result<VfioUserCapabilities> parse_vfio_user_capabilities(std::string_view text) {
  VfioUserCapabilities result;
  // The terminating NUL counts among the bytes.
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  if (text.empty()) return result;
  const nlohmann::json whole = nlohmann::json::parse(text, nullptr, false);
  if (!whole.is_object()) return fail(Code::kCorrupt, "the capabilities are no JSON object");
  const auto found = whole.find("capabilities");
  if (found == whole.end()) return result;
  if (!found->is_object()) return fail(Code::kCorrupt, "the capabilities are no JSON object");
  result.max_fds = BM_TRY(number(*found, "max_msg_fds", result.max_fds));
  result.max_transfer = BM_TRY(number(*found, "max_data_xfer_size", result.max_transfer));
  result.max_dma_maps = BM_TRY(number(*found, "max_dma_maps", result.max_dma_maps));
  result.page_sizes = BM_TRY(number(*found, "pgsizes", result.page_sizes));
  if (result.max_transfer < 8 || result.max_dma_maps == 0 || result.page_sizes == 0)
    return fail(Code::kCorrupt,
                "capabilities that leave nothing: transfers of {} bytes, {} mappings, page sizes "
                "{:#x}",
                result.max_transfer, result.max_dma_maps, result.page_sizes);
  const auto twin = found->find("twin_socket");
  if (twin == found->end()) return result;
  const bool is_object = twin->is_object();
  const auto supported = is_object ? twin->find("supported") : twin->end();
  if (!is_object || (supported != twin->end() && !supported->is_boolean()))
    return fail(Code::kCorrupt, "the capability twin_socket is malformed");
  if (supported == twin->end() || !supported->get<bool>()) return result;
  // Without a place we could not hear the server: the specification says to give up.
  if (!twin->contains("fd_index"))
    return fail(Code::kCorrupt, "the capability twin_socket names no descriptor");
  result.twin_socket = BM_TRY(number(*twin, "fd_index", 0));
  return result;
}

VfioUserChannel::VfioUserChannel(System& system, StreamSocket socket, SharedDmaMappings& memory,
                                 std::chrono::milliseconds limit)
    : system_(system), socket_(std::move(socket)), memory_(memory), limit_(limit) {}

VfioUserChannel::~VfioUserChannel() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)system_.write(stop_.get(), &one, sizeof one);
  // Its thread may be in the middle of a message whose rest never comes.
  socket_.shutdown();
  if (twin_) twin_->shutdown();
  thread_.join();
}

Status VfioUserChannel::status() const {
  const std::lock_guard lock(status_mutex_);
  return status_;
}

Status VfioUserChannel::lose(Status why) {
  const std::lock_guard lock(status_mutex_);
  if (!why && status_) status_ = why;
  return why;
}

void VfioUserChannel::append(std::vector<std::byte>& bytes, VfioUserCommand command, uint32_t flags,
                             std::span<const std::byte> payload) {
  const Header header{.id = next_id_++,
                      .command = static_cast<uint16_t>(command),
                      .size = static_cast<uint32_t>(sizeof(Header) + payload.size()),
                      .flags = flags,
                      .error = 0};
  const auto raw = std::as_bytes(std::span(&header, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
}

Status VfioUserChannel::send(std::span<const std::byte> bytes, std::span<const int> fds) {
  BM_TRY(status());
  const std::span<const std::byte> parts[] = {bytes};
  return lose(socket_.send(parts, limit_, fds));
}

void VfioUserChannel::append_posted(std::vector<std::byte>& bytes, VfioUserCommand command,
                                    std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  append(bytes, command, kNoReply, payload);
}

Status VfioUserChannel::post(std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  return send(bytes);
}

Result<std::vector<std::byte>> VfioUserChannel::call(VfioUserCommand command,
                                                     std::span<const std::byte> payload,
                                                     std::span<const int> fds,
                                                     std::vector<SystemFd>* reply_fds) {
  const std::lock_guard lock(mutex_);
  std::vector<std::byte> bytes;
  const uint16_t id = next_id_;
  append(bytes, command, 0, payload);
  BM_TRY(send(bytes, fds));
  return wait_reply(command, id, reply_fds);
}

Result<VfioUserChannel::Message> VfioUserChannel::receive(StreamSocket& socket) {
  Header header{};
  Message message;
  BM_TRY(socket.receive(std::as_writable_bytes(std::span(&header, 1)), limit_, &message.fds));
  if (header.size < sizeof header || header.size - sizeof header > kMaxPayload)
    return fail(Code::kCorrupt,
                "{}: a message of {} bytes is none of vfio-user: something else listens there",
                name(), header.size);
  message.id = header.id;
  message.command = header.command;
  message.flags = header.flags;
  message.error = header.error;
  message.payload.resize(header.size - sizeof header);
  BM_TRY(socket.receive(message.payload, limit_, &message.fds));
  return message;
}

Result<std::vector<std::byte>> VfioUserChannel::wait_reply(VfioUserCommand command, uint16_t id,
                                                           std::vector<SystemFd>* fds) {
  const auto end = std::chrono::steady_clock::now() + limit_;
  const auto failed = [this](Error why) {
    return tl::unexpected<Error>(lose(tl::unexpected<Error>(std::move(why))).error());
  };
  for (;;) {
    BM_TRY(status());
    Result<Message> message = receive(socket_);
    if (!message) return failed(std::move(message.error()));
    if ((message->flags & kTypeMask) != kReply) {
      const Status answered = answer(socket_, *message);
      if (!answered) return failed(answered.error());
      // A server that asks without end never gets to its answer.
      if (std::chrono::steady_clock::now() > end)
        return failed({Code::kTimeout, fmt::format("{}: no answer for {} ms, only requests", name(),
                                                   limit_.count())});
      continue;
    }
    if (message->id != id || message->command != static_cast<uint16_t>(command))
      return failed(
          {Code::kCorrupt,
           fmt::format("{}: a reply to message {} of kind {} for message {} of kind {}", name(),
                       message->id, message->command, id, static_cast<uint16_t>(command))});
    // What a server cannot do at all (memory it would have to ask for by message) is no failure.
    if (message->flags & kError)
      return fail(message->error == ENOTSUP ? Code::kUnsupported : Code::kIo,
                  "{}: the server refuses a message of kind {}: {}", name(),
                  static_cast<uint16_t>(command),
                  message->error == 0 ? "no reason" : errno_text(static_cast<int>(message->error)));
    if (fds != nullptr) *fds = std::move(message->fds);
    return std::move(message->payload);
  }
}

/// A request of the server's: it reads or writes memory that it was told of, nothing else.
Status VfioUserChannel::answer(StreamSocket& socket, const Message& request) {
  if ((request.flags & kTypeMask) != 0)
    return fail(Code::kCorrupt, "{}: a message with flags {:#x}", name(), request.flags);
  const auto command = static_cast<VfioUserCommand>(request.command);
  const bool is_write = command == VfioUserCommand::kDmaWrite;
  int error = 0;
  std::array<uint64_t, 2> place{};  // address and count
  std::vector<std::byte> data;
  if (!is_write && command != VfioUserCommand::kDmaRead) {
    error = ENOTSUP;
  } else if (request.payload.size() < sizeof place) {
    error = EINVAL;
  } else {
    std::memcpy(place.data(), request.payload.data(), sizeof place);
    const auto [address, count] = place;
    const auto sent = std::span(request.payload).subspan(sizeof place);
    if (count > kMaxTransfer || sent.size() != (is_write ? count : 0)) {
      error = EINVAL;
    } else {
      // Held over the copy, so that unmapping waits for it.
      const std::lock_guard lock(memory_.mutex);
      std::byte* const host = memory_.mappings.resolve(address, count, is_write);
      if (host == nullptr) {
        error = EFAULT;
      } else if (is_write) {
        std::memcpy(host, sent.data(), count);
      } else {
        data.assign(host, host + count);
      }
    }
  }
  if (request.flags & kNoReply) return {};
  Header header{.id = request.id,
                .command = request.command,
                .size = sizeof(Header),
                .flags = kReply | (error != 0 ? kError : 0),
                .error = static_cast<uint32_t>(error)};
  if (error == 0) header.size += static_cast<uint32_t>(sizeof place + data.size());
  const std::span<const std::byte> parts[] = {
      std::as_bytes(std::span(&header, 1)),
      error == 0 ? std::as_bytes(std::span(place)) : std::span<const std::byte>(), data};
  return socket.send(parts, limit_);
}

Status VfioUserChannel::negotiate() {
  const std::string text = fmt::format(
      "{{\"capabilities\":{{\"max_msg_fds\":{},\"max_data_xfer_size\":{},"
      "\"twin_socket\":{{\"supported\":true}}}}}}",
      kMaxFds, kMaxTransfer);
  const uint16_t version[] = {kMajor, kMinor};
  std::vector<std::byte> payload(sizeof version + text.size() + 1);
  std::memcpy(payload.data(), version, sizeof version);
  std::memcpy(payload.data() + sizeof version, text.c_str(), text.size() + 1);
  std::vector<SystemFd> fds;
  const std::vector<std::byte> reply = BM_TRY(call(VfioUserCommand::kVersion, payload, {}, &fds));
  ByteReader reader(reply);
  const auto major = BM_TRY(reader.read<uint16_t>());
  const auto minor = BM_TRY(reader.read<uint16_t>());
  if (major != kMajor || minor > kMinor)
    return fail(Code::kUnsupported, "{}: the server speaks vfio-user {}.{}, we up to {}.{}", name(),
                major, minor, kMajor, kMinor);
  const std::string_view json = BM_TRY(reader.text(reader.remaining()));
  capabilities_ = BM_TRY(parse_vfio_user_capabilities(json));
  capabilities_.max_transfer = std::min(capabilities_.max_transfer, kMaxTransfer);
  if (!capabilities_.twin_socket) return {};
  if (*capabilities_.twin_socket >= fds.size())
    return fail(Code::kCorrupt, "{}: descriptor {} of {} is to be the second socket", name(),
                *capabilities_.twin_socket, fds.size());
  twin_ = StreamSocket::over(system_, std::move(fds[*capabilities_.twin_socket]), name());
  return serve_always();
}

Status VfioUserChannel::serve_always() {
  if (thread_.joinable()) return {};
  const int stop = system_.eventfd();
  if (stop < 0) return fail(code_from_errno(-stop), "eventfd: {}", errno_text(-stop));
  stop_ = SystemFd(system_, stop);
  thread_ = twin_ ? std::thread([this] { run(*twin_, false); })
                  : std::thread([this] { run(socket_, true); });
  return {};
}

void VfioUserChannel::run(StreamSocket& socket, bool is_main) {
  while (status()) {
    std::array<pollfd, 2> fds{{{.fd = socket.fd(), .events = POLLIN, .revents = 0},
                               {.fd = stop_.get(), .events = POLLIN, .revents = 0}}};
    const int ready = system_.poll(fds.data(), fds.size(), -1);
    if (ready == -EINTR) continue;
    if (ready < 0) {
      (void)lose(fail(Code::kIo, "{}: poll: {}", name(), errno_text(-ready)));
      return;
    }
    if (fds[1].revents != 0) return;
    std::unique_lock lock(mutex_, std::defer_lock);
    if (is_main) {
      // Whoever waits for a reply answers requests itself.
      lock.lock();
      if (!socket.has_input()) continue;
    }
    Result<Message> message = receive(socket);
    Status done = message ? answer(socket, *message)
                          : Status(tl::unexpected<Error>(std::move(message.error())));
    if (!done) {
      (void)lose(std::move(done));
      return;
    }
  }
}

}  // namespace bm
