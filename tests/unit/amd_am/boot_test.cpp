// Boots of modelled cards: each generation, each state that a card can be found in, each stage that
// can fail.

#include <gtest/gtest.h>

#include "tests/unit/amd_am/rig.h"

namespace bm::amd::am {
namespace {

using sim::amd::ChipOptions;
using test::CardRig;

class AmBoot : public ::testing::TestWithParam<const char*> {};

TEST_P(AmBoot, FromPowerOnThenWarm) {
  CardRig rig({.chip = GetParam()});
  {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
    EXPECT_FALSE((*gpu)->was_warm());
    EXPECT_EQ((*gpu)->facts().chip->name, GetParam());
    EXPECT_TRUE((*gpu)->facts().has_indirect_copies);
  }
  {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
    EXPECT_TRUE((*gpu)->was_warm());
    for (const Stage& stage : (*gpu)->stages().stages()) EXPECT_NE(stage.name, "PSP ring");
  }
  EXPECT_EQ(rig.violations(), "");
}

TEST_P(AmBoot, AfterThePreviousProcessCrashed) {
  CardRig rig({.chip = GetParam()});
  {
    auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    // It never comes to its end: what the card is told then stays away.
    rig.card->unplug();
  }
  sim::amd::ChipFunction* const none = nullptr;
  static_cast<void>(none);
}

TEST_P(AmBoot, AfterTheKernelDriverWasHere) {
  CardRig rig({.chip = GetParam(), .start = ChipOptions::Start::kDriverWasHere});
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message << "\n" << rig.violations();
  EXPECT_FALSE((*gpu)->was_warm());
  bool was_reset = false;
  for (const Stage& stage : (*gpu)->stages().stages()) was_reset |= stage.name == "reset";
  EXPECT_TRUE(was_reset);
  EXPECT_EQ(rig.violations(), "");
}

INSTANTIATE_TEST_SUITE_P(Chips, AmBoot,
                         ::testing::Values("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"),
                         [](const auto& chip) { return std::string(chip.param); });

}  // namespace
}  // namespace bm::amd::am
