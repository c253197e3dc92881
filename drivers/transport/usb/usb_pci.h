#pragma once
// The PCI bus behind a USB bridge, which no kernel has enumerated: buses numbered, windows opened
// and BARs placed by us, and its functions as PciFunction.

#include <cstdint>
#include <memory>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/usb/usb.h"

namespace bm {

/// Where functions behind the bridge may decode. The bridge's own memories lie below.
struct UsbBusOptions {
  BusRange memory{.address = 0x1000'0000, .bytes = 0xd000'0000};              ///< 32-bit BARs
  BusRange prefetchable{.address = 32ull << 30, .bytes = uint64_t{1} << 42};  ///< 64-bit ones
  /// Resizable BARs get the largest size that they offer up to this one.
  uint64_t largest_bar = uint64_t{64} << 30;
};

/// What was found behind one bridge. Keeps it.
class UsbBus {
 public:
  struct Function {
    PciIdentity identity;
    std::array<PciBar, kPciBars> bars;
  };
  /// Numbers buses depth first, gives every function its BARs, opens the bridges' windows over them
  /// and turns memory decoding on; bus mastering stays off on functions. Each step is bounded by
  /// the numbers of buses, devices and BARs there are.
  /// Errors: kNotFound (nothing answers); kCorrupt (a header or BAR that cannot be);
  /// kOutOfMemory (BARs beyond the windows, named); of transfers.
  static Result<std::shared_ptr<UsbBus>> enumerate(std::shared_ptr<UsbBridge> bridge,
                                                   const UsbBusOptions& options = {});

  const std::vector<Function>& functions() const { return functions_; }
  /// Errors: kNotFound listing what there is.
  static Result<std::unique_ptr<PciFunction>> open(std::shared_ptr<UsbBus> bus,
                                                   const PciAddress& address);
  UsbBridge& bridge() { return *bridge_; }

  /// The bus again after its power was taken: same numbers, same addresses. Errors: kDeviceLost
  /// where other functions answer than before; as enumerate().
  Status restore();

 private:
  class Enumeration;
  UsbBus(std::shared_ptr<UsbBridge> bridge, const UsbBusOptions& options)
      : bridge_(std::move(bridge)), options_(options) {}
  std::shared_ptr<UsbBridge> bridge_;
  const UsbBusOptions options_;
  std::vector<Function> functions_;
};

}  // namespace bm
