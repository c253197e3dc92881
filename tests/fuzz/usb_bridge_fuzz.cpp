// Any bytes as the answers of a USB bridge: nothing may crash, hang, or be enumerated beyond what
// the answers say.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "drivers/transport/usb/asm24.h"
#include "drivers/transport/usb/usb_pci.h"
#include "runtime/base/check.h"

namespace {

using namespace bm;

/// Answers with the next bytes of the input; gone when they are used up.
class Answers final : public UsbDevice {
 public:
  explicit Answers(std::span<const std::byte> bytes) : left_(bytes) {
    identity_.product_text = "custom";
  }
  const UsbIdentity& identity() const override { return identity_; }
  Result<size_t> control_in(const UsbRequest& request, std::span<std::byte> to, uint32_t) override {
    // The link is up, or nothing else is ever asked.
    if (request.request == 0xe4) {
      std::ranges::fill(to, std::byte{0x78});
      return to.size();
    }
    return take(to);
  }
  Status control_out(const UsbRequest&, std::span<const std::byte>, uint32_t) override {
    if (left_.empty()) return fail(Code::kDeviceLost, "gone");
    return {};
  }
  Result<size_t> bulk_in(uint8_t, std::span<std::byte> to, uint32_t) override { return take(to); }
  Status bulk_out(uint8_t, std::span<const std::byte>, uint32_t) override { return {}; }
  Status clear_halt(uint8_t) override { return {}; }

 private:
  Result<size_t> take(std::span<std::byte> to) {
    if (left_.empty()) return fail(Code::kDeviceLost, "gone");
    const size_t bytes = std::min(to.size(), left_.size());
    std::ranges::copy(left_.first(bytes), to.begin());
    left_ = left_.subspan(bytes);
    // Completions are mostly fine, or every input ends at the first.
    if (to.size() == 8 && std::to_integer<int>(to[7]) < 0xf0) to[7] = std::byte{0};
    if (to.size() == 8 && std::to_integer<int>(to[4]) < 0xf0) to[4] = std::byte{0};
    return bytes;
  }
  std::span<const std::byte> left_;
  UsbIdentity identity_;
};

/// Pauses between tries take no time: what is tried again is the next bytes.
class NoPauses final : public Clock {
 public:
  uint64_t now_us() override { return real_clock().now_us(); }
  void sleep_us(uint64_t) override {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  NoPauses clock;
  auto bridge = Asm24Bridge::open(std::make_unique<Answers>(bytes), clock);
  if (!bridge) return 0;
  const auto bus = UsbBus::enumerate(std::shared_ptr<Asm24Bridge>(std::move(*bridge)));
  if (!bus) {
    BM_CHECK(!bus.error().message.empty());
    return 0;
  }
  for (const UsbBus::Function& found : (*bus)->functions()) {
    auto function = UsbBus::open(*bus, found.identity.address);
    BM_CHECK(function.has_value());
    for (uint32_t i = 0; i < kPciBars; ++i) {
      const auto window = (*function)->map_bar(i);
      if (!window || window->size() < 64) continue;
      (void)window->read32(0);
      std::array<uint32_t, 8> block{};
      window->read_block(32, block);
    }
  }
  return 0;
}
