#include "serve/service.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace bm::serve {
namespace {

constexpr int kFirstInherited = 3;  // SD_LISTEN_FDS_START
constexpr int kBacklog = 512;

template <class T>
bool parse_number(const char* text, T* out) {
  if (!text) return false;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, *out);
  return error == std::errc() && at == end;
}

/// The socket a service manager has opened for us, or -1.
int inherited_socket() {
  int64_t pid = 0;
  int count = 0;
  const bool is_ours = parse_number(std::getenv("LISTEN_PID"), &pid) && pid == ::getpid() &&
                       parse_number(std::getenv("LISTEN_FDS"), &count) && count > 0;
  return is_ours ? kFirstInherited : -1;
}

Status describe(ListenSocket* s) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(s->fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    return fail(Code::kIo, "the socket to listen on has no address: {}", errno_text(errno));
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &storage, sizeof in);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    s->is_loopback = ntohl(in.sin_addr.s_addr) >> 24 == 127;
    s->url = fmt::format("http://{}:{}", text, ntohs(in.sin_port));
  } else if (storage.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &storage, sizeof in);
    ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    s->is_loopback = IN6_IS_ADDR_LOOPBACK(&in.sin6_addr);
    s->url = fmt::format("http://[{}]:{}", text, ntohs(in.sin6_port));
  } else {
    s->is_loopback = true;
    s->url = "a local socket";
  }
  return {};
}

}  // namespace

Result<ListenAddress> parse_address(std::string_view text) {
  const auto bad = [&] {
    return fail(Code::kInvalidArgument,
                "\"{}\" is not ADDRESS:PORT, such as 127.0.0.1:8080 or "
                "[::1]:8080",
                text);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad();
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    return bad();
  ListenAddress out{std::string(host), 0};
  if (host.empty() || !parse_number(std::string(text.substr(colon + 1)).c_str(), &out.port))
    return bad();
  return out;
}

Result<ListenSocket> open_listener(const ListenAddress& address) {
  ListenSocket out;
  if ((out.fd = inherited_socket()) >= 0) {
    out.is_inherited = true;
    BM_TRY(describe(&out));
    return out;
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  // "localhost" without a look-up: no name leaves this machine.
  const std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  const std::string port = std::to_string(address.port);
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    return fail(Code::kInvalidArgument, "\"{}\" is not an address: {}", address.host,
                ::gai_strerror(error));
  out.fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  const bool is_open =
      out.fd >= 0 && ::setsockopt(out.fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
      ::bind(out.fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(out.fd, kBacklog) == 0;
  const int error = errno;
  ::freeaddrinfo(found);
  if (!is_open) {
    if (out.fd >= 0) ::close(out.fd);
    return fail(code_from_errno(error) == Code::kPermission ? Code::kPermission : Code::kIo,
                "{}:{} cannot be listened on: {}", address.host, address.port, errno_text(error));
  }
  BM_TRY(describe(&out));
  return out;
}

Status check_origins(const std::vector<std::string>& origins) {
  const auto is_host_char = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  };
  for (const std::string& origin : origins) {
    if (origin == "*") {
      if (origins.size() > 1)
        return fail(Code::kInvalidArgument, "--cors-origin \"*\" stands for all origins: alone");
      continue;
    }
    const auto wrong = [&](std::string_view why) {
      return fail(Code::kInvalidArgument,
                  "--cors-origin \"{}\" {}: scheme://host[:port] as browsers send it, such as "
                  "https://chat.example.org or http://localhost:3000, or *",
                  origin, why);
    };
    // Of files and sandboxed frames: it would let in any page that has one.
    if (origin == "null") return wrong("is no origin that could be told from others");
    const size_t scheme_end = origin.find("://");
    if (scheme_end == std::string::npos || scheme_end == 0) return wrong("has no scheme");
    const std::string scheme = origin.substr(0, scheme_end);
    std::string host = origin.substr(scheme_end + 3);
    if (std::ranges::any_of(origin, [](char c) { return c >= 'A' && c <= 'Z'; }))
      return wrong("has capital letters");
    if (scheme[0] < 'a' ||
        !std::ranges::all_of(
            scheme, [&](char c) { return (is_host_char(c) && c != '_') || c == '+'; }))
      return wrong("has no scheme");
    const size_t colon = host.rfind(':');
    if (colon != std::string::npos && colon >= host.rfind(']') + 1) {
      uint16_t port = 0;
      const std::string text = host.substr(colon + 1);
      if (!parse_number(text.c_str(), &port) || port == 0 || text[0] == '0')
        return wrong("has a port that is none");
      if ((scheme == "http" && port == 80) || (scheme == "https" && port == 443))
        return wrong("has the port that browsers leave out");
      host.resize(colon);
    }
    const bool is_ipv6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
    const std::string_view inner =
        is_ipv6 ? std::string_view(host).substr(1, host.size() - 2) : std::string_view(host);
    if (inner.empty() || !std::ranges::all_of(inner, [&](char c) {
          return is_ipv6 ? (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == ':' || c == '.'
                         : is_host_char(c);
        }))
      return wrong("has no host, or more than a host");
  }
  return {};
}

void notify_manager(std::string_view message) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (!path || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof to.sun_path) return;
  std::memcpy(to.sun_path, path, length);
  if (path[0] == '@') to.sun_path[0] = '\0';  // abstract
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  // Who does not listen misses it: there is nobody to tell.
  (void)!::sendto(fd, message.data(), message.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&to), size);
  ::close(fd);
}

Result<std::string> read_api_key(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    return fail(code_from_errno(errno), "{}: {}", path, errno_text(errno));
  if ((info.st_mode & (S_IRGRP | S_IROTH)) != 0)
    return fail(Code::kPermission, "{}: others may read this key (mode {:04o}); chmod 0600 it",
                path, info.st_mode & 07777);
  std::ifstream in(path);
  std::string key;
  if (!std::getline(in, key) && !in.eof()) return fail(Code::kIo, "{}: cannot be read", path);
  while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
  if (key.empty()) return fail(Code::kInvalidArgument, "{}: the first line is empty", path);
  return key;
}

bool equals_secret(std::string_view given, std::string_view secret) {
  // The time depends on what is given alone.
  volatile unsigned char difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i)
    difference = static_cast<unsigned char>(
        difference | (static_cast<unsigned char>(given[i]) ^
                      static_cast<unsigned char>(secret[i % secret.size()])));
  return difference == 0;
}

}  // namespace bm::serve
