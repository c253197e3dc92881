// Our side of libusb, over a library of the test's own; and the real one, where it is installed.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "drivers/transport/usb/libusb.h"

namespace bm {
namespace {

/// What the fake library has and what it was asked for. One test at a time.
struct Library {
  int open_error = 0, claim_error = 0, init_error = 0, control = 0, bulk_error = 0;
  int bulk_bytes = -1;  ///< moved by the next bulk transfer; -1: all
  int configuration = 0;
  std::string product = "custom";
  int contexts = 0, lists = 0, handles = 0, claims = 0;
  std::vector<std::string> log;
};
Library library;

libusb_device* device(size_t n) { return reinterpret_cast<libusb_device*>(0x1000 + n * 16); }
libusb_device_handle* const kHandle = reinterpret_cast<libusb_device_handle*>(0x2000);

/// Two devices: a root hub and a bridge.
LibUsb fake() {
  LibUsb calls;
  calls.init = [](libusb_context** context) {
    *context = reinterpret_cast<libusb_context*>(0x3000);
    if (library.init_error == 0) ++library.contexts;
    return library.init_error;
  };
  calls.exit = [](libusb_context*) { --library.contexts; };
  calls.get_device_list = [](libusb_context*, libusb_device*** list) -> ssize_t {
    static libusb_device* all[] = {device(0), device(1), nullptr};
    *list = all;
    ++library.lists;
    return 2;
  };
  calls.free_device_list = [](libusb_device**, int) {
    EXPECT_GT(library.contexts, 0) << "a list outlives the library's session";
    --library.lists;
  };
  calls.get_device_descriptor = [](libusb_device* d, libusb_device_descriptor* to) {
    *to = {};
    to->idVendor = d == device(0) ? 0x1d6b : 0xadd1;
    to->idProduct = d == device(0) ? 0x0003 : 0x0001;
    to->iManufacturer = 1;
    to->iProduct = 2;
    return 0;
  };
  calls.get_bus_number = [](libusb_device*) -> uint8_t { return 2; };
  calls.get_device_address = [](libusb_device* d) -> uint8_t { return d == device(0) ? 1 : 7; };
  calls.get_device_speed = [](libusb_device*) { return int{LIBUSB_SPEED_SUPER_PLUS}; };
  calls.open = [](libusb_device*, libusb_device_handle** handle) {
    *handle = kHandle;
    if (library.open_error == 0) ++library.handles;
    return library.open_error;
  };
  calls.close = [](libusb_device_handle*) { --library.handles; };
  calls.get_string_descriptor_ascii = [](libusb_device_handle*, uint8_t index, unsigned char* to,
                                         int) {
    const std::string text = index == 2 ? library.product : "a\nmaker";
    std::memcpy(to, text.data(), text.size());
    return static_cast<int>(text.size());
  };
  calls.set_auto_detach_kernel_driver = [](libusb_device_handle*, int) {
    return int{LIBUSB_ERROR_NOT_SUPPORTED};
  };
  calls.get_configuration = [](libusb_device_handle*, int* to) {
    *to = library.configuration;
    return 0;
  };
  calls.set_configuration = [](libusb_device_handle*, int value) {
    library.configuration = value;
    library.log.push_back("configuration");
    return 0;
  };
  calls.claim_interface = [](libusb_device_handle*, int) {
    if (library.claim_error == 0) ++library.claims;
    return library.claim_error;
  };
  calls.release_interface = [](libusb_device_handle*, int) {
    --library.claims;
    return 0;
  };
  calls.set_interface_alt_setting = [](libusb_device_handle*, int, int) { return 0; };
  calls.control_transfer = [](libusb_device_handle*, uint8_t type, uint8_t request, uint16_t value,
                              uint16_t index, unsigned char*, uint16_t bytes, unsigned timeout) {
    library.log.push_back(
        fmt::format("{:#x} {:#x} {} {} {} {}", type, request, value, index, bytes, timeout));
    return library.control < 0 ? library.control : int{bytes} - library.control;
  };
  calls.bulk_transfer = [](libusb_device_handle*, unsigned char, unsigned char*, int bytes,
                           int* moved, unsigned) {
    *moved = library.bulk_bytes < 0 ? bytes : library.bulk_bytes;
    return library.bulk_error;
  };
  calls.clear_halt = [](libusb_device_handle*, unsigned char) { return 0; };
  calls.strerror = [](int) { return "the library's words"; };
  return calls;
}

class LibUsbTest : public testing::Test {
 protected:
  void SetUp() override { library = {}; }
  void TearDown() override {
    EXPECT_EQ(library.contexts, 0);
    EXPECT_EQ(library.lists, 0);
    EXPECT_EQ(library.handles, 0);
    EXPECT_EQ(library.claims, 0);
  }
  const LibUsb calls_ = fake();
  const UsbPlace bridge_{2, 7, 0xadd1, 0x0001};
};

TEST_F(LibUsbTest, ListsAndOpens) {
  const auto places = list_usb_devices(calls_);
  ASSERT_TRUE(places);
  ASSERT_EQ(places->size(), 2u);
  EXPECT_EQ((*places)[1].vendor, 0xadd1);
  const auto device = open_usb_device(calls_, (*places)[1]);
  ASSERT_TRUE(device) << device.error().message;
  const UsbIdentity& id = (*device)->identity();
  EXPECT_EQ(id.product_text, "custom");
  EXPECT_EQ(id.manufacturer_text, "a?maker");
  EXPECT_EQ(id.speed_mbit, 10000u);
  EXPECT_EQ(to_string(id), "usb 2-7, add1:0001 'custom'");
  std::array<std::byte, 12> bytes{};
  EXPECT_TRUE((*device)->control_out({kUsbVendorOut, 0xf0, 0x0f60, 1}, bytes, 5000));
  EXPECT_EQ(library.log.back(), "0x40 0xf0 3936 1 12 5000");
  EXPECT_EQ(*(*device)->control_in({kUsbVendorIn, 0xe4, 0xb450, 0}, bytes, 1000), 12u);
}

TEST_F(LibUsbTest, AConfigurationThatIsThereIsNotChosenAgain) {
  library.configuration = 1;
  ASSERT_TRUE(open_usb_device(calls_, bridge_));
  EXPECT_TRUE(library.log.empty());
}

TEST_F(LibUsbTest, ErrorsHaveCodesAndRemedies) {
  library.open_error = LIBUSB_ERROR_ACCESS;
  auto device = open_usb_device(calls_, bridge_);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Code::kPermission);
  EXPECT_NE(device.error().message.find("ATTR{idVendor}==\"add1\""), std::string::npos)
      << device.error().message;
  library.open_error = 0;
  library.claim_error = LIBUSB_ERROR_BUSY;
  EXPECT_EQ(open_usb_device(calls_, bridge_).error().code, Code::kIo);
  library.claim_error = 0;
  library.init_error = LIBUSB_ERROR_OTHER;
  EXPECT_EQ(list_usb_devices(calls_).error().code, Code::kIo);
  library.init_error = 0;
  EXPECT_EQ(open_usb_device(calls_, {2, 8, 0xadd1, 1}).error().code, Code::kNotFound);

  device = open_usb_device(calls_, bridge_);
  ASSERT_TRUE(device);
  std::array<std::byte, 64> bytes{};
  const std::map<int, Code> codes{{LIBUSB_ERROR_TIMEOUT, Code::kTimeout},
                                  {LIBUSB_ERROR_NO_DEVICE, Code::kDeviceLost},
                                  {LIBUSB_ERROR_PIPE, Code::kIo},
                                  {LIBUSB_ERROR_OVERFLOW, Code::kCorrupt}};
  for (const auto& [error, code] : codes) {
    library.control = library.bulk_error = error;
    EXPECT_EQ((*device)->control_in({}, bytes, 1).error().code, code);
    EXPECT_EQ((*device)->bulk_in(0x81, bytes, 1).error().code, code);
  }
  library.bulk_error = 0;
  library.control = 5;  // fewer bytes than sent
  library.bulk_bytes = 9;
  EXPECT_EQ((*device)->control_out({}, bytes, 1).error().code, Code::kCorrupt);
  EXPECT_EQ((*device)->bulk_out(0x02, bytes, 1).error().code, Code::kCorrupt);
  EXPECT_EQ(*(*device)->bulk_in(0x81, bytes, 1), 9u);
  const std::vector<std::byte> large(70'000);
  EXPECT_EQ((*device)->control_out({}, large, 1).error().code, Code::kInvalidArgument);
}

TEST(LibUsbLibrary, IsLoadedOrNamed) {
  const auto missing = load_libusb("libusb-0.0.so.none");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("install libusb-1.0-0"), std::string::npos);
  const auto calls = load_libusb();
  ASSERT_TRUE(calls) << calls.error().message;
  const auto places = list_usb_devices(**calls);
  // A machine without any bus lists nothing, or says that it has none.
  if (!places) {
    EXPECT_EQ(places.error().code, Code::kIo);
  }
}

}  // namespace
}  // namespace bm
