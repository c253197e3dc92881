// The model of an ASM2464PD bridge with a plain PCI function behind it, as a USB device for a
// virtual machine. usage: usb_bridge SOCKET. Ends with the other side; 1 if a model had something
// to complain of.
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "tests/sim/amd/chip/function.h"
#include "tests/sim/usb/asm24_model.h"
#include "tests/sim/usb/usbredir.h"
#include "tests/unit/transport/fake_pci.h"

namespace {

using namespace bm;

/// The first connection to `path`, or -1 having said why not.
int accept_one(const char* path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  ::unlink(path);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listening, 1) != 0) {
    fmt::print(stderr, "{}: {}\n", path, std::strerror(errno));
    return -1;
  }
  return ::accept(listening, nullptr, nullptr);
}

/// Serves it; whether nobody had to complain. `complaints`: of the card behind the bridge.
template <class Complaints>
bool serve(int socket, sim::Asm24Model& model, sim::UsbredirServer& server,
           const Complaints& complaints) {
  const Status served = server.serve(socket);
  if (!served) fmt::print(stderr, "usbredir: {}\n", served.error().message);
  for (const auto& line : model.violations()) fmt::print(stderr, "bridge: {}\n", line);
  const std::vector<std::string> of_card = complaints();
  for (const auto& line : of_card) fmt::print(stderr, "card: {}\n", line);
  fmt::print("bridge: {} transfers\n", model.transfers());
  return served && model.violations().empty() && of_card.empty();
}

bool serve_plain(int socket) {
  test::FakePci card;
  sim::Asm24Model model(card);
  sim::UsbredirServer server(model);
  // The guest's way to have the cable pulled: a register of the card.
  card.on_write = [&](uint32_t bar, uint64_t offset, uint32_t value) {
    std::memcpy(card.memory(bar).data() + offset, &value, sizeof value);
    if (bar == 5 && offset == 0xffc && value == 0xdeadu) server.disconnect();
  };
  return serve(socket, model, server, [&] { return card.faults(); });
}

bool serve_gpu(int socket, const char* chip) {
  const auto card = std::make_shared<sim::amd::Chip>(
      sim::amd::ChipOptions{.chip = chip, .has_iommu = false, .takes_half_doorbells = true});
  sim::amd::ChipFunction slot(card);
  sim::Asm24Model model(slot);
  // All of the host that the card reaches.
  sim::BusMemory& bus = card->system_memory();
  bus.map(sim::Asm24Model::kSramAddress, {model.sram().data(), model.sram().size()});
  bus.map(sim::Asm24Model::kReleaseAddress,
          {model.release_page().data(), model.release_page().size()});
  sim::UsbredirServer server(model);
  return serve(socket, model, server, [&] { return card->violations(); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    fmt::print(stderr, "usage: usb_bridge SOCKET [CHIP]\n");
    return 2;
  }
  const int socket = accept_one(argv[1]);
  if (socket < 0) return 2;
  return (argc == 3 ? serve_gpu(socket, argv[2]) : serve_plain(socket)) ? 0 : 1;
}
