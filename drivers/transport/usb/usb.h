#pragma once
// A USB device, and a PCI bus behind it: the transfers that a bridge is driven with, and what any
// bridge makes of them. Which requests a bridge understands belongs to its implementation.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "drivers/transport/pci.h"
#include "runtime/base/result.h"

namespace bm {

struct UsbIdentity {
  uint16_t vendor = 0, product = 0;
  std::string manufacturer_text, product_text, serial;
  uint8_t bus = 0, address = 0;
  uint32_t speed_mbit = 0;  ///< 480, 5000, 10000, 20000; 0: not known
};
/// "usb 2-3, 3801:0001 'custom'".
std::string to_string(const UsbIdentity& identity);

/// The setup packet of a control transfer, less its length. Source: USB 3.2, section 9.3.
struct UsbRequest {
  uint8_t request_type = 0;  ///< direction in bit 7
  uint8_t request = 0;
  uint16_t value = 0, index = 0;
};
inline constexpr uint8_t kUsbVendorOut = 0x40, kUsbVendorIn = 0xc0;

/// One device with its interface claimed. Thread: callers serialise. Every transfer is bounded by
/// its timeout.
/// Errors of transfers: kTimeout; kDeviceLost (unplugged; sticky); kIo (stall, with the request);
/// kCorrupt (fewer bytes than were to be sent, more than were asked for).
class UsbDevice {
 public:
  virtual ~UsbDevice() = default;
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
  /// Clears a halted endpoint, and what the device still meant to transfer through it.
  virtual Status clear_halt(uint8_t endpoint) = 0;
};

/// A PCI bus whose root is in a USB bridge. Thread: any; requests are made one after another.
class UsbBridge {
 public:
  virtual ~UsbBridge() = default;
  virtual const UsbIdentity& identity() const = 0;

  /// Configuration space of any function behind the bridge: the host enumerates the bus there.
  /// Errors besides those of transfers: kNotFound (unsupported request: nothing answers there).
  virtual Result<uint32_t> read_config(const PciAddress& function, uint32_t offset,
                                       uint32_t width) = 0;
  virtual Status write_config(const PciAddress& function, uint32_t offset, uint32_t width,
                              uint32_t value) = 0;
  /// `bytes` of PCI memory space at bus address `address`, accessed in words of up to 4 bytes.
  virtual std::unique_ptr<RemoteWindow> memory_window(uint64_t address, uint64_t bytes) = 0;
  /// The bridge's own memory, which functions reach; nullptr: none.
  virtual StagingMemory* staging() { return nullptr; }
  /// Takes power from the bus and gives it back: every function behind the bridge starts anew.
  virtual Status power_cycle() = 0;

  /// The first failure; sticky.
  virtual Status status() const = 0;
};

}  // namespace bm
