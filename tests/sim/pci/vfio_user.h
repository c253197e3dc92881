#pragma once
// The modelled card behind a vfio-user socket, after the "vfio-user Protocol Specification" (QEMU
// docs/interop/vfio-user.rst). Version 0.1: BARs and configuration space by message, one access of
// the bus for each; the client's memory by descriptors (DMA_MAP with one), MSI by an eventfd.
// Nothing is asked of the client, so there is no twin socket.
//
// What the specification says of a client that goes: its memory is unmapped, its interrupts are
// forgotten, the card stays as it is. Bus mastering goes off, as pci_clear_master() of the kernel's
// vfio_pci_core_disable() does it.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/pci/card.h"

namespace bm::sim {

class VfioUserServer {
 public:
  explicit VfioUserServer(PciCard& card) : card_(card) {}
  ~VfioUserServer();
  /// Serves one client on a connected Unix stream socket until it goes. The socket stays open.
  void serve(int socket);
  uint64_t requests() const { return requests_; }
  /// Called with its number, counted from 1, before a request is served.
  void on_request(std::function<void(uint64_t)> seen) { seen_ = std::move(seen); }
  uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  struct Message {
    uint16_t id = 0, command = 0;
    uint32_t flags = 0;
    std::vector<std::byte> payload;
    std::vector<int> fds;  ///< of the client; whoever keeps one takes it out
  };
  using Payload = std::vector<std::byte>;
  bool receive(int socket, Message& message);
  /// 0 and the answer's payload, or an errno.
  int handle(Message& message, Payload& out);
  int negotiate(const Message& message, Payload& out);
  int map(Message& message);
  int unmap(const Message& message, Payload& out);
  int describe_region(const Message& message, Payload& out) const;
  int describe_interrupt(const Message& message, Payload& out) const;
  int set_interrupts(Message& message);
  int access(const Message& message, bool is_write, Payload& out);
  void forget_client();

  struct Memory {
    void* host = nullptr;
    uint64_t bytes = 0;
  };
  PciCard& card_;
  std::map<uint64_t, Memory> memory_;  ///< by bus address
  int interrupt_ = -1;
  uint64_t requests_ = 0, mapped_bytes_ = 0;
  std::function<void(uint64_t)> seen_;
};

}  // namespace bm::sim
