// nv_pci_open: opens the first card of BM_PCI, and does what use_card() says.

#include "drivers/nv/device.h"
#include "tests/integration/use_card.h"

int main(int count, char** words) {
  return bm::test::use_card(bm::nv::open_device("PCI", 0, ""), count > 1 ? words[1] : "");
}
