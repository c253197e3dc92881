// amd_pci_open: opens the first card of BM_PCI, or with --usb the one behind a USB bridge, lets it
// zero some video memory, and closes it. With --stay it says "open" and waits to be killed.

#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "drivers/amd/device.h"

int main(int count, char** words) {
  const std::string_view word = count > 1 ? words[1] : "";
  const auto device = bm::amd::open_device(word == "--usb" ? "USB" : "PCI", 0, "");
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  const auto memory = (*device)->allocate({.size = 1 << 20, .zero = true});
  if (!memory) {
    std::fprintf(stderr, "%s\n", memory.error().message.c_str());
    return 1;
  }
  if (word == "--stay") {
    std::puts("open");
    std::fflush(stdout);
    for (;;) pause();
  }
  return 0;
}
