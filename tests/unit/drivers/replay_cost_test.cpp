// What replay may not do: allocate, call the system.

#include <gtest/gtest.h>

#include <memory>

#include "tests/unit/drivers/allocation_counter.h"
#include "tests/unit/drivers/replay_rig.h"
#include "tests/unit/drivers/syscall_counter.h"

namespace bm::cpu {
namespace {

using test::ReplayRig;

TEST(ReplayCost, CountersSeeWhatTheyCount) {
  const uint64_t before = test::allocations_of_this_thread();
  ::operator delete(::operator new(1));  // a new-expression may be optimized away
  EXPECT_GT(test::allocations_of_this_thread(), before);
  const auto seen =
      test::count_syscalls([] { return 0; }, [](int) { return getppid() > 0 ? 7 : 0; });
  if (!seen.supported) GTEST_SKIP() << seen.problem;
  EXPECT_EQ(seen.exit_code, 7);
  EXPECT_EQ(seen.numbers.size(), 1u);
}

TEST(ReplayCost, NoAllocation) {
  ReplayRig rig(100);
  ASSERT_TRUE(rig.replay(1));
  const uint64_t before = test::allocations_of_this_thread();
  bool good = true;
  std::vector<float> other(16);
  for (uint64_t step = 2; step < 50; ++step) {
    const uint64_t values[] = {test::address(step % 2 == 0 ? rig.floats.data() : other.data()),
                               step};
    good = good && rig.queue().replay(*rig.recording, values).has_value();
  }
  EXPECT_EQ(test::allocations_of_this_thread() - before, 1u) << "only the test's own vector";
  EXPECT_TRUE(good);
  EXPECT_EQ(rig.words[0], 49u);
}

TEST(ReplayCost, NoSystemCall) {
  const auto seen = test::count_syscalls([] { return std::make_unique<ReplayRig>(100); },
                                         [](std::unique_ptr<ReplayRig>& rig) {
                                           bool good = true;
                                           for (uint64_t step = 1; step < 20; ++step)
                                             good = good && rig->replay(step).has_value();
                                           return good && rig->words[0] == 19 ? 0 : 1;
                                         });
  if (!seen.supported) GTEST_SKIP() << seen.problem;
  EXPECT_EQ(seen.exit_code, 0);
  EXPECT_EQ(seen.numbers.size(), 0u)
      << "first: " << (seen.numbers.empty() ? 0 : seen.numbers.front());
}

}  // namespace
}  // namespace bm::cpu
