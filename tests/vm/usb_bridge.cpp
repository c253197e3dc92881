// The model of an ASM2464PD bridge with a plain PCI function behind it, as a USB device for a
// virtual machine. usage: usb_bridge SOCKET. Ends with the other side; 1 if a model had something
// to complain of.
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "tests/sim/usb/asm24_model.h"
#include "tests/sim/usb/usbredir.h"
#include "tests/unit/transport/fake_pci.h"

int main(int argc, char** argv) {
  using namespace bm;
  if (argc != 2) {
    fmt::print(stderr, "usage: usb_bridge SOCKET\n");
    return 2;
  }
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
  ::unlink(argv[1]);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listening, 1) != 0) {
    fmt::print(stderr, "{}: {}\n", argv[1], std::strerror(errno));
    return 2;
  }
  const int socket = ::accept(listening, nullptr, nullptr);
  test::FakePci card;
  sim::Asm24Model model(card);
  sim::UsbredirServer server(model);
  // The guest's way to have the cable pulled: a register of the card.
  card.on_write = [&](uint32_t bar, uint64_t offset, uint32_t value) {
    std::memcpy(card.memory(bar).data() + offset, &value, sizeof value);
    if (bar == 5 && offset == 0xffc && value == 0xdeadu) server.disconnect();
  };
  const Status served = server.serve(socket);
  if (!served) fmt::print(stderr, "usbredir: {}\n", served.error().message);
  for (const auto& line : model.violations()) fmt::print(stderr, "bridge: {}\n", line);
  for (const auto& line : card.faults()) fmt::print(stderr, "card: {}\n", line);
  fmt::print("bridge: {} transfers\n", model.transfers());
  return served && model.violations().empty() && card.faults().empty() ? 0 : 1;
}
