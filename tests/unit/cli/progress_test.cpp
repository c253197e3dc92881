#include "tools/bellmetal/progress.h"

#include <gtest/gtest.h>

namespace bm::cli {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(ProgressLine, ShowsBarBytesRateAndTimeLeft) {
  EXPECT_EQ(
      progress_line("loading", 50 * kMiB, 100 * kMiB, 5, 200),
      "loading [############            ]  50 %  50.0 MiB of 100.0 MiB  10.0 MiB/s  0:05 left");
}

TEST(ProgressLine, WithoutATotalHasNoBarAndNoTimeLeft) {
  EXPECT_EQ(progress_line("reading", 2 * kMiB, 0, 1, 200), "reading  2.0 MiB  2.0 MiB/s");
}

TEST(ProgressLine, NeverExceedsTheTerminalNorTheTotal) {
  EXPECT_EQ(progress_line("loading", 50, 100, 1, 10).size(), 10u);
  EXPECT_NE(progress_line("loading", 300, 100, 1, 200).find("100 %  100 B of 100 B"),
            std::string::npos);
}

TEST(ProgressLine, AtTheStartHasNoRate) {
  EXPECT_EQ(progress_line("x", 0, 100, 0, 200), "x [                        ]   0 %  0 B of 100 B");
}

TEST(Progress, SaysNothingWhenStderrIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    Progress progress("loading", 100);
    progress.update(100);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace bm::cli
