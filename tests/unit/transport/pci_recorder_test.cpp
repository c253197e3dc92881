// Recording what a driver does to a function, and reading it back.

#include <array>
#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "drivers/transport/pci_config.h"
#include "drivers/transport/pci_recorder.h"
#include "tests/unit/transport/fake_pci.h"

namespace bm {
namespace {

struct Recorded {
  explicit Recorded(const test::FakePciOptions& options = {}) {
    record = std::make_shared<PciRecord>([this](std::string_view line) { text += line; });
    auto made = std::make_unique<test::FakePci>(options);
    fake = made.get();
    function = std::make_unique<PciRecorder>(std::move(made), record);
    EXPECT_TRUE(set_memory_decoding(*function, true));
  }
  PciTrace trace() const {
    record->flush();
    auto parsed = parse_pci_trace(text);
    EXPECT_TRUE(parsed) << parsed.error().message << "\n" << text;
    return parsed.value_or(PciTrace{});
  }

  std::string text;
  std::shared_ptr<PciRecord> record;
  test::FakePci* fake = nullptr;
  std::unique_ptr<PciRecorder> function;
};

TEST(PciRecorder, WritesEveryAccessInOrder) {
  Recorded run;
  const auto registers = run.function->map_bar(5);
  ASSERT_TRUE(registers);
  registers->write32(0x10, 0xabcd);
  EXPECT_EQ(registers->read32(0x10), 0xabcdu);
  const auto memory = run.function->map_bar_memory(0, true);
  ASSERT_TRUE(memory);
  const std::array<uint32_t, 3> words{1, 1, 2};
  memory->copy_in(0x40, words);
  std::array<std::byte, 12> back{};
  memory->copy_out(0x40, back);

  const PciTrace trace = run.trace();
  ASSERT_GE(trace.accesses.size(), 4u);
  const auto* last = &trace.accesses[trace.accesses.size() - 4];
  EXPECT_EQ(last[0].kind, PciAccess::Kind::kWrite);
  EXPECT_EQ(last[0].value, 0xabcdu);
  EXPECT_EQ(last[1].kind, PciAccess::Kind::kRead);
  EXPECT_EQ(last[1].bar, 5u);
  EXPECT_EQ(last[1].offset, 0x10u);
  EXPECT_EQ(last[2].kind, PciAccess::Kind::kWriteBlock);
  EXPECT_EQ(last[2].value, trace_hash(std::as_bytes(std::span(words))));
  EXPECT_EQ(last[3].data, std::vector<std::byte>(back.begin(), back.end()));
  EXPECT_EQ(trace.identity.device, run.fake->identity().device);
  EXPECT_EQ(trace.bars[0].size, run.fake->bars()[0].size);
}

TEST(PciRecorder, ReadsInARowWithOneAnswerAreOneLine) {
  Recorded run;
  const auto registers = run.function->map_bar(5);
  ASSERT_TRUE(registers);
  for (int i = 0; i < 5; ++i) (void)registers->read32(8);
  registers->write32(8, 7);
  (void)registers->read32(8);
  const PciTrace trace = run.trace();
  const auto* last = &trace.accesses[trace.accesses.size() - 3];
  EXPECT_EQ(last[0].repeats, 5u);
  EXPECT_EQ(last[2].repeats, 1u);
  EXPECT_EQ(last[2].value, 7u);
  EXPECT_EQ(run.record->counts().bars[5].reads, 6u);
}

TEST(PciRecorder, AWaitThatNeverEndsIsInTheTrace) {
  Recorded run;
  const auto registers = run.function->map_bar(5);
  ASSERT_TRUE(registers);
  // Whoever is killed while it waits has flushed nothing.
  for (int i = 0; i < 10; ++i) {
    (void)registers->read32(0x18);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_NE(run.text.find(" r 5 0x18 4 "), std::string::npos) << run.text;
  uint64_t reads = 0;
  for (const PciAccess& access : run.trace().accesses)
    if (access.kind == PciAccess::Kind::kRead && access.offset == 0x18) reads += access.repeats;
  EXPECT_EQ(reads, 10u);
}

TEST(PciRecorder, AWriteIsInTheTraceBeforeItHappens) {
  Recorded run;
  const auto registers = run.function->map_bar(5);
  ASSERT_TRUE(registers);
  std::string seen;
  run.fake->on_write = [&](uint32_t, uint64_t, uint32_t) { seen = run.text; };
  registers->write32(0x20, 0x5eed);
  EXPECT_NE(seen.find("0x5eed"), std::string::npos) << seen;
}

TEST(PciRecorder, CallsAndTheirAnswersAreKept) {
  Recorded run({.has_function_reset = false});
  const auto memory = run.function->dma_allocate(8192, true, 0x10000);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_FALSE(run.function->reset(PciReset::kFunction));
  const PciTrace trace = run.trace();
  const auto& last = trace.accesses.back();
  EXPECT_EQ(last.text, "reset function");
  EXPECT_TRUE(last.answer.starts_with("!unsupported ")) << last.answer;
  bool is_found = false;
  for (const PciAccess& access : trace.accesses)
    is_found |=
        access.text == "allocate 0x2000 contiguous at 0x10000" && access.answer == "0x10000+0x2000";
  EXPECT_TRUE(is_found) << run.text;
}

TEST(PciRecorder, UsesArePerPage) {
  Recorded run;
  const auto memory = run.function->map_bar_memory(0, true);
  ASSERT_TRUE(memory);
  memory->store<uint64_t>(0x2000, 1);
  memory->store<uint64_t>(0x2ff8, 1);
  (void)memory->load<uint64_t>(0x3000);
  const BusRange pages[] = {{0x2000, 0x1000}};
  EXPECT_EQ(run.record->uses(0, pages).writes, 2u);
  EXPECT_EQ(run.record->uses(0, pages).reads, 0u);
}

TEST(PciTrace, WhatIsNoLineIsNamed) {
  const std::string head = "# bellmetal pci trace 1\nfunction 0000:03:00.0 0x1002 0x1 0 0 0 0\n";
  EXPECT_TRUE(parse_pci_trace(head + "1 r 5 0x10 4 0x1 x3\n\n# words\n"));
  for (const char* line :
       {"1 r 6 0 4 0", "1 r 5 0 3 0", "r 5 0 4 0", "1 r 5 0 4 0 x0", "1 r 5 0 4 0 y", "1 z 1",
        "1 R 0 0 4 00000000*2", "1 R 0 0 4 000000", "1 R 0 0 0xffffffffff 00*99",
        "1 R 0 0 8 00000000*18446744073709551615", "1 W 0 0 4 12", "1 c 4096 4 0", "1 call ok",
        "bar 9 1 1 1 1 1", "function x", "dma 2 4096 64 0", "dma 1 0 64 0", "1 r 5 0 4"}) {
    const auto parsed = parse_pci_trace(head + line + "\n");
    ASSERT_FALSE(parsed) << line;
    EXPECT_NE(parsed.error().message.find("line 3"), std::string::npos) << parsed.error().message;
  }
  EXPECT_FALSE(parse_pci_trace(""));
  EXPECT_FALSE(parse_pci_trace("hello\n"));
  EXPECT_FALSE(parse_pci_trace("# bellmetal pci trace 1\n"));
}

}  // namespace
}  // namespace bm
