// Boots of the modelled card, every generation: cold, again, after a process that was killed; and
// with accesses that go wrong.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/nv_gsp/card_rig.h"
#include "tests/unit/nv_gsp/faulty_function.h"

namespace bm::nv::gsp::test {
namespace {

class GspBoot : public testing::TestWithParam<const char*> {};

std::vector<std::string> names(const StageLog& log) {
  std::vector<std::string> list;
  for (const Stage& stage : log.stages()) list.push_back(stage.name);
  return list;
}

TEST_P(GspBoot, ColdStageByStageToAResourceManagerThatAnswers) {
  CardRig rig(GetParam());
  const auto card = rig.open();
  ASSERT_TRUE(card) << card.error().message << "\n" << rig.violations();
  EXPECT_EQ((*card)->facts().chip, GetParam());
  EXPECT_EQ((*card)->video_bytes(), uint64_t{4} << 30);
  EXPECT_FALSE((*card)->was_reset());
  EXPECT_EQ(
      names((*card)->stages()),
      (std::vector<std::string>{"P1 take", "P2 bus", "P3 identify", "P4 stale state", "P5 ROM",
                                "P6 memory size", "P7 firmware", "P8 protected memory",
                                "P9 arguments", "P10 GSP", "P11 resource manager"}));
  EXPECT_EQ(rig.violations(), "");
  EXPECT_TRUE(rig.card->is_gsp_running());
  const auto left = (*card)->leave();
  EXPECT_TRUE(left) << left.error().message;
  EXPECT_FALSE(rig.card->is_gsp_running());
  EXPECT_EQ(rig.violations(), "");
}

TEST_P(GspBoot, SecondAfterAnOrderlyEndNeedsNoReset) {
  CardRig rig(GetParam());
  for (int i = 0; i < 3; ++i) {
    const auto card = rig.open();
    ASSERT_TRUE(card) << i << ": " << card.error().message << "\n" << rig.violations();
    EXPECT_FALSE((*card)->was_reset()) << i;
  }
  EXPECT_EQ(rig.violations(), "");
}

/// As the kernel leaves it that takes a killed process's memory away: bus mastering is off, the
/// rest as it was.
TEST_P(GspBoot, AfterAKilledProcessTheCardIsReset) {
  CardRig rig(GetParam());
  {
    auto card = rig.open();
    ASSERT_TRUE(card) << card.error().message;
    // It does not leave.
    (*card)->bus().fail_with({Code::kInternal, "killed"});
  }
  const auto next = rig.open();
  ASSERT_TRUE(next) << next.error().message << "\n" << rig.violations();
  EXPECT_TRUE((*next)->was_reset());
}

TEST_P(GspBoot, InterruptEndsItWithANamedStage) {
  CardRig rig(GetParam());
  rig.stop = true;
  const auto card = rig.open();
  ASSERT_FALSE(card);
  EXPECT_EQ(card.error().code, Code::kCancelled) << card.error().message;
  EXPECT_NE(card.error().message.find("boot stage 'P"), std::string::npos) << card.error().message;
  rig.stop = false;
  const auto next = rig.open();
  EXPECT_TRUE(next) << next.error().message;
}

INSTANTIATE_TEST_SUITE_P(Chips, GspBoot, testing::ValuesIn(kChips),
                         [](const auto& chip) { return std::string(chip.param); });

TEST(GspBootFiles, AMissingFileIsNamedBeforeAnythingIsWritten) {
  CardRig rig("ga102");
  const auto folder = rig.files.search().folders.front();
  std::filesystem::remove(folder + "/nvidia/ga102/gsp/bootloader-570.144.bin");
  const auto card = rig.open();
  ASSERT_FALSE(card);
  EXPECT_EQ(card.error().code, Code::kNotFound);
  EXPECT_NE(card.error().message.find("boot stage 'P7 firmware'"), std::string::npos)
      << card.error().message;
}

TEST(GspBootFiles, AnotherProgramThanTheBoardTakesIsRefusedByTheCard) {
  for (const char* const chip : {"ga102", "gb202"}) {
    CardRig rig(chip);
    const std::string name =
        std::string(chip) == "ga102" ? "ga102/gsp/booter_load" : "gb202/gsp/fmc";
    const std::string path =
        rig.files.search().folders.front() + "/nvidia/" + name + "-570.144.bin";
    auto bytes = make_file(std::string(chip) == "ga102" ? firmware::nvidia::Kind::kBooterUnload
                                                        : firmware::nvidia::Kind::kFmc,
                           "gh100");
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
    const auto card = rig.open();
    ASSERT_FALSE(card) << chip;
    EXPECT_NE(card.error().message.find("boot stage 'P10 GSP'"), std::string::npos)
        << card.error().message;
  }
}

TEST(GspBootFaults, ACardThatIsPulledOutIsSaidToBeGone) {
  CardRig rig("ga102");
  rig.card->unplug();
  const auto card = rig.open();
  ASSERT_FALSE(card);
  EXPECT_EQ(card.error().code, Code::kDeviceLost) << card.error().message;
}

/// Whatever a single access does, a boot ends, and says where, or works; and the next one works.
void sweep(const char* chip, Fault fault, uint64_t cases, uint64_t first = 1) {
  Planted none;
  {
    CardRig rig(chip);
    const auto card = rig.open(std::make_unique<FaultyFunction>(rig.card, none));
    ASSERT_TRUE(card) << card.error().message << "\n" << rig.violations();
  }
  ASSERT_GT(none.count, 100u);
  const uint64_t step = cases == 0 ? 1 : none.count / cases + 1;
  for (uint64_t n = first; n <= none.count; n += step) {
    CardRig rig(chip);
    Planted planted{.fault = fault, .nth = n};
    {
      const auto card = rig.open(std::make_unique<FaultyFunction>(rig.card, planted));
      if (!card) {
        EXPECT_NE(card.error().message.find("boot stage 'P"), std::string::npos)
            << chip << ", access " << n << ": " << card.error().message;
      }
    }
    const auto next = rig.open();
    EXPECT_TRUE(next) << chip << ", after access " << n << ": " << next.error().message;
  }
}

constexpr uint64_t kCases = 12;
TEST(GspBootFaults, OnesOnce) { sweep("ga102", Fault::kOnes, kCases); }
TEST(GspBootFaults, AWrongAnswer) { sweep("gb202", Fault::kWrong, kCases); }
// The message to the FSP is a few accesses late in the boot; what they spoil only a reset mends.
TEST(GspBootFaults, AWrongWordToTheFsp) { sweep("gb202", Fault::kWrong, 0, 220); }
// The card cannot be reset by the boot that fails, as if its process had been killed there.
TEST(GspBootFaults, ATransportThatFailsBeforeTheFsp) { sweep("gh100", Fault::kTransport, 0, 220); }
TEST(GspBootFaults, AWriteThatIsLost) { sweep("tu102", Fault::kDropped, kCases); }
TEST(GspBootFaults, ATransportThatFails) { sweep("ad102", Fault::kTransport, kCases); }
TEST(GspBootFaults, DISABLED_AnyAccessOfAnyChip) {
  for (const char* const chip : kChips)
    for (const Fault fault : kFaults) sweep(chip, fault, 0);
}

}  // namespace
}  // namespace bm::nv::gsp::test
