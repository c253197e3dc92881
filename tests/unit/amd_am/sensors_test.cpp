// What the power management firmware measures, and power limits: on every modelled card, whose
// tables are laid out by a reading of their own.

#include <vector>

#include "tests/unit/amd_am/rig.h"

namespace bm::amd::am {
namespace {

using test::CardRig;

Result<std::unique_ptr<AmGpu>> open_with_limit(CardRig& rig, uint32_t watts) {
  return AmGpu::open(
      std::make_unique<sim::amd::ChipFunction>(rig.card),
      {.firmware = rig.folder.search(), .clock = &rig.clock, .power_limit_w = watts});
}
Result<Sensors> look_at_idle(CardRig& rig) {
  return AmGpu::sensors_of_idle_card(std::make_unique<sim::amd::ChipFunction>(rig.card),
                                     {.firmware = {}, .clock = &rig.clock});
}

class AmSensors : public ::testing::TestWithParam<const char*> {};

TEST_P(AmSensors, AreThoseOfTheCardIdleAndBusy) {
  CardRig rig({.chip = GetParam(), .edge_c = 53, .board_limit_watts = 290});
  auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  ASSERT_TRUE((*gpu)->sensors());  // what the boot did
  const auto idle = (*gpu)->sensors();
  ASSERT_TRUE(idle) << idle.error().message;
  EXPECT_EQ(idle->busy_percent, 0u);
  EXPECT_EQ(idle->memory_busy_percent, 0u) << "below zero in the table";
  EXPECT_EQ(idle->core_mhz, 500u);
  EXPECT_EQ(idle->memory_mhz, 96u);
  EXPECT_EQ(idle->average_core_mhz, 11u) << "after deep sleep, since it is idle";
  EXPECT_EQ(idle->average_memory_mhz, 5u);
  EXPECT_EQ(idle->socket_power_w, 13u);
  EXPECT_EQ(idle->board_power_w, 37u);
  EXPECT_EQ(idle->power_limit_w, 290u);
  EXPECT_EQ(idle->edge_c, 53u);
  EXPECT_EQ(idle->hotspot_c, 62u);
  EXPECT_EQ(idle->memory_c, 69u);
  EXPECT_EQ(idle->fan_percent, 26u);
  EXPECT_EQ(idle->fan_rpm, 858u);
  EXPECT_TRUE(idle->throttlers->empty());
  EXPECT_EQ(idle->throttled_by(), "");

  rig.card->engines().packets += 2;
  const auto busy = (*gpu)->sensors();
  ASSERT_TRUE(busy) << busy.error().message;
  EXPECT_EQ(busy->busy_percent, 40u);
  EXPECT_EQ(busy->memory_busy_percent, 20u);
  EXPECT_EQ(busy->core_mhz, 2480u);
  EXPECT_EQ(busy->memory_mhz, 1249u);
  EXPECT_EQ(busy->average_core_mhz, 2450u);
  EXPECT_EQ(busy->average_memory_mhz, 1240u);
  EXPECT_EQ(busy->socket_power_w, 13u + 40 * 407 / 100);
  EXPECT_EQ(busy->counter, idle->counter + 1);
  EXPECT_EQ(rig.violations(), "");
}

TEST_P(AmSensors, SayWhatThrottles) {
  CardRig rig({.chip = GetParam(), .edge_c = 95});
  auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  ASSERT_TRUE((*gpu)->sensors());
  const auto hot = (*gpu)->sensors();
  ASSERT_TRUE(hot);
  ASSERT_EQ(hot->throttlers->size(), 1u);
  EXPECT_EQ((*hot->throttlers)[0].name, "TEMP_HOTSPOT");
  EXPECT_EQ((*hot->throttlers)[0].percent, 37u);
  rig.card->engines().packets += 5;
  const auto both = (*gpu)->sensors();
  ASSERT_TRUE(both);
  ASSERT_EQ(both->throttlers->size(), 2u);
  EXPECT_EQ((*both->throttlers)[1].name, "PPT0");
  EXPECT_EQ(both->throttled_by(), "power, temperature");
  EXPECT_EQ(both->socket_power_w, both->power_limit_w);
}

TEST_P(AmSensors, APowerLimitHoldsUntilTheCardIsClosed) {
  CardRig rig({.chip = GetParam()});
  {
    auto gpu = open_with_limit(rig, 120);
    ASSERT_TRUE(gpu) << gpu.error().message;
    EXPECT_EQ(rig.card->smu().power_limit_watts, 120u);
    rig.card->engines().packets += 5;
    const auto seen = (*gpu)->sensors();
    ASSERT_TRUE(seen);
    EXPECT_EQ(seen->socket_power_w, 120u);
    EXPECT_EQ(seen->power_limit_w, 120u);
    EXPECT_EQ(seen->throttled_by(), "power");
  }
  EXPECT_EQ(rig.card->smu().power_limit_watts, 300u);
  {
    auto warm = open_with_limit(rig, 90);
    ASSERT_TRUE(warm) << warm.error().message;
    EXPECT_TRUE((*warm)->was_warm());
    EXPECT_EQ(rig.card->smu().power_limit_watts, 90u);
  }
  EXPECT_EQ(rig.card->smu().power_limit_watts, 300u);
  EXPECT_EQ(rig.violations(), "");
}

INSTANTIATE_TEST_SUITE_P(Chips, AmSensors,
                         ::testing::Values("gfx1100", "gfx1101", "gfx1102", "gfx1201"),
                         [](const auto& chip) { return std::string(chip.param); });

TEST(AmPowerLimit, IsNeverAboveTheBoards) {
  CardRig rig({.chip = "gfx1100", .board_limit_watts = 250});
  const auto gpu = open_with_limit(rig, 251);
  ASSERT_FALSE(gpu);
  EXPECT_EQ(gpu.error().code, Code::kInvalidArgument);
  EXPECT_NE(gpu.error().message.find("power limit of 251 W: this board takes up to 250 W"),
            std::string::npos)
      << gpu.error().message;
  EXPECT_EQ(rig.violations(), "") << "the card was not even asked";
  const auto next = open_with_limit(rig, 250);
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_TRUE((*next)->was_warm()) << "nothing was left behind";
}

TEST(AmPowerLimit, OneThatTheFirmwareRefusesIsAnErrorWithItsAnswer) {
  CardRig rig({.chip = "gfx1201", .smu_answer = {{0x32, 0xff}}});
  const auto gpu = open_with_limit(rig, 200);
  ASSERT_FALSE(gpu);
  EXPECT_EQ(gpu.error().code, Code::kIo);
  EXPECT_NE(gpu.error().message.find("failed (0xff)"), std::string::npos) << gpu.error().message;
}

TEST(AmPowerLimit, ACardWhoseLimitCannotBeGivenBackIsResetByTheNextOpen) {
  CardRig rig({.chip = "gfx1201"});
  {
    auto gpu = open_with_limit(rig, 100);
    ASSERT_TRUE(gpu) << gpu.error().message;
    rig.card->smu().planted_answer[0x32] = 0xfc;
  }
  rig.card->smu().planted_answer.clear();
  const auto next = rig.open();
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_FALSE((*next)->was_warm());
  EXPECT_EQ(rig.card->smu().power_limit_watts, 300u);
}

TEST(AmSensorsOfIdleCards, TakeNothingButTheMailbox) {
  // All of it is visible: nothing goes through MM_INDEX.
  CardRig rig({.chip = "gfx1102", .vram_bytes = 256 << 20, .bar0_bytes = 256 << 20, .edge_c = 44});
  const auto cold = look_at_idle(rig);
  ASSERT_FALSE(cold);
  EXPECT_EQ(cold.error().code, Code::kUnsupported) << cold.error().message;
  EXPECT_EQ(rig.card->counts().register_writes, 0u);
  {
    const auto gpu = rig.open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    const auto in_use = look_at_idle(rig);
    ASSERT_FALSE(in_use) << "somebody has it";
    EXPECT_EQ(in_use.error().code, Code::kUnsupported);
  }
  const uint64_t before = rig.card->counts().register_writes,
                 bytes = rig.card->counts().memory_written_bytes;
  const auto seen = look_at_idle(rig);
  ASSERT_TRUE(seen) << seen.error().message;
  EXPECT_EQ(seen->edge_c, 44u);
  EXPECT_EQ(seen->power_limit_w, 300u);
  // Version, table and limit: answer, argument and message of each.
  EXPECT_EQ(rig.card->counts().register_writes - before, 9u);
  EXPECT_EQ(rig.card->counts().memory_written_bytes, bytes);
  const auto gpu = rig.open();
  ASSERT_TRUE(gpu);
  EXPECT_TRUE((*gpu)->was_warm());
  EXPECT_EQ(rig.violations(), "");
}

TEST(AmSensorsFaults, ASilentFirmwareIsATimeoutAndTheCardGoesOn) {
  CardRig rig({.chip = "gfx1100"});
  auto gpu = rig.open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  rig.card->smu().planted_answer[0x12] = 0;
  const uint64_t begun = rig.clock.now_us();
  const auto seen = (*gpu)->sensors();
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.error().code, Code::kTimeout) << seen.error().message;
  EXPECT_NE(seen.error().message.find("SMU message 0x12 (argument 0x5): no answer"),
            std::string::npos)
      << seen.error().message;
  EXPECT_LT(rig.clock.now_us() - begun, 5'000'000u);
  rig.card->smu().planted_answer.clear();
  EXPECT_TRUE((*gpu)->sensors());
}

TEST(AmSensorsFaults, ACardThatWasResetHasNone) {
  CardRig rig({.chip = "gfx1100"});
  auto gpu = rig.open();
  ASSERT_TRUE(gpu);
  ASSERT_TRUE((*gpu)->recover(RecoveryStage::kCard));
  const auto seen = (*gpu)->sensors();
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.error().code, Code::kDeviceLost);
}

TEST(AmMetrics, AreDecodedOnlyWhereTheInterfaceIsKnownAndWhole) {
  EXPECT_EQ(find_metrics_row(13, 0, 12), nullptr);
  EXPECT_EQ(find_metrics_row(11, 0, 0), nullptr);
  const MetricsRow* const row = find_metrics_row(13, 0, 10);
  ASSERT_NE(row, nullptr);
  std::vector<std::byte> table(512, std::byte{0});
  EXPECT_TRUE(decode_metrics(*row, table, 0));
  EXPECT_EQ(decode_metrics(*row, std::span(table).first(200), 0).error().code, Code::kCorrupt);
  table.assign(512, std::byte{0xff});
  EXPECT_EQ(decode_metrics(*row, table, 0).error().code, Code::kCorrupt);
}

TEST(AmMetrics, EnergyCountsUntilTheFirmwareThatLeavesItOut) {
  const std::vector<std::byte> table(512, std::byte{0});
  struct Case {
    uint8_t major, revision;
    uint32_t last;
  };
  // smu_v13_0_0_get_gpu_metrics(), smu_v13_0_7_get_gpu_metrics().
  for (const auto& [major, revision, last] :
       {Case{13, 0, 0x004e1e00}, Case{13, 10, 0x00500800}, Case{13, 7, 0x00521400}}) {
    const MetricsRow& row = *find_metrics_row(major, 0, revision);
    EXPECT_TRUE(decode_metrics(row, table, last)->energy_counter);
    EXPECT_FALSE(decode_metrics(row, table, last + 1)->energy_counter);
  }
  EXPECT_FALSE(decode_metrics(*find_metrics_row(14, 0, 3), table, 1)->energy_counter);
}

}  // namespace
}  // namespace bm::amd::am
