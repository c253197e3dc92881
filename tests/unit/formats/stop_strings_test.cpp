#include "models/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace bm::models {
namespace {

TEST(StopStrings, HoldsBackWhatMayBecomeAStopString) {
  StopStrings stop({"END", ""});
  EXPECT_EQ(stop.push("abcE"), "abc");
  EXPECT_EQ(stop.push("N"), "");
  EXPECT_EQ(stop.push("x"), "ENx");
  EXPECT_EQ(stop.push("yEND and more"), "y");
  EXPECT_EQ(stop.stopped_at(), "END");
  EXPECT_EQ(stop.push("never"), "");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopStrings, GivesTheHeldTextAtTheEnd) {
  StopStrings stop({"\n\nUser:"});
  EXPECT_EQ(stop.push("hello\n\nUse"), "hello");
  EXPECT_FALSE(stop.stopped_at());
  EXPECT_EQ(stop.finish(), "\n\nUse");
}

TEST(StopStrings, WithoutAnyEverythingPasses) {
  StopStrings stop({});
  EXPECT_EQ(stop.push("abc"), "abc");
  EXPECT_EQ(stop.finish(), "");
}

/// What comes out is the text up to the first stop string, however the text is cut.
TEST(StopStrings, EqualsASearchInTheWholeText) {
  std::mt19937 random(6);
  for (int round = 0; round < 3'000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& s : stops)
      for (size_t n = 1 + random() % 4; n > 0; --n) s += static_cast<char>('a' + random() % 2);
    std::string text;
    for (size_t n = random() % 30; n > 0; --n) text += static_cast<char>('a' + random() % 3);
    size_t first_end = std::string::npos, length = 0;
    for (const std::string& s : stops) {
      const size_t at = text.find(s);
      if (at == std::string::npos) continue;
      const size_t end = at + s.size();
      if (end < first_end || (end == first_end && s.size() > length))
        first_end = end, length = s.size();
    }
    const std::string want =
        first_end == std::string::npos ? text : text.substr(0, first_end - length);
    StopStrings stop(stops);
    std::string got;
    for (size_t pos = 0; pos < text.size();) {
      const size_t n = 1 + random() % 5;
      got += stop.push(std::string_view(text).substr(pos, n));
      pos += n;
    }
    got += stop.finish();
    ASSERT_EQ(got, want) << text;
    ASSERT_EQ(stop.stopped_at().has_value(), first_end != std::string::npos);
  }
}

}  // namespace
}  // namespace bm::models
