// Any bytes as what a vfio-user server answers and asks: nothing may crash, hang, grow beyond
// bounds or reach memory that was not mapped for it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "drivers/transport/pci_vfio_user.h"
#include "drivers/transport/vfio_user_channel.h"
#include "runtime/base/check.h"
#include "tests/fuzz/fed_socket.h"

namespace {

/// The kinds of a client's requests in their order when it opens a function.
constexpr uint16_t kKinds[] = {1, 4, 5, 9, 9, 9, 9, 9, 9, 9, 5, 5, 5, 5, 5, 5, 7, 7};

bm::Status use(bm::System& system) {
  const auto pci = BM_TRY(bm::open_vfio_user_pci(
      system, {.address = "/fuzz", .reply_limit = std::chrono::milliseconds(1000)}));
  for (uint32_t i = 0; i < bm::kPciBars; ++i) {
    const auto mmio = pci->map_bar(i);
    if (!mmio || mmio->size() < 64) continue;
    std::array<uint32_t, 16> words{};
    mmio->read_block(0, words);
    mmio->write32(0, 1);
  }
  return pci->reset(bm::PciReset::kFunction);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const bm::Status used = [&] {
    bm::fuzz::FedSocket wire({data, size});
    return use(wire);
  }();
  BM_CHECK(used || !used.error().message.empty());
  // With headers that fit, so that what is in the messages is read too.
  std::vector<uint8_t> framed;
  uint16_t id = 1;
  size_t at = 0;
  for (const uint16_t kind : kKinds) {
    const size_t bytes = at < size ? std::min<size_t>(data[at] % 64, size - at) : 0;
    const uint32_t words[] = {id++ | uint32_t{kind} << 16, static_cast<uint32_t>(16 + bytes), 1, 0};
    const auto* const head = reinterpret_cast<const uint8_t*>(words);
    framed.insert(framed.end(), head, head + sizeof words);
    framed.insert(framed.end(), data + at, data + at + bytes);
    at += bytes;
  }
  bm::fuzz::FedSocket wire(framed);
  (void)use(wire);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto capabilities = bm::parse_vfio_user_capabilities(text))
    BM_CHECK(capabilities->max_transfer >= 8);
  return 0;
}
