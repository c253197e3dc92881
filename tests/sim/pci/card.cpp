#include "tests/sim/pci/card.h"

namespace bm::sim {

void PciCard::place_bars() {
  for (const CardBar& bar : traits().bars) config().set_bar_address(bar.index, bar.address);
  write_config(4, 2, 2);
}

}  // namespace bm::sim
