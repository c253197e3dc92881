#include "runtime/base/env.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <thread>

#include "runtime/base/log.h"

namespace bm {
namespace {

TEST(Env, DefaultsHoldWithoutAnEnvironment) {
  const Result<Settings> settings =
      parse_settings([](const char*) -> const char* { return nullptr; });
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->wait_timeout_ms, 30'000u);
  EXPECT_TRUE(settings->lru);
  EXPECT_FALSE(settings->no_color);
  EXPECT_EQ(settings->cache_dir, "");
}

TEST(Env, ReadsEveryKindOfValue) {
  const Result<Settings> settings = parse_settings([](const char* name) -> const char* {
    const std::string_view n = name;
    if (n == "DEBUG") return "4";
    if (n == "LRU") return "0";
    if (n == "BM_MEMORY_CAP") return "1.5G";
    if (n == "HOME") return "/home/u";
    if (n == "NO_COLOR") return "0";
    if (n == "BM_SEED") return "18446744073709551615";
    return n == "DEV" ? "CPU:1" : nullptr;
  });
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->debug, 4);
  EXPECT_FALSE(settings->lru);
  EXPECT_EQ(settings->memory_cap, 3ull << 29);
  EXPECT_EQ(settings->cache_dir, "/home/u/.cache/bellmetal");
  EXPECT_TRUE(settings->no_color) << "any non-empty value counts";
  EXPECT_TRUE(settings->has_seed);
  EXPECT_EQ(settings->seed, UINT64_MAX);
  EXPECT_EQ(settings->dev, "CPU:1");
}

TEST(Env, XdgCacheHomeWinsOverHome) {
  const Result<Settings> settings = parse_settings([](const char* name) -> const char* {
    return std::string_view(name) == "XDG_CACHE_HOME" ? "/c"
           : std::string_view(name) == "HOME"         ? "/h"
                                                      : nullptr;
  });
  EXPECT_EQ(settings->cache_dir, "/c/bellmetal");
}

TEST(Env, NamesTheVariableItCannotRead) {
  const Result<Settings> settings = parse_settings([](const char* name) -> const char* {
    return std::string_view(name) == "DEBUG" ? "8" : nullptr;
  });
  ASSERT_FALSE(settings);
  EXPECT_EQ(settings.error().code, Code::kInvalidArgument);
  EXPECT_NE(settings.error().message.find("DEBUG: '8'"), std::string::npos)
      << settings.error().message;
}

TEST(Env, LevelsOfLogsHaveOneDigit) {
  const auto given = [](const char* text) {
    static const char* value;
    value = text;
    return parse_settings([](const char* name) -> const char* {
      return std::string_view(name) == "BM_LOG" ? value : nullptr;
    });
  };
  for (const char* good : {"2", "amd=3", "amd=3,runtime=1", "0,nv=2", "amd=9"})
    EXPECT_TRUE(given(good)) << good;
  for (const char* bad : {"zzz", "amd", "amd=", "=2", "amd=12", "amd=3,,nv=1", "amd=x"})
    EXPECT_FALSE(given(bad)) << bad;
}

TEST(Env, ScopesNestAndStayOnTheirThread) {
  const int outside = settings().jit;
  {
    const ScopedSetting jit("JIT", "2");
    const ScopedSetting debug("DEBUG", "3");
    EXPECT_EQ(settings().jit, 2);
    EXPECT_EQ(settings().debug, 3);
    int seen = -1;
    std::thread([&] { seen = settings().jit; }).join();
    EXPECT_EQ(seen, outside);
  }
  EXPECT_EQ(settings().jit, outside);
}

TEST(Env, TheTableNamesEachVariableOnceWithSourceAndHelp) {
  const ScopedSetting scope("BM_THREADS", "77");
  std::set<std::string> names;
  for (const EnvValue& value : all_env()) {
    EXPECT_TRUE(names.insert(value.name).second) << value.name;
    EXPECT_FALSE(value.help.empty());
    if (value.name == "BM_THREADS") {
      EXPECT_EQ(value.value, "77");
      EXPECT_EQ(value.source, "scope");
    }
  }
  EXPECT_TRUE(names.contains("MAX_BUFFER_SIZE"));
}

TEST(Env, SizesTakeBinarySuffixes) {
  EXPECT_EQ(*parse_bytes("123"), 123u);
  EXPECT_EQ(*parse_bytes("64k"), 65536u);
  EXPECT_EQ(*parse_bytes("2GiB"), 2ull << 30);
  EXPECT_EQ(*parse_bytes("10MB"), 10ull << 20);
  EXPECT_EQ(*parse_bytes("0.5K"), 512u);
  for (const char* bad : {"", "G", "12X", "-1", "1e40", "5 M", "nan", "inf", "1KK"})
    EXPECT_FALSE(parse_bytes(bad)) << bad;
}

TEST(Log, LevelsComeFromTheMostSpecificEntry) {
  EXPECT_EQ(log_level("", "amd"), LogLevel::kWarning);
  EXPECT_EQ(log_level("amd=3,runtime=0", "amd"), LogLevel::kTrace);
  EXPECT_EQ(log_level("amd=3,runtime=0", "runtime"), LogLevel::kError);
  EXPECT_EQ(log_level("amd=0,2", "amd"), LogLevel::kError);
  EXPECT_EQ(log_level("amd=0,2", "nv"), LogLevel::kInfo);
  EXPECT_EQ(log_level("9", "nv"), LogLevel::kTrace);
  EXPECT_EQ(log_level("amd=,=,x,amd=high", "amd"), LogLevel::kWarning);
}

TEST(Log, FormatsOnlyWhatIsEnabled) {
  const ScopedSetting scope("BM_LOG", "amd=2");
  testing::internal::CaptureStderr();
  log("amd", LogLevel::kInfo, "ring {}", 3);
  log("amd", LogLevel::kTrace, "not shown {}", 4);
  log("nv", LogLevel::kInfo, "not shown {}", 5);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[amd] info: ring 3\n");
}

}  // namespace
}  // namespace bm
