#pragma once
// A USB device of this process for a virtual machine: the USB network redirection protocol 0.7
// (docs/usb-redirection-protocol.md and usbredirparser/usbredirproto.h of the usbredir project),
// the device's side of it. Real kernels and libusb see the device then.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "drivers/transport/usb/usb.h"

namespace bm::sim {

/// A device of one configuration with one vendor interface and the bulk endpoints 0x81 and 0x02.
/// Standard requests are answered here, everything else is the device's. A transfer that the device
/// lets time out stays pending, as a NAK does, until the other side cancels it.
class UsbredirServer {
 public:
  /// `device` outlives the server.
  explicit UsbredirServer(UsbDevice& device) : device_(device) {}
  /// Speaks on the connected socket until the other side is gone or `disconnect()` was asked for.
  /// Errors: kCorrupt (what the other side sent), kIo.
  Status serve(int socket);
  /// Unplugs the device after the request that is running.
  void disconnect() { is_unplugged_ = true; }

 private:
  struct Message {
    uint32_t type = 0;
    uint64_t id = 0;
    std::vector<std::byte> body;
  };
  Result<Message> receive();
  Status send(uint32_t type, uint64_t id, std::span<const std::byte> header,
              std::span<const std::byte> data = {});
  Status announce();
  Status describe_endpoints();
  Status answer(const Message& message);
  Status answer_control(const Message& message);
  Status answer_bulk(const Message& message);
  /// Of a standard request; empty: stall.
  std::vector<std::byte> descriptor(uint16_t value) const;

  UsbDevice& device_;
  int socket_ = -1;
  bool has_long_ids_ = false, is_unplugged_ = false;
  uint8_t configuration_ = 0, alternate_ = 0;
  std::map<uint64_t, Message> pending_;  ///< answered by nobody yet, by id
};

}  // namespace bm::sim
