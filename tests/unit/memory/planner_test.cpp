#include "runtime/planner.h"

#include <gtest/gtest.h>

#include <random>

namespace bm::runtime {
namespace {

uint64_t end_of(const PlanBuffer& b) {
  const uint64_t length = uint64_t{b.last_use} - b.first_use + 1;
  return b.first_use + (b.is_copied ? 2 * length : length);
}

void expect_valid(const std::vector<PlanBuffer>& buffers, const Plan& plan) {
  ASSERT_EQ(plan.offsets.size(), buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    const PlanBuffer& a = buffers[i];
    ASSERT_EQ(plan.offsets[i] % 256, 0u);
    ASSERT_LE(plan.offsets[i] + a.size, plan.arena_sizes[a.pool]);
    for (size_t j = 0; j < i; ++j) {
      const PlanBuffer& b = buffers[j];
      const bool meet = a.pool == b.pool && a.first_use < end_of(b) && b.first_use < end_of(a);
      const bool overlap =
          plan.offsets[i] < plan.offsets[j] + b.size && plan.offsets[j] < plan.offsets[i] + a.size;
      ASSERT_FALSE(meet && overlap) << i << " and " << j;
    }
  }
}

/// Most bytes alive at one call: no plan can be smaller.
uint64_t lower_bound(const std::vector<PlanBuffer>& buffers, uint32_t pool) {
  uint64_t most = 0;
  for (const PlanBuffer& at : buffers) {
    uint64_t sum = 0;
    for (const PlanBuffer& b : buffers)
      if (b.pool == pool && b.first_use <= at.first_use && at.first_use < end_of(b))
        sum += (b.size + 255) / 256 * 256;
    most = std::max(most, sum);
  }
  return most;
}

TEST(Planner, ReusesMemoryOfBuffersThatAreThrough) {
  // A chain: each buffer lives for two calls, so two places are enough.
  std::vector<PlanBuffer> buffers;
  for (uint32_t i = 0; i < 10; ++i)
    buffers.push_back({.size = 1000, .first_use = i, .last_use = i + 1});
  const Plan plan = *plan_memory(buffers);
  expect_valid(buffers, plan);
  EXPECT_EQ(plan.arena_sizes, std::vector<uint64_t>{2048});
}

TEST(Planner, KeepsPoolsApart) {
  const std::vector<PlanBuffer> buffers{{.size = 256, .first_use = 0, .last_use = 0, .pool = 0},
                                        {.size = 512, .first_use = 5, .last_use = 5, .pool = 2}};
  const Plan plan = *plan_memory(buffers);
  EXPECT_EQ(plan.arena_sizes, (std::vector<uint64_t>{256, 0, 512}));
}

TEST(Planner, HoldsCopiedBuffersTwiceAsLong) {
  std::vector<PlanBuffer> buffers{{.size = 256, .first_use = 0, .last_use = 1},
                                  {.size = 256, .first_use = 2, .last_use = 2}};
  EXPECT_EQ(plan_memory(buffers)->arena_sizes[0], 256u);
  buffers[0].is_copied = true;  // taken for calls 0..3
  EXPECT_EQ(plan_memory(buffers)->arena_sizes[0], 512u);
  buffers[1].first_use = buffers[1].last_use = 4;
  EXPECT_EQ(plan_memory(buffers)->arena_sizes[0], 256u);
}

TEST(Planner, SurvivesAbsurdSizes) {
  EXPECT_EQ(plan_memory({{{.size = UINT64_MAX, .first_use = 0, .last_use = 0}}}).error().code,
            Code::kOutOfMemory);
  const std::vector<PlanBuffer> halves(2,
                                       {.size = uint64_t{1} << 63, .first_use = 0, .last_use = 0});
  EXPECT_EQ(plan_memory(halves).error().code, Code::kOutOfMemory);
  std::vector<PlanBuffer> in_turn = halves;
  in_turn[1].first_use = in_turn[1].last_use = UINT32_MAX;
  EXPECT_EQ(plan_memory(in_turn)->arena_sizes[0], uint64_t{1} << 63);
  const std::vector<PlanBuffer> many(9000,
                                     {.size = uint64_t{1} << 60, .first_use = 0, .last_use = 9});
  EXPECT_EQ(plan_memory(many).error().code, Code::kOutOfMemory);
}

TEST(Planner, RefusesLifetimesThatEndBeforeTheyBegin) {
  const Result<Plan> plan = plan_memory({{{.size = 1, .first_use = 3, .last_use = 2}}});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kInvalidArgument);
  EXPECT_FALSE(plan_memory({{{.size = 1, .pool = UINT32_MAX}}}));
  EXPECT_TRUE(plan_memory({})->arena_sizes.empty());
}

TEST(Planner, IsValidAndNearTheLowerBoundOnRandomPrograms) {
  uint64_t total_arena = 0, total_bound = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    std::vector<PlanBuffer> buffers(1 + random() % 120);
    for (PlanBuffer& b : buffers) {
      b.size = random() % (random() % 5 == 0 ? 100'000 : 3000);
      b.first_use = static_cast<uint32_t>(random() % 60);
      b.last_use = b.first_use + static_cast<uint32_t>(random() % 12);
      b.pool = static_cast<uint32_t>(random() % 2);
      b.is_copied = random() % 8 == 0;
    }
    const Plan plan = *plan_memory(buffers);
    expect_valid(buffers, plan);
    for (uint32_t pool = 0; pool < plan.arena_sizes.size(); ++pool) {
      const uint64_t bound = lower_bound(buffers, pool);
      ASSERT_GE(plan.arena_sizes[pool], bound);
      total_arena += plan.arena_sizes[pool];
      total_bound += bound;
    }
  }
  EXPECT_LT(static_cast<double>(total_arena), 1.1 * static_cast<double>(total_bound));
}

struct Kind {
  const char* name;
  uint32_t buffers, calls, lifetime;
  uint64_t (*size)(std::mt19937& random);
};

TEST(Planner, IsWithinATenthOfTheLowerBoundOnEveryProgram) {
  const Kind kinds[] = {
      {"few", 20, 20, 6, [](std::mt19937& r) { return 1 + uint64_t{r()} % 5000; }},
      {"some", 100, 60, 12, [](std::mt19937& r) { return 1 + uint64_t{r()} % 5000; }},
      {"a few large ones", 100, 60, 12,
       [](std::mt19937& r) { return r() % (r() % 5 == 0 ? 1'000'000u : 30'000u) + uint64_t{1}; }},
      {"of about one size", 100, 80, 20,
       [](std::mt19937& r) { return 100'000 + uint64_t{r()} % 100'000; }},
      {"long-lived", 150, 100, 60, [](std::mt19937& r) { return 1 + uint64_t{r()} % 50'000; }},
      {"powers of two", 200, 150, 20, [](std::mt19937& r) { return uint64_t{256} << (r() % 12); }}};
  for (const Kind& kind : kinds)
    for (uint32_t seed = 0; seed < 12; ++seed) {
      std::mt19937 random(seed);
      std::vector<PlanBuffer> buffers(kind.buffers);
      for (PlanBuffer& b : buffers) {
        b.size = kind.size(random);
        b.first_use = static_cast<uint32_t>(random() % kind.calls);
        b.last_use = b.first_use + static_cast<uint32_t>(random() % kind.lifetime);
      }
      const Plan plan = *plan_memory(buffers);
      expect_valid(buffers, plan);
      EXPECT_LE(static_cast<double>(plan.arena_sizes[0]),
                1.1 * static_cast<double>(lower_bound(buffers, 0)))
          << kind.name << ", seed " << seed;
    }
}

TEST(Planner, KnownTrapsCostAtMostATenth) {
  // Largest first puts the two large ones at the bottom and leaves no gap for what spans both.
  const std::vector<PlanBuffer> bridge{{.size = 40'960, .first_use = 0, .last_use = 1},
                                       {.size = 20'480, .first_use = 1, .last_use = 3},
                                       {.size = 40'960, .first_use = 3, .last_use = 4},
                                       {.size = 30'720, .first_use = 0, .last_use = 0},
                                       {.size = 30'720, .first_use = 4, .last_use = 4},
                                       {.size = 61'440, .first_use = 2, .last_use = 2}};
  // In call order, short-lived small ones leave gaps that nothing large fits in.
  std::vector<PlanBuffer> comb;
  for (uint32_t i = 0; i < 40; ++i)
    comb.push_back({.size = 2048 + 256 * i, .first_use = i, .last_use = i % 2 ? 80 : i + 1});
  // A growing chain: every buffer is larger than the gap that the one before the last left.
  std::vector<PlanBuffer> stairs;
  for (uint32_t i = 0; i < 60; ++i)
    stairs.push_back({.size = 1024 * (i + 1), .first_use = i, .last_use = i + 2});
  for (const std::vector<PlanBuffer>& buffers : {bridge, comb, stairs}) {
    const Plan plan = *plan_memory(buffers);
    expect_valid(buffers, plan);
    EXPECT_LE(static_cast<double>(plan.arena_sizes[0]),
              1.1 * static_cast<double>(lower_bound(buffers, 0)));
  }
}

TEST(Planner, LongProgramsArePlacedInWindows) {
  std::vector<PlanBuffer> buffers;
  std::mt19937 random(3);
  for (uint32_t i = 0; i < 9000; ++i)
    buffers.push_back({.size = 1 + random() % 5000,
                       .first_use = i,
                       .last_use = i + static_cast<uint32_t>(random() % 9)});
  const Plan plan = *plan_memory(buffers);
  // Neighbours suffice for the overlap check: nothing lives longer than nine calls.
  for (size_t i = 0; i < buffers.size(); i += 10) {
    const size_t end = std::min(buffers.size(), i + 30);
    const std::vector<PlanBuffer> part(buffers.begin() + static_cast<long>(i),
                                       buffers.begin() + static_cast<long>(end));
    const Plan part_plan{{plan.offsets.begin() + static_cast<long>(i),
                          plan.offsets.begin() + static_cast<long>(end)},
                         plan.arena_sizes};
    expect_valid(part, part_plan);
  }
  EXPECT_LT(static_cast<double>(plan.arena_sizes[0]),
            1.1 * static_cast<double>(lower_bound(buffers, 0)));
}

}  // namespace
}  // namespace bm::runtime
