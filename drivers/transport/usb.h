#pragma once
// A PCI function behind a USB bridge: the transfers that such a bridge is driven with, and the PCI
// accesses it makes of them. Which requests a bridge understands belongs to its implementation.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm {

struct UsbIdentity {
  uint16_t vendor = 0, product = 0;
  std::string manufacturer_text, product_text, serial;
  uint8_t bus = 0, address = 0;
  uint32_t speed_mbit = 0;  ///< 480, 5000, 10000, 20000
};

/// The setup packet of a control transfer. Source: USB 3.2, section 9.3.
struct UsbRequest {
  uint8_t request_type = 0;  ///< direction in bit 7
  uint8_t request = 0;
  uint16_t value = 0, index = 0;
};

/// One bridge, claimed. Thread: callers serialise. Every transfer is bounded by its timeout.
/// Errors of transfers: kTimeout; kDeviceLost (unplugged; sticky); kIo (stall, with the request);
/// kCorrupt (fewer bytes than the protocol demands).
class UsbBridge {
 public:
  virtual ~UsbBridge() = default;
  virtual const UsbIdentity& identity() const = 0;

  /// Bytes transferred; a device may send fewer than asked.
  virtual Result<size_t> control_in(const UsbRequest& request, std::span<std::byte> to,
                                    uint32_t timeout_ms) = 0;
  virtual Status control_out(const UsbRequest& request, std::span<const std::byte> from,
                             uint32_t timeout_ms) = 0;
  virtual Result<size_t> bulk_in(uint8_t endpoint, std::span<std::byte> to,
                                 uint32_t timeout_ms) = 0;
  virtual Status bulk_out(uint8_t endpoint, std::span<const std::byte> from,
                          uint32_t timeout_ms) = 0;

  /// Configuration space of any function behind the bridge: the host enumerates the bus there.
  /// Errors besides those of transfers: kNotFound (unsupported request: nothing answers there).
  virtual Result<uint32_t> read_config(const PciAddress& function, uint32_t offset,
                                       uint32_t width) = 0;
  virtual Status write_config(const PciAddress& function, uint32_t offset, uint32_t width,
                              uint32_t value) = 0;
  /// `bytes` of PCI memory space at bus address `address`; lives as long as the bridge.
  virtual Result<RemoteWindow*> memory_window(uint64_t address, uint64_t bytes) = 0;

  /// The first failure; sticky.
  virtual Status status() const = 0;
};

}  // namespace bm
