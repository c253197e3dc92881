// Which cards DEV=NV:PCI means.

#include "drivers/nv/cards.h"
#include "tests/unit/transport/fake_machine.h"

namespace bm::nv {
namespace {

test::FakeFunction nvidia_card(std::string address, std::string driver, uint32_t class_code) {
  test::FakeFunction function;
  function.address = std::move(address);
  function.vendor = 0x10de;
  function.device = 0x2204;
  function.class_code = class_code;
  function.driver = std::move(driver);
  function.group = "9";
  return function;
}

TEST(NvCards, DisplayControllersWithAndWithoutAScreenThatVfioHas) {
  test::FakeMachine machine;
  machine.add(nvidia_card("0000:81:00.0", "vfio-pci", 0x030200));
  machine.add(nvidia_card("0000:01:00.0", "vfio-pci", 0x030000));
  machine.add(nvidia_card("0000:01:00.1", "vfio-pci", 0x040300));  // its sound
  machine.add(nvidia_card("0000:02:00.0", "vfio-pci", 0x068000));  // an NVSwitch
  const auto cards = find_cards(machine, kCardVendor, "");
  ASSERT_TRUE(cards) << cards.error().message;
  ASSERT_EQ(cards->size(), 2u);
  EXPECT_EQ(to_string((*cards)[0]), "vfio:0000:01:00.0");
  EXPECT_EQ(to_string((*cards)[1]), "vfio:0000:81:00.0");
}

TEST(NvCards, WhatIsInTheWayIsSaidOfEachCard) {
  test::FakeMachine machine;
  machine.add(nvidia_card("0000:01:00.0", "nouveau", 0x030000));
  test::FakeFunction unguarded = nvidia_card("0000:81:00.0", "", 0x030200);
  unguarded.group.clear();
  machine.add(unguarded);
  const auto cards = find_cards(machine, kCardVendor, "");
  ASSERT_FALSE(cards);
  EXPECT_EQ(cards.error().code, Code::kPermission);
  const std::string& text = cards.error().message;
  EXPECT_EQ(text.find("no NVIDIA card is free: "), 0u) << text;
  EXPECT_NE(text.find("is bound to nouveau; bellmetal pci bind 0000:01:00.0"), text.npos) << text;
  EXPECT_NE(text.find("BM_PCI=sysfs:0000:81:00.0"), text.npos) << text;
}

// A server of a whole machine has the card's sound as well, and counts what it is asked for.
TEST(NvCards, BehindASocketOnlyDisplayControllersCount) {
  test::FakeMachine machine;
  const auto cards = find_cards(machine, kCardVendor, "remote:/run/card.sock#1");
  ASSERT_TRUE(cards) << cards.error().message;
  ASSERT_EQ(cards->size(), 1u);
  EXPECT_EQ((*cards)[0].vendor, 0x10de);
  EXPECT_EQ((*cards)[0].base_class, 0x03);
}

}  // namespace
}  // namespace bm::nv
