#pragma once
// A connected stream socket whose every wait is bounded: what devices behind a socket are spoken to
// through. Knows no protocol.

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/transport/system.h"
#include "runtime/base/result.h"

namespace bm {

/// Behind the error of a server that takes a connection and then says nothing.
inline constexpr std::string_view kOneClient =
    "; such a server has one client at a time, so another process may have the card";

/// Thread: one sends and one receives at a time.
class StreamSocket {
 public:
  using Duration = std::chrono::milliseconds;

  /// `address`: the absolute path of a Unix socket, or "host:port" of this machine, where host is
  /// localhost or a numeric loopback address ("127.0.0.1:6667", "[::1]:6667"). Errors:
  /// kInvalidArgument (no such address, or one of another machine: whoever is between could read
  /// and write all memory); kNotFound, kPermission, kIo (connecting failed); kTimeout.
  static Result<StreamSocket> connect(System& system, std::string_view address, Duration limit);
  /// Over a connected descriptor, which becomes the socket's own; `name` is for errors.
  static StreamSocket over(System& system, SystemFd fd, std::string name);

  /// All of the parts in order, with `fds` on the first byte. Errors: kTimeout, kDeviceLost (the
  /// other side has closed), kIo. After an error the stream is out of step: close() it.
  Status send(std::span<const std::span<const std::byte>> parts, Duration limit,
              std::span<const int> fds = {});
  /// As many bytes as `to` has. Descriptors that came along are added to `fds`, up to 16; the rest
  /// is closed, all of them where it is null. Errors: as send().
  Status receive(std::span<std::byte> to, Duration limit, std::vector<SystemFd>* fds = nullptr);
  /// Whether a receive() would find something, the end of the stream included.
  bool has_input() const;

  void close() { fd_.reset(); }
  /// Ends the waits of other threads; the descriptor stays open.
  void shutdown() { (void)system_->shutdown(fd_.get()); }
  bool is_open() const { return fd_.is_open(); }
  int fd() const { return fd_.get(); }
  const std::string& name() const { return name_; }
  bool is_unix() const { return is_unix_; }

 private:
  StreamSocket(System& system, SystemFd fd, std::string name, bool is_unix)
      : system_(&system), fd_(std::move(fd)), name_(std::move(name)), is_unix_(is_unix) {}
  using Clock = std::chrono::steady_clock;
  Status wait(short events, Clock::time_point end, Duration limit) const;
  tl::unexpected<Error> lost(int error) const;

  System* system_;
  SystemFd fd_;
  std::string name_;
  bool is_unix_;
};

}  // namespace bm
