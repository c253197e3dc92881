#include "drivers/transport/usb/libusb.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>

namespace bm {
namespace {

/// A session with the library, as long as a list or a device of it lives.
class Context {
 public:
  static Result<std::shared_ptr<Context>> create(const LibUsb& calls) {
    auto context = std::make_shared<Context>(calls);
    if (const int error = calls.init(&context->handle_); error != 0) {
      context->handle_ = nullptr;
      return fail(Code::kIo, "libusb cannot begin: {}",
                  calls.strerror(static_cast<libusb_error>(error)));
    }
    return context;
  }
  explicit Context(const LibUsb& calls) : calls_(calls) {}
  ~Context() {
    if (handle_ != nullptr) calls_.exit(handle_);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  libusb_context* get() const { return handle_; }

 private:
  const LibUsb& calls_;
  libusb_context* handle_ = nullptr;
};

class DeviceList {
 public:
  DeviceList(const LibUsb& calls, const Context& context)
      : calls_(calls), count_(calls.get_device_list(context.get(), &devices_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) calls_.free_device_list(devices_, 1);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  Status status() const {
    if (count_ >= 0) return {};
    return fail(Code::kIo, "libusb cannot list devices: {}",
                calls_.strerror(static_cast<libusb_error>(count_)));
  }
  std::span<libusb_device* const> devices() const {
    return {devices_, static_cast<size_t>(std::max<ssize_t>(count_, 0))};
  }

 private:
  const LibUsb& calls_;
  libusb_device** devices_ = nullptr;
  const ssize_t count_;
};

Code code_of(int error) {
  switch (error) {
    case LIBUSB_ERROR_TIMEOUT: return Code::kTimeout;
    case LIBUSB_ERROR_NO_DEVICE:
    case LIBUSB_ERROR_NOT_FOUND: return Code::kDeviceLost;
    case LIBUSB_ERROR_ACCESS: return Code::kPermission;
    case LIBUSB_ERROR_NO_MEM: return Code::kOutOfMemory;
    case LIBUSB_ERROR_OVERFLOW: return Code::kCorrupt;
    default: return Code::kIo;
  }
}

uint32_t mbit_of(int speed) {
  switch (speed) {
    case LIBUSB_SPEED_LOW:
    case LIBUSB_SPEED_FULL: return 12;
    case LIBUSB_SPEED_HIGH: return 480;
    case LIBUSB_SPEED_SUPER: return 5000;
    case LIBUSB_SPEED_SUPER_PLUS: return 10000;
    default: return speed > LIBUSB_SPEED_SUPER_PLUS ? 20000 : 0;
  }
}

UsbPlace place_of(const LibUsb& calls, libusb_device* device) {
  libusb_device_descriptor descriptor{};
  (void)calls.get_device_descriptor(device, &descriptor);
  return {calls.get_bus_number(device), calls.get_device_address(device), descriptor.idVendor,
          descriptor.idProduct};
}

class Device final : public UsbDevice {
 public:
  Device(const LibUsb& calls, std::shared_ptr<Context> context)
      : calls_(calls), context_(std::move(context)) {}
  ~Device() override {
    if (is_claimed_) calls_.release_interface(handle_, 0);
    if (handle_ != nullptr) calls_.close(handle_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Status open(libusb_device* device) {
    const UsbPlace place = place_of(calls_, device);
    identity_.vendor = place.vendor;
    identity_.product = place.product;
    identity_.bus = place.bus;
    identity_.address = place.address;
    identity_.speed_mbit = mbit_of(calls_.get_device_speed(device));
    if (const int error = calls_.open(device, &handle_); error != 0) {
      handle_ = nullptr;
      if (error == LIBUSB_ERROR_ACCESS)
        return fail(Code::kPermission,
                    "{}: no permission; a udev rule such as SUBSYSTEM==\"usb\", "
                    "ATTR{{idVendor}}==\"{:04x}\", MODE=\"0660\", GROUP=\"render\" gives it",
                    to_string(identity_), place.vendor);
      return error_of(error, "open");
    }
    read_texts(device);
    // Not on every system; claiming says so then.
    (void)calls_.set_auto_detach_kernel_driver(handle_, 1);
    int configuration = 0;
    BM_TRY(check(calls_.get_configuration(handle_, &configuration), "configuration"));
    // Choosing the one it has would reset its endpoints under a driver that is still there.
    if (configuration != 1) BM_TRY(check(calls_.set_configuration(handle_, 1), "configuration 1"));
    BM_TRY(check(calls_.claim_interface(handle_, 0), "claiming interface 0"));
    is_claimed_ = true;
    return check(calls_.set_interface_alt_setting(handle_, 0, 0), "alternate setting 0");
  }

  const UsbIdentity& identity() const override { return identity_; }

  Result<size_t> control_in(const UsbRequest& request, std::span<std::byte> to,
                            uint32_t timeout_ms) override {
    return control(request, to.data(), to.size(), timeout_ms);
  }
  Status control_out(const UsbRequest& request, std::span<const std::byte> from,
                     uint32_t timeout_ms) override {
    // The library does not write to what it sends.
    const size_t sent =
        BM_TRY(control(request, const_cast<std::byte*>(from.data()), from.size(), timeout_ms));
    if (sent == from.size()) return {};
    return fail(Code::kCorrupt, "{}: request {:#x} took {} of {} bytes", to_string(identity_),
                request.request, sent, from.size());
  }
  Result<size_t> bulk_in(uint8_t endpoint, std::span<std::byte> to, uint32_t timeout_ms) override {
    return bulk(endpoint, to.data(), to.size(), timeout_ms);
  }
  Status bulk_out(uint8_t endpoint, std::span<const std::byte> from, uint32_t timeout_ms) override {
    const size_t sent =
        BM_TRY(bulk(endpoint, const_cast<std::byte*>(from.data()), from.size(), timeout_ms));
    if (sent == from.size()) return {};
    return fail(Code::kCorrupt, "{}: endpoint {:#x} took {} of {} bytes", to_string(identity_),
                endpoint, sent, from.size());
  }
  Status clear_halt(uint8_t endpoint) override {
    return check(calls_.clear_halt(handle_, endpoint), "clearing an endpoint");
  }

 private:
  tl::unexpected<Error> error_of(int error, std::string_view what) const {
    return fail(code_of(error), "{}: {}: {}", to_string(identity_), what,
                calls_.strerror(static_cast<libusb_error>(error)));
  }
  Status check(int error, std::string_view what) const {
    if (error >= 0) return {};
    return error_of(error, what);
  }
  void read_texts(libusb_device* device) {
    libusb_device_descriptor descriptor{};
    if (calls_.get_device_descriptor(device, &descriptor) != 0) return;
    const auto read = [this](uint8_t index, std::string* to) {
      std::array<unsigned char, 256> text{};
      if (index == 0) return;
      const int bytes = calls_.get_string_descriptor_ascii(handle_, index, text.data(),
                                                           static_cast<int>(text.size()));
      // A device's text goes into messages: printable characters only.
      for (int i = 0; i < std::min(bytes, static_cast<int>(text.size())); ++i)
        to->push_back(text[static_cast<size_t>(i)] >= ' ' && text[static_cast<size_t>(i)] <= '~'
                          ? static_cast<char>(text[static_cast<size_t>(i)])
                          : '?');
    };
    read(descriptor.iManufacturer, &identity_.manufacturer_text);
    read(descriptor.iProduct, &identity_.product_text);
    read(descriptor.iSerialNumber, &identity_.serial);
  }
  Result<size_t> control(const UsbRequest& request, std::byte* data, size_t bytes,
                         uint32_t timeout_ms) {
    if (bytes > std::numeric_limits<uint16_t>::max())
      return fail(Code::kInvalidArgument, "a control transfer of {} bytes", bytes);
    const int got = calls_.control_transfer(
        handle_, request.request_type, request.request, request.value, request.index,
        reinterpret_cast<unsigned char*>(data), static_cast<uint16_t>(bytes), timeout_ms);
    if (got < 0) return error_of(got, fmt::format("request {:#x}", request.request));
    return static_cast<size_t>(got);
  }
  Result<size_t> bulk(uint8_t endpoint, std::byte* data, size_t bytes, uint32_t timeout_ms) {
    if (bytes > std::numeric_limits<int>::max())
      return fail(Code::kInvalidArgument, "a bulk transfer of {} bytes", bytes);
    int got = 0;
    const int error =
        calls_.bulk_transfer(handle_, endpoint, reinterpret_cast<unsigned char*>(data),
                             static_cast<int>(bytes), &got, timeout_ms);
    if (error != 0)
      return error_of(error, fmt::format("endpoint {:#x}, {} of {} bytes", endpoint, got, bytes));
    return static_cast<size_t>(got);
  }

  const LibUsb& calls_;
  const std::shared_ptr<Context> context_;
  UsbIdentity identity_;
  libusb_device_handle* handle_ = nullptr;
  bool is_claimed_ = false;
};

}  // namespace

Result<const LibUsb*> load_libusb(const char* library) {
  static std::mutex mutex;
  static std::unique_ptr<LibUsb> loaded;
  const std::lock_guard lock(mutex);
  if (loaded) return loaded.get();
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return fail(Code::kNotFound, "USB devices need libusb ({}): install libusb-1.0-0",
                why == nullptr ? library : why);
  }
  auto calls = std::make_unique<LibUsb>();
  const char* missing = nullptr;
#define BM_USB_CALL(name)                                                                \
  calls->name = reinterpret_cast<decltype(calls->name)>(dlsym(handle, "libusb_" #name)); \
  if (calls->name == nullptr && missing == nullptr) missing = "libusb_" #name;
#include "drivers/transport/usb/libusb_calls.inc"
#undef BM_USB_CALL
  if (missing != nullptr)
    return fail(Code::kUnsupported, "{} lacks {}: 1.0.16 or later is needed", library, missing);
  loaded = std::move(calls);
  return loaded.get();
}

Result<std::vector<UsbPlace>> list_usb_devices(const LibUsb& calls) {
  const auto context = BM_TRY(Context::create(calls));
  const DeviceList list(calls, *context);
  BM_TRY(list.status());
  std::vector<UsbPlace> places;
  for (libusb_device* const device : list.devices()) places.push_back(place_of(calls, device));
  return places;
}

Result<std::unique_ptr<UsbDevice>> open_usb_device(const LibUsb& calls, const UsbPlace& place) {
  const auto context = BM_TRY(Context::create(calls));
  const DeviceList list(calls, *context);
  BM_TRY(list.status());
  for (libusb_device* const there : list.devices()) {
    const UsbPlace now = place_of(calls, there);
    if (now.bus != place.bus || now.address != place.address || now.vendor != place.vendor ||
        now.product != place.product)
      continue;
    auto device = std::make_unique<Device>(calls, context);
    BM_TRY(device->open(there));
    return device;
  }
  return fail(Code::kNotFound, "no USB device {:04x}:{:04x} at {}-{}", place.vendor, place.product,
              place.bus, place.address);
}

}  // namespace bm
