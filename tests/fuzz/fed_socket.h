#pragma once
// A connection whose other end says what the fuzzer drew.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "drivers/transport/system.h"

namespace bm::fuzz {

/// A System whose socket gives the input, then ends, and takes whatever is sent.
class FedSocket final : public System {
 public:
  explicit FedSocket(std::span<const uint8_t> input) : input_(input) {}
  int connect(const sockaddr*, socklen_t) override { return kSocket; }
  int connect_result(int) override { return 0; }
  int close(int fd) override { return fd == kSocket ? 0 : System::close(fd); }
  int shutdown(int) override { return 0; }
  int poll(pollfd* fds, size_t count, int) override {
    for (size_t i = 0; i < count; ++i) fds[i].revents = fds[i].fd == kSocket ? fds[i].events : 0;
    return 1;
  }
  ssize_t send(int, const msghdr& message) override {
    size_t bytes = 0;
    for (size_t i = 0; i < message.msg_iovlen; ++i) bytes += message.msg_iov[i].iov_len;
    return static_cast<ssize_t>(bytes);
  }
  ssize_t receive(int, msghdr& message) override {
    message.msg_controllen = 0;
    const size_t bytes = std::min(message.msg_iov->iov_len, input_.size());
    std::memcpy(message.msg_iov->iov_base, input_.data(), bytes);
    input_ = input_.subspan(bytes);
    return static_cast<ssize_t>(bytes);
  }

 private:
  static constexpr int kSocket = 1 << 20;  ///< no descriptor of the process
  std::span<const uint8_t> input_;
};

}  // namespace bm::fuzz
