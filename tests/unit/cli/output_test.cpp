#include "tools/bellmetal/output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/env.h"

namespace bm::cli {
namespace {

TEST(Table, AlignsColumnsByTheWidestCell) {
  Table table({{"NAME"}, {"SIZE", Table::Align::kRight}, {"WHAT"}});
  table.add({"CPU", "12", "x"});
  table.add({"CPU:10", "3456", "a longer one"});
  EXPECT_EQ(table.text(),
            "NAME    SIZE  WHAT\n"
            "CPU       12  x\n"
            "CPU:10  3456  a longer one\n");
}

TEST(Table, CountsCodePointsAndLeavesNoTrailingSpaces) {
  Table table({{"A"}, {"B"}});
  table.add({"é…", "x"});
  table.add({"abc"});
  EXPECT_EQ(table.text(), "A    B\né…   x\nabc\n");
}

TEST(HumanBytes, ChoosesAUnitThatKeepsNumbersShort) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(~uint64_t{0}), "16.0 EiB");
}

TEST(HumanDuration, ShowsHoursOnlyWhenThereAreSome) {
  EXPECT_EQ(human_duration(0.4), "0:00");
  EXPECT_EQ(human_duration(59.6), "1:00");
  EXPECT_EQ(human_duration(3 * 3600 + 5), "3:00:05");
  EXPECT_EQ(human_duration(1e300), "-");
  EXPECT_EQ(human_duration(-1), "-");
}

TEST(Styled, IsPlainTextWhenColorsAreOff) {
  EXPECT_EQ(styled("x", Style::kRed, false), "x");
  EXPECT_EQ(styled("x", Style::kRed, true), "\x1b[31mx\x1b[0m");
}

TEST(HasColor, NeverWithNoColor) {
  const ScopedSetting no_color("NO_COLOR", "1");
  EXPECT_FALSE(has_color(stderr));
}

TEST(Report, JsonErrorsGoToStdoutAndNameTheCode) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(report(Error{Code::kTimeout, "no answer"}, true), kDeviceFailed);
  const auto said = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(said["error"]["code"], "timeout");
  EXPECT_EQ(said["error"]["message"], "no answer");
}

TEST(Report, TextErrorsGoToStderrInOneLine) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(report(Error{Code::kIo, "disk is gone"}, false), kFailure);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "bellmetal: disk is gone\n");
}

TEST(PrintJson, ReplacesBytesThatAreNotText) {
  testing::internal::CaptureStdout();
  print_json({{"text", "a\xff"}});
  EXPECT_EQ(nlohmann::json::parse(testing::internal::GetCapturedStdout())["text"], "a\xef\xbf\xbd");
}

TEST(ExitCode, AMissingFileIsABadFileAndAMissingDeviceIsUnavailable) {
  EXPECT_EQ(file_exit_code(Code::kNotFound), kBadFile);
  EXPECT_EQ(exit_code(Code::kNotFound), kUnavailable);
  EXPECT_EQ(file_exit_code(Code::kOutOfMemory), kFailure);
  EXPECT_EQ(exit_code(Code::kCancelled), kInterrupted);
}

}  // namespace
}  // namespace bm::cli
