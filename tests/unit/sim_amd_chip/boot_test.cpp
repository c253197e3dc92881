// A boot written by hand reaches queues that run packets, on every chip, without a violation.

#include <gtest/gtest.h>

#include "tests/unit/sim_amd_chip/boot.h"

namespace bm::test {
namespace {

using namespace bm::sim::amd;

class EveryChip : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, EveryChip,
                         testing::Values("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"));

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

TEST_P(EveryChip, TellsItsMemoryAndItsBlocks) {
  Bench bench({.chip = GetParam(), .vram_bytes = uint64_t{1} << 30});
  EXPECT_EQ(bench.read_at(0xde3), 1024u);
  EXPECT_EQ(bench.load((uint64_t{1} << 30) - (64 << 10)), 0x28211407u);
  // And through the index registers, for who has a small BAR.
  bench.write_at(6, 0);
  bench.write_at(0, 0x80000000u | ((1u << 30) - (64 << 10)));
  EXPECT_EQ(bench.read_at(1), 0x28211407u);
  EXPECT_EQ(joined(bench.chip().violations()), "");
}

TEST_P(EveryChip, BootsAndRunsPackets) {
  Bench bench({.chip = GetParam(), .vram_bytes = uint64_t{1} << 30});
  bench.boot();
  EXPECT_EQ(joined(bench.chip().violations()), "");
  const uint64_t target = Bench::kScratchVa;
  const uint64_t where = Bench::kData + (target - Bench::kVaBase);
  // WRITE_DATA to memory, confirmed.
  bench.submit(std::array<uint32_t, 5>{0xc0033700, 0x00100500, static_cast<uint32_t>(target),
                                       static_cast<uint32_t>(target >> 32), 0x600df00d});
  EXPECT_TRUE(bench.wait_for(where, 0x600df00d)) << joined(bench.chip().deaths());
  // COPY_LINEAR of 16 bytes, a FENCE.
  bench.submit_copy(std::array<uint32_t, 11>{
      1, 15, 0, static_cast<uint32_t>(target), static_cast<uint32_t>(target >> 32),
      static_cast<uint32_t>(target + 64), static_cast<uint32_t>(target >> 32), 5 | 3 << 16,
      static_cast<uint32_t>(target + 128), static_cast<uint32_t>(target >> 32), 7});
  EXPECT_TRUE(bench.wait_for(where + 128, 7)) << joined(bench.chip().deaths());
  EXPECT_EQ(bench.load(where + 64), 0x600df00du);
  EXPECT_EQ(joined(bench.chip().violations()), "");
  EXPECT_EQ(joined(bench.chip().deaths()), "");
}

}  // namespace
}  // namespace bm::test
