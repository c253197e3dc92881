#include "runtime/graph_plan.h"

#include <gtest/gtest.h>

namespace bm::runtime {
namespace {

/// Call on `queue` that writes words `writes` and reads words `reads` of one memory.
PlanCall call(uint32_t queue_index, std::vector<uint64_t> writes, std::vector<uint64_t> reads) {
  PlanCall made{queue_index, {}};
  for (const uint64_t w : writes) made.accesses.push_back({nullptr, w, w + 1, false, true});
  for (const uint64_t r : reads) made.accesses.push_back({nullptr, r, r + 1, true, false});
  return made;
}

using Waits = std::vector<QueueWait>;

TEST(GraphPlan, SameQueueNeedsABarrierOnlyForFreshResults) {
  const std::vector<PlanCall> calls = {call(1, {0}, {}), call(1, {1}, {}), call(1, {2}, {0}),
                                       call(1, {3}, {1})};
  const GraphPlan plan = plan_graph(calls, 2, {});
  EXPECT_FALSE(plan.calls[0].needs_barrier);
  EXPECT_FALSE(plan.calls[1].needs_barrier);
  EXPECT_TRUE(plan.calls[2].needs_barrier);
  EXPECT_FALSE(plan.calls[3].needs_barrier);  // the barrier before call 2 covers call 1
  for (const auto& planned : plan.calls) EXPECT_TRUE(planned.waits.empty());
}

TEST(GraphPlan, CrossQueueDependencyIsOneSignalAndOneWait) {
  const std::vector<PlanCall> calls = {call(1, {0}, {}), call(2, {1}, {0})};
  const GraphPlan plan = plan_graph(calls, 3, {});
  EXPECT_EQ(plan.calls[0].signal, 1u);
  EXPECT_EQ(plan.calls[1].waits, (Waits{{1, 1}}));
  EXPECT_TRUE(plan.calls[1].needs_barrier);
  EXPECT_EQ(plan.num_signals, (std::vector<uint32_t>{0, 1, 0}));
}

TEST(GraphPlan, WaitOnALaterCallImpliesEarlierOnesOfItsQueue) {
  const std::vector<PlanCall> calls = {call(1, {0}, {}), call(1, {1}, {}), call(2, {2}, {0, 1}),
                                       call(2, {3}, {0})};
  const GraphPlan plan = plan_graph(calls, 3, {});
  EXPECT_EQ(plan.calls[0].signal, 0u);
  EXPECT_EQ(plan.calls[2].waits, (Waits{{1, 1}}));
  EXPECT_TRUE(plan.calls[3].waits.empty());
}

TEST(GraphPlan, WaitsAreDroppedThroughAThirdQueue) {
  // Queue 3 reads what queue 1 wrote, but has already waited for queue 2, which waited for queue 1.
  const std::vector<PlanCall> calls = {call(1, {0}, {}), call(2, {1}, {0}), call(3, {2}, {1}),
                                       call(3, {3}, {0})};
  const GraphPlan plan = plan_graph(calls, 4, {});
  EXPECT_EQ(plan.calls[2].waits, (Waits{{2, 1}}));
  EXPECT_TRUE(plan.calls[3].waits.empty());
  // And within one call: waiting for queue 2 makes the wait for queue 1 needless.
  const std::vector<PlanCall> joined = {call(1, {0}, {}), call(2, {1}, {0}), call(3, {2}, {0, 1})};
  EXPECT_EQ(plan_graph(joined, 4, {}).calls[2].waits, (Waits{{2, 1}}));
}

TEST(GraphPlan, EndWaitsForEveryQueueOnce) {
  const std::vector<PlanCall> calls = {call(1, {0}, {}), call(2, {1}, {}), call(2, {2}, {}),
                                       call(1, {3}, {1})};
  const std::vector<EndGroup> ends = {{1, {0, 1, 2, 3}}};
  const GraphPlan plan = plan_graph(calls, 3, ends);
  ASSERT_EQ(plan.epilogues.size(), 1u);
  EXPECT_EQ(plan.epilogues[0], (Waits{{2, plan.calls[2].signal}}));
  EXPECT_NE(plan.calls[2].signal, 0u);
}

TEST(GraphPlan, EndNeedsNoWaitForWhatItsQueueWaitedForAlready) {
  const std::vector<PlanCall> calls = {call(2, {1}, {}), call(1, {3}, {1})};
  const GraphPlan plan = plan_graph(calls, 3, std::vector<EndGroup>{{1, {0, 1}}});
  EXPECT_TRUE(plan.epilogues[0].empty());
}

TEST(GraphPlan, EndDoesNotRelyOnAThirdQueue) {
  // Queue 1 waited for queue 3, which waited for queue 2; the end waits for queue 2 all the same.
  const std::vector<PlanCall> calls = {call(2, {0}, {}), call(3, {1}, {0}), call(1, {2}, {1})};
  const GraphPlan plan = plan_graph(calls, 4, std::vector<EndGroup>{{1, {0, 1, 2}}});
  EXPECT_EQ(plan.calls[2].waits, (Waits{{3, 1}}));
  EXPECT_EQ(plan.epilogues[0], (Waits{{2, 1}}));
}

}  // namespace
}  // namespace bm::runtime
