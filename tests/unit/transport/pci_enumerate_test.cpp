#include "drivers/transport/pci_enumerate.h"

#include <gtest/gtest.h>

#include "tests/unit/transport/failing_system.h"
#include "tests/unit/transport/fake_machine.h"

namespace bm {
namespace {

using test::FailingSystem;
using test::FakeMachine;

const char* const kFolder = "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0";

bool is_any(const PciIdentity&) { return true; }

TEST(PciEnumerate, AFunctionIsDescribedAsTheKernelDoes) {
  FakeMachine machine;
  machine.add({});
  machine.add({.address = "0000:03:00.1",
               .device = 0xab28,
               .class_code = 0x040300,
               .driver = "snd_hda_intel",
               .bars = {16 << 10}});
  machine.put(std::string(kFolder) + "/drm/card1/card1-DP-1/enabled", "disabled\n");
  machine.put(std::string(kFolder) + "/drm/card1/card1-DP-2/enabled", "enabled\n");
  machine.put(std::string(kFolder) + "/drm/renderD129/dev", "226:129\n");
  machine.put(std::string(kFolder) + "/graphics/fb0/dev", "29:0\n");
  machine.put(std::string(kFolder) + "/numa_node", "1\n");
  const PciInfo info = *describe_pci(machine, {0, 3, 0, 0});
  EXPECT_EQ(info.identity.vendor, 0x1234);
  EXPECT_EQ(info.identity.device, 0x5678);
  EXPECT_EQ(info.identity.class_code, 0x030000u);
  EXPECT_EQ(info.identity.revision, 0xc8);
  EXPECT_EQ(info.identity.subsystem_device, 0x1100);
  EXPECT_EQ(info.bars[0].size, 256u << 10);
  EXPECT_TRUE(info.bars[0].is_memory && info.bars[0].is_64_bit && info.bars[0].is_prefetchable);
  EXPECT_EQ(info.bars[1].size, 0u);
  EXPECT_EQ(info.bars[5].size, 4u << 10);
  EXPECT_FALSE(info.bars[5].is_64_bit || info.bars[5].is_prefetchable);
  EXPECT_EQ(info.driver, "fakegpu");
  EXPECT_EQ(info.driver_override, "");
  EXPECT_EQ(info.iommu_group, 14u);
  EXPECT_EQ(info.iommu_type, "DMA-FQ");
  EXPECT_EQ(info.group, (std::vector<PciAddress>{{0, 3, 0, 0}, {0, 3, 0, 1}}));
  EXPECT_EQ(info.siblings, (std::vector<PciAddress>{{0, 3, 0, 1}}));
  EXPECT_EQ(info.numa_node, 1u);
  EXPECT_EQ(info.link_speed, "16.0 GT/s PCIe");
  EXPECT_EQ(info.max_link_width, 16u);
  EXPECT_FALSE(info.is_boot_display);
  EXPECT_EQ(info.displays, (std::vector<std::string>{"card1-DP-2", "fb0"}));
  EXPECT_EQ(info.nodes,
            (std::vector<std::string>{"/dev/dri/card1", "/dev/dri/renderD129", "/dev/fb0",
                                      "/dev/vfio/14", "/dev/vfio/noiommu-14"}));
  EXPECT_EQ(describe_pci(machine, {0, 4, 0, 0}).error().code, Code::kNotFound);
}

TEST(PciEnumerate, OnlyThoseThatAreWanted) {
  FakeMachine machine;
  machine.add({.address = "0000:65:00.0", .group = ""});
  machine.add({});
  machine.add({.address = "0000:00:1f.3", .class_code = 0x040300});
  const auto found =
      *enumerate_pci(machine, [](const PciIdentity& id) { return id.class_code >> 16 == 3; });
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(to_string(found[0].identity.address), "0000:03:00.0");
  EXPECT_EQ(to_string(found[1].identity.address), "0000:65:00.0");
  EXPECT_FALSE(found[1].iommu_group);
  EXPECT_EQ(list_pci(machine)->size(), 3u);
}

TEST(PciEnumerate, NamesComeFromTheMachinesList) {
  FakeMachine machine;
  machine.add({});
  machine.put("/usr/share/misc/pci.ids",
              "# comment\n1233  Before\n\t5678  Wrong\n1234  Vendor Inc.\n\t5677  Other\n"
              "\t5678  The Card [Model]\n\t\t1af4 1100  Board\n1235  After\n\t9999  Not ours\n");
  const PciInfo info = *describe_pci(machine, {0, 3, 0, 0});
  EXPECT_EQ(info.vendor_name, "Vendor Inc.");
  EXPECT_EQ(info.device_name, "The Card [Model]");
  machine.put("/usr/share/misc/pci.ids", "1234  Vendor Inc.\n1235  After\n\t5678  Not ours\n");
  EXPECT_EQ(describe_pci(machine, {0, 3, 0, 0})->device_name, "");
}

TEST(PciEnumerate, HoldersAreFoundByNodeAndByFile) {
  FakeMachine machine;
  machine.add({});
  machine.put(std::string(kFolder) + "/drm/card0/dev", "226:0\n");
  machine.add_process(100, "Xorg", "/dev/dri/card0");
  machine.add_process(200, "other", "/dev/dri/card1");
  machine.add_process(300, "python3", std::string(kFolder) + "/resource5");
  machine.put("/proc/1/comm", "init\n");  // no fd folder: another user's
  bool is_complete = true;
  const auto holders =
      find_pci_holders(machine, *describe_pci(machine, {0, 3, 0, 0}), &is_complete);
  ASSERT_EQ(holders.size(), 2u);
  EXPECT_EQ(holders[0].pid, 100);
  EXPECT_EQ(holders[0].command, "Xorg");
  EXPECT_EQ(holders[0].path, "/dev/dri/card0");
  EXPECT_EQ(holders[1].pid, 300);
}

TEST(PciEnumerate, FilesThatMakeNoSenseAreErrors) {
  const auto with = [](const char* name, const char* text) {
    FakeMachine machine;
    machine.add({});
    machine.put(std::string(kFolder) + "/" + name, text);
    return describe_pci(machine, {0, 3, 0, 0}).error().code;
  };
  EXPECT_EQ(with("vendor", "0x12345\n"), Code::kCorrupt);
  EXPECT_EQ(with("vendor", "what\n"), Code::kCorrupt);
  EXPECT_EQ(with("class", ""), Code::kCorrupt);
  EXPECT_EQ(with("resource", "0x10 0x20\n"), Code::kCorrupt);
  EXPECT_EQ(with("resource", ""), Code::kCorrupt);
  EXPECT_EQ(with("resource", "0x20 0x10 0x200\n"), Code::kCorrupt);
}

TEST(PciEnumerate, EveryCallMayFail) {
  FakeMachine machine;
  machine.add({});
  for (uint64_t nth = 0;; ++nth) {
    FailingSystem system(machine, nth, EACCES);
    const auto found = enumerate_pci(system, is_any);
    if (found && !found->empty()) (void)find_pci_holders(system, (*found)[0]);
    EXPECT_EQ(system.open_files(), 0u);
    if (!system.has_failed()) break;
  }
  FailingSystem none(machine, 0, ENOENT);
  EXPECT_EQ(enumerate_pci(none, is_any).error().code, Code::kNotFound);
}

TEST(PciEnumerate, ThisMachineIsListedOrSaysWhyNot) {
  const auto found = enumerate_pci(real_system(), is_any);
  if (!found) {
    EXPECT_FALSE(found.error().message.empty());
    return;
  }
  EXPECT_EQ(found->size(), list_pci(real_system())->size());
}

}  // namespace
}  // namespace bm
