// A PCI function behind a USB bridge: the driver of the bridge against the model of its firmware.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/usb/asm24.h"
#include "drivers/transport/usb/usb_pci.h"
#include "tests/sim/usb/asm24_model.h"
#include "tests/unit/transport/fake_pci.h"

namespace bm {
namespace {

using Failure = sim::Asm24Model::Failure;

/// The card, the bridge and our side of it.
struct Rig {
  explicit Rig(const sim::Asm24Options& options = {}) {
    auto owned = std::make_unique<sim::Asm24Model>(card, options);
    model = owned.get();
    usb = std::move(owned);
  }
  Status open() {
    bridge = std::shared_ptr<Asm24Bridge>(BM_TRY(Asm24Bridge::open(std::move(usb))));
    return {};
  }
  Status enumerate(const UsbBusOptions& options = {}) {
    BM_TRY(open());
    bus = BM_TRY(UsbBus::enumerate(bridge, options));
    function = BM_TRY(UsbBus::open(bus, bus->functions().at(0).identity.address));
    return {};
  }
  void expect_clean() const {
    EXPECT_TRUE(model->violations().empty()) << model->violations().front();
    EXPECT_TRUE(card.faults().empty()) << card.faults().front();
  }

  test::FakePci card;
  sim::Asm24Model* model = nullptr;
  std::unique_ptr<UsbDevice> usb;
  std::shared_ptr<Asm24Bridge> bridge;
  std::shared_ptr<UsbBus> bus;
  std::unique_ptr<PciFunction> function;
};

TEST(Asm24, FirmwareAsSoldIsExplained) {
  Rig rig({.product_text = "ASM2464PD"});
  const Status opened = rig.open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kUnsupported);
  EXPECT_NE(opened.error().message.find("firmware it is sold with"), std::string::npos);
  EXPECT_EQ(asm24_kind(0x174c, 0x2464), Asm24Kind::kStock);
  EXPECT_EQ(asm24_kind(0xadd1, 0x0001), Asm24Kind::kProgrammable);
  EXPECT_EQ(asm24_kind(0x1d6b, 0x0003), Asm24Kind::kNone);
}

TEST(Asm24, PowersTheCardOnceAndSaysWhenThereIsNone) {
  Rig off, on({.is_powered = true}), empty({.has_card = false});
  EXPECT_TRUE(off.open());
  EXPECT_EQ(off.model->transfers(), 3u);  // state, power, state
  EXPECT_TRUE(on.open());
  EXPECT_EQ(on.model->transfers(), 1u);
  const Status opened = empty.open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kNotFound);
  EXPECT_NE(opened.error().message.find("power supply"), std::string::npos);
}

TEST(UsbBus, FindsTheCardBehindPortsAndPlacesItsBars) {
  Rig rig;
  ASSERT_TRUE(rig.enumerate());
  ASSERT_EQ(rig.bus->functions().size(), 1u);
  const PciIdentity& id = rig.function->identity();
  EXPECT_EQ(to_string(id.address), "0000:03:00.0");
  EXPECT_EQ(id.vendor, 0x1234);
  EXPECT_EQ(id.device, 0x5678);
  const auto& bars = rig.function->bars();
  EXPECT_EQ(bars[0].size, 4u << 20);  // resized to the largest
  EXPECT_EQ(bars[0].address, 32ull << 30);
  EXPECT_EQ(bars[0].address % bars[0].size, 0u);
  EXPECT_EQ(bars[2].size, 8u << 10);
  EXPECT_EQ(bars[5].size, 4u << 10);
  EXPECT_GE(bars[5].address, 0x1000'0000u);
  EXPECT_NE(bars[2].address, bars[5].address);
  EXPECT_EQ(*rig.function->read_config(0, 4), 0x5678'1234u);
  EXPECT_EQ(*rig.function->read_config(2, 2), 0x5678u);
  EXPECT_EQ(*rig.function->read_config(3, 1), 0x56u);
  // Nobody at the neighbour's place: ones, and nothing is broken.
  EXPECT_EQ(rig.bridge->read_config({0, 3, 1, 0}, 0, 4).error().code, Code::kNotFound);
  EXPECT_TRUE(rig.function->status());
  rig.expect_clean();
}

TEST(UsbBus, RegistersOfEveryWidth) {
  Rig rig;
  ASSERT_TRUE(rig.enumerate());
  const Mmio registers = *rig.function->map_bar(5);
  std::vector<std::byte>& there = rig.card.memory(5);
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const uint64_t value = random();
    const uint64_t at = random() % (there.size() / 8) * 8;
    registers.write32(at, static_cast<uint32_t>(value));
    registers.write32(at + 4, static_cast<uint32_t>(value >> 32));
    EXPECT_EQ(registers.read64(at), value);
    registers.write64(at, ~value);
    EXPECT_EQ(registers.read32(at), static_cast<uint32_t>(~value));
    registers.write8(at + 3, 0xa5);
    registers.write16(at + 6, 0x5aa5);
    EXPECT_EQ(registers.read8(at + 3), 0xa5);
    EXPECT_EQ(registers.read16(at + 6), 0x5aa5);
    uint64_t expected = (~value & 0x0000'ffff'00ff'ffff) | 0x5aa5'0000'a500'0000, got = 0;
    std::memcpy(&got, there.data() + at, 8);
    EXPECT_EQ(got, expected);
  }
  rig.expect_clean();
}

TEST(UsbBus, BlocksOfAnySizeAndPlace) {
  Rig rig;
  ASSERT_TRUE(rig.enumerate());
  const HostView memory = *rig.function->map_bar_memory(0, true);
  std::vector<std::byte>& there = rig.card.memory(0);
  std::mt19937_64 random(11);
  for (int i = 0; i < 60; ++i) {
    const size_t bytes = i == 0 ? 300'000 : random() % 70;
    const size_t at = random() % (there.size() - bytes);
    std::vector<std::byte> data(bytes);
    for (std::byte& b : data) b = static_cast<std::byte>(random());
    std::vector<std::byte> all = there;
    std::ranges::copy(data, all.begin() + static_cast<ptrdiff_t>(at));
    memory.copy_in(at, data);
    EXPECT_TRUE(there == all) << bytes << " bytes at " << at;
    std::vector<std::byte> back(bytes);
    memory.copy_out(at, back);
    EXPECT_TRUE(back == data) << bytes << " bytes at " << at;
  }
  rig.expect_clean();
}

TEST(UsbBus, WaitsForAFunctionThatStartsAndSendsLostRequestsAgain) {
  Rig starting({.not_ready = 30}), lossy({.lost_requests = 9}), deaf({.lost_requests = 1000});
  EXPECT_TRUE(starting.enumerate());
  EXPECT_TRUE(lossy.enumerate());
  const Status status = deaf.enumerate();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kIo);
  EXPECT_EQ(deaf.bridge->status().error().message, status.error().message);  // sticky
}

TEST(UsbBus, SaysWhichBarHasNoRoom) {
  Rig rig;
  const Status status = rig.enumerate({.prefetchable = {.address = 32ull << 30, .bytes = 2 << 20}});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kOutOfMemory);
  EXPECT_NE(status.error().message.find("BAR0"), std::string::npos);
  Rig small;
  EXPECT_TRUE(small.enumerate(
      {.prefetchable = {.address = 32ull << 30, .bytes = 2 << 20}, .largest_bar = 2 << 20}));
  EXPECT_EQ(small.function->bars()[0].size, 2u << 20);
  small.expect_clean();
}

TEST(UsbBus, ResetTakesPowerAndPutsEverythingBack) {
  Rig rig;
  ASSERT_TRUE(rig.enumerate());
  const auto before = rig.function->bars();
  const Mmio registers = *rig.function->map_bar(5);
  registers.write32(0, 7);
  EXPECT_FALSE(rig.function->reset(PciReset::kFunction));
  ASSERT_TRUE(rig.function->reset(PciReset::kBus));
  EXPECT_EQ(registers.read32(0), 0u);
  registers.write32(8, 9);
  EXPECT_EQ(registers.read32(8), 9u);
  EXPECT_EQ(rig.function->bars()[0].address, before[0].address);
  rig.expect_clean();
}

TEST(UsbBus, HostMemoryAndInterruptsAreRefusedWithAReason) {
  Rig rig;
  ASSERT_TRUE(rig.enumerate());
  EXPECT_EQ(rig.function->dma_allocate(4096, true, std::nullopt).error().code, Code::kUnsupported);
  EXPECT_EQ(rig.function->enable_interrupts(1).error().code, Code::kUnsupported);
  EXPECT_EQ(rig.function->resize_bar(0, 1 << 20).error().code, Code::kUnsupported);
  EXPECT_TRUE(rig.function->resize_bar(0, 4 << 20));
  EXPECT_EQ(UsbBus::open(rig.bus, {0, 9, 0, 0}).error().code, Code::kNotFound);
}

TEST(UsbBus, UnpluggedReadsAsOnesAndSaysSo) {
  Rig rig;
  ASSERT_TRUE(rig.enumerate());
  const Mmio registers = *rig.function->map_bar(5);
  const HostView memory = *rig.function->map_bar_memory(0, true);
  rig.model->unplug();
  EXPECT_EQ(registers.read32(0), ~0u);
  EXPECT_EQ(registers.read64(8), ~uint64_t{0});
  registers.write32(0, 1);
  std::array<std::byte, 37> bytes{};
  memory.copy_out(1, bytes);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0xff}; }));
  EXPECT_EQ(registers.status().error().code, Code::kDeviceLost);
  EXPECT_EQ(rig.function->status().error().code, Code::kDeviceLost);
  // Nothing is sent any more.
  const uint64_t transfers = rig.model->transfers();
  EXPECT_EQ(registers.read32(0), ~0u);
  EXPECT_FALSE(rig.function->reset(PciReset::kBus));
  EXPECT_EQ(rig.model->transfers(), transfers);
}

TEST(UsbBus, EveryTransferMayFail) {
  uint64_t all = 0;
  {
    Rig rig;
    ASSERT_TRUE(rig.enumerate());
    (void)rig.function->map_bar(5)->read32(0);
    all = rig.model->transfers();
  }
  for (const Failure failure :
       {Failure::kTimeout, Failure::kStall, Failure::kShort, Failure::kUnplug}) {
    for (uint64_t at = 0; at < all; ++at) {
      Rig rig;
      rig.model->plant(at, failure);
      const Status status = rig.enumerate();
      if (status) {
        const Mmio registers = *rig.function->map_bar(5);
        (void)registers.read32(0);
        EXPECT_FALSE(registers.status()) << "transfer " << at;
      } else {
        EXPECT_NE(status.error().code, Code::kInternal);
        EXPECT_FALSE(status.error().message.empty());
      }
      EXPECT_TRUE(rig.model->violations().empty())
          << "transfer " << at << ": " << rig.model->violations().front();
    }
  }
}

TEST(Asm24, SramIsWrittenInSlotsAndReadWhenTheDeviceSaysSo) {
  Rig rig;
  ASSERT_TRUE(rig.open());
  std::vector<std::byte> data(40'000);
  std::mt19937 random(3);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  ASSERT_TRUE(rig.bridge->write_sram(Asm24Bridge::kSlotBytes * 2, data));
  std::vector<std::byte> seen(data.size());
  std::byte state{};
  ASSERT_TRUE(rig.bridge->read_xdata(0, {&state, 1}));  // what was sent lands with it
  ASSERT_TRUE(
      rig.model->device_read(Asm24Bridge::kSramAddress + Asm24Bridge::kSlotBytes * 2, seen));
  EXPECT_TRUE(seen == data);
  ASSERT_TRUE(rig.model->device_write(Asm24Bridge::kSramAddress, data));
  std::vector<std::byte> back(data.size());
  const auto release = [&]() -> Status {
    EXPECT_TRUE(rig.model->device_write(Asm24Bridge::kReleaseAddress, std::span(data).first(4)));
    return {};
  };
  ASSERT_TRUE(rig.bridge->read_sram(back, release));
  EXPECT_TRUE(back == data);
  for (const uint64_t offset : {uint64_t{1}, Asm24Bridge::kSramBytes})
    EXPECT_EQ(rig.bridge->write_sram(offset, data).error().code, Code::kInvalidArgument);
  std::vector<std::byte> too_long(1 << 20);
  EXPECT_EQ(rig.bridge->read_sram(too_long, release).error().code, Code::kInvalidArgument);
  rig.expect_clean();
}

}  // namespace
}  // namespace bm
