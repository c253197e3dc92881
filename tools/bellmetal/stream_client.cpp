#include "tools/bellmetal/stream_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "runtime/base/scoped_fd.h"

namespace bm::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

// TIMEOUT: a prompt of 100 tokens in a queue of 16 took 20 s on a busy machine; a server that is
// silent for two minutes is taken for dead.
constexpr timeval kSilence{.tv_sec = 120, .tv_usec = 0};

double ms_between(SteadyClock::time_point from, SteadyClock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

Result<ScopedFd> connect_to(uint16_t port) {
  ScopedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (fd.get() < 0 ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail(Code::kIo, "port {}: {}", port, std::strerror(errno));
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kSilence, sizeof kSilence);
  return fd;
}

Status send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) return fail(Code::kIo, "sending a request: {}", std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

/// The number behind `key`; 0 without.
uint32_t count_in(std::string_view event, std::string_view key) {
  const size_t at = event.find(key);
  uint32_t out = 0;
  if (at != std::string_view::npos)
    (void)std::from_chars(event.data() + at + key.size(), event.data() + event.size(), out);
  return out;
}

}  // namespace

Result<uint16_t> free_port() {
  const ScopedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (fd.get() < 0 || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail(Code::kIo, "no free port: {}", std::strerror(errno));
  return ntohs(address.sin_port);
}

bool answers(uint16_t port, const std::string& path) {
  const auto fd = connect_to(port);
  if (!fd ||
      !send_all(fd->get(), "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    return false;
  char head[16] = {};
  const ssize_t n = ::recv(fd->get(), head, sizeof head - 1, MSG_WAITALL);
  return n > 12 && std::string_view(head).substr(8).starts_with(" 200");
}

Result<StreamTimes> stream_completion(uint16_t port, const std::string& body) {
  const ScopedFd fd = BM_TRY(connect_to(port));
  const SteadyClock::time_point begin = SteadyClock::now();
  BM_TRY(send_all(fd.get(), fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
                                        "application/json\r\nContent-Length: {}\r\nConnection: "
                                        "close\r\n\r\n{}",
                                        body.size(), body)));
  StreamTimes out;
  std::string text;
  size_t seen = 0;
  uint32_t usage = 0;
  bool is_done = false;
  SteadyClock::time_point last = begin;
  char chunk[4096];
  for (;;) {
    const ssize_t n = ::recv(fd.get(), chunk, sizeof chunk, 0);
    const SteadyClock::time_point now = SteadyClock::now();
    if (n < 0) return fail(Code::kIo, "reading an answer: {}", std::strerror(errno));
    if (n == 0) break;
    text.append(chunk, static_cast<size_t>(n));
    // Whole events; of several that came together all but the first came at once.
    for (size_t end; (end = text.find("\n\n", seen)) != std::string::npos; seen = end + 2) {
      const std::string_view event = std::string_view(text).substr(seen, end - seen);
      is_done = is_done || event.find("data: [DONE]") != std::string_view::npos;
      if (event.find("data: {\"error\"") != std::string_view::npos)
        return fail(Code::kInternal, "an error in a stream: {}", event);
      usage = std::max(usage, count_in(event, "\"completion_tokens\":"));
      // The last ones tell why it ended and usage, and have no text.
      if (event.find("data: {") == std::string_view::npos ||
          event.find("\"finish_reason\":null") == std::string_view::npos)
        continue;
      ++out.tokens;
      if (!out.first_ms)
        out.first_ms = ms_between(begin, now);
      else
        out.gaps_ms.push_back(ms_between(last, now));
      last = now;
    }
  }
  out.total_ms = ms_between(begin, SteadyClock::now());
  if (text.find(" 200") != 8) return fail(Code::kInternal, "{}", text.substr(0, 500));
  if (!is_done) return fail(Code::kIo, "a stream broke off before its [DONE]: {}", text);
  out.tokens = std::max(out.tokens, usage);
  if (out.tokens == 0) return fail(Code::kInternal, "a stream without tokens: {}", text);
  return out;
}

}  // namespace bm::cli
