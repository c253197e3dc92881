// The boot written by hand comes through on every card, and leaves nothing behind.

#include <memory>

#include <gtest/gtest.h>

#include "tests/sim/nv/chip/function.h"
#include "tests/unit/sim_nv_chip/hand_boot.h"

namespace bm::sim::nv::card {
namespace {

class Boots : public ::testing::TestWithParam<const char*> {};

TEST_P(Boots, ToAReleaseAndBack) {
  Card card(noise_card(GetParam()));
  HandBoot driver(card);
  ASSERT_TRUE(driver.boot()) << testing::PrintToString(card.violations());
  EXPECT_TRUE(card.is_gsp_running());
  ASSERT_TRUE(driver.make_channel()) << testing::PrintToString(card.violations());
  EXPECT_TRUE(driver.release()) << testing::PrintToString(card.violations());
  EXPECT_TRUE(driver.release());
  EXPECT_TRUE(driver.unload());
  EXPECT_FALSE(card.is_gsp_running());
  EXPECT_EQ(card.violations(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Cards, Boots,
                         ::testing::Values("tu102", "ga100", "ga102", "ad102", "gh100", "gb100",
                                           "gb202"),
                         [](const auto& one) { return std::string(one.param); });

TEST(InProcess, ItIsAPciFunction) {
  auto card = std::make_shared<Card>(noise_card("gb202"));
  NvFunction function(card);
  EXPECT_EQ(function.identity().vendor, 0x10de);
  EXPECT_EQ(function.identity().device, 0x2b85);
  EXPECT_EQ(function.bars()[1].size, card->vram().size());
  Mmio registers = *function.map_bar(0);
  EXPECT_EQ(registers.read32(0xa00), card->row().boot42);
  HostView memory = *function.map_bar_memory(1, true);
  EXPECT_EQ(memory.size(), card->vram().size());
  ASSERT_TRUE(function.reset(PciReset::kFunction));
  EXPECT_EQ(card->violations(), std::vector<std::string>());
}

TEST(BootsAgain, AfterAFunctionReset) {
  Card card(noise_card("ga102"));
  {
    HandBoot driver(card);
    ASSERT_TRUE(driver.boot());
  }
  // Without an orderly end WPR2 is up.
  EXPECT_NE(card.read(0, 0x1fa828, 4), 0u);
  card.function_reset();
  EXPECT_EQ(card.read(0, 0x1fa828, 4), 0u);
  HandBoot driver(card);
  EXPECT_TRUE(driver.boot()) << testing::PrintToString(card.violations());
}

TEST(BootsAgain, WithoutOneTheRegionIsUpAndFwsecSaysSo) {
  Card card(noise_card("ga102"));
  {
    HandBoot driver(card);
    ASSERT_TRUE(driver.boot());
  }
  HandBoot driver(card);
  EXPECT_FALSE(driver.boot());
  ASSERT_FALSE(card.violations().empty());
}

TEST(Scrubber, RunsWhereMemoryWaitsForIt) {
  CardOptions options = noise_card("ad102");
  options.needs_scrub = true;
  Card card(options);
  HandBoot driver(card);
  EXPECT_TRUE(driver.boot()) << testing::PrintToString(card.violations());
  EXPECT_EQ(card.violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace bm::sim::nv::card
