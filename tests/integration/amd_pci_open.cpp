// amd_pci_open: opens the first card of BM_PCI, or with --usb the one behind a USB bridge, lets it
// zero some video memory, and closes it. With --stay it says "open" and waits to be killed; with
// --fork a child made meanwhile ends first, which frees and closes all of it on its side.

#include <sys/wait.h>
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
  if (word == "--fork") {
    const pid_t child = fork();
    if (child == 0) return 0;
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      std::fprintf(stderr, "the child ended with %d\n", status);
      return 1;
    }
    const auto more = (*device)->allocate({.size = 4 << 20, .zero = true});
    if (!more || !(*device)->status()) {
      std::fprintf(stderr, "after the child: %s\n", more ? "lost" : more.error().message.c_str());
      return 1;
    }
  }
  if (word == "--stay") {
    std::puts("open");
    std::fflush(stdout);
    for (;;) pause();
  }
  return 0;
}
