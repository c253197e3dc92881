#include "tests/sim/pci/vfio_user.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/sim/pci/client_memory.h"

namespace bm::sim {
namespace {

// Section "Commands" of the specification.
enum Command : uint16_t {
  kVersion = 1,
  kDmaMap = 2,
  kDmaUnmap = 3,
  kGetInfo = 4,
  kGetRegionInfo = 5,
  kGetInterruptInfo = 7,
  kSetInterrupts = 8,
  kRegionRead = 9,
  kRegionWrite = 10,
  kReset = 13,
};
constexpr uint32_t kTypeBits = 0xf, kIsReply = 1, kWantsNoReply = 1u << 4, kIsError = 1u << 5;
constexpr size_t kHeader = 16;
constexpr uint32_t kMostData = 1 << 20, kMostMessage = kMostData + 4096;
constexpr size_t kMostDescriptors = 8;
constexpr uint64_t kPage = 4096;
constexpr uint32_t kReadable = 1, kWritable = 2;  // of DMA_MAP
// Numbers of regions and interrupts: the indices of vfio-pci in <linux/vfio.h>.
constexpr uint32_t kRegions = 9, kConfigRegion = 7;
constexpr uint32_t kInterrupts = 5, kMsi = 1;
constexpr uint32_t kInfoReset = 1, kInfoPci = 2;
constexpr uint32_t kMayRead = 1, kMayWrite = 2;
constexpr uint32_t kByEventfd = 1, kNoResize = 8;
constexpr uint32_t kDataNone = 1, kDataEventfd = 4, kActionTrigger = 32;

template <class T>
T get(std::span<const std::byte> from, size_t at) {
  T value{};
  if (at + sizeof value <= from.size()) std::memcpy(&value, &from[at], sizeof value);
  return value;
}
template <class T>
void put(std::vector<std::byte>& to, T value) {
  const size_t at = to.size();
  to.resize(at + sizeof value);
  std::memcpy(&to[at], &value, sizeof value);
}

bool read_whole(int socket, std::span<std::byte> to) {
  for (size_t done = 0; done < to.size();) {
    const ssize_t got = recv(socket, &to[done], to.size() - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

bool send_whole(int socket, std::span<const std::byte> from) {
  for (size_t done = 0; done < from.size();) {
    const ssize_t sent = send(socket, &from[done], from.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    done += static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

VfioUserServer::~VfioUserServer() { forget_client(); }

void VfioUserServer::forget_client() {
  card_.on_interrupt({});
  card_.set_msi(false);
  if (interrupt_ >= 0) close(interrupt_);
  interrupt_ = -1;
  card_.write_config(4, 2, card_.read_config(4, 2) & ~4u);
  for (const auto& [address, memory] : memory_) {
    card_.system_memory().unmap(address);
    retire_client_memory(memory.host, memory.bytes);
  }
  memory_.clear();
}

bool VfioUserServer::receive(int socket, Message& message) {
  std::array<std::byte, kHeader> header{};
  iovec part{header.data(), header.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr wanted{};
  wanted.msg_iov = &part;
  wanted.msg_iovlen = 1;
  wanted.msg_control = control.data();
  wanted.msg_controllen = control.size();
  ssize_t got = 0;
  do got = recvmsg(socket, &wanted, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return false;
  for (cmsghdr* one = CMSG_FIRSTHDR(&wanted); one != nullptr; one = CMSG_NXTHDR(&wanted, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    message.fds.resize((one->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(message.fds.data(), CMSG_DATA(one), message.fds.size() * sizeof(int));
  }
  if (!read_whole(socket, std::span(header).subspan(static_cast<size_t>(got)))) return false;
  message.id = get<uint16_t>(header, 0);
  message.command = get<uint16_t>(header, 2);
  message.flags = get<uint32_t>(header, 8);
  const uint32_t size = get<uint32_t>(header, 4);
  if (size < kHeader || size > kMostMessage || (message.flags & kTypeBits) != 0) return false;
  message.payload.resize(size - kHeader);
  return read_whole(socket, message.payload);
}

void VfioUserServer::serve(int socket) {
  for (bool has_version = false;;) {
    Message message;
    const bool is_whole = receive(socket, message);
    Payload payload;
    // The version comes first, or nothing.
    bool goes_on = is_whole && (has_version || message.command == kVersion);
    if (goes_on) {
      ++requests_;
      if (seen_) seen_(requests_);
      const int error = handle(message, payload);
      has_version = true;
      if ((message.flags & kWantsNoReply) == 0) {
        if (error != 0) payload.clear();
        Payload reply;
        put(reply, message.id);
        put(reply, message.command);
        put(reply, static_cast<uint32_t>(kHeader + payload.size()));
        put(reply, kIsReply | (error != 0 ? kIsError : 0));
        put(reply, static_cast<uint32_t>(error));
        reply.insert(reply.end(), payload.begin(), payload.end());
        goes_on = send_whole(socket, reply);
      }
    }
    for (const int fd : message.fds)
      if (fd >= 0) close(fd);
    if (!goes_on) break;
  }
  forget_client();
}

int VfioUserServer::handle(Message& message, Payload& out) {
  switch (message.command) {
    case kVersion: return negotiate(message, out);
    case kDmaMap: return map(message);
    case kDmaUnmap: return unmap(message, out);
    case kGetInfo:
      put(out, uint32_t{16});
      put(out, kInfoPci | (card_.traits().has_function_reset ? kInfoReset : 0));
      put(out, kRegions);
      put(out, kInterrupts);
      return 0;
    case kGetRegionInfo: return describe_region(message, out);
    case kGetInterruptInfo: return describe_interrupt(message, out);
    case kSetInterrupts: return set_interrupts(message);
    case kRegionRead: return access(message, false, out);
    case kRegionWrite: return access(message, true, out);
    case kReset:
      if (!card_.traits().has_function_reset) return ENOTSUP;
      card_.function_reset();
      return 0;
    default: return ENOSYS;
  }
}

int VfioUserServer::negotiate(const Message& message, Payload& out) {
  if (message.payload.size() < 4 || get<uint16_t>(message.payload, 0) != 0) return EINVAL;
  put(out, uint16_t{0});
  put(out, std::min<uint16_t>(get<uint16_t>(message.payload, 2), 1));
  // No more than the client proposed: the two numbers that it may have left out have defaults.
  const std::string data = R"({"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576}})";
  const auto bytes = std::as_bytes(std::span(data.c_str(), data.size() + 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
  return 0;
}

int VfioUserServer::map(Message& message) {
  const auto& p = message.payload;
  if (p.size() < 32) return EINVAL;
  const uint32_t flags = get<uint32_t>(p, 4);
  const uint64_t offset = get<uint64_t>(p, 8), address = get<uint64_t>(p, 16),
                 bytes = get<uint64_t>(p, 24);
  if ((flags & kReadable) == 0 || bytes == 0 || (offset | address | bytes) % kPage != 0 ||
      address + bytes < address)
    return EINVAL;
  if (card_.system_memory().overlaps(address, bytes)) return EEXIST;
  // Memory that would have to be asked for by message: the model's engines want it in one place.
  if (message.fds.empty()) return ENOTSUP;
  const bool is_writable = (flags & kWritable) != 0;
  void* const host = mmap(nullptr, bytes, PROT_READ | (is_writable ? PROT_WRITE : 0), MAP_SHARED,
                          message.fds[0], static_cast<off_t>(offset));
  if (host == MAP_FAILED) return errno;
  card_.system_memory().map(address, {static_cast<std::byte*>(host), bytes, !is_writable});
  memory_[address] = {host, bytes};
  mapped_bytes_ += bytes;
  return 0;
}

int VfioUserServer::unmap(const Message& message, Payload& out) {
  const auto& p = message.payload;
  if (p.size() < 24) return EINVAL;
  const uint64_t address = get<uint64_t>(p, 8), last = address + get<uint64_t>(p, 16) - 1;
  if (last < address) return EINVAL;
  // A range may hold any number of mappings, none included (QEMU sends such for a virtual IOMMU),
  // but cuts none in two: vfio_dma_do_unmap() of Linux vfio_iommu_type1.c.
  auto at = memory_.lower_bound(address);
  if (at != memory_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second.bytes > address) return EINVAL;
  }
  for (auto it = at; it != memory_.end() && it->first <= last; ++it)
    if (it->first + it->second.bytes - 1 > last) return EINVAL;
  while (at != memory_.end() && at->first <= last) {
    card_.before_unmap(at->first, at->second.bytes);
    card_.system_memory().unmap(at->first);
    retire_client_memory(at->second.host, at->second.bytes);
    at = memory_.erase(at);
  }
  out.assign(p.begin(), p.begin() + 24);
  return 0;
}

int VfioUserServer::describe_region(const Message& message, Payload& out) const {
  const uint32_t index = get<uint32_t>(message.payload, 8);
  if (message.payload.size() < 32 || index >= kRegions) return EINVAL;
  const uint64_t bytes = index == kConfigRegion ? ConfigSpace::kSize
                         : index < 6            ? card_.bar_bytes(index)
                                                : 0;
  put(out, uint32_t{32});
  put(out, bytes == 0 ? 0 : kMayRead | kMayWrite);
  put(out, index);
  put(out, uint32_t{0});
  put(out, bytes);
  put(out, uint64_t{0});
  return 0;
}

int VfioUserServer::describe_interrupt(const Message& message, Payload& out) const {
  const uint32_t index = get<uint32_t>(message.payload, 8);
  if (message.payload.size() < 16 || index >= kInterrupts) return EINVAL;
  put(out, uint32_t{16});
  put(out, index == kMsi ? kByEventfd | kNoResize : 0);
  put(out, index);
  put(out, uint32_t{index == kMsi ? 1u : 0u});
  return 0;
}

int VfioUserServer::set_interrupts(Message& message) {
  const auto& p = message.payload;
  if (p.size() < 20) return EINVAL;
  const uint32_t flags = get<uint32_t>(p, 4), index = get<uint32_t>(p, 8),
                 start = get<uint32_t>(p, 12), count = get<uint32_t>(p, 16);
  if (index != kMsi || start != 0 || count > 1) return EINVAL;
  const bool is_off = flags == (kDataNone | kActionTrigger) && count == 0;
  if (!is_off && flags != (kDataEventfd | kActionTrigger)) return EINVAL;
  card_.on_interrupt({});
  card_.set_msi(false);
  if (interrupt_ >= 0) close(interrupt_);
  interrupt_ = -1;
  if (is_off || message.fds.empty()) return 0;
  interrupt_ = std::exchange(message.fds[0], -1);
  card_.on_interrupt([fd = interrupt_] {
    const uint64_t one = 1;
    (void)!::write(fd, &one, sizeof one);
  });
  card_.set_msi(true);
  return 0;
}

int VfioUserServer::access(const Message& message, bool is_write, Payload& out) {
  const auto& p = message.payload;
  if (p.size() < 16) return EINVAL;
  const uint64_t offset = get<uint64_t>(p, 0);
  const uint32_t region = get<uint32_t>(p, 8), count = get<uint32_t>(p, 12);
  const uint64_t bytes = region == kConfigRegion ? ConfigSpace::kSize
                         : region < 6            ? card_.bar_bytes(region)
                                                 : 0;
  if (count == 0 || count > kMostData || offset > bytes || count > bytes - offset) return EINVAL;
  if (is_write && p.size() != 16 + size_t{count}) return EINVAL;
  out.assign(p.begin(), p.begin() + 16);
  if (region == kConfigRegion) {
    if (!is_write) out.resize(16 + size_t{count});
    // QEMU reads all of it at once; on the bus these are accesses of at most 4 bytes.
    for (uint32_t done = 0; done < count;) {
      const auto at = static_cast<uint32_t>(offset) + done;
      uint32_t width = 4;
      while (at % width != 0 || width > count - done) width /= 2;
      uint32_t value = 0;
      if (is_write) {
        std::memcpy(&value, &p[16 + done], width);
        card_.write_config(at, width, value);
      } else {
        value = card_.read_config(at, width);
        std::memcpy(&out[16 + done], &value, width);
      }
      done += width;
    }
    return 0;
  }
  // One access on the bus where it was one of the client's.
  const bool is_word = (count == 4 || count == 8) && offset % count == 0 &&
                       (region != card_.traits().register_bar || count == 4);
  uint64_t word = 0;
  if (is_write && is_word) {
    std::memcpy(&word, &p[16], count);
    card_.write(region, offset, count, word);
  } else if (is_write) {
    card_.write_block(region, offset, std::span(p).subspan(16));
  } else {
    out.resize(16 + size_t{count});
    if (is_word) {
      word = card_.read(region, offset, count);
      std::memcpy(&out[16], &word, count);
    } else {
      card_.read_block(region, offset, std::span(out).subspan(16));
    }
  }
  return 0;
}

}  // namespace bm::sim
