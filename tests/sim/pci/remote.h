#pragma once
// The modelled card behind a socket, in the protocol that tinygrad's remote PCI device speaks: as
// the client in its tinygrad/runtime/support/system.py (RemotePCIDevice) sends it, the server of
// its extra/remote/serve.py answers it.
//
// Requests: 33 bytes, little endian: command, device, BAR or handle, three words of 64 bits.
// Answers: 17 bytes: status and two words; a status other than 0 is followed by a text of as many
// bytes as the first word says. Writes of registers and memory have no answer: a bad one ends the
// connection. Nobody is asked who they are: sockets are of this machine, loopback or a file.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/pci/card.h"

namespace bm::sim {

class RemoteServer {
 public:
  explicit RemoteServer(PciCard& card) : card_(card) {}
  ~RemoteServer();
  /// Serves one client on a connected stream socket until it goes. The socket stays open.
  /// Its memory for DMA goes with it; the card stays as it is.
  void serve(int socket);
  uint64_t requests() const { return requests_; }
  /// Called with its number, counted from 1, before a request is served.
  void on_request(std::function<void(uint64_t)> seen) { seen_ = std::move(seen); }

 private:
  struct Request {
    uint8_t command = 0;
    uint32_t device = 0, handle = 0;
    uint64_t arguments[3] = {};
  };
  struct Memory {
    std::byte* host = nullptr;
    uint64_t bytes = 0;
    int fd = -1;
    std::vector<uint64_t> pages;
  };
  /// False: the connection ends.
  bool handle(int socket, const Request& request);
  bool answer(int socket, uint64_t first, uint64_t second);
  bool refuse(int socket, const std::string& why);
  bool probe(int socket, const Request& request);
  bool access_bar(int socket, const Request& request, bool is_write);
  bool access_memory(int socket, const Request& request, bool is_write);
  bool allocate(int socket, const Request& request, bool gives_descriptor);
  void free_memory();

  PciCard& card_;
  std::vector<Memory> memory_;
  uint64_t next_page_ = 0x2'0000'0000;
  uint64_t requests_ = 0;
  std::function<void(uint64_t)> seen_;
};

/// A listening socket: "PORT" or "127.0.0.1:PORT" (0: any), else the path of a file. -1 and errno.
int listen_at(const std::string& where, uint16_t* port);

}  // namespace bm::sim
