#include "tests/unit/transport/remote_pci_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "drivers/transport/pci_config.h"

namespace bm::test {

// '<BIIQQQ' of the server.
struct [[gnu::packed]] RemotePciServer::Request {
  uint8_t command;
  uint32_t device, place;
  uint64_t a, b, c;
};

RemotePciServer::RemotePciServer(FakePci& pci, Options options)
    : pci_(pci), options_(options), sender_(options.faults) {
  if (options.is_tcp) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
        ::listen(listener_, 4) != 0)
      std::abort();
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes);
    address_ = fmt::format("localhost:{}", ntohs(address.sin_port));
  } else {
    folder_ = "/tmp/bm-remote-XXXXXX";
    listener_ = listen_in_folder(&folder_);
    address_ = folder_ + "/socket";
  }
  if (::pipe(stop_) != 0) std::abort();
  thread_ = std::thread([this] { run(); });
}

RemotePciServer::~RemotePciServer() {
  ::close(stop_[1]);
  thread_.join();
  ::close(stop_[0]);
  ::close(listener_);
  for (const auto& [address, bytes] : shared_) ::munmap(address, bytes);
  if (folder_.empty()) return;
  ::unlink(address_.c_str());
  ::rmdir(folder_.c_str());
}

std::vector<std::string> RemotePciServer::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

namespace {

/// False when `stop` is closed first.
bool has_input(int fd, int stop) {
  pollfd fds[2] = {{fd, POLLIN, 0}, {stop, POLLIN, 0}};
  return ::poll(fds, 2, -1) > 0 && fds[1].revents == 0;
}

bool take(int fd, int stop, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes != 0) {
    if (!has_input(fd, stop)) return false;
    const ssize_t got = ::recv(fd, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

void RemotePciServer::run() {
  while (has_input(listener_, stop_[0])) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    serve(fd);
    ::close(fd);
  }
}

void RemotePciServer::reply(int fd, uint64_t first, uint64_t second, const std::string& data,
                            int passed) {
  std::string bytes(17, '\0');
  std::memcpy(&bytes[1], &first, 8);
  std::memcpy(&bytes[9], &second, 8);
  (void)sender_.put(fd, fd, bytes + data, passed);
}

void RemotePciServer::refuse(int fd, const std::string& why) {
  std::string bytes(17, '\0');
  const uint64_t length = why.size();
  bytes[0] = 1;
  std::memcpy(&bytes[1], &length, 8);
  (void)sender_.put(fd, fd, bytes + why);
}

void RemotePciServer::serve(int fd) {
  Request request{};
  while (take(fd, stop_[0], &request, sizeof request)) {
    const bool is_write = request.command == 7 || request.command == 10;
    std::string payload(request.command == 0 || is_write ? request.b : 0, '\0');
    if (!take(fd, stop_[0], payload.data(), payload.size())) return;
    answer(fd, request, payload);
  }
}

void RemotePciServer::answer(int fd, const Request& request, const std::string& payload) {
  static const char* const kNames[] = {"probe",      "map_bar",     "map_sysmem_fd", "cfg_read",
                                       "cfg_write",  "reset",       "mmio_read",     "mmio_write",
                                       "map_sysmem", "sysmem_read", "sysmem_write",  "resize_bar",
                                       "ping"};
  if (request.command != 3 && request.command != 4) {
    const std::lock_guard lock(mutex_);
    log_.push_back(fmt::format("{} {} {:#x} {}",
                               request.command < 13 ? kNames[request.command] : "?",
                               uint32_t{request.place}, uint64_t{request.a}, uint64_t{request.b}));
  }
  const uint32_t place = request.place;
  const uint64_t a = request.a, b = request.b;
  const bool is_bar = place < kPciBars && pci_.bars()[place].size != 0;
  switch (request.command) {
    case 0: {
      uint32_t match[2] = {};
      std::memcpy(match, payload.data(), std::min<size_t>(8, payload.size()));
      const bool fits = request.c == pci_.identity().vendor &&
                        (a == 0 || a == pci_.identity().class_code >> 16) &&
                        (pci_.identity().device & match[0]) == match[1];
      const std::string text = fits ? "0000:03:00.0:0" : "";
      return reply(fd, text.size(), fits ? 1 : 0, text);
    }
    case 1:
      if (!is_bar) return refuse(fd, fmt::format("no resource{}\nfile", place));
      return reply(fd, pci_.bars()[place].address, pci_.bars()[place].size);
    case 2: {
      if (!options_.has_shared_memory) return refuse(fd, "unknown command 2");
      const uint64_t bytes = std::max<uint64_t>(a, 4096);
      const int file = ::memfd_create("test", MFD_CLOEXEC);
      if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
      auto* const words = static_cast<uint64_t*>(
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
      shared_.emplace_back(words, bytes);
      for (uint64_t i = 0; i < bytes / 4096; ++i) {
        words[i * 2] = 0x1000'0000 + i * 0x1000;
        words[i * 2 + 1] = 0x1000;
      }
      reply(fd, bytes, 0, {}, file);
      ::close(file);
      return;
    }
    case 3: {
      const auto value = pci_.read_config(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
      return value ? reply(fd, *value, 0) : refuse(fd, value.error().message);
    }
    case 4:
      (void)pci_.write_config(static_cast<uint32_t>(a), static_cast<uint32_t>(b),
                              static_cast<uint32_t>(request.c));
      return reply(fd, 0, 0);
    case 5: (void)pci_.reset(PciReset::kFunction); return reply(fd, 0, 0);
    case 6: {
      if (!is_bar || a + b > pci_.bars()[place].size) return refuse(fd, "out of range");
      std::string data(b, '\0');
      if (b == 4 && a % 4 == 0) {
        const uint32_t value = pci_.map_bar(place)->read32(a);
        std::memcpy(data.data(), &value, 4);
      } else {
        pci_.map_bar_memory(place, false)->copy_out(a, std::as_writable_bytes(std::span(data)));
      }
      return reply(fd, b, 0, data);
    }
    case 7:
      if (!is_bar || a + b > pci_.bars()[place].size) {
        ::shutdown(fd, SHUT_RDWR);
      } else if (b == 4 && a % 4 == 0) {
        uint32_t value = 0;
        std::memcpy(&value, payload.data(), 4);
        pci_.map_bar(place)->write32(a, value);
      } else {
        pci_.map_bar_memory(place, false)->copy_in(a, std::as_bytes(std::span(payload)));
      }
      return;
    case 8: {
      auto memory = pci_.dma_allocate(a, b != 0, std::nullopt);
      if (!memory) return refuse(fd, memory.error().message);
      std::string addresses;
      for (const BusRange& range : (*memory)->ranges())
        for (uint64_t at = 0; at < range.bytes; at += 4096) {
          const uint64_t address = range.address + at;
          addresses.append(reinterpret_cast<const char*>(&address), 8);
        }
      memory_.push_back(std::move(*memory));
      return reply(fd, addresses.size(), memory_.size() - 1, addresses);
    }
    case 9: {
      if (place >= memory_.size() || a + b > memory_[place]->view().size())
        return refuse(fd, "out of range");
      std::string data(b, '\0');
      memory_[place]->view().copy_out(a, std::as_writable_bytes(std::span(data)));
      return reply(fd, b, 0, data);
    }
    case 10:
      if (place >= memory_.size() || a + b > memory_[place]->view().size())
        ::shutdown(fd, SHUT_RDWR);
      else
        memory_[place]->view().copy_in(a, std::as_bytes(std::span(payload)));
      return;
    case 11: {
      if (place != 0) return refuse(fd, "fixed");
      const auto sizes = resizable_bar_sizes(pci_, place);
      const Status resized = pci_.resize_bar(place, sizes->back());
      return resized ? reply(fd, 0, 0) : refuse(fd, resized.error().message);
    }
    case 12: return reply(fd, 0, 0);
    default: return refuse(fd, "unknown command");
  }
}

}  // namespace bm::test
