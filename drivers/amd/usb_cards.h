#pragma once
// Which cards DEV=AMD:USB means: those behind a USB bridge whose firmware lets us have its PCI bus.

#include <cstdint>
#include <memory>
#include <vector>

#include "drivers/transport/pci.h"
#include "drivers/transport/usb/libusb.h"
#include "runtime/base/result.h"

namespace bm::amd {

/// Bridges of this machine that can be driven, in the order of bus and address; none is opened.
/// Errors: kNotFound (none plugged in, or no libusb: package); kUnsupported (only bridges with the
/// firmware they are sold with).
Result<std::vector<UsbPlace>> find_usb_bridges(const LibUsb& calls);

/// The AMD card behind bridge `index`; nothing is written to the card but its BARs.
/// Errors: those of find_usb_bridges(), open_usb_device(), Asm24Bridge::open() and
/// UsbBus::enumerate(); kNotFound (no such bridge, or another device behind it: which).
Result<std::unique_ptr<PciFunction>> open_usb_card(const LibUsb& calls, uint32_t index);

}  // namespace bm::amd
