#include "tools/bellmetal/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

namespace bm::cli {
namespace {

TEST(Interrupt, FirstSignalOnlySetsTheFlag) {
  const InterruptScope scope;
  EXPECT_FALSE(is_interrupted());
  testing::internal::CaptureStderr();
  std::raise(SIGINT);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("Ctrl-C again"), std::string::npos);
  EXPECT_TRUE(is_interrupted());
  EXPECT_TRUE(interrupt_flag());
}

TEST(Interrupt, ANewScopeStartsClean) {
  {
    const InterruptScope scope;
    testing::internal::CaptureStderr();
    std::raise(SIGINT);
    testing::internal::GetCapturedStderr();
  }
  const InterruptScope scope;
  EXPECT_FALSE(is_interrupted());
}

TEST(Interrupt, AScopeThatOnlyAsksIsSilentAndCanForget) {
  const InterruptScope scope(OnInterrupt::kAskOnly);
  testing::internal::CaptureStderr();
  std::raise(SIGINT);
  EXPECT_TRUE(is_interrupted());
  clear_interrupt();
  EXPECT_FALSE(is_interrupted());
  std::raise(SIGINT);  // a first one again
  EXPECT_TRUE(is_interrupted());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(InterruptDeathTest, WorkWithoutASafePlaceIsEndedWith130) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        std::raise(SIGINT);
        while (is_interrupted()) {}
      },
      testing::ExitedWithCode(130), "in the middle of a step");
}

TEST(InterruptDeathTest, TheEndOfTheProcessIsBoundedToo) {
  EXPECT_EXIT(
      {
        {
          const InterruptScope scope;
          std::raise(SIGINT);
        }
        bound_exit();
        while (is_interrupted()) {}
      },
      testing::ExitedWithCode(130), "in the middle of a step");
}

TEST(InterruptDeathTest, SecondSignalEndsTheProcessWith130) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(130), "stopping");
}

TEST(InterruptDeathTest, OutsideAScopeTheSignalActsAsBefore) {
  EXPECT_EXIT(
      {
        { const InterruptScope scope; }
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace bm::cli
