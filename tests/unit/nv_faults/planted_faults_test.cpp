// Faults planted end to end, from the runtime down to a simulated kernel driver and GPU: each must
// be reported in bounded time with the cause that came first, and leave nothing behind.

#include "tests/unit/nv_faults/bench.h"

namespace bm::nv::faults {
namespace {

// TIMEOUT: twice BM_WAIT_TIMEOUT_MS for the two waits a fault may end, and 10 s for a machine that
// is busy with other tests under sanitizers.
const auto kBound = std::chrono::milliseconds(2 * kWaitMs) + std::chrono::seconds(10);

std::vector<Planted> all_faults() { return planted::joined(device_faults(), machine_faults()); }

class PlantedFaults : public testing::TestWithParam<Planted> {
 protected:
  const ScopedSetting text_{"BM_NV_CODE", "ptx"};
};

/// Nothing of ours is left in the machine, and nothing was done that hardware merely forgives.
void expect_clean(Bench& bench) {
  sim::nv::Kernel& kernel = bench.system().kernel();
  const sim::nv::Report report = kernel.report();
  EXPECT_EQ(report.leaks, std::vector<std::string>());
  EXPECT_EQ(report.complaints, std::vector<std::string>());
  EXPECT_EQ(kernel.live_objects(), 0u);
  EXPECT_EQ(kernel.pinned_bytes(), 0u);
  EXPECT_EQ(kernel.video_memory_used(0), 0u);
  EXPECT_EQ(bench.system().open_files(), 0u);
}

TEST_P(PlantedFaults, IsReportedWithItsFirstCause) {
  const Planted& fault = GetParam();
  planted::Trial<Planted> told;
  told.plant(fault);
  if (HasFatalFailure()) return;
  EXPECT_LT(told.took, kBound);
  Bench& bench = *told.bench;
  ASSERT_FALSE(told.status) << "nothing was reported";
  RecordProperty("message", told.status.error().message);
  planted::expect_cause(fault, bench, told.status.error());
  if (fault.is_sticky) planted::expect_sticky(bench, told.status.error().message);

  bench.knobs().is_stalled = false;
  bench.knobs().is_hung = false;
  bench.close();
  told.wait.reset();
  bench.system().kernel().clear_plans();
  if (fault.is_repairable) {
    planted::expect_works(bench);
  } else {
    Bench other({});
    planted::expect_works(other);
    expect_clean(other);
  }
  expect_clean(bench);
}

INSTANTIATE_TEST_SUITE_P(Nv, PlantedFaults, testing::ValuesIn(all_faults()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(PlantedFaultsTable, HasTwentyDifferentFaultsAtLeast) { planted::expect_table(all_faults()); }

}  // namespace
}  // namespace bm::nv::faults
