// Faults planted end to end, from the runtime down to a simulated kernel driver and real code: each
// must be reported in bounded time with the cause that came first, and the next process must work.

#include <chrono>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tests/unit/amd_faults/bench.h"

namespace bm::amd::faults {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// From the fault to the message, beside what the wait itself may take.
constexpr auto kReaction = 100ms;
/// A busy machine may keep a thread waiting longer than that: the best of so many tries counts.
constexpr int kTries = 5;

std::vector<Planted> all_faults() {
  std::vector<Planted> all = device_faults();
  for (Planted& fault : machine_faults()) all.push_back(std::move(fault));
  return all;
}

class PlantedFaults : public testing::TestWithParam<std::tuple<Planted, PacketMode>> {
 protected:
  const ScopedSetting quiet_{"BM_LOG", "amd=0"};
};

/// Nothing of ours is left with the driver.
void expect_clean(Bench& bench) {
  EXPECT_EQ(bench.system().queues(), 0u);
  EXPECT_EQ(bench.system().events(), 0u);
  EXPECT_EQ(bench.system().memory().objects(), 0u);
  EXPECT_EQ(bench.system().open_files(), 0u);
}

void expect_works(Bench& bench) {
  const Status opened = bench.open();
  ASSERT_TRUE(opened) << opened.error().message;
  const Status works = bench.works();
  EXPECT_TRUE(works) << works.error().message << "; " << bench.system().last_death();
  bench.close();
}

void expect_cause(const Planted& fault, const Bench& bench, const Error& error) {
  EXPECT_EQ(error.code, fault.code) << error.message;
  for (const auto* parts : {&fault.says, &bench.also})
    for (const std::string& part : *parts)
      EXPECT_NE(error.message.find(part), std::string::npos)
          << "not said: " << part << "\nin: " << error.message;
  if (!fault.says_not.empty()) {
    EXPECT_EQ(error.message.find(fault.says_not), std::string::npos) << error.message;
  }
}

/// Every later call returns the first error. `told`: it, perhaps with the device's name before it.
void expect_sticky(Bench& bench, const std::string& told) {
  hal::Device& device = bench.hal();
  const Status first = device.status();
  ASSERT_FALSE(first);
  const std::string& cause = first.error().message;
  EXPECT_TRUE(told.ends_with(cause)) << told << "\nis not: " << cause;
  const auto same = [&](const auto& result) { return !result && result.error().message == cause; };
  EXPECT_TRUE(same(device.status()));
  EXPECT_TRUE(same(device.queue(hal::QueueKind::kCompute).submit({})));
  EXPECT_TRUE(same(device.queue(hal::QueueKind::kCopy).submit({})));
  EXPECT_TRUE(same(device.allocate({.size = 64})));
  EXPECT_TRUE(same(device.load(bench.code("numbers"))));
}

struct Told {
  std::optional<ScopedSetting> wait;
  std::optional<Bench> bench;
  Status status;
  Clock::duration took{};
};

/// Opens a machine and plants the fault; the device stays open.
void plant(const Planted& fault, PacketMode packets, Told& told) {
  told.bench.emplace(fault.machine, packets);
  Bench& bench = *told.bench;
  if (fault.needs_device) {
    const Status opened = bench.open();
    ASSERT_TRUE(opened) << opened.error().message;
  }
  // Short only where it is to run out, lest a busy machine look like a hanging one.
  if (fault.code == Code::kTimeout && !told.wait)
    told.wait.emplace("BM_WAIT_TIMEOUT_MS", std::to_string(kWaitMs));
  const auto begin = Clock::now();
  told.status = fault.plant(bench);
  told.took = Clock::now() - begin;
}

TEST_P(PlantedFaults, IsReportedInTimeWithItsFirstCause) {
  const auto& [fault, packets] = GetParam();
  const auto bound = (fault.code == Code::kTimeout ? kWaitMs * 1ms : 0ms) + kReaction;
  Told told;
  for (int i = 0; i < kTries && (i == 0 || told.took > bound); ++i) {
    told.bench.reset();
    plant(fault, packets, told);
    if (HasFatalFailure()) return;
  }
  EXPECT_LE(told.took / 1ms, bound / 1ms) << "ms, at best";
  Bench& bench = *told.bench;
  ASSERT_FALSE(told.status) << "nothing was reported";
  RecordProperty("message", told.status.error().message);
  expect_cause(fault, bench, told.status.error());
  if (fault.is_sticky) expect_sticky(bench, told.status.error().message);

  bench.knobs().is_stalled = false;
  bench.knobs().is_copy_stalled = false;
  bench.knobs().is_hung = false;
  bench.close();
  told.wait.reset();
  if (!bench.knobs().is_lost) expect_clean(bench);
  if (!fault.is_repairable) {
    told.bench.reset();  // its window, too
    Bench other({}, packets);
    expect_works(other);
    expect_clean(other);
    return;
  }
  bench.system().options().has_lost_doorbell = false;
  bench.system().options().is_stalled = false;
  bench.system().options().failing_call = -1;
  bench.start_again();
  expect_works(bench);
  expect_clean(bench);
}

INSTANTIATE_TEST_SUITE_P(Amd, PlantedFaults,
                         testing::Combine(testing::ValuesIn(all_faults()),
                                          testing::Values(PacketMode::kPm4, PacketMode::kAql)),
                         [](const auto& one) {
                           return fmt::format(
                               "{}{}", std::get<0>(one.param).name,
                               std::get<1>(one.param) == PacketMode::kPm4 ? "Pm4" : "Aql");
                         });

TEST(PlantedFaultsOfRdna4, AreToldAlike) {
  for (const Planted& fault : device_faults()) {
    if (!fault.is_sticky || !fault.needs_device) continue;
    SCOPED_TRACE(fault.name);
    Planted here = fault;
    here.machine.chip = "gfx1201";
    const ScopedSetting quiet("BM_LOG", "amd=0");
    Told told;
    plant(here, PacketMode::kAql, told);
    ASSERT_FALSE(told.status) << "nothing was reported";
    expect_cause(here, *told.bench, told.status.error());
  }
}

TEST(PlantedFaultsTable, HasTwentyDifferentFaultsAtLeast) {
  std::set<std::string> names;
  for (const Planted& fault : all_faults()) {
    EXPECT_FALSE(fault.says.empty() && fault.plant == nullptr) << fault.name;
    names.insert(fault.name);
  }
  EXPECT_GE(names.size(), 20u);
}

}  // namespace
}  // namespace bm::amd::faults
