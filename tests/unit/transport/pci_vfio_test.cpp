#include "drivers/transport/pci_vfio.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "drivers/transport/pci_config.h"
#include "tests/patience.h"
#include "tests/unit/transport/failing_system.h"
#include "tests/unit/transport/fake_vfio.h"

namespace bm {
namespace {

using test::FailingSystem;
using test::FakeVfio;

constexpr PciAddress kAddress{0, 3, 0, 0};
alignas(2 << 20) std::array<std::byte, 4 << 20> arena;

std::unique_ptr<PciFunction> open(System& system) {
  Result<std::unique_ptr<PciFunction>> opened = open_vfio_pci(system, {.address = kAddress});
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

TEST(VfioPci, AFunctionIsOpenedAndDescribed) {
  FakeVfio vfio;
  const auto pci = open(vfio);
  EXPECT_EQ(pci->identity().vendor, 0x1234);
  EXPECT_EQ(pci->identity().device, 0x5678);
  EXPECT_EQ(pci->bars()[0].size, 256u << 10);
  EXPECT_EQ(pci->bars()[1].size, 0u);
  EXPECT_EQ(pci->bars()[5].size, 4u << 10);
  EXPECT_NE(pci->bars()[0].address, 0u);
  const DmaLimits& limits = pci->dma_limits();
  EXPECT_TRUE(limits.takes_iova);
  EXPECT_EQ(limits.page_bytes, 4096u);
  EXPECT_EQ(limits.address_bits, 48u);
  EXPECT_EQ(limits.mappings, 65535u);
  EXPECT_EQ(limits.reserved, (std::vector<BusRange>{{0x1000, 0x1000}, {0xfee00000, 0x100000}}));
  EXPECT_TRUE(pci->status());
}

TEST(VfioPci, KernelsThatDoNotSayWhichIovasAreUsableHaveReservedRegions) {
  FakeVfio vfio({.has_ranges = false});
  const auto pci = open(vfio);
  EXPECT_EQ(pci->dma_limits().address_bits, 39u);
  EXPECT_EQ(pci->dma_limits().reserved,
            (std::vector<BusRange>{{0xfee00000, 0x100000}, {0x1000, 0x1000}}));
}

TEST(VfioPci, BarsAreMapped) {
  FakeVfio vfio;
  const auto pci = open(vfio);
  const Mmio mmio = *pci->map_bar(5);
  ASSERT_NE(mmio.host(), nullptr);
  mmio.write32(0x10, 77);
  uint32_t word = 0;
  std::memcpy(&word, vfio.bar(5) + 0x10, 4);
  EXPECT_EQ(word, 77u);
  EXPECT_EQ(pci->map_bar(5)->host(), mmio.host());
  EXPECT_EQ(pci->map_bar_memory(0, true)->size(), 256u << 10);
  EXPECT_EQ(pci->map_bar(1).error().code, Code::kInvalidArgument);
  EXPECT_EQ(pci->map_bar(6).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(pci->resize_bar(0, 256 << 10));
  EXPECT_EQ(pci->resize_bar(0, 512 << 10).error().code, Code::kUnsupported);
}

TEST(VfioPci, WhatCannotBeMappedGoesThroughTheFile) {
  FakeVfio vfio({.is_sparse = true});
  const auto pci = open(vfio);
  const Mmio registers = *pci->map_bar(0);
  EXPECT_EQ(registers.host(), nullptr);
  registers.write32(0x100, 5);   // by call
  registers.write32(0x2100, 6);  // mapped
  registers.write64(0x2ff8, 8);
  std::vector<uint32_t> block(1024);
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint32_t>(i * 3);
  registers.write_block(0x1800, block);  // by call, mapped
  EXPECT_EQ(0, std::memcmp(vfio.bar(0) + 0x1800, block.data(), 4096));
  std::vector<uint32_t> back(1024);
  registers.read_block(0x1800, back);
  EXPECT_EQ(back, block);
  EXPECT_EQ(registers.read32(0x100), 5u);
  EXPECT_EQ(registers.read32(0x1804), 3u);
  const HostView memory = *pci->map_bar_memory(0, true);
  std::vector<std::byte> bytes(0x20001, std::byte{0x5a});
  memory.copy_in(0x8001, bytes);
  EXPECT_EQ(memory.load<uint8_t>(0x8000), 0);
  EXPECT_EQ(memory.load<uint8_t>(0x8001), 0x5a);
  EXPECT_EQ(memory.load<uint16_t>(0x28000), 0x5a5a);
  EXPECT_EQ(memory.load<uint8_t>(0x28002), 0);
  const Mmio whole = *pci->map_bar(2);
  whole.write16(2, 0x1234);
  EXPECT_EQ(whole.read32(0), 0x12340000u);
  EXPECT_TRUE(pci->status());
}

TEST(VfioPci, TheDeviceReachesWhatIsMappedUntilItIsNot) {
  FakeVfio vfio;
  const auto pci = open(vfio);
  EXPECT_EQ(*pci->dma_map({.host = arena.data(), .bytes = 2 << 20, .iova = 0x200000}),
            (std::vector<BusRange>{{0x200000, 2 << 20}}));
  EXPECT_TRUE(vfio.device_write(0x200008, 42));
  EXPECT_EQ(arena[8], std::byte{42});
  EXPECT_FALSE(vfio.device_write(0x400000, 42));
  const auto refused = [&](const DmaRequest& request) {
    const auto mapped = pci->dma_map(request);
    EXPECT_FALSE(mapped);
    return mapped ? Code::kInternal : mapped.error().code;
  };
  std::byte* const free = arena.data() + (2 << 20);
  EXPECT_EQ(refused({.host = free, .bytes = 4096, .iova = 0x200000}), Code::kInvalidArgument);
  EXPECT_EQ(refused({.host = arena.data(), .bytes = 4096, .iova = 0x800000}),
            Code::kInvalidArgument)
      << "mapped already";
  EXPECT_EQ(refused({.host = free, .bytes = 4096, .iova = 0xfee00000}), Code::kInvalidArgument);
  EXPECT_EQ(refused({.host = free, .bytes = 8192, .iova = 0xfedff000}), Code::kInvalidArgument);
  EXPECT_EQ(refused({.host = free, .bytes = 4096, .iova = 1ull << 48}), Code::kInvalidArgument);
  EXPECT_EQ(refused({.host = free, .bytes = 4096, .iova = ~uint64_t{4095}}),
            Code::kInvalidArgument);
  EXPECT_EQ(refused({.host = free, .bytes = 100, .iova = 0x800000}), Code::kInvalidArgument);
  EXPECT_EQ(refused({.host = free + 8, .bytes = 4096, .iova = 0x800000}), Code::kInvalidArgument);
  EXPECT_EQ(refused({.host = free, .bytes = 4096}), Code::kInvalidArgument);
  EXPECT_EQ(refused({.host = nullptr, .bytes = 4096, .iova = 0x800000}), Code::kInvalidArgument);
  ASSERT_TRUE(
      pci->dma_map({.host = free, .bytes = 4096, .iova = 0xfedff000, .is_read_only = true}));
  uint64_t word = 0;
  EXPECT_TRUE(vfio.device_read(0xfedff000, &word));
  EXPECT_FALSE(vfio.device_write(0xfedff000, 1));
  ASSERT_TRUE(pci->dma_unmap(arena.data()));
  EXPECT_FALSE(vfio.device_write(0x200008, 43));
  EXPECT_EQ(pci->dma_unmap(arena.data()).error().code, Code::kInvalidArgument);
  EXPECT_EQ(pci->dma_unmap(free + 4096).error().code, Code::kInvalidArgument);
}

TEST(VfioPci, MemoryOfItsOwnIsUnmappedWithTheObject) {
  FakeVfio vfio;
  const auto pci = open(vfio);
  EXPECT_EQ(pci->dma_allocate(4096, true, std::nullopt).error().code, Code::kInvalidArgument);
  EXPECT_EQ(pci->dma_allocate(0, true, 0x10000).error().code, Code::kInvalidArgument);
  std::unique_ptr<DmaMemory> memory = *pci->dma_allocate((4 << 20) + 1, true, 0x10000);
  EXPECT_EQ(memory->ranges(), (std::vector<BusRange>{{0x10000, (4 << 20) + 4096}}));
  EXPECT_TRUE(vfio.device_write(0x10008, 9));
  EXPECT_EQ(memory->view().load<uint64_t>(8), 9u);
  EXPECT_EQ(pci->dma_allocate(4096, true, 0x11000).error().code, Code::kInvalidArgument);
  EXPECT_EQ(vfio.mapped(), 1u);
  memory.reset();
  EXPECT_EQ(vfio.mapped(), 0u);
}

TEST(VfioPci, LimitsOfLockedMemoryAndMappingsAreNamed) {
  FakeVfio vfio({.mappings = 2, .locked_limit = 1 << 20});
  const auto pci = open(vfio);
  ASSERT_TRUE(pci->dma_map({.host = arena.data(), .bytes = 1 << 19, .iova = 0x100000}));
  const auto more =
      pci->dma_map({.host = arena.data() + (1 << 20), .bytes = 1 << 20, .iova = 0x800000});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::kOutOfMemory);
  EXPECT_NE(more.error().message.find("1048576 bytes on top of 524288 exceeds the 1048576"),
            std::string::npos)
      << more.error().message;
  ASSERT_TRUE(pci->dma_map({.host = arena.data() + (1 << 20), .bytes = 4096, .iova = 0x800000}));
  const auto third =
      pci->dma_map({.host = arena.data() + (2 << 20), .bytes = 4096, .iova = 0x900000});
  EXPECT_EQ(third.error().code, Code::kOutOfMemory);
  EXPECT_NE(third.error().message.find("all 2 DMA mappings"), std::string::npos);
}

TEST(VfioPci, InterruptsArriveByVector) {
  for (const bool is_msi_x : {true, false}) {
    FakeVfio vfio({.msi = is_msi_x ? 0u : 4u, .msi_x = is_msi_x ? 4u : 0u});
    const auto pci = open(vfio);
    EXPECT_EQ(pci->interrupt_fd(0).error().code, Code::kInvalidArgument);
    EXPECT_EQ(*pci->enable_interrupts(8), 4u);
    EXPECT_EQ(pci->enable_interrupts(1).error().code, Code::kInvalidArgument);
    EXPECT_FALSE(*pci->wait_interrupt(2, 0));
    EXPECT_TRUE(vfio.device_interrupt(2));
    EXPECT_TRUE(vfio.device_interrupt(2));
    EXPECT_FALSE(*pci->wait_interrupt(1, 0));
    pollfd wanted{.fd = *pci->interrupt_fd(2), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&wanted, 1, 0), 1);
    EXPECT_TRUE(*pci->wait_interrupt(2, 1000));
    EXPECT_FALSE(*pci->wait_interrupt(2, 0));
    ASSERT_TRUE(pci->reset(PciReset::kFunction));
    EXPECT_EQ(vfio.resets, 1u);
    EXPECT_FALSE(vfio.device_interrupt(2)) << "interrupts are off after a reset";
    EXPECT_FALSE(pci->wait_interrupt(2, 0));
    EXPECT_EQ(*pci->enable_interrupts(1), 1u);
  }
  FakeVfio none({.msi = 0, .msi_x = 0});
  EXPECT_EQ(open(none)->enable_interrupts(1).error().code, Code::kUnsupported);
  FakeVfio few({.msi_x = 4, .free_vectors = 2});
  EXPECT_EQ(*open(few)->enable_interrupts(4), 1u);
}

TEST(VfioPci, ResetsThatWouldHitOthersAreRefused) {
  FakeVfio vfio;
  EXPECT_TRUE(open(vfio)->reset(PciReset::kBus));
  EXPECT_EQ(vfio.bus_resets, 1u);
  FakeVfio shared({.has_reset = false, .other_group = 15});
  const auto pci = open(shared);
  EXPECT_EQ(pci->reset(PciReset::kFunction).error().code, Code::kUnsupported);
  const Status bus = pci->reset(PciReset::kBus);
  EXPECT_EQ(bus.error().code, Code::kUnsupported);
  EXPECT_NE(bus.error().message.find("0000:03:01.0 of IOMMU group 15"), std::string::npos)
      << bus.error().message;
  EXPECT_EQ(shared.bus_resets, 0u);
}

TEST(VfioPci, ADeviceThatTheKernelWantsBackIsLost) {
  FakeVfio vfio;
  const auto pci = open(vfio);
  ASSERT_TRUE(pci->enable_interrupts(1));
  ASSERT_TRUE(pci->dma_map({.host = arena.data(), .bytes = 4096, .iova = 0x100000}));
  std::thread waiter([&] {
    const auto waited =
        pci->wait_interrupt(0, static_cast<int>(test::patience(std::chrono::seconds(20)).count()));
    EXPECT_EQ(waited.error().code, Code::kDeviceLost);
  });
  vfio.request_device();
  waiter.join();
  EXPECT_EQ(pci->status().error().code, Code::kDeviceLost);
  EXPECT_NE(pci->status().error().message.find("asks for the device back"), std::string::npos);
  EXPECT_EQ(pci->read_config(0, 4).error().code, Code::kDeviceLost);
  EXPECT_EQ(pci->map_bar(5).error().code, Code::kDeviceLost);
  EXPECT_EQ(pci->reset(PciReset::kFunction).error().code, Code::kDeviceLost);
  EXPECT_TRUE(pci->dma_unmap(arena.data())) << "memory is given back all the same";
  FakeVfio other;
  const auto broken = open(other);
  other.report_error();
  EXPECT_NE(broken->status().error().message.find("uncorrectable"), std::string::npos);
}

TEST(VfioPci, WhatIsInTheWayIsNamedWithTheRemedy) {
  const auto message = [](FakeVfio& vfio, Code code) {
    const auto opened = open_vfio_pci(vfio, {.address = kAddress});
    EXPECT_FALSE(opened);
    if (opened) return std::string();
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    return opened.error().message;
  };
  FakeVfio unbound;
  unbound.link("/sys/bus/pci/devices/0000:03:00.0/driver", "/sys/bus/pci/drivers/amdgpu");
  EXPECT_EQ(
      message(unbound, Code::kPermission),
      "0000:03:00.0 is bound to amdgpu; bellmetal pci bind 0000:03:00.0 hands it to vfio-pci");
  FakeVfio sibling;
  sibling.add({.address = "0000:03:00.1", .class_code = 0x040300, .driver = "snd_hda_intel"});
  EXPECT_NE(message(sibling, Code::kPermission).find("0000:03:00.1 is bound to snd_hda_intel"),
            std::string::npos);
  FakeVfio busy;
  busy.add_process(4711, "qemu", "/dev/vfio/14");
  const auto first = open(busy);
  EXPECT_EQ(message(busy, Code::kIo),
            "0000:03:00.0 is busy: /dev/vfio/14 is open by pid 4711 (qemu)");
  FakeVfio without;
  without.remove("/dev/vfio/vfio");
  EXPECT_NE(message(without, Code::kNotFound).find("modprobe vfio-pci"), std::string::npos);
  FakeVfio plain;
  plain.remove("/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/iommu_group");
  EXPECT_NE(message(plain, Code::kUnsupported).find("no IOMMU"), std::string::npos);
  FakeVfio gone;
  EXPECT_EQ(open_vfio_pci(gone, {.address = {0, 4, 0, 0}}).error().code, Code::kNotFound);
  FakeVfio unsafe({.is_no_iommu = true});
  EXPECT_NE(message(unsafe, Code::kUnsupported).find("BM_UNSAFE_NOIOMMU=1"), std::string::npos);
}

TEST(VfioPci, WithoutAnIommuOnlyWhereItIsAllowed) {
  FakeVfio vfio({.is_no_iommu = true});
  const auto pci = open_vfio_pci(vfio, {.address = kAddress, .is_no_iommu_allowed = true});
  ASSERT_TRUE(pci) << pci.error().message;
  EXPECT_FALSE((*pci)->dma_limits().takes_iova);
  EXPECT_EQ((*pci)->dma_map({.host = arena.data(), .bytes = 4096}).error().code,
            Code::kUnsupported);
  EXPECT_EQ((*pci)->dma_allocate(4096, true, 0x1000).error().code, Code::kInvalidArgument);
  EXPECT_TRUE((*pci)->map_bar(5));
}

Status use(System& system) {
  const std::unique_ptr<PciFunction> pci = BM_TRY(open_vfio_pci(system, {.address = kAddress}));
  const Mmio mmio = BM_TRY(pci->map_bar(5));
  mmio.write32(0, 1);
  BM_TRY(pci->map_bar(0));
  BM_TRY(set_bus_master(*pci, true));
  const std::unique_ptr<DmaMemory> memory = BM_TRY(pci->dma_allocate(4 << 20, true, 0x200000));
  BM_TRY(pci->enable_interrupts(4));
  BM_TRY(pci->wait_interrupt(0, 0));
  BM_TRY(pci->reset(PciReset::kFunction));
  BM_TRY(pci->reset(PciReset::kBus));
  return {};
}

TEST(VfioPci, EveryCallOfTheSystemMayFail) {
  uint64_t failures = 0;
  for (const int error : {EIO, ENOMEM, ENOENT, EBUSY})
    for (uint64_t nth = 0;; ++nth) {
      FakeVfio vfio({.is_sparse = true});
      FailingSystem system(vfio, nth, error);
      const Status used = use(system);
      EXPECT_EQ(system.open_files(), 0u) << nth;
      EXPECT_EQ(system.mappings(), 0u) << nth;
      if (!system.has_failed()) {
        EXPECT_TRUE(used) << used.error().message;
        break;
      }
      if (!used) {
        ++failures;
        EXPECT_FALSE(used.error().message.empty());
      }
      EXPECT_TRUE(use(vfio)) << "the next one succeeds, " << nth;
    }
  EXPECT_GT(failures, 200u);
}

}  // namespace
}  // namespace bm
