// Any bytes as what a remote PCI server answers: nothing may crash, hang or grow beyond bounds.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "drivers/transport/pci_remote.h"
#include "runtime/base/check.h"

namespace {

/// A System whose socket gives the input, then ends, and takes whatever is sent.
class Wire final : public bm::System {
 public:
  explicit Wire(std::span<const uint8_t> input) : input_(input) {}
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

bm::Status use(bm::System& system, bool has_probe) {
  bm::RemotePciOptions options{.address = "/fuzz"};
  if (has_probe) options.probe = bm::RemotePciProbe{.vendor = 0x1234};
  const auto pci = BM_TRY(bm::open_remote_pci(system, options));
  for (const bm::PciBar& bar : pci->bars()) BM_CHECK((bar.size & (bar.size - 1)) == 0);
  for (uint32_t i = 0; i < bm::kPciBars; ++i) {
    const auto mmio = pci->map_bar(i);
    if (!mmio || mmio->size() < 64) continue;
    std::array<uint32_t, 16> words{};
    mmio->read_block(0, words);
    mmio->write32(0, 1);
  }
  const auto memory = BM_TRY(pci->dma_allocate(8192, false, std::nullopt));
  uint64_t bytes = 0;
  for (const bm::BusRange& range : memory->ranges()) bytes += range.bytes;
  BM_CHECK(bytes == 8192);
  (void)memory->view().load<uint32_t>(0);
  return pci->reset(bm::PciReset::kFunction);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Wire wire({data + 1, size - 1});
  const bm::Status used = use(wire, (data[0] & 1) != 0);
  BM_CHECK(used || !used.error().message.empty());
  return 0;
}
