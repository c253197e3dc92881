#include "drivers/nv/gsp/sequencer.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/unit/nv_gsp/fake_gsp.h"

namespace bm::nv::gsp::test {
namespace {

// A header of ten words (size, count, eight saved registers), then the list.
Blob list(const std::vector<uint32_t>& words) {
  std::vector<uint32_t> all(10);
  all[1] = static_cast<uint32_t>(words.size());
  all.insert(all.end(), words.begin(), words.end());
  const auto bytes = std::as_bytes(std::span(all));
  return {bytes.begin(), bytes.end()};
}

struct Bench {
  Bench() {
    rig.pci.on_read = [this](uint32_t, uint64_t at) { return registers[at]; };
    rig.pci.on_write = [this](uint32_t, uint64_t at, uint32_t value) {
      registers[at] = value;
      writes.emplace_back(at, value);
    };
  }
  Result<uint32_t> run(const std::vector<uint32_t>& words) {
    return run_sequence(
        rig.bus, {.gsp = gsp, .sec2 = sec2, .libos_address = 0x1'2345'6000, .app_version = 42},
        list(words));
  }
  Rig rig;
  const Generation& row = **find_generation(0x17, 2);
  Falcon gsp{rig.bus, row, 0x110000, "the GSP"}, sec2{rig.bus, row, 0x840000, "SEC2"};
  std::map<uint64_t, uint32_t> registers;
  std::vector<std::pair<uint64_t, uint32_t>> writes;
};

TEST(GspSequencer, RegistersAreWrittenAndModified) {
  Bench bench;
  bench.registers[0x2000] = 0xff00ff00;
  const auto count = bench.run({0, 0x1000, 7, 1, 0x2000, 0xff, 0x12, 4, 0x2000, 3, 3, 100});
  ASSERT_TRUE(count) << count.error().message;
  EXPECT_EQ(*count, 4u);
  EXPECT_EQ(bench.registers[0x1000], 7u);
  EXPECT_EQ(bench.registers[0x2000], 0xff00ff12u);
}

TEST(GspSequencer, PollNamesTheErrorOfTheList) {
  Bench bench;
  bench.registers[0x3000] = 5;
  EXPECT_TRUE(bench.run({2, 0x3000, 0xf, 5, 0, 77}));
  const auto late = bench.run({2, 0x3000, 0xf, 6, 5000, 0x77});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kTimeout);
  EXPECT_NE(late.error().message.find("0x77"), std::string::npos) << late.error().message;
}

TEST(GspSequencer, ResumeStartsSec2AndTellsTheGspItsArguments) {
  Bench bench;
  bench.registers[0x1180f8] = 1u << 26;
  bench.registers[0x111388] = 1u << 7;
  ASSERT_TRUE(bench.run({8}));
  EXPECT_EQ(bench.registers[0x110040], 0x23456000u);
  EXPECT_EQ(bench.registers[0x110044], 1u);
  EXPECT_EQ(bench.registers[0x111668], 0x111u);
  EXPECT_EQ(bench.registers[0x840100], 2u);
  EXPECT_EQ(bench.registers[0x110080], 42u);
}

TEST(GspSequencer, DamagedListsAreRefused) {
  for (const std::vector<uint32_t>& words : std::vector<std::vector<uint32_t>>{
           {9}, {0, 0x1000}, {0, 0x1001, 1}, {0, 0x1000000, 1}, {2, 0, 0, 0, 0}, {3, 0xffffffff}}) {
    Bench bench;
    const auto done = bench.run(words);
    ASSERT_FALSE(done) << words[0];
    EXPECT_EQ(done.error().code, Code::kCorrupt) << done.error().message;
  }
  Bench bench;
  Blob cut = list({0, 0x1000, 1});
  cut.resize(cut.size() - 4);
  EXPECT_FALSE(run_sequence(bench.rig.bus, {.gsp = bench.gsp, .sec2 = bench.sec2}, cut));
  EXPECT_FALSE(
      run_sequence(bench.rig.bus, {.gsp = bench.gsp, .sec2 = bench.sec2}, std::span(cut).first(8)));
}

}  // namespace
}  // namespace bm::nv::gsp::test
