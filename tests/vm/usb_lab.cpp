// Runs in a guest: our driver of ASM24xx bridges by Debian's libusb and the kernel's xHCI driver,
// on the model of the bridge, which QEMU shows as a USB device.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "drivers/transport/usb/asm24.h"
#include "drivers/transport/usb/libusb.h"
#include "drivers/transport/usb/usb_pci.h"

namespace bm::test {
namespace {

Result<std::unique_ptr<UsbDevice>> open_bridge_device() {
  const LibUsb* const calls = BM_TRY(load_libusb());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (;;) {
    for (const UsbPlace& place : BM_TRY(list_usb_devices(*calls)))
      if (asm24_kind(place.vendor, place.product) == Asm24Kind::kProgrammable)
        return open_usb_device(*calls, place);
    if (std::chrono::steady_clock::now() > end) return fail(Code::kNotFound, "no bridge came up");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::vector<std::byte> random_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  std::mt19937 random(std::random_device{}());
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

class UsbLab : public testing::Test {
 protected:
  void SetUp() override {
    auto usb = open_bridge_device();
    ASSERT_TRUE(usb) << usb.error().message;
    auto bridge = Asm24Bridge::open(std::move(*usb));
    ASSERT_TRUE(bridge) << bridge.error().message;
    bridge_ = std::move(*bridge);
    auto bus = UsbBus::enumerate(bridge_);
    ASSERT_TRUE(bus) << bus.error().message;
    bus_ = *bus;
    ASSERT_EQ(bus_->functions().size(), 1u);
    auto function = UsbBus::open(bus_, bus_->functions()[0].identity.address);
    ASSERT_TRUE(function) << function.error().message;
    function_ = std::move(*function);
  }

  std::shared_ptr<Asm24Bridge> bridge_;
  std::shared_ptr<UsbBus> bus_;
  std::unique_ptr<PciFunction> function_;
};

TEST_F(UsbLab, ReadsIdentityAndText) {
  EXPECT_EQ(bridge_->identity().product_text, "custom");
  EXPECT_EQ(bridge_->identity().manufacturer_text, "test");
  EXPECT_EQ(bridge_->identity().speed_mbit, 5000u);
  EXPECT_EQ(function_->identity().vendor, 0x1234);
  EXPECT_EQ(function_->identity().device, 0x5678);
}

TEST_F(UsbLab, RegistersAndBlocksComeBack) {
  const auto registers = function_->map_bar(5);
  ASSERT_TRUE(registers) << registers.error().message;
  for (uint32_t i = 0; i < 200; ++i) {
    registers->write32(i * 4 % 2048, i * 0x9e3779b9u);
    ASSERT_EQ(registers->read32(i * 4 % 2048), i * 0x9e3779b9u);
  }
  const auto memory = function_->map_bar_memory(0, true);
  ASSERT_TRUE(memory) << memory.error().message;
  for (const size_t bytes : {1u, 7u, 512u, 513u, 4096u, 70'001u, 1'000'000u}) {
    const auto data = random_bytes(bytes);
    std::vector<std::byte> back(bytes);
    memory->copy_in(3, data);
    memory->copy_out(3, back);
    EXPECT_TRUE(back == data) << bytes << " bytes";
  }
  EXPECT_TRUE(function_->status());
}

TEST_F(UsbLab, SramIsWrittenInSlots) {
  const auto data = random_bytes(40'000);
  const Status written = bridge_->write_sram(Asm24Bridge::kSlotBytes * 2, data);
  EXPECT_TRUE(written) << written.error().message;
}

TEST_F(UsbLab, PowerIsTakenAndEverythingPutBack) {
  const auto registers = function_->map_bar(5);
  ASSERT_TRUE(registers);
  registers->write32(0, 7);
  const Status reset = function_->reset(PciReset::kBus);
  ASSERT_TRUE(reset) << reset.error().message;
  EXPECT_EQ(registers->read32(0), 0u);
}

using UsbLabUnplugged = UsbLab;

TEST_F(UsbLabUnplugged, IsLostOnceAndForEver) {
  const auto registers = function_->map_bar(5);
  ASSERT_TRUE(registers);
  registers->write32(0xffc, 0xdead);  // the model pulls its own cable
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (function_->status() && std::chrono::steady_clock::now() < end) (void)registers->read32(0);
  ASSERT_FALSE(function_->status());
  EXPECT_EQ(function_->status().error().code, Code::kDeviceLost)
      << function_->status().error().message;
  EXPECT_EQ(registers->read32(0), ~0u);
}

}  // namespace
}  // namespace bm::test
