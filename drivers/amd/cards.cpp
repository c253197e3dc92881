#include "drivers/amd/cards.h"

#include "drivers/transport/pci_enumerate.h"

namespace bm::amd {
namespace {

constexpr uint16_t kVendor = 0x1002;  // Linux include/linux/pci_ids.h: PCI_VENDOR_ID_ATI

std::string name_of(const PciInfo& info) {
  if (!info.device_name.empty()) return info.device_name;
  return fmt::format("{:04x}:{:04x}", info.identity.vendor, info.identity.device);
}

CardInfo describe(const PciInfo& info) {
  const std::string address = to_string(info.identity.address);
  CardInfo card;
  card.selector.address = info.identity.address;
  card.name = name_of(info);
  card.driver = info.driver;
  card.is_free = info.driver == "vfio-pci";
  if (card.is_free) return card;
  const std::string owner =
      info.driver.empty() ? "has no driver" : fmt::format("is bound to {}", info.driver);
  card.remedy =
      info.iommu_group
          ? fmt::format("{}; bellmetal pci bind {} hands it to vfio-pci", owner, address)
          : fmt::format(
                "{} and is behind no IOMMU: switch it on in the firmware's setup (VT-d, "
                "AMD-Vi) and for the kernel (intel_iommu=on), or, as root and with memory "
                "unguarded, bellmetal pci bind {} --driver none and BM_PCI=sysfs:{}",
                owner, address, address);
  return card;
}

}  // namespace

// The base classes that pciidlist of amdgpu_drv.c takes.
bool is_card(const PciIdentity& identity) {
  const uint32_t base_class = identity.class_code >> 16;
  return identity.vendor == kVendor && (base_class == 0x03 || base_class == 0x12);
}

Result<std::vector<CardInfo>> list_cards(System& system) {
  std::vector<CardInfo> cards;
  auto found = enumerate_pci(system, is_card);
  if (!found && found.error().code == Code::kNotFound) return cards;
  if (!found) return tl::unexpected(std::move(found.error()));
  for (const PciInfo& info : *found) cards.push_back(describe(info));
  return cards;
}

Result<std::vector<PciSelector>> find_cards(System& system, std::string_view chosen) {
  auto named = parse_pci_selectors(chosen);
  if (!named) return tl::unexpected(std::move(named.error()).within("BM_PCI"));
  if (!named->empty()) {
    // A server may have other functions, too, and counts those that match.
    for (PciSelector& selector : *named) selector.vendor = kVendor;
    return named;
  }
  std::vector<PciSelector> free;
  std::string reasons;
  const std::vector<CardInfo> cards = BM_TRY(list_cards(system));
  for (const CardInfo& card : cards) {
    if (card.is_free)
      free.push_back(card.selector);
    else
      reasons += fmt::format("{}{} ({}) {}", reasons.empty() ? "" : "; ",
                             to_string(card.selector.address), card.name, card.remedy);
  }
  if (free.empty() && reasons.empty())
    return fail(
        Code::kNotFound,
        "this machine has no AMD card; BM_PCI=remote:HOST:PORT or vfio-user:/path names one "
        "behind a socket");
  if (free.empty()) return fail(Code::kPermission, "no AMD card is free: {}", reasons);
  return free;
}

}  // namespace bm::amd
