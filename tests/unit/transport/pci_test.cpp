#include "drivers/transport/pci.h"

#include <gtest/gtest.h>

#include "drivers/transport/pci_config.h"
#include "tests/unit/transport/fake_pci.h"

namespace bm {
namespace {

using test::FakePci;
using test::FakePciOptions;

TEST(PciAddress, IsWrittenAsLinuxWritesIt) {
  for (const char* text : {"0000:03:00.0", "10ab:ff:1f.7"})
    EXPECT_EQ(to_string(*parse_pci_address(text)), text);
  EXPECT_EQ(to_string(*parse_pci_address("3:2.1")), "0000:03:02.1");
  for (const char* text : {"", "0000:03:00", "03:20.0", "03:00.8", "0:0:3:0.0", "10000:03:00.0",
                           "03:00.0 ", "-3:00.0", "0000:100:00.0"})
    EXPECT_FALSE(parse_pci_address(text)) << text;
}

TEST(PciConfig, AccessesAreWholeAndInside) {
  FakePci pci;
  EXPECT_EQ(*pci.read_config(0, 2), 0x1234u);
  EXPECT_EQ(*pci.read_config(4095, 1), 0u);
  for (const auto& [offset, width] : {std::pair{0u, 3u},
                                      {1u, 2u},
                                      {2u, 4u},
                                      {4096u, 1u},
                                      {4096u, 4u},
                                      {~0u & ~3u, 4u},
                                      {0u, 0u},
                                      {0u, 8u}})
    EXPECT_EQ(pci.read_config(offset, width).error().code, Code::kInvalidArgument);
}

TEST(PciConfig, IdentityOfAFunctionAndOfNone) {
  FakePci pci;
  const PciIdentity identity = *read_identity(pci, {0, 3, 0, 0});
  EXPECT_EQ(identity.vendor, 0x1234);
  EXPECT_EQ(identity.device, 0x5678);
  EXPECT_EQ(identity.class_code, 0x038000u);
  EXPECT_EQ(identity.revision, 0xc8);
  EXPECT_EQ(identity.subsystem_vendor, 0x1af4);
  EXPECT_EQ(identity.subsystem_device, 0x1100);
  pci.config[0x0e] = 0x81;
  EXPECT_EQ(read_identity(pci, {}).error().code, Code::kUnsupported);
  pci.unplug();
  EXPECT_EQ(read_identity(pci, {}).error().code, Code::kDeviceLost);
}

TEST(PciConfig, CapabilitiesAreFound) {
  FakePci pci;
  EXPECT_EQ(**find_capability(pci, PciCapability::kPowerManagement), 0x50u);
  EXPECT_EQ(**find_capability(pci, PciCapability::kExpress), 0x80u);
  EXPECT_FALSE(*find_capability(pci, PciCapability::kMsiX));
  EXPECT_EQ(**find_extended_capability(pci, PciExtendedCapability::kResizableBar), 0x200u);
  EXPECT_FALSE(*find_extended_capability(pci, PciExtendedCapability::kAccessControl));
}

TEST(PciConfig, ListsThatLeadAstrayEnd) {
  FakePci pci;
  pci.config[0x81] = 0x50;  // back to the first
  EXPECT_EQ(find_capability(pci, PciCapability::kMsiX).error().code, Code::kCorrupt);
  pci.config[0x81] = 0x08;  // into the header
  EXPECT_EQ(find_capability(pci, PciCapability::kMsiX).error().code, Code::kCorrupt);
  pci.config[0x203] = 0x10;  // back to 0x100
  EXPECT_EQ(find_extended_capability(pci, PciExtendedCapability::kAccessControl).error().code,
            Code::kCorrupt);
  pci.unplug();
  EXPECT_EQ(find_capability(pci, PciCapability::kMsi).error().code, Code::kDeviceLost);
  EXPECT_EQ(find_extended_capability(pci, PciExtendedCapability::kResizableBar).error().code,
            Code::kDeviceLost);
}

TEST(PciConfig, RandomListsNeverHang) {
  uint64_t state = 1;
  for (int round = 0; round < 2'000; ++round) {
    FakePci pci;
    for (int i = 0; i < 40; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      pci.config[0x34 + (state >> 33) % 0x400] = static_cast<uint8_t>(state >> 56);
    }
    (void)find_capability(pci, PciCapability::kMsiX);
    (void)find_extended_capability(pci, PciExtendedCapability::kAccessControl);
    (void)resizable_bar_sizes(pci, 0);
  }
}

TEST(PciConfig, BarsAreSizedAndLeftAsTheyWere) {
  FakePci pci;
  ASSERT_TRUE(pci.write_config(0x10, 4, 0x40000000));
  ASSERT_TRUE(pci.write_config(0x14, 4, 0x8));
  ASSERT_TRUE(set_memory_decoding(pci, true));
  const std::array<PciBar, kPciBars> bars = *size_bars(pci);
  EXPECT_EQ(bars[0].size, 64u << 10);
  EXPECT_EQ(bars[0].address, 0x8'4000'0000u);
  EXPECT_TRUE(bars[0].is_64_bit && bars[0].is_prefetchable && bars[0].is_memory);
  EXPECT_EQ(bars[1].size, 0u);
  EXPECT_EQ(bars[2].size, 8u << 10);
  EXPECT_EQ(bars[5].size, 4u << 10);
  EXPECT_FALSE(bars[5].is_64_bit);
  EXPECT_EQ(*pci.read_config(0x10, 4), 0x4000000cu);
  EXPECT_EQ(*pci.read_config(4, 2), 2u);
}

TEST(PciConfig, SizesThatResizableBarsOffer) {
  FakePci pci;
  EXPECT_EQ(*resizable_bar_sizes(pci, 0), (std::vector<uint64_t>{1 << 20, 2 << 20, 4 << 20}));
  EXPECT_TRUE(resizable_bar_sizes(pci, 2)->empty());
  EXPECT_TRUE(pci.resize_bar(0, 4 << 20));
  EXPECT_EQ((*size_bars(pci))[0].size, 4u << 20);
  EXPECT_FALSE(pci.resize_bar(0, 3 << 20));
  EXPECT_EQ(pci.map_bar(0)->size(), 4u << 20);
  EXPECT_FALSE(pci.resize_bar(0, 1 << 20));
}

TEST(PciFunction, RegistersAnswerWhileMemoryIsDecoded) {
  FakePci pci;
  const Mmio mmio = *pci.map_bar(5);
  mmio.write32(8, 1);
  EXPECT_EQ(mmio.read32(8), ~0u);
  ASSERT_EQ(pci.faults().size(), 2u);
  ASSERT_TRUE(set_memory_decoding(pci, true));
  mmio.write32(8, 1);
  EXPECT_EQ(mmio.read32(8), 1u);
  ASSERT_TRUE(set_power(pci, PciPower::kD3Hot));
  EXPECT_EQ(mmio.read32(8), ~0u);
  ASSERT_TRUE(set_power(pci, PciPower::kD0));
  EXPECT_EQ(mmio.read32(8), ~0u) << "waking up was a reset, which turned decoding off";
  EXPECT_FALSE(pci.map_bar(1));
  EXPECT_FALSE(pci.map_bar(6));
}

TEST(PciFunction, TheDeviceReachesOnlyWhatIsMapped) {
  alignas(4096) static std::array<std::byte, 2 * 4096> memory;
  FakePci pci;
  const std::array<std::byte, 4> word = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  EXPECT_FALSE(pci.dma_map({.host = memory.data(), .bytes = 8192})) << "without an IOVA";
  EXPECT_FALSE(pci.dma_map({.host = memory.data(), .bytes = 100, .iova = 0x1000}));
  EXPECT_FALSE(pci.dma_map({.host = memory.data(), .bytes = 8192, .iova = 0xfee00000}));
  EXPECT_FALSE(pci.dma_map({.host = memory.data(), .bytes = 8192, .iova = 1ull << 39}));
  EXPECT_EQ(*pci.dma_map({.host = memory.data(), .bytes = 8192, .iova = 0x10000}),
            (std::vector<BusRange>{{0x10000, 8192}}));
  EXPECT_FALSE(pci.dma_allocate(4096, true, 0x11000)) << "overlaps";
  EXPECT_FALSE(pci.device_write(0x10ffc, word)) << "bus mastering is off";
  ASSERT_TRUE(set_bus_master(pci, true));
  EXPECT_TRUE(pci.device_write(0x10ffc, word));
  EXPECT_EQ(memory[4095], std::byte{4});
  EXPECT_FALSE(pci.device_write(0x11ffe, word)) << "beyond the end";
  ASSERT_TRUE(pci.dma_unmap(memory.data()));
  EXPECT_FALSE(pci.device_write(0x10ffc, word));
  EXPECT_FALSE(pci.dma_unmap(memory.data()));
}

TEST(PciFunction, PhysicalMemoryIsInPieces) {
  FakePci pci({.has_iommu = false});
  ASSERT_TRUE(set_bus_master(pci, true));
  std::unique_ptr<DmaMemory> memory = *pci.dma_allocate(8192, false, std::nullopt);
  ASSERT_EQ(memory->ranges().size(), 2u);
  EXPECT_NE(memory->ranges()[1].address, memory->ranges()[0].address + 4096);
  memory->view().store<uint32_t>(4096, 7);
  std::array<std::byte, 1> byte;
  const uint64_t second = memory->ranges()[1].address;
  EXPECT_TRUE(pci.device_read(second, byte));
  EXPECT_EQ(byte[0], std::byte{7});
  EXPECT_FALSE(pci.dma_allocate(8192, true, std::nullopt));
  memory.reset();
  EXPECT_FALSE(pci.device_read(second, byte));
}

TEST(PciFunction, ReadOnlyMappingsAndTheirNumberAreLimits) {
  alignas(4096) static std::array<std::byte, 2 * 4096> memory;
  FakePci pci({.dma_mappings = 1});
  ASSERT_TRUE(set_bus_master(pci, true));
  ASSERT_TRUE(
      pci.dma_map({.host = memory.data(), .bytes = 4096, .iova = 0x1000, .is_read_only = true}));
  std::array<std::byte, 4> word{};
  EXPECT_TRUE(pci.device_read(0x1000, word));
  EXPECT_FALSE(pci.device_write(0x1000, word));
  EXPECT_EQ(pci.dma_map({.host = memory.data() + 4096, .bytes = 4096, .iova = 0x2000}).error().code,
            Code::kOutOfMemory);
}

TEST(PciFunction, InterruptsArriveOncePerWait) {
  FakePci pci;
  EXPECT_EQ(*pci.enable_interrupts(8), 4u);
  EXPECT_FALSE(pci.device_interrupt(1)) << "bus mastering is off";
  ASSERT_TRUE(set_bus_master(pci, true));
  EXPECT_FALSE(*pci.wait_interrupt(1, 0));
  EXPECT_TRUE(pci.device_interrupt(1));
  EXPECT_TRUE(pci.device_interrupt(1));
  EXPECT_FALSE(*pci.wait_interrupt(0, 0));
  EXPECT_TRUE(*pci.wait_interrupt(1, 0));
  EXPECT_FALSE(*pci.wait_interrupt(1, 0));
  EXPECT_FALSE(pci.interrupt_fd(4));
  FakePci plain({.msi_vectors = 0});
  EXPECT_EQ(plain.enable_interrupts(1).error().code, Code::kUnsupported);
}

TEST(PciFunction, AResetClearsWhatPowerOnClears) {
  FakePci pci;
  ASSERT_TRUE(pci.write_config(0x10, 4, 0x40000000));
  ASSERT_TRUE(pci.enable_interrupts(1));
  ASSERT_TRUE(set_memory_decoding(pci, true));
  ASSERT_TRUE(set_bus_master(pci, true));
  const Mmio mmio = *pci.map_bar(5);
  mmio.write32(0, 5);
  ASSERT_TRUE(pci.reset(PciReset::kFunction));
  EXPECT_EQ(*pci.read_config(4, 2), 0u);
  EXPECT_EQ(*pci.read_config(0x10, 4), 0xcu);
  EXPECT_FALSE(pci.device_interrupt(0));
  ASSERT_TRUE(set_memory_decoding(pci, true));
  EXPECT_EQ(mmio.read32(0), 0u);
  FakePci without({.has_function_reset = false});
  EXPECT_EQ(without.reset(PciReset::kFunction).error().code, Code::kUnsupported);
  EXPECT_TRUE(without.reset(PciReset::kBus));
}

TEST(PciFunction, ACardThatIsPulledOutReadsAsOnes) {
  FakePci pci;
  ASSERT_TRUE(set_memory_decoding(pci, true));
  const Mmio mmio = *pci.map_bar(5);
  pci.unplug();
  EXPECT_EQ(mmio.read32(0), ~0u);
  EXPECT_EQ(*pci.read_config(0, 2), 0xffffu);
  EXPECT_EQ(mmio.status().error().code, Code::kDeviceLost);
  EXPECT_EQ(set_bus_master(pci, true).error().code, Code::kDeviceLost);
  EXPECT_EQ(pci.reset(PciReset::kBus).error().code, Code::kDeviceLost);
}

TEST(PciFunction, ModelsSeeEveryRegisterAccess) {
  FakePci pci;
  ASSERT_TRUE(set_memory_decoding(pci, true));
  std::vector<std::string> seen;
  pci.on_read = [&seen](uint32_t bar, uint64_t offset) {
    seen.push_back(fmt::format("r{} {:#x}", bar, offset));
    return 0x42u;
  };
  pci.on_write = [&seen](uint32_t bar, uint64_t offset, uint32_t value) {
    seen.push_back(fmt::format("w{} {:#x} {}", bar, offset, value));
  };
  const Mmio mmio = *pci.map_bar(5);
  EXPECT_EQ(mmio.read32(0x10), 0x42u);
  mmio.write32(0x14, 6);
  EXPECT_EQ(seen, (std::vector<std::string>{"r5 0x10", "w5 0x14 6"}));
}

}  // namespace
}  // namespace bm
