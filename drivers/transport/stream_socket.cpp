#include "drivers/transport/stream_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <optional>

namespace bm {
namespace {

/// Descriptors that one message may bring; the rest of what a server sends is closed.
constexpr size_t kMaxFds = 16;

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

Result<Address> unix_address(std::string_view path) {
  Address address;
  auto& target = reinterpret_cast<sockaddr_un&>(address.storage);
  if (path.size() >= sizeof target.sun_path)
    return fail(Code::kInvalidArgument, "'{}' is too long for a socket: at most {} bytes", path,
                sizeof target.sun_path - 1);
  target.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), target.sun_path);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

Result<Address> loopback_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string host(text.substr(0, std::min(colon, text.size())));
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  if (colon == std::string_view::npos)
    return fail(Code::kInvalidArgument,
                "'{}' is neither the absolute path of a socket nor host:port", text);
  const auto [stop, problem] = std::from_chars(text.data() + colon + 1, end, port);
  if (problem != std::errc() || stop != end || port == 0)
    return fail(Code::kInvalidArgument, "'{}' has no port between 1 and 65535", text);
  if (host == "localhost") host = "127.0.0.1";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  Address address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address.bytes = sizeof v4;
    if (ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) return address;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1)
      return fail(Code::kInvalidArgument,
                  "'{}' is neither the absolute path of a socket nor localhost:port", text);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address.bytes = sizeof v6;
    if (IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) return address;
  }
  return fail(Code::kInvalidArgument,
              "'{}' is another machine: the protocol has no authentication, so tunnel it "
              "(ssh -L {}:localhost:{} {}) and connect to localhost",
              text, port, port, host);
}

}  // namespace

tl::unexpected<Error> StreamSocket::lost(int error) const {
  // What the kernel says when the other side is gone.
  if (error == EPIPE || error == ECONNRESET || error == 0)
    return fail(Code::kDeviceLost, "{}: the other side closed the connection", name_);
  return fail(Code::kIo, "{}: {}", name_, errno_text(error));
}

StreamSocket StreamSocket::over(System& system, SystemFd fd, std::string name) {
  return StreamSocket(system, std::move(fd), std::move(name), true);
}

Result<StreamSocket> StreamSocket::connect(System& system, std::string_view text, Duration limit) {
  const bool is_unix = text.starts_with('/');
  const Address address = BM_TRY(is_unix ? unix_address(text) : loopback_address(text));
  const int fd = system.connect(reinterpret_cast<const sockaddr*>(&address.storage), address.bytes);
  const auto refused = [&text](int error) {
    if (error == ECONNREFUSED || error == ENOENT)
      return fail(Code::kNotFound, "no server listens at {}: {}", text, errno_text(error));
    return fail(code_from_errno(error), "connecting to {}: {}", text, errno_text(error));
  };
  if (fd < 0) return refused(-fd);
  StreamSocket socket(system, SystemFd(system, fd), std::string(text), is_unix);
  BM_TRY(socket.wait(POLLOUT, Clock::now() + limit, limit));
  if (const int result = system.connect_result(fd); result < 0) return refused(-result);
  return socket;
}

Status StreamSocket::wait(short events, Clock::time_point end, Duration limit) const {
  for (;;) {
    const auto left = std::chrono::ceil<Duration>(end - Clock::now());
    if (left.count() < 0)
      return fail(Code::kTimeout, "{}: no answer for {} ms", name_, limit.count());
    pollfd wanted{.fd = fd_.get(), .events = events, .revents = 0};
    const int ready = system_->poll(
        &wanted, 1, static_cast<int>(std::min<Duration::rep>(left.count(), 1'000'000)));
    if (ready > 0) return {};
    if (ready < 0 && ready != -EINTR)
      return fail(Code::kIo, "{}: poll: {}", name_, errno_text(-ready));
  }
}

bool StreamSocket::has_input() const {
  if (!fd_.is_open()) return false;
  pollfd wanted{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return system_->poll(&wanted, 1, 0) > 0;
}

Status StreamSocket::send(std::span<const std::span<const std::byte>> parts, Duration limit,
                          std::span<const int> fds) {
  if (!fd_.is_open()) return lost(0);
  if (fds.size() > kMaxFds)
    return fail(Code::kInvalidArgument, "{} descriptors in one message", fds.size());
  std::vector<iovec> left;
  for (const std::span<const std::byte> part : parts)
    if (!part.empty()) left.push_back({const_cast<std::byte*>(part.data()), part.size()});
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
  const Clock::time_point end = Clock::now() + limit;
  size_t first = 0;
  while (first < left.size()) {
    msghdr message{};
    message.msg_iov = &left[first];
    message.msg_iovlen = std::min<size_t>(left.size() - first, IOV_MAX);
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    }
    const ssize_t put = system_->send(fd_.get(), message);
    if (put == -EINTR) continue;
    if (put == -EAGAIN || put == -EWOULDBLOCK) {
      BM_TRY(wait(POLLOUT, end, limit));
      continue;
    }
    if (put < 0) return lost(static_cast<int>(-put));
    fds = {};
    for (auto bytes = static_cast<size_t>(put); bytes != 0;) {
      iovec& part = left[first];
      const size_t taken = std::min(bytes, part.iov_len);
      part = {static_cast<std::byte*>(part.iov_base) + taken, part.iov_len - taken};
      bytes -= taken;
      if (part.iov_len == 0) ++first;
    }
  }
  return {};
}

Status StreamSocket::receive(std::span<std::byte> to, Duration limit, std::vector<SystemFd>* fds) {
  if (!fd_.is_open()) return lost(0);
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kMaxFds)> control;
  const Clock::time_point end = Clock::now() + limit;
  while (!to.empty()) {
    iovec part{to.data(), to.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = system_->receive(fd_.get(), message);
    if (got == -EINTR) continue;
    if (got == -EAGAIN || got == -EWOULDBLOCK) {
      BM_TRY(wait(POLLIN, end, limit));
      continue;
    }
    if (got <= 0) return lost(static_cast<int>(-got));
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
        SystemFd owned(*system_, fd);
        if (fds != nullptr && fds->size() < kMaxFds) fds->push_back(std::move(owned));
      }
    }
    to = to.subspan(static_cast<size_t>(got));
  }
  return {};
}

}  // namespace bm
