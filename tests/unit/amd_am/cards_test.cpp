// Which cards DEV=AMD:PCI means, on machines that are made up.

#include <gtest/gtest.h>

#include "drivers/amd/cards.h"
#include "drivers/amd/device.h"
#include "runtime/base/env.h"
#include "tests/unit/transport/fake_machine.h"

namespace bm::amd {
namespace {

using test::FakeFunction;
using test::FakeMachine;

FakeFunction card(std::string address, std::string driver, std::string group) {
  FakeFunction function;
  function.address = std::move(address);
  function.vendor = 0x1002;
  function.device = 0x7550;
  function.driver = std::move(driver);
  function.group = std::move(group);
  return function;
}

TEST(AmdCards, ThoseThatVfioHasAreFreeInTheOrderOfTheirAddresses) {
  FakeMachine machine;
  machine.add(card("0000:43:00.0", "vfio-pci", "20"));
  machine.add(card("0000:03:00.0", "vfio-pci", "14"));
  machine.add(card("0000:13:00.0", "amdgpu", "15"));
  FakeFunction foreign = card("0000:23:00.0", "vfio-pci", "16");
  foreign.vendor = 0x10de;
  machine.add(foreign);
  FakeFunction sound = card("0000:03:00.1", "vfio-pci", "14");
  sound.class_code = 0x040300;
  machine.add(sound);
  const auto cards = find_cards(machine, kCardVendor, "");
  ASSERT_TRUE(cards) << cards.error().message;
  ASSERT_EQ(cards->size(), 2u);
  EXPECT_EQ(to_string((*cards)[0]), "vfio:0000:03:00.0");
  EXPECT_EQ(to_string((*cards)[1]), "vfio:0000:43:00.0");
  EXPECT_TRUE(machine.writes.empty());
}

TEST(AmdCards, WhatIsInTheWayIsSaidOfEachCard) {
  FakeMachine machine;
  machine.add(card("0000:03:00.0", "amdgpu", "14"));
  machine.add(card("0000:13:00.0", "", "15"));
  machine.add(card("0000:23:00.0", "amdgpu", ""));
  const auto cards = find_cards(machine, kCardVendor, "");
  ASSERT_FALSE(cards);
  EXPECT_EQ(cards.error().code, Code::kPermission);
  const std::string& text = cards.error().message;
  EXPECT_NE(
      text.find("0000:03:00.0 (1002:7550) is bound to amdgpu; bellmetal pci bind 0000:03:00.0"),
      text.npos)
      << text;
  EXPECT_NE(text.find("0000:13:00.0 (1002:7550) has no driver; bellmetal pci bind 0000:13:00.0"),
            text.npos)
      << text;
  EXPECT_NE(text.find("is behind no IOMMU: switch it on"), text.npos) << text;
  EXPECT_NE(text.find("BM_PCI=sysfs:0000:23:00.0"), text.npos) << text;
  EXPECT_TRUE(machine.writes.empty());
}

TEST(AmdCards, AMachineWithoutOneSaysHowOneElsewhereIsReached) {
  FakeMachine machine;
  machine.add({});
  const auto cards = find_cards(machine, kCardVendor, "");
  ASSERT_FALSE(cards);
  EXPECT_EQ(cards.error().code, Code::kNotFound);
  EXPECT_NE(cards.error().message.find("BM_PCI=remote:HOST:PORT"), std::string::npos);
}

TEST(AmdCards, NamedOnesAreTakenAsTheyAreNamed) {
  FakeMachine machine;
  machine.add(card("0000:03:00.0", "vfio-pci", "14"));
  const auto cards =
      find_cards(machine, kCardVendor, "remote:/run/card.sock#1,sysfs:0000:13:00.0,vfio-user:/a");
  ASSERT_TRUE(cards) << cards.error().message;
  ASSERT_EQ(cards->size(), 3u);
  EXPECT_EQ(to_string((*cards)[0]), "remote:/run/card.sock#1");
  EXPECT_EQ((*cards)[0].vendor, 0x1002);
  EXPECT_EQ(to_string((*cards)[1]), "sysfs:0000:13:00.0");
  EXPECT_EQ(to_string((*cards)[2]), "vfio-user:/a");
  for (const char* wrong : {"nowhere", "0000:03:00.0,", ",0000:03:00.0", "remote:"}) {
    const auto none = find_cards(machine, kCardVendor, wrong);
    ASSERT_FALSE(none) << wrong;
    EXPECT_EQ(none.error().code, Code::kInvalidArgument);
    EXPECT_EQ(none.error().message.find("BM_PCI: "), 0u) << none.error().message;
  }
}

TEST(AmdCards, InterfacesAreKnownByName) {
  const ScopedSetting none("BM_PCI", "remote:/nowhere/card.sock");
  EXPECT_EQ(count_devices("PCI").value_or(0), 1u);
  const auto usb = open_device("USB", 0, "");
  ASSERT_FALSE(usb);
  // A machine without such a bridge, or without libusb.
  EXPECT_TRUE(usb.error().message.find("bridge") != std::string::npos ||
              usb.error().message.find("libusb") != std::string::npos)
      << usb.error().message;
  EXPECT_FALSE(count_devices("RM"));
  const auto lost = open_device("PCI", 0, "");
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().message.find("remote:/nowhere/card.sock"), std::string::npos)
      << lost.error().message;
  EXPECT_FALSE(open_device("PCI", 1, ""));
}

}  // namespace
}  // namespace bm::amd
