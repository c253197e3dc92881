#include "drivers/transport/pci_sysfs.h"

#include <gtest/gtest.h>

#include "drivers/transport/pci_config.h"
#include "tests/unit/transport/failing_system.h"
#include "tests/unit/transport/fake_machine.h"

namespace bm {
namespace {

using test::FailingSystem;
using test::FakeMachine;

constexpr PciAddress kAddress{0, 3, 0, 0};
const std::string kReal = "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0";

std::unique_ptr<PciFunction> open(System& system) {
  Result<std::unique_ptr<PciFunction>> opened = open_sysfs_pci(system, kAddress);
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

TEST(SysfsPci, AFunctionIsOpenedEnabledAndGivenBack) {
  FakeMachine machine;
  machine.add({.driver = "", .group = ""});
  std::unique_ptr<PciFunction> pci = open(machine);
  EXPECT_EQ(machine.text(kReal + "/enable"), "1");
  EXPECT_EQ(pci->identity().device, 0x5678);
  EXPECT_EQ(pci->bars()[0].size, 256u << 10);
  const Mmio mmio = *pci->map_bar(5);
  mmio.write32(4, 9);
  uint32_t word = 0;
  EXPECT_EQ(::pread(machine.bar_file("0000:03:00.0", 5), &word, 4, 4), 4);
  EXPECT_EQ(word, 9u);
  EXPECT_TRUE(pci->map_bar_memory(0, true));
  ASSERT_TRUE(set_bus_master(*pci, true));
  EXPECT_EQ(*pci->read_config(4, 2), 4u);
  EXPECT_EQ(*pci->read_config(0x100, 4), 0u);
  EXPECT_FALSE(pci->dma_limits().takes_iova);
  EXPECT_EQ(pci->enable_interrupts(1).error().code, Code::kUnsupported);
  EXPECT_EQ(pci->dma_allocate(4096, true, 0x1000).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(pci->reset(PciReset::kFunction));
  EXPECT_EQ(machine.text(kReal + "/reset"), "1");
  EXPECT_EQ(pci->reset(PciReset::kBus).error().code, Code::kUnsupported);
  pci.reset();
  EXPECT_EQ(machine.text(kReal + "/enable"), "0");
  std::string config;
  machine.read_file(kReal + "/config", &config);
  EXPECT_EQ(config[4], 0) << "bus mastering is off";
}

TEST(SysfsPci, RefusedWherePhysicalAddressesMeanNothing) {
  const auto code = [](const test::FakeFunction& function) {
    FakeMachine machine;
    machine.add(function);
    const auto opened = open_sysfs_pci(machine, kAddress);
    EXPECT_EQ(machine.text(kReal + "/enable"), opened ? "1" : "0");
    return opened ? std::string("fine") : opened.error().message;
  };
  EXPECT_NE(code({.driver = ""}).find("use vfio:0000:03:00.0"), std::string::npos);
  EXPECT_NE(code({.driver = "", .iommu_type = ""}).find("use vfio:"), std::string::npos);
  EXPECT_EQ(code({.driver = "", .iommu_type = "identity"}), "fine");
  EXPECT_NE(code({.group = ""}).find("is bound to fakegpu"), std::string::npos);
}

TEST(SysfsPci, BarsAreResizedThroughTheKernel) {
  FakeMachine machine;
  machine.add({.driver = "", .group = "", .bars = {1 << 20, 0, 8 << 10}});
  machine.put(kReal + "/resource0_resize", "000000000000000d\n");  // 1, 4 and 8 MiB
  machine.on_write = [&machine](const std::string& path, const std::string& text) {
    if (!path.ends_with("resource0_resize")) return 0;
    if (text == "3") return -ENOSPC;
    machine.put(kReal + "/resource", "0x0000003800000000 0x00000038003fffff 0x000000000014220c\n" +
                                         machine.text(kReal + "/resource").substr(57) + "\n");
    return static_cast<int>(text.size());
  };
  const auto pci = open(machine);
  EXPECT_EQ(pci->resize_bar(0, 2 << 20).error().code, Code::kInvalidArgument);
  EXPECT_EQ(pci->resize_bar(0, 3 << 20).error().code, Code::kInvalidArgument);
  EXPECT_EQ(pci->resize_bar(2, 1 << 20).error().code, Code::kUnsupported);
  EXPECT_EQ(pci->resize_bar(0, 8 << 20).error().code, Code::kOutOfMemory);
  ASSERT_TRUE(pci->resize_bar(0, 4 << 20));
  EXPECT_EQ(pci->bars()[0].size, 4u << 20);
  ASSERT_TRUE(pci->map_bar_memory(0, false));
  EXPECT_EQ(pci->resize_bar(0, 1 << 20).error().code, Code::kInvalidArgument);
}

TEST(SysfsPci, ACardThatIsPulledOutIsLost) {
  FakeMachine machine;
  machine.add({.driver = "", .group = ""});
  const auto pci = open(machine);
  machine.put(kReal + "/config", std::string(4096, '\xff'));
  EXPECT_EQ(pci->status().error().code, Code::kDeviceLost);
  EXPECT_EQ(pci->map_bar(5).error().code, Code::kDeviceLost);
  EXPECT_EQ(pci->read_config(0, 4).error().code, Code::kDeviceLost);
  EXPECT_EQ(pci->reset(PciReset::kFunction).error().code, Code::kDeviceLost);
}

TEST(SysfsPci, EveryCallOfTheSystemMayFail) {
  uint64_t failures = 0;
  for (uint64_t nth = 0;; ++nth) {
    FakeMachine machine;
    machine.add({.driver = "", .group = ""});
    FailingSystem system(machine, nth);
    const auto use = [&]() -> Status {
      const auto pci = BM_TRY(open_sysfs_pci(system, kAddress));
      BM_TRY(pci->map_bar(5));
      BM_TRY(pci->map_bar_memory(0, true));
      return set_bus_master(*pci, true);
    };
    const Status used = use();
    EXPECT_EQ(system.open_files(), 0u);
    EXPECT_EQ(system.mappings(), 0u);
    if (!system.has_failed()) break;
    if (!used) ++failures;
  }
  EXPECT_GT(failures, 10u);
}

}  // namespace
}  // namespace bm
