#include "tests/sim/pci/remote.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "tests/sim/pci/client_memory.h"

namespace bm::sim {
namespace {

enum Command : uint8_t {
  kProbe,
  kMapBar,
  kMapMemoryFd,
  kConfigRead,
  kConfigWrite,
  kReset,
  kBarRead,
  kBarWrite,
  kMapMemory,
  kMemoryRead,
  kMemoryWrite,
  kResizeBar,
  kPing,
};
constexpr size_t kRequestBytes = 33;
constexpr uint64_t kPage = 4096, kMostBytes = uint64_t{256} << 20;

bool receive(int socket, std::span<std::byte> to) {
  for (size_t done = 0; done < to.size();) {
    const ssize_t got = recv(socket, &to[done], to.size() - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

bool transmit(int socket, std::span<const std::byte> from) {
  for (size_t done = 0; done < from.size();) {
    const ssize_t sent = send(socket, &from[done], from.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    done += static_cast<size_t>(sent);
  }
  return true;
}

std::array<std::byte, 17> reply(uint8_t status, uint64_t first, uint64_t second) {
  std::array<std::byte, 17> out{static_cast<std::byte>(status)};
  std::memcpy(&out[1], &first, 8);
  std::memcpy(&out[9], &second, 8);
  return out;
}

}  // namespace

RemoteServer::~RemoteServer() { free_memory(); }

void RemoteServer::free_memory() {
  for (const Memory& memory : memory_) {
    for (const uint64_t page : memory.pages) card_.system_memory().unmap(page);
    retire_client_memory(memory.host, memory.bytes);
    close(memory.fd);
  }
  memory_.clear();
}

bool RemoteServer::answer(int socket, uint64_t first, uint64_t second) {
  return transmit(socket, reply(0, first, second));
}

bool RemoteServer::refuse(int socket, const std::string& why) {
  return transmit(socket, reply(1, why.size(), 0)) &&
         transmit(socket, std::as_bytes(std::span(why)));
}

void RemoteServer::serve(int socket) {
  for (;;) {
    std::array<std::byte, kRequestBytes> bytes{};
    if (!receive(socket, bytes)) break;
    Request request;
    std::memcpy(&request.command, &bytes[0], 1);
    std::memcpy(&request.device, &bytes[1], 4);
    std::memcpy(&request.handle, &bytes[5], 4);
    std::memcpy(request.arguments, &bytes[9], 24);
    ++requests_;
    if (seen_) seen_(requests_);
    if (!handle(socket, request)) break;
  }
  // The host's memory goes with its process; the function stays as it was left, bus master or not.
  free_memory();
}

bool RemoteServer::handle(int socket, const Request& r) {
  if (r.command != kProbe && r.command != kPing && r.device != 0) {
    const bool is_silent = r.command == kBarWrite || r.command == kMemoryWrite;
    return !is_silent && refuse(socket, fmt::format("device {} is not there", r.device));
  }
  const auto is_config = [&] {
    return (r.arguments[1] == 1 || r.arguments[1] == 2 || r.arguments[1] == 4) &&
           r.arguments[0] % r.arguments[1] == 0 && r.arguments[0] < ConfigSpace::kSize;
  };
  switch (r.command) {
    case kPing: return answer(socket, 0, 0);
    case kProbe: return probe(socket, r);
    case kMapBar:
      if (r.handle >= 6 || card_.bar_bytes(r.handle) == 0)
        return refuse(socket, fmt::format("BAR {} is not there", r.handle));
      return answer(socket, card_.config().bar_address(r.handle), card_.bar_bytes(r.handle));
    case kConfigRead:
      if (!is_config()) return refuse(socket, "no such bytes of configuration space");
      return answer(socket,
                    card_.read_config(static_cast<uint32_t>(r.arguments[0]),
                                      static_cast<uint32_t>(r.arguments[1])),
                    0);
    case kConfigWrite:
      if (!is_config()) return refuse(socket, "no such bytes of configuration space");
      card_.write_config(static_cast<uint32_t>(r.arguments[0]),
                         static_cast<uint32_t>(r.arguments[1]),
                         static_cast<uint32_t>(r.arguments[2]));
      return answer(socket, 0, 0);
    case kReset: card_.function_reset(); return answer(socket, 0, 0);
    case kResizeBar:
      if (r.handle != card_.traits().memory_bar ||
          !card_.resize_memory_bar(card_.traits().largest_memory_bar))
        return refuse(socket, fmt::format("BAR {} cannot be resized", r.handle));
      return answer(socket, 0, 0);
    case kBarRead: return access_bar(socket, r, false);
    case kBarWrite: return access_bar(socket, r, true);
    case kMapMemory: return allocate(socket, r, false);
    case kMapMemoryFd: return allocate(socket, r, true);
    case kMemoryRead: return access_memory(socket, r, false);
    case kMemoryWrite: return access_memory(socket, r, true);
    default: return refuse(socket, fmt::format("unknown command {}", r.command));
  }
}

/// Payload: pairs of a mask and the device number that is wanted under it.
bool RemoteServer::probe(int socket, const Request& r) {
  if (r.arguments[1] > 4096 || r.arguments[1] % 8 != 0) return false;
  std::vector<uint32_t> wanted(r.arguments[1] / 4);
  if (!receive(socket, std::as_writable_bytes(std::span(wanted)))) return false;
  const uint32_t id = card_.config().read(2, 2), base_class = card_.config().read(0xb, 1);
  bool is_wanted = r.arguments[2] == card_.config().read(0, 2) &&
                   (r.arguments[0] == 0 || r.arguments[0] == base_class);
  bool is_listed = wanted.empty();
  for (size_t i = 0; i + 1 < wanted.size(); i += 2) is_listed |= (id & wanted[i]) == wanted[i + 1];
  is_wanted &= is_listed;
  const std::string name = is_wanted ? "0000:03:00.0:0" : "";
  return answer(socket, name.size(), is_wanted ? 1 : 0) &&
         transmit(socket, std::as_bytes(std::span(name)));
}

bool RemoteServer::access_bar(int socket, const Request& r, bool is_write) {
  const uint64_t offset = r.arguments[0], bytes = r.arguments[1];
  const bool is_inside = r.handle < 6 && bytes <= kMostBytes &&
                         offset <= card_.bar_bytes(r.handle) &&
                         bytes <= card_.bar_bytes(r.handle) - offset;
  if (!is_inside) {
    if (is_write) return false;
    return refuse(socket, fmt::format("{:#x} bytes at {:#x} of BAR {}", bytes, offset, r.handle));
  }
  std::vector<std::byte> data(bytes);
  if (is_write && !receive(socket, data)) return false;
  // One access on the bus where it was one of the client's.
  const bool is_word = (bytes == 4 || bytes == 8) && offset % bytes == 0 &&
                       (r.handle != card_.traits().register_bar || bytes == 4);
  uint64_t word = 0;
  if (is_write) {
    if (!is_word) {
      card_.write_block(r.handle, offset, data);
    } else {
      std::memcpy(&word, data.data(), bytes);
      card_.write(r.handle, offset, static_cast<uint32_t>(bytes), word);
    }
    return true;
  }
  if (is_word) {
    word = card_.read(r.handle, offset, static_cast<uint32_t>(bytes));
    std::memcpy(data.data(), &word, bytes);
  } else {
    card_.read_block(r.handle, offset, data);
  }
  return answer(socket, bytes, 0) && transmit(socket, data);
}

bool RemoteServer::allocate(int socket, const Request& r, bool gives_descriptor) {
  const uint64_t bytes = (r.arguments[0] + kPage - 1) / kPage * kPage;
  if (bytes == 0 || bytes > kMostBytes)
    return refuse(socket, fmt::format("{:#x} bytes of memory for DMA", r.arguments[0]));
  Memory memory;
  memory.bytes = bytes;
  memory.fd = memfd_create("bm-sim-dma", MFD_CLOEXEC);
  if (memory.fd < 0 || ftruncate(memory.fd, static_cast<off_t>(bytes)) != 0)
    return refuse(socket, "no memory for DMA");
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
  if (at == MAP_FAILED) {
    close(memory.fd);
    return refuse(socket, "no memory for DMA");
  }
  memory.host = static_cast<std::byte*>(at);
  // Pages that were not asked for in one piece lie anywhere.
  const bool is_contiguous = r.arguments[1] != 0;
  for (uint64_t done = 0; done < bytes; done += kPage) {
    memory.pages.push_back(next_page_);
    card_.system_memory().map(next_page_, {memory.host + done, kPage, false});
    next_page_ += is_contiguous ? kPage : (done / kPage % 3 + 1) * kPage;
  }
  memory_.push_back(memory);
  if (!gives_descriptor) {
    const auto list = std::as_bytes(std::span(memory.pages));
    return answer(socket, list.size(), memory_.size() - 1) && transmit(socket, list);
  }
  // The memory starts with address and length of each piece, up to a pair of zeros.
  if (memory.pages.size() * 16 + 16 > bytes)
    return refuse(socket, "too small for the list of its own pages");
  for (size_t i = 0; i <= memory.pages.size(); ++i) {
    const std::array<uint64_t, 2> pair = i < memory.pages.size()
                                             ? std::array<uint64_t, 2>{memory.pages[i], kPage}
                                             : std::array<uint64_t, 2>{0, 0};
    std::memcpy(memory.host + i * 16, pair.data(), 16);
  }
  auto head = reply(0, bytes, 0);
  iovec vector{head.data(), head.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &memory.fd, sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(head.size());
}

bool RemoteServer::access_memory(int socket, const Request& r, bool is_write) {
  const uint64_t offset = r.arguments[0], bytes = r.arguments[1];
  const bool is_inside = r.handle < memory_.size() && offset <= memory_[r.handle].bytes &&
                         bytes <= memory_[r.handle].bytes - offset;
  if (!is_inside) {
    if (is_write) return false;
    return refuse(socket,
                  fmt::format("{:#x} bytes at {:#x} of memory {}", bytes, offset, r.handle));
  }
  const std::span<std::byte> there(memory_[r.handle].host + offset, bytes);
  if (is_write) return receive(socket, there);
  return answer(socket, bytes, 0) && transmit(socket, there);
}

int listen_at(const std::string& where, uint16_t* port) {
  std::string_view text = where;
  if (text.starts_with("127.0.0.1:")) text.remove_prefix(10);
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_port = error == std::errc() && end == text.data() + text.size();
  const int socket = ::socket(is_port ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  // The file has its name once somebody listens: clients wait for it.
  const std::string draft = where + "~";
  bool is_bound = false;
  if (is_port) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(number);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_bound = bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    socklen_t length = sizeof address;
    getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
    *port = ntohs(address.sin_port);
  } else {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (draft.size() < sizeof address.sun_path) {
      std::memcpy(address.sun_path, draft.data(), draft.size());
      unlink(draft.c_str());
      is_bound = bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    } else {
      errno = ENAMETOOLONG;
    }
  }
  if (is_bound && listen(socket, 4) == 0 &&
      (is_port || std::rename(draft.c_str(), where.c_str()) == 0))
    return socket;
  const int kept = errno;
  close(socket);
  errno = kept;
  return -1;
}

}  // namespace bm::sim
