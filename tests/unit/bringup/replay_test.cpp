// Boots that are on file: recorded from the modelled card, played to the driver again.

#include <gtest/gtest.h>

#include "drivers/transport/pci_recorder.h"
#include "drivers/transport/pci_replay.h"
#include "tests/unit/amd_am/rig.h"

namespace bm {
namespace {

using amd::am::AmGpu;
using test::CardRig;

struct Played {
  Status booted, finished;
  std::vector<std::string> stages;
};

class Stages final : public StageWatcher {
 public:
  void stage_begins(std::string_view name) override { names.emplace_back(name); }
  void stage_ended(const Stage&) override {}
  std::vector<std::string> names;
};

/// Keeps a replay in reach of the test while the driver owns it: what the replay says in its end.
class Watched final : public PciFunction {
 public:
  Watched(PciTrace trace, Status* finished) : replay_(std::move(trace)), finished_(finished) {}
  ~Watched() override { *finished_ = replay_.finish(); }
  const PciIdentity& identity() const override { return replay_.identity(); }
  const std::array<PciBar, kPciBars>& bars() const override { return replay_.bars(); }
  Result<Mmio> map_bar(uint32_t index) override { return replay_.map_bar(index); }
  Result<HostView> map_bar_memory(uint32_t index, bool is_combined) override {
    return replay_.map_bar_memory(index, is_combined);
  }
  Status resize_bar(uint32_t index, uint64_t bytes) override {
    return replay_.resize_bar(index, bytes);
  }
  const DmaLimits& dma_limits() const override { return replay_.dma_limits(); }
  Result<std::vector<BusRange>> dma_map(const DmaRequest& request) override {
    return replay_.dma_map(request);
  }
  Status dma_unmap(void* host) override { return replay_.dma_unmap(host); }
  Result<std::unique_ptr<DmaMemory>> dma_allocate(uint64_t bytes, bool is_contiguous,
                                                  std::optional<uint64_t> iova) override {
    return replay_.dma_allocate(bytes, is_contiguous, iova);
  }
  Result<uint32_t> enable_interrupts(uint32_t wanted) override {
    return replay_.enable_interrupts(wanted);
  }
  Result<int> interrupt_fd(uint32_t vector) override { return replay_.interrupt_fd(vector); }
  Result<bool> wait_interrupt(uint32_t vector, int timeout_ms) override {
    return replay_.wait_interrupt(vector, timeout_ms);
  }
  Status reset(PciReset kind) override { return replay_.reset(kind); }
  Status status() const override { return replay_.status(); }

 protected:
  uint32_t config_size() const override { return 4096; }
  Result<uint32_t> do_read_config(uint32_t offset, uint32_t width) override {
    return replay_.read_config(offset, width);
  }
  Status do_write_config(uint32_t offset, uint32_t width, uint32_t value) override {
    return replay_.write_config(offset, width, value);
  }

 private:
  PciReplay replay_;
  Status* finished_;
};

/// Boots and closes; the trace of it.
std::string record(CardRig& rig, Played* out = nullptr) {
  std::string text;
  auto record =
      std::make_shared<PciRecord>([&text](std::string_view line) { text += std::string(line); });
  Stages stages;
  auto gpu = AmGpu::open(
      std::make_unique<PciRecorder>(std::make_unique<sim::amd::ChipFunction>(rig.card), record),
      {.firmware = rig.folder.search(), .clock = &rig.clock, .watcher = &stages});
  if (out != nullptr) {
    out->booted = gpu ? Status{} : tl::unexpected(gpu.error());
  }
  gpu = tl::unexpected(Error{});
  record->flush();
  if (out != nullptr) out->stages = stages.names;
  return text;
}

Played play(CardRig& rig, const std::string& text) {
  Played played;
  auto trace = parse_pci_trace(text);
  EXPECT_TRUE(trace) << trace.error().message;
  if (!trace) return played;
  Stages stages;
  auto gpu =
      AmGpu::open(std::make_unique<Watched>(std::move(*trace), &played.finished),
                  {.firmware = rig.folder.search(), .clock = &rig.clock, .watcher = &stages});
  played.booted = gpu ? Status{} : tl::unexpected(gpu.error());
  gpu = tl::unexpected(Error{});
  played.stages = stages.names;
  return played;
}

class Replay : public ::testing::TestWithParam<const char*> {};

TEST_P(Replay, ABootThatWasRecordedBootsAgainWithoutACard) {
  CardRig rig({.chip = GetParam()});
  Played then;
  const std::string text = record(rig, &then);
  ASSERT_TRUE(then.booted) << then.booted.error().message;
  const uint64_t reads = rig.card->counts().register_reads;
  const Played now = play(rig, text);
  ASSERT_TRUE(now.booted) << now.booted.error().message;
  EXPECT_TRUE(now.finished) << now.finished.error().message;
  EXPECT_EQ(now.stages, then.stages);
  EXPECT_EQ(rig.card->counts().register_reads, reads) << "the card was not needed";
}

INSTANTIATE_TEST_SUITE_P(Chips, Replay,
                         ::testing::Values("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"),
                         [](const auto& chip) { return std::string(chip.param); });

TEST(ReplayOfAFailure, FailsInTheSameStageWithTheSameWords) {
  CardRig rig({.smu_answer = {{0x6, 0xfc}}});
  Played then;
  const std::string text = record(rig, &then);
  ASSERT_FALSE(then.booted);
  const Played now = play(rig, text);
  ASSERT_FALSE(now.booted);
  EXPECT_EQ(now.booted.error().message, then.booted.error().message);
}

TEST(ReplayOfAnotherDriver, ADifferenceIsNamedWithItsStage) {
  CardRig rig;
  std::string text = record(rig);
  // The value of the last write to a register of the stage that marks the card.
  const size_t at = text.find(" w 5 ", text.size() / 2);
  ASSERT_NE(at, std::string::npos);
  const size_t end = text.find('\n', at);
  text.replace(text.rfind(' ', end), end - text.rfind(' ', end), " 0x5eed5eed");
  const Played now = play(rig, text);
  ASSERT_FALSE(now.booted);
  EXPECT_NE(now.booted.error().message.find("boot stage '"), std::string::npos);
  EXPECT_NE(now.booted.error().message.find("0x5eed5eed"), std::string::npos)
      << now.booted.error().message;
  EXPECT_FALSE(now.finished);
}

TEST(ReplayOfAPart, ATraceThatEndsEarlyIsAnErrorAndNoHang) {
  CardRig rig;
  const std::string text = record(rig);
  for (const size_t part : {2U, 3U, 5U, 17U}) {
    const std::string some = text.substr(0, text.rfind('\n', text.size() - text.size() / part) + 1);
    const Played now = play(rig, some);
    ASSERT_FALSE(now.booted) << part;
    EXPECT_NE(now.booted.error().message.find("the trace has ended"), std::string::npos)
        << now.booted.error().message;
  }
}

}  // namespace
}  // namespace bm
