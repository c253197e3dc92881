#include "drivers/nv/cards.h"

#include <string>

#include "drivers/transport/pci_enumerate.h"

namespace bm::nv {
namespace {

constexpr uint16_t kVendor = 0x10de;  // Linux include/linux/pci_ids.h: PCI_VENDOR_ID_NVIDIA
constexpr uint32_t kDisplay = 0x03;   // the base class that nova-core and nouveau take

bool is_card(const PciIdentity& identity) {
  return identity.vendor == kVendor && identity.class_code >> 16 == kDisplay;
}

}  // namespace

Result<std::vector<PciSelector>> find_cards(System& system, std::string_view chosen) {
  auto named = parse_pci_selectors(chosen);
  if (!named) return tl::unexpected(std::move(named.error()).within("BM_PCI"));
  if (!named->empty()) {
    // A server may have other functions, too, and counts those that match.
    for (PciSelector& selector : *named) selector.vendor = kVendor;
    return named;
  }
  auto found = enumerate_pci(system, is_card);
  if (!found && found.error().code != Code::kNotFound)
    return tl::unexpected(std::move(found.error()));
  std::vector<PciSelector> free;
  std::string reasons;
  for (const PciInfo& info : found ? *found : std::vector<PciInfo>{}) {
    const std::string address = to_string(info.identity.address);
    if (info.driver == "vfio-pci") {
      PciSelector selector;
      selector.address = info.identity.address;
      free.push_back(selector);
    } else {
      reasons += fmt::format(
          "{}{} {}; bellmetal pci bind {} hands it to vfio-pci", reasons.empty() ? "" : "; ",
          address, info.driver.empty() ? "has no driver" : "is bound to " + info.driver, address);
    }
  }
  if (!free.empty()) return free;
  if (!reasons.empty()) return fail(Code::kPermission, "no NVIDIA card is free: {}", reasons);
  return fail(Code::kNotFound,
              "this machine has no NVIDIA card; BM_PCI=remote:HOST:PORT or vfio-user:/path names "
              "one behind a socket");
}

}  // namespace bm::nv
