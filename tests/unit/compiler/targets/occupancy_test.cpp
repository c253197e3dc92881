// Occupancy as the vendors' own formulas give it, and rooflines of kernels with one limit.
#include <gtest/gtest.h>

#include "compiler/analysis/static_roofline.h"
#include "compiler/targets/card.h"
#include "compiler/targets/target.h"

namespace bm::compiler {
namespace {

Occupancy of(const char* name, uint32_t block, uint32_t registers, uint64_t shared_bytes) {
  const hal::Arch arch{.vendor = hal::Vendor::kNull,
                       .name = name,
                       .cpu = {},
                       .features = {},
                       .units = 100,
                       .max_block = 1024,
                       .shared_memory_bytes = 48 << 10};
  return occupancy(target_info(arch), *find_card(name), block, registers, shared_bytes);
}

/// Source: CUDA's occupancy calculator for 8.0 and 9.0; LLVM 19, AMDGPUBaseInfo.cpp,
/// getNumWavesPerEUWithNumVGPRs.
TEST(Occupancy, FollowsRegistersSharedMemoryAndGroups) {
  EXPECT_EQ(of("sm_80", 256, 64, 0).waves, 32U);
  EXPECT_EQ(of("sm_80", 256, 65, 0).waves, 24U) << "72 registers are handed out";
  EXPECT_EQ(of("sm_80", 256, 32, 0).waves, 64U);
  EXPECT_EQ(of("sm_80", 128, 40, 100 << 10).groups, 1U) << "shared memory";
  EXPECT_EQ(of("sm_90", 32, 16, 0).waves, 32U) << "32 blocks of a warp";
  EXPECT_EQ(of("sm_90", 512, 128, 0).waves, 16U);
  EXPECT_EQ(of("gfx1100", 128, 96, 0).waves, 32U);
  EXPECT_EQ(of("gfx1100", 128, 97, 0).waves, 24U) << "120 registers are handed out";
  EXPECT_EQ(of("gfx942", 256, 128, 0).waves, 16U);
}

TEST(StaticRoof, IsTheSlowestOfIssueMatrixUnitsAndMemory) {
  const CardInfo& card = *find_card("sm_80");
  const ProgramCount issue{.groups = 100, .sub_group_slots = 4000, .sub_groups = 4};
  const StaticRoof one = static_roof(issue, card, 100, 0, 1);
  EXPECT_STREQ(one.bound_by, "issue");
  EXPECT_DOUBLE_EQ(one.seconds, 4000 / card.clock_hz) << "four warps, four schedulers";
  EXPECT_DOUBLE_EQ(
      static_roof({.groups = 101, .sub_group_slots = 4000, .sub_groups = 4}, card, 100, 0, 1)
          .seconds,
      2 * one.seconds)
      << "one unit has two groups";
  const StaticRoof matrix =
      static_roof({.groups = 100, .sub_groups = 4, .mma_ops = 1e6}, card, 100, 4e8, 1);
  EXPECT_STREQ(matrix.bound_by, "matrix");
  EXPECT_DOUBLE_EQ(matrix.of_roof, 1);
  const StaticRoof memory = static_roof(issue, card, 100, 0, 1e9);
  EXPECT_STREQ(memory.bound_by, "memory");
  EXPECT_DOUBLE_EQ(memory.seconds, 1e9 / card.bytes_per_second);
}

}  // namespace
}  // namespace bm::compiler
