// amd_pci_open: opens the first card of BM_PCI, or with --usb the one behind a USB bridge, and does
// what use_card() says.

#include <string_view>

#include "drivers/amd/device.h"
#include "tests/integration/use_card.h"

int main(int count, char** words) {
  const std::string_view word = count > 1 ? words[1] : "";
  return bm::test::use_card(bm::amd::open_device(word == "--usb" ? "USB" : "PCI", 0, ""), word);
}
