// A PCI function that looks enough like an NVIDIA GPU for nvidia.ko to bind to it, over vfio-user:
// two registers answer, the rest is memory. usage: stub_gpu SOCKET
//
// Source of the protocol: QEMU, docs/interop/vfio-user.rst; payloads are those of linux/vfio.h.
// Registers: open-gpu-kernel-modules 535, swref/published/ampere/ga102/dev_boot.h.
#include <linux/vfio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

namespace {

enum Command : uint16_t {
  kVersion = 1,
  kDmaMap,
  kDmaUnmap,
  kGetInfo,
  kGetRegionInfo,
  kGetRegionIoFds,
  kGetIrqInfo,
  kSetIrqs,
  kRegionRead,
  kRegionWrite,
  kReset = 13,
};
constexpr uint32_t kReply = 1, kNoReply = 0x10, kError = 0x20;
constexpr size_t kMaxMessage = (1 << 20) + 4096;

struct Header {
  uint16_t id, command;
  uint32_t size, flags, error;
};
struct Access {
  uint64_t offset;
  uint32_t region, count;
};

constexpr uint32_t kBoot0 = 0x172000a1, kBoot42 = 0x172a1000;  ///< GA102
constexpr uint64_t kRegisters = 16 << 20, kWindow = 256 << 20, kInstance = 32 << 20;

class StubGpu {
 public:
  explicit StubGpu(int socket) : socket_(socket), registers_(4096) {
    memory_ = memfd_create("stub-gpu", MFD_CLOEXEC);
    if (ftruncate(memory_, kWindow) != 0) std::perror("ftruncate");
    const auto put = [&](size_t at, uint32_t value, size_t bytes) {
      std::memcpy(config_.data() + at, &value, bytes);
    };
    put(0x00, 0x220410de, 4);  // GA102
    put(0x06, 0x0010, 2);      // capabilities
    put(0x08, 0x030000a1, 4);  // VGA controller
    put(0x14, 0xc, 4);         // BAR1: 64 bits, prefetchable
    put(0x1c, 0xc, 4);         // BAR3
    put(0x2c, 0x000110de, 4);
    put(0x34, 0x40, 1);
    put(0x3d, 1, 1);
    put(0x40, 0x00800005, 4);  // MSI, 64-bit, one vector
  }

  void serve() {
    std::vector<std::byte> body(kMaxMessage);
    Header header{};
    while (receive(&header, body))
      if (!answer(header, std::span(body).first(header.size - sizeof header))) break;
  }

 private:
  bool receive(Header* header, std::vector<std::byte>& body) {
    iovec data{header, sizeof *header};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(socket_, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) !=
        static_cast<ssize_t>(sizeof *header))
      return false;
    // Guest memory and interrupts arrive as descriptors; a stub that never does DMA keeps none.
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      const size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
        close(fd);
      }
    }
    if (header->size < sizeof *header || header->size - sizeof *header > body.size()) return false;
    const size_t bytes = header->size - sizeof *header;
    return bytes == 0 ||
           recv(socket_, body.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }

  bool reply(const Header& to, std::span<const std::byte> head,
             std::span<const std::byte> tail = {}, int fd = -1, uint32_t error = 0) {
    if ((to.flags & kNoReply) != 0) return true;
    Header header{to.id, to.command,
                  static_cast<uint32_t>(sizeof header + head.size() + tail.size()),
                  kReply | (error != 0 ? kError : 0), error};
    std::array<iovec, 3> parts = {iovec{&header, sizeof header},
                                  iovec{const_cast<std::byte*>(head.data()), head.size()},
                                  iovec{const_cast<std::byte*>(tail.data()), tail.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (fd >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    return sendmsg(socket_, &message, MSG_NOSIGNAL) > 0;
  }
  template <class T>
  static std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
  }
  bool refuse(const Header& to, uint32_t error) { return reply(to, {}, {}, -1, error); }

  static uint64_t region_size(uint32_t region) {
    switch (region) {
      case VFIO_PCI_BAR0_REGION_INDEX: return kRegisters;
      case VFIO_PCI_BAR1_REGION_INDEX: return kWindow;
      case VFIO_PCI_BAR3_REGION_INDEX: return kInstance;
      case VFIO_PCI_CONFIG_REGION_INDEX: return 256;
      default: return 0;
    }
  }

  bool answer(const Header& header, std::span<std::byte> body) {
    switch (header.command) {
      case kVersion: {
        // QEMU proposes 0.0 and takes nothing newer.
        const std::array<uint16_t, 2> version{0, 0};
        constexpr char kCapabilities[] =
            "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576}}";
        return reply(header, bytes_of(version), std::as_bytes(std::span(kCapabilities)));
      }
      case kDmaMap:
      case kSetIrqs:
      case kReset: return reply(header, {});
      case kDmaUnmap: return reply(header, body.first(std::min<size_t>(body.size(), 24)));
      case kGetInfo: {
        const std::array<uint32_t, 4> info{16, VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI,
                                           VFIO_PCI_NUM_REGIONS, VFIO_PCI_NUM_IRQS};
        return reply(header, bytes_of(info));
      }
      case kGetRegionInfo: return region_info(header, body);
      case kGetIrqInfo: {
        vfio_irq_info info{};
        if (body.size() < sizeof info) return refuse(header, EINVAL);
        std::memcpy(&info, body.data(), sizeof info);
        info.argsz = sizeof info;
        info.count = info.index == VFIO_PCI_MSI_IRQ_INDEX || info.index == VFIO_PCI_INTX_IRQ_INDEX;
        info.flags = info.count != 0 ? VFIO_IRQ_INFO_EVENTFD : 0;
        return reply(header, bytes_of(info));
      }
      case kRegionRead:
      case kRegionWrite: return access(header, body);
      default: return refuse(header, ENOTSUP);
    }
  }

  bool region_info(const Header& header, std::span<std::byte> body) {
    vfio_region_info info{};
    if (body.size() < sizeof info) return refuse(header, EINVAL);
    std::memcpy(&info, body.data(), sizeof info);
    info.argsz = sizeof info;
    info.cap_offset = 0;
    info.offset = 0;
    info.size = region_size(info.index);
    info.flags = info.size != 0 ? VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE : 0;
    const bool is_memory =
        info.index == VFIO_PCI_BAR1_REGION_INDEX || info.index == VFIO_PCI_BAR3_REGION_INDEX;
    if (is_memory) info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
    return reply(header, bytes_of(info), {}, is_memory ? memory_ : -1);
  }

  bool access(const Header& header, std::span<std::byte> body) {
    Access at{};
    if (body.size() < sizeof at) return refuse(header, EINVAL);
    std::memcpy(&at, body.data(), sizeof at);
    const uint64_t size = region_size(at.region);
    if (at.count > (1 << 20) || at.offset > size || at.count > size - at.offset)
      return refuse(header, EINVAL);
    if (header.command == kRegionWrite) {
      if (body.size() < sizeof at + at.count) return refuse(header, EINVAL);
      write(at, body.subspan(sizeof at));
      return reply(header, bytes_of(at));
    }
    std::vector<std::byte> data(at.count);
    read(at, data);
    return reply(header, bytes_of(at), data);
  }

  void read(const Access& at, std::span<std::byte> out) const {
    if (at.region == VFIO_PCI_CONFIG_REGION_INDEX) {
      std::copy_n(config_.begin() + static_cast<ptrdiff_t>(at.offset), out.size(), out.begin());
    } else if (at.region != VFIO_PCI_BAR0_REGION_INDEX) {
      if (pread(memory_, out.data(), out.size(), static_cast<off_t>(at.offset)) < 0) return;
    } else {
      for (size_t i = 0; i < out.size(); i += 4) {
        const uint64_t offset = at.offset + i;
        const uint32_t value = offset == 0                      ? kBoot0
                               : offset == 0xa00                ? kBoot42
                               : offset / 4 < registers_.size() ? registers_[offset / 4]
                                                                : 0;
        std::memcpy(out.data() + i, &value, std::min<size_t>(4, out.size() - i));
      }
    }
  }

  void write(const Access& at, std::span<const std::byte> data) {
    if (at.region == VFIO_PCI_CONFIG_REGION_INDEX) {
      // The command register and what MSI has writable.
      for (uint64_t i = 0; i < at.count; ++i) {
        const uint64_t offset = at.offset + i;
        if (offset == 4 || offset == 5 || (offset >= 0x42 && offset < 0x50))
          config_[offset] = data[i];
      }
    } else if (at.region != VFIO_PCI_BAR0_REGION_INDEX) {
      if (pwrite(memory_, data.data(), at.count, static_cast<off_t>(at.offset)) < 0) return;
    } else if (at.offset / 4 < registers_.size() && at.count == 4) {
      std::memcpy(&registers_[at.offset / 4], data.data(), 4);
    }
  }

  int socket_, memory_ = -1;
  std::array<std::byte, 256> config_{};
  std::vector<uint32_t> registers_;
};

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    std::fprintf(stderr, "usage: stub_gpu SOCKET\n");
    return 2;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, words[1], sizeof address.sun_path - 1);
  unlink(words[1]);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, 1) != 0) {
    std::perror(words[1]);
    return 1;
  }
  const int client = accept(listener, nullptr, nullptr);
  if (client < 0) return 1;
  StubGpu(client).serve();
}
