// Knobs of tiles: what they ask for is what the schedule has, and whatever they ask for, sums stay
// what they are.
#include "compiler/schedules/gemm_cpu/knobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "compiler/ir/evaluate.h"
#include "compiler/tune/tuner.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/random_kernel.h"
#include "tests/unit/compiler/runner.h"

namespace bm::compiler {
namespace {

Knobs knobs_of(const char* text) { return *Knobs::parse(text); }

Schedule schedule_of(const ir::KernelIr& kernel, const Knobs& knobs) {
  return make_schedule(kernel, target_info(test::native_arch()), 2, {.knobs = &knobs});
}

TEST(TileKnobs, PanelsHaveTheTileAskedFor) {
  // 128: two blocks of K of the length asked for, whatever they are rounded to.
  const ir::KernelIr k = test::matmul_kernel(200, 300, 128, DType::kF32);
  const Schedule s = schedule_of(k, knobs_of("trows=5 tvectors=1 rtiles=3 ctiles=2 kc=64"));
  ASSERT_TRUE(s.panels());
  EXPECT_EQ(s.panels()->rows, 5u);
  EXPECT_EQ(s.panels()->vectors, 1u);
  EXPECT_EQ(s.panels()->row_block, 15);
  EXPECT_EQ(s.panels()->column_block, 2 * s.panels()->tile_columns());
  EXPECT_EQ(s.panels()->products[0].block, 64);
}

TEST(TileKnobs, TilesThatRegistersDoNotHoldAreNotTaken) {
  const ir::KernelIr k = test::matmul_kernel(200, 300, 100, DType::kF32);
  const Schedule chosen = schedule_of(k, {}), s = schedule_of(k, knobs_of("trows=16 tvectors=4"));
  ASSERT_TRUE(s.panels() && chosen.panels());
  EXPECT_EQ(s.panels()->rows, chosen.panels()->rows);
  EXPECT_EQ(s.panels()->vectors, chosen.panels()->vectors);
}

TEST(TileKnobs, BlocksThatNoCacheHoldsAreNotTaken) {
  const ir::KernelIr k = test::matmul_kernel(2000, 3000, 4000, DType::kF32);
  const Schedule s = schedule_of(k, knobs_of("rtiles=1024 ctiles=1024 kc=4096"));
  const Schedule chosen = schedule_of(k, knobs_of("kc=4096"));
  ASSERT_TRUE(s.panels() && chosen.panels());
  EXPECT_EQ(s.panels()->row_block, chosen.panels()->row_block);
  EXPECT_EQ(s.panels()->column_block, chosen.panels()->column_block);
  // Of a size that caches hold, the same knobs are taken.
  const Schedule small = schedule_of(k, knobs_of("rtiles=2 ctiles=2 kc=64"));
  ASSERT_TRUE(small.panels());
  EXPECT_EQ(small.panels()->row_block, 2 * small.panels()->rows);
  EXPECT_EQ(small.panels()->column_block, 2 * small.panels()->tile_columns());
}

/// Whole numbers: every order of additions gives the same sums.
std::vector<std::vector<std::byte>> whole_numbers(const ir::KernelIr& k, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::byte>> out;
  for (const ir::Param& p : k.params) {
    std::vector<std::byte> bytes(static_cast<size_t>(p.elements * item_size(p.dtype)));
    for (size_t i = 0; i + sizeof(float) <= bytes.size(); i += sizeof(float)) {
      const auto v = static_cast<float>(static_cast<int>(random() % 9) - 4);
      std::memcpy(&bytes[i], &v, sizeof v);
    }
    out.push_back(std::move(bytes));
  }
  return out;
}

void check_walk(const ir::KernelIr& k, uint64_t seed) {
  const hal::Arch arch = test::native_arch();
  std::mt19937_64 random(seed);
  Knobs knobs;
  for (int step = 0; step < 3; ++step) {
    const auto next = tuning_candidates(k, target_info(arch), knobs);
    ASSERT_FALSE(next.empty());
    knobs = next[random() % next.size()];
  }
  const auto inputs = whole_numbers(k, seed);
  auto want = inputs, got = inputs;
  std::vector<std::span<std::byte>> spans(want.begin(), want.end());
  ASSERT_TRUE(evaluate(k, spans, {}));
  const Status done = test::run_on_cpu(arch, "LLVM", k, got, {}, {.knobs = &knobs});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(got, want) << knobs.text();
}

TEST(TileKnobs, WhateverTheySaySumsStay) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    check_walk(test::matmul_kernel(29, 67, 45, DType::kF32, seed % 2 == 0), seed);
    check_walk(test::matmul_kernel(1, 150, 300, DType::kF32), seed);  // few rows: strips
    check_walk(test::convolution_kernel(17, 5, 9, 11), seed);
  }
}

TEST(TileKnobs, ASearchTriesTilesBlocksAndPlainSchedules) {
  const ir::KernelIr k = test::matmul_kernel(64, 96, 80, DType::kF32);
  const auto next = tuning_candidates(k, target_info(test::native_arch()), {});
  const auto asks = [&](const char* name) {
    return std::any_of(next.begin(), next.end(), [&](const Knobs& n) { return n.get(name); });
  };
  for (const char* name : {"trows", "tvectors", "rtiles", "ctiles", "kc", "plain"})
    EXPECT_TRUE(asks(name)) << name;
  EXPECT_FALSE(asks("jam0")) << "of no effect on panels";
  // The plain schedule is the fastest here: it must come to its turn.
  Knobs plain = knobs_of("plain=1");
  const auto best = compile(k, test::native_arch(), "LLVM", {.use_cache = false, .knobs = &plain});
  ASSERT_TRUE(best);
  size_t count = 0;
  const Judge judge = [&](const hal::CodeObject& code, double) -> Result<double> {
    ++count;
    return code.image == best->image ? 1.0 : 10.0;
  };
  const auto found = tune(k, test::native_arch(), "LLVM",
                          {.beam = 1, .limit = std::chrono::milliseconds(20'000)}, judge);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->knobs.get("plain"), 1);
  EXPECT_GT(count, 8u);
}

}  // namespace
}  // namespace bm::compiler
