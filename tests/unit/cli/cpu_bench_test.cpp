#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "runtime/base/env.h"
#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/cpu_bench/convnet.h"
#include "tools/bellmetal/cpu_bench/cpu_run.h"
#include "tools/bellmetal/cpu_bench/limit_loops.h"
#include "tools/bellmetal/cpu_bench/random_llama.h"

namespace bm::cli {
namespace {

TEST(Stats, MedianAndQuartilesAreInterpolated) {
  const Summary s = summarize({4, 1, 3, 2});
  EXPECT_EQ(s.count, 4U);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.low, 1.75);
  EXPECT_DOUBLE_EQ(s.high, 3.25);
  EXPECT_DOUBLE_EQ(s.least, 1);
  EXPECT_DOUBLE_EQ(s.spread(), 0.6);
}

TEST(Stats, OneSampleHasNoSpreadAndNoneIsZero) {
  EXPECT_DOUBLE_EQ(summarize({7}).median, 7);
  EXPECT_DOUBLE_EQ(summarize({7}).spread(), 0);
  EXPECT_DOUBLE_EQ(summarize({}).median, 0);
  EXPECT_DOUBLE_EQ(summarize({}).spread(), 0);
}

/// A contender that always says the same and counts its calls.
Contender fixed(std::string name, double seconds, int* calls = nullptr) {
  return {std::move(name), [=](int n) {
            if (calls) *calls += n;
            return seconds * n;
          }};
}

Outcome outcome_of(Unit unit, double ours, std::vector<Score> peers, std::vector<Score> bounds,
                   Goal goal) {
  Outcome o;
  o.name = "x";
  o.unit = unit;
  o.ours = {"ours", ours, 0.1};
  o.peers = std::move(peers);
  o.bounds = std::move(bounds);
  o.goal = goal;
  return o;
}

TEST(Contest, TheBestPeerIsTheFastestInEitherUnit) {
  const Outcome rate = outcome_of(Unit::kGbytes, 30, {{"a", 20, 0}, {"b", 25, 0}}, {}, {});
  EXPECT_EQ(rate.best_peer()->name, "b");
  EXPECT_DOUBLE_EQ(rate.ratio_to(rate.best_peer()), 1.2);
  const Outcome time = outcome_of(Unit::kMillis, 30, {{"a", 20, 0}, {"b", 25, 0}}, {}, {});
  EXPECT_EQ(time.best_peer()->name, "a");
  EXPECT_NEAR(time.ratio_to(time.best_peer()), 2.0 / 3, 1e-12);
}

TEST(Contest, APeerThatMeasuredNothingIsNoPeer) {
  const Outcome o = outcome_of(Unit::kMillis, 30, {{"a", 0, 0}}, {}, {.of_peer = 1});
  EXPECT_EQ(o.best_peer(), nullptr);
  EXPECT_EQ(o.ratio_to(nullptr), 0);
  EXPECT_EQ(o.is_met(), std::nullopt);
}

TEST(Contest, AGoalIsMetOnlyWhenAllItsPartsAre) {
  const Goal goal{.of_peer = 1.0, .of_bound = 0.85, .at_most = 0};
  const auto met = [&](double ours) {
    return *outcome_of(Unit::kGbytes, ours, {{"p", 20, 0}}, {{"copy", 30, 0}}, goal).is_met();
  };
  EXPECT_FALSE(met(19));
  EXPECT_FALSE(met(25)) << "below 0.85 of 30";
  EXPECT_TRUE(met(26));
  EXPECT_FALSE(*outcome_of(Unit::kMicros, 21, {}, {}, {.at_most = 20}).is_met());
  EXPECT_TRUE(*outcome_of(Unit::kMicros, 20, {}, {}, {.at_most = 20}).is_met());
}

TEST(Contest, GoalsReadLikeTheTable) {
  EXPECT_EQ((Goal{.of_peer = 1.05, .of_bound = 0.9, .at_most = 0}.text(Unit::kGbytes)),
            ">= 1.05x, >= 0.90 of roofline");
  EXPECT_EQ((Goal{.of_peer = 0, .of_bound = 0, .at_most = 20}.text(Unit::kMicros)), "<= 20 us");
  EXPECT_EQ(Goal{}.text(Unit::kMicros), "");
}

TEST(Contest, RatesAndTimesComeFromTheMedian) {
  const std::atomic<bool> stop{false};
  Contest c;
  c.unit = Unit::kGflops;
  c.amount = 2e9;
  int ours = 0, peers = 0;
  c.ours = contender("ours", [&] { ++ours; });
  c.peers = {fixed("peer", 0.5, &peers)};
  c.bounds = {fixed("bound", 0.25)};
  const Pace pace{.seconds = 0, .min_repeats = 3, .max_repeats = 3, .sample_ms = 0};
  const auto o = hold(c, "case", 2, pace, stop);
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_DOUBLE_EQ(o->best_peer()->value, 4);
  EXPECT_DOUBLE_EQ(o->best_bound()->value, 8);
  EXPECT_EQ(o->threads, 2U);
  EXPECT_EQ(peers, 2 + 3 * 2) << "two calls to choose the sample, then a warm and a timed one";
  EXPECT_EQ(ours, 1 + 2 + 3 * 2) << "and ours once before the check";
}

TEST(Contest, AContenderThatFailsDropsOutAndTheOthersGoOn) {
  const std::atomic<bool> stop{false};
  const Pace pace{.seconds = 0, .min_repeats = 3, .max_repeats = 3, .sample_ms = 0};
  Contest c;
  c.unit = Unit::kMillis;
  int calls = 0;
  c.ours = fixed("ours", 1e-3);
  c.peers = {{"at once", [](int) -> double { throw std::runtime_error("no such kernel"); }},
             fixed("good", 2e-3),
             {"later", [&](int n) -> double {
                if (++calls > 4) raise(Code::kIo, "it ended");
                return 1e-6 * n;
              }}};
  c.bounds = {{"bound", [](int) -> double { throw std::runtime_error("out of memory"); }}};
  const auto o = hold(c, "case", 1, pace, stop);
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_DOUBLE_EQ(o->ours.value, 1);
  ASSERT_EQ(o->peers.size(), 1U) << "half a measurement is none";
  EXPECT_EQ(o->peers[0].name, "good");
  EXPECT_TRUE(o->bounds.empty());
  EXPECT_EQ(o->notes, (std::vector<std::string>{"at once dropped out: no such kernel",
                                                "later dropped out: it ended",
                                                "bound dropped out: out of memory"}));
  c.ours = {"ours", [](int) -> double { raise(Code::kInternal, "we failed"); }};
  EXPECT_FALSE(hold(c, "case", 1, pace, stop)) << "our own failure is one";
}

TEST(Contest, ALibraryThatCannotTakePartIsNoted) {
  Contest c;
  invite(c, "A", [](Contest& with) -> Status {
    with.peers.push_back(fixed("a", 1));
    return fail(Code::kNotFound, "half of it is missing");
  });
  invite(c, "B", [](Contest&) -> Status { throw std::runtime_error("odd answer"); });
  invite(c, "C", [](Contest&) -> Status { return {}; });
  EXPECT_EQ(c.peers.size(), 1U);
  EXPECT_EQ(c.notes, (std::vector<std::string>{"A stays out: half of it is missing",
                                               "B stays out: odd answer"}));
}

TEST(Contest, ShortWorkIsRepeatedWithinASample) {
  const std::atomic<bool> stop{false};
  Contest c;
  int peers = 0;
  c.ours = contender("ours", [] {});
  c.peers = {fixed("peer", 1e-4, &peers)};
  const Pace pace{.seconds = 0, .min_repeats = 1, .max_repeats = 1, .sample_ms = 2};
  ASSERT_TRUE(hold(c, "case", 1, pace, stop));
  EXPECT_EQ(peers, 2 + 1 + 20);
}

TEST(Contest, AWrongResultIsAnErrorAndNotMeasured) {
  const std::atomic<bool> stop{false};
  for (const double error : {0.1, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    int ours = 0;
    Contest c;
    c.ours = contender("ours", [&] { ++ours; });
    c.check = [error]() -> Result<double> { return error; };
    c.tolerance = 0.01;
    const auto o = hold(c, "case", 1, {}, stop);
    ASSERT_FALSE(o);
    EXPECT_NE(o.error().message.find("case: wrong result"), std::string::npos);
    EXPECT_EQ(ours, 1);
  }
}

TEST(Contest, RelativeErrorIsOfTheLargestValueAndStrictAboutSizesAndNan) {
  const std::vector<float> want{1, -4}, near{1, -4.04F}, nan{1, NAN};
  EXPECT_NEAR(relative_error(near, want), 0.01, 1e-6);
  EXPECT_TRUE(std::isinf(relative_error(nan, want)));
  EXPECT_TRUE(std::isinf(relative_error({near.data(), 1}, want)));
}

TEST(CpuRows, SurviveJson) {
  CpuRow row;
  row.outcome = outcome_of(Unit::kGbytes, 26, {{"p", 20, 0.2}}, {{"copy", 30, 0.1}},
                           {.of_peer = 1, .of_bound = 0.85, .at_most = 3});
  row.outcome.error = 1e-7;
  row.outcome.busy_elsewhere = 0.25;
  row.outcome.notes = {"n"};
  const auto json = to_json(row);
  EXPECT_DOUBLE_EQ(json["ratio"], 1.3);
  EXPECT_EQ(json["peer_name"], "p");
  const auto back = cpu_row_from_json(nlohmann::ordered_json::parse(json.dump()));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(to_json(*back), json);
  CpuRow bad;
  bad.outcome.name = "y";
  bad.problem = "why";
  EXPECT_EQ(cpu_row_from_json(to_json(bad))->problem, "why");
  EXPECT_FALSE(cpu_row_from_json({{"name", "x"}}));
}

TEST(CpuRows, TheRatioIsTheLastColumn) {
  CpuRow row;
  row.outcome = outcome_of(Unit::kGbytes, 26, {{"slow", 2, 0}, {"fast", 20, 0}}, {}, {});
  const std::string table = cpu_table({row});
  EXPECT_NE(table.find("RATIO\n"), std::string::npos) << table;
  EXPECT_NE(table.find("fast 20.0, slow 2.00"), std::string::npos) << table;
  EXPECT_NE(table.find("1.30\n"), std::string::npos) << table;
}

TEST(CpuOptions, WhatMatchesNothingIsRefused) {
  CpuBenchOptions o;
  EXPECT_TRUE(check_cpu_options(o));
  o.only = {"sgemm"};
  EXPECT_TRUE(check_cpu_options(o));
  EXPECT_TRUE(is_chosen(o, "sgemm 512"));
  EXPECT_FALSE(is_chosen(o, "softmax"));
  o.only = {"sgemm", "nonsense"};
  EXPECT_EQ(check_cpu_options(o).error().code, Code::kInvalidArgument);
  o.only = {};
  o.peers = {"openblas=/x"};
  EXPECT_TRUE(check_cpu_options(o));
  o.peers = {"openblas"};
  EXPECT_FALSE(check_cpu_options(o));
  o.peers = {"mkl=/x"};
  EXPECT_FALSE(check_cpu_options(o));
}

TEST(CpuPeers, AMissingOneIsNamedWithWhatToDo) {
  CpuBenchOptions o;
  o.peers = {"openblas=/nowhere/a.so", "onednn=/nowhere/b.so", "python=/nowhere/python"};
  World world(o, 1);
  EXPECT_EQ(world.openblas(), nullptr);
  EXPECT_EQ(world.onednn(), nullptr);
  EXPECT_EQ(world.python(), nullptr);
  EXPECT_EQ(world.python(), nullptr) << "asked again: noted once";
  ASSERT_EQ(world.notes().size(), 3U);
  EXPECT_NE(world.notes()[0].find("/nowhere/a.so"), std::string::npos);
  EXPECT_NE(world.notes()[0].find("install libopenblas0-pthread"), std::string::npos);
  EXPECT_NE(world.notes()[2].find("install python3-torch"), std::string::npos);
}

TEST(RandomLlama, BlocksOfEveryFormatStandForNumbersOfTheSameSize) {
  constexpr uint64_t kRows = 16, kColumns = 1024;
  for (const char* name : {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"}) {
    const models::GgmlType type = *random_llama_format(name);
    const std::vector<std::byte> data = random_blocks(type, kRows, kColumns);
    ASSERT_EQ(data.size(), kRows * *models::ggml_row_bytes(type, kColumns)) << name;
    std::vector<float> values(kRows * kColumns);
    ASSERT_TRUE(models::dequantize_row(type, data, values));
    double sum = 0, squares = 0;
    for (const float v : values) {
      sum += static_cast<double>(v);
      squares += static_cast<double>(v) * static_cast<double>(v);
    }
    const double count = static_cast<double>(values.size());
    EXPECT_NEAR(std::sqrt(squares / count), 1.0 / 32, 0.1 / 32) << name;
    // Codes of Q4_0 are -8 … 7: half a step below zero on average.
    EXPECT_NEAR(sum / count, 0, 0.15 / 32) << name;
  }
  EXPECT_FALSE(random_llama_format("Q9"));
}

TEST(RandomLlama, HasAQuarterOfABillionParametersUnlessAskedOtherwise) {
  EXPECT_NEAR(static_cast<double>(RandomLlama{}.parameters()), 0.25e9, 0.01e9);
  RandomLlama odd;
  odd.format = models::GgmlType::kQ4_K;
  odd.embedding = 320;
  const auto ignore = [](std::span<const std::byte>) -> Status { return {}; };
  const auto refuse = [](std::span<const std::byte>) -> Status { return fail(Code::kIo, "full"); };
  EXPECT_EQ(write_random_llama(ignore, odd).error().code, Code::kInvalidArgument);
  EXPECT_EQ(write_random_llama(refuse, RandomLlama{}).error().code, Code::kIo);
}

TEST(ConvNets, HaveTheSizesOfTheirPapers) {
  EXPECT_NEAR(resnet18(224).flops(), 3.63e9, 0.05e9);
  EXPECT_NEAR(mobilenet(224).flops(), 0.60e9, 0.02e9);
}

TEST(Limits, LoopsTouchEveryNumber) {
  const LimitLoops& loops = limit_loops();
  constexpr size_t kCount = 16 * 7;
  const Arena from(kCount * 4), to(kCount * 4);
  for (size_t i = 0; i < kCount; ++i) from.data()[i] = static_cast<float>(i);
  loops.read(from.data(), kCount);
  for (const auto copy : {loops.copy, loops.stream}) {
    std::fill(to.data(), to.data() + kCount, -1.0F);
    copy(to.data(), from.data(), kCount);
    EXPECT_TRUE(std::equal(from.data(), from.data() + kCount, to.data()));
  }
}

TEST(Limits, ATeamRunsEveryPartEachTime) {
  Team team(3);
  for (int turn = 0; turn < 50; ++turn) {
    std::atomic<int> parts{0};
    team.run([&](uint32_t i) { parts.fetch_add(1 << (8 * i)); });
    ASSERT_EQ(parts.load(), 0x10101);
  }
}

TEST(CpuCases, RunTinyWithoutPeersAndAreRight) {
  CpuBenchOptions o;
  o.is_tiny = true;
  o.has_peers = false;
  o.only = {"sgemm 127", "u8s8 gemm 512", "softmax",    "column sum",    "sgemv",
            "MobileNet", "Q4_K decode",   "prefill 16", "Q8_0 gemv 4096"};
  int rows = 0;
  std::vector<std::string> notes;
  run_cpu_cases(
      o, settings().threads == 0 ? 1 : settings().threads,
      [&](const CpuRow& row) {
        ++rows;
        EXPECT_EQ(row.problem, "") << row.outcome.name;
        EXPECT_GT(row.outcome.ours.value, 0) << row.outcome.name;
        EXPECT_TRUE(row.outcome.error) << row.outcome.name << " is not checked";
        EXPECT_TRUE(row.outcome.peers.empty());
      },
      notes);
  EXPECT_EQ(rows, 10);
}

}  // namespace
}  // namespace bm::cli
