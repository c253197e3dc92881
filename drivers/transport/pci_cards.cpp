#include "drivers/transport/pci_cards.h"

#include <algorithm>

#include "drivers/transport/pci_enumerate.h"
#include "runtime/base/env.h"

namespace bm {
namespace {

CardInfo describe_card(const PciInfo& info) {
  const std::string address = to_string(info.identity.address);
  CardInfo card;
  card.selector.address = info.identity.address;
  card.name = info.device_name;
  if (card.name.empty())
    card.name = fmt::format("{:04x}:{:04x}", info.identity.vendor, info.identity.device);
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

bool CardVendor::is_card(const PciIdentity& identity) const {
  return identity.vendor == id &&
         std::ranges::find(base_classes, identity.class_code >> 16) != base_classes.end();
}

Result<std::vector<CardInfo>> list_cards(System& system, const CardVendor& vendor) {
  std::vector<CardInfo> cards;
  auto found = enumerate_pci(
      system, [&vendor](const PciIdentity& identity) { return vendor.is_card(identity); });
  if (!found && found.error().code == Code::kNotFound) return cards;
  if (!found) return tl::unexpected(std::move(found.error()));
  for (const PciInfo& info : *found) cards.push_back(describe_card(info));
  return cards;
}

Result<std::vector<PciSelector>> find_cards(System& system, const CardVendor& vendor,
                                            std::string_view chosen) {
  auto named = parse_pci_selectors(chosen);
  if (!named) return tl::unexpected(std::move(named.error()).within("BM_PCI"));
  if (!named->empty()) {
    // A server may have other functions, too, and counts those that match.
    for (PciSelector& selector : *named) {
      selector.vendor = vendor.id;
      if (vendor.base_classes.size() == 1) selector.base_class = vendor.base_classes[0];
    }
    return named;
  }
  std::vector<PciSelector> free;
  std::string reasons;
  const std::vector<CardInfo> cards = BM_TRY(list_cards(system, vendor));
  for (const CardInfo& card : cards) {
    if (card.is_free)
      free.push_back(card.selector);
    else
      reasons += fmt::format("{}{} ({}) {}", reasons.empty() ? "" : "; ",
                             to_string(card.selector.address), card.name, card.remedy);
  }
  if (!free.empty()) return free;
  if (!reasons.empty())
    return fail(Code::kPermission, "no {} card is free: {}", vendor.name, reasons);
  return fail(Code::kNotFound,
              "this machine has no {} card; BM_PCI=remote:HOST:PORT or vfio-user:/path names one "
              "behind a socket",
              vendor.name);
}

Result<std::vector<PciSelector>> chosen_cards(const CardVendor& vendor) {
  return find_cards(real_system(), vendor, settings().pci);
}

}  // namespace bm
