// Faults planted end to end, from the runtime down to a simulated kernel driver and GPU: each must
// be reported in bounded time with the cause that came first, and leave nothing behind.

#include <chrono>
#include <cstdio>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tests/unit/nv_faults/bench.h"

namespace bm::nv::faults {
namespace {

using Clock = std::chrono::steady_clock;

// TIMEOUT: twice BM_WAIT_TIMEOUT_MS for the two waits a fault may end, and 10 s for a machine that
// is busy with other tests under sanitizers.
constexpr auto kBound = std::chrono::milliseconds(2 * kWaitMs) + std::chrono::seconds(10);

std::vector<Planted> all_faults() {
  std::vector<Planted> all = device_faults();
  for (Planted& fault : machine_faults()) all.push_back(std::move(fault));
  return all;
}

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

void expect_works(Bench& bench) {
  const Status opened = bench.open();
  ASSERT_TRUE(opened) << opened.error().message;
  const Status works = bench.works();
  EXPECT_TRUE(works) << works.error().message;
  bench.close();
}

Ring ring_in(const std::string& message) {
  const size_t at = message.find("compute ring: ");
  unsigned put = 0, get = 0;
  if (at == message.npos ||
      std::sscanf(message.c_str() + at, "compute ring: put %u, get %u of", &put, &get) != 2)
    return Ring::kAny;
  return put == get ? Ring::kFetched : Ring::kBehind;
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
  if (fault.ring != Ring::kAny) {
    EXPECT_EQ(ring_in(error.message), fault.ring) << error.message;
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
}

TEST_P(PlantedFaults, IsReportedWithItsFirstCause) {
  const Planted& fault = GetParam();
  Bench bench(fault.machine);
  if (fault.needs_device) {
    const Status opened = bench.open();
    ASSERT_TRUE(opened) << opened.error().message;
  }
  // Short only where it is to run out, lest a busy machine look like a hanging one.
  std::optional<ScopedSetting> wait;
  if (fault.code == Code::kTimeout) wait.emplace("BM_WAIT_TIMEOUT_MS", std::to_string(kWaitMs));
  const auto begin = Clock::now();
  const Status planted = fault.plant(bench);
  EXPECT_LT(Clock::now() - begin, kBound);
  ASSERT_FALSE(planted) << "nothing was reported";
  RecordProperty("message", planted.error().message);
  expect_cause(fault, bench, planted.error());
  if (fault.is_sticky) expect_sticky(bench, planted.error().message);

  bench.knobs().is_stalled = false;
  bench.knobs().is_hung = false;
  bench.close();
  wait.reset();
  bench.system().kernel().clear_plans();
  if (fault.is_repairable) {
    expect_works(bench);
  } else {
    Bench other({});
    expect_works(other);
    expect_clean(other);
  }
  expect_clean(bench);
}

INSTANTIATE_TEST_SUITE_P(Nv, PlantedFaults, testing::ValuesIn(all_faults()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(PlantedFaultsTable, HasTwentyDifferentFaultsAtLeast) {
  std::set<std::string> names;
  for (const Planted& fault : all_faults()) {
    EXPECT_FALSE(fault.says.empty()) << fault.name;
    names.insert(fault.name);
  }
  EXPECT_GE(names.size(), 20u);
}

}  // namespace
}  // namespace bm::nv::faults
