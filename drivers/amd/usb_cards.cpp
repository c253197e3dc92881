#include "drivers/amd/usb_cards.h"

#include <algorithm>

#include "drivers/amd/cards.h"
#include "drivers/transport/usb/asm24.h"
#include "drivers/transport/usb/usb_pci.h"

namespace bm::amd {

Result<std::vector<UsbPlace>> find_usb_bridges(const LibUsb& calls) {
  std::vector<UsbPlace> bridges;
  std::string stock;
  for (const UsbPlace& place : BM_TRY(list_usb_devices(calls))) {
    const Asm24Kind kind = asm24_kind(place.vendor, place.product);
    if (kind == Asm24Kind::kProgrammable) bridges.push_back(place);
    if (kind == Asm24Kind::kStock)
      stock += fmt::format("{}{:04x}:{:04x} at {}-{}", stock.empty() ? "" : ", ", place.vendor,
                           place.product, place.bus, place.address);
  }
  std::ranges::sort(bridges, {},
                    [](const UsbPlace& place) { return std::pair{place.bus, place.address}; });
  if (!bridges.empty()) return bridges;
  if (!stock.empty())
    return fail(
        Code::kUnsupported,
        "USB bridge {} has the firmware it is sold with, which keeps its PCI bus to itself; "
        "docs/hw/usb.md says which firmware gives it away",
        stock);
  return fail(Code::kNotFound,
              "no ASM2462 or ASM2464PD bridge is plugged in (lsusb shows add1:0001 or "
              "3801:0001 for one that can be driven)");
}

Result<std::unique_ptr<PciFunction>> open_usb_card(const LibUsb& calls, uint32_t index) {
  const std::vector<UsbPlace> bridges = BM_TRY(find_usb_bridges(calls));
  if (index >= bridges.size())
    return fail(Code::kNotFound, "USB bridge {} does not exist: there {} {}", index,
                bridges.size() == 1 ? "is" : "are", bridges.size());
  const std::string name = fmt::format("usb {}-{}", bridges[index].bus, bridges[index].address);
  const auto open = [&]() -> Result<std::unique_ptr<PciFunction>> {
    auto usb = BM_TRY(open_usb_device(calls, bridges[index]));
    std::shared_ptr<UsbBridge> bridge = BM_TRY(Asm24Bridge::open(std::move(usb)));
    const auto bus = BM_TRY(UsbBus::enumerate(std::move(bridge)));
    std::string others;
    for (const UsbBus::Function& function : bus->functions()) {
      const PciIdentity& identity = function.identity;
      if (kCardVendor.is_card(identity)) return UsbBus::open(bus, identity.address);
      others += fmt::format("{}{:04x}:{:04x}", others.empty() ? "" : ", ", identity.vendor,
                            identity.device);
    }
    return fail(Code::kNotFound, "no AMD card is behind this bridge, but {}",
                others.empty() ? "nothing" : others);
  };
  auto function = open();
  if (!function) return tl::unexpected(std::move(function.error()).within(name));
  return function;
}

}  // namespace bm::amd
