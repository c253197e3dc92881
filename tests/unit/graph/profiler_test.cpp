#include "runtime/profiler.h"

#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/stats.h"

namespace bm::runtime {
namespace {

using nlohmann::json;

std::vector<json> events(const Profiler& profiler, const std::string& phase) {
  std::vector<json> found;
  const json trace = json::parse(profiler.to_json());
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == phase) found.push_back(event);
  return found;
}

TEST(Profiler, RecordsNothingWhileOff) {
  Profiler profiler("");
  profiler.record({.name = "k", .row = "CPU"});
  EXPECT_FALSE(profiler.is_on());
  EXPECT_TRUE(events(profiler, "X").empty());
}

TEST(Profiler, WritesRangesInMicrosecondsPerDeviceRow) {
  Profiler profiler("unused.json");
  profiler.record({.name = "a", .row = "CPU", .begin_ns = 5'000, .end_ns = 7'500});
  profiler.record({.name = "b \"quoted\"",
                   .row = "AMD:COPY",
                   .category = "copy",
                   .begin_ns = 6'000,
                   .end_ns = 9'000,
                   .bytes = 3'000});
  const auto ranges = events(profiler, "X");
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0]["ts"], 0.0);
  EXPECT_EQ(ranges[0]["dur"], 2.5);
  EXPECT_EQ(ranges[1]["name"], "b \"quoted\"");
  EXPECT_EQ(ranges[1]["ts"], 1.0);
  EXPECT_EQ(ranges[1]["args"]["GB/s"], 1.0);
  EXPECT_NE(ranges[0]["tid"], ranges[1]["tid"]);
  EXPECT_EQ(events(profiler, "M").size(), 3u);  // process, two rows
}

// A device that runs several kernels at a time: viewers draw what overlaps within a row as nested.
TEST(Profiler, OverlappingRangesOfADeviceHaveRowsOfTheirOwn) {
  Profiler profiler("unused.json");
  const auto add = [&](const char* name, int64_t begin, int64_t end) {
    profiler.record({.name = name, .row = "CL", .begin_ns = begin, .end_ns = end});
  };
  add("a", 0, 100);
  add("b", 50, 150);
  add("c", 60, 70);
  add("d", 100, 200);
  add("e", 150, 160);
  const auto ranges = events(profiler, "X");
  ASSERT_EQ(ranges.size(), 5u);
  EXPECT_EQ(ranges[3]["tid"], ranges[0]["tid"]) << "begins where the first ends";
  EXPECT_EQ(ranges[4]["tid"], ranges[1]["tid"]);
  EXPECT_NE(ranges[0]["tid"], ranges[1]["tid"]);
  EXPECT_NE(ranges[0]["tid"], ranges[2]["tid"]);
  EXPECT_NE(ranges[1]["tid"], ranges[2]["tid"]);
  const auto names = events(profiler, "M");
  ASSERT_EQ(names.size(), 4u);  // process, three rows
  EXPECT_EQ(names[1]["args"]["name"], "CL");
  EXPECT_EQ(names[2]["args"]["name"], "CL #2");
}

TEST(Profiler, DrawsOneArrowPerDependency) {
  Profiler profiler("unused.json");
  const uint64_t first = profiler.next_id(), second = profiler.next_id();
  profiler.record({.name = "a", .row = "CPU", .begin_ns = 0, .end_ns = 1'000, .id = first});
  profiler.record({.name = "b",
                   .row = "CPU",
                   .begin_ns = 2'000,
                   .end_ns = 3'000,
                   .id = second,
                   .after = {first, 999}});
  const auto leaves = events(profiler, "s"), enters = events(profiler, "f");
  ASSERT_EQ(leaves.size(), 1u);
  ASSERT_EQ(enters.size(), 1u);
  EXPECT_EQ(leaves[0]["id"], enters[0]["id"]);
  EXPECT_EQ(leaves[0]["ts"], 1.0);
  EXPECT_EQ(enters[0]["ts"], 2.0);
}

TEST(Profiler, KeepsRangesOfThreadsThatEnded) {
  Profiler profiler("unused.json");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) profiler.record({.name = "k", .row = "CPU"});
    });
  }
  profiler.to_json();  // reading while others write must be safe
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(events(profiler, "X").size(), 200u);
}

TEST(Profiler, UnwritablePathIsAnError) {
  const Profiler profiler("/nonexistent/trace.json");
  const Status written = profiler.write();
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, Code::kNotFound);
  EXPECT_NE(written.error().message.find("/nonexistent/trace.json"), std::string::npos);
}

TEST(ClockMap, KeepsNanosecondsForLongUptimes) {
  const ClockMap map{.ticks_per_second = 100'000'000, .offset_ns = -7};
  EXPECT_EQ(map.to_host_ns(1), 3);
  EXPECT_EQ(map.to_host_ns(100'000'000ull * 86'400 * 365 + 2), 86'400ll * 365 * 1'000'000'000 + 13);
}

TEST(Stats, LineHasRatesOnlyWhenMeasured) {
  Launch launch{.device = "CPU", .name = "r_4", .num_args = 2, .flops = 2000, .bytes = 500};
  const std::string plain = format_launch(launch, 7, 0, 0, true, false);
  EXPECT_EQ(plain.find("GFLOPS"), plain.npos);
  EXPECT_NE(plain.find("CPU"), plain.npos);
  launch.duration_ns = 1000;
  const std::string timed = format_launch(launch, 7, 1000, 0, true, false);
  EXPECT_NE(timed.find("2.00 GFLOPS"), timed.npos) << timed;
  EXPECT_NE(timed.find("0.50 GB/s"), timed.npos) << timed;
  EXPECT_EQ(timed.find('\033'), timed.npos);
}

TEST(Stats, ColorTellsFirstFromRepeatAndGraphAndMovesNoColumn) {
  const Launch kernel{.device = "CPU", .name = "k"};
  const Launch graph{.kind = Launch::Kind::kGraph, .device = "CPU", .name = "k"};
  const std::string first = format_launch(kernel, 1, 0, 0, true, true);
  const std::string repeat = format_launch(kernel, 1, 0, 0, false, true);
  const std::string replay = format_launch(graph, 1, 0, 0, true, true);
  EXPECT_NE(first, repeat);
  EXPECT_NE(first, replay);
  EXPECT_EQ(first.size(), format_launch(kernel, 1, 0, 0, true, false).size() + 9);  // two escapes
}

TEST(Stats, CountersAddUp) {
  reset_counters();
  update_stats({.device = "CPU", .name = "a", .flops = 10, .bytes = 20});
  update_stats({.kind = Launch::Kind::kGraph,
                .device = "CPU",
                .name = "g",
                .calls = 5,
                .flops = 1,
                .bytes = 2,
                .duration_ns = 1000});
  const Counters now = counters();
  EXPECT_EQ(now.kernels, 6u);
  EXPECT_EQ(now.operations, 11u);
  EXPECT_EQ(now.bytes, 22u);
  EXPECT_DOUBLE_EQ(now.seconds, 1e-6);
}

}  // namespace
}  // namespace bm::runtime
