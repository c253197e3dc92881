#pragma once
// Which cards of a vendor an interface without a kernel driver means: found without opening any.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/transport/pci_open.h"
#include "runtime/base/result.h"

namespace bm {

/// Functions that a driver boots itself.
struct CardVendor {
  std::string_view name;                    ///< "AMD"; in messages
  uint16_t id = 0;                          ///< vendor ID of configuration space
  std::span<const uint8_t> base_classes{};  ///< the highest byte of the class code is one of these
  bool is_card(const PciIdentity& identity) const;
};

/// A card of this machine.
struct CardInfo {
  PciSelector selector;
  std::string name;      ///< by the machine's pci.ids, else vendor and device number
  std::string driver;    ///< of the kernel; empty: none
  bool is_free = false;  ///< a process may take it: vfio-pci has it
  std::string remedy;    ///< what is in the way otherwise, and what helps
};

/// Ascending by address. Errors: of enumerate_pci(), where the machine has PCI at all.
Result<std::vector<CardInfo>> list_cards(System& system, const CardVendor& vendor);

/// The functions of `chosen` (BM_PCI), in that order; where it is empty all that are free. Errors:
/// kInvalidArgument (BM_PCI); kNotFound (no card); kPermission (cards, none of them free: what is
/// in the way of each).
Result<std::vector<PciSelector>> find_cards(System& system, const CardVendor& vendor,
                                            std::string_view chosen);

/// find_cards() of this machine as BM_PCI chooses.
Result<std::vector<PciSelector>> chosen_cards(const CardVendor& vendor);

/// `open`, a Result<device>(std::unique_ptr<PciFunction>), on card `index` of chosen_cards(); its
/// errors and those of open_pci() name the card. Errors: kNotFound (no card `index`), too.
template <class Open>
auto open_card_at(const CardVendor& vendor, uint32_t index, Open&& open)
    -> decltype(open(std::unique_ptr<PciFunction>())) {
  const std::vector<PciSelector> cards = BM_TRY(chosen_cards(vendor));
  if (index >= cards.size())
    return fail(Code::kNotFound, "card {} does not exist: there {} {}", index,
                cards.size() == 1 ? "is" : "are", cards.size());
  const std::string name = to_string(cards[index]);
  auto function = open_pci(real_system(), cards[index]);
  if (!function) return tl::unexpected(std::move(function.error()).within(name));
  auto device = open(std::move(*function));
  if (!device) return tl::unexpected(std::move(device.error()).within(name));
  return device;
}

}  // namespace bm
