#include "tests/unit/transport/vfio_user_server.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

namespace bm::test {
namespace {

constexpr uint64_t kMemoryBytes = 64 << 10;

std::string words(std::initializer_list<uint32_t> list) {
  return {reinterpret_cast<const char*>(list.begin()), list.size() * 4};
}

template <class T>
T get(const std::string& from, size_t at) {
  T value{};
  if (at + sizeof value <= from.size()) std::memcpy(&value, &from[at], sizeof value);
  return value;
}

}  // namespace

VfioUserServer::VfioUserServer(Options options)
    : options_(std::move(options)), folder_("/tmp/bm-vfu-XXXXXX"), sender_(options_.faults) {
  listener_ = listen_in_folder(&folder_);
  address_ = folder_ + "/socket";
  if (::pipe(stop_) != 0) std::abort();
  file_ = ::memfd_create("bar2", MFD_CLOEXEC);
  if (::ftruncate(file_, static_cast<off_t>(kMemoryBytes)) != 0) std::abort();
  memory_ = static_cast<uint8_t*>(
      ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
  config_.assign(256, '\0');
  const std::string id = words({0x5678'1af4, 0, 0x0380'0001});
  config_.replace(0, id.size(), id);
  config_[0x10] = 4;    // BAR 0: 64 bits
  config_[0x18] = 0xc;  // BAR 2: 64 bits, prefetchable
  thread_ = std::thread([this] { run(); });
}

VfioUserServer::~VfioUserServer() {
  ::close(stop_[1]);
  thread_.join();
  ::close(stop_[0]);
  ::close(listener_);
  ::close(file_);
  ::munmap(memory_, kMemoryBytes);
  ::unlink(address_.c_str());
  ::rmdir(folder_.c_str());
}

std::vector<std::string> VfioUserServer::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

bool VfioUserServer::take(int fd, void* to, size_t bytes, std::vector<int>* fds) {
  auto* at = static_cast<char*>(to);
  while (bytes != 0) {
    pollfd wanted[2] = {{fd, POLLIN, 0}, {stop_[0], POLLIN, 0}};
    if (::poll(wanted, 2, -1) <= 0 || wanted[1].revents != 0) return false;
    iovec part{at, bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) return false;
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
         head = CMSG_NXTHDR(&message, head))
      for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= head->cmsg_len; ++i) {
        int brought = -1;
        std::memcpy(&brought, CMSG_DATA(head) + i * sizeof(int), sizeof brought);
        fds->push_back(brought);
      }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool VfioUserServer::take_message(int fd, Message& message) {
  struct {
    uint16_t id, command;
    uint32_t size, flags, error;
  } head{};
  if (!take(fd, &head, sizeof head, &message.fds) || head.size < sizeof head) return false;
  message.id = head.id;
  message.command = head.command;
  message.flags = head.flags;
  message.payload.resize(head.size - sizeof head);
  return take(fd, message.payload.data(), message.payload.size(), &message.fds);
}

void VfioUserServer::put(int fd, const std::string& bytes, int passed) {
  (void)sender_.put(fd, client_, bytes, passed);
}

void VfioUserServer::reply(const Message& to, const std::string& payload, int passed, int error) {
  if (to.flags & 0x10) return;
  const std::string body = error == 0 ? payload : std::string();
  put(client_,
      words({to.id | uint32_t{to.command} << 16, static_cast<uint32_t>(16 + body.size()),
             error == 0 ? 1u : 0x21u, static_cast<uint32_t>(error)}) +
          body,
      passed);
}

void VfioUserServer::run() {
  pollfd wanted[2] = {{listener_, POLLIN, 0}, {stop_[0], POLLIN, 0}};
  while (::poll(wanted, 2, -1) > 0 && wanted[1].revents == 0) {
    client_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    serve();
    for (const auto& [address, area] : areas_)
      if (area.mapped != nullptr) ::munmap(area.mapped, area.size);
    areas_.clear();
    pending_.clear();
    for (const int event : events_) ::close(event);
    events_.clear();
    if (twin_ >= 0) ::close(twin_);
    twin_ = -1;
    ::close(client_);
  }
}

void VfioUserServer::serve() {
  for (bool is_open = true; is_open;) {
    Message message;
    if (!pending_.empty()) {
      message = std::move(pending_.front());
      pending_.pop_front();
    } else if (!take_message(client_, message)) {
      is_open = false;
    }
    if (is_open) is_open = handle(message);
    for (const int fd : message.fds) ::close(fd);
  }
}

std::string VfioUserServer::region_info(uint32_t index) const {
  const auto info = [index](uint32_t flags, uint32_t size, uint32_t argsz = 32) {
    return words({argsz, flags, index, flags & 8 ? 32u : 0, size, 0, 0, 0});
  };
  if (index == 7) return info(3, 256);
  if (index == 0) return info(3, 4096);
  // Two of its pages can be mapped.
  if (index == 2)
    return info(0xf, kMemoryBytes, 80) +
           words({1 | 1 << 16, 0, 2, 0, 0x1000, 0, 0x1000, 0, 0x8000, 0, 0x1000, 0});
  return info(0, 0);
}

bool VfioUserServer::move(uint64_t address, uint64_t* value, bool is_write) {
  for (const auto& [start, area] : areas_) {
    if (address < start || address + 8 > start + area.size || area.mapped == nullptr) continue;
    if (is_write)
      std::memcpy(area.mapped + (address - start), value, 8);
    else
      std::memcpy(value, area.mapped + (address - start), 8);
    return true;
  }
  // Not mapped here: the client is asked.
  const int fd = twin_ >= 0 ? twin_ : client_;
  std::string payload =
      words({static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32), 8, 0});
  if (is_write) payload.append(reinterpret_cast<const char*>(value), 8);
  put(fd, words({77u | (is_write ? 12u : 11u) << 16, static_cast<uint32_t>(16 + payload.size()), 0,
                 0}) +
              payload);
  Message answer;
  for (;;) {
    answer = {};
    if (!take_message(fd, answer)) return false;
    if ((answer.flags & 0xf) == 1) break;
    // On one socket the client's next requests come before its answer.
    pending_.push_back(std::move(answer));
  }
  if ((answer.flags & 0x2f) != 1 || answer.id != 77) return false;
  if (!is_write) *value = get<uint64_t>(answer.payload, 16);
  return true;
}

void VfioUserServer::write_register(uint64_t offset, uint32_t value) {
  registers_[offset] = value;
  if (offset != 0x20) return;
  const auto pair = [this](uint64_t at) {
    return registers_[at] | uint64_t{registers_[at + 4]} << 32;
  };
  uint64_t data = pair(0x18);
  bool is_done = false;
  if (value == 1 || value == 2) {
    is_done = move(pair(0x10), &data, value == 1);
    registers_[0x18] = static_cast<uint32_t>(data);
    registers_[0x1c] = static_cast<uint32_t>(data >> 32);
  } else if (value == 3 && data < events_.size()) {
    const uint64_t one = 1;
    is_done = ::write(events_[data], &one, sizeof one) == sizeof one;
  }
  registers_[0x24] = is_done ? 1 : 0;
}

bool VfioUserServer::handle(Message& message) {
  const std::string& in = message.payload;
  switch (message.command) {
    case 1: {
      std::string out(4, '\0');
      std::memcpy(&out[0], &options_.major, 2);
      std::memcpy(&out[2], &options_.minor, 2);
      int ends[2] = {-1, -1};
      std::string text = "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":4096}}";
      if (options_.has_twin_socket &&
          ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0)
        text =
            "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":4096,"
            "\"twin_socket\":{\"supported\":true,\"fd_index\":0}}}";
      if (!options_.capabilities.empty()) text = options_.capabilities;
      reply(message, out + text + '\0', ends[1]);
      if (ends[1] >= 0) ::close(ends[1]);
      twin_ = ends[0];
      return true;
    }
    case 2: {
      const auto start = get<uint64_t>(in, 16), size = get<uint64_t>(in, 24);
      if (areas_.contains(start)) return reply(message, "", -1, EEXIST), true;
      uint8_t* mapped = nullptr;
      if (!message.fds.empty())
        mapped = static_cast<uint8_t*>(
            ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, message.fds[0], 0));
      areas_[start] = {size, mapped};
      return reply(message, ""), true;
    }
    case 3: {
      const auto found = areas_.find(get<uint64_t>(in, 8));
      if (found == areas_.end()) return reply(message, "", -1, ENOENT), true;
      if (found->second.mapped != nullptr) ::munmap(found->second.mapped, found->second.size);
      areas_.erase(found);
      return reply(message, in), true;
    }
    case 4: return reply(message, words({16, 3, 9, 5})), true;
    case 5: {
      const auto index = get<uint32_t>(in, 8);
      const bool is_short = index == 2 && options_.is_bar_file_short;
      const int passed = is_short ? ::memfd_create("short", MFD_CLOEXEC) : file_;
      reply(message, region_info(index), index == 2 ? passed : -1);
      if (is_short) ::close(passed);
      return true;
    }
    case 7: {
      const auto index = get<uint32_t>(in, 8);
      if (index >= 3) return reply(message, "", -1, EINVAL), true;
      return reply(message, words({16, 1, index, index == 2 ? 4u : 0u})), true;
    }
    case 8:
      for (const int event : events_) ::close(event);
      events_ = std::move(message.fds);
      message.fds.clear();
      return reply(message, ""), true;
    case 9:
    case 10: {
      const auto offset = get<uint64_t>(in, 0);
      const auto region = get<uint32_t>(in, 8), count = get<uint32_t>(in, 12);
      const bool is_write = message.command == 10;
      if (region != 7) {
        const std::lock_guard lock(mutex_);
        log_.push_back(
            fmt::format("{} {} {:#x} {}", is_write ? "write" : "read", region, offset, count));
      }
      const uint64_t size = region == 7 ? 256 : region == 0 ? 4096 : region == 2 ? kMemoryBytes : 0;
      if (offset + count > size || count > 4096) return reply(message, "", -1, EINVAL), true;
      std::string out = in.substr(0, 16) + std::string(is_write ? 0 : count, '\0');
      if (region == 0) {
        if (count % 4 != 0) return reply(message, "", -1, EINVAL), true;
        registers_[0] = 0x55aa0001;
        for (uint32_t at = 0; at < count; at += 4) {
          if (is_write) {
            write_register(offset + at, get<uint32_t>(in, 16 + at));
          } else {
            std::memcpy(&out[16 + at], &registers_[offset + at], 4);
          }
        }
      } else {
        char* const where =
            (region == 7 ? config_.data() : reinterpret_cast<char*>(memory_)) + offset;
        if (is_write)
          std::memcpy(where, in.data() + 16, count);
        else
          std::memcpy(&out[16], where, count);
      }
      return reply(message, out), true;
    }
    case 13:
      ++resets_;
      registers_.clear();
      return reply(message, ""), true;
    default: return reply(message, "", -1, ENOTSUP), true;
  }
}

}  // namespace bm::test
