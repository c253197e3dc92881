#pragma once
// Messages of the vfio-user protocol: requests of ours with their replies, and requests of the
// server for memory that we said it may reach.
// Source: QEMU docs/interop/vfio-user.rst, "Protocol Specification".

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "drivers/transport/dma_mappings.h"
#include "drivers/transport/stream_socket.h"
#include "runtime/base/result.h"

namespace bm {

enum class VfioUserCommand : uint16_t {
  kVersion = 1,
  kDmaMap = 2,
  kDmaUnmap = 3,
  kDeviceInfo = 4,
  kRegionInfo = 5,
  kIrqInfo = 7,
  kSetIrqs = 8,
  kRegionRead = 9,
  kRegionWrite = 10,
  kDmaRead = 11,
  kDmaWrite = 12,
  kReset = 13,
};

/// What a server says of itself when a connection begins; defaults are the specification's.
struct VfioUserCapabilities {
  uint64_t max_fds = 1;             ///< descriptors in one message
  uint64_t max_transfer = 1 << 20;  ///< bytes of data in one message
  uint64_t max_dma_maps = 65535;
  uint64_t page_sizes = 4096;
  std::optional<uint64_t> twin_socket;  ///< place of its descriptor among those of the reply
};
/// The text of a version message, a NUL at its end. Errors: kCorrupt.
Result<VfioUserCapabilities> parse_vfio_user_capabilities(std::string_view json);

/// Mapped memory, shared with the thread that answers the server.
struct SharedDmaMappings {
  std::mutex mutex;
  DmaMappings mappings;
};

/// A connection. Its first failure is the last thing that happens on it. Thread: callers serialise;
/// status() any.
class VfioUserChannel {
 public:
  VfioUserChannel(System& system, StreamSocket socket, SharedDmaMappings& memory,
                  std::chrono::milliseconds limit);
  ~VfioUserChannel();

  /// Agrees on version and capabilities; the first message.
  Status negotiate();
  const VfioUserCapabilities& capabilities() const { return capabilities_; }
  const std::string& name() const { return socket_.name(); }
  Status status() const;

  /// The payload of the reply. Errors: kIo (refused, with the server's errno), kCorrupt, kTimeout,
  /// kDeviceLost.
  Result<std::vector<std::byte>> call(VfioUserCommand command, std::span<const std::byte> payload,
                                      std::span<const int> fds = {},
                                      std::vector<SystemFd>* reply_fds = nullptr);
  /// Requests of the same kind, sent together; `take(index, payload)` sees each reply, in order.
  template <class Make, class Take>
  Status call_all(VfioUserCommand command, size_t count, Make&& make, Take&& take) {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte> bytes;
    const uint16_t first = next_id_;
    for (size_t i = 0; i < count; ++i) append(bytes, command, 0, make(i));
    BM_TRY(send(bytes));
    for (size_t i = 0; i < count; ++i) {
      const auto id = static_cast<uint16_t>(first + i);
      const std::vector<std::byte> payload = BM_TRY(wait_reply(command, id, nullptr));
      BM_TRY(take(i, payload));
    }
    return {};
  }
  /// Requests without replies, appended to `bytes` and sent by post().
  void append_posted(std::vector<std::byte>& bytes, VfioUserCommand command,
                     std::span<const std::byte> payload);
  Status post(std::span<const std::byte> bytes);

  /// From now on requests of the server are answered at any time, not only while it is asked.
  Status serve_always();
  Status lose(Status why);

 private:
  struct Message {
    uint16_t id = 0, command = 0;
    uint32_t flags = 0, error = 0;
    std::vector<std::byte> payload;
    std::vector<SystemFd> fds;
  };

  void append(std::vector<std::byte>& bytes, VfioUserCommand command, uint32_t flags,
              std::span<const std::byte> payload);
  Status send(std::span<const std::byte> bytes, std::span<const int> fds = {});
  Result<std::vector<std::byte>> wait_reply(VfioUserCommand command, uint16_t id,
                                            std::vector<SystemFd>* fds);
  Result<Message> receive(StreamSocket& socket);
  Status answer(StreamSocket& socket, const Message& request);
  void run(StreamSocket& socket, bool is_main);

  System& system_;
  StreamSocket socket_;
  SharedDmaMappings& memory_;
  const std::chrono::milliseconds limit_;
  VfioUserCapabilities capabilities_;
  std::mutex mutex_;  ///< of socket_
  uint16_t next_id_ = 1;
  mutable std::mutex status_mutex_;
  Status status_;
  std::optional<StreamSocket> twin_;
  SystemFd stop_;
  std::thread thread_;
};

}  // namespace bm
