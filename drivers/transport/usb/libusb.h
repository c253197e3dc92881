#pragma once
// USB devices by libusb, which is loaded when the first one is asked for.

#include <libusb-1.0/libusb.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/transport/usb/usb.h"
#include "runtime/base/result.h"

namespace bm {

/// The calls that are used, with the types that the library's header gives them.
struct LibUsb {
#define BM_USB_CALL(name) decltype(&libusb_##name) name = nullptr;
#include "drivers/transport/usb/libusb_calls.inc"
#undef BM_USB_CALL
};

/// Loads `library` once per process. Errors: kNotFound naming the package.
Result<const LibUsb*> load_libusb(const char* library = "libusb-1.0.so.0");

/// Where a device hangs; strings are read when it is opened.
struct UsbPlace {
  uint8_t bus = 0, address = 0;
  uint16_t vendor = 0, product = 0;
};

/// Devices of this machine, in the library's order. Opens none. Errors: kIo.
Result<std::vector<UsbPlace>> list_usb_devices(const LibUsb& calls);

/// Opens a device, takes it from a kernel driver that holds it, chooses configuration 1 and claims
/// interface 0. What was taken goes back to the kernel driver when it is closed.
/// Errors: kNotFound (gone since it was listed); kPermission (with the rule that helps); kIo.
Result<std::unique_ptr<UsbDevice>> open_usb_device(const LibUsb& calls, const UsbPlace& place);

}  // namespace bm
