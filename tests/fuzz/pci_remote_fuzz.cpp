// Any bytes as what a remote PCI server answers: nothing may crash, hang or grow beyond bounds.

#include <array>
#include <cstddef>
#include <cstdint>

#include "drivers/transport/pci_remote.h"
#include "runtime/base/check.h"
#include "tests/fuzz/fed_socket.h"

namespace {

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
  bm::fuzz::FedSocket wire({data + 1, size - 1});
  const bm::Status used = use(wire, (data[0] & 1) != 0);
  BM_CHECK(used || !used.error().message.empty());
  return 0;
}
