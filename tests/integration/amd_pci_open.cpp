// amd_pci_open: opens the first card of BM_PCI, lets it zero some video memory, and closes it. With --stay it says "open" and waits to be killed.

#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "drivers/amd/device.h"
#include "firmware/store.h"

int main(int count, char** words) {
  const auto device = bm::amd::open_pci_device(0, "", bm::firmware::default_search());
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  const auto memory = (*device)->allocate({.size = 1 << 20, .zero = true});
  if (!memory) {
    std::fprintf(stderr, "%s\n", memory.error().message.c_str());
    return 1;
  }
  if (count > 1 && std::string_view(words[1]) == "--stay") {
    std::puts("open");
    std::fflush(stdout);
    for (;;) pause();
  }
  return 0;
}
