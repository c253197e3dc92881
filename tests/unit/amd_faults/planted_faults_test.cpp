// Faults planted end to end, from the runtime down to a simulated kernel driver and real code: each
// must be reported in bounded time with the cause that came first, and the next process must work.

#include "tests/unit/amd_faults/bench.h"

namespace bm::amd::faults {
namespace {

using namespace std::chrono_literals;
using planted::expect_cause, planted::expect_sticky, planted::kWaitMs;

/// From the fault to the message, beside what the wait itself may take.
constexpr auto kReaction = 100ms;
/// A busy machine may keep a thread waiting longer than that: the best of so many tries counts.
constexpr int kTries = 5;

std::vector<Planted> all_faults() { return planted::joined(device_faults(), machine_faults()); }

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
  SCOPED_TRACE(bench.system().last_death());
  planted::expect_works(bench);
}

TEST_P(PlantedFaults, IsReportedInTimeWithItsFirstCause) {
  const auto& [fault, packets] = GetParam();
  const auto bound = (fault.code == Code::kTimeout ? kWaitMs * 1ms : 0ms) + kReaction;
  planted::Trial<Planted> told;
  for (int i = 0; i < kTries && (i == 0 || told.took > bound); ++i) {
    told.bench.reset();
    told.plant(fault, packets);
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
    planted::Trial<Planted> told;
    told.plant(here, PacketMode::kAql);
    ASSERT_FALSE(told.status) << "nothing was reported";
    expect_cause(here, *told.bench, told.status.error());
  }
}

TEST(PlantedFaultsTable, HasTwentyDifferentFaultsAtLeast) { planted::expect_table(all_faults()); }

}  // namespace
}  // namespace bm::amd::faults
